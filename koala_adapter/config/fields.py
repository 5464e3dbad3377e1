# SPDX-License-Identifier: Apache-2.0
"""Types of values in site files and job files: durations, sizes of memory, names, paths, hosts, patterns, signals.

A validator raises NotAllowedError with the words that complete "allowed is ..."; before them,
:mod:`koala_adapter.config.diagnosis` puts file, line, key and what was found.
"""

from __future__ import annotations

import ipaddress
import math
import re
from enum import StrEnum
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Annotated

from pydantic import (
    AfterValidator,
    AllowInfNan,
    BeforeValidator,
    Field,
    PlainValidator,
    Strict,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import PydanticKnownError

from koala_adapter.config.written import NotAllowedError, is_text, parse_duration
from koala_adapter.model import After, AfterEnd, JobId, RetriedEnd
from koala_adapter.policies.definition import PolicyKind, policy_names
from koala_adapter.scheduler.placement.policies import PLACEMENT_POLICIES
from koala_adapter.sizes import rule_named
from koala_adapter.vjm.agent.processes import FOREIGN_NAMES, FOREIGN_PREFIXES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pydantic.config import JsonDict


# -- Types that both kinds of file use -----------------------------------------------------------------------

PLACEMENTS = tuple(PLACEMENT_POLICIES)
"""Koala's own placement policies. A file may also name those that are installed beside it."""

SECONDS: JsonDict = {"x-unit": "seconds"}
"""Marks a duration in a JSON Schema; :mod:`koala_adapter.config.schema` then also allows the text forms there."""

NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9_-]{0,62}$"
ABSOLUTE_PATH_PATTERN = r"^/[^\x00-\x1f\x7f]*$"
TITLE_PATTERN = r"^[^\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]{1,128}$"
QUEUE_PATTERN = r"^[^\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]{0,127}$"
PORTS_PATTERN = r"^[0-9]{4,5}-[0-9]{4,5}$"
FIRST_UNPRIVILEGED_PORT, LAST_PORT = 1024, 65_535
FLAG_PATTERN = r"^--?[A-Za-z][A-Za-z0-9_-]*$"
ARGUMENT_PATTERN = r"^-[^\x00-\x1f\x7f]+$"
CHARGE_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.+:=/@#%-]{0,127}$"
FEATURE_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.+:=/@#%-]{0,63}$"

LONGEST_NAME = 255
"""Bytes of a name in a directory (NAME_MAX, limits.h)."""
LONGEST_PATH = 4095
"""Bytes of a path in a system call (PATH_MAX, which counts the NUL at its end)."""

PATTERN_WORDS: Mapping[str, str] = {
    NAME_PATTERN: "a letter, then letters, digits, _ or -, at most 63 in all",
    ABSOLUTE_PATH_PATTERN: "an absolute path: it begins with /",
    TITLE_PATTERN: "1 to 128 characters on one line, without invisible ones",
    QUEUE_PATTERN: "the name of a partition or queue, without spaces",
    FLAG_PATTERN: 'the name of a flag alone, without a value, such as "--no-requeue" or "-V"',
    ARGUMENT_PATTERN: 'an argument that begins with - and has no line break, such as "--account=physics"',
    CHARGE_PATTERN: "one word of letters, digits and . _ - + : = / @ # %, at most 128 characters",
    FEATURE_PATTERN: "one word of letters, digits and . _ - + : = / @ # %, at most 64 characters",
}
"""What each pattern means, in words for a refusal."""


SIZE_WORDS = 'MiB as a whole number, or a text with a unit (K, M, G or T, with or without iB), such as "4GiB" or "500M"'
SIZE_PATTERN = r"^[0-9]{1,15}(\.[0-9]{1,6})?([KkMmGgTt]([Ii]?[Bb])?)?$"
LARGEST_SIZE = 2**30
"""MiB, which is a PiB."""
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?(?:([KMGT])(?:I?B)?)?", re.IGNORECASE)
_KIB = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}


def parse_size(value: object) -> int:
    """Return the MiB of a whole number or of a text such as ``4GiB``, rounded up.

    Units are powers of 1024, with and without the ``i``, as the batch systems read them; a text without a unit is MiB.
    Raises NotAllowedError.
    """
    if isinstance(value, str) and (found := _SIZE.fullmatch(value)):
        value = math.ceil(Fraction(found[1]) * _KIB[(found[2] or "M").upper()] / 1024)
    if not isinstance(value, int) or isinstance(value, bool):
        raise NotAllowedError(SIZE_WORDS)
    if not 1 <= value <= LARGEST_SIZE:
        raise NotAllowedError(f"from 1 to {LARGEST_SIZE} MiB")
    return value


def policy_schema(own: Collection[str]) -> JsonDict:
    """Return the JSON Schema of a policy's name: koala's own are offered, any other is possible."""
    return {"anyOf": [{"enum": [*own]}, {"type": "string", "pattern": NAME_PATTERN}]}


def known_policy(value: object, kind: PolicyKind, own: Collection[str]) -> object:
    """Return the name of one of koala's own policies of a kind or of an installed one; refuse the rest as a Literal."""
    if value not in own:
        allowed = (*own, *policy_names(kind))
        if value not in allowed:
            raise PydanticKnownError("literal_error", {"expected": " or ".join(f"'{name}'" for name in allowed)})
    return value


def _host(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        pass
    if re.fullmatch(
        r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9])?)*",
        value,
    ):
        return value
    raise NotAllowedError("a host name or an IP address, without port or protocol")


def _port_range(value: str) -> str:
    first, _, last = value.partition("-") if re.fullmatch(PORTS_PATTERN, value) else ("0", "", "0")
    if FIRST_UNPRIVILEGED_PORT <= int(first) <= int(last) <= LAST_PORT:
        return value
    raise NotAllowedError('the first and the last port, from 1024 to 65535, such as "50000-50999"')


def _variable(value: str) -> str:
    # Not only what a shell calls a name: exported functions, as those of modules, are in BASH_FUNC_module%%.
    if not re.fullmatch(r"[A-Za-z_][!-<>-~]*", value):
        raise NotAllowedError("the name of an environment variable: a letter or _ first, no space, no =, ASCII only")
    if value.startswith("KOALA_"):
        raise NotAllowedError("a name that does not begin with KOALA_: those are set for each rank by koala")
    return value


def _short_enough(value: str) -> str:
    if (fault := path_fault(value)) is not None:
        raise NotAllowedError(fault)
    return value


def path_fault(path: str, *, before: int = 0) -> str | None:
    """Return what is allowed when no system call takes a path, with ``before`` bytes in front of it; else None."""
    if any(len(part.encode()) > LONGEST_NAME for part in path.split("/")):
        return f"a path each part of which has at most {LONGEST_NAME} bytes"
    if before + len(path.encode()) > LONGEST_PATH:
        return f"a path of at most {LONGEST_PATH - before} bytes"
    return None


def _web_address(value: str) -> str:
    if not re.fullmatch(r"https?://[!-~]+", value):
        raise NotAllowedError("an address that begins with http:// or https://, without spaces")
    return value


def _mail_address(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._%+-]+(@[A-Za-z0-9.-]+)?", value):
        raise NotAllowedError("one mail address, such as me@example.org")
    return value


def _no_null(value: str) -> str:
    if "\0" in value:
        raise NotAllowedError("text without the character U+0000")
    return value


PlacementName = Annotated[
    str,
    PlainValidator(partial(known_policy, kind=PolicyKind.PLACEMENT, own=PLACEMENTS)),
    WithJsonSchema(policy_schema(PLACEMENTS)),
]
Whole = Annotated[int, Strict()]
Mebibytes = Annotated[
    int,
    PlainValidator(parse_size),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": LARGEST_SIZE},
                {"type": "string", "pattern": SIZE_PATTERN},
            ]
        }
    ),
]
Flag = Annotated[bool, Strict()]
Seconds = Annotated[float, Strict(), AllowInfNan(allow_inf_nan=False), BeforeValidator(parse_duration)]
MebibytesPerSecond = Annotated[float, Strict(), AllowInfNan(allow_inf_nan=False)]
WholeSeconds = Annotated[int, Strict(), BeforeValidator(parse_duration)]
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Title = Annotated[str, StringConstraints(pattern=TITLE_PATTERN)]
QueueName = Annotated[str, StringConstraints(pattern=QUEUE_PATTERN)]
AbsolutePath = Annotated[str, StringConstraints(pattern=ABSOLUTE_PATH_PATTERN), AfterValidator(_short_enough)]
FlagName = Annotated[str, StringConstraints(pattern=FLAG_PATTERN)]
DirectiveArgument = Annotated[str, StringConstraints(pattern=ARGUMENT_PATTERN)]
ChargeName = Annotated[str, StringConstraints(pattern=CHARGE_PATTERN)]
"""Name of an account, a project or a quality of service."""
FeatureName = Annotated[str, StringConstraints(pattern=FEATURE_PATTERN)]
"""Name of a feature of nodes, or of a license."""
Host = Annotated[str, AfterValidator(_host)]
SshDestination = Annotated[str, StringConstraints(pattern=r"^[^\s-]\S*$")]
PortRange = Annotated[str, AfterValidator(_port_range), WithJsonSchema({"type": "string", "pattern": PORTS_PATTERN})]
"""First and last TCP port that may be used, such as 50000-50999."""
"""What ssh takes for a host: no option, and one word."""
WebAddress = Annotated[str, AfterValidator(_web_address)]
MailAddress = Annotated[str, AfterValidator(_mail_address)]
PlainText = Annotated[str, AfterValidator(_no_null)]
VariableName = Annotated[str, AfterValidator(_variable)]
Environment = dict[VariableName, PlainText]


# -- Variables of the submitter that a job takes along -------------------------------------------------------
# A variable named in full goes along, whatever it is, but for koala's own. What "all" or a pattern takes leaves out
# what belongs to koala, to a batch system (the submitter may be inside one of its jobs), to the login session and to
# the account on this host: on a node it would be wrong.

ALL = "*"
"""The pattern that stands for ``"all"``."""
GLOB = frozenset("*?[")

SESSION_PREFIXES = (
    "SSH_", "XDG_SESSION_", "DBUS_", "TMUX", "TERM_", "VSCODE_", "WSL", "SUDO_", "LC_TERMINAL", "SYSTEMD_", "LISTEN_",
)  # fmt: skip
SESSION_NAMES = frozenset((
    "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SEAT", "XDG_VTNR", "SESSION_MANAGER",
    "WINDOWID", "TERM", "COLORTERM", "COLUMNS", "LINES", "STY", "WINDOW", "GPG_AGENT_INFO", "GPG_TTY", "KRB5CCNAME",
    "INVOCATION_ID", "JOURNAL_STREAM", "NOTIFY_SOCKET", "MAIL", "PWD", "OLDPWD", "SHLVL", "_",
))  # fmt: skip
"""Of the login session, or the terminal in it."""
HOST_NAMES = frozenset(
    ("HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "HOST", "TMPDIR", "TMP", "TEMP", "HOSTTYPE", "MACHTYPE", "OSTYPE")
)
"""Of the account and of the host."""
BATCH_PREFIXES = ("DRMAA", "LSB_", "LSF_", *FOREIGN_PREFIXES)
BATCH_NAMES = FOREIGN_NAMES
"""Of koala, and of batch systems and MPI starters: see the agent, which takes them from each rank's environment."""


def stays_behind(name: str) -> bool:
    """Tell whether neither ``"all"`` nor a pattern takes a variable."""
    named = name in BATCH_NAMES or name in SESSION_NAMES or name in HOST_NAMES
    return named or name.startswith((*BATCH_PREFIXES, *SESSION_PREFIXES))


def exported(patterns: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that names and patterns take from an environment; those that are not set are left out."""
    return {
        name: value
        for name, value in environment.items()
        if any(_takes(pattern, name) for pattern in patterns) and (is_text(name + value) or ALL not in patterns)
    }


def unfit(patterns: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of variables that are asked for and cannot travel: they are not UTF-8."""
    return (name for name, value in exported(patterns, environment).items() if not is_text(name + value))


def _takes(pattern: str, name: str) -> bool:
    if not GLOB & set(pattern):
        return pattern == name
    return fnmatchcase(name, pattern) and not stays_behind(name)


# -- The environment of a program: lines of a shell, software, containers, exported variables -----------------

MOST_LINES = 100
LONGEST_LINE = 1000


def _line(value: str) -> str:
    if not value.strip() or "\0" in value or len(value) > LONGEST_LINE:
        raise NotAllowedError(f'a line of a shell of at most {LONGEST_LINE} characters, such as "module load gcc/12"')
    return value


def _image(value: str) -> str:
    if not re.fullmatch(r"[^\s\x00-\x1f\x7f-][^\x00-\x1f\x7f]*", value):
        raise NotAllowedError('an image as the container runtime names it, such as "/apps/image.sif"')
    return value


def _software_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+/-]{0,62}", value):
        raise NotAllowedError("a letter or digit, then letters, digits, _ . + / or -, at most 63 in all")
    return value


EXPORT_WORDS = '"all", or a list of names and patterns of variables, such as ["PYTHONPATH", "CONDA_*"]'


def _export(value: object) -> tuple[str, ...]:
    """Return names and patterns; ``"all"`` is the pattern of everything."""
    if value == "all":
        return (ALL,)
    if not isinstance(value, list | tuple) or len(value) > MOST_LINES:
        raise NotAllowedError(EXPORT_WORDS)
    for one in value:
        if not isinstance(one, str) or not re.fullmatch(r"[A-Za-z_][!-<>-~]*", one):
            raise NotAllowedError(EXPORT_WORDS)
        if one.startswith("KOALA_"):
            raise NotAllowedError(f"names other than {one}: koala sets those that begin with KOALA_")
        if GLOB & set(one) and stays_behind(re.split(r"[*?[]", one)[0]):
            raise NotAllowedError(f"names in full in the place of {one}: patterns leave these variables out")
    return tuple(value)


Export = Annotated[
    tuple[str, ...],
    PlainValidator(_export),
    WithJsonSchema({"anyOf": [{"const": "all"}, {"type": "array", "items": {"type": "string"}}]}),
]
"""Names and patterns of variables."""
SetupLines = Annotated[tuple[Annotated[str, AfterValidator(_line)], ...], Field(max_length=MOST_LINES)]
SoftwareName = Annotated[str, AfterValidator(_software_name)]
ContainerImage = Annotated[str, AfterValidator(_image)]


# -- Output files of a job file ------------------------------------------------------------------------------
# Patterns, relative to a rank's directory, of files that are fetched from there at its end. The agent matches them on
# the node. As in a shell: ``*``, ``?`` and ``[...]`` within a name, where a dot at its beginning must be written;
# ``**`` as a name of its own is any number of directories.

MOST_PATTERNS = 100


def _pattern(value: str) -> str:
    parts = [part for part in value.split("/") if part not in {"", "."}]
    if not parts or "\0" in value or value.startswith("/") or ".." in parts:
        raise NotAllowedError("a path or glob pattern below the rank's directory: relative, without ..")
    if (fault := path_fault(value)) is not None:
        raise NotAllowedError(fault)
    return "/".join(parts)


OutputPattern = Annotated[str, AfterValidator(_pattern)]
"""Normalized: without empty parts, ``.`` or a slash at its end."""


# -- Signals, sizes and resizing of malleable jobs -----------------------------------------------------------

LONGEST_GRACE = 3600

LONGEST_POINT_PATIENCE = 86_400

_ENDING = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "KILL")


def _signal(value: object, allowed: Sequence[str]) -> object:
    if value not in allowed:
        raise NotAllowedError(", ".join(f'"{name}"' for name in allowed[:-1]) + f' or "{allowed[-1]}"')
    return value


def _program(value: tuple[str, ...]) -> tuple[str, ...]:
    if value and not value[0]:
        raise NotAllowedError("a list whose first text is the name or path of a program")
    return value


def _sizes(value: object) -> object:
    try:
        rule_named(str(value))
    except ValueError:
        installed = policy_names(PolicyKind.SIZES)
        if value not in installed:
            others = "".join(f', "{name}"' for name in installed)
            own = '"any", "power-of-two" or "multiple-of-N" with a whole number N'
            raise NotAllowedError(f"{own}{others and ', or of those installed'}{others}") from None
    return value


def after_of(value: str | int) -> After:
    """Return the job that a text such as ``12``, ``12:any`` or ``name:failed`` names. Raises NotAllowedError."""
    text = str(value)
    name, _, end = text.rpartition(":") if ":" in text else (text, "", AfterEnd.OK)
    if not name.strip() or end not in list(AfterEnd):
        raise NotAllowedError('the id or name of a job, and behind it ":ok" (as without), ":failed" or ":any"')
    return After(job=JobId(name), end=AfterEnd(end))


def _after(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise NotAllowedError('the id or name of a job as a text, such as "12" or "sim:any"')
    after_of(value)
    return str(value)


AfterText = Annotated[str, BeforeValidator(_after)]

SignalName = Annotated[str, BeforeValidator(partial(_signal, allowed=_ENDING))]
HandledSignalName = Annotated[str, BeforeValidator(partial(_signal, allowed=_ENDING[:-1]))]
"""Those for which a program can have a handler."""

MOST_HOST_PORTS = 16
MOST_RETRIES = 1000
HIGHEST_STATUS = 255


def _retried(value: object) -> RetriedEnd | int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= HIGHEST_STATUS:
        return value
    if value not in list(RetriedEnd):
        known = ", ".join(f'"{one}"' for one in RetriedEnd)
        raise NotAllowedError(f"{known} or an exit status from 1 to {HIGHEST_STATUS}")
    return RetriedEnd(str(value))


RetriedValue = Annotated[
    RetriedEnd | int,
    PlainValidator(_retried),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "enum": [one.value for one in RetriedEnd]},
                {"type": "integer", "minimum": 1, "maximum": HIGHEST_STATUS},
            ]
        }
    ),
]

PRIORITIES: Mapping[str, int] = {"low": -500, "normal": 0, "high": 500, "super-high": 1000}
"""KOALA's names of priorities, and the numbers that they stand for."""


def _priority(value: object) -> object:
    if isinstance(value, str):
        if value not in PRIORITIES:
            known = ", ".join(f'"{name}"' for name in PRIORITIES)
            raise NotAllowedError(f"{known} or a whole number from {-HIGHEST_PRIORITY} to {HIGHEST_PRIORITY}")
        return PRIORITIES[value]
    return value


HIGHEST_PRIORITY = 1000
Priority = Annotated[
    int,
    Strict(),
    Field(ge=-HIGHEST_PRIORITY, le=HIGHEST_PRIORITY),
    BeforeValidator(_priority),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": -HIGHEST_PRIORITY, "maximum": HIGHEST_PRIORITY},
                {"type": "string", "enum": [*PRIORITIES]},
            ]
        }
    ),
]

SizesName = Annotated[str, BeforeValidator(_sizes)]

RetireCommand = Annotated[tuple[PlainText, ...], AfterValidator(_program)]


class MpiResizeWanted(StrEnum):
    """Values of ``mpi_resize`` in a job file."""

    ANY = "any"
    SPAWN = "spawn"
    RESTART = "restart"

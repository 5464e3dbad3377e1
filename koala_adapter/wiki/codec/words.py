# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of WIKI in both dialects: codes, states, signals, host lists. Pure."""

from __future__ import annotations

import re
from enum import Enum, IntEnum, StrEnum
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from koala_adapter.errors import WikiError
from koala_adapter.wire.hostlists import expand_part, split_outside_brackets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


# -- Words and codes -----------------------------------------------------------------------------------------


class Dialect(StrEnum):
    """Dialect of the protocol."""

    WIKI = "wiki"
    """Version 1: Maui, and Slurm's sched/wiki."""
    WIKI2 = "wiki2"
    """Version 2: Moab, and Slurm's sched/wiki2."""


class Status(IntEnum):
    """Status codes (SC) as Slurm gave them; the document only says that negative is failure."""

    SUCCESS = 0
    FAILURE = -1
    INITIALIZING = -140
    """The job list does not exist yet: ask again."""
    BAD_REQUEST = -300
    CLOCK_SKEW = -350
    BAD_CHECKSUM = -422
    REFUSED = -700
    """Unknown object, or one in a state that does not allow it."""
    INVENTORY = -720
    NO_WILLRUN = -730
    """A JOBWILLRUN that cannot be tested."""
    UNSUPPORTED = -810
    NOT_STARTED = -910
    """A STARTJOB that could not be done: this minus a `WaitReason`."""


class WaitReason(Enum):
    """Why a STARTJOB failed: Slurm's number, to be subtracted from Status.NOT_STARTED, and its word."""

    PRIORITY = 1, "Priority"
    DEPENDENCY = 2, "Dependency"
    RESOURCES = 3, "Resources"
    HELD = 8, "JobHeldAdmin"
    BEGIN_TIME = 9, "BeginTime"
    BAD_CONSTRAINTS = 20, "BadConstraints"

    def __init__(self, number: int, word: str) -> None:
        """Store both; a reason is given by its member."""
        self.status = Status.NOT_STARTED - number
        self.word = word


class NodeWord(StrEnum):
    """States of a node that Maui knows."""

    IDLE = "Idle"
    RUNNING = "Running"
    """Has work and may have room."""
    BUSY = "Busy"
    """Full."""
    UNKNOWN = "Unknown"
    """Maui works out the rest from its own table of jobs, and schedules there."""
    DOWN = "Down"
    DRAINED = "Drained"
    DRAIN = "Drain"
    DRAINING = "Draining"
    FLUSH = "Flush"
    RESERVED = "Reserved"
    NONE = "None"


class JobWord(StrEnum):
    """States of a job that Maui knows; it ignores a record with any other word."""

    IDLE = "Idle"
    HOLD = "Hold"
    STARTING = "Starting"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    COMPLETED = "Completed"
    REMOVED = "Removed"
    VACATED = "Vacated"
    UNKNOWN = "Unknown"


DRAIN_WORD: Final = MappingProxyType({Dialect.WIKI: NodeWord.DRAINING, Dialect.WIKI2: NodeWord.DRAINED})
"""What each dialect says of a node that gets no new work."""


class CancelType(StrEnum):
    """TYPE of a CANCELJOB."""

    ADMIN = "ADMIN"
    WALLCLOCK = "WALLCLOCK"
    TIMEOUT = "TIMEOUT"


class HostFormat(StrEnum):
    """How host lists are written (USEHOSTEXP of INITIALIZE, HostFormat of wiki.conf)."""

    PLAIN = "F"
    """``n1:n1:n2``: all that Maui understands."""
    TASKS = "T"
    """``n[1-2]*2`` in job records."""
    NODES = "N"
    """Also node records for several equal nodes at once: ``n[1-3]:STATE=…``."""


class Event(IntEnum):
    """Events that a resource manager sends to Moab's event port."""

    JOBS = 1234
    """A job came or changed its state."""
    CONFIGURATION = 1235
    """Partitions or configuration changed, or the resource manager has started."""


SIGNALS: Final = MappingProxyType(
    {
        "HUP": 1,
        "INT": 2,
        "QUIT": 3,
        "ABRT": 6,
        "USR1": 10,
        "USR2": 12,
        "ALRM": 14,
        "TERM": 15,
        "CONT": 18,
        "STOP": 19,
        "URG": 23,
    }
)
"""The names that SIGNALJOB accepts (without SIG, in any case), as the numbers of Linux."""


# -- Numbers -------------------------------------------------------------------------------------------------

LARGEST_UNSIGNED = (1 << 64) - 1
_MOST_DIGITS = 40
"""More than any integer of C has; int() would take long over very many."""
_BASE_0 = re.compile(
    r"\s*(?P<sign>[+-]?)(?:0[xX](?P<hexadecimal>[0-9a-fA-F]+)|(?P<octal>0[0-7]*)|(?P<decimal>[0-9]+))", re.ASCII
)


def read_integer(text: str) -> int | None:
    """Return the number at the beginning of a text as C ``strtol(text, NULL, 0)`` reads it; None without one.

    One that is too large for C is returned as some number that is too large.
    """
    found = _BASE_0.match(text)
    if not found:
        return None
    digits, base = next(
        (found[name], base) for name, base in (("hexadecimal", 16), ("octal", 8), ("decimal", 10)) if found[name]
    )
    number = int(digits.lstrip("0")[:_MOST_DIGITS] or "0", base)
    return -number if found["sign"] == "-" else number


# -- Host and task lists -------------------------------------------------------------------------------------
# Plain (``n1:n1:n2``), compressed (``n[1-2]*2:n3*1``), with ranges and commas.
#
# A task list has one entry for each task; equal hosts are adjacent. Maui understands only the plain form.

LONGEST_ID = 63
"""Bytes of a node name or job id that Maui stores."""
MOST_HOSTS = 200_000
"""A list that claims more entries is nonsense, and would otherwise fill the memory."""
LONGEST_TASK_LIST = 65_000
"""Bytes: Maui has buffers of 64 KiB for an attribute, and for the STARTJOB that repeats the list."""
MOST_TASKS = 8192
"""Tasks of one job that Maui has room for; it does not check."""
MOST_NODES_OF_JOB = 1024
"""Nodes of one job that Maui has room for."""

_NOT_IN_ID = re.compile(r'[\s:;#"\'\\=,@\x00-\x1f\x7f\ud800-\udfff]')
_NOT_IN_HOST = re.compile(r'[\s:;#"\'\\=,@*\[\]()\x00-\x1f\x7f\ud800-\udfff]')
_NUMBERED = re.compile(r"(?P<prefix>.*?)(?P<number>[0-9]{1,9})", re.ASCII | re.DOTALL)


def check_id(text: str) -> str:
    """Return a job id unchanged. Raises WikiError if it has characters that a message cannot carry."""
    return _check(text, _NOT_IN_ID, "job id")


def check_host(text: str) -> str:
    """Return a node name unchanged. Raises WikiError if it has characters that a message cannot carry."""
    return _check(text, _NOT_IN_HOST, "node name")


def _check(text: str, forbidden: re.Pattern[str], what: str) -> str:
    if not text or forbidden.search(text) or (len(text) > LONGEST_ID // 4 and len(text.encode()) > LONGEST_ID):
        raise WikiError(
            f"{text[:80]!r} cannot be a {what} in WIKI",
            hint=f"at most {LONGEST_ID} bytes, without separators, quotes and blanks",
        )
    return text


def check_tasks(hosts: Sequence[str]) -> None:
    """Raise WikiError when a task list has more entries, nodes or bytes than Maui has room for."""
    size = sum(map(len, hosts)) + len(hosts)
    if len(hosts) > MOST_TASKS or size > LONGEST_TASK_LIST or len(set(hosts)) > MOST_NODES_OF_JOB:
        raise WikiError(
            f"a task list of {len(hosts)} tasks on {len(set(hosts))} nodes ({size} bytes) is too large for Maui",
            hint=f"at most {MOST_TASKS} tasks, {MOST_NODES_OF_JOB} nodes, {LONGEST_TASK_LIST} bytes",
        )


def plain(hosts: Iterable[str]) -> str:
    """Return a task list as ``n1:n1:n2``. Raises WikiError for a name that cannot be written."""
    listed = list(hosts)
    for host in dict.fromkeys(listed):
        check_host(host)
    return ":".join(listed)


def compressed(hosts: Iterable[str]) -> str:
    """Return a task list as ``n[1-2]*2:n3*1``, in the same order (WIKI2 only). Raises WikiError."""
    counted = [(check_host(host), len(list(same))) for host, same in groupby(hosts)]
    items = []
    for times, group in groupby(counted, key=lambda pair: pair[1]):
        items += [f"{part}*{times}" for part in folded([host for host, _ in group])]
    return ":".join(items)


def ranges(hosts: Iterable[str]) -> str:
    """Return a host list as ``n[1-3,5],m1``, in the same order, as JOBWILLRUN takes it. Raises WikiError."""
    return ",".join(folded([check_host(host) for host in hosts]))


def folded(hosts: Iterable[str]) -> list[str]:
    """Return host expressions such as ``n[1-3,5]`` that expand to the hosts in the same order."""
    parts: list[str] = []
    for prefix, numbers in _ascending_runs(hosts):
        if len(numbers) < 2:  # noqa: PLR2004 - one host needs no brackets
            parts.append(prefix + "".join(numbers))
            continue
        parts.append(f"{prefix}[{','.join(_spans(numbers))}]")
    return parts


def _ascending_runs(hosts: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    prefix, numbers = "", list[str]()
    for host in hosts:
        match = _NUMBERED.fullmatch(host)
        if match and numbers and match["prefix"] == prefix and int(match["number"]) > int(numbers[-1]):
            numbers.append(match["number"])
            continue
        if prefix or numbers:
            yield prefix, numbers
        prefix, numbers = (match["prefix"], [match["number"]]) if match else (host, [])
    if prefix or numbers:
        yield prefix, numbers


def _spans(numbers: Sequence[str]) -> Iterator[str]:
    first = last = numbers[0]
    for number in numbers[1:]:
        # A range repeats the width of its first number.
        if number == str(int(last) + 1).zfill(len(first)):
            last = number
            continue
        yield first if first == last else f"{first}-{last}"
        first = last = number
    yield first if first == last else f"{first}-{last}"


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a list in any of the forms, one entry for each task; empty entries are left out.

    Raises WikiError (status -300) when it cannot be understood or has more than `MOST_HOSTS` entries.
    """
    if not any(character in text for character in "*[],"):
        plainly = tuple(filter(None, text.split(":")))
        if len(plainly) > MOST_HOSTS:
            raise WikiError(f"a host list of {len(plainly)} entries is too long", status=Status.BAD_REQUEST)
        return plainly
    try:
        return tuple(_expanded(text))
    except ValueError as error:
        raise WikiError(f"a host list {error}", status=Status.BAD_REQUEST) from error


def _expanded(text: str) -> list[str]:
    hosts: list[str] = []
    for item in split_outside_brackets(text, ":"):
        listed, star, times = item.partition("*")
        if star and not re.fullmatch(r"[0-9]{1,9}", times, re.ASCII):
            raise ValueError(f"cannot be understood: {text[:80]!r}")
        for part in split_outside_brackets(listed, ","):
            for host in expand_part(part, limit=MOST_HOSTS):
                if len(hosts) + int(times or 1) > MOST_HOSTS:
                    raise ValueError("is too long")
                hosts += [host] * int(times or 1)
    return hosts

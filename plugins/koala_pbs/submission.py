# SPDX-License-Identifier: Apache-2.0
"""The command lines of qsub(1B), and the changes that a site makes to them.

Placeholders are elements of an array. One alone is an ordinary job, because PBS can hold, release, alter and start an
element only with its whole array; so are those that come in held, each to be released by itself. It is told its index
in the variable that PBS sets for elements. Torque's placeholders are all such jobs: it writes the number of an element
behind its name, by which it would not be found again, and behind its output path, which makes /dev/null-1 of it.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.lrm.commandplugin import Option, SubmissionForm
from koala_pbs.jobs import INDEX_VARIABLE
from koala_pbs.settings import TORQUE_NAME, PbsSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from koala_adapter.lrm import Submission
    from koala_adapter.lrm.contract import Directives, ReservationRequest
    from koala_adapter.lrm.mapping import Divided

# -- Options of qsub -----------------------------------------------------------------------------------------

_FLAG = re.compile(r"-[A-Za-z]")
_TWO_WORDS = 2
_HARMFUL_ATTRIBUTES = ("block", "interactive", "array_indices")


class QsubForm(SubmissionForm):
    """Options are flags of one letter, with a value; a site names one by flag (``-r``), or flag and resource."""

    def name(self, word: str) -> str:
        return word[:2]

    def is_option(self, words: Sequence[str]) -> bool:
        return re.fullmatch(r"-[A-Za-z].*|--", words[0]) is not None

    def is_one_option(self, words: Sequence[str]) -> bool:
        return len(words) == 1 or (len(words) == _TWO_WORDS and not words[1].startswith("-"))

    def is_harmful(self, words: Sequence[str]) -> bool:
        value = words[1] if len(words) == _TWO_WORDS else words[0][2:]
        return super().is_harmful(words) or (words[0][:2] == "-W" and value.startswith(_HARMFUL_ATTRIBUTES))

    def is_name(self, text: str) -> bool:
        words = text.split()
        return 1 <= len(words) <= _TWO_WORDS and _FLAG.fullmatch(words[0]) is not None

    def is_named(self, option: Option, text: str) -> bool:
        flag, *rest = text.split(maxsplit=1)
        return option[0] == flag and (not rest or (len(option) > 1 and option[1].partition("=")[0] == rest[0]))

    def renamed(self, option: Option, text: str) -> Option:
        flag, *resource = text.split(maxsplit=1)
        value = option[1] if len(option) > 1 else ""
        if resource:
            return (flag, f"{resource[0]}={value.partition('=')[2]}")
        return (flag, value) if value else (flag,)

    def is_part(self, text: str) -> bool:
        return re.fullmatch(r":[\w.=@/-]+(:[\w.=@/-]+)*", text) is not None

    def is_path(self, text: str) -> bool:
        # What stands before a colon is a host for qsub, and ^ begins its own words.
        return super().is_path(text) and not set(":^,") & set(text)


QSUB = QsubForm(
    system="PBS",
    # Without -C the script would be read for directives.
    ours=frozenset({"-N", "-J", "-v", "-C"}),
    # They make qsub wait, say no id, start no script, start it some day, or export an environment.
    harmful=frozenset({"-I", "-X", "-z", "-V", "--", "-a"}),
    in_template=frozenset({"-f", "-C", "-N", "-J", "-v", "-j", "-o", "-h"}),
    key=re.compile(r"[A-Za-z][A-Za-z0-9._+-]{0,229}", re.ASCII),
    queue=re.compile(r"[A-Za-z0-9][^\s\x00-\x1f\x7f]*"),
    no_path="no path for PBS",
    no_option="is no option: write a flag such as -r, or flag and resource: -l walltime",
)

# -- Submissions ---------------------------------------------------------------------------------------------

OPENPBS_SLOTS = frozenset({"threads", "gpus", "exclusive", "licenses", "account", "directives"})
"""Keys of a slot that OpenPBS has options for. Features are resources that each site names in its own way."""
TORQUE_SLOTS = frozenset({"threads", "gpus", "features", "account", "directives"})
"""Those that Torque has options for: features are properties of nodes."""
INDEX_IN_PATH = "^array_index^"


def pieces(submission: Submission, largest: int) -> tuple[range, ...]:
    """Return the indices of placeholders, divided into those that are submitted together.

    ``largest``: array that is taken. Usually all go in one; where they do not, each piece is a request. Of a submission
    without any, which is to be refused, there is one empty piece.
    """
    size = 1 if submission.held else max(1, largest)
    numbers = range(1, submission.count + 1)
    return tuple(numbers[start : start + size] for start in range(0, max(1, submission.count), size))


def qsub_command(
    submission: Submission, settings: PbsSettings, directives: Directives, piece: range
) -> tuple[str, ...]:
    """Return the command line that submits some placeholders. Raises LrmRejectedError when it cannot be expressed."""
    divided, chunk = _divided(submission, settings, directives)
    return ("qsub", *QSUB.arguments(_options(divided, chunk, settings, piece), divided.directives))


def native_specification(submission: Submission, settings: PbsSettings, directives: Directives) -> str:
    """Return what pbs-drmaa is asked for beside what a job template says of every system. Raises LrmRejectedError."""
    divided, chunk = _divided(submission, settings, directives)
    return QSUB.native(_options(divided, chunk, settings, range(1, 2)), divided.directives)


def obstacle_to_drmaa(settings: PbsSettings, directives: Directives) -> str:
    """Return why submissions of a cluster cannot go through pbs-drmaa; empty when they can."""
    if settings.project is not None:
        return "project cannot be had through DRMAA"
    return QSUB.obstacle_to_drmaa(directives)


def _divided(submission: Submission, settings: PbsSettings, directives: Directives) -> tuple[Divided, str]:
    """Divide a submission into mapped keys and the rest, with the chunk that it asks for."""
    torque = settings.dialect == TORQUE_NAME
    divided = QSUB.divided(submission, TORQUE_SLOTS if torque else OPENPBS_SLOTS, directives)
    slot = divided.rest.slot
    parts = [] if "threads" in divided.mapped else [f"{'ppn' if torque else 'ncpus'}={slot.threads}"]
    if divided.rest.memory_mib is not None and not torque:
        parts.append(f"mem={divided.rest.memory_mib}mb")
    if slot.gpus:
        parts.append(f"{'gpus' if torque else 'ngpus'}={slot.gpus}")
    parts += slot.features
    mapped = [text.removeprefix(":") for text in divided.arguments if text.startswith(":")]
    others = tuple(text for text in divided.arguments if not text.startswith(":"))
    return replace(divided, arguments=others), ":".join(["1", *parts, *mapped])


def _options(divided: Divided, chunk: str, settings: PbsSettings, piece: range) -> Iterator[Option]:
    submission = divided.rest
    torque = settings.dialect == TORQUE_NAME
    if not torque:
        # Without it qsub leaves a process behind that sends later submissions with the environment of this one.
        yield ("-f",)
    # Lines that look like directives are obeyed otherwise, wherever they stand in the script.
    yield ("-C", "")
    yield ("-N", submission.key)
    if len(piece) > 1:
        yield ("-J", f"{piece[0]}-{piece[-1]}")
        index = INDEX_IN_PATH
    else:
        yield ("-v", f"{INDEX_VARIABLE}={piece[0]}")
        index = str(piece[0])
    yield ("-l", f"{'nodes' if torque else 'select'}={chunk}")
    if torque and submission.memory_mib is not None:
        yield ("-l", f"mem={submission.memory_mib}mb")
    yield from _terms(divided)
    yield ("-l", f"walltime={submission.walltime}")
    # A placeholder that starts twice would dial in with a token that has been used. An array must be rerunnable.
    if len(piece) == 1:
        yield ("-r", "n")
    # Not the user's login shell, whatever language that speaks.
    yield ("-S", "/bin/sh")
    yield ("-j", "oe")
    yield ("-o", submission.output_pattern(index))
    yield ("-m", "n")
    # A reservation is a queue of its own.
    queue = submission.reservation or submission.queue
    if queue is not None:
        yield ("-q", queue)
    if submission.held:
        yield ("-h",)
    account = submission.slot.account or settings.account
    if account is not None and "account" not in divided.mapped:
        yield ("-A", account)
    if settings.project is not None:
        yield ("-P", settings.project)


def _terms(divided: Divided) -> Iterator[Option]:
    """Yield the requests of a slot outside its chunk."""
    slot = divided.rest.slot
    if slot.exclusive:
        yield ("-l", "place=excl")
    for name, count in slot.licenses:
        yield ("-l", f"{name}={count}")


# -- Reservations --------------------------------------------------------------------------------------------

ANSWERED_WITHIN = 20
"""Seconds that pbs_rsub waits for the scheduler; a reservation that has no answer by then is removed."""
SHOW_RESERVATIONS = ("pbs_rstat", "-f")
_CONFIRMED = re.compile(r"^(R\d+)\.\S+ CONFIRMED", re.MULTILINE)
_RESERVATION = re.compile(r"^(?:Resv ID|Name): (R\d+)\.", re.MULTILINE)
_ENDING = frozenset({"RESV_BEING_DELETED", "RESV_DELETED", "RESV_FINISHED"})


def rsub_command(
    request: ReservationRequest,
    settings: PbsSettings,
    directives: Directives,
    *,
    begins_at: float,
    defaults: Mapping[str, str],
) -> tuple[str, ...]:
    """Return the command line that reserves a chunk for each placeholder; the time in it is of UTC.

    ``defaults``: what chunks get from their queue, which a reservation does not know. Raises LrmRejectedError.
    """
    divided, chunk = _divided(request.placeholders, settings, directives)
    placeholders = divided.rest
    asked = {part.partition("=")[0] for part in chunk.split(":")}
    more = "".join(f":{name}={value}" for name, value in defaults.items() if name not in asked)
    licenses = [f"{name}={count * placeholders.count}" for name, count in placeholders.slot.licenses]
    return (
        "pbs_rsub",
        *("-I", str(-ANSWERED_WITHIN)),
        *("-N", placeholders.key),
        *("-R", time.strftime("%Y%m%d%H%M.%S", time.gmtime(begins_at))),
        *("-D", str(placeholders.walltime)),
        *("-l", f"select={placeholders.count}{chunk.removeprefix('1')}{more}"),
        *("-l", f"place={'vscatter:excl' if placeholders.slot.exclusive else 'free'}"),
        *(word for one in licenses for word in ("-l", one)),
    )


def parse_confirmed(output: str) -> str:
    """Return the queue of the reservation that pbs_rsub has made; empty: it has made none."""
    found = _CONFIRMED.search(output)
    return found[1] if found else ""


def parse_reservations(output: str, user: str) -> Mapping[str, str]:
    """Return the queues of a user's reservations, by name, from ``pbs_rstat -f``."""
    found: dict[str, str] = {}
    for number, text in zip(*[iter(_RESERVATION.split(output.replace("\n\t", ""))[1:])] * 2, strict=True):
        values = dict(line.strip().split(" = ", 1) for line in text.splitlines() if " = " in line)
        ours = values.get("Reserve_Owner", "").partition("@")[0] == user
        if ours and values.get("reserve_state") not in _ENDING and "Reserve_Name" in values:
            found[values["Reserve_Name"]] = number
    return found

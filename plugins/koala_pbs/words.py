# SPDX-License-Identifier: Apache-2.0
"""Words of PBS and what they mean: times and sizes, job ids, states and ends, complaints.

No part of this does I/O.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError, LrmUnreachableError
from koala_adapter.lrm.commands import CommandResult, ComplaintTable, complaints, ranges, utc
from koala_adapter.model import EndReason, HoldOwner, LrmJobId, LrmJobState, NodeState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# -- Times and sizes -----------------------------------------------------------------------------------------
# As PBS writes them (pbs_resources(7B)).

_DURATION = re.compile(r"(?:(?:(\d+):)?(\d+):)?(\d+)(?:\.\d*)?", re.ASCII)
_SIZE = re.compile(r"(\d+)([kmgtp]?)([bw]?)", re.ASCII | re.IGNORECASE)
_WORD_BYTES = 8
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


def seconds_of(text: str) -> int | None:
    """Return the seconds of ``00:10:00``, ``10:00`` or ``600``; None for what is no duration."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def mebibytes_of(text: str) -> int | None:
    """Return the whole MiB of ``4gb``, ``204800kb`` or ``100mw``, rounded up; None for what is no size."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        return None
    number, power, unit = match.groups()
    size: int = int(number) * 1024 ** _POWERS[power.lower()] * (_WORD_BYTES if unit.lower() == "w" else 1)
    return -(-size // 1024**2)


def moment_of(text: str) -> float | None:
    """Return seconds since the epoch of ``Sun Nov 22 04:15:45 2026`` in UTC, or of a number; None otherwise.

    The commands must run with TZ=UTC: they tell the time as their own host has it.
    """
    text = text.strip()
    if text.isdecimal():
        return float(text)
    return utc(text, "%a %b %d %H:%M:%S %Y")


def number_of(text: str, default: int = 0) -> int:
    """Return a whole number, which PBS may print as ``1e3`` or ``2.0``; ``default`` for what is none."""
    try:
        return int(text)
    except ValueError:
        try:
            return int(float(text))
        except (ValueError, OverflowError):
            return default


# -- Job ids -------------------------------------------------------------------------------------------------
# ``123.server`` for a job, ``123[].server`` for an array, ``123[4].server`` for an element. Every id of ours that goes
# onto a command line passes through here, so that it is an id and nothing else.

SUBMITTED = re.compile(r"[0-9]{1,12}(\[\])?(\.[A-Za-z0-9][A-Za-z0-9._-]*)?", re.ASCII)
"""What qsub prints."""

_ID = re.compile(
    r"(?P<number>[0-9]{1,12})(?:\[(?P<element>[0-9]{0,10})\])?(?P<server>(?:\.[A-Za-z0-9][A-Za-z0-9._-]*)?)", re.ASCII
)


def _match(job: str) -> re.Match[str]:
    match = _ID.fullmatch(job)
    if not match:
        raise LrmNotFoundError(f"{job!r} is no PBS job id", hint="PBS job ids look like 123.server or 123[4].server")
    return match


def checked(job: str) -> str:
    """Return ``job``. Raises LrmNotFoundError when it has not the form of a PBS job id, so no such job can exist."""
    _match(job)
    return job


def is_job_id(text: str) -> bool:
    """Tell whether a text has the form of an id of a job, an array or an element."""
    return _ID.fullmatch(text) is not None


def is_array(job: str) -> bool:
    """Tell whether an id is that of a whole array."""
    match = _ID.fullmatch(job)
    return bool(match and match["element"] == "")


def array_index(job: str) -> int | None:
    """Return the element number in an id; None when it names no array element."""
    match = _ID.fullmatch(job)
    return int(match["element"]) if match and match["element"] else None


def array_of(job: str) -> str:
    """Return the id of the array that an element belongs to; other ids as they are. Raises LrmNotFoundError."""
    match = _match(job)
    return job if match["element"] is None else f"{match['number']}[]{match['server']}"


def element_ids(array: str, numbers: Iterable[int]) -> tuple[LrmJobId, ...]:
    """Return the ids of elements of an array."""
    match = _match(array)
    return tuple(LrmJobId(f"{match['number']}[{number}]{match['server']}") for number in numbers)


def compacted(jobs: Iterable[str], *, whole: Iterable[str] = ()) -> Iterator[str]:
    """Yield the shortest list of arguments for jobs; adjacent elements become ``123[1-4].server``.

    ``whole``: arrays all of whose elements are named. qdel takes no lists of elements, only such ranges. Raises
    LrmNotFoundError for an id of wrong form.
    """
    arrays = set(whole)
    groups: dict[tuple[str, str], set[int]] = {}
    for job in jobs:
        match = _match(job)
        if match["element"]:
            groups.setdefault((match["number"], match["server"]), set()).add(int(match["element"]))
        else:
            yield job
    for (number, server), elements in groups.items():
        if f"{number}[]{server}" in arrays:
            yield f"{number}[]{server}"
        else:
            yield from (f"{number}[{text}]{server}" for text in ranges(elements))


# -- States and ends -----------------------------------------------------------------------------------------
# PBS's letters and numbers (qstat(1B), pbs_job_attributes(7B)) in our words.

JOB_STATES = {
    "Q": LrmJobState.QUEUED,
    "H": LrmJobState.HELD,
    "W": LrmJobState.QUEUED,
    "T": LrmJobState.QUEUED,
    "R": LrmJobState.RUNNING,
    "S": LrmJobState.SUSPENDED,
    "U": LrmJobState.SUSPENDED,
    "E": LrmJobState.ENDING,
    "X": LrmJobState.ENDED,
    "F": LrmJobState.ENDED,
    "C": LrmJobState.ENDED,
}
"""W waits for its time, T moves between queues, U stands still for the owner of a workstation, X is an element that has
ended, C is Torque's."""

MOVED_LETTER = "M"
"""It was moved to another server."""

TERMINATED, MOVED = "91", "94"
"""Substates; that of a job that was moved, as long as it lives on the other server."""

SIGNAL_BASE = 256
"""``Exit_status`` of a job whose shell was killed by a signal is 256 and the signal."""
LARGEST_SIGNAL = 64

NEGATIVE_ENDS = {
    -29: EndReason.WALLTIME,
    -28: EndReason.WALLTIME,
    -27: EndReason.MEMORY,
    -26: EndReason.MEMORY,
    -25: EndReason.CANCELLED,
    -24: EndReason.CANCELLED,
    -20: EndReason.NODE_LOST,
    -19: EndReason.CANCELLED,
    -6: EndReason.NODE_LOST,
    -5: EndReason.NODE_LOST,
    -4: EndReason.NODE_LOST,
}
"""Below zero PBS itself ended the job, such as one that used more processors than it had asked for (-24, -25); what is
not here kept it from starting."""

RERUN = frozenset({-3, -11, -12, -14, -15, -16, -18})
"""It was queued again; if it has ended since, somebody deleted it."""


def job_state(letter: str) -> LrmJobState:
    """Return the state of a job; UNKNOWN for letters that are not known. One that was moved is gone from here."""
    return LrmJobState.ENDED if letter == MOVED_LETTER else JOB_STATES.get(letter, LrmJobState.UNKNOWN)


def hold_owner(holds: str) -> HoldOwner | None:
    """Return the owner of a hold from ``Hold_Types``; a user's hold comes first."""
    for letter, owner in (("u", HoldOwner.USER), ("o", HoldOwner.OPERATOR), ("s", HoldOwner.SYSTEM)):
        if letter in holds and holds != "n":
            return owner
    return None


def job_end(status: int | None, substate: str) -> tuple[EndReason | None, int | None, int | None]:
    """Return reason, exit code and signal of a job that has ended, of its ``Exit_status`` and substate."""
    if substate == TERMINATED:
        return EndReason.CANCELLED, None, None
    if status is None:
        return None, None, None
    if status < 0:
        return (None if status in RERUN else NEGATIVE_ENDS.get(status, EndReason.LAUNCH_FAILED)), None, None
    if SIGNAL_BASE < status <= SIGNAL_BASE + LARGEST_SIGNAL:
        return EndReason.SIGNALLED, None, status - SIGNAL_BASE
    return EndReason.EXITED, status, None


_DRAINING = (
    *("busy", "offline", "offline_by_mom", "maintenance", "provisioning", "wait-provisioning"),
    *("resv-exclusive", "reserve", "sleep"),
)
NODE_STATES = {
    **dict.fromkeys(("free", "job-busy", "job-exclusive", "job-sharing"), NodeState.UP),
    **dict.fromkeys(_DRAINING, NodeState.DRAINING),
    **dict.fromkeys(("down", "stale", "unresolvable"), NodeState.DOWN),
}
EXCLUSIVE = frozenset({"job-exclusive"})
"""A job has the whole vnode, however few of its processors it uses."""

_WORST_FIRST = (NodeState.DOWN, NodeState.UNKNOWN, NodeState.DRAINING, NodeState.UP)


def node_state(text: str) -> NodeState:
    """Return the state of a vnode from words such as ``offline,down``: the worst of them counts."""
    states = {NODE_STATES.get(word.strip(), NodeState.UNKNOWN) for word in text.split(",") if word.strip()}
    return next((state for state in _WORST_FIRST if state in states), NodeState.UNKNOWN)


# -- Complaints ----------------------------------------------------------------------------------------------
# What each means: try again later, never, or no such job. One table, searched from the top. The texts are those of the
# server and of the commands in OpenPBS 19 to 23 and PBS Professional; Torque's are among them.

_NO_SERVER = "pbs_server does not answer; it is asked again later"
_LIMIT = "a limit on jobs or resources of the queue or server; lower the threshold of this cluster, or wait"
_RIGHTS = "the job is not yours, or this needs an operator or manager of PBS"
_OPTION = "this qsub does not know the option: drop or rename it in the directives"
_RESOURCE = "correct the directives of this cluster in the site file: qmgr -c 'list resource' shows what there is"
_ELEMENT = "PBS does this to whole job arrays only"
_GONE = "it has ended, or never was"

UNKNOWN_JOB_STATUS = 153
"""Exit status of commands that are given an id of no job: the lower byte of its error number, 15001."""

NOT_RERUNNABLE = "job is not rerunnable"
NO_ARRAY = "array job exceeds"
"""What a server says of an array that is larger than it, or the queue, allows: 1 where arrays are forbidden."""
ROUTED_NOWHERE = "rejected by all possible destinations"
"""What a routing queue says, whatever its destinations had against the job."""
_USAGE = ("illegal -", "invalid option", "usage:")

BEING_DELETED = ("request invalid for state of job", "delete already in progress", "invalid request")
"""What qdel says of a job that it has begun to delete, and of an element that its array has not."""

COMPLAINTS = ComplaintTable(
    system="PBS",
    known=(
        # The connection itself failed, so that nothing of the request can have arrived.
        *complaints(
            LrmUnreachableError,
            {
                "cannot connect to server": _NO_SERVER,
                "could not connect to server": _NO_SERVER,
                "couldn't connect to cluster": _NO_SERVER,
                "cannot connect to specified server host": _NO_SERVER,
                "could not connect to trqauthd": "trqauthd of Torque must run on this host",
                "could not connect to batch server": _NO_SERVER,
                "all reserved ports in use": "too many PBS commands in a minute from this host: ask less often",
            },
        ),
        *complaints(
            LrmUnavailableError,
            {
                "connection refused": _NO_SERVER,
                "communication failure": _NO_SERVER,
                "connection timed out": _NO_SERVER,
                "time out": _NO_SERVER,
                "too busy to service this request": _NO_SERVER,
                "premature end of file": _NO_SERVER,
                "trqauthd unable to authorize": "see the log of trqauthd on this host",
                "end of file": _NO_SERVER,
                "could not contact scheduler": "pbs_sched does not run, or is busy",
                "server shutting down": _NO_SERVER,
                "server connection table full": _NO_SERVER,
                "no free connections": _NO_SERVER,
                "system error": "see the server's log",
                "pbs server internal error": "see the server's log",
                "failed to save job": "see the server's log",
                "batch protocol error": "are the commands of another release than the server?",
                "invalid credential": "check pbs_iff, or munge, on this host",
                "expired credential": "check pbs_iff, or munge, on this host",
                "maximum number of jobs": _LIMIT,
                "would exceed": _LIMIT,
                "license": "the site's licences of PBS",
                "resource temporarily unavailable": "",
                "resource busy": "",
                "insufficient amount of": "the nodes are not free",
                "execution server rejected request": "the MoM of the node does not take the job now",
                "server could not connect to mom": "the node does not answer",
                "altered/moved during current scheduling cycle": "the scheduler is at work; it is tried again",
                "double free": "qdel has crashed",
                # Torque 6.1 has begun to run it by then.
                "cannot locate new job": "the script is longer than this Torque can take",
            },
        ),
        *complaints(
            LrmNotFoundError,
            {
                "unknown job id": _GONE,
                "job has finished": _GONE,
                "nonexistent job id": _GONE,
                "unknown array id": _GONE,
                "request invalid for finished array subjob": _GONE,
                "job moved to remote server": "it runs elsewhere",
            },
        ),
        *complaints(
            LrmRejectedError,
            {
                "unknown queue": "name a queue that qstat -Q shows",
                "queue is not enabled": "wait until the site opens the queue, or choose another",
                "access to queue is denied": "the queue is not open to you; choose another",
                "no default queue": "name a queue for this cluster",
                "unknown resource": _RESOURCE,
                "illegal attribute or resource value": _RESOURCE,
                "undefined attribute": _RESOURCE,
                'resource invalid in "select"': _RESOURCE,
                "cannot be used with": _RESOURCE,
                "job violates queue and/or server resource limits": "ask for less, or for another queue: qstat -Qf",
                "resource limit exceeds allowable": "ask for less, or for another queue: qstat -Qf",
                NO_ARRAY: "set max_array_size in the settings of this cluster",
                "queue does not allow": "choose another queue: qstat -Qf says what this one takes",
                "job exceeds queue resource limits": "ask for less, or for another queue: qstat -Qf",
                ROUTED_NOWHERE: "ask for less, or for another queue: qstat -Qf",
                "can not be run as root": "run koala as a user: Torque takes no jobs of root",
                "illegally formed job identifier": _GONE,
                "cannot submit non-rerunable array job": "drop -r in the directives of this cluster",
                "unauthorized request": _RIGHTS,
                "access from host not allowed": "this host may not submit: ask the site (acl_hosts, flatuid)",
                "bad uid for job execution": "this account may not run jobs: ask the site",
                "invalid account": "name an account of yours",
                "request invalid for state of job": "",
                "cannot modify attribute while job running": "",
                NOT_RERUNNABLE: "it was submitted so (qsub -r n)",
                "invalid request": _ELEMENT,
                "unknown node": "name vnodes that pbsnodes -av shows",
                "node(s) specification error": "name vnodes that pbsnodes -av shows",
                "unknown/illegal signal": "",
                "hook": "a hook of the site refuses it",
                **dict.fromkeys(_USAGE, _OPTION),
            },
        ),
    ),
)


def says_usage(complaint: str) -> bool:
    """Return whether a command rejects its options as unknown."""
    return any(text in complaint.lower() for text in _USAGE)


def refuses_array(complaint: str) -> bool:
    """Tell whether a submission was refused because an array was asked for, or may have been."""
    return any(text in complaint.lower() for text in (NO_ARRAY, ROUTED_NOWHERE))


def submission_error(result: CommandResult) -> LrmError:
    """Return the error of a qsub that printed no id: what it says and is not known is a refusal when it failed.

    It asks the server last, so that whatever it complains of itself has not been sent; silence may mean anything.
    """
    said = result.stderr.decode("utf-8", "replace").strip()
    text = said if COMPLAINTS.find(said) else result.complaint
    refused = LrmRejectedError if result.returncode > 0 and said.startswith("qsub:") else LrmUnavailableError
    return COMPLAINTS.error(" / ".join(text.splitlines()[:2]), action="submission", otherwise=refused)

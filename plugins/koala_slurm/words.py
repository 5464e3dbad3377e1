# SPDX-License-Identifier: Apache-2.0
"""Words of Slurm and what they mean: times, job ids, states, reasons for waiting, complaints."""

from __future__ import annotations

import re
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError, LrmUnreachableError
from koala_adapter.lrm.commands import CommandResult, Complaint, ComplaintTable, complaints, portions, ranges
from koala_adapter.model import EndReason, HoldOwner, LrmJob, LrmJobId, LrmJobState, NodeState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


# -- Times ---------------------------------------------------------------------------------------------------
# Durations such as ``2-12:30:00``, and points in time in seconds or in ISO form.

TIME_FORMAT: Final = {"SLURM_TIME_FORMAT": "%s"}
"""Environment that makes squeue and sacct print points in time as seconds since the epoch, free of time zones."""

_DURATION = re.compile(r"(?:(?P<days>[0-9]{1,6})-)?(?P<clock>[0-9]{1,6}(?::[0-9]{1,2}){0,2})", re.ASCII)


def duration(text: str) -> int | None:
    """Return seconds of a duration; None for UNLIMITED, infinite, or anything that is no duration.

    Forms: ``minutes:seconds``, ``hours:minutes:seconds``, and with ``days-`` in front.
    """
    match = _DURATION.fullmatch(text.strip())
    if not match:
        return None
    numbers = [int(number) for number in match["clock"].split(":")]
    if match["days"] is not None:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
        return int(match["days"]) * 86400 + hours * 3600 + minutes * 60 + seconds
    hours, minutes, seconds = [0, 0, 0, *numbers][-3:] if len(numbers) > 1 else [0, numbers[0], 0]
    return hours * 3600 + minutes * 60 + seconds


def minutes(seconds: int) -> int:
    """Return whole minutes, rounded up and at least 1: Slurm's walltimes have no finer unit."""
    return max(1, -(-seconds // 60))


def moment(text: str) -> float | None:
    """Return seconds since the epoch; None for ``N/A``, ``Unknown``, 0, or anything that is no point in time.

    Takes seconds, and for Slurm commands that ignore SLURM_TIME_FORMAT ``2026-11-21T11:02:13`` in local time.
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text) or None
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


# -- Job ids -------------------------------------------------------------------------------------------------
# 123 for a job, 123_4 for an array element, 123_[1-4,7] for several elements in one argument. Every id of ours that
# goes onto a command line passes through here, so that it is an id and nothing else.

_ID = re.compile(r"(?P<job>[0-9]{1,10})(?:_(?P<element>[0-9]{1,10})|\+[0-9]{1,5})?", re.ASCII)

_RANGE = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10})(?::([0-9]{1,10}))?)?", re.ASCII)

MAXIMUM_ELEMENTS = 5_000_000
"""No array is larger (slurm.conf(5), MaxArraySize); more in a listing is nonsense, and would fill the memory."""

ARGUMENTS_PER_COMMAND = 200
ELEMENTS_PER_ARGUMENT = 500
"""Ranges of elements in one argument: keeps an argument below 12 KB."""


def array_ids(job: str, count: int) -> tuple[LrmJobId, ...]:
    """Return the ids of elements 1 to ``count`` of an array."""
    return tuple(LrmJobId(f"{job}_{index}") for index in range(1, count + 1))


def array_index(job: str) -> int | None:
    """Return the element number in an id; None when it names no array element."""
    match = _ID.fullmatch(job)
    return int(match["element"]) if match and match["element"] else None


def waiting_elements(text: str) -> tuple[int, ...]:
    """Return the numbers in ``1-4,7,10-20:5%2``, as squeue writes the elements of an array that wait together.

    Raises ValueError for anything else, such as a list that was cut short.
    """
    numbers: list[range] = []
    for item in text.partition("%")[0].split(","):
        match = _RANGE.fullmatch(item)
        if not match or match[3] == "0":
            raise ValueError(f"array elements {text[:100]!r} cannot be read")
        numbers.append(range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1)))
    if sum(map(len, numbers)) > MAXIMUM_ELEMENTS:
        raise ValueError(f"array elements {text[:100]!r} are too many")
    return tuple(number for part in numbers for number in part)


def checked(job: str) -> str:
    """Return ``job``. Raises LrmNotFoundError when it has not the form of a Slurm job id, so no such job can exist."""
    if not _ID.fullmatch(job):
        raise LrmNotFoundError(f"{job!r} is no Slurm job id", hint="Slurm job ids look like 123 or 123_4")
    return job


def compacted(jobs: Iterable[str], sizes: Mapping[str, int] | None = None) -> tuple[str, ...]:
    """Return the shortest list of arguments that names exactly these jobs.

    Elements of one array share an argument (``123_[1-3,7]``). With ``sizes`` (elements of each array that is known
    whole) an array of which every element is named becomes its bare id, which Slurm handles as one request. Raises
    LrmNotFoundError for an id of wrong form.
    """
    groups: dict[str, set[int]] = {}
    whole = {job: size for job, size in (sizes or {}).items() if size > 0}
    bare: set[str] = set()
    for job in jobs:
        match = _ID.fullmatch(checked(job))
        if match and match["element"]:
            groups.setdefault(match["job"], set()).add(int(match["element"]))
        else:
            groups.setdefault(job, set())
            bare.add(job)
    bare |= {job for job, size in whole.items() if groups.get(job) == set(range(1, size + 1))}
    return tuple(
        argument
        for job, elements in groups.items()
        for argument in ([job] if job in bare else _arguments(job, elements))
    )


def _arguments(job: str, elements: set[int]) -> Iterator[str]:
    for part in portions(list(ranges(elements)), ELEMENTS_PER_ARGUMENT):
        single = len(part) == 1 and "-" not in part[0]
        yield f"{job}_{part[0]}" if single else f"{job}_[{','.join(part)}]"


def job_number(job: str) -> str:
    """Return the number of a job, of the array of an element, or of the job of a component (``12+1``)."""
    return job.partition("_")[0].partition("+")[0]


def turn(job: LrmJob) -> tuple[int, int]:
    """Sort key of jobs by number."""
    return int(job_number(job.id)), job.array_index or 0


# -- States of jobs and nodes --------------------------------------------------------------------------------
# Slurm's words of all releases from 20.11 to 26.05, and what they mean to us (new ones: NEW_WORDS in releases.py).
#
# Sources: squeue(1) "JOB STATE CODES", sinfo(1) "NODE STATE CODES". A word that is not in a table is UNKNOWN, never a
# guess: new releases add words.

END_REASONS: Mapping[str, EndReason] = {
    "CANCELLED": EndReason.CANCELLED,
    "REVOKED": EndReason.CANCELLED,
    "TIMEOUT": EndReason.WALLTIME,
    "DEADLINE": EndReason.WALLTIME,
    "OUT_OF_MEMORY": EndReason.MEMORY,
    "NODE_FAIL": EndReason.NODE_LOST,
    "BOOT_FAIL": EndReason.LAUNCH_FAILED,
    "LAUNCH_FAILED": EndReason.LAUNCH_FAILED,
    "RECONFIG_FAIL": EndReason.LAUNCH_FAILED,
    # Taken away for a job of higher priority: nobody cancelled it and no node broke.
    "PREEMPTED": EndReason.LOST,
}
"""End states whose exit code says nothing; COMPLETED and FAILED are judged by theirs."""

JOB_STATES: Mapping[str, LrmJobState] = {
    **dict.fromkeys(("PENDING", "REQUEUED", "REQUEUE_FED", "EXPEDITING"), LrmJobState.QUEUED),
    **dict.fromkeys(("REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"), LrmJobState.HELD),
    **dict.fromkeys(("CONFIGURING", "POWER_UP_NODE"), LrmJobState.STARTING),
    **dict.fromkeys(("RUNNING", "RESIZING", "SIGNALING"), LrmJobState.RUNNING),
    **dict.fromkeys(("SUSPENDED", "STOPPED"), LrmJobState.SUSPENDED),
    **dict.fromkeys(("COMPLETING", "STAGE_OUT"), LrmJobState.ENDING),
    **dict.fromkeys(("COMPLETED", "FAILED", *END_REASONS), LrmJobState.ENDED),
}

HOLD_REASONS = frozenset({"jobheldadmin", "jobhelduser", "jobholdmaxrequeue", "reservationdeleted"})
"""Reasons of pending jobs that wait for a release, in lower case."""

NO_OUTPUT_SIGNAL = 53
"""slurmstepd's way of saying that it could not open the output file or enter the environment of a job."""

NODE_FLAGS: Mapping[str, str] = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
"""Characters that sinfo appends to a state, as the words that scontrol appends to it."""

_UP = ("IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED", "POWERING_UP", "CLOUD")
_DRAINING = (
    *("RESERVED", "DRAIN", "DRAINED", "DRAINING", "FAILING", "POWER_DOWN", "POWERING_DOWN"),
    *("MAINT", "MAINTENANCE", "REBOOT", "REBOOT_REQUESTED"),
)
_DOWN = (
    *("DOWN", "ERROR", "FAIL", "FUTURE", "INVAL", "INVALID_REG", "BLOCKED", "PERFCTRS"),
    *("NOT_RESPONDING", "NO_RESPOND", "REBOOT_ISSUED"),
)
NODE_STATES: Mapping[str, NodeState] = {
    **dict.fromkeys(_UP, NodeState.UP),
    "POWERED_DOWN": NodeState.UP,  # a node that sleeps is woken by the job that gets it
    **dict.fromkeys(_DRAINING, NodeState.DRAINING),
    **dict.fromkeys(_DOWN, NodeState.DOWN),
    "UNKNOWN": NodeState.UNKNOWN,
}

_WORST_FIRST = (NodeState.DOWN, NodeState.UNKNOWN, NodeState.DRAINING)


def job_state(word: str, reason: str) -> LrmJobState:
    """Return what a job's state word and its reason mean; UNKNOWN for a word of no release we know."""
    state = JOB_STATES.get(word, LrmJobState.UNKNOWN)
    return LrmJobState.HELD if state is LrmJobState.QUEUED and _is_hold(reason) else state


def hold_owner(reason: str) -> HoldOwner:
    """Return who holds a job that is in hold for a reason. Slurm shows the hold of a hook as the user's own."""
    owners = {"jobheldadmin": HoldOwner.OPERATOR, "jobhelduser": HoldOwner.USER}
    return owners.get(reason.strip("()").lower(), HoldOwner.SYSTEM)


def _is_hold(reason: str) -> bool:
    # "launch failed requeued held" and "job requeued in held state" are texts, the others are codes.
    compact = reason.strip("()").lower()
    return compact in HOLD_REASONS or compact.endswith(("requeued held", "in held state"))


def job_end(word: str, *, exit_code: int, signal: int, ran: bool = True) -> EndReason | None:
    """Return why a job with this end state ended; None when the state is no end, or its reason is not known.

    ``ran``: it was given a node. A job refused on second thoughts (BadConstraints) has a status, but never ran.
    """
    if JOB_STATES.get(word) is not LrmJobState.ENDED:
        return None
    if word in END_REASONS:
        return END_REASONS[word]
    if not ran:
        return EndReason.LAUNCH_FAILED
    if signal:
        return EndReason.LAUNCH_FAILED if signal == NO_OUTPUT_SIGNAL else EndReason.SIGNALLED
    # FAILED without any code: the job's script never ran (prolog, credentials, directory).
    return EndReason.LAUNCH_FAILED if word == "FAILED" and exit_code == 0 else EndReason.EXITED


def node_state(text: str, *, reserved_is_up: bool = False) -> NodeState:
    """Return what a node can be used for: the worst that its state word and its flags say.

    ``text`` is a word of sinfo with flag characters (``idle*``) or words joined by ``+`` (``IDLE+DRAIN``). A first word
    that is not known is UNKNOWN; flags that are not known are passed over, because releases add harmless ones.
    ``reserved_is_up``: we submit into a reservation, so reserved nodes are ours to use.
    """
    words = _node_words(text)
    if words[0] not in NODE_STATES:
        return NodeState.UNKNOWN
    up = {"RESERVED"} if reserved_is_up else set()
    states = {NODE_STATES[word] for word in words if word in NODE_STATES and word not in up}
    return next((state for state in _WORST_FIRST if state in states), NodeState.UP)


def _node_words(text: str) -> list[str]:
    flags: list[str] = []
    word = text.strip()
    while word and word[-1] in NODE_FLAGS:
        flags.append(NODE_FLAGS[word[-1]])
        word = word[:-1]
    return [*word.upper().split("+"), *flags]


# -- Reasons for waiting -------------------------------------------------------------------------------------
# In Slurm's own words, and what each means for a job that was released to start now.
#
# Sources: squeue(1) "JOB REASON CODES", Slurm's page "Resource Limits", and all words of the libraries of 22.05 and
# 26.05. A word of no release we know is UNKNOWN: the start has failed, and its job is kept back like one that a limit
# keeps back.
#
# Two reasons are given of nodes that others have as well as of nodes that are down: "ReqNodeNotAvail", and "Nodes
# required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions". Both mean that the processors
# are taken, unless what follows the first comma says that a maintenance is near.


class WaitKind(StrEnum):
    """What a waiting job waits for."""

    PROCESSORS = "free processors"
    PASSING = "nothing, it passes by itself within seconds"
    HELD = "a release"
    OTHERS = "the end of other jobs, a time, or something that is free again later"
    SHARED_LIMIT = "the end of jobs with which it shares a limit"
    OWN_LIMIT = "a change of the job, or of the limit that it exceeds alone"
    SITE = "an administrator"
    UNKNOWN = "unknown"


_PATTERNS: Mapping[WaitKind, str] = {
    WaitKind.PROCESSORS: "|None|Priority|Resources|ReqNodeNotAvail|Nodes required for job are DOWN",
    WaitKind.PASSING: "Cleaning|Prolog|SchedDefer|WaitingForScheduling|BurstBufferStageIn|BurstBufferOperation",
    WaitKind.HELD: "JobHeldAdmin|JobHeldUser|JobHoldMaxRequeue|ReservationDeleted",
    WaitKind.OTHERS: "BeginTime|Dependency|Licenses|JobArrayTaskLimit|Reservation|BurstBufferResources|FedJobLock"
    "|PowerNotAvail|PowerReserved|Constraints|MaxPoweredUpNodes|MpiPortsBusy|NvidiaImexChannels",
    WaitKind.SHARED_LIMIT: r"AssocGrp\w+|AssocMaxJobsLimit|AssocMaxSubmitJobLimit|AssociationJobLimit"
    r"|AssociationResourceLimit|QOSGrp\w+|QOSMax\w+PerUser(Limit)?|QOSJobLimit|QOSResourceLimit|QOSUsageThreshold"
    r"|Max\w+Per(Account|User)|AccountingPolicy",
    WaitKind.OWN_LIMIT: r"AssocMax\w+Per(Job|Node)(Limit)?|AssociationTimeLimit|QOSMax\w+Per(Job|Node)(Limit)?"
    r"|QOSMin\w+|QOSTimeLimit|MaxMemPerLimit|PartitionNodeLimit|PartitionTimeLimit|PartitionConfig|BadConstraints"
    "|ReservationInvalid|InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed|DependencyNeverSatisfied|DeadLine|TimeLimit"
    "|InactiveLimit|Job's (account|QOS) not permitted to use this partition ",
    WaitKind.SITE: "PartitionDown|PartitionInactive|NodeDown|FrontEndDown|SystemFailure"
    "|JobLaunchFailure|NonZeroExitCode|RaisedSignal|OutOfMemory|BlockMaxError|BlockFreeAction",
}
_KINDS = {kind: re.compile(pattern) for kind, pattern in _PATTERNS.items()}

LASTS = frozenset({WaitKind.OWN_LIMIT, WaitKind.SITE})
"""A job that waits for these does not start when others end."""

START_MAY_SHOW = frozenset({WaitKind.PROCESSORS, WaitKind.PASSING})
"""A job that was released and waits for these may start yet; for anything else it does not."""


def wait_kind(reason: str) -> WaitKind:
    """Parse a waiting reason of squeue: a word, perhaps followed by details."""
    word, *more = re.split(r"[,:(]", reason.strip("() "), maxsplit=1)
    if word == "ReqNodeNotAvail" and "maintenance" in "".join(more).lower():
        return WaitKind.SITE
    return next((kind for kind, pattern in _KINDS.items() if pattern.fullmatch(word)), WaitKind.UNKNOWN)


# -- Complaints ----------------------------------------------------------------------------------------------
# What each means: try again later, never, or no such job. One table, searched from the top. The texts are those of
# slurm_strerror(3) and of the commands themselves, the same from 20.11 to 26.05 unless noted.

_NO_CONTROLLER = "slurmctld does not answer; it is asked again later"
_LIMIT = "a limit on jobs, size or time of your account or QOS; lower the threshold of this cluster, or wait"
_DIRECTIVES = "correct the directives or the settings of this cluster in the site file"

_KNOWN: tuple[Complaint, ...] = (
    # The connection itself failed, so that nothing of the request can have arrived.
    *complaints(LrmUnreachableError, {"unable to contact slurm controller (connect failure)": _NO_CONTROLLER}),
    *complaints(
        LrmUnavailableError,
        {
            "unable to contact slurm controller": _NO_CONTROLLER,
            "socket timed out": _NO_CONTROLLER,
            "connection refused": _NO_CONTROLLER,
            "connection timed out": _NO_CONTROLLER,
            "connection reset": _NO_CONTROLLER,
            "zero bytes were transmitted": _NO_CONTROLLER,
            "unexpected message received": _NO_CONTROLLER,
            "unable to establish": _NO_CONTROLLER,
            "backup controller in standby": _NO_CONTROLLER,
            "protocol authentication error": "check that munged runs here and that the clocks agree",
            "invalid authentication credential": "check that munged runs here and that the clocks agree",
            "failed to contact munge": "check that munged runs on this host",
            "resource temporarily unavailable": "slurmctld is overloaded; it is asked again later",
            "temporarily unable to accept job": "slurmctld has as many jobs as it takes (MaxJobCount)",
            "unable to create job record": "slurmctld has as many jobs as it takes (MaxJobCount)",
            "slurm is busy": "slurmctld is overloaded; it is asked again later",
            "i/o error writing script": "slurmctld cannot write its state directory; tell the site",
            "violates accounting/qos policy": _LIMIT,
            "maxsubmit": _LIMIT,
            "submit limit": _LIMIT,
            "required partition not available": "the partition is drained or inactive; wait, or choose another",
            "requested partition configuration not available now": "the partition is down or too small now",
            "requested nodes are busy": "",
            "reservation not usable now": "the reservation has not begun",
            "unable to connect to database": "slurmdbd does not answer",
            "can not be altered now": "the job is on its way from one state to another",
        },
    ),
    *complaints(
        LrmRejectedError,
        {
            "invalid job array specification": "fewer placeholders at once: see MaxArraySize in slurm.conf",
            "invalid partition": "name a partition that sinfo shows",
            "invalid account": "name an account of yours: sacctmgr show assoc user=$USER",
            "invalid qos": "name a QOS that your account may use: sacctmgr show assoc user=$USER format=qos",
            "reservation is invalid": "name a reservation that scontrol show reservation lists",
            "access denied to requested reservation": "ask the site for access to the reservation",
            "group not permitted": "the partition is not open to your group; choose another",
            "requested node configuration is not available": "ask for less memory or another partition",
            "memory specification can not be satisfied": "ask for less memory or another partition",
            "time limit is invalid": "the walltime is longer than the partition allows",
            "unrecognized option": "this sbatch does not know the option: drop or rename it in the directives",
            "invalid option": "this sbatch does not know the option: drop or rename it in the directives",
            "incompatible versions": "the Slurm commands here are older or newer than slurmctld can serve",
            "access/permission denied": "the job is not yours, or this needs operator rights in Slurm",
            "invalid user id": "the job is not yours, or your account is unknown to Slurm",
            "node name specified": "name nodes that sinfo shows",
            "job has already finished": "",
            "is no longer pending": "the job has started",
            "job is not suspended": "",
            "job is pending execution": "the job has not started",
            "operation is presently disabled": "the job does not allow it in its present state",
            # "try again" notwithstanding: where a release says this, it never changes without slurmdbd.
            "db index is being set": "Slurm allows this change only to jobs that have not started",
        },
    ),
    *complaints(
        LrmNotFoundError,
        {
            "invalid job id": "it has left Slurm's memory, or never was",
            "no job found": "it has left Slurm's memory, or never was",
        },
    ),
)

COMPLAINTS = ComplaintTable(system="Slurm", known=_KNOWN)

_REFUSED_SUBMISSION = re.compile(r"batch job submission failed:|allocation failure:", re.IGNORECASE)
_REFUSED_COMMAND_LINE = re.compile(
    r"unrecognized option|--help\" for more|invalid option|does not look like a batch script|^sbatch: error: invalid ",
    re.IGNORECASE | re.MULTILINE,
)
"""What sbatch says before it asks slurmctld at all."""


def submission_error(result: CommandResult) -> LrmError:
    """Return the error of an sbatch that printed no job id.

    A text we do not know is a refusal when sbatch itself says that the submission failed or that it cannot read its
    command line; in all other cases the job may be in (LrmUnavailableError).
    """
    complaint = result.complaint
    refused = _REFUSED_SUBMISSION.search(complaint)
    if not refused and _REFUSED_COMMAND_LINE.search(result.stderr.decode("utf-8", "replace")):
        return LrmRejectedError(f"sbatch refuses its command line or script: {complaint}", hint=_DIRECTIVES)
    otherwise = LrmRejectedError if refused else LrmUnavailableError
    return COMPLAINTS.error(complaint, action="submission", otherwise=otherwise)


def reading_error(result: CommandResult, *, action: str) -> LrmError | None:
    """Return the error of a command that lists something; None when its output is complete.

    An exit status other than 0 is always an error here: a listing that was cut short must never pass for "no jobs".
    """
    if result.returncode == 0 and not _FAILED_LISTING.search(result.stderr.decode("utf-8", "replace")):
        return None
    return COMPLAINTS.error(result.complaint, action=action, otherwise=LrmUnavailableError)


_FAILED_LISTING = re.compile(r"slurm_load_\w+|unable to contact|socket timed out|error: invalid", re.IGNORECASE)
"""Among them "Invalid user", when the directory of users does not answer: squeue then lists nothing and ends with
status 0."""


_PARSABLE = re.compile(r"(?P<id>[0-9]{1,10})(?:;[A-Za-z0-9._-]+)?", re.ASCII)


def parse_job_id(output: str) -> str | None:
    """Return the job id that sbatch --parsable printed; None unless exactly one line is one.

    Sites print banners on stdout, so other lines are passed over; two lines that could be ids are ambiguous.
    """
    found = [match["id"] for line in output.splitlines() if (match := _PARSABLE.fullmatch(line.strip()))]
    return found[0] if len(found) == 1 and int(found[0]) > 0 else None

# SPDX-License-Identifier: Apache-2.0
"""DRMAA libraries: their capabilities in one table, and the meaning of their complaints.

DRMAA 1.0 promises more than some libraries keep; a capability that crashes or gives wrong answers is not stated. The
module only computes. It is loaded by the helper process, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError, LrmUnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping


# -- Capabilities of each library, and recognizing a library -------------------------------------------------

INDEX_VARIABLE = "KOALA_INDEX"
"""Where a placeholder that is a job of its own finds its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A DRMAA library with its known properties."""

    name: str
    system: str
    seen: str
    """Releases with which all of this was seen."""
    places: tuple[str, ...] = ()
    """Patterns of the files where sites put it."""
    mark: str
    """Expression for what it calls itself, or for where it lies (in lower case)."""
    native: tuple[str, ...]
    """Options for every placeholder, unless the site gives others."""
    walltime: str
    queue: str
    memory: str
    slots: tuple[tuple[str, str], ...] = ()
    """How keys of a slot are asked for, as in [clusters.map]; of those that are not here the site must say it."""
    job_id_variable: str
    index_variable: str | None
    """Where an element of a bulk finds its number; None: it is told none."""
    tells_elements: bool
    """States of the elements of a bulk are told, and each can be changed by itself."""
    hold: bool
    suspend: bool
    tells_success: bool
    """Exit code 0 is a success; else it may be a job that was cancelled, stopped, or has left the system's memory."""
    ids: str
    confused: str
    sessions: str
    used_for: tuple[str, ...] = ("submit",)
    """What goes through it where jobs are read by commands: ``submit``, and capabilities of the plugin."""
    least_version: tuple[int, int, int] | None = None
    """The first release that is trusted with submissions of a cluster that is read by commands; None: all are."""
    not_chosen: str = ""
    """Why such a cluster does not use it unless its site says so; empty where it does."""
    reserved: frozenset[str]
    """Native options that change names, numbers or moments of jobs: what koala sets, and finds its jobs by."""

    @property
    def bulk(self) -> bool:
        """Whether placeholders may be submitted as one bulk job when only the library tells of their ends."""
        return self.index_variable is not None and self.tells_elements


def _usual_places(name: str) -> tuple[str, ...]:
    roots = (f"/usr/lib/{name}", f"/usr/local/{name}", f"/opt/{name}", f"/opt/{name}-*")
    return (*(f"{root}/lib*/libdrmaa.so*" for root in roots), f"/usr/lib/*/{name}/libdrmaa.so*")


ONE_SESSION = "one session in a process; calls one after another, in a helper process for each cluster"

GRID_ENGINE = Library(
    name="gridengine-drmaa",
    system="Grid Engine",
    seen="8.1.9",
    used_for=("submit", "cancel", "hold", "suspend"),
    places=("/usr/lib/gridengine-drmaa/lib/libdrmaa.so*",),
    mark=r"\b(sge|oge|uge|ocs|age)\b|grid ?engine",
    native=("-r n",),
    walltime="-l h_rt={walltime}",
    queue="-q {queue}",
    memory="-l h_vmem={memory_mib}M",
    # Which parallel environment has processors of one host, each site says.
    slots=(("features", "-l {name}=true"), ("licenses", "-l {name}={n}"), ("account", "-A {name}")),
    job_id_variable="JOB_ID",
    index_variable="SGE_TASK_ID",
    tells_elements=True,
    hold=True,
    suspend=True,
    tells_success=True,
    ids="`123.4`",
    confused="`running` while the job is on its way to its node",
    sessions=f"{ONE_SESSION}; needs room for jemalloc when it is loaded, which the helper makes",
    reserved=frozenset({"-N", "-t", "-a", "-sync", "-now", "-verify", "-@"}),
)
SLURM = Library(
    name="slurm-drmaa",
    system="Slurm",
    seen="1.1.6 with Slurm 22.05",
    places=_usual_places("slurm-drmaa"),
    least_version=(1, 1, 6),
    mark=r"slurm",
    # Requeue=1 is the default, and a placeholder that starts twice would show up as a stranger.
    native=("--no-requeue",),
    # Its field is hours:minutes, and minutes may be more than 59.
    walltime="--time=0:{walltime_minutes}",
    queue="--partition={queue}",
    memory="--mem={memory_mib}",
    slots=(
        ("threads", "--nodes=1 --ntasks=1 --cpus-per-task={n}"),
        ("gpus", "--gres=gpu:{n}"),
        ("gpu_kind", "--gres=gpu:{kind}:{n}"),
        ("exclusive", "--exclusive"),
        ("scratch", "--tmp={mib}"),
        ("account", "--account={name}"),
        ("qos", "--qos={name}"),
    ),
    job_id_variable="SLURM_JOB_ID",
    index_variable="SLURM_ARRAY_TASK_ID",
    tells_elements=False,
    hold=True,
    suspend=False,
    tells_success=False,
    ids="`123`, `123_4` of a bulk",
    confused="waiting elements of a bulk are `undetermined`, also when they are cancelled, and releasing one releases "
    "all; jobs that Slurm has forgotten are `done` or `failed`; suspending crashes it",
    sessions=f"{ONE_SESSION}; its control requests all fail with InternalException, so that their wording decides",
    reserved=frozenset({"-J", "--job-name", "-a", "--array", "-b", "--begin", "-W", "--wait", "--wrap", "--test-only"}),
)
PBS = Library(
    name="pbs-drmaa",
    system="PBS",
    seen="1.0.19 with OpenPBS 23.06",
    places=_usual_places("pbs-drmaa"),
    not_chosen="it submits placeholders one by one, leaves files in ~/.drmaa, and aborts where PBS is down",
    mark=r"pbs|torque",
    # Without -S it starts a login shell of the user's, whose profile may be long, or wait for something.
    native=("-r n", "-S /bin/sh"),
    walltime="-l walltime={walltime}",
    queue="-q {queue}",
    memory="-l mem={memory_mib}mb",
    slots=(("threads", "-l ncpus={n}"), ("licenses", "-l {name}={n}"), ("account", "-A {name}")),
    job_id_variable="PBS_JOBID",
    index_variable=None,
    tells_elements=True,
    hold=True,
    suspend=False,
    tells_success=False,
    ids="`123.server`, of a bulk, too",
    confused="a job that was suspended (SIGSTOP) counts as finished with 0 and stays stopped; jobs that PBS has "
    "forgotten are `done` or `failed`",
    sessions=f"{ONE_SESSION}; it aborts where the server is down, and at a bulk for a queue that is not there",
    reserved=frozenset({"-N", "-J", "-t", "-a", "-I", "-X", "-z", "-C"}),
)
OTHER = Library(
    name="another",
    system="another",
    seen="none",
    mark=r"",
    native=(),
    walltime="",
    queue="",
    memory="",
    job_id_variable="JOB_ID",
    index_variable=None,
    tells_elements=False,
    hold=True,
    suspend=False,
    tells_success=False,
    ids="",
    confused="nothing is known of it: the settings say how walltime, queue and memory are asked for",
    sessions=ONE_SESSION,
    reserved=frozenset({"-N", "-J", "--job-name", "--array"}),
)
LIBRARIES = (SLURM, PBS, GRID_ENGINE, OTHER)


def library_of(*words: str) -> Library:
    """Return the known library with this contact or path; OTHER for an unknown one."""
    text = " ".join(words).lower()
    return next(library for library in LIBRARIES if re.search(library.mark, text))


# -- From a complaint to one of the four LRM errors ----------------------------------------------------------
# Complaints of a DRMAA library or a Grid Engine command. The wording is that of Grid Engine 8.1.9 (recorded in
# tests/wire/samples/sge819), of Slurm and PBS as their libraries pass it on, and of the names of DRMAA 1.0's
# exceptions. A complaint that is not recognized counts as unavailable, because that promises nothing.


class FailureKind(StrEnum):
    """Kinds of failures: the four LRM errors, and a library that cannot be loaded."""

    UNAVAILABLE = "unavailable"
    REJECTED = "rejected"
    NOT_FOUND = "not found"
    UNSUPPORTED = "unsupported"
    LIBRARY = "library"


UNAVAILABLE_PHRASES = (
    "unable to contact qmaster",
    "unable to send message to qmaster",
    "cannot reach",
    "got send error",
    "got select error",
    "got read error",
    "commlib error",
    "connection refused",
    "connection timed out",
    "can't resolve host name",
    "failed receiving gdi request",
    "try again later",
    "qmaster is not responding",
    "unable to contact slurm controller",
    "socket timed out",
    "zero bytes were transmitted",
    "cannot connect to",
    "could not connect to",
    "end of file",
)
NOT_FOUND_PHRASES = (
    "does not exist",
    "do not exist",
    "invalid queue or job",
    "there are no jobs registered",
    "job id not found",
    "not found",
    "invalid job id",
    "unknown job id",
    "job has finished",
    "job has already finished",
    "already completing or completed",
)
REJECTED_PHRASES = (
    "denied",
    "was rejected",
    "unknown queue",
    "unknown resource",
    "unknown option",
    "invalid option argument",
    "no suitable queues",
    "not a valid object name",
    "is not a time value",
    "is not a memory value",
    "necessary privileges",
    "requires manager privileges",
    "not allowed",
    "must be at least owner",
    "request invalid for state of job",
    "unauthorized request",
    "invalid native specification",
    "invalid date/time format",
    "invalid partition",
)
ENDING_PHRASES = (
    "already completing or completed",
    "job has finished",
    "job has already finished",
    "request invalid for state of job",
    "delete already in progress",
)
"""What is said to who ends a job that is on its way to its end."""

EXCEPTION_KINDS: Mapping[str, FailureKind] = {
    "DrmCommunicationException": FailureKind.UNAVAILABLE,
    "TryLaterException": FailureKind.UNAVAILABLE,
    "NoActiveSessionException": FailureKind.UNAVAILABLE,
    "InternalException": FailureKind.UNAVAILABLE,
    "OutOfMemoryException": FailureKind.UNAVAILABLE,
    "DrmsInitException": FailureKind.UNAVAILABLE,
    "DefaultContactStringException": FailureKind.REJECTED,
    "InvalidContactStringException": FailureKind.REJECTED,
    "DeniedByDrmException": FailureKind.REJECTED,
    "AuthorizationException": FailureKind.REJECTED,
    "AuthorizationFailureException": FailureKind.REJECTED,
    "InvalidArgumentException": FailureKind.REJECTED,
    "InvalidAttributeFormatException": FailureKind.REJECTED,
    "InvalidAttributeValueException": FailureKind.REJECTED,
    "ConflictingAttributeValuesException": FailureKind.REJECTED,
    "HoldInconsistentStateException": FailureKind.REJECTED,
    "ReleaseInconsistentStateException": FailureKind.REJECTED,
    "SuspendInconsistentStateException": FailureKind.REJECTED,
    "ResumeInconsistentStateException": FailureKind.REJECTED,
    "InvalidJobException": FailureKind.NOT_FOUND,
    "UnsupportedAttributeException": FailureKind.UNSUPPORTED,
    "NotImplementedError": FailureKind.UNSUPPORTED,
}
"""DRMAA 1.0 section 3.2.8, under the names of the drmaa library."""

VAGUE = frozenset({"InternalException"})
"""What slurm-drmaa and pbs-drmaa raise for whatever a control request is refused for: there the wording decides."""

_HINTS: Mapping[FailureKind, str] = {
    FailureKind.UNAVAILABLE: "it is asked again later",
    FailureKind.REJECTED: "change the cluster's settings or directives in the site file, or ask its admin",
    FailureKind.NOT_FOUND: "it has ended, or never was",
    FailureKind.UNSUPPORTED: "the DRMAA library cannot do this",
    FailureKind.LIBRARY: "`koala check` says which library is looked for",
}


def kind_of_text(text: str, default: FailureKind = FailureKind.UNAVAILABLE) -> FailureKind:
    """Return the kind of a complaint by its wording.

    "No answer" goes first: a message may name a job that "does not exist" for want of an answer, never the reverse.
    """
    lowered = text.lower()
    for phrases, kind in (
        (UNAVAILABLE_PHRASES, FailureKind.UNAVAILABLE),
        (NOT_FOUND_PHRASES, FailureKind.NOT_FOUND),
        (REJECTED_PHRASES, FailureKind.REJECTED),
    ):
        if any(phrase in lowered for phrase in phrases):
            return kind
    return default


def kind_of_exception(name: str, text: str) -> FailureKind:
    """Return the kind of an exception of the drmaa library: by its class, except where only the wording is sure."""
    known = EXCEPTION_KINDS.get(name)
    if known is None or name in VAGUE:
        return kind_of_text(text)
    by_text = kind_of_text(text, known)
    return by_text if by_text is FailureKind.UNAVAILABLE else known


def is_ending(text: str) -> bool:
    """Return whether an error of ending a job means that it is ending or has ended."""
    lowered = text.lower()
    return any(phrase in lowered for phrase in ENDING_PHRASES)


class LibraryLoadError(LrmUnavailableError):
    """The library is missing or cannot be loaded."""


def error_of(kind: FailureKind, message: str) -> LrmError:
    """Return the exception for a complaint."""
    hint = _HINTS[kind]
    match kind:
        case FailureKind.REJECTED:
            return LrmRejectedError(message, hint=hint)
        case FailureKind.NOT_FOUND:
            return LrmNotFoundError(message, hint=hint)
        case FailureKind.UNSUPPORTED:
            return LrmUnsupportedError(message, hint=hint)
        case FailureKind.UNAVAILABLE:
            return LrmUnavailableError(message, hint=hint)
        case FailureKind.LIBRARY:
            return LibraryLoadError(message, hint=hint)

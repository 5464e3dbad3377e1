# SPDX-License-Identifier: Apache-2.0
"""How processes, placeholders and jobs end, and the states of jobs and placeholders.

In order: the reasons of an end, the end of one process, the states, and the outcome of a whole job with its exit
status. Kept apart from :mod:`koala_adapter.model` and without heavy imports, because clients load it to show a job.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from math import inf

from koala_adapter.errors import EXIT_CANCELLED, EXIT_LOST, EXIT_NOT_PLACED, EXIT_REFUSED, EXIT_WALLTIME

# -- Reasons of an end ---------------------------------------------------------------------------------------
# Shared by the reports of jobs and by :mod:`koala_adapter.model`.


class EndReason(StrEnum):
    """Why a process, a placeholder or a job ended."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    WALLTIME = "walltime"
    MEMORY = "memory"
    NODE_LOST = "node lost"
    CANCELLED = "cancelled"
    LOST = "lost"
    LAUNCH_FAILED = "launch failed"
    NOT_PLACED = "not placed"


# -- End of one process, as reported by its agent ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskUsage:
    """Resources used by a process and its children. Raises ValueError for impossible values."""

    user_seconds: float
    """Processor time in the program."""
    system_seconds: float
    """Processor time in the kernel."""
    memory_bytes: int
    """Largest resident memory."""
    read_bytes: int
    """By all calls that read, whatever they read from."""
    written_bytes: int
    gpu_seconds: float | None = None
    """Time for which its GPUs were busy, all together, estimated; None: not known."""

    def __post_init__(self) -> None:
        """Check that each number is finite and none is negative."""
        for value in (getattr(self, one.name) for one in fields(self)):
            if value is not None and not 0 <= value < inf:
                raise ValueError(f"a usage of {value}")

    def __add__(self, other: TaskUsage) -> TaskUsage:
        """Return the usage of two processes, one after the other."""
        gpus = [one.gpu_seconds for one in (self, other) if one.gpu_seconds is not None]
        return TaskUsage(
            user_seconds=self.user_seconds + other.user_seconds,
            system_seconds=self.system_seconds + other.system_seconds,
            memory_bytes=max(self.memory_bytes, other.memory_bytes),
            read_bytes=self.read_bytes + other.read_bytes,
            written_bytes=self.written_bytes + other.written_bytes,
            gpu_seconds=sum(gpus) if gpus else None,
        )

    @property
    def processor_seconds(self) -> float:
        """Processor time in all."""
        return self.user_seconds + self.system_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnd:
    """End of a process that an agent ran."""

    reason: EndReason
    exit_code: int | None = None
    """Exit status when the process exited."""
    signal: int | None = None
    """Signal number when it was killed by one."""
    detail: str = ""
    usage: TaskUsage | None = field(default=None, compare=False, repr=False)
    """What it has used until then; None: not known, as by agents of an earlier version."""

    @property
    def ok(self) -> bool:
        """True only for exit status 0."""
        return self.reason is EndReason.EXITED and self.exit_code == 0

    @property
    def status(self) -> int:
        """Exit status as a shell would show it: the code, or 128 + signal; 1 when neither is known."""
        if self.exit_code is not None:
            return self.exit_code
        return 128 + self.signal if self.signal is not None else 1


# -- Kinds and states of jobs, states of placeholders, and outcomes -------------------------------------------


class JobKind(StrEnum):
    """How the size of a job may change."""

    RIGID = "rigid"
    MOLDABLE = "moldable"
    """The scheduler chooses the size at the start."""
    MALLEABLE = "malleable"
    """It also changes while the job runs, by offer and acceptance."""
    EVOLVING = "evolving"
    """It changes while the job runs when its application asks for that, and only then."""

    @property
    def varies(self) -> bool:
        """Tell whether the size may change while the job runs, begun by koala or by the program."""
        return self in {JobKind.MALLEABLE, JobKind.EVOLVING}


NOT_SEEN = "not seen yet"
"""Why nothing is placed on a cluster that has not been polled."""


class JobState(StrEnum):
    """State of a job. The last six are final."""

    WAITING = "waiting"
    """In the placement queue, holding nothing."""
    CLAIMING = "claiming"
    """Placeholders are submitted; some may be held."""
    LAUNCHING = "launching"
    """All placeholders are held; the application is being started."""
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    NOT_PLACED = "not placed"
    REFUSED = "refused"

    @property
    def final(self) -> bool:
        """True when nothing will change any more."""
        return self not in {JobState.WAITING, JobState.CLAIMING, JobState.LAUNCHING, JobState.RUNNING}


LAUNCHED_STATES = frozenset({JobState.LAUNCHING, JobState.RUNNING})


class PlaceholderState(StrEnum):
    """State of a placeholder, as far as koala knows for certain."""

    SUBMITTED = "submitted"
    """The intent is recorded; the LRM may or may not know of it."""
    QUEUED = "queued"
    STARTED = "started"
    """The LRM runs it; its agent has not reported."""
    HELD = "held"
    LAUNCHED = "launched"
    ENDING = "ending"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """Outcome of a job: state, exit code and reason."""

    state: JobState
    reason: EndReason
    exit_code: int
    """What ``koala run`` ends with: the job's own code, or one of koala_adapter.errors.EXIT_*."""
    detail: str = ""
    component: str | None = None
    """Component whose process decided the outcome, when one did."""
    rank: int | None = None


COMPLETED = JobOutcome(state=JobState.COMPLETED, reason=EndReason.EXITED, exit_code=0)
"""Outcome of a job all of whose processes have ended well."""

_FINAL_CODES = {
    JobState.CANCELLED: EXIT_CANCELLED,
    JobState.LOST: EXIT_LOST,
    JobState.NOT_PLACED: EXIT_NOT_PLACED,
    JobState.REFUSED: EXIT_REFUSED,
}


def outcome_without_code(state: JobState, reason: EndReason, detail: str) -> JobOutcome:
    """Return the outcome of a job that did not end with an exit code of its own."""
    code = EXIT_WALLTIME if reason is EndReason.WALLTIME else _FINAL_CODES.get(state, 1)
    return JobOutcome(state=state, reason=reason, exit_code=code, detail=detail)

# SPDX-License-Identifier: Apache-2.0
"""States of a job and of a placeholder, and how a job ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from koala_adapter.endreason import EndReason
from koala_adapter.errors import EXIT_CANCELLED, EXIT_LOST, EXIT_NOT_PLACED, EXIT_REFUSED, EXIT_WALLTIME

NOT_SEEN = "not seen yet"
"""Why nothing is placed on a cluster that has not been polled."""


class JobState(StrEnum):
    """Where a job is. The last six are final."""

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
    """Where a placeholder is, as far as we know for sure."""

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
    """How a job ended, for people and for exit codes."""

    state: JobState
    reason: EndReason
    exit_code: int
    """What ``koala run`` ends with: the job's own code, or one of koala_adapter.errors.EXIT_*."""
    detail: str = ""
    component: str | None = None
    """Component whose process decided the outcome, when one did."""
    rank: int | None = None


_FINAL_CODES = {
    JobState.CANCELLED: EXIT_CANCELLED,
    JobState.LOST: EXIT_LOST,
    JobState.NOT_PLACED: EXIT_NOT_PLACED,
    JobState.REFUSED: EXIT_REFUSED,
}


def outcome_without_code(state: JobState, reason: EndReason, detail: str) -> JobOutcome:
    """Return the outcome of a job that has no exit code of its own."""
    code = EXIT_WALLTIME if reason is EndReason.WALLTIME else _FINAL_CODES.get(state, 1)
    return JobOutcome(state=state, reason=reason, exit_code=code, detail=detail)

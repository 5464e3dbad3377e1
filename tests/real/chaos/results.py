# SPDX-License-Identifier: Apache-2.0
"""How each job may end: as planned, or as docs/failures.md says of what happened to it.

Pure: touches no file, clock or process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from koala_adapter.errors import EXIT_CANCELLED, EXIT_LOST
from koala_adapter.outcome import JobState

if TYPE_CHECKING:
    from koala_adapter.outcome import JobOutcome
    from tests.real.chaos.jobs import PlannedJob


class Result(NamedTuple):
    """Final state and exit code."""

    state: JobState
    code: int


class Consequence(Enum):
    """What the documentation says of a job to which something happens."""

    CANCELLED = Result(JobState.CANCELLED, EXIT_CANCELLED)
    """By the user, or its placeholder through the batch system while it ran."""
    LOST = Result(JobState.LOST, EXIT_LOST)
    """Agent, placeholder or node gone while it ran."""
    RANK_KILLED = Result(JobState.FAILED, 128 + 9)
    NOT_STARTED = Result(JobState.FAILED, 126)
    """An agent could not start its process."""


@dataclass
class History:
    """What happened to one job, and its outcomes as they were seen."""

    planned: PlannedJob
    happened: list[tuple[str, Consequence]] = field(default_factory=list)
    outcomes: list[JobOutcome] = field(default_factory=list)
    """All different ones: there may be one only."""

    @property
    def own(self) -> Result:
        """How the job ends by itself."""
        return Result(*self.planned.result())

    def allowed(self) -> set[Result]:
        """Return the results that the job may have: a fault may also have come when it was just over."""
        return {self.own, *(consequence.value for _, consequence in self.happened)}

    def hit(self, what: str, *consequences: Consequence) -> None:
        """Note that something happened to the job."""
        self.happened += [(what, consequence) for consequence in consequences]

    def note(self, outcome: JobOutcome | None) -> None:
        """Keep an outcome that is seen."""
        if outcome is not None and (not self.outcomes or self.outcomes[-1] != outcome):
            self.outcomes.append(outcome)

    def violations(self) -> list[str]:
        """Say in which ways the end of the job is not as it must be. Empty: it is."""
        if not self.outcomes:
            return [f"{self.planned.name} has no final state"]
        found = []
        if len(self.outcomes) > 1:
            found.append(f"{self.planned.name} has several final states: {self.outcomes}")
        last = self.outcomes[-1]
        result = Result(last.state, last.exit_code)
        if result not in self.allowed():
            wanted = ", ".join(f"{one.state} {one.code}" for one in sorted(self.allowed()))
            what = "; ".join(what for what, _ in self.happened) or "nothing"
            found.append(
                f"{self.planned.name} ended as {result.state} {result.code} ({last.detail}), may end as {wanted}; "
                f"it {self.planned.end}; what happened to it: {what}"
            )
        return found

# SPDX-License-Identifier: Apache-2.0
"""Whom koala negotiates with about a job: its processes, or a program that negotiates for it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from koala_adapter.runners.membership import able_to_leave
from koala_adapter.scheduler.changes import ChangePhase
from koala_adapter.scheduler.roster import bounds

if TYPE_CHECKING:
    from koala_adapter.runners.adaptive import AdaptiveRunner
    from koala_adapter.scheduler.changes import Change
    from koala_adapter.scheduler.records import Claim, JobRecord

NEGOTIATOR = -1
"""Stands for the rank of a program that negotiates for a job by TCP, and is none of its processes."""


class Party(Protocol):
    """One job, as far as its sizes are negotiated."""

    def negotiates(self, component: str) -> bool:
        """Tell whether the size of a component is negotiated."""

    def ready(self, component: str) -> bool:
        """Tell whether something can be offered now."""

    def speaker(self, component: str) -> int | None:
        """Return the rank that offers go to; None: there is nobody."""

    def size(self, component: str) -> int:
        """Return the processors that a component has."""

    def pending(self, claim: Claim, change: Change) -> int:
        """Return by how many processors an agreed change of a claim may alter that size, below 0: it gives them up."""

    def able_to_leave(self, record: JobRecord, claim: Claim) -> int:
        """Return how many processors a claim can give up at most."""

    def component_of(self, rank: int) -> str | None:
        """Return the component that somebody speaks for; None: for none."""

    def carries_out(self, change: Change) -> bool:
        """Tell whether a change is being made, and can only end by being there."""


@dataclass(frozen=True, slots=True)
class AdaptiveParty:
    """A job whose processes change together; its first process speaks for it, unless another program does."""

    runner: AdaptiveRunner
    represented: bool = False
    """Another program negotiates for it."""

    def negotiates(self, component: str) -> bool:
        """See Party."""
        return component in self.runner.coordinators

    def ready(self, component: str) -> bool:
        """See Party."""
        return self.runner.coordinators[component].joined

    def speaker(self, component: str) -> int | None:
        """See Party."""
        members = self.runner.memberships[component].members
        return NEGOTIATOR if self.represented else members[0] if members else None

    def size(self, component: str) -> int:
        """See Party."""
        return len(self.runner.memberships[component].members)

    def pending(self, claim: Claim, change: Change) -> int:
        """See Party."""
        if change.phase is ChangePhase.TAKING:
            return len(change.ranks)
        return 0 if change.made else _agreed(claim, change)

    def able_to_leave(self, record: JobRecord, claim: Claim) -> int:
        """See Party."""
        members = set(self.runner.memberships[claim.component].members)
        ranks = [one for one in record.ranks if one.rank in members]
        return len(able_to_leave(ranks, claim.cluster or ""))

    def component_of(self, rank: int) -> str | None:
        """See Party."""
        if rank == NEGOTIATOR:
            return next(iter(self.runner.coordinators), None) if len(self.runner.coordinators) == 1 else None
        return self.runner.component_of(rank)

    def carries_out(self, change: Change) -> bool:
        """See Party."""
        return bool(change.adaptation)


@dataclass(frozen=True, slots=True)
class WorkersParty:
    """A job with workers, for which another program negotiates: they come and go without being asked."""

    record: JobRecord
    represented: bool

    def negotiates(self, component: str) -> bool:
        """See Party."""
        return self.record.job.changes_size(component)

    def ready(self, component: str) -> bool:
        """See Party."""
        return self.represented and self.negotiates(component)

    def speaker(self, component: str) -> int | None:
        """See Party."""
        return NEGOTIATOR if self.ready(component) else None

    def size(self, component: str) -> int:
        """See Party."""
        return sum(claim.processors for claim in self.record.claims if claim.component == component)

    def pending(self, claim: Claim, change: Change) -> int:
        """See Party."""
        return _agreed(claim, change)

    def able_to_leave(self, record: JobRecord, claim: Claim) -> int:
        """See Party."""
        return max(0, claim.processors - bounds(record, claim)[0])

    def component_of(self, rank: int) -> str | None:
        """See Party."""
        able = [one.name for one in self.record.job.components if self.negotiates(one.name)]
        return able[0] if rank == NEGOTIATOR and len(able) == 1 else None

    def carries_out(self, change: Change) -> bool:
        """See Party."""
        return change.phase in {ChangePhase.TAKING, ChangePhase.RELEASING}


def _agreed(claim: Claim, change: Change) -> int:
    return 0 if change.phase is ChangePhase.ASKED else claim.coming - claim.leaving

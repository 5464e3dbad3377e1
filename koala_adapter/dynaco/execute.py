# SPDX-License-Identifier: Apache-2.0
"""DYNACO, execute: how far the actions of a plan have come. Pure.

Workers have no common point of progress to be adapted at: an action is done as soon as its own process does it.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Retirements:
    """The processes that were asked to end and have not; times in seconds."""

    grace: float
    """Time that each has before it is killed."""
    _until: dict[int, float] = field(default_factory=dict)

    def begin(self, rank: int, now: float) -> bool:
        """Note that a process is asked to end now; False when it has been asked before."""
        if rank in self._until:
            return False
        self._until[rank] = now + self.grace
        return True

    def ended(self, rank: int) -> None:
        """Note that the process of a rank is over, or lost."""
        self._until.pop(rank, None)

    @property
    def ranks(self) -> frozenset[int]:
        """Those that are on their way out."""
        return frozenset(self._until)

    def overdue(self, now: float) -> tuple[int, ...]:
        """Return those whose time is over, which are to be killed."""
        return tuple(rank for rank, until in self._until.items() if until <= now)

    def killed(self, rank: int, now: float) -> None:
        """Note that a process was killed: should it still be there after the same time again, it is killed again."""
        if rank in self._until:
            self._until[rank] = now + max(1.0, self.grace)

    @property
    def next_due(self) -> float | None:
        """When the next one is to be killed; None: there is none."""
        return min(self._until.values(), default=None)

# SPDX-License-Identifier: Apache-2.0
"""Simulated servers that work first come, first served, beside tasks of others, and remember how loaded they were."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTasks:
    """Tasks that reach a server past the scheduler, at random (Poisson) times and of random (exponential) length."""

    utilization: float
    """Share of the server's time that they take; 0: there are none."""
    mean_seconds: float = 60.0
    """Mean length on this server."""


class Server:
    """One server with a queue. Its past load can be asked for, as a monitor saw it."""

    def __init__(self, name: str, performance: float, others: OtherTasks, chance: Random) -> None:
        """Start idle at time 0; ``performance`` in Mop/s."""
        self.name = name
        self.performance = performance
        self._others = others
        self._chance = chance
        self._arrivals: list[float] = []
        self._ends: list[float] = []
        self._next_other = self._draw_other(0.0)

    def arrive(self, operations: float, now: float) -> float:
        """Take a job of so many Mop; return when it ends. Times of arrival must not go back."""
        self._catch_up(now)
        return self._enqueue(now, operations / self.performance)

    def load(self, now: float) -> int:
        """Return the number of jobs there, running and waiting, of which those that arrive at ``now`` are part."""
        self._catch_up(now)
        return bisect_right(self._arrivals, now) - bisect_right(self._ends, now)

    def _enqueue(self, at: float, seconds: float) -> float:
        start = max(at, self._ends[-1]) if self._ends else at
        self._arrivals.append(at)
        self._ends.append(start + seconds)  # in order: nobody overtakes
        return start + seconds

    def _catch_up(self, now: float) -> None:
        while self._next_other is not None and self._next_other <= now:
            self._enqueue(self._next_other, self._chance.expovariate(1.0 / self._others.mean_seconds))
            self._next_other = self._draw_other(self._next_other)

    def _draw_other(self, after: float) -> float | None:
        if self._others.utilization <= 0.0:
            return None
        return after + self._chance.expovariate(self._others.utilization / self._others.mean_seconds)

# SPDX-License-Identifier: Apache-2.0
"""What simulated applications do with their processors: execution time over size, and progress while the size changes.

An :class:`Application` is a speed-up curve with the sizes it can use and what a change of size costs it.
:class:`Progress` follows one run of it: the share of its work that is done is the integral of 1 / execution time over
the time it computes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import dataclass, field
from math import log
from typing import TYPE_CHECKING

from koala_adapter.simulation.acceptance import AnySize, PowerOfTwo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.simulation.acceptance import AcceptanceRule


class SpeedUp(ABC):
    """How long all the work of an application takes on a number of processors."""

    @abstractmethod
    def execution_time(self, processors: int) -> float:
        """Return the seconds that the whole work takes on so many processors (at least 1)."""

    def speed_up(self, processors: int) -> float:
        """Return how many times faster than on one processor it is."""
        return self.execution_time(1) / self.execution_time(processors)


@dataclass(frozen=True, slots=True)
class Interpolated(SpeedUp):
    """Execution times given at some sizes; between two of them time follows a power of the size.

    That is a straight line where both axes are logarithmic, the usual way to draw a speed-up curve. Below the first
    size the first line goes on; above the last one more processors change nothing: the best time has been reached.
    """

    points: tuple[tuple[int, float], ...]
    """Pairs (processors, seconds) in increasing order of processors; at least two."""

    def __post_init__(self) -> None:
        """Raises ValueError for points that are no curve."""
        sizes = [size for size, _ in self.points]
        if len(sizes) < 2 or sizes != sorted(set(sizes)) or sizes[0] < 1 or min(t for _, t in self.points) <= 0:  # noqa: PLR2004 - a line has two ends
            raise ValueError(f"no curve goes through {self.points}")

    def execution_time(self, processors: int) -> float:
        """See :meth:`SpeedUp.execution_time`."""
        last_size, last_time = self.points[-1]
        if processors >= last_size:
            return last_time
        at = max(1, bisect_left(self.points, (processors, 0.0)))
        (low, slow), (high, fast) = self.points[at - 1], self.points[at]
        share = log(processors / low) / log(high / low)
        return float(slow * (fast / slow) ** share)


@dataclass(frozen=True, slots=True)
class Amdahl(SpeedUp):
    """A part of the work is serial, the rest is divided evenly (Amdahl 1967)."""

    time_on_one: float
    """Seconds on one processor."""
    serial: float
    """Share of the work that only one processor can do, 0 to 1."""

    def execution_time(self, processors: int) -> float:
        """See :meth:`SpeedUp.execution_time`."""
        return self.time_on_one * (self.serial + (1.0 - self.serial) / processors)


@dataclass(frozen=True, slots=True)
class Downey(SpeedUp):
    """Downey's model of 1997 (A model for speedup of parallel programs, UCB/CSD-97-933)."""

    time_on_one: float
    """Seconds on one processor."""
    average: float
    """A: average parallelism, at least 1."""
    sigma: float
    """Coefficient of variance of parallelism, at least 0: 0 is a perfect speed-up up to A."""

    def execution_time(self, processors: int) -> float:
        """See :meth:`SpeedUp.execution_time`."""
        return self.time_on_one / self.speed_up(processors)

    def speed_up(self, processors: int) -> float:
        """Return S(n) of the low-variance (sigma up to 1) or the high-variance model."""
        n, a, sigma = float(processors), self.average, self.sigma
        if sigma <= 1.0:
            if n <= a:
                return a * n / (a + sigma / 2 * (n - 1))
            if n <= 2 * a - 1:
                return a * n / (sigma * (a - 0.5) + n * (1 - sigma / 2))
            return a
        if n <= a + a * sigma - sigma:
            return n * a * (sigma + 1) / (sigma * (n + a - 1) + a)
        return a


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconfigurationCost:
    """Seconds for which an application stands still when its size changes: ``fixed + per_processor * |change|``.

    Waiting for the new processors is no part of it: the application keeps running until all are held (PAPERS 1.3).
    """

    fixed: float = 0.0
    per_processor: float = 0.0

    def seconds(self, change: int) -> float:
        """Return the cost of a change by so many processors; nothing for no change."""
        return self.fixed + self.per_processor * abs(change) if change else 0.0


FREE = ReconfigurationCost()


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """An application type: its curve, the sizes it runs on, and the cost of changing them."""

    name: str
    speed_up: SpeedUp
    minimum: int
    maximum: int
    acceptance: AcceptanceRule = field(default_factory=AnySize)
    cost: ReconfigurationCost = FREE

    def times(self) -> Sequence[float]:
        """Return the execution times on 0 to ``maximum`` processors (on 0: for ever), for fast look-up."""
        return (float("inf"), *(self.speed_up.execution_time(n) for n in range(1, self.maximum + 1)))

    def answer(self, size: int, amount: int) -> int:
        """Return its signed answer to a message of a malleability policy."""
        return self.acceptance.answer(size, amount, self.minimum, self.maximum)


def ft(cost: ReconfigurationCost = FREE) -> Application:
    """Return NAS FT by the points of PAPERS section 1.4: 120 s on 2 processors, best 60 s, taken to be at its maximum.

    It runs on powers of two up to 32.
    """
    curve = Interpolated(((2, 120.0), (32, 60.0)))
    return Application(name="FT", speed_up=curve, minimum=2, maximum=32, acceptance=PowerOfTwo(), cost=cost)


def gadget2(cost: ReconfigurationCost = FREE) -> Application:
    """Return GADGET-2 likewise: 600 s on 2 processors, best 240 s, taken to be at its maximum of 46; any size."""
    curve = Interpolated(((2, 600.0), (46, 240.0)))
    return Application(name="GADGET-2", speed_up=curve, minimum=2, maximum=46, cost=cost)


class Progress:
    """One run of an application: what is done at any time, and when it will be over.

    Times in seconds on any clock that goes on.
    """

    __slots__ = ("_busy_from", "_times", "cost", "done", "size")

    def __init__(self, times: Sequence[float], size: int, now: float, cost: ReconfigurationCost = FREE) -> None:
        """Start on ``size`` processors; ``times`` is what :meth:`Application.times` returns."""
        self._times = times
        self.size = size
        self.cost = cost
        self.done = 0.0
        """Share of the work that was done when the size changed last."""
        self._busy_from = now
        """Since when it computes on this size; later than now while it stands still for a change."""

    def share_done(self, now: float) -> float:
        """Return the share of the work that is done."""
        return self.done + max(0.0, now - self._busy_from) / self._times[self.size]

    def resize(self, size: int, now: float) -> None:
        """Go on with another number of processors, after standing still for what the change costs.

        A change in the middle of the pause of another one begins when that pause is over.
        """
        self.done = self.share_done(now)
        self._busy_from = max(now, self._busy_from) + self.cost.seconds(size - self.size)
        self.size = size

    @property
    def ends_at(self) -> float:
        """When the work will be done, if the size stays as it is."""
        return self._busy_from + (1.0 - self.done) * self._times[self.size]

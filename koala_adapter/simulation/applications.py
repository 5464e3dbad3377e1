# SPDX-License-Identifier: Apache-2.0
"""Simulated applications: execution time over size, the sizes they can use, and what a change of size costs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import dataclass, field
from math import log
from typing import TYPE_CHECKING

from koala_adapter.dynaco.decide import AnySize, PowerOfTwo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.dynaco.decide import AcceptanceRule


class SpeedUp(ABC):
    """How long all the work of an application takes on a number of processors."""

    @abstractmethod
    def execution_time(self, processors: int) -> float:
        """Return the seconds that the whole work takes on so many processors (at least 1)."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconfigurationCost:
    """Seconds for which an application stands still when its size changes: ``fixed + per_processor * |change|``.

    Waiting for the new processors is no part of it: the application keeps running until all are held (TR-0092).
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
    """Return NAS FT by the points of CoreGRID TR-0092: 120 s on 2 processors, best 60 s, taken to be at its maximum.

    It runs on powers of two up to 32.
    """
    curve = Interpolated(((2, 120.0), (32, 60.0)))
    return Application(name="FT", speed_up=curve, minimum=2, maximum=32, acceptance=PowerOfTwo(), cost=cost)


def gadget2(cost: ReconfigurationCost = FREE) -> Application:
    """Return GADGET-2 likewise: 600 s on 2 processors, best 240 s, taken to be at its maximum of 46; any size."""
    curve = Interpolated(((2, 600.0), (46, 240.0)))
    return Application(name="GADGET-2", speed_up=curve, minimum=2, maximum=46, cost=cost)

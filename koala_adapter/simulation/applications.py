# SPDX-License-Identifier: Apache-2.0
"""Applications and jobs of a multicluster simulation: speed-up, cost of resizing, and results.

Two application types are given, NAS FT and GADGET-2, by the execution times of CoreGRID TR-0092.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import dataclass, field
from math import log
from typing import TYPE_CHECKING

from koala_adapter.sizes import AcceptanceRule, AnySize, PowerOfTwo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.model import Component


# -- Application types ---------------------------------------------------------------------------------------
# Execution time over size, the sizes that an application can use, and what a change of size costs.


class SpeedUp(ABC):
    """Execution time of an application as a function of its number of processors (protocol)."""

    @abstractmethod
    def execution_time(self, processors: int) -> float:
        """Return the execution time (seconds) on ``processors`` processors (at least 1)."""


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
        """Return the execution time (seconds), interpolated."""
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
        """Return how long (seconds) the application stands still for a change of its size; 0 for no change."""
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
        """Return a table of execution times by number of processors, from 0 (infinite) to ``maximum``."""
        return (float("inf"), *(self.speed_up.execution_time(n) for n in range(1, self.maximum + 1)))

    def execution_time(self, processors: int) -> float:
        """Return the execution time (seconds) on ``processors`` processors (at least 1)."""
        return self.speed_up.execution_time(processors)

    def answer(self, size: int, amount: int) -> int:
        """Return how many processors the application accepts of a proposed change; negative: it shrinks."""
        return self.acceptance.answer(size, amount, self.minimum, self.maximum)


def ft(cost: ReconfigurationCost = FREE) -> Application:
    """Return NAS FT by the points of CoreGRID TR-0092: 120 s on 2 processors, best 60 s, taken to be at its maximum.

    It runs on powers of two up to 32.
    """
    curve = Interpolated(((2, 120.0), (32, 60.0)))
    return Application(name="FT", speed_up=curve, minimum=2, maximum=32, acceptance=PowerOfTwo(), cost=cost)


def gadget2(cost: ReconfigurationCost = FREE) -> Application:
    """Return GADGET-2: 600 s on 2 processors, best 240 s, taken to be at its maximum of 46; runs on any size."""
    curve = Interpolated(((2, 600.0), (46, 240.0)))
    return Application(name="GADGET-2", speed_up=curve, minimum=2, maximum=46, cost=cost)


# -- Jobs and results ----------------------------------------------------------------------------------------
# What is submitted, and what came out.


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    """A job of a workload, before it runs.

    Without ``components`` it is one component that runs on any one cluster, of ``initial`` processors at its start.
    With them it is co-allocated: each component runs on one cluster, and the application on all of them together.
    """

    number: int
    """Unique in its workload."""
    submitted_at: float
    application: Application
    initial: int
    """Processors with which it starts."""
    malleable: bool = False
    """Whether it grows and shrinks between the minimum and the maximum of its application."""
    work: float = 1.0
    """Its work, as a multiple of what the execution times of the application stand for."""
    components: tuple[Component, ...] = ()
    placement: str = "worst-fit"
    """Name of the placement policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """When and where a simulated job ran. Times in seconds."""

    job: SimulatedJob
    started_at: float
    ended_at: float
    clusters: tuple[str, ...]
    average_processors: float
    """Mean over its execution."""
    maximum_processors: int
    grown: int
    """Times it accepted processors."""
    shrunk: int
    """Times it gave processors up."""
    restarts: int
    """Times it began again because a node failed."""

    @property
    def wait(self) -> float:
        """From submission to start."""
        return self.started_at - self.job.submitted_at

    @property
    def execution(self) -> float:
        """From start to end."""
        return self.ended_at - self.started_at

    @property
    def response(self) -> float:
        """From submission to end."""
        return self.ended_at - self.job.submitted_at


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Results of a simulation so far: ended jobs, counters of messages, use of processors over time."""

    jobs: list[JobResult] = field(default_factory=list)
    """In the order of their ends; empty when results go elsewhere."""
    refused: list[tuple[SimulatedJob, str]] = field(default_factory=list)
    """Jobs that can never run on the platform, and why."""
    unfinished: int = 0
    """Jobs that still wait or run."""
    used: list[tuple[float, int, int]] = field(default_factory=list)
    """Time, processors of managed jobs and of local users from then on."""
    messages: list[tuple[float, int, int]] = field(default_factory=list)
    """Time, messages to grow and to shrink sent at that time."""
    grow_messages: int = 0
    shrink_messages: int = 0
    failed_claims: int = 0
    """Placements for which processors turned out to be taken by local users."""
    ended_at: float = 0.0

# SPDX-License-Identifier: Apache-2.0
"""Jobs of a multicluster simulation: what is submitted, a run of it under way, and what came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from koala_adapter.scheduler.malleable.runningjobs import MalleableJob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.model import Component
    from koala_adapter.simulation.applications import Application
    from koala_adapter.simulation.clusters import SimulatedCluster

NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    """A job as it is submitted.

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
    """What became of a job. Times in seconds."""

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


class Part(MalleableJob):
    """The part of a malleable run that is on one cluster."""

    __slots__ = ("answers", "cluster", "pending", "run")

    def __init__(
        self, run: Run, cluster: SimulatedCluster, size: int, *, minimum: int, maximum: int, number: int, now: float
    ) -> None:
        """Begin with ``size`` processors."""
        super().__init__(minimum=minimum, maximum=maximum, size=size, started_at=now, number=number)
        self.run = run
        self.cluster = cluster
        self.answers: dict[tuple[int, int], int] = {}
        """What its application answers, by size and message: parts with the same bounds may share this."""
        self.pending = 0
        """Change that is under way (signed)."""


@dataclass(slots=True, eq=False)
class Run:
    """A job that runs: how many processors it has, what is left of its work, and when it will end."""

    job: SimulatedJob
    rates: Sequence[float]
    """Share of the work done per second, by the number of processors, at speed 1."""
    held: dict[SimulatedCluster, int]
    """Processors that are ours for it, those that are still starting included."""
    size: int
    """Processors that it computes on."""
    started_at: float
    speed: float = 1.0
    """Of the slowest of its clusters."""
    parts: list[Part] = field(default_factory=list)
    """One for each cluster when it is malleable; else none."""
    left: float = 1.0
    """Work left, when it was last accounted for."""
    standing: int = 0
    """Changes of size during which it stands still, under way."""
    since: float = 0.0
    """When it was last accounted for."""
    area: float = 0.0
    """Processor-seconds held until then."""
    total: int = 0
    """Sum of ``held``."""
    largest: int = 0
    grown: int = 0
    shrunk: int = 0
    restarts: int = 0
    ends_at: float = NEVER
    version: int = 0
    """Counts forecasts of its end; earlier ones are void."""
    changed: bool = False
    """Its rate may have changed at this instant, and its end must be forecast again."""
    over: bool = False

    def account(self, now: float) -> None:
        """Note what was done since the last change."""
        seconds = now - self.since
        if seconds > 0:
            if not self.standing:
                self.left -= seconds * self.rates[self.size] * self.speed
            self.area += seconds * self.total
            self.since = now

    def forecast(self, now: float) -> float:
        """Return when it will end if nothing changes; `NEVER` while it stands still."""
        self.version += 1
        if self.standing:
            self.ends_at = NEVER
        else:
            self.ends_at = now + max(0.0, self.left) / (self.rates[self.size] * self.speed)
        return self.ends_at

    def result(self, now: float) -> JobResult:
        """Return what came out, now that it has ended."""
        seconds = now - self.started_at
        return JobResult(
            job=self.job,
            started_at=self.started_at,
            ended_at=now,
            clusters=tuple(str(cluster.name) for cluster in self.held),
            average_processors=self.area / seconds if seconds > 0 else float(self.total),
            maximum_processors=self.largest,
            grown=self.grown,
            shrunk=self.shrunk,
            restarts=self.restarts,
        )


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a simulation has given so far."""

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
    decisions: int = 0
    ended_at: float = 0.0

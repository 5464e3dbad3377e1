# SPDX-License-Identifier: Apache-2.0
"""Jobs of a multicluster simulation: what is submitted, and what came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koala_adapter.model import Component
    from koala_adapter.simulation.application_models import Application


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
    ended_at: float = 0.0

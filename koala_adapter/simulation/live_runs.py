# SPDX-License-Identifier: Apache-2.0
"""What a live run of a workload is and gives, and the simulation of the same. Who runs it live comes from outside.

All times are those of the workload, in seconds: a live run goes through them at a pace of so many seconds of the
workload per second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from koala_adapter.simulation.application_models import ft, gadget2
from koala_adapter.simulation.koala_workloads import WORKLOADS, koala_workload
from koala_adapter.simulation.multicluster import Settings, simulate
from koala_adapter.simulation.platform import DAS3, Platform

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from koala_adapter.scheduler.malleable.approaches import Approach
    from koala_adapter.simulation.platform import ClusterModel
    from koala_adapter.simulation.simulated_jobs import Outcome, SimulatedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """What is to be run."""

    approach: Approach
    malleability: str
    """Name of a policy."""
    jobs: Sequence[SimulatedJob]
    """Each of one component, in the order of their submission."""
    clusters: Sequence[ClusterModel]
    """Local clusters to be started for it; without effect where a site file names others."""
    pace: float
    """Seconds of the workload in one second."""
    site: str = ""
    """Path of the site file with the clusters; empty: ``clusters``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOutcome:
    """What came out of it."""

    outcome: Outcome
    clusters: Sequence[ClusterModel]
    """As they were seen: processors that others had are not among them."""
    held_after: float
    """Mean, from the submission of a placeholder until it was held."""
    computes_after: float
    """Mean, from the launch of a process until it was ready to work."""
    known_after: float
    """Mean, from the end of a job's work until the scheduler knew that it had ended."""
    sizes: Mapping[int, Sequence[tuple[float, int]]]
    """By the number of each job: when it had how many processors from then on; 0 at its end."""
    free_after: float
    """Mean, from the end of a process until its processor was known to be idle."""


class RunsLive(Protocol):
    """Runs a workload on live clusters."""

    def __call__(self, run: LiveRun, ended: Callable[[int], None], /) -> LiveOutcome:
        """Run it; ``ended`` is told how many jobs have ended. Raises KoalaError."""


def clusters_in_small(divisor: float) -> tuple[ClusterModel, ...]:
    """Return the clusters of DAS-3 with their processors divided by a number; each has at least two."""
    return tuple(
        one.model_copy(update={"nodes": max(2, round(one.processors / divisor)), "processors_per_node": 1})
        for one in DAS3.clusters
    )


def workload_in_small(name: str, seed: int, *, jobs: int, divisor: float) -> list[SimulatedJob]:
    """Return the first so many jobs of a workload, the largest sizes of its applications divided by a number.

    How long they take on so many processors, and when they are submitted, is as it was.
    """
    found = koala_workload(WORKLOADS[name], seed, jobs=jobs)
    smaller = {
        one.name: replace(one, maximum=max(one.minimum + 1, round(one.maximum / divisor))) for one in (ft(), gadget2())
    }
    return [replace(job, application=smaller[job.application.name]) for job in found]


def predicted(run: LiveRun, live: LiveOutcome, *, delays: bool) -> Outcome:
    """Return what the simulator says of a run; ``delays``: with those that were measured in it, or without any."""
    settings = Settings(approach=run.approach, malleability=run.malleability)
    return simulate(platform_of(live), run.jobs, with_delays(settings, live) if delays else settings)


def platform_of(live: LiveOutcome) -> Platform:
    """Return the clusters of a live run for the simulator."""
    return Platform(name="live", clusters=tuple(live.clusters))


def with_delays(settings: Settings, live: LiveOutcome) -> Settings:
    """Return settings with the delays that were measured in a live run."""
    return replace(
        settings,
        placeholder_delay=live.held_after,
        start_delay=live.computes_after,
        end_delay=live.known_after,
        release_delay=live.free_after,
    )

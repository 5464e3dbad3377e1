# SPDX-License-Identifier: Apache-2.0
"""Replays a workload on clusters whose queues are ordered by the policies that also order real ones.

Discrete events: the end of a job, the submission of a job, the moment at which a policy wants to be asked again. All
that happens at one instant is told first, then each cluster to which something happened is asked once. Nothing but the
workload decides what happens: no clock, no chance. The loops are plain because they are what a simulation consists of;
what is computed from their result is in :mod:`koala_adapter.simulation.metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING

from koala_adapter.queueing.policies import LocalJob, make_cluster_scheduler
from koala_adapter.queueing.priority import ARRIVAL, PriorityWeights
from koala_adapter.simulation.platform_replay import NEVER, PlatformReplay

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.queueing.policies import ClusterScheduler, MakeQueue
    from koala_adapter.simulation.platform_replay import Site, Watch
    from koala_adapter.simulation.workload import Workload

BETWEEN_WATCHES = 4096
"""Instants between two looks at whether to go on."""


def unwatched(submitted: int, /) -> bool:  # noqa: ARG001 - the signature of a watch
    """Go on."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How the queue of each cluster is ordered."""

    name: str
    metric: str = "processors"
    """What BESTFIT and GREEDY maximize."""
    depth: int = 1
    """How many jobs have a reservation, under Maui's policies."""
    weights: PriorityWeights = ARRIVAL
    make: MakeQueue | None = None
    """Makes the queues, where the policy is none of koala's own."""

    def scheduler(self, processors: int) -> ClusterScheduler:
        """Return an empty queue. Raises ConfigurationError for what is not known."""
        return make_cluster_scheduler(
            self.name, processors, metric=self.metric, depth=self.depth, weights=self.weights, make=self.make
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What happened."""

    workload: Workload
    sites: Sequence[Site]
    starts: Sequence[float]
    """Of each job of the workload; below 0 for those not started before an interrupt, and those given up."""
    runs: Sequence[float]
    """Seconds that each job takes where it was started."""
    places: Sequence[int]
    """Index of the cluster of each job; empty when there is only a plain one."""
    counters: Mapping[str, int]
    """What the policy counted, added up over the clusters."""
    interrupted: bool

    @property
    def processors(self) -> int:
        """Of all clusters."""
        return sum(site.processors for site in self.sites)


def replay(
    workload: Workload, policy: Policy, sites: Sequence[Site], *, seed: int = 0, watch: Watch = unwatched
) -> Replay:
    """Replay a workload to its end, or until Ctrl-C or the watch ends it; then the result is what happened so far.

    With several clusters each job goes, when it is submitted, to the least loaded of those large enough for it; then
    the policy orders each cluster's queue. Jobs larger than every cluster must have been left out
    (:meth:`Workload.fitting`). ``seed`` is that of local users and failures, where there are any. Raises
    ConfigurationError for a policy that is not known.
    """
    starts = [NEVER] * len(workload)
    schedulers = [policy.scheduler(site.processors) for site in sites]
    if len(sites) == 1 and sites[0].plain:
        platform = None
        play = partial(_on_one, workload, schedulers[0], starts, watch)
    else:
        platform = PlatformReplay(workload, sites, schedulers, _users(workload, schedulers[0]), seed)
        starts = platform.starts
        play = partial(platform.play, watch, BETWEEN_WATCHES)
    try:
        finished = play()
    except KeyboardInterrupt:
        finished = False
    counters: dict[str, int] = {} if platform is None else platform.counters
    for scheduler in schedulers:
        for name, counted in scheduler.counters().items():
            counters[name] = counters.get(name, 0) + counted
    return Replay(
        workload=workload,
        sites=sites,
        starts=starts,
        runs=workload.runs if platform is None else platform.runs,
        places=() if platform is None else platform.places,
        counters=counters,
        interrupted=not finished,
    )


def _on_one(workload: Workload, scheduler: ClusterScheduler, starts: list[float], watch: Watch) -> bool:
    """Fill in the starts on one cluster; returns whether the end was reached."""
    runs = workload.runs
    submits = [*workload.submits, inf]
    users = _users(workload, scheduler)
    come = map(LocalJob, count(), workload.sizes, workload.estimates, workload.submits, users).__next__
    submit, end, schedule = scheduler.submit, scheduler.end, scheduler.schedule
    ends: list[tuple[float, int, LocalJob]] = []
    index = waiting = 0
    arrival = submits[0]
    while watch(index):
        for _ in range(BETWEEN_WATCHES):
            now = ends[0][0] if ends and ends[0][0] < arrival else arrival
            if waiting and scheduler.wake_at < now:
                now = scheduler.wake_at
            if now == inf:
                return True
            while ends and ends[0][0] == now:
                end(heappop(ends)[2], now)
            while arrival == now:
                submit(come())
                waiting += 1
                index += 1
                arrival = submits[index]
            if not waiting:
                continue  # no policy starts anything then, and asking would be a fifth of the time on an idle cluster
            for job in schedule(now):
                place: int = job.id  # type: ignore[assignment]  # counted above; converting it takes its time
                starts[place] = now
                waiting -= 1
                heappush(ends, (now + runs[place], place, job))
    return False


def _users(workload: Workload, scheduler: ClusterScheduler) -> Sequence[str]:
    """Return whose each job is, where that makes a difference."""
    return [str(user) for user in workload.users] if scheduler.weights.share else [""] * len(workload)

# SPDX-License-Identifier: Apache-2.0
"""Replays a workload on the clusters of a platform: several, of different speeds, with local users and failing nodes.

Each job goes, when it is submitted, to the least loaded cluster that is large enough, as Metacluster's first level has
it. Local users submit to their cluster directly: their jobs wait in the same queue and are not measured. When a node
fails its processors are gone until it is back, and the jobs on it begin anew, at their old place of the queue; jobs
fill the nodes in the order in which they were started.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Protocol

from koala_adapter.queueing.metacluster import ClusterLoad, Requirements, least_loaded
from koala_adapter.queueing.policies import LocalJob
from koala_adapter.simulation.background_load import local_users, outages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from koala_adapter.queueing.policies import ClusterScheduler
    from koala_adapter.simulation.background_load import LocalUse, Outage
    from koala_adapter.simulation.platform import BackgroundLoad, ClusterModel, Failures
    from koala_adapter.simulation.workload import Workload

FREED, TAKEN = 0, 1
"""What frees processors comes first among the events of an instant: a job that ends then is not lost with its node."""
NEVER = -1.0
"""Start of a job that was not started, or was given up."""
MOST_RESTARTS = 20
"""A job that loses a node more often is given up: it needs more nodes for longer than they stay up."""


class Watch(Protocol):
    """Is told how far a replay is, and may end it."""

    def __call__(self, submitted: int, /) -> bool:
        """Hear that so many jobs have been submitted; return whether to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One cluster of a replay."""

    name: str
    processors: int
    speed: float = 1.0
    """A job of 60 s takes 30 s at speed 2."""
    cluster: ClusterModel | None = None
    """Its nodes, for those who use it besides and for failures."""
    local_users: BackgroundLoad | None = None
    """Who submits to this cluster directly."""
    failures: Failures | None = None
    """How its nodes fail."""

    @property
    def plain(self) -> bool:
        """Whether nothing happens here but the workload, at ordinary speed."""
        return self.speed == 1 and self.local_users is None and self.failures is None


class PlatformReplay:
    """The clusters of a platform while a workload is replayed on them."""

    def __init__(
        self,
        workload: Workload,
        sites: Sequence[Site],
        schedulers: Sequence[ClusterScheduler],
        users: Sequence[str],
        seed: int,
    ) -> None:
        self.workload = workload
        self.sites = sites
        self.schedulers = schedulers
        self.users = users
        self.starts = [NEVER] * len(workload)
        """Of each job, the last time it was started."""
        self.runs = list(workload.runs)
        """Seconds that each job takes where it was started."""
        self.places = [0] * len(workload)
        """Index of the cluster of each job."""
        self.counters: dict[str, int] = {}
        self._numbers = {site.name: place for place, site in enumerate(sites)}
        self._demanded = [0] * len(sites)
        self._up = [site.processors for site in sites]
        self._down: list[set[int]] = [set() for _ in sites]
        """Nodes that are away."""
        self._restarts: dict[int, int] = {}
        """How often each job lost a node."""
        self._events: list[tuple[float, int, int, Callable[[float], None]]] = []
        self._entered = 0
        self._next = 0
        """The next job to be submitted."""
        self._left = len(workload)
        """Jobs that have not ended."""
        self._touched: set[int] = set()
        self._lost: set[LocalJob] = set()
        """Jobs that were on a node that failed, whose end was entered before."""
        self._local_runs: dict[int, float] = {}
        self._begin = workload.submits[0] if len(workload) else 0.0
        for place, site in enumerate(sites):
            if site.cluster is not None and site.local_users is not None:
                self.counters["local_jobs"] = 0
                self._await_local(place, local_users(site.cluster, site.local_users, seed))
            if site.cluster is not None and site.failures is not None:
                self.counters |= {"outages": 0, "restarts": 0, "given_up": 0}
                self._await_outage(place, outages(site.cluster, site.failures, seed))

    def play(self, watch: Watch, between: int) -> bool:
        """Go through all events, asking the watch every so many instants; returns whether all jobs have ended."""
        while watch(self._next):
            for _ in range(between):
                now = self._next_instant()
                if not self._left or now == inf:
                    return True
                while self._events and self._events[0][0] == now:
                    heappop(self._events)[3](now)
                self._submit(now)
                self._touched.update(place for place, one in enumerate(self.schedulers) if one.wake_at <= now)
                for place in sorted(self._touched):
                    for job in self.schedulers[place].schedule(now):
                        self._start(place, job, now)
                self._touched.clear()
        return False

    def _next_instant(self) -> float:
        submits = self.workload.submits
        arrival = submits[self._next] if self._next < len(submits) else inf
        event = self._events[0][0] if self._events else inf
        return min(arrival, event, *(one.wake_at for one in self.schedulers))

    def _at(self, time: float, rank: int, action: Callable[[float], None]) -> None:
        self._entered += 1
        heappush(self._events, (time, rank, self._entered, action))

    # Jobs

    def _submit(self, now: float) -> None:
        """Submit the jobs of the workload that come now."""
        workload = self.workload
        while self._next < len(workload) and workload.submits[self._next] == now:
            place = self.places[self._next] = self._chosen(workload.sizes[self._next])
            self._demanded[place] += workload.sizes[self._next]
            self._queue(place, self._next)
            self._next += 1

    def _queue(self, place: int, index: int) -> None:
        workload = self.workload
        estimate = workload.estimates[index] / self.sites[place].speed
        job = LocalJob(index, workload.sizes[index], estimate, workload.submits[index], self.users[index])
        self.schedulers[place].submit(job)
        self._touched.add(place)

    def _start(self, place: int, job: LocalJob, now: float) -> None:
        index = int(job.id)
        if index < 0:
            run = self._local_runs[index]
        else:
            self.starts[index] = now
            run = self.runs[index] = self.workload.runs[index] / self.sites[place].speed
        self._at(now + run, FREED, partial(self._end, place, job))

    def _end(self, place: int, job: LocalJob, now: float) -> None:
        if job in self._lost:
            self._lost.remove(job)
            return
        self.schedulers[place].end(job, now)
        self._demanded[place] -= job.processors
        self._touched.add(place)
        if int(job.id) < 0:
            del self._local_runs[int(job.id)]
        else:
            self._left -= 1

    def _chosen(self, size: int) -> int:
        """Return the cluster for a job; what each is asked for is counted here, not by looking through the queues."""
        loads = (
            ClusterLoad(name=site.name, processors=site.processors, demanded=demanded)
            for site, demanded in zip(self.sites, self._demanded, strict=True)
        )
        return self._numbers[least_loaded(Requirements(processors=size), loads).name]

    # Local users and failures

    def _await_local(self, place: int, coming: Iterator[LocalUse]) -> None:
        use = next(coming, None)
        if use is not None:
            self._at(self._begin + use.submitted_at, TAKEN, partial(self._come, place, use, coming))

    def _come(self, place: int, use: LocalUse, coming: Iterator[LocalUse], now: float) -> None:
        """Take in the job of a local user, and wait for the next."""
        self.counters["local_jobs"] += 1
        run = use.run / self.sites[place].speed
        job = LocalJob(-self.counters["local_jobs"], min(use.processors, self.sites[place].processors), run, now)
        self._local_runs[int(job.id)] = run
        self._demanded[place] += job.processors
        self.schedulers[place].submit(job)
        self._touched.add(place)
        self._await_local(place, coming)

    def _await_outage(self, place: int, coming: Iterator[Outage]) -> None:
        outage = next(coming)
        self._at(self._begin + outage.begins_at, TAKEN, partial(self._fail, place, outage, coming))

    def _fail(self, place: int, outage: Outage, coming: Iterator[Outage], now: float) -> None:
        """Take a node away, and what runs on it; wait for its return and for the next outage."""
        gone = self._processors_of(place, outage.node)
        if gone:
            self.counters["outages"] += 1
            down = self._down[place]
            first = sum(self._processors_of(place, node) for node in range(outage.node) if node not in down)
            for job in self._on(place, first, first + gone):
                self._restart(place, job, now)
            down.add(outage.node)
            self._resize(place, -gone, now)
            self._at(self._begin + outage.ends_at, FREED, partial(self._come_back, place, outage.node))
        self._await_outage(place, coming)

    def _come_back(self, place: int, node: int, now: float) -> None:
        self._down[place].remove(node)
        self._resize(place, self._processors_of(place, node), now)

    def _processors_of(self, place: int, node: int) -> int:
        """Return the processors of a node that take part: those of the last nodes may be left to local users."""
        cluster = self.sites[place].cluster
        each = cluster.processors_per_node if cluster is not None else 1
        return min(each, max(0, self.sites[place].processors - node * each))

    def _on(self, place: int, first: int, end: int) -> list[LocalJob]:
        """Return the jobs that hold any of these processors."""
        found, begin = [], 0
        for job in self.schedulers[place].running:
            if begin < end and begin + job.processors > first:
                found.append(job)
            begin += job.processors
        return found

    def _restart(self, place: int, job: LocalJob, now: float) -> None:
        """Have a job begin anew; one that has lost too many nodes would do so for ever and is given up."""
        index = int(job.id)
        self._lost.add(job)
        self.schedulers[place].end(job, now)
        self._restarts[index] = self._restarts.get(index, 0) + 1
        if self._restarts[index] > MOST_RESTARTS:
            self.counters["given_up"] += 1
            self._demanded[place] -= job.processors
            if index >= 0:
                self._left -= 1
                self.starts[index] = NEVER
            return
        self.counters["restarts"] += 1
        if index >= 0:
            self._queue(place, index)
        else:
            self.schedulers[place].submit(LocalJob(index, job.processors, job.estimate, job.submitted_at))

    def _resize(self, place: int, change: int, now: float) -> None:
        self._up[place] += change
        self.schedulers[place].resize(self._up[place], now)
        self._touched.add(place)

# SPDX-License-Identifier: Apache-2.0
"""Workloads replayed on clusters whose queues are ordered by the policies that also order real ones.

Discrete events: the end of a job, the submission of a job, the moment at which a policy wants to be asked again. All
that happens at one instant is told first, then each cluster to which something happened is asked once. First the
replay on a platform of several clusters, then the replay on one cluster and what both return.
Measures of the result are in :mod:`koala_adapter.simulation.metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Protocol

from koala_adapter.queueing.backfill import ClusterScheduler, LocalJob, MakeQueue, make_cluster_scheduler
from koala_adapter.queueing.queue import ARRIVAL, PriorityWeights
from koala_adapter.simulation.world import FIRST, Engine, LocalUse, schedule_background

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.simulation.platform import BackgroundLoad, ClusterModel, Failures
    from koala_adapter.simulation.workload import Workload


# -- Several clusters of a platform --------------------------------------------------------------------------
# The clusters have different speeds, local users and failing nodes.
#
# Each job goes, when it is submitted, to the least loaded cluster that is large enough, as Metacluster's first level
# has it (Gergel 2011), and stays there; the second level is the queue of that cluster. Local users submit to their
# cluster directly: their jobs wait in the same queue and are not measured. When a node fails its processors are gone
# until it is back, and the jobs on it begin anew, at their old place of the queue; jobs fill the nodes in the order in
# which they were started.

NEVER = -inf
"""Start of a job that was not started, or was given up."""
MOST_RESTARTS = 20
"""A job that loses a node more often is given up: it needs more nodes for longer than they stay up."""


class Watch(Protocol):
    """Callback that is told the progress of a replay and may end it."""

    def __call__(self, submitted: int, /) -> bool:
        """Show that so many jobs have been submitted; return whether to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A cluster of a replay and its policy."""

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

    def taken(self, workload: Workload, index: int) -> int | None:
        """Return how many processors a job blocks on this cluster; None when the cluster or its nodes are too small."""
        size = workload.sizes[index]
        if workload.memory and self.cluster is not None:
            taken = self.cluster.processors_taken(size, workload.memory[index])
            return None if taken is None or taken > self.processors else taken
        return size if size <= self.processors else None

    @property
    def plain(self) -> bool:
        """Whether the cluster has full speed, no local users and no failures."""
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
        self.users = users
        self.starts = [NEVER] * len(workload)
        """Of each job, the last time it was started."""
        self.submits = list(workload.submits)
        """Of each job: as recorded, or after its preceding job."""
        self._followers: dict[int, list[int]] = {}
        """The jobs that each job is the preceding one of, until it has ended."""
        for index, before in enumerate(workload.preceding):
            if before >= 0:
                self._followers.setdefault(before, []).append(index)
        self.runs = list(workload.runs)
        """Seconds that each job takes where it was started."""
        self.places = [0] * len(workload)
        """Index of the cluster of each job."""
        self.counters: dict[str, int] = {}
        begin = workload.submits[0] if len(workload) else 0.0
        self.engine = Engine(begin)
        self.now = begin
        """Time of the instant that happens, whole where the workload has it whole."""
        self._next = 0
        """The next job to be submitted."""
        self._left = len(workload)
        """Jobs that have not ended."""
        self.clusters = [ReplayedCluster(self, *one) for one in zip(sites, schedulers, strict=True)]
        for site, cluster in zip(sites, self.clusters, strict=True):
            if site.cluster is not None:
                load, failures = site.local_users, site.failures
                self.counters |= {} if load is None else {"local_jobs": 0}
                self.counters |= {} if failures is None else {"outages": 0, "restarts": 0, "given_up": 0}
                schedule_background(
                    self.engine, cluster, site.cluster, load=load, failures=failures, seed=seed, begin=begin
                )

    def play(self, watch: Watch, between: int) -> bool:
        """Process all events, calling the watch now and then; return whether all jobs have ended."""
        engine, submits = self.engine, self.workload.submits
        while watch(self._next):
            for _ in range(between):
                arrival = submits[self._next] if self._next < len(submits) else inf
                event = engine.next_time
                wakes = (one.scheduler.wake_at for one in self.clusters)
                self.now = now = min(arrival, inf if event is None else event, *wakes)
                if not self._left or now == inf:
                    return True
                if engine.waiting:
                    engine.run(until=now)
                self._submit(now)
                for cluster in self.clusters:
                    cluster.schedule()
        return False

    def _submit(self, now: float) -> None:
        """Submit the jobs of the workload whose time has come."""
        workload = self.workload
        while self._next < len(workload) and workload.submits[self._next] == now:
            if not workload.preceding or workload.preceding[self._next] < 0:
                self._submit_job(self._next)
            self._next += 1

    def _submit_job(self, index: int) -> None:
        """Submit a job to the least loaded cluster that is large enough, and count its processors in that load."""
        able = [
            (place, one) for place, one in enumerate(self.clusters) if one.site.taken(self.workload, index) is not None
        ]
        self.places[index], cluster = min(able, key=lambda found: found[1].rank)
        self.submits[index] = self.now
        cluster.demanded += cluster.taken(index)
        cluster.queue(index)

    def job_over(self, index: int) -> None:
        """Handle the end of a job, or that it is given up; schedule the jobs that follow it."""
        self._left -= 1
        for follower in self._followers.pop(index, ()):
            think = self.workload.think_times[follower]
            at = self.now + think if think >= 0 else max(self.now, self.workload.submits[follower])
            self.engine.at(at, partial(self._submit_job, follower))


class ReplayedCluster:
    """One cluster of a platform during a replay."""

    def __init__(self, world: PlatformReplay, site: Site, scheduler: ClusterScheduler) -> None:
        self.site = site
        self.scheduler = scheduler
        self.demanded = 0
        """Processors of all jobs that wait or run."""
        self._world = world
        self._up = site.processors
        self._down: set[int] = set()
        """Nodes that are away."""
        self._restarts: dict[int, int] = {}
        """How often each job lost a node."""
        self._lost: set[LocalJob] = set()
        """Jobs that were on a node that failed, whose end was entered before."""
        self._local_runs: dict[int, float] = {}
        self._changed = False
        """Whether something has happened that the policy has not been asked about."""

    @property
    def rank(self) -> tuple[float, int, str]:
        """Sorts clusters: the least loaded first; of equals the larger one, then the first by name."""
        return self.demanded / self.site.processors, -self.site.processors, self.site.name

    # Jobs: those of local users have negative numbers

    def queue(self, index: int) -> None:
        """Put a job of the workload into the queue."""
        world = self._world
        estimate = world.workload.estimates[index] / self.site.speed
        self._put(LocalJob(index, self.taken(index), estimate, world.submits[index], world.users[index]))

    def taken(self, index: int) -> int:
        """Return how many processors a job blocks."""
        return self.site.taken(self._world.workload, index) or self._world.workload.sizes[index]

    def local_job(self, use: LocalUse) -> None:
        """Put the job of a local user into the queue."""
        counters = self._world.counters
        counters["local_jobs"] += 1
        run = use.run / self.site.speed
        job = LocalJob(-counters["local_jobs"], min(use.processors, self.site.processors), run, self._world.now)
        self._local_runs[int(job.id)] = run
        self.demanded += job.processors
        self._put(job)

    def _put(self, job: LocalJob) -> None:
        self.scheduler.submit(job)
        self._changed = True

    def schedule(self) -> None:
        """Start jobs by the policy, if an event has happened or the policy asked to be called."""
        world = self._world
        now = world.now
        if not self._changed and self.scheduler.wake_at > now:
            return
        self._changed = False
        for job in self.scheduler.schedule(now):
            index = int(job.id)
            if index < 0:
                run = self._local_runs[index]
            else:
                world.starts[index] = now
                run = world.runs[index] = world.workload.runs[index] / self.site.speed
            world.engine.at(now + run, partial(self._end, job), rank=FIRST)

    def _end(self, job: LocalJob) -> None:
        if job in self._lost:
            self._lost.remove(job)
            return
        self.scheduler.end(job, self._world.now)
        self._changed = True
        self._over(job)

    def _over(self, job: LocalJob) -> None:
        self.demanded -= job.processors
        if int(job.id) < 0:
            del self._local_runs[int(job.id)]
        else:
            self._world.job_over(int(job.id))

    # Failures

    def node_fails(self, node: int) -> None:
        """Remove a node and end the jobs on it."""
        gone = self._processors_of(node)
        if not gone:
            return
        self._world.counters["outages"] += 1
        before = self.site.processors - self._processors_from(node)
        first = before - sum(self._processors_of(other) for other in self._down if other < node)
        for job in self._on(first, first + gone):
            self._restart(job)
        self._down.add(node)
        self._resize(-gone)

    def node_returns(self, node: int) -> None:
        """Add a failed node again."""
        if node in self._down:
            self._down.remove(node)
            self._resize(self._processors_of(node))

    def _processors_of(self, node: int) -> int:
        """Return the processors of a node that take part: those of the last nodes may be left to local users."""
        return self._processors_from(node) - self._processors_from(node + 1)

    def _processors_from(self, node: int) -> int:
        """Return the processors of a node and of all later nodes that take part."""
        each = 1 if self.site.cluster is None else self.site.cluster.processors_per_node
        return max(0, self.site.processors - node * each)

    def _on(self, first: int, end: int) -> list[LocalJob]:
        """Return the jobs that hold any of these processors."""
        found, begin = [], 0
        for job in self.scheduler.running:
            if begin < end and begin + job.processors > first:
                found.append(job)
            begin += job.processors
        return found

    def _restart(self, job: LocalJob) -> None:
        """Start a job from its beginning again; give it up after too many failures of its nodes."""
        index = int(job.id)
        world = self._world
        self._lost.add(job)
        self.scheduler.end(job, world.now)
        self._restarts[index] = self._restarts.get(index, 0) + 1
        if self._restarts[index] > MOST_RESTARTS:
            world.counters["given_up"] += 1
            if index >= 0:
                world.starts[index] = NEVER
            self._over(job)
            return
        world.counters["restarts"] += 1
        if index >= 0:
            self.queue(index)
        else:
            self._put(LocalJob(index, job.processors, job.estimate, job.submitted_at))

    def _resize(self, change: int) -> None:
        self._up += change
        self.scheduler.resize(self._up, self._world.now)
        self._changed = True


# -- Replay on one cluster or on a platform ------------------------------------------------------------------
# On one cluster the workload alone decides what happens: no clock, no chance. The loops are plain because they are what
# a simulation consists of.

BETWEEN_WATCHES = 4096
"""Instants between two looks at whether to go on."""


def unwatched(submitted: int, /) -> bool:  # noqa: ARG001 - the signature of a watch
    """Watch that lets a replay go on to its end."""
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
    """Result of a replay: start and end of each job."""

    workload: Workload
    """With the times at which jobs were submitted in this replay, if it obeyed dependencies."""
    sites: Sequence[Site]
    starts: Sequence[float]
    """Of each job of the workload; `NEVER` for those not started before an interrupt, and those given up."""
    runs: Sequence[float]
    """Seconds that each job takes where it was started."""
    places: Sequence[int]
    """Index of the cluster of each job; empty when there is only a plain one."""
    counters: Mapping[str, int]
    """What the policy counted, added up over the clusters."""
    interrupted: bool

    @property
    def processors(self) -> int:
        """Processors of all clusters together."""
        return sum(site.processors for site in self.sites)


def within_memory(workload: Workload, sites: Sequence[Site]) -> Workload:
    """Return the workload without the jobs for which no cluster has the memory; they are counted."""
    if not workload.memory:
        return workload
    places = range(len(workload))
    fit = [index for index in places if any(site.taken(workload, index) is not None for site in sites)]
    return workload if len(fit) == len(places) else workload.only(fit, "too large for the memory of nodes")


def replay(
    workload: Workload, policy: Policy, sites: Sequence[Site], *, seed: int = 0, watch: Watch = unwatched
) -> Replay:
    """Replay a workload to its end; after Ctrl-C, or when the watch ends it, return the result so far.

    With several clusters each job goes, when it is submitted, to the least loaded of those large enough for it; then
    the policy orders each cluster's queue. A job with a preceding job is submitted after the end of that job: so many
    seconds as its think time later, or at its own time of submission when no think time is known. Jobs larger than
    every cluster must have been left out (:meth:`Workload.fitting`, :func:`within_memory`). ``seed`` is that of local
    users and failures, where there are any. Raises ConfigurationError for a policy that is not known.
    """
    starts = [NEVER] * len(workload)
    schedulers = [policy.scheduler(site.processors) for site in sites]
    if len(sites) == 1 and sites[0].plain and not workload.preceding:
        platform = None
        sizes = workload.sizes
        if workload.memory:
            sizes = [sites[0].taken(workload, index) or size for index, size in enumerate(workload.sizes)]
        play = partial(_on_one, workload, sizes, schedulers[0], starts, watch)
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
        workload=replace(workload, submits=platform.submits) if platform and workload.preceding else workload,
        sites=sites,
        starts=starts,
        runs=workload.runs if platform is None else platform.runs,
        places=() if platform is None else platform.places,
        counters=counters,
        interrupted=not finished,
    )


def _on_one(
    workload: Workload, sizes: Sequence[int], scheduler: ClusterScheduler, starts: list[float], watch: Watch
) -> bool:
    """Set the starts of jobs on a single plain cluster; return whether the end was reached."""
    runs = workload.runs
    submits = [*workload.submits, inf]
    users = _users(workload, scheduler)
    come = map(LocalJob, count(), sizes, workload.estimates, workload.submits, users).__next__
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
    """Return the user of each job, where the policy depends on users."""
    return [str(user) for user in workload.users] if scheduler.weights.share else [""] * len(workload)

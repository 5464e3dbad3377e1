# SPDX-License-Identifier: Apache-2.0
"""KOALA on several clusters, simulated on counts of processors: queue, placement, malleability.

Every decision is taken by the code that decides live: the policies of :mod:`koala_adapter.scheduler.knownpolicies` and
:mod:`koala_adapter.scheduler.malleable.policies`, in the order of
:mod:`koala_adapter.scheduler.malleable.jobmanagement`. Here is the world around them: the queue, clusters, what
placement policies are shown, changes of size, what job management is shown, and last the simulation itself.

A processor is a number, not a placeholder, which is what makes a million jobs feasible. All that happens at one instant
happens first (ends, then local users and changes under way, then submissions); then it is decided.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from koala_adapter.errors import SimulationError
from koala_adapter.model import ClusterName, Component
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.malleable.jobmanagement import JobManagement, Need
from koala_adapter.scheduler.malleable.policies import (
    Direction,
    MalleabilityPolicy,
    MalleableJob,
    RunningJobs,
    Step,
    carry_out,
)
from koala_adapter.scheduler.parameters import Approach, Parameters
from koala_adapter.scheduler.placement.policies import WorstFit
from koala_adapter.scheduler.placement.policy import ClusterView, ComponentRequest, Placed, infeasibility
from koala_adapter.simulation.applications import JobResult, Outcome
from koala_adapter.simulation.world import Engine, local_users, outages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from koala_adapter.scheduler.malleable.jobmanagement import ShrunkFor
    from koala_adapter.scheduler.placement.policy import PlacedComponent
    from koala_adapter.simulation.applications import Application, SimulatedJob
    from koala_adapter.simulation.platform import ClusterModel, Platform
    from koala_adapter.simulation.world import LocalUse, Outage


# -- Placement queue -----------------------------------------------------------------------------------------
# Jobs wait in lanes by what they need. All jobs of a lane get the same answer from a placement policy, so a lane whose
# first job cannot be placed is passed over for the rest of a scan, in which room only shrinks (compare
# :mod:`koala_adapter.scheduler.claiming.queue`).

Position = tuple[float, int]


class Lane(NamedTuple):
    """What decides whether a job can be placed."""

    least: int
    """Processors of its largest component."""
    placement: str
    components: tuple[Component, ...]


class WaitingLine:
    """Waiting jobs in order of submission."""

    __slots__ = ("_lanes", "_size")

    def __init__(self) -> None:
        """Begin empty."""
        self._lanes: dict[Lane, deque[tuple[Position, SimulatedJob]]] = {}
        self._size = 0

    def __len__(self) -> int:
        """Number of waiting jobs."""
        return self._size

    def push(self, job: SimulatedJob, lane: Lane) -> None:
        """Enter a job behind those of its lane, or before them when it was submitted earlier (after a failure)."""
        entry = ((job.submitted_at, job.number), job)
        line = self._lanes.setdefault(lane, deque())
        if line and entry[0] < line[0][0]:
            line.appendleft(entry)
        else:
            line.append(entry)
        self._size += 1

    def head(self) -> tuple[SimulatedJob, Lane] | None:
        """Return the first job of all, with its lane; None when nobody waits."""
        if not self._size:
            return None
        lane = min(self._lanes, key=lambda lane: self._lanes[lane][0][0])
        return self._lanes[lane][0][1], lane

    def pop(self, lane: Lane) -> SimulatedJob:
        """Take the first job of a lane out."""
        line = self._lanes[lane]
        job = line.popleft()[1]
        if not line:
            del self._lanes[lane]
        self._size -= 1
        return job

    def scan(self, hopeless: set[Lane]) -> Iterator[tuple[SimulatedJob, Lane]]:
        """Yield the first jobs of the lanes in queue order, each until it is popped or its lane is hopeless."""
        ahead = [(line[0][0], number, lane) for number, (lane, line) in enumerate(self._lanes.items())]
        heapq.heapify(ahead)
        while ahead:
            _, number, lane = ahead[0]
            line = self._lanes.get(lane)
            if not line or lane in hopeless:
                heapq.heappop(ahead)
            elif ahead[0][0] != line[0][0]:
                heapq.heapreplace(ahead, (line[0][0], number, lane))
            else:
                yield line[0][1], lane

    def jobs(self) -> list[SimulatedJob]:
        """Return all jobs in queue order."""
        entries = [entry for line in self._lanes.values() for entry in line]
        return [job for _, job in sorted(entries, key=lambda entry: entry[0])]


# -- Clusters ------------------------------------------------------------------------------------------------
# As a batch system keeps them: the runs, who has how many processors, local users, failures.
#
# Local users go past the scheduler. Their jobs are served first come, first served; while one of them waits, no job of
# ours that is submitted later gets a processor.

NEVER = float("inf")


class SimulatedCluster:
    """Counts of processors; compared by identity."""

    __slots__ = (
        "capacity",
        "down",
        "index",
        "leaving",
        "local_queue",
        "local_used",
        "making_room",
        "managed",
        "model",
        "name",
        "others_seen",
        "processors",
        "queue_seen",
        "running",
        "speed",
        "unwanted",
    )

    def __init__(self, model: ClusterModel, index: int) -> None:
        """Begin with all processors idle."""
        self.model = model
        self.name: ClusterName = model.cluster
        self.index = index
        self.processors = model.processors
        self.capacity = model.processors - model.threshold
        """Most processors that managed jobs may have together."""
        self.speed = model.speed
        self.managed = 0
        """Processors of managed jobs."""
        self.local_used = 0
        self.local_queue: deque[LocalUse] = deque()
        self.down = 0
        self.others_seen = 0
        """Processors that the information service last saw out of our reach."""
        self.queue_seen = False
        """Whether it last saw local jobs waiting, which would get the next processors that come free."""
        self.running: RunningJobs[Part] = RunningJobs()
        """The malleable ones of the managed jobs."""
        self.unwanted: int | None = None
        """Free processors that no running job would take when they were offered last; None: something has changed."""
        self.making_room = 0
        """Processors that jobs have promised to give back and still hold."""
        self.leaving = 0
        """Processors that no job has any more, and that are not known to be idle yet."""

    @property
    def idle(self) -> int:
        """Processors that nobody uses; below 0 while such as are leaving are on a node that has failed."""
        return self.processors - self.managed - self.local_used - self.down

    @property
    def usable(self) -> int:
        """Idle processors that a new placeholder of ours would get at once."""
        return 0 if self.local_queue else max(0, self.idle)

    @property
    def others(self) -> int:
        """Processors out of our reach: used by local users, waited for by them, or down."""
        return self.processors - self.managed - self.usable

    @property
    def free(self) -> int:
        """Processors that the scheduler believes it could have now, the threshold kept."""
        free = self.processors - self.others_seen
        if free > self.capacity:  # noqa: PLR1730 - min() costs more than all the rest, and this is asked all the time
            free = self.capacity
        free -= self.managed
        return free if free > 0 else 0  # noqa: FURB136 - likewise

    @property
    def kept(self) -> int:
        """Processors believed idle that the threshold keeps from us."""
        return self.processors - self.others_seen - self.managed - self.free

    def see(self) -> bool:
        """Let the information service look; tell whether more may be within our reach than it saw last."""
        before = self.others_seen, self.queue_seen
        self.others_seen, self.queue_seen = self.others, bool(self.local_queue)
        return (self.others_seen, self.queue_seen) < before

    def start_locals(self) -> Iterator[LocalUse]:
        """Start local jobs that wait, in order, as far as processors are idle; yield those that start."""
        while self.local_queue and self.local_queue[0].processors <= self.idle:
            use = self.local_queue.popleft()
            self.local_used += use.processors
            yield use


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


class BackgroundActivity:
    """What happens at a cluster without our doing: local users come and go, nodes fail and are repaired.

    ``changed`` is called whenever the processors out of our reach have changed; ``evict`` must end a managed job that
    is on the cluster, chosen by a number from 0 to ``managed`` - ``leaving`` - 1.
    """

    def __init__(
        self,
        engine: Engine,
        cluster: SimulatedCluster,
        changed: Callable[[SimulatedCluster], None],
        evict: Callable[[SimulatedCluster, int], None],
    ) -> None:
        """Nothing happens before :meth:`local_users` or :meth:`failures` is called."""
        self._engine = engine
        self._cluster = cluster
        self._changed = changed
        self._evict = evict

    def local_users(self, uses: Iterator[LocalUse]) -> None:
        """Have local users submit these jobs."""
        use = next(uses, None)
        if use is not None:
            self._engine.at(use.submitted_at, lambda: self._submitted(use, uses))

    def failures(self, failures: Iterator[Outage]) -> None:
        """Have nodes fail and come back."""
        outage = next(failures, None)
        if outage is not None:
            self._engine.at(outage.begins_at, lambda: self._failed(outage, failures))

    def released(self) -> None:
        """Let local jobs have what has come free, before we may."""
        for use in self._cluster.start_locals():
            self._engine.after(use.run, lambda use=use: self._local_ended(use))  # type: ignore[misc]

    def _submitted(self, use: LocalUse, uses: Iterator[LocalUse]) -> None:
        self._cluster.local_queue.append(use)
        self.released()
        self._changed(self._cluster)
        self.local_users(uses)

    def _local_ended(self, use: LocalUse) -> None:
        self._cluster.local_used -= use.processors
        self.released()
        self._changed(self._cluster)

    def _failed(self, outage: Outage, failures: Iterator[Outage]) -> None:
        """Take a node away; what runs on it ends. Which jobs those are is a matter of the node's place in the row."""
        cluster = self._cluster
        size = cluster.model.processors_per_node
        at = outage.node * size
        # What is leaving has no job that could be ended; it is idle as soon as that is known.
        while (held := cluster.managed - cluster.leaving) > 0 and (at < held or cluster.idle + cluster.leaving < size):
            self._evict(cluster, min(at, held - 1))
            at = cluster.processors
        # A node of local users alone goes when they have gone: nothing to us.
        size = min(size, max(0, cluster.idle + cluster.leaving))
        cluster.down += size
        self._changed(cluster)
        self._engine.at(outage.ends_at, lambda: self._repaired(size))
        self.failures(failures)

    def _repaired(self, processors: int) -> None:
        self._cluster.down -= processors
        self.released()
        self._changed(self._cluster)


# -- What placement policies are shown -----------------------------------------------------------------------
# Clusters are shown as in a live service, but placeholders are only sent where they start at once: what is free is all
# the room there is.

ALONE = "job"
"""Name of the component of a job that has only one."""


class CountedPlacement:
    """The placement policies and what they are asked."""

    def __init__(self, clusters: Sequence[SimulatedCluster], policies: Policies = OWN) -> None:
        """Ask about these clusters, whose indices are their places in the sequence. ``policies``: those there are."""
        self._policies = {name: policies.placement_policy(name, Parameters()) for name in policies.placement_names}
        self._clusters = clusters
        self._by_name = {cluster.name: cluster for cluster in clusters}
        self._worst_fit: dict[tuple[int, int], Sequence[PlacedComponent]] = {}
        """Its answers for a single component of fixed size, by the size and the index of the cluster with most free."""
        self._short = all(cluster.capacity == cluster.processors for cluster in clusters)
        """Whether worst fit takes the cluster with the most free: thresholds do not count in its measure of load."""
        self._requests: dict[Lane, tuple[Sequence[ComponentRequest], str | None]] = {}
        self.frees = [cluster.free for cluster in clusters]
        """``free`` of each cluster, kept up to date by whoever changes it: finding the largest must be quick."""

    def cluster(self, name: ClusterName) -> SimulatedCluster:
        """Return a cluster by its name."""
        return self._by_name[name]

    def never(self, job: SimulatedJob, lane: Lane) -> str | None:
        """Return why a job can never run here; None when it can."""
        size, most = sum(component.maximum for component in job.components) or job.initial, job.application.maximum
        if size > most:
            return f"asks for {size} processors, {job.application.name} runs on at most {most}"
        return self._asked(lane)[1]

    def place(self, lane: Lane) -> Sequence[PlacedComponent] | None:
        """Ask the placement policy where the first job of a lane goes; None: nowhere now."""
        requests, _ = self._asked(lane)
        if self._short and not lane.components and lane.placement == WorstFit.name:
            most = max(self.frees)
            if most < lane.least:
                return None
            index = self.frees.index(most)  # of all clusters, worst fit takes this one; it is asked once about each
            known = self._worst_fit.get((lane.least, index))
            if known is not None:
                return known
            best = self._clusters[index]
            result = self._policies[lane.placement].place(requests, {best.name: _view(best, most)})
            if isinstance(result, Placed):
                self._worst_fit[lane.least, index] = result.components
        else:
            views = {cluster.name: _view(cluster, cluster.free) for cluster in self._clusters}
            result = self._policies[lane.placement].place(requests, views)
        return result.components if isinstance(result, Placed) else None

    def needs(self, lane: Lane) -> Iterator[Need[SimulatedCluster]]:
        """Yield what the first job of a lane needs.

        A cluster where local users wait is left alone: they would get what comes free.
        """
        usable = [one for one in self._clusters if not one.making_room and not one.queue_seen]
        if not lane.components:
            yield Need(lane.least, usable)
            return
        for request in self._asked(lane)[0]:
            chosen = request.component.cluster
            possible = [one for one in usable if chosen in {None, one.name} and request.never(_view(one, 0)) is None]
            yield Need(request.component.minimum, possible, insists=chosen is not None)

    def _asked(self, lane: Lane) -> tuple[Sequence[ComponentRequest], str | None]:
        """Return what the jobs of a lane ask of their policy, and why they can never be placed (None: they can)."""
        found = self._requests.get(lane)
        if found is None:
            if lane.placement not in self._policies:
                return (), f"there is no placement policy {lane.placement}; there is {', '.join(self._policies)}"
            alone = Component(name=ALONE, command=(), minimum=lane.least, maximum=lane.least)
            splits = self._policies[lane.placement].splits
            requests = [
                ComponentRequest(component=component, walltime=0, splittable=splits and component.flexible)
                for component in lane.components or (alone,)
            ]
            empty = {cluster.name: _view(cluster, cluster.capacity) for cluster in self._clusters}
            found = self._requests[lane] = requests, infeasibility(requests, empty)
        return found


def lane_of(job: SimulatedJob) -> Lane:
    """Return the lane in which a job waits."""
    least = max((component.minimum for component in job.components), default=job.initial)
    return Lane(least, job.placement, job.components)


def _view(cluster: SimulatedCluster, free: int) -> ClusterView:
    return ClusterView(
        name=cluster.name,
        capacity=cluster.capacity,
        room=free,
        available=free,
        load_free=free + cluster.kept,
        walltime_limit=None,
    )


# -- Changes of size -----------------------------------------------------------------------------------------
# Running jobs change their size at once, or with the delays of real runners.
#
# As MRunner does it (TR-0092): growing, the new placeholders start while the application keeps running; when all are
# held it stands still for the cost of the change, then goes on with more. Shrinking, it stands still first, goes on
# with fewer, and only then are the processors given back. What is given back comes free when its batch system says so.


class CountedResizing:
    """Carries messages to applications, and out what they accept."""

    def __init__(
        self,
        engine: Engine,
        *,
        placeholder_delay: float,
        release_delay: float = 0.0,
        released: Callable[[SimulatedCluster], None],
    ) -> None:
        """``released`` is called when processors have come free, or a job can change again, after a delay."""
        self._engine = engine
        self._delay = placeholder_delay
        self._release_delay = release_delay
        self._released = released
        self.changed: list[Run] = []
        """Runs whose end must be forecast again."""
        self.changes = 0
        """Changes of size that applications agreed to."""
        self.grow_messages = 0
        self.shrink_messages = 0

    def touch(self, run: Run) -> None:
        """Account for a run before something about it changes at this instant."""
        if not run.changed:
            run.changed = True
            self.changed.append(run)
            run.account(self._engine.now)

    def ask(self, part: Part, amount: int) -> int:
        """Send a message to a part; return what its application accepts (both signed)."""
        if amount > 0:
            self.grow_messages += 1
        else:
            self.shrink_messages += 1
        size = part.size
        accepted = part.answers.get((size, amount))
        if accepted is None:
            answer = part.run.job.application.acceptance.answer
            accepted = part.answers[size, amount] = answer(size, amount, part.minimum, part.maximum)
        if not accepted:
            return 0
        run, cluster = part.run, part.cluster
        if amount > 0:
            most = min(cluster.capacity - cluster.managed, cluster.usable)
            if accepted > most:  # what was believed to be idle is not: placeholders that did not start are ended
                accepted = run.job.application.acceptance.answer(size, max(0, most), part.minimum, part.maximum)
            if accepted:
                run.grown += 1
        else:
            run.shrunk += 1
        if accepted:
            self._change(part, accepted)
        return accepted

    def _change(self, part: Part, amount: int) -> None:
        run = part.run
        self.changes += 1
        part.cluster.unwanted = None
        self.touch(run)
        pause = run.job.application.cost.seconds(amount)
        if pause > 0 or (amount > 0 and self._delay > 0):
            part.cluster.running.begin(part)
            part.pending = amount
            if amount > 0:
                _hold(run, part.cluster, amount)
                self._engine.after(self._delay, lambda: self._all_held(part, pause))
            else:
                part.cluster.making_room -= amount
                run.standing += 1
                self._engine.after(pause, lambda: self._returned(part))
            return
        run.size += amount
        if amount > 0 or self._release_delay <= 0:
            _hold(run, part.cluster, amount)
        else:
            self._let_go(run, part.cluster, -amount)

    def give_back(self, cluster: SimulatedCluster, processors: int) -> None:
        """Have processors that no job has any more come free: at once, or after the delay."""
        if self._release_delay <= 0:
            cluster.managed -= processors
            self._released(cluster)
        else:
            cluster.leaving += processors
            self._engine.after(self._release_delay, lambda: self._freed(cluster, processors))

    def _let_go(self, run: Run, cluster: SimulatedCluster, processors: int) -> None:
        run.held[cluster] -= processors
        run.total -= processors
        self.give_back(cluster, processors)

    def _freed(self, cluster: SimulatedCluster, processors: int) -> None:
        cluster.leaving -= processors
        cluster.managed -= processors
        self._released(cluster)

    def _all_held(self, part: Part, pause: float) -> None:
        if not part.run.over:
            self.touch(part.run)
            part.run.standing += 1
            self._engine.after(pause, lambda: self._grown(part))

    def _grown(self, part: Part) -> None:
        if not part.run.over:
            self._through(part)

    def _returned(self, part: Part) -> None:
        if not part.run.over:
            part.cluster.making_room += part.pending
            if self._release_delay <= 0:
                _hold(part.run, part.cluster, part.pending)
            else:
                self._let_go(part.run, part.cluster, -part.pending)
            self._through(part)

    def _through(self, part: Part) -> None:
        """Go on with the new size."""
        self.touch(part.run)
        part.run.standing -= 1
        part.run.size += part.pending
        part.pending = 0
        part.cluster.running.end(part)
        self._released(part.cluster)


def _hold(run: Run, cluster: SimulatedCluster, amount: int) -> None:
    run.held[cluster] += amount
    run.total += amount
    cluster.managed += amount
    if run.total > run.largest:  # noqa: PLR1730 - max() costs more than all the rest
        run.largest = run.total


# -- What job management is shown ----------------------------------------------------------------------------
# The clusters as :mod:`koala_adapter.scheduler.malleable.jobmanagement` sees them.
#
# Applications answer at once here. What an application gives up is free at once as well, unless it has to stand still
# for its change; until then room is being made on that cluster.


class CountedClusters:
    """What is free, who waits and who can change, from the counts; and how decisions are carried out."""

    def __init__(
        self,
        *,
        approach: Approach,
        malleability: MalleabilityPolicy,
        placing: CountedPlacement,
        waiting: WaitingLine,
        resizing: CountedResizing,
        start: Callable[[SimulatedJob, Sequence[PlacedComponent]], bool],
        released: Callable[[SimulatedCluster], None],
    ) -> None:
        """``start`` starts a job and tells whether its claim succeeded, ``released`` is told where jobs were shrunk."""
        self.approach = approach
        self._malleability = malleability
        self._placing = placing
        self._waiting = waiting
        self._resizing = resizing
        self._start = start
        self._released = released
        self.changed = False
        """Whether something has changed that has not been decided about."""
        self.touched: dict[SimulatedCluster, None] = {}
        """Clusters with processors that have not been offered to running jobs."""
        self.hopeless: set[Lane] = set()
        """Lanes whose jobs cannot be placed before a cluster has more to give."""
        self._gave_nothing: set[SimulatedCluster] = set()
        """Where running jobs were asked to make room in vain, and no cluster has had more to give since."""
        self._awaited: list[SimulatedCluster] = []
        """Where room is being made for the head of the queue."""

    def touch(self, cluster: SimulatedCluster) -> None:
        """Note that a cluster may have more to give than before."""
        self._placing.frees[cluster.index] = cluster.free
        self.touched[cluster] = None
        self.hopeless.clear()
        self._gave_nothing.clear()
        self.changed = True

    def decided(self) -> None:
        """Note that all decisions of this instant have been taken."""
        if not (self._waiting and self.making_room()):
            self.touched.clear()

    # ---- how far things are ---------------------------------------------------------------------------------------

    def decision_wanted(self) -> bool:
        """See :class:`DecidedClusters`, also for all that follows."""
        wanted = self.changed
        self.changed = False
        return wanted

    def clusters(self) -> Sequence[SimulatedCluster]:
        """Return those that were touched: nothing has changed on others."""
        return list(self.touched)

    def running(self, cluster: SimulatedCluster) -> RunningJobs[Part]:
        """Return the parts of running malleable jobs."""
        return cluster.running

    def free(self, cluster: SimulatedCluster) -> int:
        """Return what the scheduler believes to be free."""
        return cluster.free

    def room(self, cluster: SimulatedCluster) -> int:
        """Return the same, with what no job has any more: where others are on their way out nothing is decided."""
        return cluster.free + cluster.leaving

    def ending(self, cluster: SimulatedCluster) -> int:
        """Return what is given up when applications go on after a change, and what is not known to be idle yet."""
        return cluster.making_room + cluster.leaving

    def just_seen(self, cluster: SimulatedCluster) -> bool:  # noqa: ARG002 - so it is for all clusters
        """Return False: whatever is on its way out comes free."""
        return False

    def in_reach(self, cluster: SimulatedCluster) -> bool:  # noqa: ARG002 - likewise
        """Return True: no cluster is ever lost."""
        return True

    def changing(self, cluster: SimulatedCluster) -> bool:  # noqa: ARG002 - likewise
        """Return False: all answers come at once."""
        return False

    def promised(self, cluster: SimulatedCluster) -> bool:  # noqa: ARG002 - likewise
        """Return False: no application asks for more itself."""
        return False

    def paused(self, cluster: SimulatedCluster, direction: Direction) -> bool:
        """Tell whether shrinking was in vain; that is so until a cluster is touched, not for a time."""
        return direction is Direction.SHRINK and cluster in self._gave_nothing

    def rebalances(self, cluster: SimulatedCluster) -> bool:  # noqa: ARG002 - likewise
        """Tell whether the one policy of all clusters does."""
        return self._malleability.rebalances

    def short_of_processors(self) -> Iterable[tuple[SimulatedCluster, int, ShrunkFor]]:
        """Return nothing: jobs, also those of others, only come where they start at once."""
        return ()

    def jobs_wait(self) -> bool:
        """Tell whether jobs wait."""
        return len(self._waiting) > 0

    def making_room(self) -> bool:
        """Tell whether processors are on their way out that were given up for the head of the queue."""
        self._awaited = [cluster for cluster in self._awaited if cluster.making_room or cluster.leaving]
        return bool(self._awaited)

    def needs_of_head(self) -> Iterable[Need[SimulatedCluster]]:
        """Return the needs of its components."""
        head = self._waiting.head()
        return () if head is None else self._placing.needs(head[1])

    # ---- what is decided ------------------------------------------------------------------------------------------

    def continue_changes(self, cluster: SimulatedCluster) -> None:
        """Do nothing: steps are over at once."""

    def scan(self, kept: Sequence[SimulatedCluster]) -> None:  # noqa: ARG002 - the running have taken what they want
        """Start waiting jobs, lane by lane."""
        hopeless = self.hopeless
        for job, lane in self._waiting.scan(hopeless):
            placed = self._placing.place(lane)
            if placed is None:
                hopeless.add(lane)
            elif self._start(job, placed):
                self._waiting.pop(lane)

    def keep_room(self, needs: Mapping[ClusterName, int]) -> None:
        """Do nothing: the queue is scanned as soon as something is free."""

    def grow(self, cluster: SimulatedCluster, value: int, *, thorough: bool) -> bool:
        """Do a whole step. It is the last when nobody took anything, or all was made equal that could be."""
        step = Step(direction=Direction.GROW, remaining=value, thorough=thorough)
        before = self._resizing.changes
        carry_out(self._malleability, cluster.running, step, self._resizing.ask)
        free = self._placing.frees[cluster.index] = cluster.free
        if self._resizing.changes > before and not self._malleability.rebalances:
            return True
        cluster.unwanted = free
        return False

    def shrink(self, cluster: SimulatedCluster, value: int, shrunk_for: ShrunkFor) -> None:  # noqa: ARG002 - for the head
        """Do a whole step, and let others have what it frees."""
        before, leaving = cluster.free, cluster.leaving
        step = Step(direction=Direction.SHRINK, remaining=value)
        carry_out(self._malleability, cluster.running, step, self._resizing.ask)
        if cluster.making_room or cluster.leaving > leaving:
            self._awaited.append(cluster)
        if cluster.free > before:  # some may have given theirs up at once, others stand still first
            self._released(cluster)
        elif not (cluster.making_room or cluster.leaving > leaving):
            self._gave_nothing.add(cluster)
            self.changed = True


# -- The simulation ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the scheduler is set, and what the world costs it. Times in seconds."""

    approach: Approach = Approach.PWA
    malleability: str = "fpsma"
    """Name of a malleability policy."""
    poll_interval: float = 0.0
    """Time between two looks of the information service at local users; 0: it sees them at once."""
    placeholder_delay: float = 0.0
    """From the submission of placeholders to idle processors until they are held."""
    start_delay: float = 0.0
    """From the launch of processes on held placeholders until they compute."""
    end_delay: float = 0.0
    """From the end of a job's work until the scheduler knows of it; counted before the job begins to compute."""
    release_delay: float = 0.0
    """From the end of a process until the scheduler knows that its processor is idle."""
    seed: int = 0
    """Of local users and failures."""
    timeline: bool = True
    """Whether used processors and messages are recorded over time."""
    policies: Policies = OWN
    """Those that jobs and ``malleability`` may name."""

    def __post_init__(self) -> None:
        """Raises SimulationError for an unknown malleability policy."""
        if self.malleability not in self.policies.malleability_names:
            hint = f"there is {', '.join(self.policies.malleability_names)}"
            raise SimulationError(f"there is no malleability policy {self.malleability}", hint=hint)


class Multicluster:
    """The simulated world. Interrupted between two instants, :attr:`outcome` has what came out so far."""

    def __init__(
        self,
        platform: Platform,
        workload: Iterable[SimulatedJob],
        settings: Settings,
        *,
        on_end: Callable[[JobResult], object] | None = None,
    ) -> None:
        """Build it. ``workload`` is in order of submission and read as it is needed; ``on_end`` takes the results."""
        self.outcome = Outcome()
        self.settings = settings
        self.clusters = [SimulatedCluster(model, index) for index, model in enumerate(platform.clusters)]
        self._workload = iter(workload)
        self._arriving = next(self._workload, None)
        self._on_end = on_end or self.outcome.jobs.append
        self._engine = Engine()
        self._resizing = CountedResizing(
            self._engine,
            placeholder_delay=settings.placeholder_delay + settings.start_delay,
            release_delay=settings.release_delay,
            released=self._released,
        )
        self._waiting = WaitingLine()
        self._live: dict[int, Run] = {}
        self._ends: list[tuple[float, int, int, Run]] = []
        self._placing = CountedPlacement(self.clusters, settings.policies)
        self._frees = self._placing.frees
        self._sites = CountedClusters(
            approach=settings.approach,
            malleability=settings.policies.malleability_policy(settings.malleability),
            placing=self._placing,
            waiting=self._waiting,
            resizing=self._resizing,
            start=self._start,
            released=self._released,
        )
        self._management = JobManagement(self._sites)
        self._restarts: dict[int, int] = {}
        self._answers: dict[tuple[int, int, int], dict[tuple[int, int], int]] = {}
        self._rates: dict[int, tuple[Application, Sequence[float]]] = {}
        self._activities = [self._begin_activity(platform, cluster) for cluster in self.clusters]

    # ---- the course of time ---------------------------------------------------------------------------------------

    def run(self, until: float = NEVER) -> Outcome:
        """Let all that is ahead happen, up to ``until``; return :attr:`outcome`."""
        engine, ends = self._engine, self._ends
        while self._arriving is not None or self._live or self._waiting:
            while ends and (ends[0][2] != ends[0][3].version or ends[0][3].over):
                heapq.heappop(ends)  # a forecast that no longer holds
            arrival = NEVER if self._arriving is None else self._arriving.submitted_at
            end = ends[0][0] if ends else NEVER
            other = engine.next_time
            now = min(arrival, end) if other is None else min(arrival, end, other)
            if now > until or now == NEVER:
                break
            self._instant(max(now, engine.now))
        self.outcome.unfinished = len(self._live) + len(self._waiting)
        self.outcome.grow_messages = self._resizing.grow_messages
        self.outcome.shrink_messages = self._resizing.shrink_messages
        return self.outcome

    def _instant(self, now: float) -> None:
        engine, ends = self._engine, self._ends
        engine.now = now
        while ends and ends[0][0] <= now:
            _, _, version, run = heapq.heappop(ends)
            if version == run.version and not run.over:
                self._ended(run)
        if engine.waiting:
            engine.run(until=now)
        arrived = False
        while self._arriving is not None and self._arriving.submitted_at <= now:
            arrived |= self._submitted(self._arriving)
            self._arriving = next(self._workload, None)
        if arrived or self._sites.changed:
            self._decide()
        self._forecast()

    def _submitted(self, job: SimulatedJob) -> bool:
        lane = lane_of(job)
        never = self._placing.never(job, lane)
        if never is not None:
            self.outcome.refused.append((job, never))
            return False
        if not self._waiting and not self._sites.touched and self._try(job, lane):
            return True  # nobody was before it, and nothing else happened: no need to stand in line
        self._waiting.push(job, lane)
        return lane not in self._sites.hopeless

    def _try(self, job: SimulatedJob, lane: Lane) -> bool:
        """Start a job at once if its policy places it and its claim succeeds; tell whether it did."""
        placed = self._placing.place(lane)
        return placed is not None and self._start(job, placed)

    def _ended(self, run: Run) -> None:
        run.account(self._engine.now)
        self._leave(run)
        self._on_end(run.result(self._engine.now))
        self.outcome.ended_at = self._engine.now

    def _leave(self, run: Run) -> None:
        """Take back all that a run holds."""
        run.over = True
        del self._live[run.job.number]
        for part in run.parts:
            part.cluster.running.remove(part)
            if part.pending < 0:
                part.cluster.making_room += part.pending
        run.parts.clear()  # or run and parts would hold each other, for the collector to find
        for cluster, processors in run.held.items():
            self._resizing.give_back(cluster, processors)

    def _decide(self) -> None:
        self._sites.changed = True
        self._management.decide()
        self._sites.decided()

    # ---- start and end ----------------------------------------------------------------------------------------------

    def _start(self, job: SimulatedJob, placed: Sequence[PlacedComponent]) -> bool:
        """Claim the processors of a placement; False when local users have them."""
        held: dict[SimulatedCluster, int] = {}
        for component in placed:
            cluster = self._placing.cluster(component.cluster)
            held[cluster] = held.get(cluster, 0) + component.processors
        lost = [cluster for cluster, processors in held.items() if processors > cluster.usable]
        for cluster in lost:  # the failed claim tells what the information service has not seen yet
            self.outcome.failed_claims += 1
            cluster.see()
            self._frees[cluster.index] = cluster.free
        if lost:
            return False
        now = self._engine.now + self.settings.placeholder_delay
        total = sum(held.values())
        run = Run(
            job=job, rates=self._rates_of(job.application), held=held, size=total, total=total, largest=total,
            started_at=now, since=now, left=job.work, speed=min(cluster.speed for cluster in held),
            restarts=self._restarts.get(job.number, 0),
        )  # fmt: skip
        self._live[job.number] = run
        idle = self.settings.start_delay + self.settings.end_delay
        if idle > 0:
            run.standing += 1
            self._engine.after(self.settings.placeholder_delay + idle, lambda: self._computes(run))
        for cluster, processors in held.items():
            cluster.managed += processors
            self._frees[cluster.index] = cluster.free
            self._sites.touched[cluster] = None
            if job.malleable:
                self._join(run, cluster, processors)
        self._resizing.touch(run)
        return True

    def _computes(self, run: Run) -> None:
        if not run.over:
            self._resizing.touch(run)
            run.standing -= 1

    def _join(self, run: Run, cluster: SimulatedCluster, processors: int) -> None:
        """Let the malleability policy of a cluster have a part of a run that has started."""
        application = run.job.application
        part = Part(
            run,
            cluster,
            processors,
            minimum=min(application.minimum, processors),
            maximum=max(application.maximum * processors // run.total, processors),
            number=run.job.number,
            now=run.started_at,
        )
        part.answers = self._answers.setdefault((id(application), part.minimum, part.maximum), {})
        cluster.unwanted = None
        run.parts.append(part)
        cluster.running.add(part)
        if self.settings.placeholder_delay > 0:
            cluster.running.begin(part)
            self._engine.after(self.settings.placeholder_delay, lambda: self._began(part))

    def _began(self, part: Part) -> None:
        if not part.run.over:
            part.cluster.running.end(part)
            self._sites.touch(part.cluster)

    def _rates_of(self, application: Application) -> Sequence[float]:
        found = self._rates.get(id(application))
        if found is None:
            rates = [0.0, *(1.0 / seconds for seconds in application.times()[1:])]
            found = self._rates[id(application)] = application, rates
        return found[1]

    def _forecast(self) -> None:
        """Work out anew when the runs end whose rate has changed, and record what the world looks like."""
        now, resizing, ends = self._engine.now, self._resizing, self._ends
        for run in resizing.changed:
            run.changed = False
            if not run.over and (at := run.forecast(max(now, run.since))) < NEVER:
                heapq.heappush(ends, (at, run.job.number, run.version, run))
        resizing.changed.clear()
        if len(ends) > 64 + 8 * len(self._live):
            ends[:] = [entry for entry in ends if entry[2] == entry[3].version and not entry[3].over]
            heapq.heapify(ends)
        if self.settings.timeline:
            self._record(now)

    def _record(self, now: float) -> None:
        outcome = self.outcome
        managed, local = sum(c.managed for c in self.clusters), sum(c.local_used for c in self.clusters)
        if not outcome.used or outcome.used[-1][1:] != (managed, local):
            outcome.used.append((now, managed, local))
        grown = self._resizing.grow_messages - outcome.grow_messages
        shrunk = self._resizing.shrink_messages - outcome.shrink_messages
        if grown or shrunk:
            outcome.messages.append((now, grown, shrunk))
            outcome.grow_messages += grown
            outcome.shrink_messages += shrunk

    # ---- what happens without our doing ---------------------------------------------------------------------------

    def _begin_activity(self, platform: Platform, cluster: SimulatedCluster) -> BackgroundActivity:
        activity = BackgroundActivity(self._engine, cluster, self._others_changed, self._evict)
        load, failures = platform.background_of(cluster.model), platform.failures_of(cluster.model)
        if load is not None:
            activity.local_users(local_users(cluster.model, load, self.settings.seed))
        if failures is not None:
            activity.failures(outages(cluster.model, failures, self.settings.seed))
        if self.settings.poll_interval > 0 and (load is not None or failures is not None):
            self._engine.after(self.settings.poll_interval, lambda: self._poll(cluster))
        return activity

    def _others_changed(self, cluster: SimulatedCluster) -> None:
        if self.settings.poll_interval <= 0:
            self._see(cluster)

    def _poll(self, cluster: SimulatedCluster) -> None:
        self._see(cluster)
        self._engine.after(self.settings.poll_interval, lambda: self._poll(cluster))

    def _see(self, cluster: SimulatedCluster) -> None:
        """Let the information service see what is out of our reach."""
        if cluster.see():
            self._sites.touch(cluster)
        else:
            self._frees[cluster.index] = cluster.free

    def _released(self, cluster: SimulatedCluster) -> None:
        """Give local jobs that wait what has come free on a cluster; the rest is ours again."""
        self._activities[cluster.index].released()
        self._others_changed(cluster)
        self._sites.touch(cluster)

    def _evict(self, cluster: SimulatedCluster, index: int) -> None:
        """End the run that holds a processor of a cluster, because its node failed, and submit the job again."""
        for run in self._live.values():
            index -= run.held.get(cluster, 0)
            if index < 0:
                break
        else:
            return
        self._restarts[run.job.number] = run.restarts + 1
        self._leave(run)
        self._waiting.push(run.job, lane_of(run.job))


def simulate(platform: Platform, workload: Iterable[SimulatedJob], settings: Settings) -> Outcome:
    """Return the outcome of a whole simulation."""
    return Multicluster(platform, workload, settings).run()

# SPDX-License-Identifier: Apache-2.0
"""KOALA on several clusters, simulated on counts of processors: queue, placement, malleability.

Every decision is taken by the code that decides live: the policies of :mod:`koala_adapter.scheduler.knownpolicies` and
:mod:`koala_adapter.scheduler.malleable.policies`, in the order of
:mod:`koala_adapter.scheduler.malleable.jobmanagement`. Here is the world around them: clusters and runs, what placement
policies are shown, and the simulation, which is what job management decides about.

A processor is a number, not a placeholder, which is what makes a million jobs feasible. All that happens at one instant
happens first (ends, then local users and changes under way, then submissions); then it is decided.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from koala_adapter.errors import SimulationError
from koala_adapter.model import ClusterName, Component
from koala_adapter.scheduler.claiming.queue import LaneQueue
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.malleable.jobmanagement import DecidedClusters, JobManagement, Need
from koala_adapter.scheduler.malleable.policies import Direction, MalleableJob, RunningJobs, Step, carry_out
from koala_adapter.scheduler.parameters import Approach, Parameters
from koala_adapter.scheduler.placement.policies import WorstFit
from koala_adapter.scheduler.placement.policy import ClusterView, ComponentRequest, Placed, infeasibility
from koala_adapter.simulation.applications import JobResult, Outcome
from koala_adapter.simulation.platform import MOST_PROCESSORS
from koala_adapter.simulation.world import Engine, schedule_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from koala_adapter.scheduler.malleable.jobmanagement import ShrunkFor
    from koala_adapter.scheduler.placement.policy import PlacedComponent
    from koala_adapter.simulation.applications import Application, SimulatedJob
    from koala_adapter.simulation.platform import ClusterModel, Platform
    from koala_adapter.simulation.world import LocalUse

NEVER = float("inf")


# -- Clusters and runs ---------------------------------------------------------------------------------------
# Local users go past the scheduler. Their jobs are served first come, first served; while one of them waits, no job of
# ours that is submitted later gets a processor.


class SimulatedCluster:
    """A cluster as its batch system keeps it, in counts of processors; compared by identity."""

    __slots__ = (
        "_down_nodes",
        "_world",
        "capacity",
        "down",
        "draining",
        "index",
        "last_poll",
        "local_queue",
        "local_used",
        "managed",
        "model",
        "name",
        "processors",
        "running",
        "shrinking",
        "speed",
        "unwanted",
    )

    def __init__(self, model: ClusterModel, index: int, world: Multicluster) -> None:
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
        self.last_poll = (0, False)
        """What the information service saw last: the processors out of our reach, and whether local jobs waited, which
        would get the next processors that come free."""
        self.running: RunningJobs[RunComponent] = RunningJobs()
        """The malleable ones of the managed jobs."""
        self.unwanted: int | None = None
        """Free processors that no running job would take when they were offered last; None: something has changed."""
        self.shrinking = 0
        """Processors that jobs have promised to give back and still hold."""
        self.draining = 0
        """Processors that no job has any more, and that are not known to be idle yet."""
        self._world = world
        self._down_nodes: dict[int, int] = {}
        """Processors that are away with each node."""

    @property
    def idle(self) -> int:
        """Unused processors; negative while processors that are being released are on a failed node."""
        return self.processors - self.managed - self.local_used - self.down

    @property
    def usable(self) -> int:
        """Idle processors that a new placeholder would get at once: none while local jobs wait."""
        return 0 if self.local_queue else max(0, self.idle)

    @property
    def free(self) -> int:
        """Processors that the scheduler believes it could have now, the threshold kept."""
        free = self.processors - self.last_poll[0]
        if free > self.capacity:  # noqa: PLR1730 - min() costs more than all the rest, and this is asked all the time
            free = self.capacity
        free -= self.managed
        return free if free > 0 else 0  # noqa: FURB136 - max() costs more

    @property
    def kept(self) -> int:
        """Processors believed idle that koala leaves to local users by its threshold."""
        return self.processors - self.last_poll[0] - self.managed - self.free

    def poll(self) -> bool:
        """Update what the information service knows of this cluster; return whether more may be free than it knew."""
        before = self.last_poll
        self.last_poll = self.processors - self.managed - self.usable, bool(self.local_queue)
        return self.last_poll < before

    def view(self, free: int) -> ClusterView:
        """Return the cluster as placement policies see it, with ``free`` processors free.

        Placeholders are only sent where they start at once: what is free is all the room there is.
        """
        return ClusterView(
            name=self.name,
            capacity=self.capacity,
            room=free,
            available=free,
            load_free=free + self.kept,
            walltime_limit=None,
        )

    def start_locals(self) -> None:
        """Start local jobs that wait, in order, as far as processors are idle."""
        while self.local_queue and self.local_queue[0].processors <= self.idle:
            use = self.local_queue.popleft()
            self.local_used += use.processors
            self._world.engine.after(use.run, partial(self._local_ends, use))

    def local_job(self, use: LocalUse) -> None:
        """Put the job of a local user into the queue of the cluster."""
        self.local_queue.append(use)
        self._others_changed()

    def _local_ends(self, use: LocalUse) -> None:
        self.local_used -= use.processors
        self._others_changed()

    def node_fails(self, node: int) -> None:
        """Remove a node's processors and end the jobs on them. Jobs have processors in the order of their start."""
        size = self.model.processors_per_node
        at = node * size
        # What is draining has no job that could be ended; it is idle as soon as that is known.
        while (held := self.managed - self.draining) > 0 and (at < held or self.idle + self.draining < size):
            self._world.evict(self, min(at, held - 1))
            at = self.processors
        # A node of local users alone goes when they have gone: nothing to us.
        self._down_nodes[node] = size = min(size, max(0, self.idle + self.draining))
        self.down += size
        self._world.others_changed(self)

    def node_returns(self, node: int) -> None:
        """Give the processors of a failed node back."""
        self.down -= self._down_nodes.pop(node)
        self._others_changed()

    def _others_changed(self) -> None:
        self.start_locals()
        self._world.others_changed(self)


class RunComponent(MalleableJob):
    """The component of a malleable run that is on one cluster."""

    __slots__ = ("answers", "cluster", "pending", "run")

    def __init__(
        self, run: Run, cluster: SimulatedCluster, size: int, *, minimum: int, maximum: int, number: int, now: float
    ) -> None:
        """Begin with ``size`` processors."""
        super().__init__(minimum=minimum, maximum=maximum, size=size, started_at=now, number=number)
        self.run = run
        self.cluster = cluster
        self.answers: dict[tuple[int, int], int] = {}
        """What its application answers, by size and message: components with the same bounds may share this."""
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
    parts: list[RunComponent] = field(default_factory=list)
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
        """Add work and processor time since the last call; call it before size or speed change."""
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
        """Return the result of the job, which has ended at ``now``."""
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


# -- What placement policies are asked -----------------------------------------------------------------------

ALONE = "job"
"""Name of the component of a job that has only one."""


class Lane(NamedTuple):
    """The properties that decide whether a job can be placed: jobs with the same lane get the same placement."""

    total: int
    """Processors of its largest component."""
    placement: str
    components: tuple[Component, ...]


def lane_of(job: SimulatedJob) -> Lane:
    """Return the lane in which a job waits."""
    least = max((component.minimum for component in job.components), default=job.initial)
    return Lane(least, job.placement, job.components)


class CountedPlacement:
    """Asks placement policies about clusters given as counts of processors, and keeps their answers."""

    def __init__(self, clusters: Sequence[SimulatedCluster], policies: Policies = OWN) -> None:
        """Ask about these clusters, whose indices are their places in the sequence. ``policies``: those there are."""
        self._policies = {name: policies.placement_policy(name, Parameters()) for name in policies.placement_names}
        self._clusters = clusters
        self._worst_fit: dict[tuple[int, int], Sequence[PlacedComponent]] = {}
        """Its answers for a single component of fixed size, by the size and the index of the cluster with most free."""
        self._short = all(cluster.capacity == cluster.processors for cluster in clusters)
        """Whether worst fit takes the cluster with the most free: thresholds do not count in its measure of load."""
        self._requests: dict[Lane, tuple[Sequence[ComponentRequest], str | None]] = {}
        self.frees = [cluster.free for cluster in clusters]
        """``free`` of each cluster, noted with each change, so that the largest is found quickly."""

    def update(self, cluster: SimulatedCluster) -> None:
        """Update ``frees`` for a cluster."""
        self.frees[cluster.index] = cluster.free

    def refusal(self, job: SimulatedJob, lane: Lane) -> str | None:
        """Return why a job can never run on these clusters; None when it can."""
        size, most = sum(component.maximum for component in job.components) or job.initial, job.application.maximum
        if size > most:
            return f"asks for {size} processors, {job.application.name} runs on at most {most}"
        return self._asked(lane)[1]

    def place(self, lane: Lane) -> Sequence[PlacedComponent] | None:
        """Return the placement of the first job of a lane by its policy; None when it cannot be placed now."""
        requests, _ = self._asked(lane)
        if self._short and not lane.components and lane.placement == WorstFit.name:
            most = max(self.frees)
            if most < lane.total:
                return None
            index = self.frees.index(most)  # of all clusters, worst fit takes this one; it is asked once about each
            known = self._worst_fit.get((lane.total, index))
            if known is not None:
                return known
            best = self._clusters[index]
            result = self._policies[lane.placement].place(requests, {best.name: best.view(most)})
            if isinstance(result, Placed):
                self._worst_fit[lane.total, index] = result.components
        else:
            views = {cluster.name: cluster.view(cluster.free) for cluster in self._clusters}
            result = self._policies[lane.placement].place(requests, views)
        return result.components if isinstance(result, Placed) else None

    def needs(self, lane: Lane) -> Iterator[Need[SimulatedCluster]]:
        """Yield the processors that the first job of a lane needs, by cluster.

        A cluster where local users wait is left alone: they would get what comes free.
        """
        usable = [one for one in self._clusters if not one.shrinking and not one.last_poll[1]]
        if not lane.components:
            yield Need(lane.total, usable)
            return
        for request in self._asked(lane)[0]:
            chosen = request.component.cluster
            possible = [one for one in usable if chosen in {None, one.name} and request.never(one.view(0)) is None]
            yield Need(request.component.minimum, possible, insists=chosen is not None)

    def _asked(self, lane: Lane) -> tuple[Sequence[ComponentRequest], str | None]:
        """Return the lane's requests to its policy, and why its jobs can never be placed (None: they can)."""
        found = self._requests.get(lane)
        if found is None:
            if lane.placement not in self._policies:
                return (), f"there is no placement policy {lane.placement}; there is {', '.join(self._policies)}"
            alone = Component(name=ALONE, command=(), minimum=lane.total, maximum=lane.total)
            splits = self._policies[lane.placement].splits
            requests = [
                ComponentRequest(component=component, walltime=0, splittable=splits and component.flexible)
                for component in lane.components or (alone,)
            ]
            empty = {cluster.name: cluster.view(cluster.capacity) for cluster in self._clusters}
            found = self._requests[lane] = requests, infeasibility(requests, empty)
        return found


# -- The simulation ------------------------------------------------------------------------------------------
# Running jobs change their size at once, or with the delays of real runners, as MRunner does it (TR-0092). Growing, the
# new placeholders start while the application keeps running; when all are held it stands still for the cost of the
# change, then goes on with more. Shrinking, it stands still first, goes on with fewer, and only then are the processors
# given back. What is given back comes free when its batch system says so; until then room is being made.


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a simulation: policies, approach, delays. Times in seconds."""

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


class Multicluster(DecidedClusters[SimulatedCluster]):
    """Simulation of KOALA on several clusters. Interrupted, :attr:`outcome` has the results so far."""

    def __init__(
        self,
        platform: Platform,
        workload: Iterable[SimulatedJob],
        settings: Settings,
        *,
        on_end: Callable[[JobResult], object] | None = None,
    ) -> None:
        """Create the clusters. ``workload``: in order of submission, read lazily; ``on_end``: called with results."""
        self.outcome = Outcome()
        self.settings = settings
        self.engine = Engine()
        self.members = [SimulatedCluster(model, index, self) for index, model in enumerate(platform.clusters)]
        """All clusters of the platform."""
        self.runs: dict[int, Run] = {}
        """Jobs that run, by their numbers."""
        self.waiting: LaneQueue[Lane, tuple[float, int], int] = LaneQueue()
        """Numbers of the jobs that wait."""
        self._waiting_jobs: dict[int, tuple[SimulatedJob, Lane]] = {}
        self.placing = CountedPlacement(self.members, settings.policies)
        self._by_name = {cluster.name: cluster for cluster in self.members}
        self._malleability = settings.policies.malleability_policy(settings.malleability)
        self._management = JobManagement(self)
        self._workload = iter(workload)
        self._arriving = next(self._workload, None)
        self._on_end = on_end or self.outcome.jobs.append
        self._ends: list[tuple[float, int, int, Run]] = []
        self._to_forecast: list[Run] = []
        """Runs whose end must be forecast again."""
        self._growth_delay = settings.placeholder_delay + settings.start_delay
        self._restarts: dict[int, int] = {}
        self._answers: dict[tuple[int, int, int], dict[tuple[int, int], int]] = {}
        self._rates: dict[int, tuple[Application, Sequence[float]]] = {}
        self._recorded = (0, 0)
        """Messages to grow and to shrink that are in the timeline."""
        self._accepted = 0
        """Changes of size that applications agreed to."""
        self._undecided = False
        """Whether something has changed that has not been decided about."""
        self._changed_clusters: dict[SimulatedCluster, None] = {}
        """Clusters with processors that have not been offered to running jobs."""
        self._blocked_lanes: set[Lane] = set()
        """Lanes whose jobs cannot be placed before a cluster has more to give."""
        self._gave_nothing: set[SimulatedCluster] = set()
        """Where running jobs were asked to make room in vain, and no cluster has had more to give since."""
        self._awaited: list[SimulatedCluster] = []
        """Where room is being made for the head of the queue."""
        for cluster in self.members:
            load, failures = platform.background_of(cluster.model), platform.failures_of(cluster.model)
            schedule_background(self.engine, cluster, cluster.model, load=load, failures=failures, seed=settings.seed)
            if settings.poll_interval > 0 and (load is not None or failures is not None):
                self.engine.after(settings.poll_interval, partial(self._poll_later, cluster))

    # ---- the course of time ---------------------------------------------------------------------------------------

    def run(self, until: float = NEVER) -> Outcome:
        """Run the simulation until nothing is left or ``until`` is reached; return :attr:`outcome`."""
        engine, ends = self.engine, self._ends
        while self._arriving is not None or self.runs or self.waiting:
            while ends and (ends[0][2] != ends[0][3].version or ends[0][3].over):
                heapq.heappop(ends)  # a forecast that no longer holds
            arrival = NEVER if self._arriving is None else self._arriving.submitted_at
            end = ends[0][0] if ends else NEVER
            other = engine.next_time
            now = min(arrival, end) if other is None else min(arrival, end, other)
            if now > until or now == NEVER:
                break
            self.instant(max(now, engine.now))
        self.outcome.unfinished = len(self.runs) + len(self.waiting)
        return self.outcome

    def instant(self, now: float) -> None:
        """Process all events of the next instant, then make all decisions."""
        engine, ends = self.engine, self._ends
        engine.now = now
        while ends and ends[0][0] <= now:
            _, _, version, run = heapq.heappop(ends)
            if version == run.version and not run.over:
                self._end(run)
        if engine.waiting:
            engine.run(until=now)
        arrived = False
        while self._arriving is not None and self._arriving.submitted_at <= now:
            arrived |= self._submit(self._arriving)
            self._arriving = next(self._workload, None)
        if arrived or self._undecided:
            self._undecided = True
            self._management.decide()
            if not (self.waiting and self.making_room()):
                self._changed_clusters.clear()
        self._forecast()

    def _forecast(self) -> None:
        """Recompute the ends of the runs whose rate has changed, and record use of processors and queue length."""
        now, ends = self.engine.now, self._ends
        for run in self._to_forecast:
            run.changed = False
            if not run.over and (at := run.forecast(max(now, run.since))) < NEVER:
                heapq.heappush(ends, (at, run.job.number, run.version, run))
        self._to_forecast.clear()
        if len(ends) > 64 + 8 * len(self.runs):
            ends[:] = [entry for entry in ends if entry[2] == entry[3].version and not entry[3].over]
            heapq.heapify(ends)
        if self.settings.timeline:
            self._record(now)

    def _record(self, now: float) -> None:
        outcome = self.outcome
        managed, local = sum(c.managed for c in self.members), sum(c.local_used for c in self.members)
        if not outcome.used or outcome.used[-1][1:] != (managed, local):
            outcome.used.append((now, managed, local))
        sent = outcome.grow_messages, outcome.shrink_messages
        if sent != self._recorded:
            outcome.messages.append((now, sent[0] - self._recorded[0], sent[1] - self._recorded[1]))
            self._recorded = sent

    # ---- start and end of a job -----------------------------------------------------------------------------------

    def _submit(self, job: SimulatedJob) -> bool:
        """Add a job to the queue; return whether a decision is wanted."""
        lane = lane_of(job)
        never = self.placing.refusal(job, lane)
        if never is not None:
            self.outcome.refused.append((job, never))
            return False
        if not self.waiting and not self._changed_clusters:  # no job was before it, and nothing else happened
            placed = self.placing.place(lane)
            if placed is not None and self._start(job, placed):
                return True
        self._wait(job, lane)
        return lane not in self._blocked_lanes

    def _wait(self, job: SimulatedJob, lane: Lane) -> None:
        self.waiting.enter(job.number, lane, (job.submitted_at, job.number))
        self._waiting_jobs[job.number] = job, lane

    def _start(self, job: SimulatedJob, placed: Sequence[PlacedComponent]) -> bool:
        """Claim the processors of a placement; return False when local users hold some of them."""
        held: dict[SimulatedCluster, int] = {}
        for component in placed:
            cluster = self._by_name[component.cluster]
            held[cluster] = held.get(cluster, 0) + component.processors
        lost = [cluster for cluster, processors in held.items() if processors > cluster.usable]
        for cluster in lost:  # the failed claim tells what the information service has not seen yet
            self.outcome.failed_claims += 1
            cluster.poll()
            self.placing.update(cluster)
        if lost:
            return False
        now = self.engine.now + self.settings.placeholder_delay
        total = sum(held.values())
        run = Run(
            job=job, rates=self._rates_of(job.application), held=held, size=total, total=total, largest=total,
            started_at=now, since=now, left=job.work, speed=min(cluster.speed for cluster in held),
            restarts=self._restarts.get(job.number, 0),
        )  # fmt: skip
        self.runs[job.number] = run
        idle = self.settings.start_delay + self.settings.end_delay
        if idle > 0:
            run.standing += 1
            self.engine.after(self.settings.placeholder_delay + idle, partial(self._start_computing, run))
        for cluster, processors in held.items():
            cluster.managed += processors
            self.placing.update(cluster)
            self._changed_clusters[cluster] = None
            if job.malleable:
                self._join(run, cluster, processors)
        self._account(run)
        return True

    def _start_computing(self, run: Run) -> None:
        if not run.over:
            self._account(run)
            run.standing -= 1

    def _join(self, run: Run, cluster: SimulatedCluster, processors: int) -> None:
        """Add the part of a new run that is on ``cluster`` to those that the malleability policy may resize."""
        application = run.job.application
        part = RunComponent(
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
            self.engine.after(self.settings.placeholder_delay, partial(self._started_placeholders, part))

    def _started_placeholders(self, part: RunComponent) -> None:
        if not part.run.over:
            part.cluster.running.end(part)
            self._more_free(part.cluster)

    def _rates_of(self, application: Application) -> Sequence[float]:
        found = self._rates.get(id(application))
        if found is None:
            rates = [0.0, *(1.0 / seconds for seconds in application.times()[1:])]
            found = self._rates[id(application)] = application, rates
        return found[1]

    def _end(self, run: Run) -> None:
        run.account(self.engine.now)
        self._leave(run)
        self._on_end(run.result(self.engine.now))
        self.outcome.ended_at = self.engine.now

    def _leave(self, run: Run) -> None:
        """Release all processors of a run."""
        run.over = True
        del self.runs[run.job.number]
        for part in run.parts:
            part.cluster.running.remove(part)
            if part.pending < 0:
                part.cluster.shrinking += part.pending
        run.parts.clear()  # or run and parts would hold each other, for the collector to find
        for cluster, processors in run.held.items():
            self._drain(cluster, processors)

    def evict(self, cluster: SimulatedCluster, index: int) -> None:
        """End the run that holds a processor of a cluster, because its node failed, and submit the job again."""
        for run in self.runs.values():
            index -= run.held.get(cluster, 0)
            if index < 0:
                break
        else:
            return
        self._restarts[run.job.number] = run.restarts + 1
        self._leave(run)
        self._wait(run.job, lane_of(run.job))

    # ---- what is known to be free -----------------------------------------------------------------------------------

    def _more_free(self, cluster: SimulatedCluster) -> None:
        """Record that a cluster may have more free processors than before, so that waiting jobs are tried again."""
        self.placing.update(cluster)
        self._changed_clusters[cluster] = None
        self._blocked_lanes.clear()
        self._gave_nothing.clear()
        self._undecided = True

    def _poll(self, cluster: SimulatedCluster) -> None:
        """Let the information service see what is out of our reach."""
        if cluster.poll():
            self._more_free(cluster)
        else:
            self.placing.update(cluster)

    def _poll_later(self, cluster: SimulatedCluster) -> None:
        self._poll(cluster)
        self.engine.after(self.settings.poll_interval, partial(self._poll_later, cluster))

    def others_changed(self, cluster: SimulatedCluster) -> None:
        """Poll a cluster whose local use has changed, where polls are immediate; else the next poll sees it."""
        if self.settings.poll_interval <= 0:
            self._poll(cluster)

    def _freed(self, cluster: SimulatedCluster) -> None:
        """Start waiting local jobs on a cluster where processors became free; the rest may go to koala's jobs."""
        cluster.start_locals()
        self.others_changed(cluster)
        self._more_free(cluster)

    def _drain(self, cluster: SimulatedCluster, processors: int) -> None:
        """Release processors that no job uses any more, at once or after the release delay."""
        if self.settings.release_delay <= 0:
            cluster.managed -= processors
            self._freed(cluster)
        else:
            cluster.draining += processors
            self.engine.after(self.settings.release_delay, partial(self._drained, cluster, processors))

    def _drained(self, cluster: SimulatedCluster, processors: int) -> None:
        cluster.draining -= processors
        cluster.managed -= processors
        self._freed(cluster)

    # ---- changes of size, in the order in which a change happens --------------------------------------------------

    def ask(self, part: RunComponent, amount: int) -> int:
        """Propose a change of size to a component; return what its application accepts. Both are signed."""
        if amount > 0:
            self.outcome.grow_messages += 1
        else:
            self.outcome.shrink_messages += 1
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

    def _change(self, part: RunComponent, amount: int) -> None:
        run = part.run
        self._accepted += 1
        part.cluster.unwanted = None
        self._account(run)
        pause = run.job.application.cost.seconds(amount)
        if amount > 0:
            _hold(run, part.cluster, amount)
            if pause > 0 or self._growth_delay > 0:
                part.cluster.running.begin(part)
                part.pending = amount
                self.engine.after(self._growth_delay, partial(self._stand_still, part, pause))
                return
        elif pause > 0:
            part.cluster.running.begin(part)
            part.pending = amount
            part.cluster.shrinking -= amount
            run.standing += 1
            self.engine.after(pause, partial(self._finish_shrinking, part))
            return
        else:
            self._give_up(part, amount)
        run.size += amount

    def _stand_still(self, part: RunComponent, pause: float) -> None:
        if not part.run.over:
            self._account(part.run)
            part.run.standing += 1
            self.engine.after(pause, partial(self._continue, part))

    def _finish_shrinking(self, part: RunComponent) -> None:
        if not part.run.over:
            part.cluster.shrinking += part.pending
            self._give_up(part, part.pending)
            self._continue(part)

    def _give_up(self, part: RunComponent, amount: int) -> None:
        """Release ``amount`` processors of a run."""
        _hold(part.run, part.cluster, amount)
        if self.settings.release_delay > 0:
            part.cluster.managed -= amount
            self._drain(part.cluster, -amount)

    def _continue(self, part: RunComponent) -> None:
        """Let a component compute again, with its new size."""
        if not part.run.over:
            self._account(part.run)
            part.run.standing -= 1
            part.run.size += part.pending
            part.pending = 0
            part.cluster.running.end(part)
            self._freed(part.cluster)

    def _account(self, run: Run) -> None:
        """Account for a run before its size or speed changes, and have its end computed again."""
        if not run.changed:
            run.changed = True
            self._to_forecast.append(run)
            run.account(self.engine.now)

    # ---- what job management asks ---------------------------------------------------------------------------------

    @property
    def approach(self) -> Approach:
        return self.settings.approach

    def decision_wanted(self) -> bool:
        wanted, self._undecided = self._undecided, False
        return wanted

    def clusters(self) -> Sequence[SimulatedCluster]:
        return list(self._changed_clusters)

    def running(self, cluster: SimulatedCluster) -> RunningJobs[RunComponent]:
        return cluster.running

    def free(self, cluster: SimulatedCluster) -> int:
        return cluster.free

    def room(self, cluster: SimulatedCluster) -> int:
        return cluster.free + cluster.draining

    def ending(self, cluster: SimulatedCluster) -> int:
        return cluster.shrinking + cluster.draining

    def paused(self, cluster: SimulatedCluster, direction: Direction) -> bool:
        """Return whether shrinking on a cluster freed nothing; true until processors become free there."""
        return direction is Direction.SHRINK and cluster in self._gave_nothing

    def rebalances(self, cluster: SimulatedCluster) -> bool:  # noqa: ARG002 - all clusters have one policy
        return self._malleability.rebalances

    def jobs_wait(self) -> bool:
        return len(self.waiting) > 0

    def making_room(self) -> bool:
        """Return whether processors that jobs gave up for the head of the queue are not free yet."""
        self._awaited = [cluster for cluster in self._awaited if cluster.shrinking or cluster.draining]
        return bool(self._awaited)

    def needs_of_head(self) -> Iterable[Need[SimulatedCluster]]:
        head = self.waiting.first(1)
        return self.placing.needs(self._waiting_jobs[head[0]][1]) if head else ()

    # ---- what it decides ------------------------------------------------------------------------------------------

    def continue_changes(self, cluster: SimulatedCluster) -> None:
        """Do nothing: steps are over at once."""

    def scan(self, kept: Sequence[SimulatedCluster]) -> None:  # noqa: ARG002 - the running have taken what they want
        """Start waiting jobs, one lane after another."""
        blocked, place = self._blocked_lanes, self.placing.place
        for _, number in self.waiting.scan(lambda lane: lane not in blocked, most=MOST_PROCESSORS):
            job, lane = self._waiting_jobs[number]
            while (placed := place(lane)) is not None:
                if self._start(job, placed):
                    self.waiting.remove(number)
                    del self._waiting_jobs[number]
                    break
            else:
                blocked.add(lane)

    def keep_room(self, needs: Mapping[ClusterName, int]) -> None:
        """Do nothing: the queue is scanned as soon as something is free."""

    def grow(self, cluster: SimulatedCluster, value: int, *, thorough: bool) -> bool:
        """Carry out one growth step; return whether another one may follow."""
        step = Step(direction=Direction.GROW, remaining=value, thorough=thorough)
        before = self._accepted
        carry_out(self._malleability, cluster.running, step, self.ask)
        self.placing.update(cluster)
        if self._accepted > before and not self._malleability.rebalances:
            return True
        cluster.unwanted = cluster.free
        return False

    def shrink(self, cluster: SimulatedCluster, value: int, shrunk_for: ShrunkFor) -> None:  # noqa: ARG002 - for the head
        """Carry out one shrink step, and give what it frees to local users and waiting jobs."""
        before, draining = cluster.free, cluster.draining
        step = Step(direction=Direction.SHRINK, remaining=value)
        carry_out(self._malleability, cluster.running, step, self.ask)
        under_way = cluster.shrinking or cluster.draining > draining
        if under_way:
            self._awaited.append(cluster)
        if cluster.free > before:  # some may have given theirs up at once, others stand still first
            self._freed(cluster)
        elif not under_way:
            self._gave_nothing.add(cluster)
            self._undecided = True


def _hold(run: Run, cluster: SimulatedCluster, amount: int) -> None:
    run.held[cluster] += amount
    run.total += amount
    cluster.managed += amount
    if run.total > run.largest:  # noqa: PLR1730 - max() costs more than all the rest
        run.largest = run.total


def simulate(platform: Platform, workload: Iterable[SimulatedJob], settings: Settings) -> Outcome:
    """Run a simulation to its end and return its outcome."""
    return Multicluster(platform, workload, settings).run()

# SPDX-License-Identifier: Apache-2.0
"""Clusters in counts of processors, the jobs that run on them, and placement on them.

They are what :mod:`koala_adapter.simulation.multicluster` simulates. A processor is a number, not a placeholder.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from koala_adapter.model import ClusterName, Component
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.malleable.jobmanagement import Need
from koala_adapter.scheduler.malleable.policies import MalleableJob, RunningJobs
from koala_adapter.scheduler.parameters import Parameters
from koala_adapter.scheduler.placement.policies import WorstFit
from koala_adapter.scheduler.placement.policy import ClusterView, ComponentRequest, Placed, infeasibility
from koala_adapter.simulation.applications import JobResult, SimulatedJob

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from koala_adapter.scheduler.placement.policy import PlacedComponent
    from koala_adapter.simulation.platform import ClusterModel
    from koala_adapter.simulation.world import Engine, LocalUse

NEVER = float("inf")


# -- Clusters and runs ---------------------------------------------------------------------------------------
# Local users go past the scheduler. Their jobs are served first come, first served; while one of them waits, no job of
# ours that is submitted later gets a processor.


class World(Protocol):
    """The simulation, as its clusters need it."""

    engine: Engine

    def evict(self, cluster: SimulatedCluster, index: int, /) -> None:
        """End the run that holds a processor of a cluster, whose node has failed."""

    def others_changed(self, cluster: SimulatedCluster, /) -> None:
        """Poll a cluster whose local use has changed, where polls are immediate."""


class SimulatedCluster:
    """A cluster as its batch system keeps it, in counts of processors; compared by identity."""

    def __init__(self, model: ClusterModel, index: int, world: World) -> None:
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


def hold(run: Run, cluster: SimulatedCluster, amount: int) -> None:
    """Give a run ``amount`` more processors of a cluster; negative: take them."""
    run.held[cluster] += amount
    run.total += amount
    cluster.managed += amount
    if run.total > run.largest:  # noqa: PLR1730 - max() costs more than all the rest
        run.largest = run.total


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
        self._policies = {name: policies.placement_policy(name, Parameters()) for name in policies.placement}
        self._clusters = clusters
        self._worst_fit: dict[tuple[int, int], Sequence[PlacedComponent]] = {}
        """Its answers for a single component of fixed size, by the size and the index of the cluster with most free."""
        self._short = all(cluster.capacity == cluster.processors for cluster in clusters)
        """Whether worst fit takes the cluster with the most free: thresholds do not count in its measure of load."""
        self._requests: dict[Lane, tuple[Sequence[ComponentRequest], str | None]] = {}

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
            frees = [cluster.free for cluster in self._clusters]
            most = max(frees)
            if most < lane.total:
                return None
            index = frees.index(most)  # of all clusters, worst fit takes this one; it is asked once about each
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

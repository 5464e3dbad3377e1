# SPDX-License-Identifier: Apache-2.0
"""A simulated cluster as a batch system keeps it: the runs on it, who has how many processors, local users, failures.

Local users go past the scheduler. Their jobs are served first come, first served; while one of them waits, nothing of
ours that is submitted later gets a processor.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from koala_adapter.scheduler.malleable.runningjobs import MalleableJob, RunningJobs
from koala_adapter.simulation.simulated_jobs import JobResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from koala_adapter.model import ClusterName
    from koala_adapter.simulation.background_load import LocalUse, Outage
    from koala_adapter.simulation.engine import Engine
    from koala_adapter.simulation.platform import ClusterModel
    from koala_adapter.simulation.simulated_jobs import SimulatedJob

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
        """Processors that nobody uses."""
        return self.processors - self.managed - self.local_used - self.down

    @property
    def usable(self) -> int:
        """Idle processors that a new placeholder of ours would get at once."""
        return 0 if self.local_queue else self.idle

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
    is on the cluster, chosen by a number from 0 to ``managed`` - 1.
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
        while cluster.managed and (at < cluster.managed or cluster.idle < size):
            self._evict(cluster, min(at, cluster.managed - 1))
            at = cluster.processors
        size = min(size, max(0, cluster.idle))  # a node of local users alone goes when they have gone: nothing to us
        cluster.down += size
        self._changed(cluster)
        self._engine.at(outage.ends_at, lambda: self._repaired(size))
        self.failures(failures)

    def _repaired(self, processors: int) -> None:
        self._cluster.down -= processors
        self.released()
        self._changed(self._cluster)

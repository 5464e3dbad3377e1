# SPDX-License-Identifier: Apache-2.0
"""The order of KOALA's decisions about running and waiting jobs (CoreGRID TR-0092), on counts of processors.

One code decides in the scheduler, where a processor is a placeholder and applications answer later, and in the
simulator of a million jobs, where it is a number and they answer at once. Whenever something has changed:

1. What is under way on a cluster goes on. PRA then offers what is free there to the running jobs.
2. The placement queue is scanned from head to tail.
3. PWA makes room by shrinking: for placed jobs whose processors others have taken, for jobs of others that wait in a
   batch system's own queue, then for the head of the queue. As long as that frees something, all of this is repeated.
4. Unless room is being made for the head, what is still free is offered to running jobs; but not where they have just
   given up less than the head needs, or they would take back what the next try needs again.

The interface of the counts and the decisions come before their implementation by the scheduler's records.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from koala_adapter.scheduler.claiming.claims import scan_queue
from koala_adapter.scheduler.claiming.waiting import waits_for_looks
from koala_adapter.scheduler.context import Context, closed_reason
from koala_adapter.scheduler.malleable import steps
from koala_adapter.scheduler.malleable.changes import Changes
from koala_adapter.scheduler.malleable.policies import Direction, RunningJobs
from koala_adapter.scheduler.malleable.requests import keep_promises
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.scheduler.sizechange import ChangePhase
from koala_adapter.slots import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.clusters import ClusterRecord
    from koala_adapter.scheduler.records import JobRecord


# -- Where to shrink for the head of the queue ---------------------------------------------------------------
# PRA and PWA (CoreGRID TR-0092) differ in which jobs come first when processors are free, the running or the waiting:
#
# - PRA, precedence to running applications: grow the running malleable jobs of the cluster until none takes more (a
#   thorough step), then scan the placement queue. No job is ever shrunk for a waiting job.
# - PWA, precedence to waiting applications: scan the queue first. When its head cannot be placed, shrink running jobs
#   of the cluster that `cluster_to_shrink` names, by the number it gives; when it names none, grow the running jobs
#   instead.

N = TypeVar("N")


class Shrinkable(NamedTuple):
    """A cluster on which room could be made."""

    free: int
    """Processors that a new job would get at once (idle, and within the threshold)."""
    spare: int
    """Processors its running malleable jobs could give up (:attr:`RunningJobs.spare`)."""


def cluster_to_shrink(need: int, clusters: Iterable[tuple[N, Shrinkable]]) -> tuple[N, int] | None:
    """Return the cluster to shrink, and by how many, for a component of ``need`` processors; None: impossible.

    As with worst fit, it is the one with the most free processors of those where it would suffice: there the fewest
    have to be taken from others. ``clusters``: those that may hold the component and on which no room is being made.
    """
    best: tuple[int, int] | None = None
    found: N | None = None
    for name, (free, spare) in clusters:
        if free + spare >= need and (best is None or (free, spare) > best):
            best, found = (free, spare), name
    return None if best is None or found is None else (found, max(0, need - best[0]))


# -- Growths given up for jobs of others in the same queue ---------------------------------------------------
# Stubs of such growths would stand in the way there, and an application whose stubs wait is in the middle of a change
# and cannot be shrunk.


def yield_to_others(context: Context, cluster: ClusterRecord) -> None:
    """Withdraw growths that wait for processors which others lack, unless their applications insist."""
    if not cluster.gathering or not steps.others_lack(context, cluster):
        return
    for member in list(context.roster.on(cluster.name)):
        record = context.state.jobs[member.job_id]
        found = record.part_on(member.claim)
        if found is None or found[0].phase is not ChangePhase.GATHERING or found[0].shrunk_others:
            continue
        stubs = (context.state.placeholders.get(id_) for id_ in found[1].stubs)
        if any(stub is not None and stub.waiting for stub in stubs):
            Changes(context, record).give_up(found[0], "jobs of others wait for them")


# -- The decisions, on counts of processors ------------------------------------------------------------------


class CountedCluster(Protocol):
    """A cluster in counts of processors."""

    unwanted: int | None
    """Free processors that no running job would take when they were offered last; None: something has changed since."""

    @property
    def name(self) -> ClusterName:
        """Its name, unique among the clusters."""


C = TypeVar("C", bound=CountedCluster)


class Need(NamedTuple, Generic[C]):
    """Requirement of a waiting job's component."""

    minimum: int
    clusters: Sequence[C]
    """Those that could hold it."""
    insists: bool = False
    """Whether the job names the cluster."""


class ShrunkFor(Enum):
    """The jobs for which running jobs are shrunk."""

    HEAD = "head"
    """For the head of the placement queue."""
    PLACED = "placed"
    """For a job of ours that was placed and waits in the queue of a batch system."""
    OTHERS = "others"
    """For jobs of others that wait there."""


class DecidedClusters(Protocol[C]):
    """Interface of job management to clusters, running and waiting jobs at one time.

    Methods that answer here by themselves are about what cannot happen where applications answer at once.
    """

    @property
    def approach(self) -> Approach:
        """Job management approach."""

    def decision_wanted(self) -> bool:
        """Tell whether something has changed since this was asked last."""

    def clusters(self) -> Sequence[C]:
        """Return the clusters whose running jobs may want to change."""

    def continue_changes(self, cluster: C) -> None:
        """Go on with what is under way on a cluster."""

    def scan(self, kept: Sequence[C]) -> None:
        """Place waiting jobs from head to tail, not on processors of ``kept`` that running jobs have not declined."""

    def running(self, cluster: C) -> RunningJobs[Any]:
        """Return the malleable jobs that run on a cluster."""

    def free(self, cluster: C) -> int:
        """Return the processors that may be offered to running jobs."""

    def room(self, cluster: C) -> int:
        """Return the processors a new job may count on, those on their way out included; negative: others wait."""

    def ending(self, cluster: C) -> int:
        """Return the processors that were given up and are not free yet."""

    def just_seen(self, cluster: C) -> bool:  # noqa: ARG002 - for those that override it
        """Tell whether the cluster has just been polled. Then nothing is waited for, or it might be for ever."""
        return False

    def in_reach(self, cluster: C) -> bool:  # noqa: ARG002 - for those that override it
        """Tell whether anything can be submitted to a cluster at present."""
        return True

    def changing(self, cluster: C) -> bool:  # noqa: ARG002 - for those that override it
        """Tell whether running jobs of a cluster are being asked to change."""
        return False

    def promised(self, cluster: C) -> bool:  # noqa: ARG002 - for those that override it
        """Tell whether running jobs have been promised what comes free on a cluster."""
        return False

    def paused(self, cluster: C, direction: Direction) -> bool:
        """Return whether a step in a direction is blocked for a while after one without result."""

    def rebalances(self, cluster: C) -> bool:
        """Return whether the malleability policy of a cluster changes sizes even when nothing is free."""

    def short_of_processors(self) -> Iterable[tuple[C, int, ShrunkFor]]:
        """Yield clusters where waiting jobs lack processors, with how many and whose jobs."""
        return ()

    def jobs_wait(self) -> bool:
        """Tell whether jobs wait in the placement queue for which running ones could be shrunk."""

    def making_room(self) -> bool:
        """Tell whether running jobs are being shrunk for waiting ones."""

    def needs_of_head(self) -> Iterable[Need[C]]:
        """Yield what the head of the queue needs, component by component."""

    def keep_room(self, needs: Mapping[ClusterName, int]) -> None:
        """Reserve what the head of the queue needs against later jobs."""

    def grow(self, cluster: C, value: int, *, thorough: bool) -> bool:
        """Start a step that offers processors; tell whether it is over already and more might be taken."""

    def shrink(self, cluster: C, value: int, shrunk_for: ShrunkFor) -> None:
        """Start a step that frees processors."""


class JobManagement(Generic[C]):
    """Decisions of job management, for any clusters of the interface."""

    def __init__(self, sites: DecidedClusters[C]) -> None:
        """``sites``: clusters about which is decided."""
        self._sites = sites

    def decide(self) -> None:
        """Decide until nothing changes at this time."""
        while self._sites.decision_wanted():
            self._decide_once()

    def _decide_once(self) -> None:
        sites = self._sites
        approach = sites.approach
        first = approach.running_first
        kept: list[C] = []
        for cluster in sites.clusters():
            sites.continue_changes(cluster)
            if first and (self._offer(cluster, thorough=True) or sites.changing(cluster)):
                kept.append(cluster)
        sites.scan(kept)
        if approach.shrinks_for_waiting:
            self._shrink_for_queued()
            if self._make_room_for_head():
                return
        if approach is Approach.NONE:
            return
        for cluster in sites.clusters():
            if first or not (sites.paused(cluster, Direction.SHRINK) and sites.jobs_wait()):
                self._offer(cluster, thorough=first)

    # ---- growing --------------------------------------------------------------------------------------------------

    def _offer(self, cluster: C, *, thorough: bool) -> bool:
        """Offer the free processors of a cluster to its running jobs, unless all jobs declined them a moment ago.

        Return True when that is done or will be, as soon as what is on its way out is free: applications can make more
        of several processors at once.
        """
        sites = self._sites
        if not sites.running(cluster).growth or sites.promised(cluster) or not self._may(cluster, Direction.GROW):
            return False
        if sites.ending(cluster) and not sites.just_seen(cluster):
            return True
        offered = False
        while (value := self._worth_offering(cluster)) is not None:
            offered = True
            if not sites.grow(cluster, value, thorough=thorough):
                break
        return offered

    def _worth_offering(self, cluster: C) -> int | None:
        """Return how many processors running jobs may accept; None: none, as they declined the same before."""
        sites = self._sites
        value = sites.free(cluster)
        if not sites.running(cluster).growth or (value == 0 and not sites.rebalances(cluster)):
            return None
        if cluster.unwanted is not None and value <= cluster.unwanted:
            cluster.unwanted = value  # when more comes free than this, it is offered again
            return None
        return value

    def _may(self, cluster: C, direction: Direction) -> bool:
        """Return whether a step may be started on a cluster."""
        sites = self._sites
        return not sites.changing(cluster) and not sites.paused(cluster, direction) and sites.in_reach(cluster)

    # ---- shrinking ------------------------------------------------------------------------------------------------

    def _shrink_for_queued(self) -> None:
        """Shrink for jobs that wait in the queue of a batch system, if that is enough for them."""
        sites = self._sites
        for cluster, lacking, shrunk_for in sites.short_of_processors():
            if 0 < lacking <= sites.running(cluster).spare and self._may(cluster, Direction.SHRINK):
                sites.shrink(cluster, lacking, shrunk_for)

    def _make_room_for_head(self) -> bool:
        """Shrink for the head of the queue where possible; return whether room is being made."""
        sites = self._sites
        if not sites.jobs_wait():
            return False
        if sites.making_room():
            return True
        plan = self._plan()
        if plan is None:
            return False
        sites.keep_room({cluster.name: need for cluster, need, _ in plan})
        for cluster, _, value in plan:
            if value > 0:
                sites.shrink(cluster, value, ShrunkFor.HEAD)
        return True

    def _plan(self) -> list[tuple[C, int, int]] | None:
        """Return the processors that the head needs by cluster, and how many to free there; None: impossible.

        Processors on their way out count as free. None, too, when nothing would have to be shrunk and nothing is on its
        way out: then it is not running jobs that are in the way.
        """
        sites = self._sites
        rooms: dict[ClusterName, Shrinkable] = {}
        chosen: dict[ClusterName, tuple[C, int]] = {}
        hardest_first = sorted(sites.needs_of_head(), key=lambda need: (not need.insists, -need.minimum))
        for minimum, clusters, _ in hardest_first:
            for cluster in clusters:
                if cluster.name not in rooms:
                    spare = sites.running(cluster).spare if self._may(cluster, Direction.SHRINK) else 0
                    rooms[cluster.name] = Shrinkable(sites.room(cluster), spare)
            found = cluster_to_shrink(minimum, [(cluster, rooms[cluster.name]) for cluster in clusters])
            if found is None:
                return None
            cluster, room = found[0], rooms[found[0].name]
            rooms[cluster.name] = room._replace(free=room.free - minimum)
            chosen[cluster.name] = cluster, minimum + chosen.get(cluster.name, (cluster, 0))[1]
        plan = [(cluster, need, max(0, -rooms[cluster.name].free)) for cluster, need in chosen.values()]
        return plan if any(value or sites.ending(cluster) for cluster, _, value in plan) else None


# -- The counts of the scheduler's records -------------------------------------------------------------------
# What applies to the head of the placement queue also applies to a placed job that waits in the queue of a batch system
# whose processors others have taken, and to a job of others that waits there: koala's jobs on that cluster are shrunk
# for it.


class SchedulerClusters:
    """Clusters of the scheduler's state, for job management."""

    def __init__(self, context: Context) -> None:
        """``context``: state and event, valid while one event is handled."""
        self._context = context
        self._state = context.state

    # ---- how far things are ---------------------------------------------------------------------------------------

    @property
    def approach(self) -> Approach:
        """Job management approach of the site."""
        return self._state.parameters.approach

    def decision_wanted(self) -> bool:
        """Tell whether something has changed that may let a job be placed or changed."""
        wanted = self._context.scan_wanted
        self._context.scan_wanted = False
        return wanted

    def clusters(self) -> Sequence[ClusterRecord]:
        """Return the clusters on which malleable jobs run, in the order of their names."""
        return [self._state.clusters[name] for name in self._context.roster.clusters()]

    def running(self, cluster: ClusterRecord) -> RunningJobs[Any]:
        """Return the components of running malleable jobs."""
        return self._context.roster.on(cluster.name)

    def free(self, cluster: ClusterRecord) -> int:
        """Return what a new claim would get at once, as far as the last poll tells, and no other job waits for."""
        return steps.free_for_growing(self._context, cluster)

    def room(self, cluster: ClusterRecord) -> int:
        """Return what a new job may count on; nothing at all where nothing may be submitted."""
        if not self.in_reach(cluster):
            return -cluster.capacity
        return min(cluster.capacity - cluster.managed - cluster.offered, cluster.load_free) + cluster.ending

    def ending(self, cluster: ClusterRecord) -> int:
        """Return how many placeholders are on their way out."""
        return cluster.ending

    def just_seen(self, cluster: ClusterRecord) -> bool:
        """Tell whether the event is a poll of the cluster."""
        return self._context.polled == cluster.name

    def in_reach(self, cluster: ClusterRecord) -> bool:
        """Return whether a cluster is open."""
        return closed_reason(cluster, self._context.now) is None

    def changing(self, cluster: ClusterRecord) -> bool:
        """Tell whether a step is under way, whose answers have not all come in."""
        return cluster.step is not None

    def promised(self, cluster: ClusterRecord) -> bool:
        """Tell whether applications insist on more."""
        return bool(cluster.promises)

    def paused(self, cluster: ClusterRecord, direction: Direction) -> bool:
        """Tell whether a pause is not over: after a fruitless step, after lost processors, after jobs were balanced."""
        now = self._context.now
        if direction is Direction.SHRINK:
            paused = cluster.no_shrink_before is not None and now < cluster.no_shrink_before
            return paused or steps.shrinking_is_fruitless(self._context, cluster)
        if cluster.no_growth_before is not None and now < cluster.no_growth_before:
            return True
        if cluster.balanced_until is None or len(self.running(cluster)) != cluster.balanced:
            return False
        return now < cluster.balanced_until

    def rebalances(self, cluster: ClusterRecord) -> bool:
        """Return whether the malleability policy of a cluster changes sizes even when nothing is free."""
        return steps.policy_of(self._context, cluster).rebalances

    def jobs_wait(self) -> bool:
        """Tell whether there is a head of the queue, and there are jobs that could be shrunk for it.

        None is while the head may find idle processors on a cluster that has not been polled yet.
        """
        if not len(self._context.queue) or not len(self._context.roster):
            return False
        return not waits_for_looks(self._context, self._context.requests(self._head()))

    def making_room(self) -> bool:
        """Tell whether jobs are being shrunk on any cluster."""
        under_way = (cluster.step for cluster in self.clusters())
        return any(one is not None and one.step.direction is Direction.SHRINK for one in under_way)

    def short_of_processors(self) -> Iterator[tuple[ClusterRecord, int, ShrunkFor]]:
        """Yield clusters with jobs in the queue of the batch system that have no idle processors, ours first."""
        for cluster in self.clusters():
            # One that was started on what others of ours have left may be listed as waiting still: the next look tells.
            if cluster.queued and not cluster.ours_left:
                lacking = -(cluster.load_free + cluster.ending) - cluster.gathering
                yield cluster, min(lacking, cluster.processors_queued), ShrunkFor.PLACED
            yield cluster, steps.lacking_for_others(self._context, cluster), ShrunkFor.OTHERS

    def needs_of_head(self) -> Iterator[Need[ClusterRecord]]:
        """Yield the needs of its components."""
        views, clusters = self._context.views(), self._state.clusters
        for request in self._context.requests(self._head()):
            minimum, chosen = request.component.minimum, request.component.cluster
            seen = views.of(request.component)
            names = [name for name in seen if chosen in {None, name} and request.never(seen[name]) is None]
            # How many further placeholders may wait in a cluster's queue is not changed by shrinking.
            holding = [
                one
                for one in map(clusters.__getitem__, names)
                if minimum <= one.parameters.placeholders_in_flight - one.queued
            ]
            each = max((seen[one.name].slot_processors for one in holding), default=1)
            yield Need(minimum * each, holding, insists=chosen is not None)

    # ---- what is decided ------------------------------------------------------------------------------------------

    def continue_changes(self, cluster: ClusterRecord) -> None:
        """Keep promises as far as possible, let others go first, and send the next messages of a step."""
        keep_promises(self._context, cluster)
        yield_to_others(self._context, cluster)
        steps.continue_step(self._context, cluster)

    def scan(self, kept: Sequence[ClusterRecord]) -> None:
        """Scan the placement queue, with the room of ``kept`` left out."""
        rooms = [(cluster, max(0, cluster.room)) for cluster in kept]
        for cluster, room in rooms:
            self._context.ledger.reserve(cluster, room)
        scan_queue(self._context)
        for cluster, room in rooms:
            self._context.ledger.reserve(cluster, -room)

    def keep_room(self, needs: Mapping[ClusterName, int]) -> None:
        """Guard the head, unless another job is guarded."""
        head = self._head().job.id
        if self._state.guarded in {None, head}:
            self._state.guarded, self._state.kept_room = head, dict(needs)

    def grow(self, cluster: ClusterRecord, value: int, *, thorough: bool) -> bool:
        """Send the first offers. Their answers come later."""
        given = steps.in_one_step(self._context, value)
        steps.start_step(
            self._context,
            cluster,
            Direction.GROW,
            given,
            reason="processors are free",
            thorough=thorough,
            withheld=value - given,
        )
        return False

    def shrink(self, cluster: ClusterRecord, value: int, shrunk_for: ShrunkFor) -> None:
        """Send the first requests."""
        value = steps.in_one_step(self._context, value)
        reason = self._reason(cluster, value, shrunk_for)
        steps.start_step(self._context, cluster, Direction.SHRINK, value, reason=reason)

    def _reason(self, cluster: ClusterRecord, value: int, shrunk_for: ShrunkFor) -> str:
        match shrunk_for:
            case ShrunkFor.HEAD:
                return f"room for job {self._head().job.id}"
            case ShrunkFor.PLACED:
                return f"{counted(value, 'processor')} for a job of ours that waits in {cluster.name}'s queue"
        waits = "a job that waits" if len(cluster.others_waiting) == 1 else "jobs that wait"
        return f"{counted(value, 'processor')} for {waits} in {cluster.name}'s queue"

    def _head(self) -> JobRecord:
        return self._state.jobs[self._context.queue.first(1)[0]]

# SPDX-License-Identifier: Apache-2.0
"""The order of KOALA's decisions about running and waiting jobs (CoreGRID TR-0092), on counts of processors.

One code decides in the scheduler, where a processor is a placeholder and applications answer later, and in the
simulator of a million jobs, where it is a number and they answer at once. Whenever something has changed:

1. What is under way on a cluster goes on. PRA then offers what is free there to the running jobs.
2. The placement queue is scanned from head to tail.
3. PWA makes room by shrinking: for placed jobs whose processors others have taken, for jobs of others that wait in a
   batch system's own queue, then for the head of the queue. As long as that frees something, all of this is done again.
4. Unless room is being made for the head, what is still free is offered to running jobs; but not where they have just
   given up less than the head needs, or they would take back what the next try needs again.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from koala_adapter.scheduler.malleable.approaches import Approach, Shrinkable, cluster_to_shrink
from koala_adapter.scheduler.malleable.policies import Direction

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.malleable.runningjobs import RunningJobs


class CountedCluster(Protocol):
    """A cluster in counts of processors."""

    unwanted: int | None
    """Free processors that no running job would take when they were offered last; None: something has changed since."""

    @property
    def name(self) -> ClusterName:
        """Its name, unique among the clusters."""


C = TypeVar("C", bound=CountedCluster)


class Need(NamedTuple, Generic[C]):
    """What a component of a waiting job needs."""

    minimum: int
    clusters: Sequence[C]
    """Those that could hold it."""
    insists: bool = False
    """Whether the job names the cluster."""


class ShrunkFor(Enum):
    """For whom running jobs are shrunk."""

    HEAD = "head"
    """For the head of the placement queue."""
    PLACED = "placed"
    """For a job of ours that was placed and waits in the queue of a batch system."""
    OTHERS = "others"
    """For jobs of others that wait there."""


class CountedSites(Protocol[C]):
    """The clusters at one point in time, with what runs on them and what waits for them."""

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

    def just_seen(self, cluster: C) -> bool:
        """Tell whether the cluster has just been polled. Then nothing is waited for, or it might be for ever."""

    def in_reach(self, cluster: C) -> bool:
        """Tell whether anything can be submitted to a cluster at present."""

    def changing(self, cluster: C) -> bool:
        """Tell whether running jobs of a cluster are being asked to change."""

    def promised(self, cluster: C) -> bool:
        """Tell whether running jobs have been promised what comes free on a cluster."""

    def paused(self, cluster: C, direction: Direction) -> bool:
        """Tell whether the last step in a direction was in vain, and it is too early for another."""

    def rebalances(self, cluster: C) -> bool:
        """Tell whether its malleability policy changes shares also where nothing is free."""

    def short_of_processors(self) -> Iterable[tuple[C, int, ShrunkFor]]:
        """Yield clusters whose batch system makes jobs wait, how many processors these lack, and whose they are."""

    def jobs_wait(self) -> bool:
        """Tell whether jobs wait in the placement queue for which running ones could be shrunk."""

    def making_room(self) -> bool:
        """Tell whether running jobs are being shrunk for waiting ones."""

    def needs_of_head(self) -> Iterable[Need[C]]:
        """Yield what the head of the queue needs, component by component."""

    def keep_room(self, needs: Mapping[ClusterName, int]) -> None:
        """Keep what the head of the queue needs on each cluster, from now on, from those behind it."""

    def grow(self, cluster: C, value: int, *, thorough: bool) -> bool:
        """Start a step that offers processors; tell whether it is over already and more might be taken."""

    def shrink(self, cluster: C, value: int, shrunk_for: ShrunkFor) -> None:
        """Start a step that frees processors."""


class JobManagement(Generic[C]):
    """Takes the decisions, for sites that know the counts and carry decisions out."""

    def __init__(self, sites: CountedSites[C]) -> None:
        """Decide for these sites."""
        self._sites = sites

    def decide(self) -> None:
        """Decide until nothing changes any more at this point in time."""
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
        """Offer the free processors of a cluster to its running jobs, unless nobody wanted them a moment ago.

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
        """Return how many processors running jobs may want; None: none. What all declined is not offered again."""
        sites = self._sites
        value = sites.free(cluster)
        if not sites.running(cluster).growth or (value == 0 and not sites.rebalances(cluster)):
            return None
        if cluster.unwanted is not None and value <= cluster.unwanted:
            cluster.unwanted = value  # when more comes free than this, it is offered again
            return None
        return value

    def _may(self, cluster: C, direction: Direction) -> bool:
        """Tell whether a step may be started on a cluster."""
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
        """Tell whether room is being made for the head of the queue; see to it that it is, if possible."""
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
        """Return where the head needs how much, and by how much to shrink there; None: impossible.

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

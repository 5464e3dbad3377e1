# SPDX-License-Identifier: Apache-2.0
"""The clusters of the count-level simulator as :mod:`koala_adapter.scheduler.malleable.jobmanagement` sees them.

Applications answer at once here. What an application gives up is free at once as well, unless it has to stand still for
its change; until then room is being made on that cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.scheduler.malleable.policies import Direction, MalleabilityPolicy, Step, carry_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.malleable.approaches import Approach
    from koala_adapter.scheduler.malleable.jobmanagement import Need, ShrunkFor
    from koala_adapter.scheduler.malleable.runningjobs import RunningJobs
    from koala_adapter.scheduler.placement.policy import PlacedComponent
    from koala_adapter.simulation.counted_placement import CountedPlacement
    from koala_adapter.simulation.counted_resizing import CountedResizing
    from koala_adapter.simulation.simulated_cluster import Part, SimulatedCluster
    from koala_adapter.simulation.simulated_jobs import SimulatedJob
    from koala_adapter.simulation.waiting_line import Lane, WaitingLine


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
        """See :class:`CountedSites`, also for all that follows."""
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

# SPDX-License-Identifier: Apache-2.0
"""The clusters as :mod:`~koala_adapter.scheduler.malleable.jobmanagement` decides about them, made from the records.

What is true of the head of the placement queue is true of a job that was placed and waits in the queue of a batch
system whose processors others have taken, and of a job of others that waits there: jobs of ours on that cluster are
shrunk for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from koala_adapter.scheduler.claiming.claims import scan_queue
from koala_adapter.scheduler.claiming.firstlook import waits_for_looks
from koala_adapter.scheduler.context import closed_reason
from koala_adapter.scheduler.malleable.growthrequests import keep_promises
from koala_adapter.scheduler.malleable.hysteresis import asked_in_vain, in_one_step
from koala_adapter.scheduler.malleable.jobmanagement import Need, ShrunkFor
from koala_adapter.scheduler.malleable.others import free_for_growing, lacking_for_others
from koala_adapter.scheduler.malleable.policies import Direction
from koala_adapter.scheduler.malleable.steps import continue_step, policy_of, start_step
from koala_adapter.scheduler.malleable.yielding import yield_to_others

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.clusterrecord import ClusterRecord
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.malleable.approaches import Approach
    from koala_adapter.scheduler.malleable.runningjobs import RunningJobs
    from koala_adapter.scheduler.records import JobRecord


class RecordedSites:
    """The clusters of the scheduler's state, while one event is handled."""

    def __init__(self, context: Context) -> None:
        """Look at the state as it is while this is used."""
        self._context = context
        self._state = context.state

    # ---- how far things are ---------------------------------------------------------------------------------------

    @property
    def approach(self) -> Approach:
        """See :class:`CountedSites`, also for all that follows."""
        return self._state.parameters.approach

    def decision_wanted(self) -> bool:
        """Tell whether something has changed that may let a job be placed or changed."""
        wanted = self._context.scan_wanted
        self._context.scan_wanted = False
        return wanted

    def clusters(self) -> Sequence[ClusterRecord]:
        """Return those on which malleable jobs run, in the order of their names."""
        return [self._state.clusters[name] for name in self._context.roster.clusters()]

    def running(self, cluster: ClusterRecord) -> RunningJobs[Any]:
        """Return the components of running malleable jobs."""
        return self._context.roster.on(cluster.name)

    def free(self, cluster: ClusterRecord) -> int:
        """Return what a new claim would get at once, as far as the last poll tells, and nobody else waits for."""
        return free_for_growing(self._context, cluster)

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
        """Tell whether the cluster is open."""
        return closed_reason(cluster, self._context.now) is None

    def changing(self, cluster: ClusterRecord) -> bool:
        """Tell whether a step is under way, whose answers have not all come in."""
        return cluster.step is not None

    def promised(self, cluster: ClusterRecord) -> bool:
        """Tell whether applications insist on more."""
        return bool(cluster.promises)

    def paused(self, cluster: ClusterRecord, direction: Direction) -> bool:
        """Tell whether a pause is not over: after a vain step, after lost processors, after jobs were levelled."""
        now = self._context.now
        if direction is Direction.SHRINK:
            paused = cluster.no_shrink_before is not None and now < cluster.no_shrink_before
            return paused or asked_in_vain(self._context, cluster)
        if cluster.no_growth_before is not None and now < cluster.no_growth_before:
            return True
        if cluster.levelled_until is None or len(self.running(cluster)) != cluster.levelled:
            return False
        return now < cluster.levelled_until

    def rebalances(self, cluster: ClusterRecord) -> bool:
        """Tell whether the policy of the cluster does."""
        return policy_of(self._context, cluster).rebalances

    def jobs_wait(self) -> bool:
        """Tell whether there is a head of the queue, and there are jobs that could be shrunk for it.

        None is while the head may find idle processors on a cluster that nobody has looked at yet.
        """
        if not len(self._context.queue) or not len(self._context.roster):
            return False
        return not waits_for_looks(self._context, self._context.requests(self._head()))

    def making_room(self) -> bool:
        """Tell whether jobs are being shrunk on any cluster."""
        steps = (cluster.step for cluster in self.clusters())
        return any(one is not None and one.step.direction is Direction.SHRINK for one in steps)

    def short_of_processors(self) -> Iterator[tuple[ClusterRecord, int, ShrunkFor]]:
        """Yield clusters with jobs in the queue of the batch system that have no idle processors, ours first."""
        for cluster in self.clusters():
            if cluster.queued:
                lacking = -(cluster.load_free + cluster.ending) - cluster.gathering
                yield cluster, min(lacking, cluster.queued), ShrunkFor.PLACED
            yield cluster, lacking_for_others(self._context, cluster), ShrunkFor.OTHERS

    def needs_of_head(self) -> Iterator[Need[ClusterRecord]]:
        """Yield the needs of its components."""
        views, clusters = self._context.views(), self._state.clusters
        for request in self._context.requests(self._head()):
            minimum, chosen = request.component.minimum, request.component.cluster
            names = [name for name in views if chosen in {None, name} and request.never(views[name]) is None]
            # How many further placeholders may wait in a cluster's queue is not changed by shrinking.
            holding = [one for one in map(clusters.__getitem__, names) if minimum <= _queueable(one)]
            yield Need(minimum, holding, insists=chosen is not None)

    # ---- what is decided ------------------------------------------------------------------------------------------

    def continue_changes(self, cluster: ClusterRecord) -> None:
        """Keep promises as far as possible, let others go first, and send the next messages of a step."""
        keep_promises(self._context, cluster)
        yield_to_others(self._context, cluster)
        continue_step(self._context, cluster)

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
        given = in_one_step(self._context, value)
        start_step(
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
        value = in_one_step(self._context, value)
        reason = self._reason(cluster, value, shrunk_for)
        start_step(self._context, cluster, Direction.SHRINK, value, reason=reason)

    def _reason(self, cluster: ClusterRecord, value: int, shrunk_for: ShrunkFor) -> str:
        match shrunk_for:
            case ShrunkFor.HEAD:
                return f"room for job {self._head().job.id}"
            case ShrunkFor.PLACED:
                return f"{_processors(value)} for a job of ours that waits in {cluster.name}'s queue"
        waits = "a job that waits" if len(cluster.others_waiting) == 1 else "jobs that wait"
        return f"{_processors(value)} for {waits} in {cluster.name}'s queue"

    def _head(self) -> JobRecord:
        return self._state.jobs[self._context.queue.first(1)[0]]


def _processors(count: int) -> str:
    return f"{count} processor" if count == 1 else f"{count} processors"


def _queueable(cluster: ClusterRecord) -> int:
    return cluster.parameters.placeholders_in_flight - cluster.queued

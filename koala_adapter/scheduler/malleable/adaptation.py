# SPDX-License-Identifier: Apache-2.0
"""When running malleable jobs grow and shrink: KOALA's job management approaches (PAPERS section 1.3).

PRA offers free processors to running jobs before the queue is scanned. PWA scans the queue first; when its head cannot
be placed, running jobs are shrunk for it, and only when even that cannot make enough room are running jobs considered
for growing instead. What is true of the head is true of a job that was placed and waits in the queue of a batch system
whose processors others have taken: jobs of ours on that cluster are shrunk for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.scheduler.context import closed_reason
from koala_adapter.scheduler.malleable.approaches import Approach, Shrinkable, cluster_to_shrink
from koala_adapter.scheduler.malleable.policies import Direction
from koala_adapter.scheduler.malleable.requests import keep_promises
from koala_adapter.scheduler.malleable.steps import continue_step, policy_of, start_step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.records import ClusterRecord, JobRecord


def before_scan(context: Context) -> dict[ClusterName, int]:
    """Go on with what is under way, and let running jobs grow first where they have precedence.

    Return by cluster what is kept from the queue during the scan that follows, because running jobs may want it: to be
    given to :func:`after_scan`.
    """
    first = context.state.parameters.approach.running_first
    kept: dict[ClusterName, int] = {}
    for cluster in _clusters(context):
        keep_promises(context, cluster)
        continue_step(context, cluster)
        if first and (_grow(context, cluster, thorough=True) or cluster.step is not None):
            kept[cluster.parameters.name] = max(0, cluster.room)
            context.ledger.set_aside(cluster, kept[cluster.parameters.name])
    return kept


def after_scan(context: Context, kept: Mapping[ClusterName, int]) -> None:
    """Make room for those that still wait, or let running jobs grow."""
    for name, count in kept.items():
        context.ledger.set_aside(context.state.clusters[name], -count)
    if context.state.parameters.approach is not Approach.PWA:
        return
    clusters = _clusters(context)
    for cluster in clusters:
        _shrink_for_placed(context, cluster)
    if not _make_room_for_head(context):
        for cluster in clusters:
            _grow(context, cluster, thorough=False)


def _clusters(context: Context) -> list[ClusterRecord]:
    return [context.state.clusters[name] for name in context.roster.clusters()]


def _grow(context: Context, cluster: ClusterRecord, *, thorough: bool) -> bool:
    """Offer the free processors of a cluster, unless nobody wanted them a moment ago.

    Return True when that is done or will be, as soon as what is on its way out is free: applications can make more of
    several processors at once. (With every poll they are offered what is free, so that nothing waits for ever.)
    """
    running = context.roster.on(cluster.parameters.name)
    paused = cluster.no_growth_before is not None and context.now < cluster.no_growth_before
    if cluster.levelled_until is not None and len(running) == cluster.levelled:
        paused = paused or context.now < cluster.levelled_until
    if not running.growth or cluster.step is not None or cluster.promises or paused or not _usable(context, cluster):
        return False
    if cluster.ending and context.polled != cluster.parameters.name:
        return True
    value = cluster.available
    if cluster.unwanted is not None and value <= cluster.unwanted:
        cluster.unwanted = value  # when more comes free than this, it is offered again
        return False
    if value == 0 and not policy_of(context, cluster).rebalances:
        return False
    start_step(context, cluster, Direction.GROW, value, reason="processors are free", thorough=thorough)
    return True


def _usable(context: Context, cluster: ClusterRecord) -> bool:
    return closed_reason(cluster, context.now) is None


def _may_shrink(context: Context, cluster: ClusterRecord) -> bool:
    paused = cluster.no_shrink_before is not None and context.now < cluster.no_shrink_before
    return cluster.step is None and not paused and _usable(context, cluster)


def _shrink_for_placed(context: Context, cluster: ClusterRecord) -> None:
    """Shrink for placeholders of jobs that wait in the LRM's queue, as many as have no idle processor."""
    if not cluster.queued:
        return
    lacking = -(cluster.load_free + cluster.ending) - cluster.gathering
    lacking = min(lacking, cluster.queued)
    if 0 < lacking <= context.roster.on(cluster.parameters.name).spare and _may_shrink(context, cluster):
        start_step(context, cluster, Direction.SHRINK, lacking, reason="a job waits in the queue of the batch system")


def _make_room_for_head(context: Context) -> bool:
    """Tell whether room is being made for the head of the queue; see to it that it is, if possible."""
    first = context.queue.first(1)
    if not first:
        return False
    record = context.state.jobs[first[0]]
    if any(_shrinks(context.state.clusters[name]) for name in context.roster.clusters()):
        return True
    plan = _plan(context, record)
    if plan is None:
        return False
    state = context.state
    if state.guarded in {None, record.job.id}:
        state.guarded, state.kept_room = record.job.id, {name: need for name, (need, _) in plan.items()}
    for name, (_, value) in plan.items():
        if value > 0:
            reason = f"room for job {record.job.id}"
            start_step(context, state.clusters[name], Direction.SHRINK, value, reason=reason)
    return True


def _shrinks(cluster: ClusterRecord) -> bool:
    return cluster.step is not None and cluster.step.step.direction is Direction.SHRINK


def _plan(context: Context, record: JobRecord) -> dict[ClusterName, tuple[int, int]] | None:
    """Return for each cluster to be used what the job needs there, and by how much to shrink; None: impossible.

    Processors on their way out count as free. None, too, when nothing would have to be shrunk and nothing is on its way
    out: then it is not running jobs that are in the way.
    """
    rooms: dict[ClusterName, Shrinkable] = {}
    views = context.views()
    needs: dict[ClusterName, int] = {}
    requests = sorted(context.requests(record), key=lambda one: (one.component.cluster is None, -one.component.minimum))
    for request in requests:
        minimum, chosen = request.component.minimum, request.component.cluster
        names = [name for name in views if chosen in {None, name} and request.never(views[name]) is None]
        for name in names:
            if name not in rooms:
                rooms[name] = _shrinkable(context, context.state.clusters[name])
        found = cluster_to_shrink(
            minimum, [(name, rooms[name]) for name in names if minimum <= _queueable(context, name)]
        )
        if found is None:
            return None
        rooms[found[0]] = rooms[found[0]]._replace(free=rooms[found[0]].free - minimum)
        needs[found[0]] = needs.get(found[0], 0) + minimum
    plan = {name: (need, max(0, -rooms[name].free)) for name, need in needs.items()}
    clusters = [context.state.clusters[name] for name in plan]
    return plan if any(value for _, value in plan.values()) or any(one.ending for one in clusters) else None


def _shrinkable(context: Context, cluster: ClusterRecord) -> Shrinkable:
    free = min(cluster.capacity - cluster.managed - cluster.offered, cluster.load_free) + cluster.ending
    spare = context.roster.on(cluster.parameters.name).spare if _may_shrink(context, cluster) else 0
    return Shrinkable(free if _usable(context, cluster) else -cluster.capacity, spare)


def _queueable(context: Context, name: ClusterName) -> int:
    """Return how many further placeholders may wait in a cluster's queue: shrinking does not change that."""
    cluster = context.state.clusters[name]
    return cluster.parameters.placeholders_in_flight - cluster.queued

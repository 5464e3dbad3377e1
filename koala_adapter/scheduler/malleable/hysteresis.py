# SPDX-License-Identifier: Apache-2.0
"""What keeps running jobs from changing to and fro: pauses in both directions, and the largest change of one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.scheduler.malleable.policies import Direction

if TYPE_CHECKING:
    from koala_adapter.scheduler.clusterrecord import ClusterRecord
    from koala_adapter.scheduler.context import Context


def pause(context: Context, cluster: ClusterRecord, direction: Direction, seconds: float) -> None:
    """Start no step of a direction on a cluster for a while; a longer pause that has begun is not cut short."""
    if seconds <= 0:
        return
    until = context.now + seconds
    before = cluster.no_growth_before if direction is Direction.GROW else cluster.no_shrink_before
    if before is not None and before > until:
        return
    if direction is Direction.GROW:
        cluster.no_growth_before = until
    else:
        cluster.no_shrink_before = until
    context.timetable.for_cluster(cluster, until)


def jobs_have_grown(context: Context, cluster: ClusterRecord) -> None:
    """Ask nobody to shrink for a while."""
    pause(context, cluster, Direction.SHRINK, context.state.parameters.shrink_pause)


def jobs_have_shrunk(context: Context, cluster: ClusterRecord) -> None:
    """Offer nothing for a while."""
    pause(context, cluster, Direction.GROW, context.state.parameters.grow_pause)


def in_one_step(context: Context, processors: int) -> int:
    """Return how many of some processors one step may give out or free."""
    most = context.state.parameters.largest_change
    return processors if most is None else min(processors, most)

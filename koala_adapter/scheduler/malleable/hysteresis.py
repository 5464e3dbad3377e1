# SPDX-License-Identifier: Apache-2.0
"""What keeps running jobs from changing to and fro: pauses in both directions, and the largest change of one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.scheduler.jitter import SHORTEST_PAUSE
from koala_adapter.scheduler.malleable.policies import Direction

if TYPE_CHECKING:
    from koala_adapter.scheduler.clusterrecord import ClusterRecord
    from koala_adapter.scheduler.context import Context

PATIENCE = 8
"""So many steps that free nothing may follow each other at the usual interval."""
MOST_DOUBLINGS = 20
"""The pause after further ones is doubled so often at most."""


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


def growth_paused(context: Context, cluster: ClusterRecord) -> bool:
    """Tell whether the pause after processors for growing could not be had is not over."""
    return cluster.no_growth_before is not None and context.now < cluster.no_growth_before


def jobs_have_grown(context: Context, cluster: ClusterRecord) -> None:
    """Ask nobody to shrink for a while."""
    pause(context, cluster, Direction.SHRINK, context.state.parameters.shrink_pause)


def jobs_have_shrunk(context: Context, cluster: ClusterRecord) -> None:
    """Offer nothing for a while."""
    pause(context, cluster, Direction.GROW, context.state.parameters.grow_pause)


def shrunk_in_vain(context: Context, cluster: ClusterRecord) -> None:
    """Ask nobody to shrink for a while; after some vain steps, twice as long each time that nothing has changed.

    A policy may ask jobs that cannot give anything, as EGS does (CoreGRID TR-0092); others may have their reasons.
    """
    parameters, sizes = context.state.parameters, _sizes(context, cluster)
    cluster.vain_shrinks = cluster.vain_shrinks + 1 if sizes == cluster.vain_sizes else 1
    cluster.vain_sizes = sizes
    seconds = max(SHORTEST_PAUSE, parameters.scan_interval)
    pause(context, cluster, Direction.SHRINK, seconds)
    doublings = min(MOST_DOUBLINGS, max(0, cluster.vain_shrinks - PATIENCE))
    cluster.vain_until = context.now + min(seconds * 2**doublings, max(seconds, parameters.longest_backoff))
    context.timetable.for_cluster(cluster, cluster.vain_until)


def asked_in_vain(context: Context, cluster: ClusterRecord) -> bool:
    """Tell whether nothing has changed since running jobs gave nothing, and it is too early to ask them again."""
    until = cluster.vain_until
    return until is not None and context.now < until and _sizes(context, cluster) == cluster.vain_sizes


def _sizes(context: Context, cluster: ClusterRecord) -> list[int]:
    return [job.size for job in context.roster.on(cluster.name)]


def in_one_step(context: Context, processors: int) -> int:
    """Return how many of some processors one step may give out or free."""
    most = context.state.parameters.largest_change
    return processors if most is None else min(processors, most)

# SPDX-License-Identifier: Apache-2.0
"""Clusters that nobody has looked at yet: what would only be queued is not placed before they have answered.

A service that has just begun sees its clusters one after the other. A job that finds no idle processors on the first
one would be queued there, and stay, although the next one may be empty. So it waits for the first polls: for each
until it is answered or has failed, and for none longer than ``FIRST_LOOK``. Where it would start at once, it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.clusterrecord import ClusterRecord
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.placement.policy import ClusterView, ComponentRequest, Placed
    from koala_adapter.scheduler.records import State

FIRST_LOOK = 30.0
"""Seconds after which a cluster that has neither answered its first poll nor failed to counts as seen."""


def await_first_looks(context: Context) -> None:
    """Give the clusters of the site that were never polled time for that, from now on."""
    for cluster in context.state.clusters.values():
        if cluster.configured and cluster.polled_at is None and cluster.unavailable is None:
            cluster.first_look_until = context.now + FIRST_LOOK


def looked_at(context: Context, cluster: ClusterRecord) -> None:
    """Note that a cluster has answered its first poll, or has failed to; what waited for that may be queued now."""
    if cluster.first_look_until is not None:
        cluster.first_look_until = None
        context.scan_wanted = True


def awaited_looks(state: State, now: float) -> list[ClusterRecord]:
    """Return the clusters whose first polls are waited for, in the order of the site file."""
    return [
        cluster
        for cluster in state.clusters.values()
        if cluster.configured and cluster.first_look_until is not None and now < cluster.first_look_until
    ]


def waits_for_looks(context: Context, requests: Iterable[ComponentRequest]) -> bool:
    """Tell whether a component may find idle processors on a cluster that was not polled yet.

    Then the scheduler wakes up, at the latest, when the time for that poll is over.
    """
    awaited = awaited_looks(context.state, context.now)
    if not awaited:
        return False
    views = [context.view(cluster) for cluster in awaited]
    if all(request.never(view) is not None for request in requests for view in views):
        return False
    for cluster in awaited:
        if cluster.first_look_until is not None:
            context.timetable.for_cluster(cluster, cluster.first_look_until)
    return True


def would_be_queued(
    requests: Iterable[ComponentRequest], placed: Placed, views: Mapping[ClusterName, ClusterView]
) -> list[ComponentRequest]:
    """Return those of the requests that were placed where too few processors are idle for all that was placed there."""
    wanted: dict[ClusterName, int] = {}
    for part in placed.components:
        wanted[part.cluster] = wanted.get(part.cluster, 0) + part.processors
    queued = {part.component for part in placed.components if wanted[part.cluster] > views[part.cluster].available}
    return [request for request in requests if request.component.name in queued]

# SPDX-License-Identifier: Apache-2.0
"""Worst fit, KOALA's default (CoreGRID TR-0092): it balances the load over the clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.scheduler.placement.fitting import Budget, Share, refused, sized
from koala_adapter.scheduler.placement.packing import pack
from koala_adapter.scheduler.placement.policy import PlacementPolicy, pieces

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.placement.fitting import Preference
    from koala_adapter.scheduler.placement.policy import ClusterView, ComponentRequest, PlacementResult

    Views = Mapping[ClusterName, ClusterView]


class WorstFit(PlacementPolicy):
    """Each component to the cluster with the most idle processors, largest component first (KOALA's WF).

    When too little is idle, placeholders are queued where the load is least, as long as our own placeholders stay
    within the cluster's capacity: in a busy cluster only what waits in the queue ever gets a processor.
    """

    name = "worst-fit"

    def place(self, requests: Sequence[ComponentRequest], views: Views) -> PlacementResult:
        """See :meth:`PlacementPolicy.place`."""
        order = sorted(requests, key=lambda r: (r.component.cluster is None, -r.component.minimum))
        clusters = _greedy(order, views, self.preference(views)) or _searched(requests, views)
        if clusters is None:
            return refused(requests, views)
        shares = [Share(one, clusters[one.component.name], one.component.minimum) for one in requests]
        return sized(shares, views)

    def preference(self, views: Views) -> Preference | None:  # noqa: ARG002 - for policies that prefer something
        """Return what counts before the number of idle processors; None: nothing does."""
        return None


def _greedy(
    order: Sequence[ComponentRequest], views: Views, preference: Preference | None
) -> Mapping[str, ClusterName] | None:
    budget = Budget(views)
    clusters: dict[str, ClusterName] = {}
    for request in order:
        cluster = budget.best(request, preference)
        if cluster is None:
            return None
        budget.take(cluster, request.component.minimum)
        clusters[request.component.name] = cluster
    return clusters


def _searched(requests: Sequence[ComponentRequest], views: Views) -> Mapping[str, ClusterName] | None:
    """Look for any placement within the room there is, where the greedy one found none."""
    if len(requests) < 2:  # noqa: PLR2004 - a single component has no other way to fit
        return None
    rooms = {view.name: view.room for view in views.values() if view.closed is None}
    if sum(request.component.minimum for request in requests) > sum(max(0, room) for room in rooms.values()):
        return None
    return pack(pieces(requests, [views[name] for name in rooms]), rooms).clusters

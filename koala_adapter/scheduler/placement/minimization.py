# SPDX-License-Identifier: Apache-2.0
"""Cluster minimization: a co-allocated job on as few clusters as possible (CoreGRID TR-0092).

Every cluster more means more messages over wide-area links, and one queue more to wait for. CM takes the components as
the user made them; FCM also splits those that the user calls flexible, according to the idle processors, which
shortens the time in the queue: what fits into no cluster may fit into two.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.scheduler.placement.fitting import Share, refused, sized
from koala_adapter.scheduler.placement.packing import pack_fewest
from koala_adapter.scheduler.placement.policy import PlacementPolicy, allowed, pieces

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.placement.policy import ClusterView, ComponentRequest, PlacementResult

    Views = Mapping[ClusterName, ClusterView]


class ClusterMinimization(PlacementPolicy):
    """As few clusters as possible; the components stay as they are (KOALA's CM).

    A placement that can start at once goes before one on fewer clusters that would queue.
    """

    name = "cluster-minimization"

    def place(self, requests: Sequence[ComponentRequest], views: Views) -> PlacementResult:
        """See :meth:`PlacementPolicy.place`."""
        if not self.splits:
            requests = [replace(one, splittable=False) if one.splittable else one for one in requests]
        opened = [view for view in views.values() if view.closed is None]
        for rooms in ({view.name: view.available for view in opened}, {view.name: view.room for view in opened}):
            shares = fewest(requests, rooms, views)
            if shares is not None:
                return sized(shares, views)
        return refused(requests, views)


class FlexibleClusterMinimization(ClusterMinimization):
    """As cluster minimization, and flexible components are split according to the idle processors (KOALA's FCM)."""

    name = "flexible-cluster-minimization"
    splits = True


def fewest(requests: Sequence[ComponentRequest], rooms: Mapping[ClusterName, int], views: Views) -> list[Share] | None:
    """Return shares of all components in as few of the rooms as can be found; None when they do not fit.

    Components that may not be split come first; the others are then poured into what is left.
    """
    if sum(one.component.minimum for one in requests) > sum(max(0, room) for room in rooms.values()):
        return None
    whole = [one for one in requests if not one.splittable]
    clusters = pack_fewest(pieces(whole, [views[name] for name in rooms]), rooms)
    if clusters is None:
        return None
    left = {name: max(0, room) for name, room in rooms.items()}
    for one in whole:
        left[clusters[one.component.name]] -= one.component.minimum
    used = set(clusters.values())
    shares = {id(one): [Share(one, clusters[one.component.name], one.component.minimum)] for one in whole}
    order = [one for one in requests if one.splittable]
    for one in sorted(order, key=lambda r: (r.component.cluster is None, -r.component.minimum)):
        poured = _poured(one, left, used, views)
        if poured is None:
            return None
        shares[id(one)] = poured
        used.update(share.cluster for share in poured)
        for share in poured:
            left[share.cluster] -= share.processors
    return [share for one in requests for share in shares[id(one)]]


def _poured(
    request: ComponentRequest, left: Mapping[ClusterName, int], used: set[ClusterName], views: Views
) -> list[Share] | None:
    """Split a component over the rooms: no more clusters than it must, and then as few pieces as possible."""
    need = request.component.minimum
    usable = {
        view.name: left[view.name]
        for view in allowed(request, views)
        if left.get(view.name, 0) > 0 and request.never(view) is None
    }
    ours = sorted((name for name in usable if name in used), key=lambda name: -usable[name])
    others = sorted((name for name in usable if name not in used), key=lambda name: -usable[name])
    beyond = need - sum(usable[name] for name in ours)
    added: list[ClusterName] = []
    for name in others:
        if beyond <= 0:
            break
        added.append(name)
        beyond -= usable[name]
    if beyond > 0:
        return None
    shares = []
    for name in sorted([*ours, *added], key=lambda name: -usable[name]):
        taken = min(need, usable[name])
        if taken:
            shares.append(Share(request, name, taken))
            need -= taken
    return shares

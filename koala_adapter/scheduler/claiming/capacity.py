# SPDX-License-Identifier: Apache-2.0
"""The room on all clusters during one scan of the placement queue, and quick answers on what may still fit in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.scheduler.claiming.queue import ANY_CLUSTER
from koala_adapter.scheduler.context import closed_reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.claiming.queue import Lane, Need
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.placement.policy import ClusterView


class Capacity:
    """Views of the clusters that have room, kept true while jobs are placed."""

    def __init__(self, context: Context) -> None:
        """Take the views of now."""
        self._context = context
        self._kept: Mapping[ClusterName, int] = {}
        self.views: dict[ClusterName, ClusterView] = {}
        """Open clusters with room, in the order of the site file."""
        self.largest = 0
        """Most room on any of them."""
        self.total = 0
        """Room on all of them together."""
        for name, cluster in context.state.clusters.items():
            if cluster.room > 0 and cluster.configured and closed_reason(cluster, context.now) is None:
                self.views[name] = context.view(cluster)
        self._measure()

    def refresh(self, names: Iterable[ClusterName]) -> None:
        """Look at these clusters again: something was placed there."""
        for name in names:
            view = less(self._context.view(self._context.state.clusters[name]), self._kept.get(name, 0))
            if view.room > 0:
                self.views[name] = view
            else:
                del self.views[name]
        self._measure()

    def keep(self, kept: Mapping[ClusterName, int]) -> None:
        """Leave so many processors to another job from now on."""
        self._kept = kept
        self.refresh([name for name in kept if name in self.views])

    def may_hold(self, lane: Lane) -> bool:
        """Tell whether a lane's jobs could fit, by each component and by their sum; only False is certain."""
        return lane.total <= self.total and all(self._may_hold(need) for need in lane.needs)

    def _may_hold(self, need: Need) -> bool:
        if need.cluster == ANY_CLUSTER:
            return need.minimum <= (self.total if need.flexible else self.largest)
        view = self.views.get(need.cluster)
        return view is not None and view.room >= need.minimum

    def _measure(self) -> None:
        rooms = [view.room for view in self.views.values()]
        self.largest, self.total = max(rooms, default=0), sum(rooms)


def less(view: ClusterView, processors: int) -> ClusterView:
    """Return a view of a cluster in which so many processors are spoken for."""
    if processors <= 0:
        return view
    return replace(
        view,
        room=view.room - processors,
        available=max(0, view.available - processors),
        load_free=view.load_free - processors,
    )

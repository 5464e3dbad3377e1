# SPDX-License-Identifier: Apache-2.0
"""The room on all clusters during one scan of the placement queue, and quick answers on what may still fit in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.scheduler.queue import ANY_CLUSTER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.placement import ClusterView
    from koala_adapter.scheduler.queue import Lane, Need


class Rooms:
    """Views of all clusters, kept true while jobs are placed."""

    def __init__(self, context: Context) -> None:
        """Take the views of now."""
        self._context = context
        self._kept: Mapping[ClusterName, int] = {}
        self.views = context.views()
        self.largest = 0
        """Most room on any open cluster."""
        self._measure()

    def refresh(self, names: set[ClusterName]) -> None:
        """Look at these clusters again: something was placed there."""
        for name in names:
            view = self._context.view(self._context.state.clusters[name])
            self.views[name] = less(view, self._kept.get(name, 0))
        self._measure()

    def keep(self, kept: Mapping[ClusterName, int]) -> None:
        """Leave so many processors to another job from now on."""
        self._kept = kept
        self.refresh({name for name in kept if name in self.views})

    def may_hold(self, lane: Lane) -> bool:
        """Tell whether each component of a lane's jobs would fit by itself; False is certain, True is not."""
        return all(self._may_hold(need) for need in lane.needs)

    def _may_hold(self, need: Need) -> bool:
        if need.cluster == ANY_CLUSTER:
            return need.minimum <= self.largest
        view = self.views.get(need.cluster)
        return view is not None and view.closed is None and view.room >= need.minimum

    def _measure(self) -> None:
        self.largest = max((view.room for view in self.views.values() if view.closed is None), default=0)


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

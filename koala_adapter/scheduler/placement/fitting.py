# SPDX-License-Identifier: Apache-2.0
"""What all placement policies need: the processors left while a placement is made, sizes, and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from koala_adapter.scheduler.placement.policy import (
    Infeasible,
    Insufficient,
    Placed,
    PlacedComponent,
    allowed,
    infeasibility,
    listed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.placement.policy import ClusterView, ComponentRequest

    Preference = Callable[[ComponentRequest, ClusterView], tuple[float, ...]]
    """How much a cluster suits a component, greater is better; it counts before the load."""


class Share(NamedTuple):
    """Processors of a cluster for a component, or for a piece of it."""

    request: ComponentRequest
    cluster: ClusterName
    processors: int


class Budget:
    """Processors still free for one placement."""

    def __init__(self, views: Mapping[ClusterName, ClusterView]) -> None:
        """Nothing is taken yet."""
        self._views = views
        self._taken: dict[ClusterName, int] = {}

    def available(self, name: ClusterName) -> int:
        """Return how many processors more could be had at once."""
        return self._views[name].available - self._taken.get(name, 0)

    def take(self, name: ClusterName, processors: int) -> None:
        """Use processors for a component of this placement."""
        self._taken[name] = self._taken.get(name, 0) + processors

    def best(self, request: ComponentRequest, preference: Preference | None = None) -> ClusterName | None:
        """Return the open cluster that suits a component best; by queueing there if it must.

        First those that can start it at once, then by ``preference``, then the one with most idle processors.
        """
        need = request.component.minimum
        best: tuple[bool, tuple[float, ...], int] | None = None
        found: ClusterName | None = None
        for view in allowed(request, self._views):
            taken = self._taken.get(view.name, 0)
            if view.closed is not None or view.room - taken < need or request.never(view) is not None:
                continue
            suits = () if preference is None else preference(request, view)
            rank = (view.available - taken >= need, suits, view.load_free - taken)
            if best is None or rank > best:
                best, found = rank, view.name
        return found


def sized(shares: Sequence[Share], views: Mapping[ClusterName, ClusterView]) -> Placed:
    """Give each share its processors, and a moldable component what is idle beyond, up to its maximum."""
    budget = Budget(views)
    pieces: dict[str, int] = {}
    for share in shares:
        budget.take(share.cluster, share.processors)
        pieces[share.request.component.name] = pieces.get(share.request.component.name, 0) + 1
    wanted = {one.request.component.name: one.request.component for one in shares}
    extras = {name: component.maximum - component.minimum for name, component in wanted.items()}
    placed = []
    for request, cluster, processors in shares:
        name = request.component.name
        extra = max(0, min(extras[name], budget.available(cluster)))
        budget.take(cluster, extra)
        extras[name] -= extra
        piece = processors if pieces[name] > 1 else None
        placed.append(PlacedComponent(component=name, cluster=cluster, processors=processors + extra, piece=piece))
    return Placed(components=tuple(placed))


def refused(
    requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]
) -> Infeasible | Insufficient:
    """Return why a job cannot be placed: never, or not now."""
    never = infeasibility(requests, views)
    return Insufficient(reason=shortage(requests, views)) if never is None else Infeasible(reason=never)


def shortage(requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> str:
    """Return what is missing where, for people: the first component that fits nowhere now, or all of them together."""
    for request in sorted(requests, key=lambda r: -r.component.minimum):
        component, least = request.component, request.least
        asked = allowed(request, views)
        if not any(view.room >= least and view.closed is None and request.never(view) is None for view in asked):
            said = listed(f"{view.name}: {view.closed or _room(view)}" for view in asked if request.never(view) is None)
            return f"component {component.name!r} needs {component.minimum} processors ({said})"
    total = sum(request.component.minimum for request in requests)
    said = listed(f"{view.name}: {view.closed or _room(view)}" for view in views.values())
    if len(requests) == 1:
        return f"component {requests[0].component.name!r} needs {total} processors ({said})"
    return f"its {len(requests)} components need {total} processors together ({said})"


def _room(view: ClusterView) -> str:
    return f"room for {max(0, view.room)}"

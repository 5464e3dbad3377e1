# SPDX-License-Identifier: Apache-2.0
"""Placement policies: which component of a job goes to which cluster, and on how many processors.

A policy sees the clusters as values and answers with a value: placed, insufficient (not now) or infeasible (never).
Worst fit is KOALA's default (PAPERS section 1.2); further policies register themselves in :data:`POLICIES`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from koala_adapter.model import ClusterName, Component
from koala_adapter.scheduler.packing import Piece, pack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LISTED = 8
"""Most clusters that one message tells about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """What a placement may know of a cluster."""

    name: ClusterName
    capacity: int | None
    """Processors that placeholders may ever hold there (configured less threshold); None: not known yet."""
    in_flight: int | None = None
    """Most placeholders that may wait in its queue at once: no component can be larger. None: no bound."""
    room: int
    """Further placeholders that may be submitted now."""
    available: int
    """Processors a claim would get at once."""
    load_free: int
    """As ``available`` but negative when more has been asked than is free: a measure of load."""
    walltime_limit: int | None
    closed: str | None = None
    """Why nothing may be placed there at present (unavailable, paused); None when open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentRequest:
    """A component that needs a cluster."""

    component: Component
    walltime: int
    """Seconds that will be asked from the LRM."""
    excluded: frozenset[ClusterName] = frozenset()
    """Clusters that refused it for good."""

    def never(self, view: ClusterView) -> str | None:
        """Return why this component can never run on a cluster; None when it can."""
        if self.component.cluster is not None and self.component.cluster != view.name:
            return "the component asks for another cluster"
        if view.name in self.excluded:
            return "its batch system refused the submission"
        if view.walltime_limit is not None and self.walltime > view.walltime_limit:
            return f"needs a walltime of {self.walltime} s there, the limit is {view.walltime_limit} s"
        if view.capacity is not None and self.component.minimum > view.capacity:
            return f"needs {self.component.minimum} processors, at most {view.capacity} can be used there"
        if view.in_flight is not None and self.component.minimum > view.in_flight:
            return f"needs {self.component.minimum} placeholders at once, the limit there is {view.in_flight}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedComponent:
    """Where a component goes and how many processors it gets."""

    component: str
    cluster: ClusterName
    processors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A complete placement of all that was asked."""

    components: tuple[PlacedComponent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Insufficient:
    """Not now: enough exists, but not free."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """Never, as the clusters are configured."""

    reason: str


PlacementResult = Placed | Insufficient | Infeasible


class PlacementPolicy(ABC):
    """Decides placements. Pure: the same request and views give the same answer."""

    name: str

    @abstractmethod
    def place(self, requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> PlacementResult:
        """Place all components or none."""


def infeasibility(requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> str | None:
    """Return why a job can never be placed, whatever becomes free; None when it can.

    Clusters that have not been seen yet count as able to hold anything. All components must fit at the same time.
    """
    if _first_fit(requests, views):
        return None
    for request in requests:
        if all(request.never(view) is not None for view in _allowed(request, views)):
            return f"component {request.component.name!r} fits nowhere ({_reasons(request, views)})"
    return _joint_infeasibility(requests, views)


def _first_fit(requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> bool:
    """Tell whether each component fits into the first cluster with room for it: a quick yes; no means nothing."""
    taken: dict[ClusterName, int] = {}
    for request in requests:
        need = request.component.minimum
        for view in _allowed(request, views):
            most = _most(view)
            if request.never(view) is None and (most is None or taken.get(view.name, 0) + need <= most):
                taken[view.name] = taken.get(view.name, 0) + need
                break
        else:
            return False
    return True


def _allowed(request: ComponentRequest, views: Mapping[ClusterName, ClusterView]) -> Iterable[ClusterView]:
    """Return the clusters among which a component has the choice."""
    pinned = request.component.cluster
    if pinned is None:
        return views.values()
    return [views[pinned]] if pinned in views else []


def _reasons(request: ComponentRequest, views: Mapping[ClusterName, ClusterView]) -> str:
    said = _listed(f"{view.name}: {request.never(view)}" for view in _allowed(request, views))
    pinned = request.component.cluster
    return said or (f"{pinned}: not in the site file" if pinned is not None else "no cluster is configured")


def _joint_infeasibility(requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> str | None:
    needed: dict[ClusterName, int] = {}
    for request in requests:
        if request.component.cluster is not None:
            needed[request.component.cluster] = needed.get(request.component.cluster, 0) + request.component.minimum
    for name, processors in needed.items():
        most = _most(views[name])
        if most is not None and processors > most:
            return f"its components need {processors} processors on {name} together, at most {most} can be used there"
    if len(requests) < 2 or any(view.capacity is None for view in views.values()):  # noqa: PLR2004 - one fits alone
        return None
    rooms = {name: _most(view) or 0 for name, view in views.items()}
    total = sum(request.component.minimum for request in requests)
    if total > sum(rooms.values()):
        return f"the job needs {total} processors at once, all clusters together have {sum(rooms.values())} to use"
    packing = pack(_pieces(requests, views.values()), rooms)
    if packing.clusters is None and packing.exhaustive:
        sizes = ", ".join(str(request.component.minimum) for request in requests)
        fitting = _listed(f"{name}: {room}" for name, room in rooms.items())
        return f"its components ({sizes} processors) do not fit into the clusters at the same time ({fitting})"
    return None


def _most(view: ClusterView) -> int | None:
    """Return how many processors one job can ever have on a cluster."""
    bounds = [bound for bound in (view.capacity, view.in_flight) if bound is not None]
    return min(bounds) if bounds else None


def _pieces(requests: Sequence[ComponentRequest], views: Iterable[ClusterView]) -> list[Piece]:
    usable = list(views)
    return [
        Piece(
            name=request.component.name,
            size=request.component.minimum,
            clusters=frozenset(view.name for view in usable if request.never(view) is None),
        )
        for request in requests
    ]


class WorstFit(PlacementPolicy):
    """Each component to the cluster with the most idle processors, largest component first (KOALA's WF).

    When too little is idle, placeholders are queued where the load is least, as long as our own placeholders stay
    within the cluster's capacity: in a busy cluster only what waits in the queue ever gets a processor.
    """

    name = "worst-fit"

    def place(self, requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> PlacementResult:
        """See :meth:`PlacementPolicy.place`."""
        order = sorted(requests, key=lambda r: (r.component.cluster is None, -r.component.minimum))
        clusters = self._greedy(order, views)
        if clusters is None:
            never = infeasibility(requests, views)
            if never is not None:
                return Infeasible(reason=never)
            clusters = _searched(requests, views)
        if clusters is None:
            return Insufficient(reason=_shortage(requests, views))
        return _sized(requests, clusters, views)

    @staticmethod
    def _greedy(
        order: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]
    ) -> Mapping[str, ClusterName] | None:
        budget = _Budget(views)
        clusters: dict[str, ClusterName] = {}
        for request in order:
            cluster = budget.best(request)
            if cluster is None:
                return None
            budget.take(cluster, request.component.minimum)
            clusters[request.component.name] = cluster
        return clusters


def _searched(
    requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]
) -> Mapping[str, ClusterName] | None:
    """Look for any placement within the room there is, where the greedy one found none."""
    if len(requests) < 2:  # noqa: PLR2004 - a single component has no other way to fit
        return None
    rooms = {view.name: view.room for view in views.values() if view.closed is None}
    if sum(request.component.minimum for request in requests) > sum(max(0, room) for room in rooms.values()):
        return None
    return pack(_pieces(requests, [views[name] for name in rooms]), rooms).clusters


def _sized(
    requests: Sequence[ComponentRequest],
    clusters: Mapping[str, ClusterName],
    views: Mapping[ClusterName, ClusterView],
) -> Placed:
    """Give each component its minimum, and a moldable one what is idle beyond, up to its maximum."""
    budget = _Budget(views)
    for request in requests:
        budget.take(clusters[request.component.name], request.component.minimum)
    placed = []
    for request in requests:
        component, cluster = request.component, clusters[request.component.name]
        extra = max(0, min(component.maximum - component.minimum, budget.available(cluster)))
        budget.take(cluster, extra)
        placed.append(PlacedComponent(component=component.name, cluster=cluster, processors=component.minimum + extra))
    return Placed(components=tuple(placed))


class _Budget:
    """Processors still free for this placement."""

    def __init__(self, views: Mapping[ClusterName, ClusterView]) -> None:
        self._views = views
        self._taken: dict[ClusterName, int] = {}

    def room(self, name: ClusterName) -> int:
        return self._views[name].room - self._taken.get(name, 0)

    def available(self, name: ClusterName) -> int:
        return self._views[name].available - self._taken.get(name, 0)

    def take(self, name: ClusterName, processors: int) -> None:
        self._taken[name] = self._taken.get(name, 0) + processors

    def best(self, request: ComponentRequest) -> ClusterName | None:
        """Return the open cluster with most idle processors that can take the component, by queueing if it must."""
        need = request.component.minimum
        best: tuple[bool, int] | None = None
        found: ClusterName | None = None
        for view in _allowed(request, self._views):
            if view.closed is not None or self.room(view.name) < need or request.never(view) is not None:
                continue
            rank = (self.available(view.name) >= need, view.load_free - self._taken.get(view.name, 0))
            if best is None or rank > best:
                best, found = rank, view.name
        return found


def _shortage(requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> str:
    """Return what is missing where, for people: the first component that fits nowhere now, or all of them together."""
    for request in sorted(requests, key=lambda r: -r.component.minimum):
        component = request.component
        usable = [view for view in _allowed(request, views) if request.never(view) is None]
        if all(view.closed is not None or view.room < component.minimum for view in usable):
            said = _listed(f"{view.name}: {view.closed or _room(view)}" for view in usable)
            return f"component {component.name!r} needs {component.minimum} processors ({said})"
    total = sum(request.component.minimum for request in requests)
    said = _listed(f"{view.name}: {view.closed or _room(view)}" for view in views.values())
    return f"its {len(requests)} components need {total} processors together ({said})"


def _listed(said: Iterable[str]) -> str:
    """Join what is said of each cluster, leaving out the end of a long list."""
    first = list(islice(said, LISTED + 1))
    return "; ".join([*first[:LISTED], "…"] if len(first) > LISTED else first)


def _room(view: ClusterView) -> str:
    return f"room for {max(0, view.room)}"


POLICIES: Mapping[str, PlacementPolicy] = {policy.name: policy for policy in (WorstFit(),)}

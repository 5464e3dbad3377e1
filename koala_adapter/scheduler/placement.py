# SPDX-License-Identifier: Apache-2.0
"""Placement policies: which component of a job goes to which cluster, and on how many processors.

A policy sees the clusters as values and answers with a value: placed, insufficient (not now) or infeasible (never).
Worst fit is KOALA's default (PAPERS section 1.2); further policies register themselves in :data:`POLICIES`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.model import ClusterName, Component

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """What a placement may know of a cluster."""

    name: ClusterName
    capacity: int | None
    """Processors that placeholders may ever hold there (configured less threshold); None: not known yet."""
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

    Clusters that have not been seen yet count as able to hold anything. Components of one job that are bound to the
    same cluster must fit there together.
    """
    for request in requests:
        reasons = {view.name: request.never(view) for view in views.values()}
        if all(reasons.values()):
            pinned = request.component.cluster
            shown = [pinned] if pinned in reasons else sorted(reasons)
            said = "; ".join(f"{name}: {reasons[name]}" for name in shown) or "no cluster is configured"
            return f"component {request.component.name!r} fits nowhere ({said})"
    return _joint_infeasibility(requests, views)


def _joint_infeasibility(requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> str | None:
    needed: dict[ClusterName, int] = {}
    for request in requests:
        if request.component.cluster is not None:
            needed[request.component.cluster] = needed.get(request.component.cluster, 0) + request.component.minimum
    for name, processors in needed.items():
        capacity = views[name].capacity
        if capacity is not None and processors > capacity:
            return (
                f"its components need {processors} processors on {name} together, at most {capacity} can be used there"
            )
    capacities = [view.capacity for view in views.values()]
    total = sum(request.component.minimum for request in requests)
    if all(capacity is not None for capacity in capacities):
        most = sum(capacity or 0 for capacity in capacities)
        if total > most:
            return f"the job needs {total} processors at once, all clusters together have {most} to use"
    return None


class WorstFit(PlacementPolicy):
    """Each component to the cluster with the most idle processors, largest component first (KOALA's WF).

    When too little is idle, placeholders are queued where the load is least, as long as our own placeholders stay
    within the cluster's capacity: in a busy cluster only what waits in the queue ever gets a processor.
    """

    name = "worst-fit"

    def place(self, requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> PlacementResult:
        """See :meth:`PlacementPolicy.place`."""
        never = infeasibility(requests, views)
        if never is not None:
            return Infeasible(reason=never)
        budget = _Budget(views)
        chosen: dict[str, PlacedComponent] = {}
        for request in sorted(requests, key=lambda r: (-(r.component.cluster is not None), -r.component.minimum)):
            cluster = budget.best(request)
            if cluster is None:
                return Insufficient(reason=_shortage(request, views))
            size = request.component.minimum
            budget.take(cluster, size)
            chosen[request.component.name] = PlacedComponent(
                component=request.component.name, cluster=cluster, processors=size
            )
        _grow(requests, chosen, budget)
        return Placed(components=tuple(chosen[request.component.name] for request in requests))


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
        pinned = request.component.cluster
        candidates = self._views.values() if pinned is None else [self._views[pinned]]
        best: tuple[bool, int, ClusterName] | None = None
        for view in candidates:
            if view.closed is not None or self.room(view.name) < need or request.never(view) is not None:
                continue
            free = view.load_free - self._taken.get(view.name, 0)
            rank = (self.available(view.name) >= need, free, view.name)
            if best is None or rank[:2] > best[:2]:
                best = rank
        return best[2] if best is not None else None


def _grow(requests: Sequence[ComponentRequest], chosen: dict[str, PlacedComponent], budget: _Budget) -> None:
    """Give moldable components what is idle beyond their minimum, up to their maximum."""
    for request in requests:
        placed = chosen[request.component.name]
        extra = min(request.component.maximum - placed.processors, budget.available(placed.cluster))
        if extra > 0:
            budget.take(placed.cluster, extra)
            chosen[placed.component] = PlacedComponent(
                component=placed.component, cluster=placed.cluster, processors=placed.processors + extra
            )


def _shortage(request: ComponentRequest, views: Mapping[ClusterName, ClusterView]) -> str:
    component = request.component
    said = []
    for view in views.values():
        if component.cluster not in (None, view.name) or request.never(view) is not None:
            continue
        said.append(f"{view.name}: {view.closed or f'room for {max(0, view.room)}'}")
    return f"component {component.name!r} needs {component.minimum} processors ({'; '.join(said)})"


POLICIES: Mapping[str, PlacementPolicy] = {policy.name: policy for policy in (WorstFit(),)}

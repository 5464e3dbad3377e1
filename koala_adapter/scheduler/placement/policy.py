# SPDX-License-Identifier: Apache-2.0
"""Placement policies: which component of a job goes to which cluster, and on how many processors.

A policy sees the clusters as values and answers with a value: placed, insufficient (not now) or infeasible (never).
The policies themselves are in modules of their own and listed in ``policies.py``. What a policy may know is what
KOALA's information service told its co-allocator (CoreGRID TR-0092): processors (PIP), bandwidth between sites (NIP)
and which site has which file (RLS); and what VJM knows: how long earlier placeholders waited (Xing 2009).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from koala_adapter.model import ClusterName, Component
from koala_adapter.scheduler.placement.packing import Piece, pack

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
    files: tuple[str, ...] = ()
    """Paths of files, and of directories with all below them, that its nodes have already (RLS)."""
    bandwidth: float | None = None
    """MiB/s from the submitting host to its nodes; None: not known (NIP)."""
    bandwidth_from: tuple[tuple[ClusterName, float], ...] = ()
    """MiB/s to its nodes from other clusters, where known (NIP)."""
    expected_wait: float | None = None
    """Seconds that new placeholders will probably wait there, by its waiting history; None: nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentRequest:
    """A component that needs a cluster."""

    component: Component
    walltime: int
    """Seconds that will be asked from the LRM."""
    excluded: frozenset[ClusterName] = frozenset()
    """Clusters that refused it for good."""
    splittable: bool = False
    """It may be split over several clusters, and the job's policy does that."""

    @property
    def kept_whole(self) -> bool:
        """True when the user lets it be split and the job's policy does not do that."""
        return self.component.flexible and not self.splittable

    @property
    def least(self) -> int:
        """Processors that must be on one cluster, at least."""
        return 1 if self.splittable else self.component.minimum

    def never(self, view: ClusterView) -> str | None:
        """Return why this component can never run on a cluster; None when it can."""
        if self.component.cluster is not None and self.component.cluster != view.name:
            return "the component asks for another cluster"
        if view.name in self.excluded:
            return "its batch system refused the submission"
        if view.walltime_limit is not None and self.walltime > view.walltime_limit:
            return f"needs a walltime of {self.walltime} s there, the limit is {view.walltime_limit} s"
        least = 1 if self.splittable else self.component.minimum  # not a call: every cluster is asked for every job
        if view.capacity is not None and least > view.capacity:
            return f"needs {least} processors, at most {view.capacity} can be used there"
        if view.in_flight is not None and least > view.in_flight:
            return f"needs {least} placeholders at once, the limit there is {view.in_flight}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedComponent:
    """Where a component goes and how many processors it gets."""

    component: str
    cluster: ClusterName
    processors: int
    piece: int | None = None
    """Share of the component's minimum, where it was split over several clusters."""


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
    splits: bool = False
    """Whether it may split flexible components over several clusters."""

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
        if all(request.never(view) is not None for view in allowed(request, views)):
            return f"component {request.component.name!r} fits nowhere ({_reasons(request, views)})" + (
                "; its placement policy splits no components"
                if request.kept_whole
                else _split(request, requests, views)
            )
        if request.splittable and (never := _too_large_in_pieces(request, views)) is not None:
            return never
    return _joint_infeasibility(requests, views)


def _split(
    request: ComponentRequest, requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]
) -> str:
    """Return the hint that the job can be placed if this component may be split; empty when it cannot."""
    if request.splittable or request.component.cluster is not None:
        return ""
    if infeasibility([replace(one, splittable=True) if one is request else one for one in requests], views) is not None:
        return ""
    return "; split over several clusters it fits: `koala run --split`, or `flexible = true` in the job file"


def _first_fit(requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> bool:
    """Tell whether each component fits into the first clusters with room for it: a quick yes; no means nothing."""
    taken: dict[ClusterName, int] = {}
    for request in requests:
        need = request.component.minimum
        for view in allowed(request, views):
            most = most_ever(view)
            left = need if most is None else most - taken.get(view.name, 0)
            if request.never(view) is None and left >= (1 if request.splittable else need):
                part = min(need, left)
                taken[view.name] = taken.get(view.name, 0) + part
                need -= part
                if need == 0:
                    break
        else:
            return False
    return True


def _too_large_in_pieces(request: ComponentRequest, views: Mapping[ClusterName, ClusterView]) -> str | None:
    """Return why a component that may be split is too large for all clusters together; None when it is not."""
    bounds = [most_ever(view) for view in allowed(request, views) if request.never(view) is None]
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds) or sum(known) >= request.component.minimum:
        return None
    need = request.component.minimum
    return f"component {request.component.name!r} needs {need} processors, all its clusters have {sum(known)} to use"


def allowed(request: ComponentRequest, views: Mapping[ClusterName, ClusterView]) -> Iterable[ClusterView]:
    """Return the clusters among which a component has the choice."""
    pinned = request.component.cluster
    if pinned is None:
        return views.values()
    return [views[pinned]] if pinned in views else []


def _reasons(request: ComponentRequest, views: Mapping[ClusterName, ClusterView]) -> str:
    said = listed(f"{view.name}: {request.never(view)}" for view in allowed(request, views))
    pinned = request.component.cluster
    return said or (f"{pinned}: not in the site file" if pinned is not None else "no cluster is configured")


def _joint_infeasibility(requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> str | None:
    needed: dict[ClusterName, int] = {}
    for request in requests:
        if request.component.cluster is not None:
            needed[request.component.cluster] = needed.get(request.component.cluster, 0) + request.component.minimum
    for name, processors in needed.items():
        most = most_ever(views[name])
        if most is not None and processors > most:
            return f"its components need {processors} processors on {name} together, at most {most} can be used there"
    if len(requests) < 2 or any(view.capacity is None for view in views.values()):  # noqa: PLR2004 - one fits alone
        return None
    rooms = {name: most_ever(view) or 0 for name, view in views.items()}
    total = sum(request.component.minimum for request in requests)
    if total > sum(rooms.values()):
        return f"the job needs {total} processors at once, all clusters together have {sum(rooms.values())} to use"
    whole = [request for request in requests if not request.splittable]
    packing = pack(pieces(whole, views.values()), rooms)
    if packing.clusters is None and packing.exhaustive:
        sizes = ", ".join(str(request.component.minimum) for request in whole)
        fitting = listed(f"{name}: {room}" for name, room in rooms.items())
        return f"its components ({sizes} processors) do not fit into the clusters at the same time ({fitting})"
    return None


def most_ever(view: ClusterView) -> int | None:
    """Return how many processors one job can ever have on a cluster."""
    bounds = [bound for bound in (view.capacity, view.in_flight) if bound is not None]
    return min(bounds) if bounds else None


def pieces(requests: Sequence[ComponentRequest], views: Iterable[ClusterView]) -> list[Piece]:
    """Return components as they are packed into clusters."""
    usable = list(views)
    return [
        Piece(
            name=request.component.name,
            size=request.component.minimum,
            clusters=frozenset(view.name for view in usable if request.never(view) is None),
        )
        for request in requests
    ]


def listed(said: Iterable[str]) -> str:
    """Join what is said of each cluster, leaving out the end of a long list."""
    first = list(islice(said, LISTED + 1))
    return "; ".join([*first[:LISTED], "…"] if len(first) > LISTED else first)

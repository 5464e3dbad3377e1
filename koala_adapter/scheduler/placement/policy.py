# SPDX-License-Identifier: Apache-2.0
"""The interface of placement policies: views of clusters, requests, answers, and what can never be placed.

A policy sees clusters as values and answers with a value: placed, insufficient (not now) or infeasible (never). Its
information is that of KOALA's information service (CoreGRID TR-0092): processors (PIP), bandwidth between sites (NIP),
and which site has which file (RLS); and that of VJM: how long earlier placeholders waited (Xing 2009). In order: exact
packing, the interface with the test of infeasibility, and the budget of processors that policies place from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from koala_adapter.model import ClusterName, Component
from koala_adapter.scheduler.parameters import Parameters, absent, lacking
from koala_adapter.slots import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


# -- Exact packing, where the greedy placement finds none ----------------------------------------------------
# Fitting components into clusters is bin packing, so the search is bounded; beyond the bound the answer is "not known".
# Without it, a job whose only fit the greedy placement misses would wait for ever on idle clusters, and one that fits
# in no way at all could not be refused.

EFFORT = 20_000
"""Clusters looked at in one search, at most."""
MOST_PIECES = 200
"""With more components the search is not even begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Size and allowed clusters of a component to be packed."""

    name: str
    size: int
    clusters: frozenset[ClusterName]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Result of packing."""

    clusters: Mapping[str, ClusterName] | None
    """Component name to cluster; None when no fit was found."""
    exhaustive: bool
    """True when ``clusters`` being None proves that there is no fit."""


def pack(pieces: Sequence[Piece], rooms: Mapping[ClusterName, int]) -> Packing:
    """Fit all pieces into the rooms, emptier clusters first; or report that it is impossible."""
    if len(pieces) > MOST_PIECES:
        return Packing(clusters=None, exhaustive=False)
    search = _Search(sorted(pieces, key=lambda piece: -piece.size), rooms)
    found = search.fit(0)
    return Packing(clusters=search.chosen if found else None, exhaustive=search.effort > 0)


def pack_fewest(pieces: Sequence[Piece], rooms: Mapping[ClusterName, int]) -> Mapping[str, ClusterName] | None:
    """Fit all pieces into as few rooms as possible; None when no fit was found at all.

    Exact as long as the search stays within its bound; beyond it, the fewest that were found.
    """
    if not pieces:
        return {}
    found = pack(pieces, rooms).clusters
    if found is None:
        return None
    best = min((found, _tight(pieces, rooms) or found), key=lambda clusters: len(set(clusters.values())))
    effort = EFFORT
    for most in range(_fewest_possible(pieces, rooms), len(set(best.values()))):
        search = _Search(sorted(pieces, key=lambda piece: -piece.size), rooms, most=most, effort=effort)
        if search.fit(0):
            return search.chosen
        effort = search.effort
        if effort <= 0:
            break
    return best


def _fewest_possible(pieces: Sequence[Piece], rooms: Mapping[ClusterName, int]) -> int:
    """Return a lower bound for the number of rooms."""
    need = sum(piece.size for piece in pieces)
    for count, room in enumerate(sorted(rooms.values(), reverse=True), start=1):
        need -= room
        if need <= 0:
            return count
    return len(rooms)


def _tight(pieces: Sequence[Piece], rooms: Mapping[ClusterName, int]) -> Mapping[str, ClusterName] | None:
    """Fit pieces greedily into used rooms first, then into the largest; may miss a fit."""
    left = dict(rooms)
    chosen: dict[str, ClusterName] = {}
    used: set[ClusterName] = set()
    for piece in sorted(pieces, key=lambda piece: -piece.size):
        fitting = [name for name, room in left.items() if room >= piece.size and name in piece.clusters]
        if not fitting:
            return None
        name = max(fitting, key=lambda name: (name in used, left[name]))
        left[name] -= piece.size
        used.add(name)
        chosen[piece.name] = name
    return chosen


class _Search:
    """Depth-first search, largest piece first; with ``most``, into no more rooms than that."""

    def __init__(
        self,
        pieces: Sequence[Piece],
        rooms: Mapping[ClusterName, int],
        *,
        most: int | None = None,
        effort: int = EFFORT,
    ) -> None:
        self._pieces = pieces
        self._rooms = {name: max(0, room) for name, room in rooms.items()}
        self._most = len(rooms) if most is None else most
        self._free = sum(self._rooms.values())
        self._needs = [sum(piece.size for piece in pieces[first:]) for first in range(len(pieces))]
        self._users: dict[ClusterName, int] = {}
        self.chosen: dict[str, ClusterName] = {}
        self.effort = effort

    def fit(self, first: int) -> bool:
        """Fit the pieces from number ``first`` on (recursion as deep as the job has components)."""
        if first == len(self._pieces):
            return True
        if self._needs[first] > self._free:
            return False
        piece = self._pieces[first]
        self.effort -= len(self._rooms)
        full = len(self._users) >= self._most
        fitting = [
            name
            for name, room in self._rooms.items()
            if room >= piece.size and name in piece.clusters and (not full or name in self._users)
        ]
        for name in sorted(fitting, key=lambda name: -self._rooms[name]):
            if self.effort <= 0:
                return False
            self._take(name, piece.size, 1)
            self.chosen[piece.name] = name
            if self.fit(first + 1):
                return True
            self._take(name, -piece.size, -1)
        return False

    def _take(self, name: ClusterName, size: int, users: int) -> None:
        self._rooms[name] -= size
        self._free -= size
        self._users[name] = self._users.get(name, 0) + users
        if not self._users[name]:
            del self._users[name]


# -- Views, requests, answers, and infeasible jobs -----------------------------------------------------------

LISTED = 8
"""Most clusters that one message tells about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """A cluster as placement policies see it."""

    name: ClusterName
    capacity: int | None
    """Slots that placeholders may ever hold there (configured less threshold); None: not known yet."""
    in_flight: int | None = None
    """Most placeholders that may wait in its queue at once: no component can be larger. None: no bound."""
    room: int
    """Further placeholders that may be submitted now."""
    available: int
    """Slots a claim would get at once."""
    load_free: int
    """As ``available`` but negative when more has been asked than is free: a measure of load."""
    walltime_limit: int | None
    closed: str | None = None
    """Why nothing may be placed there at present (unavailable, paused); None when open."""
    files: tuple[str, ...] = ()
    """Paths of files, and of directories with all below them, that its nodes have already (RLS)."""
    found: Mapping[str, str] = field(default_factory=dict)
    """Further input files that its nodes have, by their sources; the values are for the launch alone (RLS)."""
    bringable: Mapping[str, int | None] = field(default_factory=dict)
    """Logical names of input files that can be brought to it from elsewhere, with their bytes, where known (RLS)."""
    here: bool = False
    """The submitting host is at its site."""
    bandwidth: float | None = None
    """MiB/s from the submitting host to its nodes; None: not known (NIP)."""
    bandwidth_from: tuple[tuple[ClusterName, float], ...] = ()
    """MiB/s to its nodes from other clusters, where known (NIP)."""
    expected_wait: float | None = None
    """Seconds that new placeholders will probably wait there, by its waiting history; None: nothing is known."""
    software: tuple[str, ...] = ()
    """Names of the software that its nodes have."""
    container_runtime: str = ""
    """Program that runs containers on its nodes; empty: none does."""
    slot_processors: int = 1
    """Processors of the cluster that one slot takes: all counts here are of slots of the component that is placed."""
    lack: str = ""
    """Why the cluster has no such slot, and never will."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentRequest:
    """A component to be placed."""

    component: Component
    walltime: int
    """Seconds that will be asked from the LRM."""
    excluded: frozenset[ClusterName] = frozenset()
    """Clusters that refused it for good."""
    splittable: bool = False
    """It may be split over several clusters, and the job's policy does that."""

    @property
    def least(self) -> int:
        """Processors that must be on one cluster, at least."""
        return 1 if self.splittable else self.component.minimum

    def never(self, view: ClusterView) -> str | None:  # noqa: PLR0911 - one return for each reason
        """Return why this component cannot run on a cluster, whatever becomes free there; None when it can."""
        if self.component.cluster is not None and self.component.cluster != view.name:
            return "the component asks for another cluster"
        if view.name in self.excluded:
            return "its batch system refused the submission"
        if view.walltime_limit is not None and self.walltime > view.walltime_limit:
            return f"needs a walltime of {self.walltime} s there, the limit is {view.walltime_limit} s"
        if view.lack:
            return view.lack
        least = 1 if self.splittable else self.component.minimum  # not a call: every cluster is asked for every job
        if view.capacity is not None and least > view.capacity:
            return f"needs {slots_said(self.component, least)}, at most {view.capacity} can be used there"
        if view.in_flight is not None and least > view.in_flight:
            return f"needs {least} placeholders at once, the limit there is {view.in_flight}"
        return lacking(self.component, view.software, view.container_runtime) or absent(
            self.component, view.found, view.bringable
        )

    def anywhere(self) -> ComponentRequest:
        """Return the request without logical names of files: a catalogue may get them at any time."""
        if not any(file.logical for file in self.component.input_files):
            return self
        return replace(self, component=replace(self.component, input_files=self.component.files_sent))


def slots_said(component: Component, count: int) -> str:
    """Return a number of slots in words; plain slots are called processors."""
    slot = component.slot
    if slot == PLAIN:
        return f"{count} processors"
    return f"{count} {'slot' if count == 1 else 'slots'} of {slot}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedComponent:
    """Cluster and slots of a placed component."""

    component: str
    cluster: ClusterName
    processors: int
    piece: int | None = None
    """Share of the component's minimum, where it was split over several clusters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Complete placement of a request."""

    components: tuple[PlacedComponent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Insufficient:
    """Result: cannot be placed now, as too little is free."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """Result: can never be placed on the configured clusters."""

    reason: str


PlacementResult = Placed | Insufficient | Infeasible


class PlacementPolicy(ABC):
    """Policy that chooses clusters for components; pure."""

    name: str
    splits: bool = False
    """Whether it may split flexible components over several clusters."""

    def set_by(self, parameters: Parameters) -> PlacementPolicy:  # noqa: ARG002 - most policies have no settings
        """Return the policy with the settings that a site has made for it."""
        return self

    @abstractmethod
    def place(self, requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> PlacementResult:
        """Place all components or none."""


def infeasibility(requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> str | None:
    """Return why a job can never be placed, whatever becomes free; None when it can.

    Clusters that have not been seen yet count as able to hold anything. All components must fit at the same time.
    """
    requests = [request.anywhere() for request in requests]
    if _first_fit(requests, views):
        return None
    for request in requests:
        if all(request.never(view) is not None for view in allowed(request, views)):
            whole = request.component.flexible and not request.splittable
            hint = "; its placement policy splits no components" if whole else _split(request, requests, views)
            return f"component {request.component.name!r} fits nowhere ({_reasons(request, views)}){hint}"
        if request.splittable and (never := _too_large_in_pieces(request, views)) is not None:
            return never
    return _joint_infeasibility(requests, views)


def _split(
    request: ComponentRequest, requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]
) -> str:
    """Return a hint that splitting this component would help; empty when it would not."""
    if request.splittable or request.component.cluster is not None:
        return ""
    if infeasibility([replace(one, splittable=True) if one is request else one for one in requests], views) is not None:
        return ""
    return "; split over several clusters it fits: `koala run --split`, or `flexible = true` in the job file"


def _first_fit(requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> bool:
    """Return True when a quick first fit succeeds; False means nothing."""
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
    """Return why a component is too large even when split; None when it is not."""
    bounds = [most_ever(view) for view in allowed(request, views) if request.never(view) is None]
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds) or sum(known) >= request.component.minimum:
        return None
    need = request.component.minimum
    needs = slots_said(request.component, need)
    return f"component {request.component.name!r} needs {needs}, all its clusters have {sum(known)} to use"


def allowed(request: ComponentRequest, views: Mapping[ClusterName, ClusterView]) -> Iterable[ClusterView]:
    """Return the clusters that a component may use."""
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
    for name, count in needed.items():
        most = most_ever(views[name])
        if most is not None and count > most:
            needs = slots_said(requests[0].component, count)
            return f"its components need {needs} on {name} together, at most {most} can be used there"
    if len(requests) < 2 or any(view.capacity is None for view in views.values()):  # noqa: PLR2004 - one fits alone
        return None
    rooms = {name: most_ever(view) or 0 for name, view in views.items() if _usable(requests, view)}
    total = sum(request.component.minimum for request in requests)
    if total > sum(rooms.values()):
        needs = slots_said(requests[0].component, total)
        have = f"{sum(rooms.values())} together ({_rooms_said(rooms)})"
        return f"the job needs {needs} at once, the clusters that suit it have {have}"
    whole = [request for request in requests if not request.splittable]
    packing = pack(pieces(whole, views.values()), rooms)
    if packing.clusters is None and packing.exhaustive:
        sizes = ", ".join(str(request.component.minimum) for request in whole)
        return (
            f"its components ({sizes} processors) do not fit into the clusters at the same time ({_rooms_said(rooms)})"
        )
    return None


def _rooms_said(rooms: Mapping[ClusterName, int]) -> str:
    return listed(f"{name}: {room}" for name, room in rooms.items())


def _usable(requests: Sequence[ComponentRequest], view: ClusterView) -> bool:
    """Return whether any component can ever run on a cluster."""
    return any(request.never(view) is None for request in requests)


def most_ever(view: ClusterView) -> int | None:
    """Return how many processors one job can ever have on a cluster."""
    bounds = [bound for bound in (view.capacity, view.in_flight) if bound is not None]
    return min(bounds) if bounds else None


def pieces(requests: Sequence[ComponentRequest], views: Iterable[ClusterView]) -> list[Piece]:
    """Return components in the form for packing."""
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
    """Join texts about clusters, shortened."""
    first = list(islice(said, LISTED + 1))
    return "; ".join([*first[:LISTED], "…"] if len(first) > LISTED else first)


# -- Making a placement: remaining processors, sizes, what is missing ----------------------------------------

if TYPE_CHECKING:
    Preference = Callable[[ComponentRequest, ClusterView], tuple[float, ...]]
    """How much a cluster suits a component, greater is better; it counts before the load."""


class Share(NamedTuple):
    """Processors of a cluster for a component, or for a piece of it."""

    request: ComponentRequest
    cluster: ClusterName
    processors: int


class Budget:
    """Remaining processors during one placement."""

    def __init__(self, views: Mapping[ClusterName, ClusterView]) -> None:
        self._views = views
        self._taken: dict[ClusterName, int] = {}

    def available(self, name: ClusterName) -> int:
        """Return how many processors more could be had at once."""
        return self._views[name].available - self._taken.get(name, 0)

    def take(self, name: ClusterName, processors: int) -> None:
        """Subtract processors for a component."""
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
    """Set the sizes of shares; moldable components get idle processors up to their maximum."""
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
    """Return why a job cannot be placed: Infeasible or Insufficient."""
    never = infeasibility(requests, views)
    return Insufficient(reason=shortage(requests, views)) if never is None else Infeasible(reason=never)


def shortage(requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> str:
    """Return in words what is missing on which clusters."""
    for request in sorted(requests, key=lambda r: -r.component.minimum):
        component, least = request.component, request.least
        asked = allowed(request, views)
        if not any(view.room >= least and view.closed is None and request.never(view) is None for view in asked):
            there = request.anywhere()
            said = listed(
                f"{view.name}: {view.closed or absent(component, view.found, view.bringable) or _room(view)}"
                for view in asked
                if there.never(view) is None
            )
            return f"component {component.name!r} needs {slots_said(component, component.minimum)} ({said})"
    total = sum(request.component.minimum for request in requests)
    said = listed(f"{view.name}: {view.closed or _room(view)}" for view in views.values() if _usable(requests, view))
    if len(requests) == 1:
        return f"component {requests[0].component.name!r} needs {slots_said(requests[0].component, total)} ({said})"
    return f"its {len(requests)} components need {slots_said(requests[0].component, total)} together ({said})"


def _room(view: ClusterView) -> str:
    return f"room for {max(0, view.room)}"

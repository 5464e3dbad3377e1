# SPDX-License-Identifier: Apache-2.0
"""Exact search for a way to fit components into clusters, for where the greedy placement finds none.

Fitting components into clusters is bin packing, so the search is bounded; beyond the bound the answer is "not known".
Without it, a job whose only fit the greedy placement misses would wait for ever on idle clusters, and one that fits in
no way at all could not be refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.model import ClusterName

EFFORT = 20_000
"""Clusters looked at in one search, at most."""
MOST_PIECES = 200
"""With more components the search is not even begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A component to be fitted: its size, and the clusters that it may go to."""

    name: str
    size: int
    clusters: frozenset[ClusterName]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Answer of a search."""

    clusters: Mapping[str, ClusterName] | None
    """Component name to cluster; None when no fit was found."""
    exhaustive: bool
    """True when ``clusters`` being None proves that there is no fit."""


def pack(pieces: Sequence[Piece], rooms: Mapping[ClusterName, int]) -> Packing:
    """Fit all pieces into the rooms, or tell that it cannot be done. Emptier clusters are preferred."""
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
    """Return a number of rooms below which there is certainly no fit."""
    need = sum(piece.size for piece in pieces)
    for count, room in enumerate(sorted(rooms.values(), reverse=True), start=1):
        need -= room
        if need <= 0:
            return count
    return len(rooms)


def _tight(pieces: Sequence[Piece], rooms: Mapping[ClusterName, int]) -> Mapping[str, ClusterName] | None:
    """Fit pieces into the rooms already used as long as that goes, else into the largest: quick, and often enough."""
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

# SPDX-License-Identifier: Apache-2.0
"""Which of many is due first, and when: at a cost that does not grow with how many there are. Pure."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

Key = TypeVar("Key", bound="Hashable")

_SLACK = 64
"""So many entries that do not hold any more are not worth a tidying up."""


class Deadlines(Generic[Key]):
    """One time for each key, in seconds of any clock; most keys have none."""

    def __init__(self) -> None:
        """Nothing is due."""
        self._at: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        """Also what does not hold any more. The number: keys need not be comparable."""
        self._set = 0

    def __len__(self) -> int:
        """Keys that are due at some time."""
        return len(self._at)

    def set(self, key: Key, at: float | None) -> None:
        """Have a key due at a time, in the place of an earlier one; None: not any more."""
        if self._at.get(key) == at:
            return
        if at is None:
            del self._at[key]
            return
        self._at[key] = at
        self._push(key, at)
        if len(self._heap) > 2 * len(self._at) + _SLACK:
            self._heap.clear()
            for one, when in self._at.items():
                self._push(one, when)

    def _push(self, key: Key, at: float) -> None:
        self._set += 1
        heapq.heappush(self._heap, (at, self._set, key))

    def first(self) -> float | None:
        """Return when the first is due; None: none is."""
        while self._heap and self._at.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[Key]:
        """Return what is due by now, the first one first, and have it due no more."""
        keys = []
        while (at := self.first()) is not None and at <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._at[key]
            keys.append(key)
        return keys

# SPDX-License-Identifier: Apache-2.0
"""Virtual time: what is to happen, in order. Nothing waits, and the same seed gives the same world."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock:
    """A list of things to do at certain times."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        """Begin at ``now`` seconds."""
        self.now = now
        self._number = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Have something done at a time, or now if that is past."""
        self._number += 1
        heapq.heappush(self._agenda, (max(time, self.now), self._number, action))

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Have something done after so many seconds."""
        self.at(self.now + delay, action)

    def step(self) -> bool:
        """Do the next thing; return False when there is none."""
        if not self._agenda:
            return False
        self.now, _, action = heapq.heappop(self._agenda)
        action()
        return True

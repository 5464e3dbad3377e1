# SPDX-License-Identifier: Apache-2.0
"""The bag of work units of one application that runs live. Pure.

The whole work of an application of the simulator is cut into units of equal size. On n workers a unit takes n times as
long as the n-th execution time divided by the units, so that n workers that take one unit after the other need just the
execution time on n processors, however poorly the application makes use of them.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALLEST = 0.1
"""Smallest part of a unit that is given out, unless less is left."""
NOTHING = 1e-9
"""What is left of many fractions is no work."""


class Bag:
    """What is left of the work of one application, and how many workers it has."""

    def __init__(self, times: Sequence[float], unit: float, *, at: int) -> None:
        """``times``: seconds that the whole work takes on 0, 1, 2 ... workers; beyond the last, as on the last.

        ``unit``: seconds, at most, that one unit takes on ``at`` workers.
        """
        self._times = times
        self.units = max(1, ceil(times[at] * at / unit))
        self.left = float(self.units)
        """Units that nobody works on."""
        self._taken: dict[int, float] = {}
        """What each worker works on, in units."""
        self._workers: set[int] = set()

    @property
    def empty(self) -> bool:
        """True when all the work is done."""
        return self.left <= 0 and not self._taken

    def join(self, worker: int) -> None:
        """Count a worker from now on."""
        self._workers.add(worker)

    def leave(self, worker: int) -> None:
        """Count a worker no more; what it worked on is back in the bag."""
        self._workers.discard(worker)
        self.left += self._taken.pop(worker, 0.0)

    def take(self, worker: int) -> float | None:
        """Return the seconds for which a worker is to work; None: there is nothing to be done at present."""
        if self.left <= 0:
            return None
        count = min(max(1, len(self._workers)), len(self._times) - 1)
        share = min(1.0, self.left, max(SMALLEST, self.left / count))  # small ones last, so that all end together
        self.left -= share
        if self.left < NOTHING:
            self.left = 0.0
        self._taken[worker] = share
        return share * count * self._times[count] / self.units

    def done(self, worker: int, part: float) -> None:
        """Take note that a worker has done a part, from 0 to 1, of what it took; the rest is back in the bag."""
        self.left += self._taken.pop(worker, 0.0) * (1.0 - min(1.0, max(0.0, part)))

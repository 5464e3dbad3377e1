# SPDX-License-Identifier: Apache-2.0
"""Free processors over future time: the profile in which reservations are made. Pure.

A step function of time, kept as breakpoints in blocks of at most :data:`BLOCK`. Each block knows its highest and lowest
level relative to the level before it, so that a search skips whole blocks and a change touches two of them: with ten
thousand reservations both take microseconds, where a plain list would take milliseconds. A second class searches the
profile for the earliest starts of many jobs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_Place: TypeAlias = tuple[int, int, int]
"""A breakpoint: its block, its index there, and the level before that block."""

BLOCK = 48
"""Most breakpoints in a block; a fuller one is split in two."""


class Profile:
    """Free processors from an instant on; the last level holds for ever.

    Levels may be below 0 (more is held than there is). Times are seconds.
    """

    __slots__ = ("_firsts", "_highs", "_levels", "_lows", "_sums", "_times", "tried")

    tried: int
    """Gaps that :meth:`earliest` has tried in all: what its time goes with."""

    def __init__(self, now: float, free: int, ends: Iterable[tuple[float, int, object]] = ()) -> None:
        """``free``: processors free now; ``ends``: sorted (end, processors, job) of the running jobs.

        An end that has passed counts as one right now.
        """
        self.tried = 0
        times = [now]
        levels = [free]
        for end, processors, _ in ends:
            if end <= times[-1]:
                levels[-1] += processors
            else:
                times.append(end)
                levels.append(levels[-1] + processors)
        half = BLOCK // 2
        self._times: list[list[float]] = []
        self._levels: list[list[int]] = []
        self._firsts: list[float] = []
        self._highs: list[int] = []
        self._lows: list[int] = []
        self._sums: list[int] = []
        below = 0
        for first in range(0, len(times), half):
            self._insert_block(len(self._times), times[first : first + half], levels[first : first + half], below)
            below = levels[min(first + half, len(levels)) - 1]

    def __iter__(self) -> Iterator[tuple[float, int]]:
        """Yield each breakpoint: a time, and how many are free from then on."""
        below = 0
        for times, levels, total in zip(self._times, self._levels, self._sums, strict=True):
            for time, level in zip(times, levels, strict=True):
                yield time, below + level
            below += total

    def level(self, time: float) -> int:
        """Return the free processors at a time, which must not lie before the profile."""
        at = bisect_right(self._firsts, time) - 1
        return sum(islice(self._sums, at)) + self._levels[at][bisect_right(self._times[at], time) - 1]

    def least(self) -> list[tuple[float, int]]:
        """Return the minimum of free processors from the beginning to each time at which that minimum falls.

        The times are where such a period ends, the last one infinity; the numbers only fall.
        """
        steps = []
        least = self._levels[0][0]
        below = 0
        for at, (low, total) in enumerate(zip(self._lows, self._sums, strict=True)):
            if below + low < least:
                for time, level in zip(self._times[at], self._levels[at], strict=True):
                    if below + level < least:
                        steps.append((time, least))
                        least = below + level
            below += total
        steps.append((inf, least))
        return steps

    def advance(self, now: float) -> None:
        """Drop the part of the profile before ``now``."""
        firsts = self._firsts
        gone = bisect_right(firsts, now) - 1
        if gone > 0:
            below = sum(self._sums[:gone])
            for column in (self._times, self._levels, firsts, self._highs, self._lows, self._sums):
                del column[:gone]
            self._levels[0] = [below + level for level in self._levels[0]]
            self._refresh(0)
        times = self._times[0]
        passed = bisect_right(times, now) - 1
        if passed > 0:
            del times[:passed], self._levels[0][:passed]
            self._refresh(0)
        times[0] = firsts[0] = max(times[0], now)

    def take(self, start: float, end: float, processors: int) -> None:
        """Hold processors from ``start`` to ``end``; a start before the profile means its beginning."""
        start = max(start, self._firsts[0])
        if end > start:
            self._change(start, -processors)
            if end < inf:
                self._change(end, processors)

    def give(self, start: float, end: float, processors: int) -> None:
        """Free processors that :meth:`take` held."""
        self.take(start, end, -processors)

    def earliest(
        self, processors: int, duration: float, *, after: float = -inf, before: float = inf
    ) -> tuple[float, float]:
        """Return the earliest start for processors and duration, and the longest shorter gap before it.

        Only times from ``after`` on and below ``before`` are considered; ``before`` is returned when there is none.
        What is free from ``before`` on does not matter: the caller holds that already.
        """
        after = max(after, self._firsts[0])
        at = bisect_right(self._firsts, after) - 1
        place = bisect_right(self._times[at], after) - 1
        begin: _Place = (at, place, sum(islice(self._sums, at)))
        longest = 0.0
        while (found := self._first_with(processors, begin)) is not None:
            start = max(self._times[found[0]][found[1]], after)
            if start >= before:
                break
            end = self._first_without(processors, found, min(start + duration, before))
            if end is None:
                return start, longest
            longest = max(longest, self._times[end[0]][end[1]] - start)
            begin = end
            self.tried += 1
        return before, longest

    def since(self, processors: int, time: float) -> float:
        """Return since when the processors are free without interruption until a time; that time if they are not."""
        at = bisect_left(self._firsts, time) - 1
        if at < 0:
            return time
        below = sum(islice(self._sums, at))
        place = bisect_left(self._times[at], time)
        while True:
            levels, times = self._levels[at], self._times[at]
            need = processors - below
            if self._lows[at] < need:
                for back in range(place - 1, -1, -1):
                    if levels[back] < need:
                        return time
                    time = times[back]
            else:
                time = times[0]
            if not at:
                return time
            at -= 1
            below -= self._sums[at]
            place = len(self._times[at])

    # Searching

    def _first_with(self, processors: int, place: _Place) -> _Place | None:
        """Return the first breakpoint from a place on with so many free processors."""
        at, first, below = place
        highs, sums = self._highs, self._sums
        for block in range(at, len(highs)):
            need = processors - below
            if highs[block] >= need:
                levels = self._levels[block]
                for index in range(first, len(levels)):
                    if levels[index] >= need:
                        return block, index, below
            below += sums[block]
            first = 0
        return None

    def _first_without(self, processors: int, place: _Place, until: float) -> _Place | None:
        """Return the first breakpoint in a range with fewer free processors."""
        at, first, below = place
        firsts, lows, sums = self._firsts, self._lows, self._sums
        for block in range(at, len(firsts)):
            if firsts[block] >= until:
                return None
            need = processors - below
            if lows[block] < need:
                levels = self._levels[block]
                for index in range(first, bisect_left(self._times[block], until)):
                    if levels[index] < need:
                        return block, index, below
            below += sums[block]
            first = 0
        return None

    # Breakpoints and blocks

    def _change(self, time: float, amount: int) -> None:
        """Add ``amount`` to the level from a time on."""
        at = bisect_right(self._firsts, time) - 1
        times, levels = self._times[at], self._levels[at]
        place = bisect_left(times, time)
        if place == len(times):
            times.append(time)
            levels.append(levels[-1] + amount)
        elif times[place] == time:
            levels[place:] = [level + amount for level in islice(levels, place, None)]
            before = levels[place - 1] if place else 0
            if levels[place] == before and (place or at) and len(times) > 1:
                del times[place], levels[place]
                if not place:
                    self._firsts[at] = times[0]
        else:
            times.insert(place, time)
            levels.insert(place, levels[place - 1])
            levels[place:] = [level + amount for level in islice(levels, place, None)]
        if len(times) > BLOCK:
            self._split(at)
        else:
            self._refresh(at)

    def _split(self, at: int) -> None:
        """Make two blocks of one that became too full."""
        times, levels = self._times[at], self._levels[at]
        half = len(times) // 2
        below = levels[half - 1]
        self._insert_block(at + 1, times[half:], levels[half:], below)
        del times[half:], levels[half:]
        self._refresh(at)

    def _insert_block(self, at: int, times: list[float], levels: list[int], below: int) -> None:
        """Insert a block whose levels count from the same base as ``below``."""
        self._times.insert(at, times)
        self._levels.insert(at, [level - below for level in levels])
        self._firsts.insert(at, times[0])
        for column in (self._highs, self._lows, self._sums):
            column.insert(at, 0)
        self._refresh(at)

    def _refresh(self, at: int) -> None:
        """Recompute the cached bounds of a block."""
        levels = self._levels[at]
        self._highs[at] = max(levels)
        self._lows[at] = min(levels)
        self._sums[at] = levels[-1]


class EarliestStarts:
    """Searches a profile for earliest starts of many jobs, skipping ranges known to have no gap.

    Where no gap was found for a job, there is none for one of the same size that takes longer, until something comes
    free: then none before the gap that this made larger.
    """

    __slots__ = ("_freed", "_known", "_profile")

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._known: dict[int, _Known] = {}
        self._freed: list[float] = []

    def forget(self) -> None:
        """Drop cached results: more processors are free from the beginning on."""
        self._known.clear()
        self._freed.clear()

    def freed(self, time: float) -> None:
        """Update cached results: more processors are free from a time on, and not before."""
        self._freed.append(time)

    def find(self, processors: int, duration: float) -> float:
        """Return the earliest start of a job."""
        known = self._up_to_date(processors)
        gap, bound = known.bound(duration)
        start, longest = self._profile.earliest(processors, duration, after=bound)
        known.note(max(gap, longest), start)
        return start

    def improve(self, processors: int, duration: float, start: float) -> float:
        """Return the earliest start of a job that holds a reservation in the profile: the same one, or an earlier."""
        known = self._up_to_date(processors)
        gap, bound = known.bound(duration)
        # A window that ends after the reserved start lies in the gap before it and in what the job itself holds.
        adjacent = self._profile.since(processors, start)
        if adjacent <= bound:
            return min(adjacent, start)
        better, longest = self._profile.earliest(processors, duration, after=bound, before=start)
        known.note(max(gap, longest), better)
        return better

    def _up_to_date(self, processors: int) -> _Known:
        """Return the cached bounds of a size without those that no longer hold."""
        known = self._known.get(processors)
        if known is None:
            known = self._known[processors] = _Known(len(self._freed))
        elif known.seen < len(self._freed):
            known.lower(self._profile.since(processors, min(islice(self._freed, known.seen, None))))
            known.seen = len(self._freed)
        return known


class _Known:
    """Upper bounds of gap lengths before some times, for jobs of one size; later times have longer gaps."""

    __slots__ = ("_bounds", "_gaps", "seen")

    def __init__(self, seen: int) -> None:
        self._gaps: list[float] = []
        self._bounds: list[float] = []
        self.seen = seen

    def bound(self, duration: float) -> tuple[float, float]:
        """Return (gap, time): gaps that begin before ``time`` are at most ``gap`` long, too short for the duration."""
        at = bisect_left(self._gaps, duration)
        return (self._gaps[at - 1], self._bounds[at - 1]) if at else (0.0, -inf)

    def note(self, gap: float, bound: float) -> None:
        """Record that gaps that begin before ``bound`` are no longer than ``gap``."""
        gaps, bounds = self._gaps, self._bounds
        first = bisect_left(gaps, gap)
        if first < len(bounds) and gaps[first] == gap and bounds[first] >= bound:
            return
        if first and bounds[first - 1] >= bound:
            return
        last = bisect_right(bounds, bound, first)
        gaps[first:last] = [gap]
        bounds[first:last] = [bound]

    def lower(self, bound: float) -> None:
        """Drop what is known of gaps after ``bound``: longer ones may exist there."""
        first = bisect_right(self._bounds, bound)
        if first < len(self._bounds):
            del self._gaps[first + 1 :], self._bounds[first + 1 :]
            self._bounds[first] = bound

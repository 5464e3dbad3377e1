# SPDX-License-Identifier: Apache-2.0
"""EASY backfill as one bare loop: no classes, no options, nothing that can be asked. The bar for the real one.

All events of one instant first, then one pass; the shadow time counts every estimated end up to and including it;
candidates in the order of the queue. The same schedule as ``koala simulate --policy easy``, to the second.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def plain_easy(  # noqa: C901, PLR0912, PLR0915 - one bare loop is the point
    submits: Sequence[float],
    runs: Sequence[float],
    sizes: Sequence[int],
    estimates: Sequence[float],
    processors: int,
) -> list[float]:
    """Return the start of each job; jobs are in order of submission."""
    starts = [0.0] * len(submits)
    free = processors
    queue: list[int] = []
    ends: list[tuple[float, int]] = []
    expected: list[tuple[float, int]] = []
    arrivals = [*submits, inf]
    to_come = 0
    arrival = arrivals[0]
    smallest = asked = extra = 0
    shadow = -inf
    came_free = False
    while ends or arrival < inf:
        now = ends[0][0] if ends and ends[0][0] < arrival else arrival
        while ends and ends[0][0] == now:
            job = heappop(ends)[1]
            size = sizes[job]
            free += size
            came_free = True
            del expected[bisect_left(expected, (starts[job] + estimates[job], size))]
        while arrival == now:
            if not queue or sizes[to_come] < smallest:
                smallest = sizes[to_come]
            queue.append(to_come)
            to_come += 1
            arrival = arrivals[to_come]
        if not queue or free < smallest:
            continue
        first = 0
        for job in queue:
            size = sizes[job]
            if size > free:
                break
            first += 1
            free -= size
            starts[job] = now
            heappush(ends, (now + runs[job], job))
            insort(expected, (now + estimates[job], size))
        if first:
            del queue[:first]
        if not queue:
            shadow = -inf
            continue
        if first or came_free or now > shadow:
            head = sizes[queue[0]]
            shadow = inf
            extra = free - head
            for end, size in expected:
                if end > shadow:
                    break
                extra += size
                if extra >= 0:
                    shadow = end
            came_free = False
            asked = 1
            smallest = head
        overtaking = []
        for job in islice(queue, asked, None):
            size = sizes[job]
            if size <= free and (size <= extra or now + estimates[job] <= shadow):
                end = now + estimates[job]
                if end > shadow:
                    extra -= size
                free -= size
                starts[job] = now
                heappush(ends, (now + runs[job], job))
                insort(expected, (end, size))
                overtaking.append(job)
                if not free:
                    smallest = 1
                    break
            elif size < smallest:
                smallest = size
        for job in overtaking:
            del queue[bisect_left(queue, job)]
        asked = len(queue)
    return starts

# SPDX-License-Identifier: Apache-2.0
"""Sizes as equal as the bounds of the jobs allow: what equipartition aims at."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.scheduler.malleable.runningjobs import MalleableJob


def equal_sizes(jobs: Sequence[MalleableJob], total: int) -> list[int]:
    """Return sizes as equal as the bounds allow that add up to ``total``, or to all maxima when it is more than that.

    The jobs are in the order of their start; ``total`` is at least the sum of the minima.
    """
    low, high = 0, max((job.maximum for job in jobs), default=0)
    while low < high:  # the highest level at which all fit
        level = (low + high + 1) // 2
        if sum(min(max(level, job.minimum), job.maximum) for job in jobs) <= total:
            low = level
        else:
            high = level - 1
    sizes = [min(max(low, job.minimum), job.maximum) for job in jobs]
    left = total - sum(sizes)
    for at, job in enumerate(jobs):
        if left > 0 and job.minimum <= low < job.maximum:
            sizes[at] += 1
            left -= 1
    return sizes


def levelled_sizes(jobs: Sequence[MalleableJob], value: int) -> list[int]:
    """Return the sizes after the largest jobs were brought down to one level so that ``value`` processors come free.

    No job goes below its minimum; where all together cannot give so many, all come down to their minima. Of those
    at the level, the least recently started may keep one more.
    """

    def freed(level: int) -> int:
        return sum(job.size - max(job.minimum, min(job.size, level)) for job in jobs)

    low, high = 0, max((job.size for job in jobs), default=0)
    while low < high:  # the highest level that frees enough
        level = (low + high + 1) // 2
        if freed(level) >= value:
            low = level
        else:
            high = level - 1
    sizes = [max(job.minimum, min(job.size, low)) for job in jobs]
    surplus = freed(low) - value
    for at, job in enumerate(jobs):
        if surplus > 0 and job.size > sizes[at] == low:
            sizes[at] += 1
            surplus -= 1
    return sizes

# SPDX-License-Identifier: Apache-2.0
"""The running malleable jobs of one cluster, kept in the order of their start and told apart by who can change.

A step of a malleability policy asks a few of perhaps thousands of jobs, so the first and last that can grow or shrink
are at hand, and how much all of them could give or take is a number that is kept, not a sum that is taken.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

Order = tuple[float, int]
"""Order of start: time, then running number."""


class MalleableJob:
    """A running malleable job (or its component on this cluster). Compared by identity; subclasses add what they need.

    ``size``: processors it has, those that it has accepted and is still getting included.
    ``number`` tells jobs apart that started at the same time; the pair must be unique within a cluster.
    """

    __slots__ = ("busy", "maximum", "minimum", "order", "size")

    def __init__(self, *, minimum: int, maximum: int, size: int, started_at: float, number: int) -> None:
        """Begin outside any :class:`RunningJobs`. Raises ValueError when the size is out of its bounds."""
        if not 0 <= minimum <= size <= maximum:
            raise ValueError(f"a size of {size} is not within {minimum} to {maximum}")
        self.minimum = minimum
        self.maximum = maximum
        self.size = size
        self.order: Order = (started_at, number)
        self.busy = False
        """True while a change is under way, during which no other begins."""


J = TypeVar("J", bound=MalleableJob)


class _Sorted(Generic[J]):
    """Jobs in the order of their start; adding and removing costs a bisection, the first and last are at hand."""

    __slots__ = ("jobs", "orders")

    def __init__(self) -> None:
        self.jobs: list[J] = []
        self.orders: list[Order] = []

    def add(self, job: J) -> None:
        order = job.order
        if not self.orders or self.orders[-1] < order:
            self.orders.append(order)
            self.jobs.append(job)
        else:
            at = bisect_left(self.orders, order)
            self.orders.insert(at, order)
            self.jobs.insert(at, job)

    def remove(self, job: J) -> None:
        at = bisect_left(self.orders, job.order)
        del self.orders[at]
        del self.jobs[at]


class RunningJobs(Generic[J]):
    """The running malleable jobs of one cluster, ready for questions in the order of their start.

    Change ``size`` and ``busy`` of a job only through :meth:`resize`, :meth:`begin` and :meth:`end` while it is here.
    """

    __slots__ = ("_all", "_growable", "_shrinkable", "growth", "spare")

    def __init__(self) -> None:
        """Begin without jobs."""
        self._all: _Sorted[J] = _Sorted()
        self._growable: _Sorted[J] = _Sorted()
        self._shrinkable: _Sorted[J] = _Sorted()
        self.growth = 0
        """Processors by which the jobs could grow to their maxima, those with a change under way not counted."""
        self.spare = 0
        """Processors that the jobs could give up without going below their minima, likewise."""

    def __len__(self) -> int:
        """Number of jobs."""
        return len(self._all.jobs)

    def __iter__(self) -> Iterator[J]:
        """Yield all jobs, the least recently started first."""
        return iter(self._all.jobs)

    @property
    def growable(self) -> list[J]:
        """Jobs below their maximum without a change under way, the least recently started first. Do not change."""
        return self._growable.jobs

    @property
    def shrinkable(self) -> list[J]:
        """Jobs above their minimum without a change under way, the least recently started first. Do not change."""
        return self._shrinkable.jobs

    def add(self, job: J) -> None:
        """Take in a job that has started."""
        self._all.add(job)
        if not job.busy:
            self._count(job)

    def remove(self, job: J) -> None:
        """Take out a job that has ended."""
        if not job.busy:
            self._discount(job)
        self._all.remove(job)

    def begin(self, job: J) -> None:
        """Note that a change of a job is under way."""
        if not job.busy:
            self._discount(job)
            job.busy = True

    def end(self, job: J) -> None:
        """Note that a job's change is through."""
        if job.busy:
            job.busy = False
            self._count(job)

    def resize(self, job: J, size: int) -> None:
        """Give a job another size. Raises ValueError when that is below its minimum or above its maximum."""
        before, minimum, maximum = job.size, job.minimum, job.maximum
        if not minimum <= size <= maximum:
            raise ValueError(f"a size of {size} is not within {minimum} to {maximum}")
        job.size = size
        if job.busy or size == before:
            return
        self.growth += before - size
        self.spare += size - before
        if before == maximum:
            self._growable.add(job)
        elif size == maximum:
            self._growable.remove(job)
        if before == minimum:
            self._shrinkable.add(job)
        elif size == minimum:
            self._shrinkable.remove(job)

    def rebound(self, job: J, *, minimum: int, maximum: int, size: int) -> None:
        """Give a job other bounds, and a size within them. Raises ValueError when it is not."""
        if not 0 <= minimum <= size <= maximum:
            raise ValueError(f"a size of {size} is not within {minimum} to {maximum}")
        if not job.busy:
            self._discount(job)
        job.minimum, job.maximum, job.size = minimum, maximum, size
        if not job.busy:
            self._count(job)

    def next_to_grow(self, after: Order | None) -> J | None:
        """Return the growable job that started next after ``after`` (None: the first of all)."""
        at = 0 if after is None else bisect_right(self._growable.orders, after)
        return self._growable.jobs[at] if at < len(self._growable.jobs) else None

    def next_to_shrink(self, before: Order | None) -> J | None:
        """Return the shrinkable job that started last before ``before`` (None: the last of all)."""
        orders = self._shrinkable.orders
        at = (len(orders) if before is None else bisect_left(orders, before)) - 1
        return self._shrinkable.jobs[at] if at >= 0 else None

    def _count(self, job: J) -> None:
        if job.size < job.maximum:
            self._growable.add(job)
            self.growth += job.maximum - job.size
        if job.size > job.minimum:
            self._shrinkable.add(job)
            self.spare += job.size - job.minimum

    def _discount(self, job: J) -> None:
        if job.size < job.maximum:
            self._growable.remove(job)
            self.growth -= job.maximum - job.size
        if job.size > job.minimum:
            self._shrinkable.remove(job)
            self.spare -= job.size - job.minimum

# SPDX-License-Identifier: Apache-2.0
"""Maui's backfill policies FIRSTFIT, BESTFIT and GREEDY, with a metric and a reservation depth. Pure.

A pass starts jobs in the order of the queue until one does not fit. Then the first jobs that cannot start now get a
reservation, as many as the reservation depth says. The processors that are idle now and not needed by a reservation are
the *gap*, and the policy chooses the later jobs that fill it. (Maui administrator's guide, backfill; Gergel 2011.)
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from enum import StrEnum
from itertools import accumulate, islice
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from koala_adapter.queueing.profile import Profile
from koala_adapter.queueing.queue import ARRIVAL, ClusterScheduler, LocalJob, PriorityWeights

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

_Chain: TypeAlias = "tuple[tuple[int, LocalJob], _Chain] | None"
"""The jobs of a combination, linked from the last one back: many combinations share their beginning."""

COMBINATIONS = 500_000
"""GREEDY is exact while candidates times free processors stay within this: less than 0.1 s for a pass."""


class Metric(StrEnum):
    """Quantity that a backfill policy maximizes (BACKFILLMETRIC): processors, seconds or their product."""

    PROCESSORS = "processors"
    """PROCS: processors."""
    PROCESSOR_SECONDS = "processor-seconds"
    """PROCSECONDS: processors times the estimate."""
    SECONDS = "seconds"
    """SECONDS: the estimate."""

    def of(self, job: LocalJob) -> float:
        """Return the value of a metric for a job."""
        if self is Metric.PROCESSORS:
            return job.processors
        return job.estimate if self is Metric.SECONDS else job.processors * job.estimate


class Gap:
    """The processors that may be used from now on without delaying a reservation.

    What is free now is free until the first reserved start; a job that ends later must also fit beside the jobs that
    hold their reservations then. So there is one limit for now, and one for each reserved start.
    """

    __slots__ = ("_least", "_spare", "_starts")

    def __init__(self, free: int, reserved: Iterable[tuple[float, int]] = ()) -> None:
        """``reserved``: (start, free processors left at it) of each reservation, in order of time."""
        self._starts: list[float] = []
        self._spare = [free]
        for start, spare in reserved:
            self._starts.append(start)
            self._spare.append(spare)
        self._least = list(accumulate(self._spare, min))

    @property
    def free(self) -> int:
        """Processors free now."""
        return self._spare[0]

    @property
    def unlimited(self) -> int:
        """Processors that may be used without limit of time."""
        return self._least[-1]

    def starts_before(self, end: float) -> int:
        """Return how many reserved starts come before the end of a job that ends at ``end``."""
        return bisect_left(self._starts, end)

    def most_across(self, reach: int) -> int:
        """Return how many processors jobs that last beyond ``reach`` reserved starts may have in sum."""
        return self._least[reach]

    def fits(self, processors: int, end: float) -> bool:
        """Return whether a job may run from now to ``end``."""
        return processors <= self._least[bisect_left(self._starts, end)]

    def fill(self, processors: int, end: float) -> None:
        """Take processors out of the gap until ``end``."""
        spare = self._spare
        for at in range(bisect_left(self._starts, end) + 1):
            spare[at] -= processors
        self._least = list(accumulate(spare, min))


class Maui(ClusterScheduler):
    """Base of Maui's policies: queue order, reservations, gap. Subclasses choose the jobs for the gap.

    The walk for reservations goes down the queue: a job that can start now without delaying those before it does, any
    other gets the earliest start that the reservations before it allow, until ``depth`` jobs have one. With a depth of
    1 the reserved start is EASY's shadow time.
    """

    __slots__ = ("_depth", "_examined", "_gap", "_metric", "_reserved", "_until")

    def __init__(
        self,
        processors: int,
        *,
        metric: Metric = Metric.PROCESSORS,
        depth: int = 1,
        weights: PriorityWeights = ARRIVAL,
    ) -> None:
        super().__init__(processors, weights=weights)
        self._metric = metric
        self._depth = depth
        self._gap = Gap(processors)
        self._reserved: dict[LocalJob, float] = {}
        self._examined = 0
        self._until = -inf

    def schedule(self, now: float) -> list[LocalJob]:
        """Start jobs in order until one does not fit, reserve for the first that wait, fill the gap."""
        self.passes += 1
        self._order(now)
        queue = self._queue
        if not queue or self.free < self._smallest:
            return []
        if not self._changed and now <= self._until and len(self._reserved) == self._depth:
            # Nothing came free since the last pass, so whoever was refused then would be refused again.
            return self._fill(now, self._examined) if self._examined < len(queue) else []
        started = self._start_in_order(now)
        self._changed = not queue
        if queue:
            started += self._reserve(now)
            started += self._fill(now, len(self._reserved))
            self._smallest = min((job.processors for job in queue), default=0)
        return started

    def reservations(self, now: float) -> Mapping[LocalJob, float]:
        """Return the reserved starts of the first jobs."""
        return self._walk(now)[1] if self._queue else {}

    def _reserve(self, now: float) -> list[LocalJob]:
        """Reserve for the first jobs and compute the gap; return the jobs that can start now."""
        startable, self._reserved, self._gap = self._walk(now)
        self._until = min(self._reserved.values(), default=inf)
        for place in startable:
            self._start(self._queue[place], now)
        return self._remove(startable)

    def _walk(self, now: float) -> tuple[list[int], dict[LocalJob, float], Gap]:
        """Go down the queue until enough jobs have a reservation; return startable places, reservations and the gap."""
        queue, free = self._queue, self.free
        if self._depth == 1 and queue[0].processors > free:
            start, then = self._shadow(queue[0].processors, now)
            return [], {queue[0]: start}, Gap(free, [(start, then - queue[0].processors)])
        profile = Profile(now, free, self._ends)
        startable: list[int] = []
        reserved: dict[LocalJob, float] = {}
        for place, job in enumerate(queue):
            start, _ = profile.earliest(job.processors, job.estimate)
            profile.take(start, start + job.estimate, job.processors)
            if start <= now and job.processors <= free:
                startable.append(place)
                free -= job.processors
                continue
            reserved[job] = start
            if len(reserved) == self._depth:
                break
        starts = sorted(set(reserved.values()))
        return startable, reserved, Gap(free, [(start, profile.level(start)) for start in starts])

    def _fill(self, now: float, first: int) -> list[LocalJob]:
        """Start the jobs that the policy chooses from the given place of the queue on."""
        gap = self._gap
        free = gap.free
        fitting = [
            (place, job)
            for place, job in enumerate(islice(self._queue, first, None), first)
            if job.processors <= free and gap.fits(job.processors, now + job.estimate)
        ]
        places = sorted(self._choose(fitting, gap, now)) if fitting else []
        for place in places:
            self._start(self._queue[place], now)
        started = self._remove(places)
        self._examined = len(self._queue)
        return started

    def _remove(self, places: Sequence[int]) -> list[LocalJob]:
        """Remove started jobs, given by ascending places, from the queue."""
        queue = self._queue
        jobs = [queue[place] for place in places]
        for place in reversed(places):
            del queue[place]
        self.backfilled += len(jobs)
        return jobs

    @abstractmethod
    def _choose(self, fitting: Sequence[tuple[int, LocalJob]], gap: Gap, now: float) -> Iterable[int]:
        """Choose jobs for the gap among those that fit singly; return their places and fill the gap."""


class FirstFit(Maui):
    """FIRSTFIT: the first job in the queue that fits. With a depth of 1 it gives EASY's schedule."""

    __slots__ = ()

    def _choose(self, fitting: Sequence[tuple[int, LocalJob]], gap: Gap, now: float) -> Iterable[int]:
        """Choose each job that fits, in queue order."""
        return _take_in_turn(fitting, gap, now)


class BestFit(Maui):
    """BESTFIT: of those that fit the one with most of the metric, again and again; equals in the order of the queue."""

    __slots__ = ()

    def _choose(self, fitting: Sequence[tuple[int, LocalJob]], gap: Gap, now: float) -> Iterable[int]:
        """Choose each job that fits, best first; one that does not fit now does not fit later in the pass."""
        return _take_in_turn(self._best_first(fitting), gap, now)

    def _best_first(self, fitting: Sequence[tuple[int, LocalJob]]) -> list[tuple[int, LocalJob]]:
        """Sort jobs by the metric, equal ones in queue order."""
        worth = self._metric.of
        return sorted(fitting, key=lambda found: -worth(found[1]))


class Greedy(BestFit):
    """GREEDY: the combination of jobs that has most of the metric in sum.

    Exact as long as the number of candidates times the free processors is at most :data:`COMBINATIONS`. Candidates
    are the jobs that fit, without those of which enough better ones of the same size exist to use up the gap: with up
    to 200 free processors and depth 1 that is always within the bound, however long the queue. Beyond it, as many
    candidates as the bound allows, those with most of the metric, are combined, and what is left is filled as BESTFIT
    does. Of equally good combinations one with the fewest processors is taken.
    """

    __slots__ = ("beyond",)

    beyond: int
    """In how many passes the bound was reached."""

    def __init__(
        self,
        processors: int,
        *,
        metric: Metric = Metric.PROCESSORS,
        depth: int = 1,
        weights: PriorityWeights = ARRIVAL,
    ) -> None:
        super().__init__(processors, metric=metric, depth=depth, weights=weights)
        self.beyond = 0

    def counters(self) -> Mapping[str, int]:
        """Return what the policy counted so far, by name."""
        return {**super().counters(), "beyond_bound": self.beyond}

    def _choose(self, fitting: Sequence[tuple[int, LocalJob]], gap: Gap, now: float) -> Iterable[int]:
        """Choose all jobs if they fit together, else the best combination."""
        if sum(job.processors for _, job in fitting) <= gap.unlimited:
            return _take_in_turn(fitting, gap, now)
        best_first = self._best_first(fitting)
        candidates = _worth_considering(best_first, gap, now)
        most = COMBINATIONS // (gap.free + 1)
        if len(candidates) <= most:
            chosen = _best_combination(candidates, gap, now, self._metric)
            return _take_in_turn(chosen, gap, now)
        self.beyond += 1
        chosen = _best_combination(candidates[:most], gap, now, self._metric)
        return [*_take_in_turn(chosen, gap, now), *_take_in_turn(best_first, gap, now, but={at for at, _ in chosen})]


def _take_in_turn(jobs: Iterable[tuple[int, LocalJob]], gap: Gap, now: float, *, but: Container[int] = ()) -> list[int]:
    """Fill the gap with each job that still fits, in the order given; return their places."""
    places = []
    for place, job in jobs:
        if gap.fits(job.processors, now + job.estimate) and place not in but:
            gap.fill(job.processors, now + job.estimate)
            places.append(place)
    return places


def _worth_considering(best_first: Iterable[tuple[int, LocalJob]], gap: Gap, now: float) -> list[tuple[int, LocalJob]]:
    """Drop jobs that no best combination needs: enough similar, better ones already fill the gap."""
    seen: dict[tuple[int, int], int] = {}
    kept = []
    for place, job in best_first:
        reach = gap.starts_before(now + job.estimate)
        alike = seen.get((reach, job.processors), 0)
        if (alike + 1) * job.processors <= gap.most_across(reach):
            seen[reach, job.processors] = alike + 1
            kept.append((place, job))
    return kept


def _best_combination(
    candidates: Sequence[tuple[int, LocalJob]], gap: Gap, now: float, metric: Metric
) -> list[tuple[int, LocalJob]]:
    """Return the combination of jobs that fits and has the largest sum of the metric.

    Jobs that reach furthest come first: what they may have together is then the room of a knapsack that only grows
    with the jobs that reach less far. ``best`` has, for each number of processors used, the best sum and who it is of.
    """
    turn = sorted(candidates, key=lambda found: (-gap.starts_before(now + found[1].estimate), -found[0]))
    best: dict[int, tuple[float, _Chain]] = {0: (0.0, None)}
    for found in turn:
        job = found[1]
        room = gap.most_across(gap.starts_before(now + job.estimate)) - job.processors
        worth = metric.of(job)
        for used, (value, chain) in list(best.items()):
            if used <= room:
                known = best.get(used + job.processors)
                if known is None or known[0] <= value + worth:
                    best[used + job.processors] = (value + worth, (found, chain))
    _, chain = max(sorted(best.items()), key=lambda state: state[1][0])[1]
    chosen = []
    while chain is not None:
        found, chain = chain
        chosen.append(found)
    return chosen

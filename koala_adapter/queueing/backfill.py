# SPDX-License-Identifier: Apache-2.0
"""Backfill policies of one cluster by name: FCFS, EASY, Metacluster's, conservative backfill. Pure.

The policies are defined in this order; :func:`make_cluster_scheduler` at the end also makes those of Maui. The same
code orders a real batch system (``koala schedule``) and a simulated one (``koala simulate``). For each instant at which
something happens, a driver does the following:

1. Report all of it: :meth:`ClusterScheduler.end` for each job that ended, :meth:`ClusterScheduler.submit` for each job
   that arrived, and ``withdraw``, ``revise``, ``resize`` or ``adopt`` as needed.
2. Ask once, ``for job in scheduler.schedule(now)``, and start each job; it counts as running from then on.
3. Come back at ``scheduler.wake_at`` if nothing happens before (infinity for all policies but conservative).

>>> cluster = make_cluster_scheduler("easy", 4)
>>> for job in (LocalJob("a", 3, 100, 0), LocalJob("b", 4, 10, 1), LocalJob("c", 1, 99, 1)):
...     cluster.submit(job)
>>> [job.id for job in cluster.schedule(1)]
['a', 'c']
>>> cluster.reservation(cluster.waiting[0], 1).start
101
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from koala_adapter.errors import ConfigurationError
from koala_adapter.queueing.maui import BestFit, FirstFit, Greedy, Maui, Metric
from koala_adapter.queueing.profile import EarliestStarts, Profile
from koala_adapter.queueing.queue import ARRIVAL, ClusterScheduler, LocalJob, PriorityWeights, Reservation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "METRICS",
    "POLICIES",
    "ClusterScheduler",
    "LocalJob",
    "MakeQueue",
    "Metric",
    "PriorityWeights",
    "Reservation",
    "make_cluster_scheduler",
]


# -- FCFS, EASY and Metacluster: policies that consider the head only ----------------------------------------


class Fcfs(ClusterScheduler):
    """First come, first served: strictly in the order of the queue; no job is overtaken."""

    __slots__ = ()

    def schedule(self, now: float) -> list[LocalJob]:
        """Start jobs in order until one does not fit."""
        self.passes += 1
        self._order(now)
        return self._start_in_order(now)

    def reservations(self, now: float) -> Mapping[LocalJob, float]:
        """Return the head's start: as soon as enough is free by the estimates."""
        if not self._queue or self._queue[0].processors <= self.free:
            return {}
        head = self._queue[0]
        return {head: self._shadow(head.processors, now)[0]}


class Easy(Fcfs):
    """EASY: the head of the queue has a reservation; jobs that do not delay it may overtake.

    A pass starts jobs in order until one does not fit. That one, the head, can start at its *shadow time*, when enough
    running jobs have ended by their estimates; every estimated end up to and including that time counts. What is free
    then beyond the head's need is *extra*. Each later job, in the order of the queue, starts now if it fits and either
    ends by the shadow time or needs no more than the extra processors. (Lifka 1995; Mu'alem and Feitelson 2001.)

    With ``use_extra`` off it is the simplest backfill, as Metacluster has it: only jobs that end by the shadow time
    overtake.
    """

    __slots__ = ("_examined", "_extra", "_shadow_time", "_use_extra")

    def __init__(self, processors: int, *, weights: PriorityWeights = ARRIVAL, use_extra: bool = True) -> None:
        super().__init__(processors, weights=weights)
        self._use_extra = use_extra
        self._examined = 0
        self._shadow_time = -inf
        self._extra = 0

    def schedule(self, now: float) -> list[LocalJob]:
        """Start jobs in order until one does not fit, then jobs that do not delay that one."""
        self.passes += 1
        queue = self._queue
        if not queue:
            return []
        free = self.free
        if free < self._smallest:
            return []
        if len(queue) == 1 and queue[0].processors <= free:
            self._queue = []
            self._changed = True
            self._start(queue[0], now)
            return queue
        if self._shares is not None:
            self._order(now)
        if not self._changed and now <= self._shadow_time:
            # Nothing came free since the last pass, so whoever was refused then would be refused again.
            return self._backfill(now, self._examined) if self._examined < len(queue) else []
        started = self._start_in_order(now)
        if not queue:
            self._changed = True
            return started
        self._changed = False
        self._shadow_time, ahead = self._shadow(queue[0].processors, now)
        self._extra = ahead - queue[0].processors if self._use_extra else 0
        if self.free and len(queue) > 1:
            started += self._backfill(now, 1)
        else:
            self._examined = len(queue)
        return started

    def _backfill(self, now: float, first: int) -> list[LocalJob]:
        """Start what may overtake the head, from the given place of the queue on."""
        queue = self._queue
        free, extra, shadow = self.free, self._extra, self._shadow_time
        smallest = self._smallest if first > 1 else queue[0].processors
        places = []
        started = []
        for place, job in enumerate(islice(queue, first, None), first):
            processors = job.processors
            if processors <= free and (processors <= extra or now + job.estimate <= shadow):
                if now + job.estimate > shadow:
                    extra -= processors
                free -= processors
                places.append(place)
                started.append(job)
                self._start(job, now)
                if free < self._smallest:
                    smallest = self._smallest
                    break
            elif processors < smallest:
                smallest = processors
        self._smallest = smallest
        if started:
            self._extra = extra
            self.backfilled += len(started)
            for place in reversed(places):
                del queue[place]
        self._examined = len(queue)
        return started


# -- Conservative backfill -----------------------------------------------------------------------------------
# Every waiting job has a reservation, and no job may be started that delays one.

TRIES = 50_000
"""Gaps that one compression tries at most: about a tenth of a second."""
NO_TIMES: Mapping[LocalJob, float] = MappingProxyType({})


class Conservative(ClusterScheduler):
    """Each job gets, when it comes, the earliest start that delays no reservation, and keeps it or gets a better one.

    Reservations are *compressed* at every instant at which a job ended or a waiting one was withdrawn: in the order of
    the queue each is moved to the earliest start that the others' reservations allow; so none ever becomes later. Then
    newcomers are placed, and jobs are started whose reserved time has come. (Mu'alem and Feitelson 2001.)

    With thousands of waiting jobs one compression costs more than a pass may take: it stops when :data:`TRIES` gaps
    were tried, and the next goes on from there; the other jobs are then only looked through for any that can start now.

    Only what breaks the plan itself can delay a job against its reservation: a job that overruns its estimate, a
    longer estimate of a running job, nodes lost, jobs started by others. Then all reservations are made anew, in the
    order of the queue.
    """

    __slots__ = ("_broken", "_loose", "_new", "_profile", "_resume", "_starts", "cut_short")

    cut_short: int
    """How many times compression stopped at its bound."""

    def __init__(self, processors: int, *, weights: PriorityWeights = ARRIVAL) -> None:
        super().__init__(processors, weights=weights)
        self._profile = Profile(-inf, processors)
        self._starts = EarliestStarts(self._profile)
        self._new: list[LocalJob] = []
        self._loose = False
        self._broken = False
        self._resume: LocalJob | None = None
        self.cut_short = 0

    def submit(self, job: LocalJob) -> None:
        """Add a job to the queue."""
        super().submit(job)
        job.reserved_at = inf
        if job.processors <= self.processors:
            self._new.append(job)

    def end(self, job: LocalJob, now: float) -> None:
        """Remove a job that has ended; the rest of its reserved time becomes free."""
        entry = job.entry
        super().end(job, now)
        if entry is not None and entry[0] > now:
            self._profile.give(now, entry[0], entry[1])
            self._starts.forget()
            self._loose = True

    def put_back(self, jobs: Mapping[LocalJob, float], now: float) -> None:
        """Requeue jobs that could not start and reserve anew for all; no start becomes earlier than promised.

        So none of them is reserved a start behind jobs that came after it.
        """
        super().put_back(jobs, now)
        self._plan_anew(now, jobs)
        self.wake_at = min((job.reserved_at for job in self._queue if job.reserved_at > now), default=inf)
        self._broken = True

    def schedule(self, now: float) -> list[LocalJob]:
        """Improve reservations, reserve for new jobs and start the jobs whose reserved time has come."""
        self.passes += 1
        self._order(now)
        self._profile.advance(now)
        if self._broken or self.wake_at < now:
            self._plan_anew(now)
        elif self._loose and self._changed:
            self._compress(now)
        self._changed = False
        if self._new:
            self._place([job for job in self._queue if job.reserved_at == inf] if len(self._new) > 1 else self._new)
            self._new = []
        return self._start_due(now) if self.wake_at <= now else []

    def reservations(self, now: float) -> Mapping[LocalJob, float]:
        """Return the reserved start of every job of the queue."""
        return {job: max(job.reserved_at, now) for job in self._queue if job.reserved_at < inf}

    def counters(self) -> Mapping[str, int]:
        """Return what the policy counted so far, by name."""
        return {**super().counters(), "compressions_cut_short": self.cut_short}

    def _place(self, jobs: Sequence[LocalJob], not_before: Mapping[LocalJob, float] = NO_TIMES) -> None:
        """Make a reservation for each job that has none."""
        profile = self._profile
        for job in jobs:
            start = self._starts.find(job.processors, job.estimate)
            if not_before and start < (least := not_before.get(job, start)):
                start, _ = profile.earliest(job.processors, job.estimate, after=least)
            job.reserved_at = start
            profile.take(start, start + job.estimate, job.processors)
            self.wake_at = min(self.wake_at, start)

    def _compress(self, now: float) -> None:
        """Move each reservation as early as the others allow, in the order of the queue."""
        self._loose = False
        queue, profile = self._queue, self._profile
        first = queue.index(self._resume) if self._resume in queue else 0
        limit = profile.tried + TRIES
        self._resume = None
        for job in islice(queue, first, None):
            was = job.reserved_at
            if now < was < inf:
                start = self._starts.improve(job.processors, job.estimate, was)
                if start < was:
                    self._move(job, start)
                if profile.tried > limit:
                    self._resume = job
                    break
        if self._resume is not None or first:
            self.cut_short += 1
            self._loose = True
            self._use_now(now)

    def _use_now(self, now: float) -> None:
        """Find jobs that could start at once, after a pass that did not consider all."""
        ends, least = zip(*self._profile.least(), strict=True)
        for job in self._queue:
            if now < job.reserved_at < inf and job.processors <= least[0]:
                until = min(now + job.estimate, job.reserved_at)
                if job.processors <= least[bisect_left(ends, until)]:
                    self._move(job, now)
                    ends, least = zip(*self._profile.least(), strict=True)

    def _move(self, job: LocalJob, start: float) -> None:
        """Give a job an earlier reservation."""
        was, processors = job.reserved_at, job.processors
        self._profile.give(was, was + job.estimate, processors)
        self._profile.take(start, start + job.estimate, processors)
        self._starts.freed(max(was, start + job.estimate))
        job.reserved_at = start
        self.wake_at = min(self.wake_at, start)
        self._loose = True

    def _plan_anew(self, now: float, not_before: Mapping[LocalJob, float] = NO_TIMES) -> None:
        """Drop all reservations and rebuild them from the running jobs."""
        self._profile = Profile(now, self.free, self._ends)
        self._starts = EarliestStarts(self._profile)
        self._broken = self._loose = False
        self.wake_at = inf
        self._new = []
        self._place(self._queue, not_before)

    def _start_due(self, now: float) -> list[LocalJob]:
        """Start the jobs whose reserved time has come, unless an overrunning job still holds the processors."""
        started, waiting = [], []
        for job in self._queue:
            if job.reserved_at > now:
                waiting.append(job)
            elif job.processors > self.free:
                waiting.append(job)
                self._broken = True
            else:
                self._start(job, now)
                started.append(job)
                self.backfilled += bool(waiting)
        self._queue = waiting
        self.wake_at = min((job.reserved_at for job in waiting if job.reserved_at > now), default=inf)
        return started

    def _on_withdrawn(self, job: LocalJob, now: float) -> None:  # noqa: ARG002 - see the base class
        """Free the reservation of a withdrawn job."""
        if job.reserved_at < inf:
            self._profile.give(job.reserved_at, job.reserved_at + job.estimate, job.processors)
            self._starts.freed(job.reserved_at)
            job.reserved_at = inf
            self._loose = True
            self.wake_at = min((other.reserved_at for other in self._queue), default=inf)
        elif job in self._new:
            self._new.remove(job)

    def _on_replanned(self, now: float) -> None:  # noqa: ARG002 - see the base class
        """Mark all reservations as outdated."""
        self._broken = True
        for job in self._aside:
            job.reserved_at = inf


# -- Policies by name ----------------------------------------------------------------------------------------

POLICIES = ("fcfs", "easy", "conservative", "firstfit", "bestfit", "greedy", "metacluster")
"""Names of the policies of one cluster."""

METRICS = tuple(metric.value for metric in Metric)
"""Names of what BESTFIT and GREEDY maximize."""


class MakeQueue(Protocol):
    """Factory of an installed policy's queue (protocol)."""

    def __call__(self, processors: int, /, *, weights: PriorityWeights) -> ClusterScheduler:
        """Return an empty queue for a cluster of ``processors`` processors."""
        ...


def make_cluster_scheduler(
    policy: str,
    processors: int,
    *,
    metric: Metric | str = Metric.PROCESSORS,
    depth: int = 1,
    weights: PriorityWeights = ARRIVAL,
    make: MakeQueue | None = None,
) -> ClusterScheduler:
    """Return an empty queue for a cluster, ordered by one of koala's policies (:data:`POLICIES`).

    ``make``: makes it where the policy is another one. ``metric`` is for bestfit and greedy, ``depth`` (how many jobs
    have a reservation) for firstfit, bestfit and greedy; the other policies ignore both. Raises ConfigurationError for
    what is not known or out of range.
    """
    if make is not None:
        return make(processors, weights=weights)
    if policy not in POLICIES:
        raise ConfigurationError(f"there is no policy {policy!r}", hint=f"policies are {', '.join(POLICIES)}")
    if metric not in METRICS:
        raise ConfigurationError(f"there is no backfill metric {metric!r}", hint=f"metrics are {', '.join(METRICS)}")
    if depth < 1:
        raise ConfigurationError(f"the reservation depth must be at least 1, not {depth}")
    if processors < 0:
        raise ConfigurationError(f"a cluster cannot have {processors} processors")
    if policy == "fcfs":
        return Fcfs(processors, weights=weights)
    if policy == "conservative":
        return Conservative(processors, weights=weights)
    if policy == "metacluster":
        return Easy(processors, weights=weights, use_extra=False)
    if policy == "easy" or (policy == "firstfit" and depth == 1):
        return Easy(processors, weights=weights)
    families: dict[str, type[Maui]] = {"firstfit": FirstFit, "bestfit": BestFit, "greedy": Greedy}
    return families[policy](processors, metric=Metric(metric), depth=depth, weights=weights)

# SPDX-License-Identifier: Apache-2.0
"""Conservative backfill: every waiting job has a reservation, and nobody may be started who delays one. Pure."""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from koala_adapter.queueing.availability import EarliestStarts, Profile
from koala_adapter.queueing.local_queue import ClusterScheduler, LocalJob
from koala_adapter.queueing.priority import ARRIVAL, PriorityWeights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TRIES = 50_000
"""Gaps that one compression tries at most: about a tenth of a second."""


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
        """Let a job wait from now on."""
        super().submit(job)
        job.reserved_at = inf
        if job.processors <= self.processors:
            self._new.append(job)

    def end(self, job: LocalJob, now: float) -> None:
        """Take note that a running job has ended; what it would still have held is free."""
        entry = job.entry
        super().end(job, now)
        if entry is not None and entry[0] > now:
            self._profile.give(now, entry[0], entry[1])
            self._starts.forget()
            self._loose = True

    def schedule(self, now: float) -> list[LocalJob]:
        """Improve what is reserved, reserve for newcomers, start those whose time has come."""
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

    def _place(self, jobs: Sequence[LocalJob]) -> None:
        """Reserve for jobs that have no reservation, one after the other."""
        profile = self._profile
        for job in jobs:
            job.reserved_at = start = self._starts.find(job.processors, job.estimate)
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
        """Find the jobs that could start at once, after not all were considered."""
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

    def _plan_anew(self, now: float) -> None:
        """Forget all reservations, and make them again from what runs."""
        self._profile = Profile(now, self.free, self._ends)
        self._starts = EarliestStarts(self._profile)
        self._broken = self._loose = False
        self.wake_at = inf
        self._new = []
        self._place(self._queue)

    def _start_due(self, now: float) -> list[LocalJob]:
        """Start the jobs whose reserved time has come; a job that overruns may still be in the way of one."""
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
        """Give back what was reserved."""
        if job.reserved_at < inf:
            self._profile.give(job.reserved_at, job.reserved_at + job.estimate, job.processors)
            self._starts.freed(job.reserved_at)
            job.reserved_at = inf
            self._loose = True
            self.wake_at = min((other.reserved_at for other in self._queue), default=inf)
        elif job in self._new:
            self._new.remove(job)

    def _on_replanned(self, now: float) -> None:  # noqa: ARG002 - see the base class
        """All reservations must be made anew."""
        self._broken = True
        for job in self._aside:
            job.reserved_at = inf

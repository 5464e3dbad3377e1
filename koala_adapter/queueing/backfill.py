# SPDX-License-Identifier: Apache-2.0
"""The policies of one cluster that look at the head of the queue only: FCFS, EASY, and Metacluster's simple backfill.

Pure: the same code orders a real batch system (``koala schedule``) and a simulated one (``koala simulate``).
"""

from __future__ import annotations

from bisect import insort
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from koala_adapter.queueing.local_queue import ClusterScheduler, LocalJob
from koala_adapter.queueing.priority import ARRIVAL, PriorityWeights

if TYPE_CHECKING:
    from collections.abc import Mapping


class Fcfs(ClusterScheduler):
    """First come, first served: strictly in the order of the queue, nobody is overtaken."""

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
    """EASY: the head of the queue has a reservation, whoever does not delay it may overtake.

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
        """Start jobs in order until one does not fit, then whoever does not delay that one."""
        self.passes += 1
        queue = self._queue
        if not queue:
            return []
        free = self.free
        if free < self._smallest:
            return []
        if len(queue) == 1:
            job = queue[0]
            processors = job.processors
            if processors <= free:
                self._queue = []
                self._changed = True
                job.started_at = now
                job.entry = entry = (now + job.estimate, processors, job)
                insort(self._ends, entry)
                self.free = free - processors
                if self._shares is not None:
                    self._shares.hold(job.user, processors, now)
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

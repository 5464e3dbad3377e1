# SPDX-License-Identifier: Apache-2.0
"""A simulated batch system, seen from outside: a queue in strict order, processors, users of whom some go first.

Nothing passes the head of the queue, as in a site that runs first come, first served. So processors may be idle while
a placeholder waits: what a meta-scheduler sees of a cluster is not what it would get.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.model import EndReason
from koala_adapter.simulation.background_load import local_users
from koala_adapter.simulation.engine import FIRST, LAST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from koala_adapter.model import ClusterName
    from koala_adapter.simulation.background_load import LocalUse
    from koala_adapter.simulation.engine import Engine, EventHandle
    from koala_adapter.simulation.platform import BackgroundLoad, ClusterModel


@dataclass(slots=True, eq=False)
class QueuedJob:
    """A job of a batch system; compared by identity."""

    user: str
    processors: int
    walltime: float
    """Seconds after which it is ended."""
    on_start: Callable[[QueuedJob], None]
    on_end: Callable[[QueuedJob, EndReason], None]
    submitted_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    places: tuple[int, ...] = ()
    """Numbers of its processors while it runs."""
    timer: EventHandle | None = None

    @property
    def running(self) -> bool:
        """True between start and end."""
        return self.started_at is not None and self.ended_at is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupation:
    """Who had a processor, and when: a bar of a timeline."""

    place: int
    who: str
    begins_at: float
    ends_at: float


class BatchSystem:
    """One cluster."""

    def __init__(
        self, engine: Engine, name: ClusterName, processors: int, *, priorities: Mapping[str, int] | None = None
    ) -> None:
        """``priorities``: of users; higher goes first, who is not in it has 0."""
        self.engine = engine
        self.name = name
        self.processors = processors
        self.priorities = dict(priorities or {})
        self.occupations: list[Occupation] | None = None
        """Who had which processor, of jobs that ended; None: nobody wants to know."""
        self._free = list(range(processors))
        self._down: set[int] = set()
        self._queue: list[tuple[int, int, QueuedJob]] = []
        self._running: dict[int, QueuedJob] = {}
        """By the number of the processor."""
        self._entered = 0
        self._wanted = False

    @property
    def idle(self) -> int:
        """Processors that nobody uses."""
        return len(self._free)

    @property
    def running(self) -> Mapping[int, QueuedJob]:
        """Jobs that run, by the number of each processor."""
        return self._running

    def submit(self, job: QueuedJob) -> None:
        """Put a job into the queue."""
        self._entered += 1
        job.submitted_at = self.engine.now
        heapq.heappush(self._queue, (-self.priorities.get(job.user, 0), self._entered, job))
        self._schedule_soon()

    def cancel(self, job: QueuedJob) -> None:
        """End a job, or take it out of the queue."""
        self.end(job, EndReason.CANCELLED)

    def end(self, job: QueuedJob, reason: EndReason) -> None:
        """End a job by itself or from outside; nothing happens to one that has ended."""
        if job.ended_at is not None:
            return
        job.ended_at = self.engine.now
        if job.timer is not None:
            job.timer.cancel()
        for place in job.places:
            del self._running[place]
            if place not in self._down:
                heapq.heappush(self._free, place)
        if job.started_at is not None and self.occupations is not None:
            who = job.user
            self.occupations += [
                Occupation(place=place, who=who, begins_at=job.started_at, ends_at=self.engine.now)
                for place in job.places
            ]
        self._schedule_soon()
        job.on_end(job, reason)

    def fail(self, place: int, seconds: float) -> None:
        """Lose a processor, with the job on it, for so many seconds."""
        if place in self._down:
            return
        self._down.add(place)
        job = self._running.get(place)
        if job is not None:
            self.end(job, EndReason.NODE_LOST)
        else:
            self._free.remove(place)
            heapq.heapify(self._free)
        self.engine.after(seconds, lambda: self._repair(place), rank=FIRST)

    def _repair(self, place: int) -> None:
        self._down.discard(place)
        heapq.heappush(self._free, place)
        self._schedule_soon()

    def _schedule_soon(self) -> None:
        """Start jobs when all else that happens now has happened."""
        if not self._wanted:
            self._wanted = True
            self.engine.after(0.0, self._schedule, rank=LAST)

    def _schedule(self) -> None:
        self._wanted = False
        while self._queue:
            job = self._queue[0][2]
            if job.ended_at is None and job.processors > len(self._free):
                return
            heapq.heappop(self._queue)
            if job.ended_at is None:
                self._start(job)

    def _start(self, job: QueuedJob) -> None:
        job.started_at = self.engine.now
        job.places = tuple(heapq.heappop(self._free) for _ in range(job.processors))
        for place in job.places:
            self._running[place] = job
        job.timer = self.engine.after(job.walltime, lambda: self.end(job, EndReason.WALLTIME), rank=FIRST)
        job.on_start(job)


def local_job(user: str, processors: int, seconds: float, system: BatchSystem) -> QueuedJob:
    """Return a job of a local user that runs for so many seconds."""

    def start(job: QueuedJob) -> None:
        system.engine.after(seconds, lambda: system.end(job, EndReason.EXITED), rank=FIRST)

    return QueuedJob(user, processors, 1e12, start, lambda _job, _reason: None)


def submit_local(engine: Engine, system: BatchSystem, uses: Iterator[LocalUse]) -> None:
    """Have the local users of a cluster submit their jobs, one after the other, as long as there are any."""
    use = next(uses, None)
    if use is None:
        return

    def submit() -> None:
        system.submit(local_job("local", use.processors, use.run, system))
        submit_local(engine, system, uses)

    engine.at(use.submitted_at, submit)


def with_local_users(engine: Engine, model: ClusterModel, load: BackgroundLoad, seed: int) -> BatchSystem:
    """Return the batch system of a cluster whose local users are going to submit their jobs."""
    system = BatchSystem(engine, model.cluster, model.processors)
    submit_local(engine, system, local_users(model, load, seed))
    return system

# SPDX-License-Identifier: Apache-2.0
"""The jobs that were seen in a batch system, once through a policy of ours. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from koala_adapter.ordering.listedjobs import turn
from koala_adapter.queueing.local_queue import LocalJob

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.model import LrmJobId
    from koala_adapter.queueing.local_queue import ClusterScheduler

SHORTEST = 0.5
"""Seconds between two passes that a policy itself asks for."""


@dataclass(slots=True, eq=False)
class ObservedJob:
    """What was seen of one job."""

    id: LrmJobId
    user: str
    processors: int
    estimate: int
    submitted_at: float
    pool: int
    ready_at: float | None = None
    """When it could have started: None for jobs that ran before we looked."""
    started_at: float | None = None
    ended_at: float | None = None
    ours: float | None = None
    """When our policy would have started it, by the last replay."""
    fixed: bool = False
    """``ours`` is not decided anew: it lies before the time from which is replayed."""
    told: bool = False

    @property
    def run_time(self) -> float:
        """Seconds that it runs, as well as is known."""
        if self.started_at is None:
            return float(self.estimate)
        if self.ended_at is not None:
            return max(0.0, self.ended_at - self.started_at)
        return float(self.estimate)


_END, _SIZE, _WITHDRAW, _SUBMIT, _WAKE = range(5)
"""Order of what happens at the same time."""


class ShadowReplay:
    """The jobs of one pool, once through its policy."""

    def __init__(
        self,
        scheduler: ClusterScheduler,
        jobs: Iterable[ObservedJob],
        sizes: Iterable[tuple[float, int]],
        *,
        since: float,
        until: float,
    ) -> None:
        self._scheduler = scheduler
        self._since = since
        self._until = until
        self._number = 0
        self._events: list[tuple[float, int, int, ObservedJob | int]] = []
        self._locals: dict[ObservedJob, LocalJob] = {}
        self._by_local: dict[LocalJob, ObservedJob] = {}
        for at, size in sizes:
            self._add(max(at, since), _SIZE, size)
        for seen in jobs:
            if seen.fixed:
                self._add(since, _SUBMIT, seen)
            elif seen.ready_at is not None:
                seen.ours = None
                self._add(max(seen.ready_at, since), _SUBMIT, seen)
        heapify(self._events)

    def _add(self, at: float, kind: int, what: ObservedJob | int) -> None:
        self._number += 1
        heappush(self._events, (at, kind, self._number, what))

    def run(self) -> None:
        """Let everything happen up to the end of the observation."""
        while self._events and self._events[0][0] <= self._until:
            now = self._events[0][0]
            while self._events and self._events[0][0] == now:
                _, kind, _, what = heappop(self._events)
                self._happen(kind, what, now)
            for local in self._scheduler.schedule(now):
                seen = self._by_local[local]
                seen.ours = now
                self._leave_at(seen, now)
            if self._scheduler.wake_at <= self._until:
                self._add(max(self._scheduler.wake_at, now + SHORTEST), _WAKE, 0)

    def _happen(self, kind: int, what: ObservedJob | int, now: float) -> None:
        if isinstance(what, int):
            if kind == _SIZE:
                self._scheduler.resize(what, now)
            return
        if kind == _SUBMIT:
            self._come(what, now)
        elif kind == _END:
            self._scheduler.end(self._locals[what], now)
        elif kind == _WITHDRAW and what.ours is None:
            self._scheduler.withdraw(self._locals[what], now)

    def _come(self, seen: ObservedJob, now: float) -> None:
        place = turn(seen.id, seen.submitted_at)
        local = LocalJob(seen.id, seen.processors, float(seen.estimate), seen.submitted_at, seen.user, turn=place)
        self._locals[seen] = local
        self._by_local[local] = seen
        if seen.fixed and seen.ours is not None:
            if seen.ours + seen.run_time > now:
                self._scheduler.adopt(local, seen.ours, now)
                self._leave_at(seen, now)
            return
        self._scheduler.submit(local)
        if seen.ended_at is not None and seen.started_at is None:  # its user took it back
            self._add(max(now, seen.ended_at), _WITHDRAW, seen)

    def _leave_at(self, seen: ObservedJob, now: float) -> None:
        if seen.ours is None:
            return
        taken_back = seen.started_at is None and seen.ended_at is not None
        at = seen.ended_at if taken_back and seen.ended_at is not None else seen.ours + seen.run_time
        self._add(max(at, now), _END, seen)

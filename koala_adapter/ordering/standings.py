# SPDX-License-Identifier: Apache-2.0
"""Where each waiting job stands, as it was after one look at the batch system.

It is noted when the scheduler has decided, and read by whoever is to be told: so no question of a stranger asks a
policy, which may be a site's own code, for anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from koala_adapter.queueing.checkedqueue import CheckedQueue
from koala_adapter.queueing.local_queue import why_waiting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from koala_adapter.ordering.entries import Entry
    from koala_adapter.queueing.local_queue import ClusterScheduler, LocalJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What can be said of a job that waits in a queue."""

    position: int
    """Its place, from 1; 0: it is larger than the cluster is now."""
    queued: int
    """Jobs in that queue."""
    start: float | None
    """When it starts at the latest, as long as all jobs end by their walltimes; None: nothing is promised yet."""
    reason: str


class _Queue:
    """One pool's queue as it was."""

    def __init__(self, scheduler: ClusterScheduler, now: float) -> None:
        self._order: Sequence[LocalJob] = tuple(scheduler.waiting)
        self.reserved: Mapping[LocalJob, float] = dict(scheduler.reservations(now))
        self._free, self._processors = scheduler.free, scheduler.processors
        self._trouble = scheduler.trouble if isinstance(scheduler, CheckedQueue) else ""

    @cached_property
    def _places(self) -> Mapping[LocalJob, int]:
        return {job: place for place, job in enumerate(self._order, 1)}

    def standing_of(self, job: LocalJob) -> Standing | None:
        place = self._places.get(job)
        if place is None:
            return None
        position = place if job.processors <= self._processors else 0
        start = self.reserved.get(job)
        known = why_waiting(job, position, start, free=self._free, processors=self._processors)
        reason = self._trouble or known
        return Standing(position=position, queued=len(self._order), start=start, reason=reason)

    def waiting(self) -> Iterator[tuple[LocalJob, int, float | None]]:
        for place, job in enumerate(self._order, 1):
            yield job, place if job.processors <= self._processors else 0, self.reserved.get(job)


class Standings:
    """The queues of all pools of nodes as they are when this is made, after their policies have decided."""

    def __init__(self, schedulers: Sequence[ClusterScheduler], now: float) -> None:
        """``schedulers`` by the numbers of their pools; ``now`` by their clock."""
        self._queues = [_Queue(scheduler, now) for scheduler in schedulers]

    def reservations(self) -> Iterator[tuple[LocalJob, float]]:
        """Yield the waiting jobs that have a start reserved, with that start."""
        for queue in self._queues:
            yield from queue.reserved.items()

    def waiting(self) -> Iterator[tuple[LocalJob, int, float | None]]:
        """Yield each waiting job with its place, as in Standing, and the start that is reserved for it, if any."""
        for queue in self._queues:
            yield from queue.waiting()

    def of(self, entry: Entry) -> Standing | None:
        """Return where a job stood; None when it did not wait in a queue then."""
        if entry.local is None or entry.pool is None or entry.pool >= len(self._queues):
            return None
        return self._queues[entry.pool].standing_of(entry.local)

# SPDX-License-Identifier: Apache-2.0
"""The placement queue: jobs that hold nothing yet, in the order in which they are tried.

KOALA scans its queue from head to tail (PAPERS section 1.1). With a hundred thousand jobs a scan that looks at each is
wasteful when nothing is free, so jobs stand in lanes: one lane for each kind of least need (a number of processors on
one named cluster, or on any). A lane is skipped as a whole when its need cannot be met.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from koala_adapter.model import ClusterName, Job, JobId

Lane = tuple["ClusterName | None", int]
"""The largest minimum among the components of a job, and the cluster that component insists on."""
Position = tuple[int, float, int]
"""Order in the queue: priority (negated), time of submission, running number."""


def lane_of(job: Job) -> Lane:
    """Return the lane in which a job waits."""
    neediest = max(job.components, key=lambda component: component.minimum)
    return neediest.cluster, neediest.minimum


class PlacementQueue:
    """Waiting jobs in order of priority, then of submission."""

    def __init__(self) -> None:
        """Start empty."""
        self._lanes: dict[Lane, list[tuple[Position, JobId]]] = {}
        self._positions: dict[JobId, tuple[Lane, Position]] = {}
        self._number = 0

    def __len__(self) -> int:
        """Number of waiting jobs."""
        return len(self._positions)

    def __contains__(self, job_id: JobId) -> bool:
        """Tell whether a job waits here."""
        return job_id in self._positions

    def push(self, job: Job) -> None:
        """Enter a job at the place its priority and submission time give it."""
        self._number += 1
        lane, position = lane_of(job), (-job.priority, job.submitted_at, self._number)
        self._positions[job.id] = (lane, position)
        insort(self._lanes.setdefault(lane, []), (position, job.id))

    def remove(self, job_id: JobId) -> None:
        """Take a job out; no error when it is not there."""
        found = self._positions.pop(job_id, None)
        if found is None:
            return
        lane, position = found
        entries = self._lanes[lane]
        del entries[bisect_left(entries, (position, job_id))]
        if not entries:
            del self._lanes[lane]

    def scan(self, may_fit: Callable[[Lane], bool]) -> Iterator[JobId]:
        """Yield jobs in queue order, passing over lanes as soon as ``may_fit`` says no.

        Jobs may be removed from the queue while it is scanned.
        """
        lanes = {lane: list(entries) for lane, entries in self._lanes.items() if may_fit(lane)}
        heads = [(entries[0], lane, 0) for lane, entries in lanes.items()]
        heap = [(entry, number, lane) for number, (entry, lane, _) in enumerate(heads)]
        heapq.heapify(heap)
        cursor = dict.fromkeys(lanes, 0)
        while heap:
            (_, job_id), number, lane = heapq.heappop(heap)
            if not may_fit(lane):
                continue
            yield job_id
            cursor[lane] += 1
            if cursor[lane] < len(lanes[lane]):
                heapq.heappush(heap, (lanes[lane][cursor[lane]], number, lane))

    def ordered(self) -> list[JobId]:
        """Return all waiting jobs in queue order."""
        return [job_id for _, job_id in heapq.merge(*self._lanes.values())]

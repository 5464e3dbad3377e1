# SPDX-License-Identifier: Apache-2.0
"""The placement queue of the count-level simulator: jobs in lanes by what they need.

All jobs of a lane get the same answer from a placement policy, so a lane whose first job cannot be placed is passed
over for the rest of a scan, in which room only shrinks (compare :mod:`koala_adapter.scheduler.claiming.queue`).
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.model import Component
    from koala_adapter.simulation.simulated_jobs import SimulatedJob

Position = tuple[float, int]


class Lane(NamedTuple):
    """What decides whether a job can be placed."""

    least: int
    """Processors of its largest component."""
    placement: str
    components: tuple[Component, ...]


class WaitingLine:
    """Waiting jobs in order of submission."""

    __slots__ = ("_lanes", "_size")

    def __init__(self) -> None:
        """Begin empty."""
        self._lanes: dict[Lane, deque[tuple[Position, SimulatedJob]]] = {}
        self._size = 0

    def __len__(self) -> int:
        """Number of waiting jobs."""
        return self._size

    def push(self, job: SimulatedJob, lane: Lane) -> None:
        """Enter a job behind those of its lane, or before them when it was submitted earlier (after a failure)."""
        entry = ((job.submitted_at, job.number), job)
        line = self._lanes.setdefault(lane, deque())
        if line and entry[0] < line[0][0]:
            line.appendleft(entry)
        else:
            line.append(entry)
        self._size += 1

    def head(self) -> tuple[SimulatedJob, Lane] | None:
        """Return the first job of all, with its lane; None when nobody waits."""
        if not self._size:
            return None
        lane = min(self._lanes, key=lambda lane: self._lanes[lane][0][0])
        return self._lanes[lane][0][1], lane

    def pop(self, lane: Lane) -> SimulatedJob:
        """Take the first job of a lane out."""
        line = self._lanes[lane]
        job = line.popleft()[1]
        if not line:
            del self._lanes[lane]
        self._size -= 1
        return job

    def scan(self, hopeless: set[Lane]) -> Iterator[tuple[SimulatedJob, Lane]]:
        """Yield the first jobs of the lanes in queue order, each until it is popped or its lane is hopeless."""
        ahead = [(line[0][0], number, lane) for number, (lane, line) in enumerate(self._lanes.items())]
        heapq.heapify(ahead)
        while ahead:
            _, number, lane = ahead[0]
            line = self._lanes.get(lane)
            if not line or lane in hopeless:
                heapq.heappop(ahead)
            elif ahead[0][0] != line[0][0]:
                heapq.heapreplace(ahead, (line[0][0], number, lane))
            else:
                yield line[0][1], lane

    def jobs(self) -> list[SimulatedJob]:
        """Return all jobs in queue order."""
        entries = [entry for line in self._lanes.values() for entry in line]
        return [job for _, job in sorted(entries, key=lambda entry: entry[0])]

# SPDX-License-Identifier: Apache-2.0
"""The placement queue: jobs that hold nothing yet, in the order in which they are tried.

KOALA scans its queue from head to tail (CoreGRID TR-0092). With a hundred thousand jobs a scan that looks at each is
wasteful, so jobs stand in lanes: all jobs of a lane ask a placement policy the same question. When a lane's need cannot
be met, or its first job was not placed, the lane is skipped for the rest of the scan, in which room only shrinks.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from koala_adapter.model import ClusterName
from koala_adapter.scheduler.knownpolicies import OWN, Policies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from koala_adapter.model import JobId
    from koala_adapter.scheduler.records import JobRecord

ANY_CLUSTER = ClusterName("")
Position = tuple[int, float, int]
"""Order in the queue: priority (negated), time of submission, running number."""
Entry = tuple[Position, "JobId"]


class Need(NamedTuple):
    """What one component asks for at least."""

    minimum: int
    cluster: ClusterName
    """The cluster it insists on, or ANY_CLUSTER."""
    excluded: tuple[ClusterName, ...]
    flexible: bool = False
    """Whether a policy may split it over clusters."""


class Lane(NamedTuple):
    """What all jobs of a lane have in common: everything that decides whether they can be placed."""

    needs: tuple[Need, ...]
    walltime_class: int
    """How many of the site's walltime limits are below the job's walltime: equal classes may use the same clusters."""
    policy: str
    total: int
    """Least need of all components together."""


def position_of(record: JobRecord) -> Position:
    """Return the place of a job in the order of the queue."""
    return -record.job.priority, record.job.submitted_at, record.queue_number


class PlacementQueue:
    """Waiting jobs in order of priority, then of submission."""

    def __init__(self, policies: Policies = OWN) -> None:
        """Start empty. ``policies``: those that say what may be split."""
        self._policies = policies
        self._lanes: dict[Lane, list[Entry]] = {}
        self._by_total: list[tuple[int, Lane]] = []
        self._entries: dict[JobId, tuple[Lane, Entry]] = {}
        self._limits: tuple[int, ...] = ()
        self._margin = 0

    def __len__(self) -> int:
        """Number of waiting jobs."""
        return len(self._entries)

    def __contains__(self, job_id: JobId) -> bool:
        """Tell whether a job waits here."""
        return job_id in self._entries

    def configure(self, walltime_limits: Iterable[int], *, margin: int) -> None:
        """Empty the queue, and tell walltimes (plus ``margin``) apart by these limits, in seconds, from now on."""
        self._limits = tuple(sorted(set(walltime_limits)))
        self._margin = margin
        self._lanes.clear()
        self._by_total.clear()
        self._entries.clear()

    def lane_of(self, record: JobRecord) -> Lane:
        """Return the lane in which a job waits."""
        needs = sorted(
            Need(
                component.minimum,
                component.cluster or ANY_CLUSTER,
                tuple(sorted(claim.excluded)),
                self._policies.may_split(record.job, component),
            )
            for component, claim in record.components()
        )
        walltime_class = bisect_left(self._limits, record.job.walltime + self._margin)
        return Lane(tuple(needs), walltime_class, record.job.placement, sum(need.minimum for need in needs))

    def push(self, record: JobRecord) -> None:
        """Enter a job at the place that its priority, submission time and number give it."""
        lane, entry = self.lane_of(record), (position_of(record), record.job.id)
        if lane not in self._lanes:
            self._lanes[lane] = []
            insort(self._by_total, (lane.total, lane))
        insort(self._lanes[lane], entry)
        self._entries[record.job.id] = lane, entry

    def remove(self, job_id: JobId) -> None:
        """Take a job out; no error when it is not there."""
        found = self._entries.pop(job_id, None)
        if found is None:
            return
        lane, entry = found
        entries = self._lanes[lane]
        del entries[bisect_left(entries, entry)]
        if not entries:
            del self._lanes[lane]
            del self._by_total[bisect_left(self._by_total, (lane.total, lane))]

    def scan(self, may_fit: Callable[[Lane], bool], *, most: int) -> Iterator[tuple[Position, JobId]]:
        """Yield jobs in queue order, passing over a lane as soon as ``may_fit`` says no.

        Lanes whose jobs need more than ``most`` processors are not even asked. The job just yielded may be removed from
        the queue before the next one is asked for.
        """
        below = bisect_left(self._by_total, (most + 1,))
        lanes = [lane for _, lane in self._by_total[:below] if may_fit(lane)]
        heap = [(self._lanes[lane][0], number) for number, lane in enumerate(lanes)]
        heapq.heapify(heap)
        while heap:
            entry, number = heap[0]
            lane = lanes[number]
            if not may_fit(lane):
                heapq.heappop(heap)
                continue
            yield entry
            entries = self._lanes.get(lane, [])
            following = bisect_right(entries, entry)
            if following < len(entries):
                heapq.heapreplace(heap, (entries[following], number))
            else:
                heapq.heappop(heap)

    def lanes(self) -> dict[Lane, JobId]:
        """Return all lanes with the first job of each."""
        return {lane: entries[0][1] for lane, entries in self._lanes.items()}

    def jobs_in(self, lane: Lane) -> list[JobId]:
        """Return the jobs of a lane in queue order."""
        return [job_id for _, job_id in self._lanes.get(lane, ())]

    def first(self, count: int) -> list[JobId]:
        """Return the first ``count`` jobs in queue order."""
        # The first jobs of all are in the lanes whose own first jobs come first.
        lanes = heapq.nsmallest(count, self._lanes.values(), key=itemgetter(0))
        return [job_id for _, job_id in islice(heapq.merge(*lanes), count)]

    def place_in_order(self, job_id: JobId) -> int | None:
        """Return the 1-based place of a job in queue order; None when it does not wait here."""
        found = self._entries.get(job_id)
        if found is None:
            return None
        return 1 + sum(bisect_left(entries, found[1]) for entries in self._lanes.values())

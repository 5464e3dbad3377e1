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
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from koala_adapter.model import ClusterName, JobId, Launcher
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.slots import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from koala_adapter.scheduler.records import JobRecord

ANY_CLUSTER = ClusterName("")
Position = tuple[int, float, int]
"""Order in the queue: priority (negated), time of submission, running number."""


class AnyLane(Protocol):
    """Common properties of the jobs in a lane; hashable."""

    @property
    def total(self) -> int:
        """Least number of processors with which one of its jobs could be placed."""


L = TypeVar("L", bound=AnyLane)
P = TypeVar("P", bound=tuple[float, ...])
I = TypeVar("I")  # noqa: E741 - of a job
_TOTAL: Callable[[AnyLane], int] = attrgetter("total")


class Need(NamedTuple):
    """Least request of one component."""

    minimum: int
    cluster: ClusterName
    """The cluster it insists on, or ANY_CLUSTER."""
    excluded: tuple[ClusterName, ...]
    flexible: bool = False
    """Whether a policy may split it over clusters."""
    software: tuple[str, ...] = ()
    contained: str = ""
    """The launcher of ranks that run in a container; empty: they do not."""
    connects: bool = False
    """Its processes must be able to connect to those of the others (MPI)."""
    slots: str = ""
    """What its slots are, in a form that can be compared; empty: one processor each."""
    names: tuple[str, ...] = ()
    """Logical names of files that its clusters must have."""


class Lane(NamedTuple):
    """Properties that decide whether a job can be placed; jobs with equal ones are in one lane."""

    needs: tuple[Need, ...]
    walltime_class: int
    """How many of the site's walltime limits are below the job's walltime: equal classes may use the same clusters."""
    policy: str
    total: int
    """Least need of all components together."""


def position_of(record: JobRecord) -> Position:
    """Return the place of a job in the order of the queue."""
    return -record.job.priority, record.job.submitted_at, record.queue_number


class LaneQueue(Generic[L, P, I]):
    """Waiting jobs in lanes, in the order of their positions, which are unique."""

    def __init__(self) -> None:
        self._lanes: dict[L, list[tuple[P, I]]] = {}
        self._by_total: list[L] = []
        self._entries: dict[I, tuple[L, tuple[P, I]]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id_: I) -> bool:
        return id_ in self._entries

    def clear(self) -> None:
        """Take all jobs out."""
        self._lanes.clear()
        self._by_total.clear()
        self._entries.clear()

    def enter(self, id_: I, lane: L, position: P) -> None:
        """Enter a job at its position."""
        if lane not in self._lanes:
            self._lanes[lane] = []
            insort(self._by_total, lane, key=_TOTAL)
        insort(self._lanes[lane], (position, id_))
        self._entries[id_] = lane, (position, id_)

    def remove(self, id_: I) -> None:
        """Take a job out; no error when it is not there."""
        found = self._entries.pop(id_, None)
        if found is None:
            return
        lane, entry = found
        entries = self._lanes[lane]
        del entries[bisect_left(entries, entry)]
        if not entries:
            del self._lanes[lane]
            del self._by_total[self._by_total.index(lane, bisect_left(self._by_total, lane.total, key=_TOTAL))]

    def scan(self, may_fit: Callable[[L], bool], *, most: int) -> Iterator[tuple[P, I]]:
        """Yield jobs in queue order, passing over a lane as soon as ``may_fit`` says no.

        Lanes whose jobs need more than ``most`` processors are not even asked. The job just yielded may be removed from
        the queue before the next one is asked for.
        """
        below = bisect_right(self._by_total, most, key=_TOTAL)
        lanes = [lane for lane in self._by_total[:below] if may_fit(lane)]
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

    def lanes(self) -> dict[L, I]:
        """Return all lanes with the first job of each."""
        return {lane: entries[0][1] for lane, entries in self._lanes.items()}

    def jobs_in(self, lane: L) -> list[I]:
        """Return the jobs of a lane in queue order."""
        return [id_ for _, id_ in self._lanes.get(lane, ())]

    def first(self, count: int) -> list[I]:
        """Return the first ``count`` jobs in queue order."""
        # The first jobs of all are in the lanes whose own first jobs come first.
        lanes = heapq.nsmallest(count, self._lanes.values(), key=itemgetter(0))
        return [id_ for _, id_ in islice(heapq.merge(*lanes), count)]

    def place_in_order(self, id_: I) -> int | None:
        """Return the 1-based place of a job in queue order; None when it does not wait here."""
        found = self._entries.get(id_)
        if found is None:
            return None
        return 1 + sum(bisect_left(entries, found[1]) for entries in self._lanes.values())


class PlacementQueue(LaneQueue[Lane, Position, JobId]):
    """Waiting jobs in order of priority, then of submission."""

    def __init__(self, policies: Policies = OWN) -> None:
        """Start empty. ``policies``: those that say what may be split."""
        super().__init__()
        self._policies = policies
        self._limits: tuple[int, ...] = ()
        self._margin = 0

    def configure(self, walltime_limits: Iterable[int], *, margin: int) -> None:
        """Empty the queue and set the limits by which walltimes (plus ``margin``) are told apart, in seconds."""
        self._limits = tuple(sorted(set(walltime_limits)))
        self._margin = margin
        self.clear()

    def lane_of(self, record: JobRecord) -> Lane:
        """Return the lane of a job."""
        needs = sorted(
            Need(
                component.minimum,
                component.cluster or ANY_CLUSTER,
                tuple(sorted(claim.excluded)),
                self._policies.may_split(record.job, component),
                component.software,
                component.launcher if component.container else "",
                component.launcher is Launcher.MPI,
                "" if component.slot == PLAIN and not component.slots else repr((component.slot, component.slots)),
                tuple(file.source for file in component.input_files if file.logical),
            )
            for component, claim in record.components()
        )
        walltime_class = bisect_left(self._limits, record.job.walltime + self._margin)
        return Lane(tuple(needs), walltime_class, record.job.placement, sum(need.minimum for need in needs))

    def push(self, record: JobRecord) -> None:
        """Enter a job at the place that its priority, submission time and number give it."""
        self.enter(record.job.id, self.lane_of(record), position_of(record))

# SPDX-License-Identifier: Apache-2.0
"""Shadow mode: what our policy would have done with jobs that a batch system schedules itself. No I/O.

Our decisions change what is free later, so they cannot be judged one by one in the batch system's own state. The
observations of each job (submission, start, run time) are replayed through the policy from the beginning, on
processor counts. A job whose run time is not known yet counts with its walltime; as soon as it is known, everything
after it is decided again.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from koala_adapter.model import LrmJob, LrmJobId, LrmJobState, NodeState
from koala_adapter.ordering.allocation import Pools, pools_of
from koala_adapter.ordering.jobs import JobCategory, JobEvent, JobEventKind, Rules, category_of, estimate, turn
from koala_adapter.queueing.queue import ClusterScheduler, LocalJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from koala_adapter.lrm.listing import Listing


# -- Replay of observed jobs through a policy ----------------------------------------------------------------

SHORTEST = 0.5
"""Seconds between two passes that a policy itself asks for."""


@dataclass(slots=True, eq=False)
class ObservedJob:
    """Times of a job under the batch system's own scheduler."""

    id: LrmJobId
    user: str
    processors: int
    estimate: int
    submitted_at: float
    queue: str
    pool: int | None
    """None: no node serves its queue any more."""
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
        """Run time in seconds: observed, or else estimated."""
        if self.started_at is None:
            return float(self.estimate)
        if self.ended_at is not None:
            return max(0.0, self.ended_at - self.started_at)
        return float(self.estimate)


_END, _SIZE, _WITHDRAW, _SUBMIT, _WAKE = range(5)
"""Order of what happens at the same time."""


class ShadowReplay:
    """Replay of one pool's observed jobs under a policy."""

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
        """Run the replay to the end of the observation."""
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


# -- The shadow of a batch system, and its report ------------------------------------------------------------

SAME = 2.0
"""Seconds within which two starts count as the same."""
LONGEST = 10_000
"""Jobs that are replayed; beyond that those that are over in both worlds are only counted."""
SHOWN = 10
"""Jobs that a report names on either side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A job that the policy starts at another time than the batch system did."""

    job_id: str
    processors: int
    theirs: float | None
    """None: the batch system has not started it yet."""
    ours: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowReport:
    """Differences between the policy's schedule and the batch system's."""

    since: float
    until: float
    jobs: int
    """Jobs that waited at some time while we looked."""
    earlier: int
    """... that we would have started earlier; and so on."""
    later: int
    same: int
    mean_wait_ours: float
    """Seconds, of all these jobs, from submission to start or to now."""
    mean_wait_theirs: float
    left_out: int
    """Jobs that wait and are not counted, because they may not be started: held, dependent, or not yet due."""
    first_earlier: tuple[Difference, ...]
    """Those with the largest differences."""
    first_later: tuple[Difference, ...]


@dataclass(slots=True)
class _Totals:
    jobs: int = 0
    earlier: int = 0
    later: int = 0
    same: int = 0
    wait_ours: float = 0.0
    wait_theirs: float = 0.0

    def count(self, seen: ObservedJob, now: float) -> float:
        """Add a job; return how many seconds earlier the policy starts it."""
        theirs, ours = seen.started_at, seen.ours
        until = now if seen.ended_at is None or seen.started_at is not None else seen.ended_at
        gain = (until if theirs is None else theirs) - (until if ours is None else ours)
        self.jobs += 1
        self.wait_theirs += (until if theirs is None else theirs) - seen.submitted_at
        self.wait_ours += (until if ours is None else ours) - seen.submitted_at
        self.earlier += gain > SAME
        self.later += gain < -SAME
        self.same += abs(gain) <= SAME
        return gain


class Shadow:
    """Observes a batch system and replays its jobs under a policy."""

    def __init__(self, make_scheduler: Callable[[], ClusterScheduler], rules: Rules, *, longest: int = LONGEST) -> None:
        """``make_scheduler``: returns a policy for 0 processors."""
        self._make_scheduler = make_scheduler
        self._rules = rules
        self._longest = longest
        self._seen: dict[LrmJobId, ObservedJob] = {}
        self._over: list[ObservedJob] = []
        """Those that the batch system shows no more, or as ended."""
        self._done: set[LrmJobId] = set()
        """Ended jobs that it still shows."""
        self._pools = Pools(nodes={}, queues={}, default=None)
        self._sizes: list[tuple[float, list[int]]] = []
        """The sizes of the pools, and since when."""
        self._base = _Totals()
        self._first: float | None = None
        self._from = 0.0
        """Time from which is replayed."""
        self._now = 0.0
        self._left_out = 0
        self.happened: list[JobEvent] = []

    # -- looking -----------------------------------------------------------------------------------------------------

    def observe(self, listing: Listing) -> None:
        """Add a listing and decide again."""
        now = self._now = max(self._now, listing.read_at)
        first = self._first is None
        if self._first is None:
            self._first = self._from = now
        changed = self._examine_nodes(listing, now)
        shown = {job.id for job in listing.jobs}
        self._done &= shown
        self._left_out = 0
        for job_id in [id_ for id_ in self._seen if id_ not in shown]:
            self._end(self._seen[job_id], now)
            changed = True
        for job in listing.jobs:
            changed |= self._examine(job, listing, now, first=first)
        if changed:
            self._replay(now)
            self._drop_ended(now)
            self._tell()
            # What is seen and what is decided anew are found one after the other, and happened among each other.
            self.happened.sort(key=lambda one: one.time)

    def _examine_nodes(self, listing: Listing, now: float) -> bool:
        pools = pools_of(listing.nodes, listing.queues)
        sizes = [0] * pools.count
        for node in listing.nodes:
            sizes[pools.nodes[node.name]] += node.processors if node.state is NodeState.UP else 0
        if (pools.count, pools.queues) != (self._pools.count, self._pools.queues):
            # Nodes belong together differently now: the sizes that were observed before are not those of these pools.
            self._sizes = []
            for seen in (*self._over, *self._seen.values()):
                seen.pool = pools.of_queue(seen.queue)
        self._pools = pools
        if self._sizes and self._sizes[-1][1] == sizes:
            return False
        self._sizes.append((now, sizes))
        return True

    def _examine(self, job: LrmJob, listing: Listing, now: float, *, first: bool) -> bool:
        seen = self._seen.get(job.id)
        found, _ = category_of(job, self._rules, now=listing.time_of_day)
        self._left_out += found is JobCategory.LEFT_OUT
        if seen is None:
            if found is JobCategory.OVER and (first or job.started_at is None or job.id in self._done):
                self._done.add(job.id)
                return False
            seen = self._new(job, listing)
            if seen is None:
                return False
        before = (seen.ready_at, seen.started_at, seen.estimate)
        seen.estimate = estimate(job, listing.queues, self._rules)
        if found is JobCategory.OURS and seen.ready_at is None:
            seen.ready_at = now if first else max(seen.submitted_at, self._from)
        if job.state in {LrmJobState.STARTING, LrmJobState.RUNNING, LrmJobState.ENDING, LrmJobState.ENDED}:
            self._started(seen, job, listing, now, first=first)
        if found is JobCategory.OVER:
            self._end(seen, now if job.ends_at is None else min(listing.moment(job.ends_at), now))
            return True
        return before != (seen.ready_at, seen.started_at, seen.estimate)

    def _new(self, job: LrmJob, listing: Listing) -> ObservedJob | None:
        pool = self._pools.of_queue(job.queue)
        if pool is None:
            return None
        seen = ObservedJob(
            id=job.id,
            user=job.user,
            processors=job.processors,
            estimate=estimate(job, listing.queues, self._rules),
            submitted_at=self._now if job.submitted_at is None else listing.moment(job.submitted_at),
            queue=job.queue,
            pool=pool,
        )
        self._seen[job.id] = seen
        return seen

    def _started(self, seen: ObservedJob, job: LrmJob, listing: Listing, now: float, *, first: bool) -> None:
        if seen.started_at is not None or (job.state is LrmJobState.ENDED and job.started_at is None):
            return
        seen.started_at = now if job.started_at is None else min(listing.moment(job.started_at), now)
        if first:
            seen.ours, seen.fixed = seen.started_at, True
            return
        if seen.ready_at is None:
            # It came and started between two looks, or was let go and started.
            eligible = 0.0 if job.eligible_at is None else listing.moment(job.eligible_at)
            seen.ready_at = max(self._from, min(seen.started_at, max(seen.submitted_at, eligible)))
        self._say(JobEventKind.STARTED, seen, seen.started_at, "by the batch system")

    def _end(self, seen: ObservedJob, at: float) -> None:
        seen.ended_at = at
        self._done.add(seen.id)
        del self._seen[seen.id]
        if seen.ready_at is not None or seen.started_at is not None:
            self._over.append(seen)

    # -- deciding anew -----------------------------------------------------------------------------------------------

    def _replay(self, now: float) -> None:
        for pool in range(self._pools.count):
            jobs = [seen for seen in (*self._over, *self._seen.values()) if seen.pool == pool]
            sizes = [(at, counts[pool]) for at, counts in self._sizes]
            ShadowReplay(self._make_scheduler(), jobs, sizes, since=self._from, until=now).run()

    def _drop_ended(self, now: float) -> None:
        """Drop jobs that are over in both schedules when too many are kept; past decisions stay."""
        if len(self._over) <= self._longest:
            return
        kept = []
        for seen in self._over:
            if seen.ours is not None and seen.ours + seen.run_time > now:
                kept.append(seen)
            elif seen.ready_at is not None:
                self._base.count(seen, now)
        self._over = kept
        for seen in (*kept, *self._seen.values()):
            seen.fixed = seen.ours is not None
        self._from = now
        self._sizes = [(now, self._sizes[-1][1])]

    def _tell(self) -> None:
        for seen in (*self._over, *self._seen.values()):
            if seen.ready_at is not None and seen.ours is not None and not seen.told:
                seen.told = True
                gain = (self._now if seen.started_at is None else seen.started_at) - seen.ours
                theirs = (
                    "not yet" if seen.started_at is None else f"{abs(gain):.0f} s {'later' if gain > 0 else 'before'}"
                )
                same = seen.started_at is not None and abs(gain) <= SAME
                self._say(JobEventKind.START, seen, seen.ours, f"the batch system {'as well' if same else theirs}")

    def _say(self, kind: JobEventKind, seen: ObservedJob, at: float, detail: str) -> None:
        self.happened.append(
            JobEvent(
                time=at, kind=kind, job_id=seen.id, user=seen.user, processors=seen.processors, detail=detail, at=None
            )
        )

    # -- telling -----------------------------------------------------------------------------------------------------

    def report(self) -> ShadowReport:
        """Return the differences so far."""
        totals = _Totals(**{name: getattr(self._base, name) for name in _Totals.__slots__})
        gains: list[tuple[float, ObservedJob]] = [
            (totals.count(seen, self._now), seen)
            for seen in (*self._over, *self._seen.values())
            if seen.ready_at is not None
        ]
        gains.sort(key=lambda gain: gain[0])
        jobs = max(1, totals.jobs)
        return ShadowReport(
            since=self._now if self._first is None else self._first,
            until=self._now,
            jobs=totals.jobs,
            earlier=totals.earlier,
            later=totals.later,
            same=totals.same,
            mean_wait_ours=totals.wait_ours / jobs,
            mean_wait_theirs=totals.wait_theirs / jobs,
            left_out=self._left_out,
            first_earlier=_named(seen for gain, seen in reversed(gains[-SHOWN:]) if gain > SAME),
            first_later=_named(seen for gain, seen in gains[:SHOWN] if gain < -SAME),
        )


def _named(found: Iterable[ObservedJob]) -> tuple[Difference, ...]:
    return tuple(
        Difference(job_id=seen.id, processors=seen.processors, theirs=seen.started_at, ours=seen.ours) for seen in found
    )

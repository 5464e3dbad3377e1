# SPDX-License-Identifier: Apache-2.0
"""The mirror of a batch system's queue, kept by comparing each listing with it; and where each job stands. No I/O.

Listings and times come in, decisions come out, and differences are reported to the policies. The mirror is not the
truth: a restart rebuilds it from the next listing and the recorded pins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING

from koala_adapter.lrm.listing import Listing, is_another
from koala_adapter.lrm.starts import REQUEUED, Stage, Starts, by_id, up_for_us
from koala_adapter.model import ACTIVE, WAITING, LrmJob, LrmJobId, LrmJobState, Node
from koala_adapter.ordering.allocation import NodeRoom, Pools, memory_on, rooms_of
from koala_adapter.ordering.jobs import (
    Entry,
    JobCategory,
    JobEvent,
    JobEventKind,
    Phase,
    Rules,
    Suitability,
    category_of,
    difference,
    estimate,
    in_order,
    known_limit,
    layout_of,
    turn,
)
from koala_adapter.policies.checked import CheckedQueue
from koala_adapter.queueing.queue import ClusterScheduler, LocalJob, why_waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from koala_adapter.lrm.startlog import Layout, Pin


# -- Where each waiting job stands ---------------------------------------------------------------------------
# This is noted after the scheduler has decided, and read to answer questions. So no question of another user calls a
# policy, which may be a site's own code.


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Place, reserved start and reason of a waiting job."""

    position: int
    """Its place, from 1; 0: it is larger than the cluster is now."""
    queued: int
    """Jobs in that queue."""
    start: float | None
    """When it starts at the latest, as long as all jobs end by their walltimes; None: nothing is promised yet."""
    reason: str


class Standings:
    """The queue of one pool as it was after a decision."""

    def __init__(self, scheduler: ClusterScheduler, now: float) -> None:
        """``now``: by the clock of the scheduler."""
        self._order: Sequence[LocalJob] = tuple(scheduler.waiting)
        self.reserved: Mapping[LocalJob, float] = dict(scheduler.reservations(now))
        """The reserved starts of waiting jobs."""
        self._free, self._processors = scheduler.free, scheduler.processors
        self._trouble = scheduler.trouble if isinstance(scheduler, CheckedQueue) else ""

    @cached_property
    def _places(self) -> Mapping[LocalJob, int]:
        return {job: place for place, job in enumerate(self._order, 1)}

    def of(self, job: LocalJob) -> Standing | None:
        """Return the place of a job; None when it was not waiting."""
        place = self._places.get(job)
        if place is None:
            return None
        position = place if job.processors <= self._processors else 0
        start = self.reserved.get(job)
        known = why_waiting(job, position, start, free=self._free, processors=self._processors)
        reason = self._trouble or known
        return Standing(position=position, queued=len(self._order), start=start, reason=reason)


# -- The mirror ----------------------------------------------------------------------------------------------

STEADY = frozenset({Phase.RUNNING, Phase.WAITING})
"""Phases in which nothing follows from a listing that shows a job as the last one did."""


class Mirror:
    """Jobs and nodes of one batch system, with a queue policy for each pool of nodes."""

    def __init__(
        self,
        make_scheduler: Callable[[], ClusterScheduler],
        rules: Rules,
        starts: Starts,
    ) -> None:
        """``make_scheduler``: returns a policy for 0 processors; ``starts``: those on record."""
        self.rules = rules
        self.starts = starts
        self.entries: dict[LrmJobId, Entry] = {}
        self._suitability = Suitability()
        self.schedulers: list[ClusterScheduler] = []
        self.listing: Listing | None = None
        self.dirty = True
        """Something changed that may let a job start."""
        self.unfinished = False
        """The last pass ended at its bounds: jobs behind those that it tried may be able to start."""
        self.changed_meanwhile = False
        """Something changed since the first of the passes that try all jobs."""
        self.round = 0
        """Number of the passes that together try all jobs; one pass, but for very many that fit in sum only."""
        self.rooms: dict[str, NodeRoom] = {}
        """What was free on each node that is up at the last look."""
        self.standings: Sequence[Standings] = ()
        """Where the waiting jobs stood after the last decision, by pool; empty before the first."""
        self.happened: list[JobEvent] = []
        """Events to be shown; the driver of the mirror removes them."""
        self._make_scheduler = make_scheduler

    @property
    def pools(self) -> Pools:
        """The pools of nodes; their numbers are those of the policies."""
        return self._suitability.pools

    def tell(
        self,
        kind: JobEventKind,
        entry: Entry,
        now: float,
        *,
        detail: str = "",
        at: float | None = None,
        nodes: Layout | None = None,
    ) -> None:
        """Add an event of a job to those to be shown. ``nodes`` None: those of the entry."""
        job = entry.job
        self.happened.append(
            JobEvent(
                time=now,
                kind=kind,
                job_id=job.id,
                user=job.user,
                processors=job.processors,
                detail=detail,
                at=at,
                nodes=entry.nodes if nodes is None else nodes,
            )
        )

    # -- looking -----------------------------------------------------------------------------------------------------

    def observe(self, listing: Listing) -> None:
        """Update jobs and nodes from a listing."""
        now = listing.read_at
        nodes = up_for_us(listing.nodes, self.starts.in_hand(listing.read_at))
        self.listing = listing = replace(listing, nodes=nodes)
        same = self._examine_nodes(listing)
        seen = by_id(listing.jobs)
        for job_id in [id_ for id_ in self.entries if id_ not in seen]:
            self._gone(self.entries[job_id], now, JobEventKind.GONE)
        for job_id in [id_ for id_ in self.starts.pins if id_ not in seen]:
            self.starts.gone(job_id)
        occupying: list[Entry] = []
        waiting: list[Entry] = []
        known = [job for job in listing.jobs if job.id in self.entries]
        for job in (*known, *in_order(job for job in listing.jobs if job.id not in self.entries)):
            entry = self.entries.get(job.id)
            if not (same and entry is not None and entry.phase in STEADY and entry.listed == job):
                entry = self._examine(job, now)
                if entry is None:
                    continue
                entry.listed = job
            (occupying if entry.phase in {Phase.RUNNING, Phase.STARTING} else waiting).append(entry)
        self._settle(occupying, waiting, now)

    def _examine_nodes(self, listing: Listing) -> bool:
        """Update pools from the listed nodes; return whether they are unchanged."""
        before = self.pools
        same = self._suitability.follow(listing)
        if self.pools != before:
            self.schedulers = [self._make_scheduler() for _ in range(self.pools.count)]
            for entry in self.entries.values():
                entry.local = None
                if entry.phase is Phase.WAITING:
                    entry.phase = Phase.LEFT_OUT
            self.dirty = True
        return same

    def _examine(self, job: LrmJob, now: float) -> Entry | None:
        """Update the entry of one job; return None when the job is over."""
        entry = self.entries.get(job.id)
        if entry is not None and is_another(job, entry.job.submitted_at):
            self._gone(entry, now, JobEventKind.GONE)
            entry = None
        pin = self.starts.pin_of(job)
        if pin is not None and pin.wishes is not None:
            job = self.starts.as_asked(job)
        elif self.rules.one_node and job.state in WAITING:
            job = replace(job, nodes_wanted=1)
        wall = now if self.listing is None else self.listing.time_of_day
        found, reason = category_of(job, self.rules, now=wall, ours=pin is not None)
        if found is JobCategory.OVER:
            if entry is not None:
                self._gone(entry, now, JobEventKind.ENDED)
            self.starts.over(job, now)
            return None
        if entry is None:
            entry = self._new(job, pin)
            if found is not JobCategory.OCCUPYING:
                self.tell(JobEventKind.SUBMITTED, entry, now)
        again = job.requeues > entry.requeues
        self._update(entry, job, now)
        if found is JobCategory.OCCUPYING:
            self._occupies(entry, now, again=again and job.state in ACTIVE)
        elif entry.phase is not Phase.STARTING or self._start_has_failed(entry, now):
            self._set_aside(entry, reason, now)
        return entry

    def _new(self, job: LrmJob, pin: Pin | None) -> Entry:
        entry = Entry(job=job, phase=Phase.LEFT_OUT, requeues=job.requeues)
        if self.listing is not None and job.submitted_at is not None:
            entry.submitted = self.listing.moment(job.submitted_at)
        self.entries[job.id] = entry
        if pin is not None and pin.started and job.state in WAITING:
            # It was queued again while we were stopped.
            entry.phase = Phase.RUNNING
        elif pin is not None and not pin.not_before and job.state is not LrmJobState.HELD:
            # It had been released when we were stopped: the next looks tell what came of it.
            entry.phase, entry.nodes = Phase.STARTING, pin.nodes
            self.starts.resume(pin, Stage.ACCEPTED)
        elif pin is not None and pin.wishes is not None and job.state in WAITING:
            # We were stopped before it was in hold again, or in hold and tied to nothing.
            entry.phase, entry.reason = Phase.RETURNING, pin.failure
            self.starts.resume(pin, Stage.FAILED)
        return entry

    def _update(self, entry: Entry, job: LrmJob, now: float) -> None:
        """Update an entry from the listed job, and the policy where it is concerned."""
        former = entry.job
        entry.job = job
        if self.listing is None:
            return
        if job.started_at is not None and (entry.started is None or entry.started[0] != job.started_at):
            entry.started = (job.started_at, self.listing.moment(job.started_at))
        told = estimate(job, self.listing.queues, self.rules)
        if entry.local is not None and told != entry.estimate:
            self.schedulers[_pool(entry)].revise(entry.local, now, estimate=told)
            self.dirty = True
            self.tell(JobEventKind.CHANGED, entry, now, detail=f"walltime {told} s")
        entry.estimate = told
        entry.estimate_assumed = known_limit(job, self.listing.queues) is None
        same = (former.processors, former.queue, former.user) == (job.processors, job.queue, job.user)
        if not same and entry.local is not None and entry.phase is Phase.WAITING:
            self._withdraw(entry, now)
            entry.phase = Phase.LEFT_OUT

    def _occupies(self, entry: Entry, now: float, *, again: bool) -> None:
        layout = layout_of(entry.job)
        if again and entry.phase is Phase.RUNNING:
            self._leave(entry, now)
            self.tell(
                JobEventKind.ADOPTED, entry, now, nodes=layout, detail=f"{REQUEUED}, and the batch system started it"
            )
        if entry.phase is Phase.STARTING and entry.local is not None:
            other = difference(layout, entry.nodes) if entry.job.layout else ""
            self.tell(JobEventKind.STARTED, entry, now, nodes=layout or entry.nodes, detail=other)
            self.dirty |= self.rules.one_by_one
        elif entry.phase is not Phase.RUNNING:
            self._withdraw(entry, now)
            self.tell(JobEventKind.ADOPTED, entry, now, nodes=layout)
        self.starts.shown(entry.job, now)
        entry.nodes = layout or entry.nodes
        entry.phase, entry.reason = Phase.RUNNING, ""
        if entry.job.state in ACTIVE:
            entry.requeues = entry.job.requeues

    def _start_has_failed(self, entry: Entry, now: float) -> bool:
        """Take back a failed start; one that does not show yet may still succeed."""
        failure = self.starts.failure(entry.job, now)
        if failure is None:
            return False
        self._leave(entry, now)
        pause = self.starts.failed(entry.job.id, failure)
        entry.phase, entry.reason, entry.nodes = Phase.RETURNING, failure.reason, ()
        self.tell(JobEventKind.NOT_STARTED, entry, now, detail=f"{failure.reason}; tried again in {pause:.0f} s")
        return True

    def _set_aside(self, entry: Entry, reason: str, now: float) -> None:
        """Set aside a waiting job that may not be started; others are queued once the cluster's size is known."""
        if entry.phase is Phase.RUNNING:
            self._handle_requeue(entry, now)
        held = entry.job.state is LrmJobState.HELD
        if entry.phase is Phase.RETURNING and held and not self.starts.is_tied(entry.job.id):
            entry.phase = Phase.LEFT_OUT
        if entry.phase is Phase.RETURNING:
            return
        pin = self.starts.pins.get(entry.job.id)
        if not reason and pin is not None and now < pin.not_before:
            reason = f"{pin.failure}; it is tried again in {pin.not_before - now:.0f} s"
        if not reason:
            entry.pool, reason = self._suitability.pool_for(entry.job)
        if reason and entry.phase is Phase.WAITING:
            self._withdraw(entry, now)
            entry.phase = Phase.LEFT_OUT
        if reason and reason.partition(";")[0] != entry.reason.partition(";")[0]:
            self.tell(JobEventKind.LEFT_OUT, entry, now, detail=reason)
        entry.reason = reason

    def _handle_requeue(self, entry: Entry, now: float) -> None:
        """Hold and untie a job that koala started and that waits again."""
        if entry.phase is Phase.RUNNING:
            self._leave(entry, now)
        self._withdraw(entry, now)
        self.tell(JobEventKind.REQUEUED, entry, now, nodes=())
        entry.phase, entry.nodes, entry.promised, entry.requeues = Phase.LEFT_OUT, (), None, entry.job.requeues
        if self.starts.requeued(entry.job.id, now):
            entry.phase, entry.reason = Phase.RETURNING, REQUEUED

    def _settle(self, occupying: Iterable[Entry], waiting: Iterable[Entry], now: float) -> None:
        """Update the policies' cluster sizes, then their running and waiting jobs."""
        for entry in occupying:
            if entry.local is None:
                entry.pool = self.pools.of_nodes(entry.nodes)
        self._resize(occupying, now)
        for entry in occupying:
            if entry.local is None and entry.pool is not None:
                entry.local = self._local(entry)
                known = entry.started if entry.job.started_at is not None else None
                started = now if known is None else known[1]
                self.schedulers[entry.pool].adopt(entry.local, min(started, now), now)
                self.dirty = True
        for entry in waiting:
            if entry.phase is Phase.LEFT_OUT and not entry.reason:
                self._queue(entry)

    def _resize(self, occupying: Iterable[Entry], now: float) -> None:
        """Set each cluster's size to running plus free processors, so that drained nodes shrink as jobs end."""
        sizes = [0] * len(self.schedulers)
        self.rooms = self._free_rooms()
        for name, room in self.rooms.items():
            sizes[self.pools.nodes[name]] += room.processors
        for entry in occupying:
            if entry.pool is not None:
                sizes[entry.pool] += entry.local.processors if entry.local else entry.job.processors
        for scheduler, size in zip(self.schedulers, sizes, strict=True):
            if scheduler.processors != size:
                scheduler.resize(size, now)
                self.dirty = True

    def _queue(self, entry: Entry) -> None:
        entry.local = self._local(entry)
        entry.phase = Phase.WAITING
        self.schedulers[_pool(entry)].submit(entry.local)
        self.dirty = True

    def _local(self, entry: Entry) -> LocalJob:
        job = entry.job
        place = turn(job.id, job.submitted_at)
        processors = self._suitability.processors_of(job)
        return LocalJob(job.id, processors, float(entry.estimate), entry.submitted, job.user, turn=place)

    # -- what became of it -------------------------------------------------------------------------------------------

    def another_starts(self, entry: Entry) -> bool:
        """Return whether another element of the job's array is being started, so that this one must wait."""
        array = entry.job.array if self.rules.one_by_one else None
        return array is not None and any(
            other.phase in {Phase.STARTING, Phase.RETURNING} and other.job.array == array
            for other in self.entries.values()
        )

    def standing_of(self, entry: Entry) -> Standing | None:
        """Return where a waiting job stood after the last decision; None when it was not waiting then."""
        if entry.phase is not Phase.WAITING or entry.local is None or _pool(entry) >= len(self.standings):
            return None
        return self.standings[_pool(entry)].of(entry.local)

    def starts_to_undo(self) -> list[LrmJobId]:
        """Return jobs to be held and untied: not started in time, or queued again."""
        returning = (entry.job for entry in self.entries.values() if entry.phase is Phase.RETURNING)
        return [job.id for job in returning if job.state is LrmJobState.QUEUED or self.starts.is_tied(job.id)]

    def _gone(self, entry: Entry, now: float, kind: JobEventKind) -> None:
        ran = entry.phase in {Phase.RUNNING, Phase.STARTING}
        if ran:
            self._leave(entry, now)
        else:
            self._withdraw(entry, now)
        del self.entries[entry.job.id]
        self.tell(JobEventKind.ENDED if ran else kind, entry, now)

    def _leave(self, entry: Entry, now: float) -> None:
        """Remove a job that holds processors from its policy."""
        if entry.local is not None:
            self.schedulers[_pool(entry)].end(entry.local, now)
            self.dirty = True
        entry.local = None

    def _withdraw(self, entry: Entry, now: float) -> None:
        """Remove a waiting job from its policy."""
        if entry.local is not None and entry.phase is Phase.WAITING:
            self.schedulers[_pool(entry)].withdraw(entry.local, now)
            entry.local = None
            self.dirty = True

    # -- what is there -----------------------------------------------------------------------------------------------

    def _nodes(self) -> tuple[Node, ...]:
        return () if self.listing is None else self.listing.nodes

    def _free_rooms(self) -> dict[str, NodeRoom]:
        """Return the free resources of each node that is up; those of jobs being started are not free."""
        nodes = {node.name: node for node in self._nodes()}
        taken: dict[str, int] = {}
        memory: dict[str, int] = {}
        for entry in self.entries.values():
            if entry.phase in {Phase.RUNNING, Phase.STARTING}:
                for name, count in entry.nodes:
                    if name in nodes:
                        taken[name] = taken.get(name, 0) + nodes[name].gives(entry.job, count)
                        memory[name] = memory.get(name, 0) + memory_on(entry.job, nodes[name], count)
        return rooms_of(self._nodes(), taken, memory)

    def next_due(self, now: float) -> float | None:
        """Return the time of the next pass if nothing happens before; None: no pass is needed."""
        times = [pin.not_before for pin in self.starts.pins.values()]
        offset = 0.0 if self.listing is None else self.listing.offset
        eligible = (entry.job.eligible_at for entry in self.entries.values())
        times += [time - offset for time in eligible if time is not None]
        times += [scheduler.wake_at for scheduler in self.schedulers]
        return min((time for time in times if now < time < inf), default=None)


def _pool(entry: Entry) -> int:
    if entry.pool is None:
        raise AssertionError("a job that a policy knows has a pool")
    return entry.pool

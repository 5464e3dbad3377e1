# SPDX-License-Identifier: Apache-2.0
"""Waiting in the placement queue: room during a scan, first polls of clusters, tries, the guard, and dependencies.

The guard prevents starvation: worst fit lets small jobs pass a large one of earlier date that does not fit yet. When
such a job has waited for ``guard_scans`` interval scans, clusters are chosen where it would fit if none of koala's
placeholders were there, and what it needs there is left free by every job behind it in the queue. Jobs before it (of
higher priority) are not held up. One job is guarded at a time, so at most its own size is left idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.errors import PolicyAnswerError
from koala_adapter.model import After, AfterEnd, ClusterName, EndReason
from koala_adapter.outcome import JobState, outcome_without_code
from koala_adapter.scheduler.actions import ReportRefusedAnswer
from koala_adapter.scheduler.claiming.connections import doubts, groups, may_spread, said_apart
from koala_adapter.scheduler.claiming.plannedstart import watch
from koala_adapter.scheduler.claiming.queue import ANY_CLUSTER, Lane, Need, PlacementQueue
from koala_adapter.scheduler.context import Views, closed_reason
from koala_adapter.scheduler.placement.policy import Insufficient, Placed, infeasibility
from koala_adapter.scheduler.timers import TimerKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from koala_adapter.scheduler.clusters import ClusterRecord
    from koala_adapter.scheduler.context import Context, JobTimers
    from koala_adapter.scheduler.placement.policy import ComponentRequest, PlacedComponent, PlacementResult
    from koala_adapter.scheduler.records import JobRecord, State


# -- Room on all clusters during one scan --------------------------------------------------------------------


class Capacity:
    """Views of the clusters with room, updated while jobs are placed."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.largest = 0
        """Most room on any of them."""
        self.total = 0
        """Room on all of them together."""
        clusters = context.state.clusters.items()
        self.views = Views(context, (name for name, one in clusters if closed_reason(one, context.now) is None))
        """Open clusters with room, in the order of the site file."""
        self._rooms = {name: self._room(name) for name in self.views}
        for name in [name for name, room in self._rooms.items() if room <= 0]:
            self._drop(name)
        self._measure()

    def refresh(self, names: Iterable[ClusterName]) -> None:
        """Update the views of clusters where something was placed."""
        for name in names:
            self.views.refresh(name)
            self._rooms[name] = self._room(name)
            if self._rooms[name] <= 0:
                self._drop(name)
        self._measure()

    def keep(self, kept: Mapping[ClusterName, int]) -> None:
        """Reserve processors for another job."""
        for name, processors in kept.items():
            if name in self.views:
                self.views.take(name, processors)
        self.refresh([name for name in kept if name in self.views])

    def may_hold(self, lane: Lane) -> bool:
        """Tell whether a lane's jobs could fit, by each component and by their sum; only False is certain."""
        return lane.total <= self.total and all(self._may_hold(need) for need in lane.needs)

    def _may_hold(self, need: Need) -> bool:
        if need.cluster == ANY_CLUSTER:
            return need.minimum <= (self.total if need.flexible else self.largest)
        return self._rooms.get(need.cluster, 0) >= need.minimum

    def _room(self, name: ClusterName) -> int:
        """Return how many slots of any shape there is room for, at most: none takes less than a processor."""
        cluster = self._context.state.clusters[name]
        elsewhere = (one.most for one in cluster.slots if one.other_queue)
        return max(0, cluster.room - self.views.taken(name), *elsewhere)

    def _drop(self, name: ClusterName) -> None:
        self.views.drop(name)
        del self._rooms[name]

    def _measure(self) -> None:
        rooms = self._rooms.values()
        self.largest, self.total = max(rooms, default=0), sum(rooms)


# -- Clusters that were not polled yet -----------------------------------------------------------------------
# After a start of the service, clusters are polled one after the other. A job that finds no idle processors on the
# first one would be queued there and stay, although the next one may be empty. So a job that would only be queued waits
# for the first poll of each cluster until that is answered or has failed, at most ``FIRST_LOOK`` seconds. A job that
# can start at once does not wait. Placeholders that were postponed before the start wait for their cluster, too.

FIRST_LOOK = 30.0
"""Seconds after which a cluster that has neither answered its first poll nor failed to counts as seen."""


def await_first_looks(context: Context) -> None:
    """Set a time limit for the first polls of clusters that were never polled."""
    for cluster in context.state.clusters.values():
        if cluster.configured and cluster.polled_at is None and cluster.unavailable is None:
            await_first_look(context, cluster)


def await_first_look(context: Context, cluster: ClusterRecord) -> None:
    """Set a time limit for the first poll of a cluster by this service."""
    cluster.first_look_until = context.now + FIRST_LOOK


def looked_at(context: Context, cluster: ClusterRecord) -> None:
    """Handle a cluster's first poll or its failure: what waited for it may be queued there now, or elsewhere."""
    if cluster.first_look_until is not None:
        cluster.first_look_until = None
        context.scan_wanted = True
        for record in context.state.jobs.values():
            if any(claim.postponed is not None and claim.cluster == cluster.name for claim in record.claims):
                watch(context, record)


def awaited_looks(state: State, now: float) -> list[ClusterRecord]:
    """Return clusters whose first polls are awaited, in site-file order."""
    return [
        cluster
        for cluster in state.clusters.values()
        if cluster.configured and cluster.first_look_until is not None and now < cluster.first_look_until
    ]


def waits_for_looks(context: Context, requests: Iterable[ComponentRequest]) -> bool:
    """Return whether a component may find idle processors on a cluster not polled yet.

    Then the scheduler wakes up, at the latest, when the time for that poll is over.
    """
    awaited = awaited_looks(context.state, context.now)
    if not awaited:
        return False
    names = [cluster.name for cluster in awaited]
    views = Views(context, names)
    if all(request.never(views.of(request.component)[name]) is not None for request in requests for name in names):
        return False
    for cluster in awaited:
        if cluster.first_look_until is not None:
            context.timetable.for_cluster(cluster, cluster.first_look_until)
    return True


def would_be_queued(requests: Sequence[ComponentRequest], placed: Placed, views: Views) -> list[ComponentRequest]:
    """Return the placed requests for which too few slots are idle on their clusters."""
    components = {request.component.name: request.component for request in requests}
    wanted: dict[ClusterName, int] = {}
    for part in placed.components:
        each = views.of(components[part.component])[part.cluster].slot_processors
        wanted[part.cluster] = wanted.get(part.cluster, 0) + part.processors * each
    queued = set()
    for part in placed.components:
        view = views.of(components[part.component])[part.cluster]
        if wanted[part.cluster] > view.available * view.slot_processors:
            queued.add(part.component)
    return [request for request in requests if request.component.name in queued]


# -- Entering and leaving the queue, trying to place, and the guard ------------------------------------------

GUARD_LOOK = 16
"""How many jobs at the head are looked at to find one that the guard can help."""


def enqueue(context: Context, record: JobRecord) -> None:
    """Put a waiting job into the placement queue."""
    state = context.state
    state.enqueued += 1
    record.timers.pop(TimerKind.BACKOFF, None)
    record.queued_at_scan = state.scans
    record.queue_number = state.enqueued
    record.tries_end_at_scan = state.scans + max(1, maximum_tries(context, record) - record.tries)
    state.tries_end.setdefault(record.tries_end_at_scan, {})[record.job.id] = None
    context.queue.push(record)
    context.scan_wanted = True


def leave_queue(context: Context, record: JobRecord) -> None:
    """Remove a job from the placement queue if it is there; its scans count as tries."""
    state = context.state
    context.queue.remove(record.job.id)
    if record.queued_at_scan is not None:
        record.tries += state.scans - record.queued_at_scan
        record.queued_at_scan = None
    if record.tries_end_at_scan is not None:
        jobs = state.tries_end.get(record.tries_end_at_scan, {})
        jobs.pop(record.job.id, None)
        if not jobs:
            state.tries_end.pop(record.tries_end_at_scan, None)
        record.tries_end_at_scan = None
    if state.guarded == record.job.id:
        state.guarded, state.kept_room = None, {}
        context.scan_wanted = True


def rebuild(queue: PlacementQueue, state: State) -> None:
    """Fill the queue from the records for the configured site."""
    limits = (cluster.parameters.walltime_limit for cluster in state.clusters.values() if cluster.configured)
    queue.configure((limit for limit in limits if limit is not None), margin=int(state.parameters.launch_margin))
    for record in state.jobs.values():
        if record.state is JobState.WAITING and record.not_before is None and record.queued_at_scan is not None:
            queue.push(record)


def interval_scan(context: Context) -> None:
    """Count a scan by the interval timer as a try of every waiting job."""
    state = context.state
    state.scans += 1
    context.scan_wanted = True
    views = context.views()
    verdicts: dict[Lane, PlacementResult] = {}
    for job_id in list(state.tries_end.get(state.scans, ())):
        record = state.jobs[job_id]
        lane = context.queue.lane_of(record)
        if lane not in verdicts:
            verdicts[lane] = place(context, record, views)
        _last_try(context, record, verdicts[lane])
    _guard(context, views)


def _last_try(context: Context, record: JobRecord, verdict: PlacementResult) -> None:
    """Give up a job, unless it can be placed right now."""
    state = context.state
    if isinstance(verdict, Placed):
        state.tries_end[state.scans].pop(record.job.id)
        if not state.tries_end[state.scans]:
            del state.tries_end[state.scans]
        record.tries_end_at_scan = state.scans + 1
        state.tries_end.setdefault(record.tries_end_at_scan, {})[record.job.id] = None
        return
    record.last_trouble = verdict.reason
    leave_queue(context, record)
    if not tries_used_up(context, record):  # more are allowed now than when it came into the queue
        enqueue(context, record)


def place(context: Context, record: JobRecord, views: Views) -> PlacementResult:
    """Return the placement of a job by its policy now."""
    return ask_policy(context, record, context.requests(record), views)


def ask_policy(
    context: Context,
    record: JobRecord,
    requests: Sequence[ComponentRequest],
    views: Views,
) -> PlacementResult:
    """Return a policy's placement of components; an invalid answer counts as no placement.

    Where processes must connect and the policy's choice leaves that in doubt, it is asked for groups of clusters: those
    that are known to connect, then those of which no pair is known not to. The first placement that can start at once
    is taken, else the first of all.
    """
    result = _ask_policy(context, record, requests, views)
    if not isinstance(result, Placed) or not may_spread(record, requests):
        return result
    state, now = context.state, context.now
    claims = (claim for claim in record.claims if claim.placeholders or claim.postponed is not None)
    held = {claim.cluster for claim in claims if claim.cluster is not None}
    if not doubts(state, held | {part.cluster for part in result.components}, now).all:
        return result
    found = doubts(state, [*views, *held], now)
    first: Placed | None = None
    for barred in (found.all, found.apart):
        possible = [name for name in views if not any(frozenset((name, other)) in barred for other in held)]
        for group in groups(possible, barred):
            result = _ask_policy(context, record, requests, views.only(group))
            if isinstance(result, Placed):
                if not would_be_queued(requests, result, views):
                    return result
                first = first or result
    return first or Insufficient(reason=said_apart(found.apart))


def _ask_policy(
    context: Context,
    record: JobRecord,
    requests: Sequence[ComponentRequest],
    views: Views,
) -> PlacementResult:
    """Return a policy's placement of components, wherever their processes may connect.

    A policy sees clusters in slots. So of components with other slots it is asked one kind of slot after the other,
    each with what the earlier ones have left.
    """
    policy = context.policies.placement_policy(record.job.placement, context.state.parameters)
    kinds = alike(requests)
    placed: list[PlacedComponent] = []
    for number, group in enumerate(kinds, start=1):
        try:
            result = policy.place(group, views.of(group[0].component))
        except PolicyAnswerError as error:
            if record.refused_answer != error.message:
                record.refused_answer = error.message
                context.effects.add(ReportRefusedAnswer(reason=error.message))
            return Insufficient(reason=error.message)
        if not isinstance(result, Placed) or len(kinds) == 1:
            record.refused_answer = ""
            return result
        placed += result.components
        if number < len(kinds):
            components = {request.component.name: request.component for request in group}
            views = views.less((components[part.component], part) for part in result.components)
    record.refused_answer = ""
    return Placed(components=tuple(placed))


def alike(requests: Sequence[ComponentRequest]) -> list[Sequence[ComponentRequest]]:
    """Group requests by their slots, largest slots first."""
    first = requests[0].component
    if all(one.component.slot == first.slot and one.component.slots == first.slots for one in requests):
        return [requests]
    kinds: dict[object, list[ComponentRequest]] = {}
    for request in requests:
        kinds.setdefault((request.component.slot, request.component.slots), []).append(request)
    return sorted(kinds.values(), key=lambda kind: (-kind[0].component.slot.threads, -kind[0].component.slot.gpus))


def impossible(requests: Sequence[ComponentRequest], views: Views) -> str | None:
    """Return why a job can never be placed, whatever becomes free; None when it can (policy.infeasibility)."""
    reasons = (infeasibility(group, views.of(group[0].component)) for group in alike(requests))
    return next((reason for reason in reasons if reason is not None), None)


def refuse(context: Context, record: JobRecord, reason: str) -> None:
    """End a job that can never run."""
    context.outcomes.append((record, outcome_without_code(JobState.REFUSED, EndReason.NOT_PLACED, reason)))


def refuse_impossible(context: Context) -> None:
    """Refuse waiting jobs that can never be placed, once every cluster has been seen."""
    clusters = [cluster for cluster in context.state.clusters.values() if cluster.configured]
    if any(cluster.largest is None for cluster in clusters):
        return
    views = context.views()
    for lane, first in context.queue.lanes().items():
        if impossible(context.requests(context.state.jobs[first]), views) is None:
            continue
        for job_id in context.queue.jobs_in(lane):
            record = context.state.jobs[job_id]
            refuse(context, record, impossible(context.requests(record), views) or "it can never be placed")


def _guard(context: Context, views: Views) -> None:
    """Choose a job that has waited long enough, and clusters, for which room is kept."""
    state = context.state
    if state.guarded is not None:
        record = state.jobs[state.guarded]
        if waits_long(state, record) and all(name in views and views[name].closed is None for name in state.kept_room):
            return
        state.guarded, state.kept_room = None, {}
    waiting = [state.jobs[job_id] for job_id in context.queue.first(GUARD_LOOK)]
    long_waiting = [record for record in waiting if waits_long(state, record)]
    if not long_waiting:
        return
    emptied = Views(context, views, emptied=True)
    for record in long_waiting:
        result = place(context, record, emptied)
        if isinstance(result, Placed):
            state.guarded = record.job.id
            for placed in result.components:
                each = emptied.of(record.job.component(placed.component))[placed.cluster].slot_processors
                kept = state.kept_room.get(placed.cluster, 0)
                state.kept_room[placed.cluster] = kept + placed.processors * each
            return


def waits_long(state: State, record: JobRecord) -> bool:
    """Return whether a job has waited for so many scans that room is kept for it."""
    waited = 0 if record.queued_at_scan is None else state.scans - record.queued_at_scan
    return waited >= state.parameters.guard_scans


def wake_for_scan(context: Context) -> None:
    """Set the timer for the next scan while jobs wait."""
    state = context.state
    if len(context.queue) and state.scan_due is None:
        context.timetable.for_scan(context.now + state.parameters.scan_interval)


# -- The limit of tries --------------------------------------------------------------------------------------


def maximum_tries(context: Context, record: JobRecord) -> int:
    """Return after how many tries a job fails."""
    own = record.job.maximum_tries
    return context.state.parameters.maximum_tries if own is None else own


def tries_used_up(context: Context, record: JobRecord) -> bool:
    """Fail a job that has used up its tries; return whether it had."""
    limit = maximum_tries(context, record)
    if record.tries < limit:
        return False
    tries = "1 try" if record.tries == 1 else f"{record.tries} tries"
    detail = f"not placed in {tries} (the limit is {limit}); last: {record.last_trouble or 'no room'}"
    context.outcomes.append((record, outcome_without_code(JobState.NOT_PLACED, EndReason.NOT_PLACED, detail)))
    return True


# -- Jobs that start only after others have ended ------------------------------------------------------------
# They wait outside the placement queue. A job is let into it when each of the jobs that it names has ended as it asks
# for. It is cancelled as soon as one of them has ended otherwise, because it could never start any more.

WORDS = {AfterEnd.OK: "completed", AfterEnd.FAILED: "failed", AfterEnd.ANY: "ended"}
"""What a job waits for, for people."""


def enter(context: Context, record: JobRecord) -> None:
    """Put a new job into the placement queue, or let it wait for the jobs that it depends on."""
    jobs = context.state.jobs
    unknown = [after.job for after in record.job.after if after.job not in jobs]
    if unknown:
        refuse(context, record, f"it is to start after job {unknown[0]}, which there is not")
        return
    for after in awaited(context.state, record):
        context.state.dependents.setdefault(after.job, []).append(record.job.id)
    _settle(context, record)


def predecessor_ended(context: Context, record: JobRecord) -> None:
    """Release or cancel the jobs that depend on one that has ended."""
    for job_id in context.state.dependents.pop(record.job.id, ()):
        waiting = context.state.jobs.get(job_id)
        if waiting is not None and waiting.state is JobState.WAITING:
            _settle(context, waiting)


def awaited(state: State, record: JobRecord) -> list[After]:
    """Return the unfinished jobs that a job depends on."""
    known = ((after, state.jobs.get(after.job)) for after in record.job.after)
    return [after for after, job in known if job is not None and not job.state.final]


def _settle(context: Context, record: JobRecord) -> None:
    """Cancel a job whose dependencies can never be met, or queue it when all are met."""
    for after in record.job.after:
        job = context.state.jobs.get(after.job)  # one that is not kept any more has ended as was asked for
        if job is not None and job.state.final and not fulfils(job.state, after.end):
            detail = (
                f"cancelled, because it was to start only after job {after.job} had {WORDS[after.end]}, "
                f"and its state is {job.state.value}"
            )
            outcome = outcome_without_code(JobState.CANCELLED, EndReason.CANCELLED, detail)
            context.outcomes.append((record, outcome))
            return
    if not awaited(context.state, record):
        enqueue(context, record)


def fulfils(state: JobState, wanted: AfterEnd) -> bool:
    """Return whether a final state meets a dependency."""
    return wanted is AfterEnd.ANY or (state is JobState.COMPLETED) is (wanted is AfterEnd.OK)


JOB_TIMERS: JobTimers = {TimerKind.BACKOFF: enqueue}

# SPDX-License-Identifier: Apache-2.0
"""Waiting in the placement queue: entering and leaving it, counting tries, and the guard against starvation.

The guard: worst fit lets small jobs of later date pass a large one that does not fit yet. When such a job has waited
for ``guard_scans`` interval scans, clusters are chosen where it would fit if none of our placeholders were there, and
what it needs there is left free by every job behind it in the queue. Jobs before it (of higher priority) are not held
up, and only one job is guarded at a time, so the processors left idle for it are bounded by its own size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.errors import PolicyAnswerError
from koala_adapter.model import EndReason
from koala_adapter.scheduler.actions import ReportRefusedAnswer
from koala_adapter.scheduler.claiming.lifecycle import maximum_tries, tries_used_up
from koala_adapter.scheduler.outcome import JobState, outcome_without_code
from koala_adapter.scheduler.placement.policy import Insufficient, Placed, infeasibility
from koala_adapter.scheduler.timers import TimerKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.claiming.queue import Lane, PlacementQueue
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.placement.policy import ClusterView, ComponentRequest, PlacementResult
    from koala_adapter.scheduler.records import JobRecord, State

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
    """Take a job out of the placement queue, if it is there; the scans it saw there count as tries."""
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
    """Fill the queue from the records, for the site as it is configured now."""
    limits = (cluster.parameters.walltime_limit for cluster in state.clusters.values() if cluster.configured)
    queue.configure((limit for limit in limits if limit is not None), margin=int(state.parameters.launch_margin))
    for record in state.jobs.values():
        if record.state is JobState.WAITING and record.not_before is None and record.queued_at_scan is not None:
            queue.push(record)


def interval_scan(context: Context) -> None:
    """Count the scan that the interval timer brings: it is one try of every waiting job."""
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
    """Give a job up, unless it could be placed right now."""
    state = context.state
    if isinstance(verdict, Placed):
        state.tries_end[state.scans].pop(record.job.id)
        record.tries_end_at_scan = state.scans + 1
        state.tries_end.setdefault(record.tries_end_at_scan, {})[record.job.id] = None
        return
    record.last_trouble = verdict.reason
    leave_queue(context, record)
    if not tries_used_up(context, record):  # more are allowed now than when it came into the queue
        enqueue(context, record)


def place(context: Context, record: JobRecord, views: Mapping[ClusterName, ClusterView]) -> PlacementResult:
    """Ask the job's placement policy where it would go now."""
    return ask_policy(context, record, context.requests(record), views)


def ask_policy(
    context: Context,
    record: JobRecord,
    requests: Sequence[ComponentRequest],
    views: Mapping[ClusterName, ClusterView],
) -> PlacementResult:
    """Ask a job's placement policy where components of it would go now; an answer that cannot be followed is none."""
    policy = context.policies.placement_policy(record.job.placement, context.state.parameters)
    try:
        result = policy.place(requests, views)
    except PolicyAnswerError as error:
        if record.refused_answer != error.message:
            record.refused_answer = error.message
            context.effects.add(ReportRefusedAnswer(reason=error.message))
        return Insufficient(reason=error.message)
    record.refused_answer = ""
    return result


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
        if infeasibility(context.requests(context.state.jobs[first]), views) is None:
            continue
        for job_id in context.queue.jobs_in(lane):
            record = context.state.jobs[job_id]
            refuse(context, record, infeasibility(context.requests(record), views) or "it can never be placed")


def _guard(context: Context, views: Mapping[ClusterName, ClusterView]) -> None:
    """Choose the job to be guarded, if one has waited long enough, and where."""
    state = context.state
    if state.guarded is not None:
        record = state.jobs[state.guarded]
        if _guardable(context, record) and all(
            name in views and views[name].closed is None for name in state.kept_room
        ):
            return
        state.guarded, state.kept_room = None, {}
    waiting = [state.jobs[job_id] for job_id in context.queue.first(GUARD_LOOK)]
    long_waiting = [record for record in waiting if _guardable(context, record)]
    if not long_waiting:
        return
    emptied = {
        name: replace(view, room=min(view.capacity or 0, view.in_flight or 0), available=0, load_free=view.room)
        for name, view in views.items()
    }
    for record in long_waiting:
        result = place(context, record, emptied)
        if isinstance(result, Placed):
            state.guarded = record.job.id
            for placed in result.components:
                state.kept_room[placed.cluster] = state.kept_room.get(placed.cluster, 0) + placed.processors
            return


def _guardable(context: Context, record: JobRecord) -> bool:
    waited = 0 if record.queued_at_scan is None else context.state.scans - record.queued_at_scan
    return waited >= context.state.parameters.guard_scans


def wake_for_scan(context: Context) -> None:
    """Have the queue scanned again after the interval, as long as jobs wait in it."""
    state = context.state
    if len(context.queue) and state.scan_due is None:
        context.timetable.for_scan(context.now + state.parameters.scan_interval)

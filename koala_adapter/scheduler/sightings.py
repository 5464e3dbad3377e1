# SPDX-License-Identifier: Apache-2.0
"""What LRMs and agents report of placeholders and of the processes in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import EndReason, TaskEnd
from koala_adapter.scheduler.claiming.claims import check_complete
from koala_adapter.scheduler.claiming.lifecycle import (
    SILENCE_MARGIN,
    end_placeholder,
    forget_placeholder,
    setback,
    start_life,
)
from koala_adapter.scheduler.claiming.reorganization import yield_to_priority
from koala_adapter.scheduler.finishing import correct_outcome, placeholder_failed, settle_suspicion
from koala_adapter.scheduler.malleable.adapting import newcomer
from koala_adapter.scheduler.malleable.growing import check_running, check_taken, stub_held
from koala_adapter.scheduler.outcome import LAUNCHED_STATES, JobState, PlaceholderState
from koala_adapter.scheduler.placement.waitinghistory import note_wait
from koala_adapter.scheduler.timers import TimerKind

if TYPE_CHECKING:
    from koala_adapter.scheduler import events as ev
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.records import PlaceholderRecord


def placeholder_started(context: Context, event: ev.PlaceholderStarted) -> None:
    """Expect the agent's report within the registration time-out."""
    placeholder = context.state.placeholders.get(event.placeholder)
    if placeholder is None:
        return
    if placeholder.started_at is None:
        placeholder.started_at = context.now
    if placeholder.waiting:
        context.ledger.move(placeholder, PlaceholderState.STARTED)
        at = context.now + context.state.parameters.registration_timeout
        context.timetable.for_placeholder(placeholder, TimerKind.REGISTRATION, at)


def placeholder_held(context: Context, event: ev.PlaceholderHeld) -> None:
    """Count on a processor from now on; with the last one the job is launched."""
    placeholder = context.state.placeholders.get(event.placeholder)
    if placeholder is None:
        return
    news = not placeholder.held
    placeholder.host, placeholder.address, placeholder.silent_since = event.host, event.address, None
    for kind in (TimerKind.REGISTRATION, TimerKind.SILENCE):
        placeholder.timers.pop(kind, None)
    placeholder.ends_at = event.ends_at
    if placeholder.started_at is None:
        placeholder.started_at = context.now
    context.state.clusters[placeholder.cluster].missing_in_a_row = 0
    if placeholder.state is PlaceholderState.ENDING:
        end_placeholder(context, placeholder)
    elif placeholder.state is PlaceholderState.LAUNCHED:
        settle_suspicion(context, context.state.jobs[placeholder.job_id])
    elif news:
        context.ledger.move(placeholder, PlaceholderState.HELD)
        if placeholder.held_at is None:
            placeholder.held_at = context.now
            note_wait(context.state, placeholder, context.now)
        if placeholder.stub:
            stub_held(context, placeholder)
            return
        yield_to_priority(context, placeholder)
        record = context.state.jobs[placeholder.job_id]
        start_life(context, record)
        check_complete(context, record)


def placeholder_silent(context: Context, event: ev.PlaceholderSilent) -> None:
    """Wait for a lost agent as long as its lease lasts."""
    placeholder = context.state.placeholders.get(event.placeholder)
    if placeholder is not None and placeholder.silent_since is None:
        placeholder.silent_since = context.now
        if placeholder.state is PlaceholderState.ENDING:
            return
        at = context.now + context.state.parameters.lease + SILENCE_MARGIN
        context.timetable.for_placeholder(placeholder, TimerKind.SILENCE, at)


def silence_timer(context: Context, placeholder: PlaceholderRecord) -> None:
    """Give up a placeholder whose agent's lease has run out."""
    silent = context.now - (context.now if placeholder.silent_since is None else placeholder.silent_since)
    detail = f"no contact with its agent for {silent:.0f} s; it has ended itself by its lease"
    _lose(context, placeholder, TaskEnd(reason=EndReason.LOST, detail=detail))
    end_placeholder(context, placeholder, force=True)


def placeholder_ending(context: Context, event: ev.PlaceholderEnding) -> None:
    """Stop counting on a processor; it is not free before it is certainly gone."""
    placeholder = context.state.placeholders.get(event.placeholder)
    if placeholder is not None and placeholder.state is not PlaceholderState.ENDING:
        _lose(context, placeholder, TaskEnd(reason=event.reason, detail=event.detail))
        end_placeholder(context, placeholder)


def placeholder_ended(context: Context, event: ev.PlaceholderEnded) -> None:
    """Forget a placeholder, after its job has taken the loss."""
    placeholder = context.state.placeholders.get(event.placeholder)
    if placeholder is not None:
        end = TaskEnd(reason=event.reason, detail=event.detail)
        if placeholder.state is not PlaceholderState.ENDING:
            _lose(context, placeholder, end)
        correct_outcome(context, context.state.jobs[placeholder.job_id], placeholder, end)
        forget_placeholder(context, placeholder)
        record = context.state.jobs.get(placeholder.job_id)
        if record is not None and record.retake_with_room:
            check_complete(context, record)


def _lose(context: Context, placeholder: PlaceholderRecord, end: TaskEnd) -> None:
    """Take an ending placeholder out of its job: a launched job ends with it, a claiming one claims another."""
    record = context.state.jobs[placeholder.job_id]
    record.unclaim({placeholder.id})
    if record.state in LAUNCHED_STATES:
        placeholder_failed(context, record, placeholder, end)
        settle_suspicion(context, record)
    elif record.state is JobState.CLAIMING:
        detail = f": {end.detail}" if end.detail else ""
        setback(
            context,
            record,
            f"placeholder {placeholder.id} on {placeholder.cluster} {end.reason.value}{detail}",
        )


def placeholder_said(context: Context, event: ev.PlaceholderSaid) -> None:
    """Add what a MISSING placeholder wrote to what is told of its job and, when that is paused, of its cluster."""
    record = context.state.jobs.get(event.job_id)
    said = f"; it wrote: {event.text}"
    if record is not None and record.last_trouble.startswith("MISSING") and said not in record.last_trouble:
        record.last_trouble += said
    cluster = context.state.clusters.get(event.cluster)
    if cluster is not None and cluster.paused_until is not None and said not in cluster.pause_reason:
        cluster.pause_reason += said


def rank_started(context: Context, event: ev.RankStarted) -> None:
    """Note a process that runs; with the last one the job runs, or has taken in its new processors."""
    record = context.state.jobs.get(event.job_id)
    if record is None or event.rank not in range(len(record.ranks)):
        return
    if record.state is JobState.RUNNING and event.rank not in record.started and not newcomer(record, event.rank):
        record.started.add(event.rank)
        check_taken(context, record)
    elif record.state is JobState.LAUNCHING:
        record.started.add(event.rank)
        check_running(context, record)

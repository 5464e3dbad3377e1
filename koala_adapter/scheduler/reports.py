# SPDX-License-Identifier: Apache-2.0
"""What batch systems and agents report on placeholders: holds, suspensions, starts, contact, and ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.model import EndReason, HoldOwner, TaskEnd
from koala_adapter.outcome import LAUNCHED_STATES, JobState, PlaceholderState
from koala_adapter.scheduler import ends
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.claiming import claims
from koala_adapter.scheduler.claiming.exchange import yield_to_priority
from koala_adapter.scheduler.malleable.changes import Changes, check_running, newcomer
from koala_adapter.scheduler.timers import TimerKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.scheduler.context import Context, Handlers, PlaceholderTimers
    from koala_adapter.scheduler.records import PlaceholderRecord


# -- Placeholders that are in hold in their batch system -----------------------------------------------------
# No decision depends on holds: only their owner can release a job, so users are told who that is, and since when.

HOLDERS = {
    HoldOwner.USER: "by its user or a submission hook",
    HoldOwner.OPERATOR: "by an operator",
    HoldOwner.SYSTEM: "by the batch system itself",
    None: "by somebody that it does not name",
}
"""Who holds, in words. Slurm shows what a hook holds at the submission as the user's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldGroup:
    """Placeholders held for the same reason."""

    holder: HoldOwner | None
    reason: str
    count: int
    since: float
    """When the first of them was seen so."""
    in_hold: bool = True
    """False: they are queued, and wait for something else than processors."""

    @property
    def told(self) -> str:
        """Reason of the hold in words, with the batch system's own word."""
        return f"in hold {self.who}" if self.in_hold else f"kept waiting by the batch system ({self.reason})"

    @property
    def who(self) -> str:
        """Owner of the hold in words, with the batch system's own word."""
        return f"{HOLDERS[self.holder]} ({self.reason})" if self.reason else HOLDERS[self.holder]


def holds_seen(context: Context, event: ev.HoldsSeen) -> None:
    """Update the holds of placeholders on a cluster."""
    seen = {hold.placeholder: hold for hold in event.holds}
    for placeholder in context.state.placeholders.on(event.cluster).values():
        hold = seen.get(placeholder.id)
        if hold is None:
            placeholder.on_hold_since, placeholder.holder, placeholder.hold_reason = None, None, ""
            placeholder.in_hold, placeholder.hold_lasts = True, False
        else:
            since = placeholder.on_hold_since if placeholder.in_hold == hold.in_hold else None
            placeholder.on_hold_since = context.now if since is None else since
            placeholder.holder, placeholder.hold_reason = hold.holder, hold.reason
            placeholder.in_hold, placeholder.hold_lasts = hold.in_hold, hold.lasts
        claims.watch_kept(context, placeholder)


def hold_groups(placeholders: Iterable[PlaceholderRecord]) -> tuple[HoldGroup, ...]:
    """Return waiting placeholders grouped by hold, in order."""
    since: dict[tuple[HoldOwner | None, str, bool], list[float]] = {}
    for one in placeholders:
        if one.waiting and one.on_hold_since is not None:
            since.setdefault((one.holder, one.hold_reason, one.in_hold), []).append(one.on_hold_since)
    return tuple(
        HoldGroup(holder=holder, reason=reason, count=len(times), since=min(times), in_hold=in_hold)
        for (holder, reason, in_hold), times in since.items()
    )


# -- Reports of LRMs and agents on placeholders and their processes ------------------------------------------


def placeholder_started(context: Context, event: ev.PlaceholderStarted) -> None:
    """Set the time-out for the report of a started placeholder's agent."""
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
    """Count a processor as held; launch the job with the last one."""
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
        claims.end_placeholder(context, placeholder)
    elif placeholder.state is PlaceholderState.LAUNCHED:
        ends.settle_suspicion(context, context.state.jobs[placeholder.job_id])
    elif news:
        context.ledger.move(placeholder, PlaceholderState.HELD)
        if placeholder.held_at is None:
            placeholder.held_at = context.now
            context.state.note_wait(placeholder, context.now)
        if placeholder.stub:
            Changes(context, context.state.jobs[placeholder.job_id]).held(placeholder)
            return
        yield_to_priority(context, placeholder)
        record = context.state.jobs[placeholder.job_id]
        claims.start_life(context, record)
        claims.check_complete(context, record)


def placeholder_silent(context: Context, event: ev.PlaceholderSilent) -> None:
    """Start the lease of an agent out of contact."""
    placeholder = context.state.placeholders.get(event.placeholder)
    if placeholder is not None and placeholder.silent_since is None:
        placeholder.silent_since = context.now
        if placeholder.state is PlaceholderState.ENDING:
            return
        _watch_silence(context, placeholder)


def suspensions_seen(context: Context, event: ev.SuspensionsSeen) -> None:
    """Update which placeholders of a cluster are suspended; resumed ones get time to report."""
    for placeholder in context.state.placeholders.on(event.cluster).values():
        if placeholder.id in event.placeholders:
            if placeholder.suspended_since is None:
                placeholder.suspended_since = context.now
        elif placeholder.suspended_since is not None:
            placeholder.suspended_since = None
            if context.state.parameters.await_suspended and TimerKind.SILENCE in placeholder.timers:
                _watch_silence(context, placeholder)


def _watch_silence(context: Context, placeholder: PlaceholderRecord) -> None:
    at = context.now + context.state.lease_on(placeholder.cluster) + claims.SILENCE_MARGIN
    context.timetable.for_placeholder(placeholder, TimerKind.SILENCE, at)


def silence_timer(context: Context, placeholder: PlaceholderRecord) -> None:
    """Give up a placeholder after its agent's lease, unless it is suspended and that is to be waited for."""
    if placeholder.suspended_since is not None and context.state.parameters.await_suspended:
        _watch_silence(context, placeholder)
        return
    silent = context.now - (context.now if placeholder.silent_since is None else placeholder.silent_since)
    why = "it has ended itself by its lease"
    if placeholder.suspended_since is not None:
        suspended = context.now - placeholder.suspended_since
        why = f"its batch system lists it as suspended, for {suspended:.0f} s (see await_suspended in the site file)"
    detail = f"no contact with its agent for {silent:.0f} s; {why}"
    _lose(context, placeholder, TaskEnd(reason=EndReason.LOST, detail=detail))
    claims.end_placeholder(context, placeholder, force=True)


def placeholder_ending(context: Context, event: ev.PlaceholderEnding) -> None:
    """Stop counting on a processor; it is not free before it is certainly gone."""
    placeholder = context.state.placeholders.get(event.placeholder)
    if placeholder is not None and placeholder.state is not PlaceholderState.ENDING:
        _lose(context, placeholder, TaskEnd(reason=event.reason, detail=event.detail))
        claims.end_placeholder(context, placeholder)


def placeholder_ended(context: Context, event: ev.PlaceholderEnded) -> None:
    """Drop a placeholder after its job has handled the loss."""
    placeholder = context.state.placeholders.get(event.placeholder)
    if placeholder is not None:
        end = TaskEnd(reason=event.reason, detail=event.detail)
        if placeholder.state is not PlaceholderState.ENDING:
            _lose(context, placeholder, end)
        ends.correct_outcome(context, context.state.jobs[placeholder.job_id], placeholder, end)
        claims.forget_placeholder(context, placeholder)
        record = context.state.jobs.get(placeholder.job_id)
        if record is not None and record.reclaim_with_room:
            claims.check_complete(context, record)
        if record is not None:
            ends.placeholders_gone(context, record)


def _lose(context: Context, placeholder: PlaceholderRecord, end: TaskEnd) -> None:
    """Remove an ending placeholder from its job: a launched job ends, a claiming one claims another."""
    record = context.state.jobs[placeholder.job_id]
    record.unclaim({placeholder.id})
    if record.state in LAUNCHED_STATES:
        ends.placeholder_lost(context, record, placeholder, end)
    elif record.state is JobState.CLAIMING:
        detail = f": {end.detail}" if end.detail else ""
        trouble = f"placeholder {placeholder.id} on {placeholder.cluster} {end.reason.value}{detail}"
        if end.reason is EndReason.LAUNCH_FAILED and placeholder.held_at is None:
            claims.note_missing(context, placeholder, trouble)
        else:
            claims.claim_failed(context, record, trouble)


IN_VAIN = ("MISSING", "placeholder ")
"""Beginnings of the trouble with a placeholder that started in vain."""


def placeholder_said(context: Context, event: ev.PlaceholderSaid) -> None:
    """Store the output of a placeholder that never reported, for explanations of job and cluster."""
    record = context.state.jobs.get(event.job_id)
    said = f"; it wrote: {event.text}"
    if record is not None and record.last_trouble.startswith(IN_VAIN) and said not in record.last_trouble:
        record.last_trouble += said
    cluster = context.state.clusters.get(event.cluster)
    if cluster is not None and cluster.paused_until is not None and said not in cluster.pause_reason:
        cluster.pause_reason += said


def rank_started(context: Context, event: ev.RankStarted) -> None:
    """Record a running process; with the last one the job runs, or has its new processors."""
    record = context.state.jobs.get(event.job_id)
    if record is None or event.rank not in range(len(record.ranks)):
        return
    if record.state is JobState.RUNNING and event.rank not in record.started and not newcomer(record, event.rank):
        record.started.add(event.rank)
        Changes(context, record).check_taken()
    elif record.state is JobState.LAUNCHING:
        record.started.add(event.rank)
        check_running(context, record)


def rank_measured(context: Context, event: ev.RankMeasured) -> None:
    """Add a rank's usage to its job, even an ended one."""
    record = context.state.jobs.get(event.job_id)
    if record is not None and event.rank in range(len(record.ranks)) and event.rank not in record.measured:
        record.measured.add(event.rank)
        before = record.usages.get(event.rank)
        record.usages[event.rank] = event.usage if before is None else before + event.usage


HANDLERS: Handlers = {
    ev.HoldsSeen: holds_seen,
    ev.SuspensionsSeen: suspensions_seen,
    ev.PlaceholderStarted: placeholder_started,
    ev.PlaceholderHeld: placeholder_held,
    ev.PlaceholderSilent: placeholder_silent,
    ev.PlaceholderEnding: placeholder_ending,
    ev.PlaceholderEnded: placeholder_ended,
    ev.PlaceholderSaid: placeholder_said,
    ev.RankStarted: rank_started,
    ev.RankMeasured: rank_measured,
}
PLACEHOLDER_TIMERS: PlaceholderTimers = {TimerKind.SILENCE: silence_timer}

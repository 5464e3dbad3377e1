# SPDX-License-Identifier: Apache-2.0
"""The life of placeholders: held for a bounded time, handed back, missing, silent, ending, gone.

The life cycle is VJM's (Xing 2009): it begins when the first placeholder of a claim is held; what comes of it
when it ends with others still missing is in ``reorganization.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import EndReason
from koala_adapter.scheduler.actions import ReadPlaceholderOutput
from koala_adapter.scheduler.jitter import SHORTEST_PAUSE, backoff, life
from koala_adapter.scheduler.outcome import JobState, PlaceholderState, outcome_without_code
from koala_adapter.scheduler.placement.waitinghistory import note_vain_wait
from koala_adapter.scheduler.timers import TimerKind

if TYPE_CHECKING:
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.records import Claim, JobRecord, PlaceholderRecord

FORCED_PATIENCE = 6
"""A cancellation through the LRM is repeated after so many times the patience with an agent."""
SILENCE_MARGIN = 15.0
"""Seconds added to the lease before a silent agent is given up, for clocks and process switches."""


def end_placeholder(context: Context, placeholder: PlaceholderRecord, *, force: bool = False) -> None:
    """Ask for the end of a placeholder, and look again after a while."""
    if placeholder.state is not PlaceholderState.ENDING:
        context.ledger.move(placeholder, PlaceholderState.ENDING)
        placeholder.ending_since = context.now
        if placeholder.stub:
            context.lost_stubs.append(placeholder)
    batch = context.state.batches.get(placeholder.id.batch)
    if batch is None or batch.lrm_ids is not None or placeholder.host:
        context.effects.end(placeholder.cluster, placeholder.id, placeholder.lrm_id, force=force)
    patience = max(SHORTEST_PAUSE, context.state.parameters.end_patience) * (FORCED_PATIENCE if force else 1)
    for kind in (TimerKind.REGISTRATION, TimerKind.SILENCE):
        placeholder.timers.pop(kind, None)
    context.timetable.for_placeholder(placeholder, TimerKind.ENDING, context.now + patience)


def ending_timer(context: Context, placeholder: PlaceholderRecord) -> None:
    """Cancel a placeholder through its LRM when telling its agent was not enough."""
    end_placeholder(context, placeholder, force=True)


def forget_placeholder(context: Context, placeholder: PlaceholderRecord) -> None:
    """Drop the record of a placeholder that is certainly gone (or never was); no claim counts on it any more."""
    state = context.state
    record = state.jobs[placeholder.job_id]
    if placeholder.held_at is None and placeholder.lrm_id is not None:
        note_vain_wait(state, placeholder, context.now)
    if placeholder.stub:
        context.lost_stubs.append(placeholder)
    context.ledger.remove(placeholder)
    drop_if_forgotten(context, record)
    context.scan_wanted = True


def drop_if_forgotten(context: Context, record: JobRecord) -> None:
    """Drop the record of a finished job that is not among the last ones and has no placeholders left."""
    if record.state.final and not record.live and record.job.id not in context.state.finished:
        context.ledger.drop_job(record)


def start_life(context: Context, record: JobRecord) -> None:
    """Begin the life cycle when the first placeholder of a claim is held."""
    if record.life_ends_at is None and record.state is JobState.CLAIMING:
        record.life_extended = False
        context.timetable.for_job(record, TimerKind.LIFE, context.now + life(record, context.state.parameters))


def setback(context: Context, record: JobRecord, reason: str, *, pause: bool = True) -> None:
    """Count a claim that came to nothing; claim again later, or give up after the allowed number of tries.

    Several losses before the next attempt count once.
    """
    if record.state is not JobState.CLAIMING:
        return
    record.last_trouble = reason
    if record.retake_at is None:
        record.setbacks += 1
        record.tries += 1
        if tries_used_up(context, record):
            return
        seconds = backoff(record, context.state.parameters) if pause else 0.0
        context.timetable.for_job(record, TimerKind.RETAKE, context.now + seconds)
    if all(not claim.placeholders for claim in record.claims):
        _requeue(context, record)


def _requeue(context: Context, record: JobRecord) -> None:
    """Put a job that holds and awaits nothing back into the placement queue, to be seen again after its pause."""
    context.ledger.move_job(record, JobState.WAITING)
    at = context.now if record.retake_at is None else record.retake_at
    record.timers.clear()
    for claim in record.claims:
        claim.cluster, claim.processors = None, 0
    join_pieces(record, record.claims)
    context.timetable.for_job(record, TimerKind.BACKOFF, at)


def maximum_tries(context: Context, record: JobRecord) -> int:
    """Return after how many tries a job fails."""
    own = record.job.maximum_tries
    return context.state.parameters.maximum_tries if own is None else own


def tries_used_up(context: Context, record: JobRecord) -> bool:
    """Fail a job that has been tried often enough; tell whether that was so."""
    limit = maximum_tries(context, record)
    if record.tries < limit:
        return False
    tries = "1 try" if record.tries == 1 else f"{record.tries} tries"
    detail = f"not placed in {tries} (the limit is {limit}); last: {record.last_trouble or 'no room'}"
    context.outcomes.append((record, outcome_without_code(JobState.NOT_PLACED, EndReason.NOT_PLACED, detail)))
    return True


def registration_timer(context: Context, placeholder: PlaceholderRecord) -> None:
    """Give up a placeholder that runs but whose agent never reported (MISSING); pause the cluster after a few."""
    state = context.state
    cluster = state.clusters[placeholder.cluster]
    cluster.missing_in_a_row += 1
    waited = context.now - (placeholder.started_at or context.now)
    detail = (
        f"placeholder {placeholder.id} on {placeholder.cluster} started but its agent did not report in {waited:.0f} s"
    )
    if cluster.missing_in_a_row >= state.parameters.missing_limit:
        cluster.paused_until = context.now + state.parameters.pause
        cluster.pause_reason = f"{cluster.missing_in_a_row} placeholders in a row started but never reported"
        context.timetable.for_cluster(cluster, cluster.paused_until)
    record = state.jobs[placeholder.job_id]
    record.unclaim({placeholder.id})
    end_placeholder(context, placeholder, force=True)
    setback(context, record, f"MISSING: {detail}")
    context.effects.add(
        ReadPlaceholderOutput(cluster=placeholder.cluster, placeholder=placeholder.id, job_id=placeholder.job_id)
    )


def join_pieces(record: JobRecord, claims: list[Claim]) -> None:
    """Make one claim of those among ``claims`` that are pieces of the same component; none may hold anything.

    KOALA's flexible requests (CoreGRID TR-0092) leave the sizes of the pieces to the scheduler; so pieces that came
    to nothing need not be placed again as they were. What was joined has no placement any more.
    """
    joined = {id(claim) for claim in claims}
    kept: list[Claim] = []
    whole: dict[str, Claim] = {}
    for claim in record.claims:
        first = whole.setdefault(claim.component, claim) if id(claim) in joined else claim
        if first is claim:
            kept.append(claim)
        else:
            first.piece = (first.piece or 0) + (claim.piece or 0)
            first.cluster, first.processors = None, 0
            first.excluded.update(claim.excluded)
            first.lrm_ids += claim.lrm_ids
    for claim in whole.values():
        if claim.piece == record.job.component(claim.component).minimum:
            claim.piece = None
    record.claims = kept

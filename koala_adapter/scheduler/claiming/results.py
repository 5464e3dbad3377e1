# SPDX-License-Identifier: Apache-2.0
"""What becomes of what a claim has asked for: submissions, transfers of input files, and reservations.

Each event moves the claim on: its placeholders are queued, are submitted now that its files are nearly there or its
processors are reserved, or are claimed elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import ClusterName, LrmJobId, PlaceholderId
from koala_adapter.outcome import JobState, PlaceholderState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.claiming import claims, plannedstart
from koala_adapter.scheduler.claiming.waiting import impossible, refuse
from koala_adapter.scheduler.timers import TimerKind

if TYPE_CHECKING:
    from koala_adapter.scheduler.context import Context, Handlers, JobTimers
    from koala_adapter.scheduler.records import BatchRecord, Claim, JobRecord, PlaceholderRecord, Staging, State


# -- Results of a submission: taken, refused, not arrived, unknown -------------------------------------------


def batch_submitted(context: Context, event: ev.BatchSubmitted) -> None:
    """Store the LRM's ids; cancel placeholders that were given up meanwhile."""
    batch = context.state.batches.get(event.batch)
    if batch is None or batch.lrm_ids is not None:
        return
    batch.lrm_ids, batch.uncertain, batch.taken_at = event.lrm_ids, None, context.now
    for placeholder in _placeholders_in(context.state, batch):
        if placeholder.id.index <= len(event.lrm_ids):
            placeholder.lrm_id = event.lrm_ids[placeholder.id.index - 1]
        if placeholder.state is PlaceholderState.SUBMITTED:
            context.ledger.move(placeholder, PlaceholderState.QUEUED)
        elif placeholder.state is PlaceholderState.ENDING:
            claims.end_placeholder(context, placeholder, force=True)


def batch_uncertain(context: Context, event: ev.BatchUncertain) -> None:
    """Mark a submission as of unknown outcome; the driver looks for it by its key."""
    batch = context.state.batches.get(event.batch)
    if batch is not None and batch.lrm_ids is None:
        batch.uncertain = event.reason


def batch_failed(context: Context, event: ev.BatchRejected | ev.BatchAbsent) -> None:
    """Drop the placeholders of a failed submission and claim others.

    What was taken before, or has shown itself since, is there whatever is said now: a late or repeated message.
    Of an absent one that ``pauses``, nothing else is placed on its cluster for as long as a job pauses.
    """
    rejected, reason = isinstance(event, ev.BatchRejected), event.reason
    pauses = isinstance(event, ev.BatchAbsent) and event.pauses
    batch = context.state.batches.get(event.batch)
    if batch is None or batch.lrm_ids is not None:
        return
    if pauses and (cluster := context.state.clusters.get(batch.cluster)) is not None:
        cluster.paused_until, cluster.pause_reason = context.now + context.state.parameters.backoff, reason
        context.timetable.for_cluster(cluster, cluster.paused_until)
    gone = [p for p in _placeholders_in(context.state, batch) if p.started_at is None]
    if batch.live > len(gone):
        batch.lrm_ids, batch.uncertain = (LrmJobId(""),) * batch.count, None
        batch.taken_at = context.now
    if not gone:
        return
    if not rejected:
        context.never_arrived.add(event.batch)
    record = context.state.jobs[gone[0].job_id]
    missed = {placeholder.id for placeholder in gone}
    claim = next((one for one in record.claims if missed.intersection(one.placeholders)), None)
    if rejected and record.state is JobState.RUNNING:
        claims.exclude_from_growth(context, record, batch.cluster, missed, reason)
    record.unclaim(missed)
    for placeholder in gone:
        claims.forget_placeholder(context, placeholder)
    if record.state is not JobState.CLAIMING or claim is None:  # what was given up meanwhile is not missed
        return
    rejected = rejected and batch.reserved_until is None  # it may take them without the reservation
    said = f"{batch.cluster} refused the placeholders of {claim.component!r}: {reason}"
    if rejected and not _exclude(context, record, claim, batch.cluster, reason, said):
        return
    claims.claim_failed(context, record, f"{batch.cluster}: {reason}", pause=not (rejected or pauses))


def _exclude(  # noqa: PLR0917 - who is excluded from where, and why
    context: Context, record: JobRecord, claim: Claim, cluster: ClusterName, reason: str, said: str
) -> bool:
    """Never place this component on this cluster again; return False when that ends the job, as ``said``."""
    claim.excluded[cluster] = reason
    never = impossible(context.requests(record), context.views())
    if never is not None:
        alone = impossible([context.request(record, claim)], context.views()) is not None
        refuse(context, record, said if alone else f"{said}; without it, {never}")
        return False
    for id_ in claim.unplace():
        claims.end_placeholder(context, context.state.placeholders[id_])
    return True


def _placeholders_in(state: State, batch: BatchRecord) -> list[PlaceholderRecord]:
    ids = (PlaceholderId(batch=batch.key, index=index) for index in range(1, batch.count + 1))
    return [state.placeholders[id_] for id_ in ids if id_ in state.placeholders]


# -- News of files that travel -------------------------------------------------------------------------------


def staging_progressed(context: Context, event: ev.StagingProgressed) -> None:
    """Take a new estimate of the end of a transfer, and submit the placeholders that are of use by it."""
    record, staging = _staging(context, event)
    if record is not None and staging is not None:
        staging.missing, staging.rate, staging.done = max(0, event.missing_bytes), event.rate, False
        staging.source = event.source
        if plannedstart.is_late(context, record):
            _move_reservations(context, record)
        else:
            claims.submit_postponed(context, record)


def files_staged(context: Context, event: ev.FilesStaged) -> None:
    """Claim what was postponed for the last of a job's files, and launch it if all is held."""
    record, staging = _staging(context, event)
    if record is not None and staging is not None and not staging.done:
        staging.missing, staging.done = 0, True
        claims.submit_postponed(context, record)
        claims.check_complete(context, record)


def staging_failed(context: Context, event: ev.StagingFailed) -> None:
    """Place components elsewhere whose files cannot be brought to a cluster."""
    record, staging = _staging(context, event)
    if record is None or staging is None or staging.done:
        return
    said = f"input files cannot be brought to {event.cluster}: {event.reason}"
    for claim in [claim for claim in record.claims if claim.cluster == event.cluster]:
        component = record.job.component(claim.component)
        if component.files_travel and not _exclude(context, record, claim, event.cluster, said, said):
            return
    claims.claim_failed(context, record, said, pause=False)


def _staging(
    context: Context, event: ev.StagingProgressed | ev.FilesStaged | ev.StagingFailed
) -> tuple[JobRecord | None, Staging | None]:
    """Return the claiming job and the transfer that an event is about; None where there is none any more."""
    record = context.state.jobs.get(event.job_id)
    if record is None or record.state is not JobState.CLAIMING:
        return None, None
    staging = record.staging.get(event.cluster)
    if staging is not None:
        staging.heard_at = context.now
    return record, staging


def staging_timer(context: Context, record: JobRecord) -> None:
    """Submit the placeholders that are of use now, and ask for files of which nothing was heard."""
    plannedstart.look(context, record)
    claims.submit_postponed(context, record)


# -- News of reservations ------------------------------------------------------------------------------------


def reservation_made(context: Context, event: ev.ReservationMade) -> None:
    """Submit the placeholders of a job when all of its clusters have reserved."""
    record = context.state.jobs.get(event.job_id)
    for one in () if record is None else record.reservations:
        if one.name == event.name:
            one.handle = event.handle
    if record is not None and record.state is JobState.CLAIMING and all(one.handle for one in record.reservations):
        record.timers.pop(TimerKind.RESERVATION, None)
        if plannedstart.is_late(context, record):
            _move_reservations(context, record)
        else:
            claims.submit_postponed(context, record)


def reservation_refused(context: Context, event: ev.ReservationRefused) -> None:
    """Give the reservations of a job back, and claim its processors by placeholders alone."""
    record = context.state.jobs.get(event.job_id)
    if record is None or not any(one.name == event.name and not one.handle for one in record.reservations):
        return
    _claim_without(context, record, event.reason)


def reservation_timer(context: Context, record: JobRecord) -> None:
    """Claim by placeholders where a cluster has not answered."""
    silent = ", ".join(dict.fromkeys(one.cluster for one in record.reservations if not one.handle))
    _claim_without(context, record, f"no answer from {silent}")


def _move_reservations(context: Context, record: JobRecord) -> None:
    """Have processors reserved for the time at which the input files are expected now, if that was not done too often.

    Placeholders that wait in the former reservations are ended.
    """
    for claim in record.claims:
        waiting = list(claim.placeholders)
        record.unclaim(set(waiting))
        for id_ in waiting:
            claims.end_placeholder(context, context.state.placeholders[id_])
        claim.postponed = context.now
    again = plannedstart.may_move(record)
    plannedstart.leave_reservations(context, record)
    if again:
        claims.submit_claims(context, record, record.claims, context.state.parameters.placeholder_life)
    else:
        _claim_without(context, record, "its input files took longer than expected, again and again")


def _claim_without(context: Context, record: JobRecord, reason: str) -> None:
    record.not_reserved = reason
    record.timers.pop(TimerKind.RESERVATION, None)
    plannedstart.give_back_reservations(context, record)
    if record.state is JobState.CLAIMING:
        claims.submit_postponed(context, record)


HANDLERS: Handlers = {
    ev.BatchRejected: batch_failed,
    ev.BatchAbsent: batch_failed,
    ev.BatchUncertain: batch_uncertain,
    ev.StagingProgressed: staging_progressed,
    ev.FilesStaged: files_staged,
    ev.StagingFailed: staging_failed,
    ev.ReservationMade: reservation_made,
    ev.ReservationRefused: reservation_refused,
}
JOB_TIMERS: JobTimers = {
    TimerKind.STAGING: staging_timer,
    TimerKind.RESERVATION: reservation_timer,
}

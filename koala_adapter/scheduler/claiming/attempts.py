# SPDX-License-Identifier: Apache-2.0
"""Rank jobs that run again: after an end that their user wants retried, or from the state that they have saved.

An attempt is one run of a job, from its launch to the end of its processes. When one has ended otherwise than well and
another may follow, the job waits again. Whether another does follow is decided when the placeholders of the attempt are
gone. Until then output and files of the attempt still come in, and the batch system may tell why it has ended: an agent
that is told to go does not know whether a walltime is over, or a user has cancelled its placeholder.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.model import GOES_ON_STATUS, EndReason, RetriedEnd, RunnerName
from koala_adapter.outcome import LAUNCHED_STATES, JobState
from koala_adapter.scheduler.actions import EndAttempt
from koala_adapter.scheduler.claiming.claims import end_placeholder
from koala_adapter.scheduler.claiming.waiting import enqueue
from koala_adapter.scheduler.context import SHORTEST_PAUSE
from koala_adapter.scheduler.records import ATTEMPTS_KEPT, Attempt, Claim
from koala_adapter.scheduler.timers import TimerKind

if TYPE_CHECKING:
    from koala_adapter.model import Job
    from koala_adapter.outcome import JobOutcome
    from koala_adapter.scheduler.context import Context, JobTimers
    from koala_adapter.scheduler.records import JobRecord

PATIENCE = 60.0
"""Seconds after which placeholders of an attempt that are not gone, as on a lost node, are not waited for."""
LONGEST_PAUSE = 300.0
"""Seconds between two attempts at most. The first retry comes at once; the pause grows with each further one."""
MOST_DOUBLINGS = 10

_ENDS = {
    EndReason.EXITED: RetriedEnd.FAILED,
    EndReason.SIGNALLED: RetriedEnd.FAILED,
    EndReason.LAUNCH_FAILED: RetriedEnd.FAILED,
    EndReason.LOST: RetriedEnd.LOST,
    EndReason.NODE_LOST: RetriedEnd.LOST,
    EndReason.MEMORY: RetriedEnd.MEMORY,
    EndReason.WALLTIME: RetriedEnd.WALLTIME,
}


def end_attempt(context: Context, record: JobRecord, outcome: JobOutcome) -> bool:
    """Handle the end of an attempt that another may follow; return False when the job ends with it."""
    if record.state not in LAUNCHED_STATES or not _may_follow(record, outcome):
        return False
    record.attempts_over += 1
    attempt = Attempt(
        number=record.attempts_over,
        launched_at=context.now if record.launched_at is None else record.launched_at,
        ended_at=context.now,
        outcome=outcome,
        clusters=tuple(dict.fromkeys(claim.cluster for claim in record.claims if claim.cluster is not None)),
    )
    record.attempts = [*record.attempts, attempt][-ATTEMPTS_KEPT:]
    context.ledger.move_job(record, JobState.WAITING)
    context.state.note_claims(record, context.now)
    record.timers.clear()
    record.last_trouble = outcome.detail
    context.effects.add(EndAttempt(job_id=record.job.id, number=attempt.number, outcome=outcome))
    placeholders = context.state.placeholders_of(record)
    record.unclaim({placeholder.id for placeholder in placeholders})
    for placeholder in placeholders:
        end_placeholder(context, placeholder)
    record.launched_at = None
    record.held_in_attempts = record.held_seconds - record.held_before_launch
    context.timetable.for_job(record, TimerKind.ATTEMPT, context.now + PATIENCE)
    context.scan_wanted = True
    placeholders_gone(context, record)
    return True


def placeholders_gone(context: Context, record: JobRecord) -> None:
    """Decide whether a job runs again as soon as nothing is left of its latest attempt."""
    if not record.live and record.between_attempts:
        attempt_timer(context, record)


def attempt_timer(context: Context, record: JobRecord) -> None:
    """Start the next attempt of a job, or end the job with the outcome of its latest attempt."""
    record.timers.pop(TimerKind.ATTEMPT, None)
    outcome = record.attempts[-1].outcome
    if is_requeued(record.job, outcome):
        pause = 0.0
    elif record.retries_made < record.job.retries and is_retried(record.job, outcome):
        pause = min(LONGEST_PAUSE, SHORTEST_PAUSE * (2 ** min(record.retries_made, MOST_DOUBLINGS) - 1))
        record.retries_made += 1
    else:
        record.launched_at = record.attempts.pop().launched_at  # it was the last one after all
        record.attempts_over -= 1
        context.outcomes.append((record, outcome))
        return
    _begin_anew(record)
    if pause:
        context.timetable.for_job(record, TimerKind.BACKOFF, context.now + pause)
    else:
        enqueue(context, record)


def correct_attempt(record: JobRecord, outcome: JobOutcome) -> None:
    """Update why the latest attempt ended, as the batch system reports it."""
    record.attempts = [*record.attempts[:-1], replace(record.attempts[-1], outcome=outcome)]
    record.last_trouble = outcome.detail


def _may_follow(record: JobRecord, outcome: JobOutcome) -> bool:
    """Return whether another attempt may follow an end, as far as is known now.

    A placeholder that was cancelled may have met its walltime, or been lost with its node.
    """
    job = record.job
    if job.runner is not RunnerName.RANKS or job.kind.varies:
        return False
    left = record.retries_made < job.retries
    if outcome.reason is EndReason.CANCELLED and record.ended_by is not None:
        return left or job.requeue_on_walltime
    return is_requeued(job, outcome) or (left and is_retried(job, outcome))


def is_requeued(job: Job, outcome: JobOutcome) -> bool:
    """Return whether a job will continue from its saved state."""
    saved = outcome.reason is EndReason.EXITED and outcome.exit_code == GOES_ON_STATUS
    return job.requeue_on_walltime and (saved or outcome.reason is EndReason.WALLTIME)


def is_retried(job: Job, outcome: JobOutcome) -> bool:
    """Return whether a job is tried again after this end."""
    if outcome.state is JobState.COMPLETED:
        return False
    exited = outcome.reason in {EndReason.EXITED, EndReason.SIGNALLED}
    return _ENDS.get(outcome.reason) in job.retry_on or (exited and outcome.exit_code in job.retry_on)


def _begin_anew(record: JobRecord) -> None:
    """Reset a job's record after an attempt; its placeholders are gone or ending."""
    record.uncounted += len(record.ranks) - len(record.measured)
    record.claims = [Claim(component=component.name) for component in record.job.components]
    record.ranks, record.ended_by, record.suspected = (), None, None
    record.started, record.ends, record.departed, record.measured = set(), {}, set(), set()
    record.launcher_over = record.life_extended = record.reclaim_with_room = False
    record.tries = record.failed_claims = 0
    record.not_reserved = ""


JOB_TIMERS: JobTimers = {TimerKind.ATTEMPT: attempt_timer}

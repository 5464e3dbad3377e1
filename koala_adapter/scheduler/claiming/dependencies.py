# SPDX-License-Identifier: Apache-2.0
"""Jobs that start only after others have ended: they wait outside the placement queue until then.

A job is let into the queue when each of the jobs that it names has ended as it asks for. It is cancelled as soon as one
of them has ended otherwise, because it could never start any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import After, AfterEnd, EndReason
from koala_adapter.outcome import JobState, outcome_without_code
from koala_adapter.scheduler.claiming.waiting import enqueue, refuse

if TYPE_CHECKING:
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.records import JobRecord, State

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

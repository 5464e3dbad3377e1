# SPDX-License-Identifier: Apache-2.0
"""Jobs of a head and workers: a worker that ends makes the job smaller, and the head decides when the job is over.

The head is every component of fixed size. A worker ends because it was asked to, by itself, or with its placeholder;
what it was working on is the application's business, as it is in every framework with a head and workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import EndReason, RunnerName
from koala_adapter.scheduler.changes import ChangePhase
from koala_adapter.scheduler.jitter import SHORTEST_PAUSE
from koala_adapter.scheduler.malleable.approaches import Approach
from koala_adapter.scheduler.malleable.growing import check_running, check_taken, time_left
from koala_adapter.scheduler.malleable.shrinking import depart
from koala_adapter.scheduler.outcome import JobOutcome, JobState
from koala_adapter.scheduler.timers import TimerKind

if TYPE_CHECKING:
    from koala_adapter.model import TaskEnd
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.records import JobRecord, PlaceholderRecord

MOST_DOUBLINGS = 10
"""The pause after workers that ended badly is doubled so often at most."""
MOST_FAILED_LAUNCHERS = 10
"""A sweep goes on without launchers until so many have failed."""
LONGEST_REST_OF_A_SWEEP = 60.0
"""Seconds. A launcher that fails has failed at nothing that the next one must fail at, and costs little."""


def is_worker(record: JobRecord, rank: int) -> bool:
    """Tell whether a process is one that may come and go without the others."""
    job = record.job
    return job.has_workers and not job.is_head(record.ranks[rank].component)


def all_done(record: JobRecord) -> bool:
    """Tell whether the work of a job is done: its head has ended; without a head, all of its processes have."""
    if record.job.runner is RunnerName.WORKERS:
        head = [rank.rank for rank in record.ranks if not is_worker(record, rank.rank)]
        if head:
            return all(rank in record.ends for rank in head)
    return len(record.ends) + len(record.departed) == len(record.ranks)


def worker_ended(context: Context, record: JobRecord, rank: int, end: TaskEnd) -> None:
    """Make a job smaller by a worker whose process is over."""
    placeholder = context.state.placeholders.get(record.ranks[rank].placeholder)
    if placeholder is None:
        return
    by = ", near the end of the walltime" if _near_end(context, record) else " by itself"
    why = f"worker {rank} ended{by}"
    by_itself = _leave(context, record, placeholder, why)
    if by_itself and not _asked_near_end(context, record):
        if not end.ok:
            record.worker_failures += 1
            record.last_trouble = _said(record, rank, end)
        record.last_worker_end = end
        _rest(context, record)
    _check_over(context, record, end, by_itself=by_itself)


def worker_lost(context: Context, record: JobRecord, rank: int, placeholder: PlaceholderRecord, end: TaskEnd) -> None:
    """Make a job smaller by a worker whose placeholder is gone, or going."""
    record.started.add(rank)
    said = f"{end.reason.value}: {end.detail}" if end.detail else end.reason.value
    record.last_trouble = f"worker {rank} on {placeholder.cluster} was lost ({said})"
    _leave(context, record, placeholder, f"worker {rank} was lost ({end.reason.value})", gone=True)
    check_running(context, record)
    _check_over(context, record, end, by_itself=True)


def deserted(context: Context, record: JobRecord) -> bool:
    """Tell whether nothing of a job is left, and nothing will ever come: no head, no worker, and nobody to make any."""
    if record.state is not JobState.RUNNING or any(claim.processors or claim.coming for claim in record.claims):
        return False
    return context.state.parameters.approach is Approach.NONE and not record.sizes_wanted


def _leave(
    context: Context, record: JobRecord, placeholder: PlaceholderRecord, why: str, *, gone: bool = False
) -> bool:
    """Take a worker's processor out of the job; tell whether nobody had asked for that."""
    number = record.claim_of(placeholder)
    if number is None:
        return True
    change = record.claims[number].change
    asked = change is not None and change.phase is ChangePhase.RELEASING
    depart(context, record, number, [placeholder.id], why, gone=gone)
    check_taken(context, record)
    return not asked


def _rest(context: Context, record: JobRecord) -> None:
    """Start no further workers for a while: those that are started now may end at once, too."""
    record.growth_rests = True
    context.roster.update(record)
    doublings = min(MOST_DOUBLINGS, max(0, record.worker_failures - 1))
    seconds = max(SHORTEST_PAUSE, context.state.parameters.end_patience) * 2**doublings
    if record.job.runner is RunnerName.SWEEP:
        seconds = min(seconds, max(LONGEST_REST_OF_A_SWEEP, context.state.parameters.end_patience))
    if not _workers(record):
        seconds = max(SHORTEST_PAUSE, context.state.parameters.end_patience)
    context.timetable.for_job(record, TimerKind.WORKERS, context.now + seconds)


def _check_over(context: Context, record: JobRecord, end: TaskEnd, *, by_itself: bool) -> None:
    """End a job without a head with its last worker; one that ended badly has time to be explained by others."""
    if _workers(record) or not all_done(record) or record.state is not JobState.RUNNING:
        return
    if record.job.runner is RunnerName.SWEEP:
        return  # it is over when its tasks are
    if end.ok or not by_itself:
        over = JobOutcome(state=JobState.COMPLETED, reason=EndReason.EXITED, exit_code=0)
        context.outcomes.append((record, over))


def workers_timer(context: Context, record: JobRecord) -> None:
    """Let a job grow again; or end it, when no worker is left and the last one ended badly."""
    record.growth_rests = False
    end = record.last_worker_end
    patient = record.job.runner is RunnerName.SWEEP and record.worker_failures < MOST_FAILED_LAUNCHERS
    patient = patient or _asked_near_end(context, record)
    if record.state is JobState.RUNNING and not _workers(record) and end is not None and not end.ok and not patient:
        context.outcomes.append((record, _failed(record, end)))
        return
    context.roster.update(record)
    context.scan_wanted = True


def _near_end(context: Context, record: JobRecord) -> bool:
    """Tell whether all workers of a job were asked to end, as its walltime is near."""
    return bool(record.job.warn_before) and time_left(context, record) <= record.job.warn_before


def _asked_near_end(context: Context, record: JobRecord) -> bool:
    """Tell whether workers end as they were asked to near the walltime, and a head has the rest of the time."""
    job = record.job
    return _near_end(context, record) and any(job.is_head(component.name) for component in job.components)


def _workers(record: JobRecord) -> int:
    """Return how many processors the workers have."""
    return sum(claim.processors for claim in record.claims if not record.job.is_head(claim.component))


def _failed(record: JobRecord, end: TaskEnd) -> JobOutcome:
    detail = f"no worker is left; {record.last_trouble}"
    return JobOutcome(state=JobState.FAILED, reason=end.reason, exit_code=end.status or 1, detail=detail)


def _said(record: JobRecord, rank: int, end: TaskEnd) -> str:
    known = {
        EndReason.EXITED: f"exited with status {end.status}",
        EndReason.SIGNALLED: f"was killed by signal {end.signal}",
    }
    how = known.get(end.reason, end.reason.value)
    detail = f": {end.detail}" if end.detail else ""
    return f"worker {rank} (component {record.ranks[rank].component!r}) {how}{detail}"

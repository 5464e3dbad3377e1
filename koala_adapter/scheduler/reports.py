# SPDX-License-Identifier: Apache-2.0
"""How jobs end, and what becomes of their placeholders: handed to another job of the queue, or given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import EndReason, JobKind, Launcher, RunnerName, TaskEnd
from koala_adapter.scheduler.actions import CorrectOutcome, FinishJob
from koala_adapter.scheduler.claiming.lifecycle import drop_if_forgotten, end_placeholder
from koala_adapter.scheduler.claiming.reorganization import reassign_to_claiming
from koala_adapter.scheduler.claiming.reuse import reassign_to_waiting
from koala_adapter.scheduler.claiming.waiting import leave_queue
from koala_adapter.scheduler.lastranks import await_last_ranks
from koala_adapter.scheduler.malleable.adapting import process_lost, process_over
from koala_adapter.scheduler.malleable.growing import check_taken
from koala_adapter.scheduler.malleable.offers import drop_changes
from koala_adapter.scheduler.malleable.workerends import all_done, deserted, is_worker, worker_ended, worker_lost
from koala_adapter.scheduler.outcome import JobOutcome, JobState, PlaceholderState, outcome_without_code

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.model import JobId
    from koala_adapter.scheduler.actions import Rank
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.records import JobRecord, PlaceholderRecord

_CAUSES = frozenset({EndReason.WALLTIME, EndReason.MEMORY, EndReason.NODE_LOST})
"""Ends of a placeholder that an LRM tells and that its agent cannot know."""


def finish(context: Context, record: JobRecord, outcome: JobOutcome) -> None:
    """Give a job its outcome and end, or hand on, every placeholder it has. The first outcome counts."""
    if record.state.final:
        return
    context.ledger.move_job(record, outcome.state)
    record.outcome = outcome
    record.finished_at = context.now
    context.state.note_claims(record, context.now)
    record.timers.clear()
    if record.job.kind is JobKind.MALLEABLE:
        context.roster.update(record)
        drop_changes(context, record)
    leave_queue(context, record)
    context.effects.add(FinishJob(job_id=record.job.id, outcome=outcome))
    spares = context.state.placeholders_of(record) if record.live else []
    if outcome.state is JobState.COMPLETED and context.state.parameters.reuse and not _running_first(context, spares):
        spares = _reused(context, record, spares)
    for placeholder in spares:
        end_placeholder(context, placeholder)
    context.scan_wanted = True
    _remember(context, record)


def _running_first(context: Context, spares: list[PlaceholderRecord]) -> bool:
    """Tell whether running jobs have precedence over waiting ones, and some can grow where processors come free."""
    first = context.state.parameters.approach.running_first
    return first and any(context.roster.on(name).growth for name in {spare.cluster for spare in spares})


def _remember(context: Context, record: JobRecord) -> None:
    """Keep the records of the jobs that finished last; drop what is older, once its placeholders are gone."""
    finished = context.state.finished
    finished.append(record.job.id)
    while len(finished) > context.state.parameters.finished_kept:
        drop_if_forgotten(context, context.state.jobs[finished.pop(0)])


def forget_jobs(context: Context, job_ids: Iterable[JobId]) -> None:
    """Drop the records of finished jobs of which nothing is left in any batch system."""
    state = context.state
    for record in [state.jobs[id_] for id_ in job_ids if id_ in state.jobs]:
        if record.state.final and not record.live and record.job.id in state.finished:
            state.finished.remove(record.job.id)
            drop_if_forgotten(context, record)


def rank_ended(context: Context, record: JobRecord, rank: int | None, end: TaskEnd) -> None:
    """Note the end of a process; the first bad one, or the last good one, ends the job.

    Under MPI all is well when the launcher (``rank`` None) and all ranks have ended well; a rank that ended badly is
    believed at once, since mpiexec need not notice.
    """
    if record.state not in {JobState.LAUNCHING, JobState.RUNNING}:
        return
    if rank is not None:
        if rank not in range(len(record.ranks)) or rank in record.departed:
            return
        if process_over(context, record, rank, _how(end)):
            return
        record.started.add(rank)
        if is_worker(record, rank):
            worker_ended(context, record, rank, end)
            return
        record.ends[rank] = end
        if record.job.kind is JobKind.MALLEABLE:
            check_taken(context, record)
            context.roster.update(record)
    if not end.ok:
        record.suspected = record.suspected or _bad_end(record, rank, end)
        settle_suspicion(context, record)
    else:
        _ended_well(context, record, rank)


def _ended_well(context: Context, record: JobRecord, rank: int | None) -> None:
    record.launcher_over = record.launcher_over or rank is None
    if _all_over(record):
        finish(context, record, JobOutcome(state=JobState.COMPLETED, reason=EndReason.EXITED, exit_code=0))
    elif rank is None:
        await_last_ranks(context, record)


def _all_over(record: JobRecord) -> bool:
    """Tell whether all of a job has ended well: under MPI its launcher, too; of a sweep somebody else says it."""
    if record.job.runner is RunnerName.SWEEP:
        return record.launcher_over
    if record.job.launcher is Launcher.MPI:
        return record.launcher_over and not record.ranks_awaited()
    return all_done(record)


def settle_suspicion(context: Context, record: JobRecord) -> None:
    """End a job by what one of its processes said of its own end, once that is beyond doubt.

    Under MPI the loss of one agent makes the launcher, and the ranks of others, end badly: while an agent of the job is
    out of contact they are not believed, but what becomes of its placeholder, which shows within the lease.
    """
    if record.suspected is None or record.state not in {JobState.LAUNCHING, JobState.RUNNING}:
        return
    silent = any(placeholder.silent_since is not None for placeholder in context.state.placeholders_of(record))
    if record.job.launcher is not Launcher.MPI or not silent:
        finish(context, record, record.suspected)


def _how(end: TaskEnd) -> str:
    how = f"exited with status {end.status}" if end.reason is EndReason.EXITED else f"ended ({end.reason.value})"
    return f"{how}: {end.detail}" if end.detail else how


def _bad_end(record: JobRecord, rank: int | None, end: TaskEnd) -> JobOutcome:
    component = None if rank is None else record.ranks[rank].component
    if rank is None and record.job.runner is RunnerName.SWEEP:
        return JobOutcome(state=JobState.FAILED, reason=end.reason, exit_code=end.status, detail=end.detail)
    who = "the MPI application" if rank is None else f"rank {rank} (component {component!r})"
    said = {
        EndReason.EXITED: f"{who} exited with status {end.exit_code}",
        EndReason.SIGNALLED: f"{who} was killed by signal {end.signal}",
        EndReason.MEMORY: f"{who} was killed because it used too much memory",
        EndReason.WALLTIME: f"{who} was stopped at the job's walltime of {record.job.walltime} s",
    }.get(end.reason, f"{who}: {end.reason.value}")
    detail = f"{said}: {end.detail}" if end.detail else said
    if end.reason is EndReason.WALLTIME:
        return outcome_without_code(JobState.FAILED, EndReason.WALLTIME, detail)
    if end.reason in {EndReason.CANCELLED, EndReason.NODE_LOST, EndReason.LOST}:
        state = JobState.CANCELLED if end.reason is EndReason.CANCELLED else JobState.LOST
        return outcome_without_code(state, end.reason, detail)
    return JobOutcome(
        state=JobState.FAILED,
        reason=end.reason,
        exit_code=end.status or 1,
        detail=detail,
        component=component,
        rank=rank,
    )


def placeholder_failed(context: Context, record: JobRecord, placeholder: PlaceholderRecord, end: TaskEnd) -> None:
    """End a launched job one of whose placeholders is gone, unless the rank in it had already done its work."""
    rank = next((rank for rank in record.ranks if rank.placeholder == placeholder.id), None)
    if rank is None or (rank.rank in record.ends and record.ends[rank.rank].ok):
        return
    if rank.rank in record.departed and record.job.adapts(rank.component):
        return
    if process_lost(context, record, rank.rank, placeholder):
        return
    if is_worker(record, rank.rank):
        if rank.rank not in record.departed:
            worker_lost(context, record, rank.rank, placeholder, end)
            if deserted(context, record):
                record.ended_by = placeholder.id
                finish(context, record, _lost_rank(rank, placeholder, end))
        return
    if not record.state.final:
        record.ended_by = placeholder.id
    finish(context, record, _lost_rank(rank, placeholder, end))


def correct_outcome(context: Context, record: JobRecord, placeholder: PlaceholderRecord, end: TaskEnd) -> None:
    """Tell why a job ended as its LRM knows it, where an agent knew only that it was told to go.

    A signal does not say why: an operator's cancellation and the end of a walltime that was cut short look the same.
    """
    told, outcome = record.ended_by == placeholder.id, record.outcome
    if not told or outcome is None or outcome.reason is not EndReason.CANCELLED or end.reason not in _CAUSES:
        return
    rank = next((rank for rank in record.ranks if rank.placeholder == placeholder.id), None)
    if rank is not None:
        record.outcome = _lost_rank(rank, placeholder, end)
        context.ledger.move_job(record, record.outcome.state)
        context.effects.add(CorrectOutcome(job_id=record.job.id, outcome=record.outcome))


def _lost_rank(rank: Rank, placeholder: PlaceholderRecord, end: TaskEnd) -> JobOutcome:
    where = f"placeholder {placeholder.id} on {placeholder.cluster}, host {placeholder.host or 'unknown'}"
    said = f"rank {rank.rank} (component {rank.component!r}): {end.reason.value}, {where}"
    detail = f"{said}: {end.detail}" if end.detail else said
    state = {
        EndReason.CANCELLED: JobState.CANCELLED,
        EndReason.WALLTIME: JobState.FAILED,
        EndReason.MEMORY: JobState.FAILED,
    }.get(end.reason, JobState.LOST)
    outcome = outcome_without_code(state, end.reason, detail)
    if end.reason is EndReason.MEMORY:
        outcome = JobOutcome(state=state, reason=end.reason, exit_code=end.status, detail=detail)
    return outcome


def _reused(context: Context, record: JobRecord, spares: list[PlaceholderRecord]) -> list[PlaceholderRecord]:
    """Give what a completed job held to jobs that can start with it; return what is to be given back."""
    if record.job.launcher is Launcher.MPI and any(component.output_files for component in record.job.components):
        return spares  # mpiexec tells of the end before the ranks' files have come; their agents end when they have
    over = {rank.placeholder for rank in record.ranks if rank.rank in record.ends}
    usable = [placeholder for placeholder in spares if placeholder.id in over and _reusable(context, placeholder)]
    chosen = {placeholder.id for placeholder in usable}
    if context.state.parameters.reorganize:
        usable = reassign_to_claiming(context, record, usable)
    return [placeholder for placeholder in spares if placeholder.id not in chosen] + reassign_to_waiting(
        context, record, usable
    )


def _reusable(context: Context, placeholder: PlaceholderRecord) -> bool:
    """Tell whether a placeholder whose process has ended is in contact, on a cluster that is still in use."""
    ours = placeholder.state is PlaceholderState.LAUNCHED and placeholder.silent_since is None
    return ours and context.state.clusters[placeholder.cluster].configured

# SPDX-License-Identifier: Apache-2.0
"""How jobs end, and what becomes of their placeholders: handed to another job of the queue, or given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import EndReason, JobKind, Launcher, TaskEnd
from koala_adapter.scheduler.actions import JobFinished
from koala_adapter.scheduler.claiming import check_complete
from koala_adapter.scheduler.lifecycle import end_placeholder
from koala_adapter.scheduler.outcome import JobOutcome, JobState, PlaceholderState, outcome_without_code

if TYPE_CHECKING:
    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.records import Claim, JobRecord, PlaceholderRecord


def finish(context: Context, record: JobRecord, outcome: JobOutcome) -> None:
    """Give a job its outcome and end, or hand on, every placeholder it has."""
    if record.state.final:
        return
    record.state = outcome.state
    record.outcome = outcome
    record.finished_at = context.now
    record.life_ends_at = record.retake_at = None
    context.queue.remove(record.job.id)
    context.effects.add(JobFinished(job_id=record.job.id, outcome=outcome))
    spares = context.state.placeholders_of(record) if record.live else []
    if outcome.state is JobState.COMPLETED and context.state.parameters.reuse:
        spares = _hand_on(context, spares)
    for placeholder in spares:
        end_placeholder(context, placeholder)
    context.scan_wanted = True


def rank_ended(context: Context, record: JobRecord, rank: int | None, end: TaskEnd) -> None:
    """Note the end of a process; the first bad one, or the last good one, ends the job.

    Under MPI the launcher (``rank`` None) speaks for all ranks when all is well; a rank that ended badly is believed at
    once, since mpiexec need not notice.
    """
    if record.state not in {JobState.LAUNCHING, JobState.RUNNING}:
        return
    if rank is not None:
        record.started.add(rank)
        record.ends[rank] = end
    if not end.ok:
        finish(context, record, _bad_end(record, rank, end))
    elif (record.job.launcher is Launcher.MPI) != (rank is None):
        return
    elif rank is None or len(record.ends) == len(record.ranks):
        finish(context, record, JobOutcome(state=JobState.COMPLETED, reason=EndReason.EXITED, exit_code=0))


def _bad_end(record: JobRecord, rank: int | None, end: TaskEnd) -> JobOutcome:
    component = None if rank is None else record.ranks[rank].component
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
    finish(context, record, outcome)


def _hand_on(context: Context, spares: list[PlaceholderRecord]) -> list[PlaceholderRecord]:
    """Give held processors to jobs of the queue that fit into them entirely; return what is left.

    No new queueing in any LRM: a placeholder can be handed from one job to another of the same user (DESIGN section 6).
    """
    free: dict[ClusterName, list[PlaceholderRecord]] = {}
    for placeholder in spares:
        if placeholder.state is PlaceholderState.LAUNCHED and placeholder.silent_since is None:
            free.setdefault(placeholder.cluster, []).append(placeholder)
    left = [p for p in spares if p.state is not PlaceholderState.LAUNCHED or p.silent_since is not None]
    most = max((len(some) for some in free.values()), default=0)
    for job_id in context.queue.scan(lambda lane: lane[1] <= most):
        record = context.state.jobs[job_id]
        fit = _fit(context, record, free)
        if fit is None:
            continue
        context.queue.remove(job_id)
        record.state = JobState.CLAIMING
        for claim, chosen in fit:
            _adopt(context, record, claim, chosen)
            free[chosen[0].cluster] = [p for p in free[chosen[0].cluster] if p not in chosen]
        check_complete(context, record)
    return left + [placeholder for some in free.values() for placeholder in some]


def _fit(
    context: Context, record: JobRecord, free: dict[ClusterName, list[PlaceholderRecord]]
) -> list[tuple[Claim, list[PlaceholderRecord]]] | None:
    used: set[int] = set()
    fit: list[tuple[Claim, list[PlaceholderRecord]]] = []
    for component, claim in record.components():
        names = [component.cluster] if component.cluster is not None else sorted(free, key=lambda n: -len(free[n]))
        size = component.maximum if record.job.kind is JobKind.MOLDABLE else component.minimum
        for name in names:
            lasting = [
                p
                for p in free.get(name, [])
                if id(p) not in used and (p.ends_at is None or p.ends_at - context.now >= record.job.walltime)
            ]
            if len(lasting) >= component.minimum and name not in claim.excluded:
                chosen = lasting[:size]
                used.update(id(p) for p in chosen)
                fit.append((claim, chosen))
                break
        else:
            return None
    return fit


def _adopt(context: Context, record: JobRecord, claim: Claim, chosen: list[PlaceholderRecord]) -> None:
    claim.cluster, claim.processors = chosen[0].cluster, len(chosen)
    claim.placeholders = [placeholder.id for placeholder in chosen]
    for placeholder in chosen:
        former = context.state.jobs[placeholder.job_id]
        former.live -= 1
        for old in former.claims:
            if placeholder.id in old.placeholders:
                old.placeholders.remove(placeholder.id)
        placeholder.job_id, placeholder.component = record.job.id, claim.component
        record.live += 1
        context.state.change(placeholder, PlaceholderState.HELD)

# SPDX-License-Identifier: Apache-2.0
"""What batch systems and agents report, and how processes and jobs end.

In order: placeholders in hold, MPI jobs whose launcher has ended, ends of workers, ends of jobs, the reports on
placeholders and processes, and placeholders that a batch system has moved to another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.model import EndReason, HoldOwner, Launcher, MpiResize, RunnerName, TaskEnd
from koala_adapter.outcome import LAUNCHED_STATES, JobOutcome, JobState, PlaceholderState, outcome_without_code
from koala_adapter.scheduler.actions import CorrectOutcome, FinishJob
from koala_adapter.scheduler.claiming.claims import (
    SILENCE_MARGIN,
    check_complete,
    drop_if_forgotten,
    end_placeholder,
    forget_placeholder,
    note_missing,
    setback,
    start_life,
    watch_kept,
)
from koala_adapter.scheduler.claiming.exchange import reassign_to_claiming, reassign_to_waiting, yield_to_priority
from koala_adapter.scheduler.claiming.waiting import leave_queue
from koala_adapter.scheduler.context import SHORTEST_PAUSE
from koala_adapter.scheduler.malleable.changes import (
    check_running,
    check_taken,
    depart,
    drop_changes,
    newcomer,
    process_lost,
    process_over,
    stub_held,
    time_left,
)
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.scheduler.placement.policies import note_wait
from koala_adapter.scheduler.records import ChangePhase, TimerKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.model import JobId
    from koala_adapter.scheduler import events as ev
    from koala_adapter.scheduler.actions import Rank
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.events import HoldsSeen, MovesSeen, SuspensionsSeen
    from koala_adapter.scheduler.records import JobRecord, PlaceholderRecord


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
    """Placeholders that are in hold for the same reason."""

    holder: HoldOwner | None
    reason: str
    count: int
    since: float
    """When the first of them was seen so."""
    in_hold: bool = True
    """False: they are queued, and wait for something else than processors."""

    @property
    def told(self) -> str:
        """What keeps them, in words, with the batch system's own word."""
        return f"in hold {self.who}" if self.in_hold else f"kept waiting by the batch system ({self.reason})"

    @property
    def who(self) -> str:
        """Who holds them, in words, with the batch system's own word."""
        return f"{HOLDERS[self.holder]} ({self.reason})" if self.reason else HOLDERS[self.holder]


def holds_seen(context: Context, event: HoldsSeen) -> None:
    """Note whose holds the placeholders on a cluster are in."""
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
        watch_kept(context, placeholder)


def hold_groups(placeholders: Iterable[PlaceholderRecord]) -> tuple[HoldGroup, ...]:
    """Return the holds in which waiting placeholders are, equal ones together, in the order of the placeholders."""
    since: dict[tuple[HoldOwner | None, str, bool], list[float]] = {}
    for one in placeholders:
        if one.waiting and one.on_hold_since is not None:
            since.setdefault((one.holder, one.hold_reason, one.in_hold), []).append(one.on_hold_since)
    return tuple(
        HoldGroup(holder=holder, reason=reason, count=len(times), since=min(times), in_hold=in_hold)
        for (holder, reason, in_hold), times in since.items()
    )


# -- MPI jobs whose launcher has ended well ------------------------------------------------------------------
# Such a job is done when its processes have ended, too. mpiexec ends after all processes, and the end of each is told
# on its output, so that none is left when its own end is reported. Its exit status 0 means less: of programs that spawn
# it reports the status of the first process group only, and when a process of another group is killed it gives all of
# them up and ends with 0 (MPICH 5.0.2).

PATIENCE = 10.0
"""Seconds in which the processes must have ended after a launcher that ended well."""


def await_last_ranks(context: Context, record: JobRecord) -> None:
    """Give the processes of a job whose launcher has ended well the time to end.

    Where the program is started anew with each change, agents watch over each process by itself, and tell of its end
    when its files have come: that takes its time, up to the walltime.
    """
    if (record.job.runner, record.job.mpi_resize) != (RunnerName.ADAPTIVE, MpiResize.RESTART):
        context.timetable.for_job(record, TimerKind.LAST_RANKS, context.now + PATIENCE)


def last_ranks_timer(context: Context, record: JobRecord) -> None:
    """End a job whose launcher is gone while processes run: nobody can say any more that they did their work.

    What an agent has to tell that is out of contact is waited for: it comes back, or is taken as lost.
    """
    left = record.ranks_awaited()
    placeholders = [context.state.placeholders.get(record.ranks[rank].placeholder) for rank in left]
    if any(one is not None and one.silent_since is not None for one in placeholders):
        await_last_ranks(context, record)
        return
    over = JobOutcome(state=JobState.COMPLETED, reason=EndReason.EXITED, exit_code=0)
    context.outcomes.append((record, _left_behind(left) if left else over))


def _left_behind(ranks: list[int]) -> JobOutcome:
    were = "1 process was running: rank" if len(ranks) == 1 else f"{len(ranks)} processes were running: ranks"
    detail = f"mpiexec ended with status 0 while {were} {', '.join(map(str, ranks))}"
    return JobOutcome(state=JobState.FAILED, reason=EndReason.LOST, exit_code=1, detail=detail)


# -- Ends of workers -----------------------------------------------------------------------------------------
# In a job of a head and workers, a worker that ends makes the job smaller, and the head decides when the job is over.
# The head is every component of fixed size. A worker ends because it was asked to, by itself, or with its placeholder;
# its unfinished work is the application's concern, as in every framework with a head and workers.

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
    return _never_grows(context, record)


def _never_grows(context: Context, record: JobRecord) -> bool:
    """Tell whether nobody will give a job further processors: koala does not, and its owner asked for none."""
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
    patient = patient and not _never_grows(context, record)
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


# -- Ends of jobs --------------------------------------------------------------------------------------------
# Placeholders of an ended job are handed to another job of the queue or given back.

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
    if record.job.kind.varies:
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
            check_running(context, record)  # agents report the end alone of a process that could not be started
            worker_ended(context, record, rank, end)
            return
        record.ends[rank] = end
        if record.job.kind.varies:
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


# -- Reports of LRMs and agents on placeholders and their processes ------------------------------------------


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
        _watch_silence(context, placeholder)


def suspensions_seen(context: Context, event: SuspensionsSeen) -> None:
    """Note which placeholders of a cluster are suspended. One that goes on has time to come into contact again."""
    for placeholder in context.state.placeholders.on(event.cluster).values():
        if placeholder.id in event.placeholders:
            if placeholder.suspended_since is None:
                placeholder.suspended_since = context.now
        elif placeholder.suspended_since is not None:
            placeholder.suspended_since = None
            if context.state.parameters.await_suspended and TimerKind.SILENCE in placeholder.timers:
                _watch_silence(context, placeholder)


def _watch_silence(context: Context, placeholder: PlaceholderRecord) -> None:
    at = context.now + context.state.parameters.lease + SILENCE_MARGIN
    context.timetable.for_placeholder(placeholder, TimerKind.SILENCE, at)


def silence_timer(context: Context, placeholder: PlaceholderRecord) -> None:
    """Give up a placeholder whose agent's lease has run out, unless one is to wait for it while it is suspended."""
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
        trouble = f"placeholder {placeholder.id} on {placeholder.cluster} {end.reason.value}{detail}"
        if end.reason is EndReason.LAUNCH_FAILED and placeholder.held_at is None:
            note_missing(context, placeholder, trouble)
        else:
            setback(context, record, trouble)


IN_VAIN = ("MISSING", "placeholder ")
"""Beginnings of the trouble with a placeholder that started in vain."""


def placeholder_said(context: Context, event: ev.PlaceholderSaid) -> None:
    """Add what a placeholder that never reported wrote to what is told of its job, and of its cluster while paused."""
    record = context.state.jobs.get(event.job_id)
    said = f"; it wrote: {event.text}"
    if record is not None and record.last_trouble.startswith(IN_VAIN) and said not in record.last_trouble:
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


# -- Placeholders that a batch system has moved to another one -----------------------------------------------
# There they wait and run as before, and agents report from any place, so no decision depends on it. Users are told
# where a placeholder went, because the queue that it was submitted to does not show it any more.


def moves_seen(context: Context, event: MovesSeen) -> None:
    """Note where the placeholders of a cluster are."""
    seen = {move.placeholder: move.elsewhere for move in event.moves}
    for placeholder in context.state.placeholders.on(event.cluster).values():
        placeholder.elsewhere = seen.get(placeholder.id, "")


def moves_told(placeholders: Iterable[PlaceholderRecord]) -> list[str]:
    """Return how many placeholders were moved to each place, such as ``3 moved to workq@other``."""
    counts: dict[str, int] = {}
    for one in placeholders:
        if one.elsewhere:
            counts[one.elsewhere] = counts.get(one.elsewhere, 0) + 1
    return [f"{count} moved to {place}" for place, count in counts.items()]

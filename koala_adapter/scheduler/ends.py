# SPDX-License-Identifier: Apache-2.0
"""How processes and jobs end.

``fate`` says what the end of one process means for its job, ``process_ended`` follows it, ``finish`` gives a job its
outcome. In order: that of one process, workers, MPI jobs whose launcher has ended, the end of a job with what becomes
of its placeholders, rank jobs that run again, and outcomes in words.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, auto
from typing import TYPE_CHECKING

from koala_adapter.model import GOES_ON_STATUS, EndReason, Job, Launcher, MpiResize, RetriedEnd, RunnerName, TaskEnd
from koala_adapter.outcome import (
    COMPLETED,
    LAUNCHED_STATES,
    JobOutcome,
    JobState,
    PlaceholderState,
    outcome_without_code,
)
from koala_adapter.scheduler.actions import CorrectOutcome, EndAttempt, FinishJob, Rank
from koala_adapter.scheduler.claiming.claims import drop_if_forgotten, end_placeholder
from koala_adapter.scheduler.claiming.exchange import reassign_to_claiming, reassign_to_waiting
from koala_adapter.scheduler.claiming.plannedstart import end_staging, give_back_reservations
from koala_adapter.scheduler.claiming.waiting import enqueue, leave_queue, predecessor_ended
from koala_adapter.scheduler.context import SHORTEST_PAUSE
from koala_adapter.scheduler.events import JobsForgotten, RankEnded
from koala_adapter.scheduler.malleable.changes import Changes, change_of_rank, check_running, time_left
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.scheduler.records import ATTEMPTS_KEPT, Attempt, Claim, JobRecord, PlaceholderRecord, State
from koala_adapter.scheduler.sizechange import ChangePhase
from koala_adapter.scheduler.timers import TimerKind

if TYPE_CHECKING:
    from koala_adapter.scheduler.context import Context, Handlers, JobTimers


# -- The end of one process ----------------------------------------------------------------------------------


class Fate(Enum):
    """Meaning of a process's end for its job."""

    JOB = auto()
    """It decides how the job ends."""
    WORKER = auto()
    """The job becomes smaller, and goes on."""
    NEWCOMER = auto()
    """The growth that brought it is given up."""
    LEAVER = auto()
    """It was let go, and its processor is free."""
    NOTHING = auto()
    """It is no part of the job any more, or has done its work."""


def fate(record: JobRecord, rank: int) -> Fate:
    """Return what the end of a process, or the loss of its placeholder, means for its job."""
    if rank in record.departed or (rank in record.ends and _is_as_wanted(record, record.ends[rank])):
        return Fate.NOTHING
    found = change_of_rank(record, rank)
    if found is not None:
        return Fate.NEWCOMER if found[0].phase is ChangePhase.TAKING else Fate.LEAVER
    return Fate.WORKER if record.is_worker(rank) else Fate.JOB


def rank_ended(context: Context, event: RankEnded) -> None:
    """Handle the end of a process or, with ``rank`` None, of the launcher for all."""
    record = context.state.jobs.get(event.job_id)
    if record is None or record.state not in LAUNCHED_STATES:
        return
    if event.rank is None:
        _judge(context, record, None, event.end)
    elif event.rank in range(len(record.ranks)):
        process_ended(context, record, event.rank, event.end)


def process_ended(
    context: Context, record: JobRecord, rank: int, end: TaskEnd, *, lost: PlaceholderRecord | None = None
) -> None:
    """Handle the end of a process of a launched job. ``lost``: its lost placeholder, if any."""
    what = fate(record, rank)
    if what is Fate.NOTHING:
        return
    if what is Fate.JOB and lost is not None:
        record.ended_by = lost.id
        finish(context, record, _lost_rank(record.ranks[rank], lost, end))
        return
    record.started.add(rank)  # agents report the end alone of a process that could not be started
    check_running(context, record)
    changes, found = Changes(context, record), change_of_rank(record, rank)
    match what:
        case Fate.NEWCOMER if found is not None:
            why = f"the new process {rank} {_how(end)}"
            if lost is not None:
                why = f"the placeholder of the new process {rank} was lost"
            changes.give_up(found[0], why, on=found[1], gone=None if lost is None else lost.id)
        case Fate.LEAVER if found is not None:
            changes.depart(found[1].claim, [record.ranks[rank].placeholder], gone=lost is not None)
            changes.check_done()
        case Fate.WORKER:
            _worker_ended(context, record, rank, end, lost)
        case _:
            record.ends[rank] = end
            if record.job.kind.varies:
                changes.check_taken()
                context.roster.update(record)
            _judge(context, record, rank, end)


def _judge(context: Context, record: JobRecord, rank: int | None, end: TaskEnd) -> None:
    """End a job by the first bad end, or the last good one. Ranks that have saved their state wait for the others.

    Under MPI all is well when the launcher (``rank`` None) and all ranks have ended well; a rank that ended badly is
    believed at once, since mpiexec need not notice.
    """
    if not _is_as_wanted(record, end):
        record.suspected = record.suspected or _bad_end(record, rank, end)
        settle_suspicion(context, record)
        return
    record.launcher_over = record.launcher_over or rank is None
    if not end.ok and rank is None:
        finish(context, record, _bad_end(record, rank, end))
    elif record.is_done():
        saved = next((_bad_end(record, number, one) for number, one in record.ends.items() if not one.ok), COMPLETED)
        finish(context, record, saved)
    elif rank is None:
        await_last_ranks(context, record)


def _is_as_wanted(record: JobRecord, end: TaskEnd) -> bool:
    """Return whether a process ended well, or saved its state for a later attempt."""
    return end.ok or record.job.goes_on_after(end)


def settle_suspicion(context: Context, record: JobRecord) -> None:
    """End a job by what a process said of its own end, once that is certain.

    Under MPI the loss of one agent makes the launcher, and the ranks of others, end badly: while an agent of the job is
    out of contact they are not believed, but what becomes of its placeholder, which shows within the lease.
    """
    if record.suspected is None or record.state not in LAUNCHED_STATES:
        return
    silent = any(placeholder.silent_since is not None for placeholder in context.state.placeholders_of(record))
    if record.job.launcher is not Launcher.MPI or not silent:
        finish(context, record, record.suspected)


def placeholder_lost(context: Context, record: JobRecord, placeholder: PlaceholderRecord, end: TaskEnd) -> None:
    """Handle a launched job's loss of a placeholder; one gathered for growth has no process yet."""
    rank = record.rank_in(placeholder)
    if rank is not None:
        process_ended(context, record, rank.rank, end, lost=placeholder)
    settle_suspicion(context, record)


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


def _worker_ended(context: Context, record: JobRecord, rank: int, end: TaskEnd, lost: PlaceholderRecord | None) -> None:
    """Make a job smaller by a worker. Without a head, the job ends with its last worker.

    A last worker that ended badly, or was lost, leaves time for others to come.
    """
    placeholder = lost or context.state.placeholders.get(record.ranks[rank].placeholder)
    if placeholder is None:
        return
    if lost is not None:
        said = f"{end.reason.value}: {end.detail}" if end.detail else end.reason.value
        record.last_trouble = f"worker {rank} on {lost.cluster} was lost ({said})"
        why = f"worker {rank} was lost ({end.reason.value})"
    else:
        why = f"worker {rank} ended{', near the end of the walltime' if _near_end(context, record) else ' by itself'}"
    number, asked = record.claim_of(placeholder), False
    if number is not None:
        change, changes = record.change_on(number), Changes(context, record)
        asked = change is not None and change.phase is ChangePhase.RELEASING
        changes.depart(number, [placeholder.id], why, gone=lost is not None)
        changes.check_taken()
    if lost is not None:
        if deserted(context.state, record):
            record.ended_by = lost.id
            finish(context, record, _lost_rank(record.ranks[rank], lost, end))
        return
    if not asked and not _asked_near_end(context, record):
        if not end.ok:
            record.worker_failures += 1
            record.last_trouble = _worker_said(record, rank, end)
        record.last_worker_end = end
        _rest(context, record)
    if (end.ok or asked) and record.is_done() and record.state is JobState.RUNNING:
        context.outcomes.append((record, COMPLETED))


def deserted(state: State, record: JobRecord, *, losses: int = 0) -> bool:
    """Return whether nothing would be left of a job without these processors, and no others would come."""
    left = sum(claim.processors for claim in record.claims) + record.coming()
    return left <= losses and _never_grows(state, record)


def _never_grows(state: State, record: JobRecord) -> bool:
    """Return whether a job gets no more processors: koala offers none and its owner asked for none."""
    return state.parameters.approach is Approach.NONE and not record.sizes_wanted


def _rest(context: Context, record: JobRecord) -> None:
    """Start no workers of a job for a while, as they might end at once, too."""
    record.growth_rests = True
    context.roster.update(record)
    shortest = max(SHORTEST_PAUSE, context.state.parameters.end_patience)
    seconds = shortest
    if _workers(record):
        seconds *= 2 ** min(MOST_DOUBLINGS, max(0, record.worker_failures - 1))
        if record.job.runner is RunnerName.SWEEP:
            seconds = min(seconds, max(LONGEST_REST_OF_A_SWEEP, shortest))
    context.timetable.for_job(record, TimerKind.WORKERS, context.now + seconds)


def workers_timer(context: Context, record: JobRecord) -> None:
    """Let a job grow again, or end it if its last worker ended badly."""
    record.growth_rests = False
    end = record.last_worker_end
    others_come = record.job.runner is RunnerName.SWEEP and record.worker_failures < MOST_FAILED_LAUNCHERS
    others_come = (others_come and not _never_grows(context.state, record)) or _asked_near_end(context, record)
    failed = record.state is JobState.RUNNING and not _workers(record) and end is not None and not end.ok
    if failed and not others_come and end is not None:
        detail = f"no worker is left; {record.last_trouble}"
        outcome = JobOutcome(state=JobState.FAILED, reason=end.reason, exit_code=end.status or 1, detail=detail)
        context.outcomes.append((record, outcome))
        return
    context.roster.update(record)
    context.scan_wanted = True


def _near_end(context: Context, record: JobRecord) -> bool:
    """Return whether all workers of a job were asked to end because of the walltime."""
    return bool(record.job.warn_before) and time_left(context, record) <= record.job.warn_before


def _asked_near_end(context: Context, record: JobRecord) -> bool:
    """Return whether workers end as asked near the walltime while a head uses the rest of it."""
    job = record.job
    return _near_end(context, record) and any(job.is_head(component.name) for component in job.components)


def _workers(record: JobRecord) -> int:
    """Return the number of the workers' processors."""
    return sum(claim.processors for claim in record.claims if not record.job.is_head(claim.component))


# -- MPI jobs whose launcher has ended well ------------------------------------------------------------------
# Such a job is done when its processes have ended, too. mpiexec ends after all processes, and the end of each is told
# on its output, so that none is left when its own end is reported. Its exit status 0 means less: of programs that spawn
# it reports the status of the first process group only, and when a process of another group is killed it gives all of
# them up and ends with 0 (MPICH 5.0.2).

PATIENCE = 10.0
"""Seconds in which the processes must have ended after a launcher that ended well."""


def await_last_ranks(context: Context, record: JobRecord) -> None:
    """Set a time limit for the processes of a job whose launcher ended well.

    Where the program is started anew with each change, agents watch over each process by itself, and tell of its end
    when its files have come: that takes its time, up to the walltime.
    """
    if (record.job.runner, record.job.mpi_resize) != (RunnerName.ADAPTIVE, MpiResize.RESTART):
        context.timetable.for_job(record, TimerKind.LAST_RANKS, context.now + PATIENCE)


def last_ranks_timer(context: Context, record: JobRecord) -> None:
    """End a job whose processes outlive its launcher, as their ends are no longer reported.

    What an agent has to tell that is out of contact is waited for: it comes back, or is taken as lost.
    """
    left = record.ranks_awaited()
    placeholders = [context.state.placeholders.get(record.ranks[rank].placeholder) for rank in left]
    if any(one is not None and one.silent_since is not None for one in placeholders):
        await_last_ranks(context, record)
        return
    outcome = COMPLETED
    if left:
        were = "1 process was running: rank" if len(left) == 1 else f"{len(left)} processes were running: ranks"
        detail = f"mpiexec ended with status 0 while {were} {', '.join(map(str, left))}"
        outcome = JobOutcome(state=JobState.FAILED, reason=EndReason.LOST, exit_code=1, detail=detail)
    context.outcomes.append((record, outcome))


def walltime_timer(context: Context, record: JobRecord) -> None:
    """End a job whose walltime is over."""
    detail = f"stopped at the job's walltime of {record.job.walltime} s"
    context.outcomes.append((record, outcome_without_code(JobState.FAILED, EndReason.WALLTIME, detail)))


# -- Ends of jobs --------------------------------------------------------------------------------------------
# Placeholders of an ended job are handed to another job of the queue or given back.

_CAUSES = frozenset({EndReason.WALLTIME, EndReason.MEMORY, EndReason.NODE_LOST})
"""Ends of a placeholder that an LRM tells and that its agent cannot know."""


def finish(context: Context, record: JobRecord, outcome: JobOutcome) -> None:
    """Set the outcome of a job and release its placeholders; only the first outcome counts.

    A job that is to run again waits instead.
    """
    if record.state.final or end_attempt(context, record, outcome):
        return
    context.ledger.move_job(record, outcome.state)
    record.outcome = outcome
    record.finished_at = context.now
    context.state.note_claims(record, context.now)
    record.timers.clear()
    if record.job.kind.varies:
        context.roster.update(record)
        Changes(context, record).drop()
    leave_queue(context, record)
    end_staging(context, record)
    give_back_reservations(context, record)
    context.effects.add(FinishJob(job_id=record.job.id, outcome=outcome))
    spares = context.state.placeholders_of(record) if record.live else []
    if outcome.state is JobState.COMPLETED and context.state.parameters.reuse and not _running_first(context, spares):
        spares = _reused(context, record, spares)
    for placeholder in spares:
        end_placeholder(context, placeholder)
    context.scan_wanted = True
    predecessor_ended(context, record)
    _remember(context, record)


def _running_first(context: Context, spares: list[PlaceholderRecord]) -> bool:
    """Return whether running jobs may take freed processors before waiting ones."""
    first = context.state.parameters.approach.running_first
    return first and any(context.roster.on(name).growth for name in {spare.cluster for spare in spares})


def _remember(context: Context, record: JobRecord) -> None:
    """Keep the records of the latest finished jobs; drop older ones without placeholders."""
    finished = context.state.finished
    finished.append(record.job.id)
    while len(finished) > context.state.parameters.finished_kept:
        drop_if_forgotten(context, context.state.jobs[finished.pop(0)])


def forget_jobs(context: Context, event: JobsForgotten) -> None:
    """Drop the records of finished jobs of which nothing is left in any batch system."""
    state = context.state
    for record in [state.jobs[id_] for id_ in event.job_ids if id_ in state.jobs]:
        if record.state.final and not record.live and record.job.id in state.finished:
            state.finished.remove(record.job.id)
            drop_if_forgotten(context, record)


def correct_outcome(context: Context, record: JobRecord, placeholder: PlaceholderRecord, end: TaskEnd) -> None:
    """Correct why a job ended by what its LRM reports.

    A signal does not say why: an operator's cancellation and the end of a walltime that was cut short look the same.
    """
    told = record.ended_by == placeholder.id
    outcome = record.attempts[-1].outcome if record.between_attempts else record.outcome
    if not told or outcome is None or outcome.reason is not EndReason.CANCELLED or end.reason not in _CAUSES:
        return
    rank = record.rank_in(placeholder)
    if rank is None:
        return
    outcome = _lost_rank(rank, placeholder, end)
    if record.between_attempts:
        record.attempts = [*record.attempts[:-1], replace(record.attempts[-1], outcome=outcome)]
        record.last_trouble = outcome.detail
    else:
        record.outcome = outcome
        context.ledger.move_job(record, outcome.state)
        context.effects.add(CorrectOutcome(job_id=record.job.id, outcome=outcome))


def _reused(context: Context, record: JobRecord, spares: list[PlaceholderRecord]) -> list[PlaceholderRecord]:
    """Give a completed job's placeholders to jobs that can start with them; return the rest."""
    if record.job.launcher is Launcher.MPI and any(component.output_files for component in record.job.components):
        return spares  # mpiexec tells of the end before the ranks' files have come; their agents end when they have
    busy = {rank.placeholder for rank in record.ranks if rank.rank not in record.ends}
    over = {rank.placeholder for rank in record.ranks} - busy
    usable = [placeholder for placeholder in spares if placeholder.id in over and _reusable(context, placeholder)]
    chosen = {placeholder.id for placeholder in usable}
    if context.state.parameters.reorganize:
        usable = reassign_to_claiming(context, record, usable)
    return [placeholder for placeholder in spares if placeholder.id not in chosen] + reassign_to_waiting(
        context, record, usable
    )


def _reusable(context: Context, placeholder: PlaceholderRecord) -> bool:
    """Return whether an ended process's placeholder can be used again: in contact, on an open cluster."""
    ours = placeholder.state is PlaceholderState.LAUNCHED and placeholder.silent_since is None
    return ours and context.state.clusters[placeholder.cluster].configured


# -- Rank jobs that run again: after an end that is retried, or from the state that they have saved ----------
# An attempt is one run of a job, from its launch to the end of its processes. When one has ended otherwise than well
# and another may follow, the job waits again. Whether another does follow is decided when the placeholders of the
# attempt are gone. Until then output and files of the attempt still come in, and the batch system may tell why it has
# ended: an agent that is told to go does not know whether a walltime is over, or a user has cancelled its placeholder.

ATTEMPT_PATIENCE = 60.0
"""Seconds after which placeholders of an attempt that are not gone, as on a lost node, are not waited for."""
LONGEST_PAUSE = 300.0
"""Seconds between two attempts at most. The first retry comes at once; the pause grows with each further one."""
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
    context.timetable.for_job(record, TimerKind.ATTEMPT, context.now + ATTEMPT_PATIENCE)
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


# -- Ends in words --------------------------------------------------------------------------------------------


def _how(end: TaskEnd) -> str:
    how = f"exited with status {end.status}" if end.reason is EndReason.EXITED else f"ended ({end.reason.value})"
    return f"{how}: {end.detail}" if end.detail else how


def _bad_end(record: JobRecord, rank: int | None, end: TaskEnd) -> JobOutcome:
    component = None if rank is None else record.ranks[rank].component
    if rank is None and record.job.runner is RunnerName.SWEEP:
        return JobOutcome(state=JobState.FAILED, reason=end.reason, exit_code=end.status, detail=end.detail)
    who = "the MPI application" if rank is None else f"rank {rank} (component {component!r})"
    saved = ", which says that it has saved its state and is to go on later" if record.job.goes_on_after(end) else ""
    said = {
        EndReason.EXITED: f"{who} exited with status {end.exit_code}{saved}",
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


def _worker_said(record: JobRecord, rank: int, end: TaskEnd) -> str:
    known = {
        EndReason.EXITED: f"exited with status {end.status}",
        EndReason.SIGNALLED: f"was killed by signal {end.signal}",
    }
    how = known.get(end.reason, end.reason.value)
    detail = f": {end.detail}" if end.detail else ""
    return f"worker {rank} (component {record.ranks[rank].component!r}) {how}{detail}"


HANDLERS: Handlers = {RankEnded: rank_ended, JobsForgotten: forget_jobs}
JOB_TIMERS: JobTimers = {
    TimerKind.WORKERS: workers_timer,
    TimerKind.LAST_RANKS: last_ranks_timer,
    TimerKind.WALLTIME: walltime_timer,
    TimerKind.ATTEMPT: attempt_timer,
}

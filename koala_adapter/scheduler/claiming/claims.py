# SPDX-License-Identifier: Apache-2.0
"""Claiming without reservation: placements become submitted placeholders, and a complete claim a launch.

KOALA's incremental claiming policy, ICP (CoreGRID TR-0092), with the virtual jobs of VJM (Xing 2009): placeholders go
to every chosen cluster, and when all are held the job starts. Only the components whose claim failed are placed again
(:func:`reclaim`). A job of higher priority goes first: it is placed before anything is claimed again for another, what
is kept for it is not touched, and what becomes free goes to it (``exchange.yield_to_priority``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from koala_adapter.model import BatchKey, ClusterName, PlaceholderId
from koala_adapter.outcome import JobState, PlaceholderState
from koala_adapter.scheduler.actions import LaunchJob, Rank, ReadPlaceholderOutput, SubmitPlaceholders
from koala_adapter.scheduler.claiming import plannedstart, waiting
from koala_adapter.scheduler.claiming.connections import PATIENCE, doubts, doubts_of, must_connect, said_apart
from koala_adapter.scheduler.claiming.queue import Lane, position_of
from koala_adapter.scheduler.context import SHORTEST_PAUSE, backoff, life
from koala_adapter.scheduler.placement.policy import Infeasible, Insufficient, Placed, PlacedComponent
from koala_adapter.scheduler.records import BatchRecord, Claim, JobRecord, PlaceholderRecord
from koala_adapter.scheduler.timers import TimerKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.scheduler.context import Context, JobTimers, PlaceholderTimers, Views
    from koala_adapter.scheduler.parameters import Parameters


# -- Submitting placeholders ---------------------------------------------------------------------------------
# The records of a batch, and the one request that brings it into its LRM's queue.


def submit_batch(  # noqa: PLR0913, PLR0917 - what a batch consists of
    context: Context,
    record: JobRecord,
    component: str,
    cluster_name: ClusterName,
    count: int,
    seconds: float,
    *,
    stub: bool = False,
    memory_mib: int = 0,
    reservation: str = "",
) -> list[PlaceholderId]:
    """Submit ``count`` placeholders with a walltime, or the longest that the cluster allows.

    ``stub``: they are for an application that runs already. ``memory_mib``: of each; 0: what the site says.
    """
    state = context.state
    cluster = state.clusters[cluster_name]
    slot = record.job.component(component).slot_on(cluster_name)
    number = context.batch_number((context.now, record.job.id, component, cluster_name, count))
    key = BatchKey(f"koala-{state.parameters.instance}-{number}")
    walltime = int(seconds)
    if cluster.parameters.walltime_limit is not None:
        walltime = min(walltime, cluster.parameters.walltime_limit)
    batch = BatchRecord(
        key=key,
        cluster=cluster_name,
        job_id=record.job.id,
        component=component,
        count=count,
        submitted_at=context.now,
    )
    placeholders = [
        PlaceholderRecord(
            id=PlaceholderId(batch=key, index=index),
            cluster=cluster_name,
            job_id=record.job.id,
            component=component,
            state=PlaceholderState.SUBMITTED,
            submitted_at=context.now,
            walltime=walltime,
            slot_processors=context.slot_processors(record, component, cluster_name),
            stub=stub,
        )
        for index in range(1, count + 1)
    ]
    context.ledger.add_batch(batch, placeholders)
    context.effects.add(
        SubmitPlaceholders(
            batch=key,
            cluster=cluster_name,
            count=count,
            walltime=walltime,
            memory_mib=memory_mib,
            slot=slot,
            reservation=reservation,
        )
    )
    return [placeholder.id for placeholder in placeholders]


# -- The life of placeholders: held, handed back, missing, silent, gone --------------------------------------
# The life cycle is VJM's (Xing 2009): it begins when the first placeholder of a claim is held. What happens at its end,
# if others are still missing, is in ``exchange.py``.

FORCED_PATIENCE = 6
"""A cancellation through the LRM is repeated after so many times the patience with an agent."""
SILENCE_MARGIN = 15.0
"""Seconds added to the lease before a silent agent is given up, for clocks and process switches."""


def end_placeholder(context: Context, placeholder: PlaceholderRecord, *, force: bool = False) -> None:
    """End a placeholder, and set a timer to check that it ends."""
    if placeholder.state is not PlaceholderState.ENDING:
        context.ledger.move(placeholder, PlaceholderState.ENDING)
        placeholder.ending_since = context.now
        if placeholder.stub:
            context.lost_stubs.append(placeholder)
    batch = context.state.batches.get(placeholder.id.batch)
    if batch is None or batch.lrm_ids is not None or placeholder.host:
        context.effects.end(placeholder.cluster, placeholder.id, placeholder.lrm_id, force=force)
    patience = max(SHORTEST_PAUSE, context.state.parameters.end_patience) * (FORCED_PATIENCE if force else 1)
    for kind in (TimerKind.REGISTRATION, TimerKind.SILENCE, TimerKind.KEPT):
        placeholder.timers.pop(kind, None)
    context.timetable.for_placeholder(placeholder, TimerKind.ENDING, context.now + patience)


def forget_placeholder(context: Context, placeholder: PlaceholderRecord) -> None:
    """Drop the record of a placeholder that is certainly gone (or never was); no claim counts on it any more."""
    state = context.state
    record = state.jobs[placeholder.job_id]
    never_started = placeholder.held_at is None and placeholder.lrm_id is not None
    if never_started and context.now - placeholder.submitted_at > (
        state.clusters[placeholder.cluster].mean_wait or 0.0
    ):
        state.note_wait(placeholder, context.now)  # it has waited for longer than was expected
    if placeholder.stub:
        context.lost_stubs.append(placeholder)
    context.ledger.remove(placeholder)
    plannedstart.give_back_reservations(context, record)
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


def claim_failed(context: Context, record: JobRecord, reason: str, *, pause: bool = True) -> None:
    """Count a failed claim; schedule the next try, or give up after the allowed number.

    Several losses before the next attempt count once.
    """
    if record.state is not JobState.CLAIMING:
        return
    record.last_trouble = reason
    if record.reservations and not record.not_reserved:
        record.not_reserved = f"a claim of reserved processors has failed: {reason}"
        plannedstart.give_back_reservations(context, record)
    if record.reclaim_at is None:
        record.failed_claims += 1
        record.tries += 1
        if waiting.tries_used_up(context, record):
            return
        seconds = backoff(record, context.state.parameters) if pause else 0.0
        context.timetable.for_job(record, TimerKind.RECLAIM, context.now + seconds)
    if all(not claim.placeholders and claim.postponed is None for claim in record.claims):
        _requeue(context, record)
    else:
        placed = [claim.cluster for claim in record.claims if claim.cluster is not None]
        plannedstart.leave_staging(context, record, keep=placed)
        plannedstart.watch(context, record)


def _requeue(context: Context, record: JobRecord) -> None:
    """Put a job that holds and awaits nothing back into the placement queue, to be seen again after its pause."""
    context.ledger.move_job(record, JobState.WAITING)
    at = context.now if record.reclaim_at is None else record.reclaim_at
    record.timers.clear()
    plannedstart.leave_staging(context, record)
    plannedstart.give_back_reservations(context, record)
    for claim in record.claims:
        claim.unplace()
    join_pieces(record, record.claims)
    context.timetable.for_job(record, TimerKind.BACKOFF, at)


def registration_timer(context: Context, placeholder: PlaceholderRecord) -> None:
    """Give up a started placeholder whose agent did not report (MISSING); pause the cluster after a few."""
    waited = context.now - (context.now if placeholder.started_at is None else placeholder.started_at)
    detail = (
        f"placeholder {placeholder.id} on {placeholder.cluster} started but its agent did not report in {waited:.0f} s"
    )
    record = context.state.jobs[placeholder.job_id]
    record.unclaim({placeholder.id})
    end_placeholder(context, placeholder, force=True)
    note_missing(context, placeholder, f"MISSING: {detail}")


def note_missing(context: Context, placeholder: PlaceholderRecord, trouble: str) -> None:
    """Count a placeholder that started in vain against its job, and ask for its output.

    After a few in a row its cluster is paused.
    """
    state = context.state
    cluster = state.clusters[placeholder.cluster]
    cluster.missing_in_a_row += 1
    if cluster.missing_in_a_row >= state.parameters.missing_limit:
        cluster.paused_until = context.now + state.parameters.pause
        cluster.pause_reason = f"{cluster.missing_in_a_row} placeholders in a row started but never reported"
        context.timetable.for_cluster(cluster, cluster.paused_until)
    claim_failed(context, state.jobs[placeholder.job_id], trouble)
    context.effects.add(
        ReadPlaceholderOutput(cluster=placeholder.cluster, placeholder=placeholder.id, job_id=placeholder.job_id)
    )


KEPT_PATIENCE = 60.0
"""Seconds for which a placeholder may be kept waiting by a limit of its own or by the site before others are claimed
elsewhere."""


def watch_kept(context: Context, placeholder: PlaceholderRecord) -> None:
    """Set a timer for a placeholder that only a change of a limit or of the site lets start."""
    if not placeholder.hold_lasts:
        placeholder.timers.pop(TimerKind.KEPT, None)
    elif TimerKind.KEPT not in placeholder.timers:
        context.timetable.for_placeholder(placeholder, TimerKind.KEPT, context.now + KEPT_PATIENCE)


def kept_timer(context: Context, placeholder: PlaceholderRecord) -> None:
    """Move a claim to another cluster if its placeholder is kept waiting and there is room; else wait on.

    The growth of a running job is given up, so that it can grow elsewhere.
    """
    record = context.state.jobs[placeholder.job_id]
    if not (placeholder.waiting and placeholder.hold_lasts):
        return
    reserved_until = context.state.batches[placeholder.id.batch].reserved_until
    if reserved_until is not None and context.now < reserved_until:
        watch_kept(context, placeholder)
        return
    reason = f"its batch system keeps placeholders waiting: {placeholder.hold_reason}"
    if record.state is JobState.RUNNING and placeholder.stub:
        exclude_from_growth(context, record, placeholder.cluster, {placeholder.id}, reason)
        end_placeholder(context, placeholder)
        return
    claim = next((one for one in record.claims if placeholder.id in one.placeholders), None)
    if record.state is not JobState.CLAIMING or claim is None:
        return
    claim.excluded[placeholder.cluster] = reason
    if waiting.impossible(context.requests(record), context.views()) is not None:
        del claim.excluded[placeholder.cluster]
        watch_kept(context, placeholder)
        return
    for id_ in claim.unplace():
        end_placeholder(context, context.state.placeholders[id_])
    claim_failed(context, record, f"{placeholder.cluster}: {reason}", pause=False)


def join_pieces(record: JobRecord, claims: list[Claim]) -> None:
    """Join claims of ``claims`` that are pieces of the same component and hold nothing.

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


def exclude_from_growth(
    context: Context, record: JobRecord, cluster: ClusterName, missed: set[PlaceholderId], reason: str
) -> None:
    """Stop a job's growth on a cluster that rejects or delays its placeholders.

    Unless its owner asks for that.
    """
    for part in (part for change in record.changes.values() for part in change.parts):
        if missed.intersection(part.stubs):
            record.claims[part.claim].excluded[cluster] = reason
    context.roster.update(record)


# -- Scanning the queue, claiming, claiming again, launching -------------------------------------------------


def scan_queue(context: Context, *, above: int | None = None) -> None:
    """Try to place waiting jobs in queue order; ``above``: only those of higher priority."""
    if not len(context.queue):
        return
    state = context.state
    if above is not None and state.jobs[context.queue.first(1)[0]].job.priority <= above:
        return
    capacity = waiting.Capacity(context)
    guarded, kept = state.guarded, dict(state.kept_room)
    guard_position = None if guarded is None else position_of(state.jobs[guarded])
    unseen = bool(waiting.awaited_looks(state, context.now))
    passed_over: set[Lane] = set()

    def may_fit(lane: Lane) -> bool:
        return lane not in passed_over and capacity.may_hold(lane)

    for position, job_id in context.queue.scan(may_fit, most=capacity.total):
        record = state.jobs[job_id]
        if above is not None and record.job.priority <= above:
            break
        if guard_position is not None and position > guard_position:
            guard_position = None
            capacity.keep(kept if state.guarded == guarded else {})
            if not may_fit(context.queue.lane_of(record)):
                continue
        result = waiting.place(context, record, capacity.views)
        if isinstance(result, Placed) and not (unseen and _waits(context, record, result, capacity)):
            waiting.leave_queue(context, record)
            claim_placement(context, record, result, capacity.views)
            capacity.refresh({placed.cluster for placed in result.components})
        else:
            passed_over.add(context.queue.lane_of(record))


def _waits(context: Context, record: JobRecord, placed: Placed, capacity: waiting.Capacity) -> bool:
    """Return whether a job that would be queued waits for the first polls of clusters instead."""
    return waiting.waits_for_looks(context, waiting.would_be_queued(context.requests(record), placed, capacity.views))


def claim_placement(context: Context, record: JobRecord, placed: Placed, views: Views) -> None:
    """Submit placeholders for every component of a placement found with ``views``."""
    life = _life_asked(context, record, placed, views)
    context.ledger.move_job(record, JobState.CLAIMING)
    record.reclaim_with_room = False
    record.last_trouble = ""
    _fill(context, record, list(record.claims), placed.components, life)


AT_ONCE = 60.0
"""Seconds within which placeholders are held for which processors are idle."""
SAFETY = 2.0
"""So many times as long as others have waited, a placeholder can wait for those of other submissions."""


def life_at_once(parameters: Parameters, placeholders: int) -> float:
    """Return for how many seconds beyond its job so many placeholders are asked for that can all start at once."""
    return 0.0 if placeholders == 1 else min(AT_ONCE, parameters.placeholder_life)


def _life_asked(context: Context, record: JobRecord, placed: Placed, views: Views) -> float:
    """Return for how many seconds beyond its job the placeholders of a first claim are asked for.

    Batch systems start a job that asks for less time sooner (backfill). So what is asked is what they will probably
    wait for each other, up to ``placeholder_life``. Those that do not last are handed back and claimed anew, for the
    whole life then. The whole of it is asked, too, where another job waits that may get them next (``reuse``).
    """
    parameters = context.state.parameters
    life = parameters.placeholder_life
    if record.failed_claims or (parameters.reuse and len(context.queue)):
        return life
    at_once = life_at_once(parameters, sum(part.processors for part in placed.components))
    if not at_once:
        return at_once
    if must_connect(record.job):
        names = (part.cluster for part in placed.components)
        at_once += PATIENCE if doubts(context.state, names, context.now).untried else 0.0
    queued = {request.component.name for request in waiting.would_be_queued(context.requests(record), placed, views)}
    clusters = [context.state.clusters[part.cluster] for part in placed.components if part.component in queued]
    expected = [context.state.expected_wait(cluster, context.now) for cluster in clusters]
    longest = max((life if wait is None else SAFETY * wait for wait in expected), default=0.0)
    return min(life, at_once + longest)


def _fill(
    context: Context,
    record: JobRecord,
    claims: list[Claim],
    placed: tuple[PlacedComponent, ...],
    life: float,
) -> None:
    """Assign a placement to claims of a job; a split component gets one claim for each piece.

    ``life``: seconds that placeholders are to last beyond their job.
    """
    filled: list[Claim] = []
    for claim in claims:
        parts = [one for one in placed if one.component == claim.component]
        pieces = [claim, *(Claim(component=claim.component, excluded=dict(claim.excluded)) for _ in parts[1:])]
        for piece, part in zip(pieces, parts, strict=True):
            piece.cluster, piece.processors = part.cluster, part.processors
            piece.slot_processors = context.slot_processors(record, claim.component, part.cluster)
            piece.piece = claim.piece if part.piece is None else part.piece
        filled += pieces
        if len(pieces) > 1:
            at = next(number for number, one in enumerate(record.claims) if one is claim)
            record.claims[at : at + 1] = pieces
    submit_claims(context, record, filled, life)


def submit_claims(context: Context, record: JobRecord, claims: list[Claim], life: float) -> None:
    """Submit what claims miss on their clusters; what is of no use yet, while files travel, is postponed."""
    plannedstart.stage(context, record)
    seconds = record.job.walltime + context.state.parameters.launch_margin + life
    short = [claim for claim in claims if claim.missing > 0 and claim.cluster is not None]
    waits = bool(short) and plannedstart.reserve(context, record, short, seconds)
    for claim in short:
        one = plannedstart.reservation_for(record, claim)
        useful = one is not None or plannedstart.submission_at(context.state, record, claim, context.now) <= context.now
        if waits or not useful or claim.cluster is None:
            claim.postponed = context.now
            continue
        lasting, handle = (seconds, "") if one is None else (one.seconds - plannedstart.SLACK, one.handle)
        placed = submit_batch(
            context, record, claim.component, claim.cluster, claim.missing, lasting, reservation=handle
        )
        if one is not None:
            context.state.batches[placed[0].batch].reserved_until = one.start_at + plannedstart.SLACK
        claim.placeholders, claim.postponed = [*claim.placeholders, *placed], None
    if record.staging or any(claim.postponed is not None for claim in record.claims):
        plannedstart.watch(context, record)


def submit_postponed(context: Context, record: JobRecord) -> None:
    """Submit what is of use now of the placeholders that were postponed while files travel."""
    if record.awaits_reservation:
        plannedstart.watch(context, record)
        return
    reserved = any(plannedstart.wants_reservation(context.state, record, claim) for claim in record.claims)
    due = [
        claim
        for claim in record.claims
        if claim.postponed is not None
        and (reserved or plannedstart.submission_at(context.state, record, claim, context.now) <= context.now)
    ]
    views = context.views()
    _leave_kept(context, record, views)
    trouble = _reserve(record, due, views) if due else None
    if trouble is None:
        submit_claims(context, record, due, context.state.parameters.placeholder_life)
        if not any(claim.cluster is None or (claim.missing and claim.postponed is None) for claim in record.claims):
            record.timers.pop(TimerKind.RECLAIM, None)
        return
    for claim in due:
        claim.postponed = None
    plannedstart.watch(context, record)
    claim_failed(context, record, trouble)


def reclaim(context: Context, record: JobRecord, *, early: bool = False) -> None:
    """Claim the missing components of a job again (incremental claiming), all of them or none.

    A component that still has placeholders in a queue stays on its cluster; one that has none may move. Waiting jobs
    of higher priority are placed first. ``early``: the pause is not over, so that a failure is not counted.
    """
    scan_queue(context, above=record.job.priority)
    due = record.timers.pop(TimerKind.RECLAIM, None)
    record.reclaim_with_room = False
    claimed = [claim for claim in record.claims if claim.postponed is None]
    join_pieces(record, [claim for claim in claimed if not claim.placeholders])
    claimed = [claim for claim in record.claims if claim.postponed is None]
    short = [claim for claim in claimed if claim.missing > 0 or claim.cluster is None]
    homeless = [claim for claim in short if not claim.placeholders]
    settled = [claim for claim in short if claim.placeholders]
    views = context.views()
    _leave_kept(context, record, views)
    trouble = _reserve(record, settled, views)
    placed: tuple[PlacedComponent, ...] = ()
    if trouble is None and homeless:
        requests = [context.request(record, claim) for claim in homeless]
        result = waiting.ask_policy(context, record, requests, views)
        if isinstance(result, Infeasible):
            waiting.refuse(context, record, result.reason)
            return
        if isinstance(result, Insufficient):
            trouble = result.reason
        else:
            placed = result.components
    if trouble is not None and early and due is not None:
        record.timers[TimerKind.RECLAIM], record.reclaim_with_room = due, True
        return
    if trouble is not None:
        claim_failed(context, record, trouble)
        return
    life = context.state.parameters.placeholder_life
    _fill(context, record, homeless, placed, life)
    submit_claims(context, record, settled, life)


def _leave_kept(context: Context, record: JobRecord, views: Views) -> None:
    """Subtract room kept for guarded jobs of higher priority from the views."""
    state = context.state
    if state.guarded is not None and state.jobs[state.guarded].job.priority > record.job.priority:
        for name, kept in state.kept_room.items():
            if name in views:
                views.take(name, kept)


def _reserve(record: JobRecord, settled: list[Claim], views: Views) -> str | None:
    """Subtract what settled components miss from the views; return the reason when there is too little."""
    for claim in settled:
        if claim.cluster is None:
            continue
        view = views.of(record.job.component(claim.component)).get(claim.cluster)
        if view is None or view.closed is not None:
            return f"{claim.cluster}: {view.closed if view else 'no longer in the site file'}"
        if view.room < claim.missing:
            return f"{claim.cluster}: room for {max(0, view.room)} placeholders, {claim.missing} more are needed"
        views.take(claim.cluster, claim.missing * view.slot_processors)
    return None


def check_complete(context: Context, record: JobRecord, *, patient: bool = True) -> None:
    """Launch a claiming job once it holds everything for long enough.

    ``patient``: while connections that it needs are in doubt, its agents are given time to try them.
    """
    if record.state is not JobState.CLAIMING:
        return
    if record.held < sum(len(claim.placeholders) for claim in record.claims):
        return
    placeholders = context.state.placeholders_of(record)
    if any(not placeholder.held for placeholder in placeholders) or not plannedstart.is_staged(record):
        return
    if any(claim.cluster is None or claim.missing for claim in record.claims):
        if record.reclaim_at is not None:
            reclaim(context, record, early=True)
        return
    short = [p for p in placeholders if not p.lasts(context.now, record.job.walltime)]
    if short:
        _drain(context, record, short)
    elif patient and _await_connections(context, record):
        return
    else:
        _launch(context, record)


def _await_connections(context: Context, record: JobRecord) -> bool:
    """Return whether it is not known yet if a job's processes can connect; set a limit to the time for that."""
    if not doubts_of(context.state, record, context.now).untried:
        return False
    if TimerKind.CONNECTIONS not in record.timers:
        context.timetable.for_job(record, TimerKind.CONNECTIONS, context.now + PATIENCE)
        life_ends_at = max(record.life_ends_at or 0.0, context.now + 2 * PATIENCE)
        context.timetable.for_job(record, TimerKind.LIFE, life_ends_at)  # nothing is missing meanwhile
    return True


def connection_seen(context: Context) -> None:
    """Launch jobs that have waited for a connection to be tried; place those again whose processes cannot connect."""
    for record in list(context.state.jobs.values()):
        if record.state is not JobState.CLAIMING or not must_connect(record.job):
            continue
        apart = doubts_of(context.state, record, context.now).apart
        if not apart:
            check_complete(context, record)
            continue
        for claim in record.claims:
            for id_ in claim.unplace():
                end_placeholder(context, context.state.placeholders[id_])
        claim_failed(context, record, said_apart(apart), pause=False)


def _drain(context: Context, record: JobRecord, short: list[PlaceholderRecord]) -> None:
    """Hand back placeholders whose remaining walltime is too short for the job (walltime drain)."""
    record.unclaim({placeholder.id for placeholder in short})
    for placeholder in short:
        end_placeholder(context, placeholder)
    claim_failed(context, record, f"{len(short)} held processors had less walltime left than the job needs")


def _launch(context: Context, record: JobRecord) -> None:
    context.ledger.move_job(record, JobState.LAUNCHING)
    record.timers.clear()
    record.launched_at = context.now
    record.held_before_launch = record.held_for(context.now) - record.held_in_attempts
    context.state.note_claims(record, context.now)
    for claim in record.claims:
        launch_in(context, record, claim, claim.placeholders)
    context.timetable.for_job(record, TimerKind.WALLTIME, context.now + record.job.walltime)
    context.effects.add(LaunchJob(job_id=record.job.id, ranks=record.ranks))


def launch_in(
    context: Context, record: JobRecord, claim: Claim, placeholders: Sequence[PlaceholderId]
) -> tuple[Rank, ...]:
    """Launch held placeholders of a claim; return their ranks, which the job gets behind those that it has."""
    each = record.job.component(claim.component).slot.ranks
    before, in_component = len(record.ranks), sum(rank.component == claim.component for rank in record.ranks)
    launched = [context.state.placeholders[id_] for id_ in placeholders]
    for placeholder in launched:
        context.ledger.move(placeholder, PlaceholderState.LAUNCHED)
    ranks = tuple(
        Rank(
            rank=before + number,
            component=claim.component,
            component_rank=in_component + number,
            placeholder=placeholder.id,
            host=placeholder.host,
            address=placeholder.address,
            cluster=placeholder.cluster,
        )
        for number, placeholder in enumerate(one for one in launched for _ in range(each))
    )
    record.ranks += ranks
    return ranks


JOB_TIMERS: JobTimers = {
    TimerKind.RECLAIM: reclaim,
    TimerKind.CONNECTIONS: partial(check_complete, patient=False),  # its agents have not told in time
}
PLACEHOLDER_TIMERS: PlaceholderTimers = {
    TimerKind.REGISTRATION: registration_timer,
    TimerKind.KEPT: kept_timer,
    TimerKind.ENDING: partial(end_placeholder, force=True),  # telling its agent was not enough
}

# SPDX-License-Identifier: Apache-2.0
"""Claiming without reservation: placements become submitted placeholders, and a complete claim a launch.

KOALA's incremental claiming policy, ICP (CoreGRID TR-0092), with the virtual jobs of VJM (Xing 2009):
placeholders go to every chosen cluster; when all are held the job starts. Only the components whose claim failed are
placed again (:func:`retake`), and a job of higher priority goes first: it is placed before anything is claimed again
for another, what is kept for it is not touched, and what comes free goes to it (``reorganization.yield_to_priority``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.scheduler.actions import LaunchJob, Rank
from koala_adapter.scheduler.claiming.capacity import Capacity, less
from koala_adapter.scheduler.claiming.firstlook import awaited_looks, waits_for_looks, would_be_queued
from koala_adapter.scheduler.claiming.lifecycle import end_placeholder, join_pieces, setback
from koala_adapter.scheduler.claiming.queue import position_of
from koala_adapter.scheduler.claiming.submitting import submit_batch
from koala_adapter.scheduler.claiming.waiting import ask_policy, leave_queue, place, refuse
from koala_adapter.scheduler.outcome import JobState, PlaceholderState
from koala_adapter.scheduler.placement.policy import Infeasible, Insufficient, Placed
from koala_adapter.scheduler.records import Claim
from koala_adapter.scheduler.timers import TimerKind

if TYPE_CHECKING:
    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.claiming.queue import Lane
    from koala_adapter.scheduler.context import Context, Views
    from koala_adapter.scheduler.placement.policy import PlacedComponent
    from koala_adapter.scheduler.records import JobRecord, PlaceholderRecord


def scan_queue(context: Context, *, above: int | None = None) -> None:
    """Try to place waiting jobs from head to tail; with ``above``, only those of a higher priority than that."""
    if not len(context.queue):
        return
    state = context.state
    if above is not None and state.jobs[context.queue.first(1)[0]].job.priority <= above:
        return
    capacity = Capacity(context)
    guarded, kept = state.guarded, dict(state.kept_room)
    guard_position = None if guarded is None else position_of(state.jobs[guarded])
    unseen = bool(awaited_looks(state, context.now))
    hopeless: set[Lane] = set()

    def may_fit(lane: Lane) -> bool:
        return lane not in hopeless and capacity.may_hold(lane)

    for position, job_id in context.queue.scan(may_fit, most=capacity.total):
        record = state.jobs[job_id]
        if above is not None and record.job.priority <= above:
            break
        if guard_position is not None and position > guard_position:
            guard_position = None
            capacity.keep(kept if state.guarded == guarded else {})
            if not may_fit(context.queue.lane_of(record)):
                continue
        result = place(context, record, capacity.views)
        if isinstance(result, Placed) and not (unseen and _waits(context, record, result, capacity)):
            leave_queue(context, record)
            claim_placement(context, record, result)
            capacity.refresh({placed.cluster for placed in result.components})
        else:
            hopeless.add(context.queue.lane_of(record))


def _waits(context: Context, record: JobRecord, placed: Placed, capacity: Capacity) -> bool:
    """Tell whether a job that would only be queued waits for the first polls of clusters."""
    return waits_for_looks(context, would_be_queued(context.requests(record), placed, capacity.views))


def claim_placement(context: Context, record: JobRecord, placed: Placed) -> None:
    """Submit placeholders for every component of a placement."""
    context.ledger.move_job(record, JobState.CLAIMING)
    record.retake_with_room = False
    record.last_trouble = ""
    _fill(context, record, list(record.claims), placed.components)


def _fill(context: Context, record: JobRecord, claims: list[Claim], placed: tuple[PlacedComponent, ...]) -> None:
    """Claim what was placed for some claims of a job; a component that was split gets one claim for each piece."""
    for claim in claims:
        parts = [one for one in placed if one.component == claim.component]
        pieces = [claim, *(Claim(component=claim.component, excluded=dict(claim.excluded)) for _ in parts[1:])]
        for piece, part in zip(pieces, parts, strict=True):
            piece.cluster, piece.processors = part.cluster, part.processors
            piece.piece = claim.piece if part.piece is None else part.piece
            if piece.missing > 0:
                _submit(context, record, piece, part.cluster)
        if len(pieces) > 1:
            at = next(number for number, one in enumerate(record.claims) if one is claim)
            record.claims[at : at + 1] = pieces


def _submit(context: Context, record: JobRecord, claim: Claim, cluster_name: ClusterName) -> None:
    parameters = context.state.parameters
    seconds = record.job.walltime + parameters.launch_margin + parameters.placeholder_life
    claim.placeholders += submit_batch(context, record, claim.component, cluster_name, claim.missing, seconds)


def retake(context: Context, record: JobRecord, *, early: bool = False) -> None:
    """Claim again what a job is missing, incrementally (ICP): the components whose claim failed, all of them or none.

    A component that still has placeholders in a queue stays on its cluster; one that has none may move. Waiting jobs
    of higher priority are placed first. ``early``: its pause is not over, so that it is no setback if this fails.
    """
    scan_queue(context, above=record.job.priority)
    due = record.timers.pop(TimerKind.RETAKE, None)
    record.retake_with_room = False
    join_pieces(record, [claim for claim in record.claims if not claim.placeholders])
    short = [claim for claim in record.claims if claim.missing > 0 or claim.cluster is None]
    homeless = [claim for claim in short if not claim.placeholders]
    settled = [claim for claim in short if claim.placeholders]
    views = context.views()
    _leave_kept(context, record, views)
    trouble = _reserve(settled, views)
    placed: tuple[PlacedComponent, ...] = ()
    if trouble is None and homeless:
        requests = [context.request(record, claim) for claim in homeless]
        result = ask_policy(context, record, requests, views)
        if isinstance(result, Infeasible):
            refuse(context, record, result.reason)
            return
        if isinstance(result, Insufficient):
            trouble = result.reason
        else:
            placed = result.components
    if trouble is not None and early and due is not None and context.state.parameters.out_of_step:
        record.timers[TimerKind.RETAKE], record.retake_with_room = due, True
        return
    if trouble is not None:
        setback(context, record, trouble)
        return
    _fill(context, record, homeless, placed)
    for claim in settled:
        if claim.cluster is not None:
            _submit(context, record, claim, claim.cluster)


def _leave_kept(context: Context, record: JobRecord, views: Views) -> None:
    """Take the room that is kept for a guarded job of higher priority out of the views."""
    state = context.state
    if state.guarded is not None and state.jobs[state.guarded].job.priority > record.job.priority:
        for name, kept in state.kept_room.items():
            if name in views:
                views[name] = less(views[name], kept)


def _reserve(settled: list[Claim], views: Views) -> str | None:
    """Take the room for what settled components miss out of the views; return the trouble when there is too little."""
    needed: dict[ClusterName, int] = {}
    for claim in settled:
        if claim.cluster is not None:
            needed[claim.cluster] = needed.get(claim.cluster, 0) + claim.missing
    for name, processors in needed.items():
        view = views.get(name)
        if view is None or view.closed is not None:
            return f"{name}: {view.closed if view else 'no longer in the site file'}"
        if view.room < processors:
            return f"{name}: room for {max(0, view.room)} placeholders, {processors} more are needed"
        views[name] = less(view, processors)
    return None


def check_complete(context: Context, record: JobRecord) -> None:
    """Launch a claiming job when everything it wants is held and will last long enough."""
    if record.state is not JobState.CLAIMING:
        return
    if record.held < sum(len(claim.placeholders) for claim in record.claims):
        return
    placeholders = context.state.placeholders_of(record)
    if any(not placeholder.held for placeholder in placeholders):
        return
    if any(claim.cluster is None or claim.missing for claim in record.claims):
        if record.retake_at is not None:
            retake(context, record, early=True)
        return
    short = [p for p in placeholders if not p.lasts(context.now, record.job.walltime)]
    if short:
        _drain(context, record, short)
    else:
        _launch(context, record)


def _drain(context: Context, record: JobRecord, short: list[PlaceholderRecord]) -> None:
    """Hand back placeholders whose remaining walltime is too short for the job (walltime drain)."""
    record.unclaim({placeholder.id for placeholder in short})
    for placeholder in short:
        end_placeholder(context, placeholder)
    setback(context, record, f"{len(short)} held processors had less walltime left than the job needs")


def _launch(context: Context, record: JobRecord) -> None:
    context.ledger.move_job(record, JobState.LAUNCHING)
    record.timers.clear()
    record.launched_at = context.now
    context.state.note_claims(record, context.now)
    ranks: list[Rank] = []
    numbers: dict[str, int] = {}
    for claim in record.claims:
        for id_ in claim.placeholders:
            component_rank = numbers.get(claim.component, 0)
            numbers[claim.component] = component_rank + 1
            placeholder = context.state.placeholders[id_]
            context.ledger.move(placeholder, PlaceholderState.LAUNCHED)
            placeholder.exchanged = False
            ranks.append(
                Rank(
                    rank=len(ranks),
                    component=claim.component,
                    component_rank=component_rank,
                    placeholder=id_,
                    host=placeholder.host,
                    address=placeholder.address,
                    cluster=placeholder.cluster,
                )
            )
    record.ranks = tuple(ranks)
    context.timetable.for_job(record, TimerKind.WALLTIME, context.now + record.job.walltime)
    context.effects.add(LaunchJob(job_id=record.job.id, ranks=record.ranks))

# SPDX-License-Identifier: Apache-2.0
"""Placeholders passed from one job to another without a new submission, so without queueing in an LRM.

Placeholders that a completed job held, or that are about to be handed back because others are missing, may suit a job
of the placement queue that fits into them entirely: the backfill that the authors of VJM added to it later (Xing 2009).
The second part breaks deadlocks between jobs that each hold what the other waits for.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from koala_adapter.model import ClusterName, JobId, JobKind, PlaceholderId
from koala_adapter.outcome import JobState, PlaceholderState
from koala_adapter.scheduler.claiming import claims
from koala_adapter.scheduler.claiming.connections import doubts, must_connect
from koala_adapter.scheduler.claiming.plannedstart import is_staged, must_be_staged, watch
from koala_adapter.scheduler.claiming.queue import ANY_CLUSTER, Lane, position_of
from koala_adapter.scheduler.claiming.results import batch_submitted
from koala_adapter.scheduler.claiming.waiting import leave_queue
from koala_adapter.scheduler.context import backoff, grace
from koala_adapter.scheduler.events import BatchSubmitted
from koala_adapter.scheduler.states import initial_size
from koala_adapter.scheduler.timers import TimerKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from koala_adapter.scheduler.context import Context, Handlers, JobTimers
    from koala_adapter.scheduler.records import Claim, JobRecord, PlaceholderRecord

    Free = dict[ClusterName, list[PlaceholderRecord]]
    Fit = list[tuple[Claim, list[PlaceholderRecord]]]


# -- Backfill: jobs of the placement queue that fit into free placeholders -----------------------------------

LOOK = 100
"""How many waiting jobs are looked at, at most, when placeholders can be handed on."""


def reassign_to_waiting(context: Context, giver: JobRecord, spares: list[PlaceholderRecord]) -> list[PlaceholderRecord]:
    """Give held processors to waiting jobs that fit into them entirely; return the rest.

    No new queueing in any LRM: a placeholder can be handed from one job to another of the same user.
    Room that is kept for a guarded job is not given to jobs behind it.
    """
    state = context.state
    free: Free = {}
    for placeholder in spares:
        if not state.is_reserved(placeholder):
            free.setdefault(placeholder.cluster, []).append(placeholder)
    guard_position = None if state.guarded is None else position_of(state.jobs[state.guarded])
    barred = frozenset(state.kept_room)

    sizes = _sizes(free)

    def may_fit(lane: Lane) -> bool:
        return all(need.minimum <= sizes.get(need.cluster, 0) for need in lane.needs)

    for position, job_id in islice(context.queue.scan(may_fit, most=len(spares)), LOOK):
        taker = state.jobs[job_id]
        if taker.job.user != giver.job.user:
            continue
        behind = guard_position is not None and position > guard_position
        fit = _fit(context, taker, {n: some for n, some in free.items() if not (behind and n in barred)})
        if fit is not None:
            leave_queue(context, taker)
            _start_with(context, taker, fit, free)
            sizes = _sizes(free)
    left = {placeholder.id for some in free.values() for placeholder in some}
    return [p for p in spares if p.job_id == giver.job.id or p.id in left]


def _sizes(free: Free) -> dict[ClusterName, int]:
    """Return the free placeholders by cluster, and the most on one cluster for components without a cluster."""
    sizes = {name: len(some) for name, some in free.items()}
    sizes[ANY_CLUSTER] = max(sizes.values(), default=0)
    return sizes


def _start_with(context: Context, taker: JobRecord, fit: Fit, free: Free) -> None:
    context.ledger.move_job(taker, JobState.CLAIMING)
    taker.last_trouble = ""
    for claim, chosen in fit:
        first, given = chosen[0], {placeholder.id for placeholder in chosen}
        claim.cluster, claim.processors, claim.slot_processors = first.cluster, len(chosen), first.slot_processors
        claim.placeholders = [placeholder.id for placeholder in chosen]
        context.state.jobs[first.job_id].unclaim(given)
        for placeholder in chosen:
            context.ledger.reassign(placeholder, taker, claim.component)
        free[first.cluster] = [p for p in free[first.cluster] if p.id not in given]
    claims.check_complete(context, taker)


def _fit(context: Context, record: JobRecord, free: Free) -> Fit | None:
    """Choose placeholders for all components of a job; None when there are too few."""
    used: set[PlaceholderId] = set()
    fit: Fit = []
    for component, claim in record.components():
        names = [component.cluster] if component.cluster is not None else sorted(free, key=lambda n: -len(free[n]))
        initial = initial_size(component)
        sizes = {JobKind.MOLDABLE: component.maximum, JobKind.MALLEABLE: initial, JobKind.EVOLVING: initial}
        size = sizes.get(record.job.kind, component.minimum)
        for name in names:
            slot = component.slot_on(name)
            fitting = [p for p in free.get(name, []) if p.id not in used and context.state.slot_of(p) == slot]
            lasting = [p for p in fitting if p.lasts(context.now, record.job.walltime)]
            if (
                len(lasting) >= component.minimum
                and name not in claim.excluded
                and not must_be_staged(context.state, record, component, name)
                and context.state.clusters[name].lacks(component) is None
            ):
                chosen = lasting[:size]
                used.update(p.id for p in chosen)
                fit.append((claim, chosen))
                break
        else:
            return None
    if (
        must_connect(record.job)
        and doubts(context.state, (p.cluster for _, some in fit for p in some), context.now).all
    ):
        return None
    return fit


# -- Deadlock detection and resource reorganization of VJM (Xing 2009) ---------------------------------------
# Two jobs that each hold what the other waits for would wait for ever, and no batch system notices. So when a held
# placeholder reaches the end of its life while the co-allocation is incomplete, a deadlock is assumed, between jobs of
# this instance or with another co-allocator. Before the processors are given back to their LRM, which may give them to
# any job, they are exchanged: another job of the same user that waits for a processor of that cluster takes the
# placeholder, and its own pending one, with its place in the LRM's queue, goes to the job that gives. So nothing is
# wasted, and one of the two jobs starts.
#
# Only exchanges after which the taker starts are made. The papers do not ask for that; but a job that merely holds more
# makes no job faster, and idle processors are held for another life. A placeholder with which no claiming job can start
# may still serve a small job of the placement queue (backfill, above); the rest goes back to its batch system.

if TYPE_CHECKING:
    Exchange = tuple[PlaceholderRecord, PlaceholderRecord]
    """A placeholder that is held, and the pending one whose place it takes."""

TAKEN = (PlaceholderState.HELD, PlaceholderState.STARTED)


def life_timer(context: Context, record: JobRecord) -> None:
    """Break the deadlock that is assumed when placeholders are missing at the end of a claim's life.

    What is held is exchanged or handed back. What still waits in an LRM's queue keeps its place, since it blocks
    no other job.
    """
    if _extended(context, record):
        return
    over = [p for p in context.state.placeholders_of(record) if p.state in TAKEN]
    if context.state.parameters.reorganize:
        over = _reorganized(context, record, over)
    if not over:
        return  # given away, or lost already and counted then
    back = _backfilled(context, record, over) if context.state.parameters.reorganize else over
    record.unclaim({placeholder.id for placeholder in back})
    for placeholder in back:
        claims.end_placeholder(context, placeholder)
    record.hand_backs += 1
    record.timers.pop(TimerKind.RECLAIM, None)  # a pause that began before must not end with taking back at once
    record.reclaim_with_room = False
    if not is_staged(record) and all(claim.cluster is not None for claim in record.claims):
        _await_files(context, record, len(over))
        return
    waiting = sorted({p.cluster for p in context.state.placeholders_of(record)})
    missing = f", still waiting on {', '.join(waiting)}" if waiting else ""
    taken = f" ({len(over) - len(back)} of them to waiting jobs)" if len(back) < len(over) else ""
    claims.claim_failed(
        context, record, f"{len(over)} held processors were handed back after their life cycle{taken}{missing}"
    )


def _await_files(context: Context, record: JobRecord, back: int) -> None:
    """Claim what was handed back when the files that it would have waited for are nearly there: no claim has failed."""
    pause = backoff(record, context.state.parameters)
    for claim in record.claims:
        if claim.missing > 0:
            claim.postponed = context.now + pause
    record.last_trouble = f"{back} held processors were handed back after their life cycle: files are still on the way"
    watch(context, record)


def _extended(context: Context, record: JobRecord) -> bool:
    """Extend a claim's life once, when placeholders are starting because another job has given way."""
    more = grace(context.state.parameters)
    if record.life_extended or more <= 0.0:
        return False
    begun = (p.held_at if p.held else p.started_at for p in context.state.placeholders_of(record) if p.state in TAKEN)
    if not any(at is not None and context.now - at < more for at in begun):
        return False
    record.life_extended = True
    context.timetable.for_job(record, TimerKind.LIFE, context.now + more)
    return True


def _backfilled(context: Context, giver: JobRecord, over: list[PlaceholderRecord]) -> list[PlaceholderRecord]:
    """Give placeholders to be handed back to waiting jobs that can start with them; return the rest."""
    if not context.state.parameters.reuse:
        return over
    held = [placeholder for placeholder in over if placeholder.held]
    rest = [placeholder for placeholder in over if not placeholder.held]
    return [*rest, *reassign_to_waiting(context, giver, held)]


def yield_to_priority(context: Context, placeholder: PlaceholderRecord) -> None:
    """Give a placeholder just held to a job of higher priority that waits for the same cluster.

    KOALA's claiming policy (CoreGRID TR-0092) asks for that; an LRM's queue knows nothing of our priorities.
    """
    if not context.state.parameters.reorganize or not placeholder.held:
        return
    record = context.state.jobs[placeholder.job_id]
    pending = _pending(context, record, {placeholder.cluster}, above=record.job.priority)
    ahead = [one for one in pending if _suits(context, placeholder, one, both=True)]
    if ahead:
        first = min(ahead, key=lambda one: position_of(context.state.jobs[one.job_id]))
        _exchange(context, placeholder, first)


def take_from_lower(context: Context, event: BatchSubmitted) -> None:
    """Store a submission's ids; give its job placeholders that jobs of lower priority hold there.

    Where enough processors are idle, it gets its own.
    """
    batch_submitted(context, event)
    batch = context.state.batches.get(event.batch)
    taker = None if batch is None else context.state.jobs.get(batch.job_id)
    if batch is None or taker is None or taker.state is not JobState.CLAIMING or not is_staged(taker):
        return
    if context.state.clusters[batch.cluster].load_free >= 0:
        return
    for placeholder in list(context.state.placeholders.on(batch.cluster).values()):
        owner = context.state.jobs[placeholder.job_id]
        if owner.state is JobState.CLAIMING and owner.job.priority < taker.job.priority:
            yield_to_priority(context, placeholder)
            getter = context.state.jobs[placeholder.job_id]
            claims.start_life(context, getter)
            claims.check_complete(context, getter)


def reassign_to_claiming(
    context: Context, giver: JobRecord, spares: list[PlaceholderRecord]
) -> list[PlaceholderRecord]:
    """Give a completed job's placeholders to claiming jobs of its user that start with them; return the rest.

    The takers' pending placeholders are ended: the giver needs no processors any more.
    """
    left = {placeholder.id: placeholder for placeholder in spares}
    for taker, pairs in _completions(context, giver, left, both=False):
        for held, pending in pairs:
            del left[held.id]
            _replace_in_claims(taker, pending.id, held.id)
            giver.unclaim({held.id})
            context.ledger.reassign(held, taker, pending.component)
            claims.end_placeholder(context, pending)
        claims.check_complete(context, taker)
    return list(left.values())


def _reorganized(context: Context, giver: JobRecord, over: list[PlaceholderRecord]) -> list[PlaceholderRecord]:
    """Exchange placeholders whose life is over (reorganization); return the rest."""
    left = {placeholder.id: placeholder for placeholder in over if placeholder.held}
    unfit = [placeholder for placeholder in over if not placeholder.held]
    takers: dict[str, int] = {}
    for taker, pairs in _completions(context, giver, left, both=True):
        for held, pending in pairs:
            del left[held.id]
            _exchange(context, held, pending)
        takers[taker.job.id] = len(pairs)
        claims.check_complete(context, taker)
    if takers:
        given = ", ".join(f"{count} to job {name}" for name, count in takers.items())
        record_of = "held processors were exchanged for places in the queue after their life cycle"
        giver.last_trouble = f"{sum(takers.values())} {record_of} ({given})"
    return [*unfit, *left.values()]


def _completions(
    context: Context, giver: JobRecord, left: dict[PlaceholderId, PlaceholderRecord], *, both: bool
) -> Iterator[tuple[JobRecord, list[Exchange]]]:
    """Yield jobs that can start with the remaining placeholders, in order, with the exchanges needed."""
    awaited: dict[JobId, list[PlaceholderRecord]] = {}
    for one in _pending(context, giver, {placeholder.cluster for placeholder in left.values()}):
        awaited.setdefault(one.job_id, []).append(one)
    for taker in sorted((context.state.jobs[job_id] for job_id in awaited), key=position_of):
        pending = awaited[taker.job.id]
        if any(claim.cluster is None or claim.missing for claim in taker.claims) or not is_staged(taker):
            continue
        own = {one.id for one in pending}
        others = [one for one in context.state.placeholders_of(taker) if one.id not in own]
        if not all(one.held and one.lasts(context.now, taker.job.walltime) for one in others):
            continue
        pairs = _paired(context, left.values(), pending, both=both)
        if len(pairs) == len(pending):
            yield taker, pairs


def _pending(
    context: Context, giver: JobRecord, clusters: set[ClusterName], *, above: int | None = None
) -> Iterator[PlaceholderRecord]:
    """Yield queued placeholders, on some clusters, of the user's other claiming jobs.

    With ``above``, only those of jobs of a higher priority than that. Nearly every submission belongs to one job, so
    its placeholders are looked at only when that job counts.
    """
    state = context.state

    def counts(owner: JobRecord) -> bool:
        ours = owner is not giver and owner.job.user == giver.job.user and owner.state is JobState.CLAIMING
        return ours and (above is None or owner.job.priority > above)

    for name in sorted(clusters):
        for key in list(state.clusters[name].pending):
            batch = state.batches[key]
            if batch.lrm_ids is None:  # an answer may yet come that it was refused
                continue
            if not batch.mixed and not counts(state.jobs[batch.job_id]):
                continue
            for index in range(1, batch.count + 1):
                placeholder = state.placeholders.get(PlaceholderId(batch=key, index=index))
                if placeholder is None or placeholder.state is not PlaceholderState.QUEUED:
                    continue
                if counts(state.jobs[placeholder.job_id]):
                    yield placeholder


def _paired(
    context: Context, held: Iterable[PlaceholderRecord], pending: Iterable[PlaceholderRecord], *, both: bool
) -> list[Exchange]:
    """Return pairs of held and pending placeholders that can be exchanged."""
    pairs = []
    free = list(held)
    for one in pending:
        number = next((n for n, placeholder in enumerate(free) if _suits(context, placeholder, one, both=both)), None)
        if number is not None:
            pairs.append((free.pop(number), one))
    return pairs


def _suits(context: Context, held: PlaceholderRecord, pending: PlaceholderRecord, *, both: bool) -> bool:
    """Return whether a held placeholder lasts for the pending one's job, and (``both``) vice versa."""
    state = context.state
    taker = state.jobs[pending.job_id].job
    if held.cluster != pending.cluster or not held.lasts(context.now, taker.walltime):
        return False
    if state.is_reserved(held) or state.is_reserved(pending):
        return False
    if state.slot_of(held) != state.slot_of(pending):
        return False
    return not both or pending.walltime >= state.jobs[held.job_id].job.walltime + context.margin()


def _exchange(context: Context, held: PlaceholderRecord, pending: PlaceholderRecord) -> None:
    """Swap two placeholders of a cluster between their jobs: a processor for a place in the queue."""
    state = context.state
    giver, taker = state.jobs[held.job_id], state.jobs[pending.job_id]
    _replace_in_claims(giver, held.id, pending.id)
    _replace_in_claims(taker, pending.id, held.id)
    context.ledger.exchange(held, pending)
    giver.exchanges += 1


def _replace_in_claims(record: JobRecord, old: PlaceholderId, new: PlaceholderId) -> None:
    for claim in record.claims:
        if old in claim.placeholders:
            claim.placeholders[claim.placeholders.index(old)] = new
            return


HANDLERS: Handlers = {BatchSubmitted: take_from_lower}
JOB_TIMERS: JobTimers = {TimerKind.LIFE: life_timer}

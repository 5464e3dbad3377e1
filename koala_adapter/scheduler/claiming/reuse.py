# SPDX-License-Identifier: Apache-2.0
"""Placeholders handed from one job to the next without a new submission: no queueing in any LRM in between.

What a completed job held, and what is about to be handed back because others are missing, is of use to a job of the
placement queue that fits into it entirely: the backfill that the authors of VJM added to it later (Xing 2009).
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from koala_adapter.model import JobKind
from koala_adapter.scheduler.claiming.claims import check_complete
from koala_adapter.scheduler.claiming.queue import ANY_CLUSTER, position_of
from koala_adapter.scheduler.claiming.waiting import leave_queue
from koala_adapter.scheduler.outcome import JobState
from koala_adapter.scheduler.roster import initial_size

if TYPE_CHECKING:
    from koala_adapter.model import ClusterName, PlaceholderId
    from koala_adapter.scheduler.claiming.queue import Lane
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.records import Claim, JobRecord, PlaceholderRecord

    Free = dict[ClusterName, list[PlaceholderRecord]]
    Fit = list[tuple[Claim, list[PlaceholderRecord]]]

LOOK = 100
"""How many waiting jobs are looked at, at most, when placeholders can be handed on."""


def reassign_to_waiting(context: Context, giver: JobRecord, spares: list[PlaceholderRecord]) -> list[PlaceholderRecord]:
    """Give held processors to jobs of the queue that fit into them entirely; return what is left.

    No new queueing in any LRM: a placeholder can be handed from one job to another of the same user (DESIGN section 6).
    Room that is kept for a guarded job is not given to jobs behind it.
    """
    state = context.state
    free: Free = {}
    for placeholder in spares:
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
    """Return how many are free on each cluster, and for a component without one, the most on any."""
    sizes = {name: len(some) for name, some in free.items()}
    sizes[ANY_CLUSTER] = max(sizes.values(), default=0)
    return sizes


def _start_with(context: Context, taker: JobRecord, fit: Fit, free: Free) -> None:
    context.ledger.move_job(taker, JobState.CLAIMING)
    taker.last_trouble = ""
    for claim, chosen in fit:
        _reassign_to(context, taker, claim, chosen)
        given = {placeholder.id for placeholder in chosen}
        free[claim.cluster or chosen[0].cluster] = [p for p in free[chosen[0].cluster] if p.id not in given]
    check_complete(context, taker)


def _fit(context: Context, record: JobRecord, free: Free) -> Fit | None:
    """Choose placeholders for all components of a job among the free ones; None when they do not suffice."""
    used: set[PlaceholderId] = set()
    fit: Fit = []
    for component, claim in record.components():
        names = [component.cluster] if component.cluster is not None else sorted(free, key=lambda n: -len(free[n]))
        size = {JobKind.MOLDABLE: component.maximum, JobKind.MALLEABLE: initial_size(component)}.get(
            record.job.kind, component.minimum
        )
        for name in names:
            lasting = [p for p in free.get(name, []) if p.id not in used and p.lasts(context.now, record.job.walltime)]
            if len(lasting) >= component.minimum and name not in claim.excluded:
                chosen = lasting[:size]
                used.update(p.id for p in chosen)
                fit.append((claim, chosen))
                break
        else:
            return None
    return fit


def _reassign_to(context: Context, record: JobRecord, claim: Claim, chosen: list[PlaceholderRecord]) -> None:
    claim.cluster, claim.processors = chosen[0].cluster, len(chosen)
    claim.placeholders = [placeholder.id for placeholder in chosen]
    context.state.jobs[chosen[0].job_id].unclaim(set(claim.placeholders))
    for placeholder in chosen:
        context.ledger.reassign(placeholder, record, claim.component)

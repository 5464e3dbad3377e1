# SPDX-License-Identifier: Apache-2.0
"""Applications that want to give processors up of their own will, and change together when they do."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from koala_adapter.scheduler.actions import GrantProcessors
from koala_adapter.scheduler.changes import ChangePhase
from koala_adapter.scheduler.malleable.shrinking import await_release
from koala_adapter.scheduler.malleable.steps import new_change
from koala_adapter.scheduler.outcome import JobState

if TYPE_CHECKING:
    from koala_adapter.scheduler import events as ev
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.records import JobRecord

REASON = "the application gives them back"


def less_requested(context: Context, event: ev.LessRequested) -> None:
    """Begin to take back what an application does not need: the processes that came last, on each of their clusters."""
    record = context.state.jobs.get(event.job_id)
    if record is None or event.component not in {one.name for one in record.job.components}:
        return
    problem = _problem(record, event)
    first = 0
    if not problem:
        for number, count in _pieces(record, event.component, event.processors):
            change = new_change(context, -count, ChangePhase.ASKED)
            change.reason, change.agreement, change.asker, change.wish = REASON, event.agreement, event.rank, count
            first = first or change.number
            context.ledger.begin_change(record.claims[number], change, ChangePhase.ASKED)
            await_release(context, record, number, change, count)
        context.roster.update(record)
    context.effects.add(
        GrantProcessors(
            job_id=record.job.id,
            component=event.component,
            request=0,
            number=first,
            processors=0 if problem else event.processors,
            reason=problem,
            agreement=event.agreement,
            rank=event.rank,
        )
    )


def _problem(record: JobRecord, event: ev.LessRequested) -> str:
    claims = [claim for claim in record.claims if claim.component == event.component]
    if not record.job.changes_size(event.component):
        return "this component keeps its size"
    if record.state is not JobState.RUNNING or record.ends:
        return "the job does not run"
    if any(claim.change is not None for claim in claims):
        return "another change is under way"
    left = sum(claim.processors for claim in claims) - event.processors
    minimum = record.job.component(event.component).minimum
    return f"{left} processors are below its minimum of {minimum}" if left < minimum else ""


def _pieces(record: JobRecord, component: str, count: int) -> list[tuple[int, int]]:
    """Return how many processors each claim gives up, by its index."""
    by_placeholder = {id_: number for number, claim in enumerate(record.claims) for id_ in claim.placeholders}
    ranks = [one for one in record.ranks if one.component == component and one.rank not in record.departed]
    last = [one.placeholder for one in ranks[len(ranks) - count :]]
    return sorted(Counter(by_placeholder[id_] for id_ in last if id_ in by_placeholder).items())

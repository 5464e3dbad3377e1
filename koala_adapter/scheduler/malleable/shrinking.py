# SPDX-License-Identifier: Apache-2.0
"""Shrinking a running job: the application gives up processors first, then their placeholders go back to the LRM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import EndReason
from koala_adapter.scheduler.changes import ChangePhase
from koala_adapter.scheduler.claiming.lifecycle import end_placeholder
from koala_adapter.scheduler.malleable.steps import abandon_after, settle, wanted_again
from koala_adapter.scheduler.outcome import JobOutcome, JobState, PlaceholderState
from koala_adapter.scheduler.roster import bounds

if TYPE_CHECKING:
    from koala_adapter.model import PlaceholderId
    from koala_adapter.scheduler import events as ev
    from koala_adapter.scheduler.changes import Change
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.records import JobRecord


def await_release(context: Context, record: JobRecord, number: int, change: Change, accepted: int) -> None:
    """Wait until an application has given up the processors that it agreed to."""
    claim = record.claims[number]
    accepted = max(0, min(accepted, claim.processors - bounds(record, claim)[0]))
    if accepted == 0:
        context.ledger.end_change(claim)
        context.roster.update(record)
        settle(context, record, number, change, 0)
        return
    context.ledger.advance_change(claim, ChangePhase.RELEASING, accepted=accepted)
    context.roster.update(record)  # it may be less, or more, than was asked for: what others can give depends on it
    abandon_after(context, record, change, _patience(context, record, number))


def _patience(context: Context, record: JobRecord, number: int) -> float:
    """Return how long a release is waited for: processes that change together have their own time to meet."""
    timeout = context.state.parameters.release_timeout
    component = record.job.component(record.claims[number].component)
    return max(timeout, 3.0 * component.point_patience) if record.job.adapts(component.name) else timeout


def processors_released(context: Context, event: ev.ProcessorsReleased) -> None:
    """Take back what an application no longer uses, as far as its minimum allows."""
    record = context.state.jobs.get(event.job_id)
    if record is None or record.state is not JobState.RUNNING:
        return
    started = {rank.placeholder for rank in record.ranks if rank.rank in record.started}
    released = {id_ for id_ in event.placeholders if id_ in started and _in_use(context, id_)}
    for number, claim in enumerate(record.claims):
        spare = claim.processors - bounds(record, claim)[0]
        going = [id_ for id_ in claim.placeholders if id_ in released][:spare]
        if going:
            depart(context, record, number, going)
    if record.ends and len(record.ends) + len(record.departed) == len(record.ranks):
        over = JobOutcome(state=JobState.COMPLETED, reason=EndReason.EXITED, exit_code=0)
        context.outcomes.append((record, over))


def _in_use(context: Context, id_: PlaceholderId) -> bool:
    """Tell whether a placeholder is an application's, and not on its way out."""
    placeholder = context.state.placeholders.get(id_)
    return placeholder is not None and placeholder.state is PlaceholderState.LAUNCHED


def depart(
    context: Context, record: JobRecord, number: int, going: list[PlaceholderId], why: str = "", *, gone: bool = False
) -> None:
    """Take processors, with the processes that had them, out of a running job.

    ``why``: for people, when they were not asked for. ``gone``: somebody else sees to the end of their placeholders.
    """
    state, claim = context.state, record.claims[number]
    placeholders = [state.placeholders[id_] for id_ in going]
    known = (*claim.lrm_ids, *(one.lrm_id for one in placeholders if one.lrm_id))
    claim.lrm_ids = tuple(dict.fromkeys(known))
    leaving = set(going)
    for rank in record.ranks:
        if rank.placeholder in leaving:
            record.departed.add(rank.rank)
            record.ends.pop(rank.rank, None)
    record.unclaim(leaving)
    claim.processors -= len(going)
    wanted_again(context, record, claim.component)
    for placeholder in () if gone else placeholders:
        end_placeholder(context, placeholder)
    context.scan_wanted = True
    change = claim.change
    asked = change is not None and change.phase is ChangePhase.RELEASING
    if not asked:
        record.note_size(claim, claim.processors + len(going), why or "the application gave them back", context.now)
    if change is not None and asked:
        change.done += len(going)
        spare = claim.processors - bounds(record, claim)[0]
        if change.done >= change.accepted or spare == 0:
            release_over(context, record, number, change)
    context.roster.update(record)


def release_over(context: Context, record: JobRecord, number: int, change: Change) -> None:
    """Count what was given up, and wait for no more."""
    claim = record.claims[number]
    context.ledger.end_change(claim)
    record.note_size(claim, claim.processors + change.done, change.reason, context.now)
    context.roster.update(record)
    settle(context, record, number, change, -change.done)

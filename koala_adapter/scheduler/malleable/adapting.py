# SPDX-License-Identifier: Apache-2.0
"""Jobs whose processes change together, at one point of their progress: what is known of each such change.

Until all processes stand at the point a change can be given up, and nothing has happened: newcomers are ended again,
nobody leaves. From then on it is carried out, and the loss of a process is the loss of the job, as of a rigid one. When
all have said that they are done, newcomers belong to the job, and those that leave may end, each by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from koala_adapter.model import EndReason, Launcher
from koala_adapter.scheduler.changes import ChangePhase
from koala_adapter.scheduler.claiming.lifecycle import end_placeholder
from koala_adapter.scheduler.malleable.growing import announce_withdrawal, check_taken, pause_growth, withdraw
from koala_adapter.scheduler.malleable.jointgrowth import parts_of
from koala_adapter.scheduler.malleable.shrinking import depart, release_over
from koala_adapter.scheduler.malleable.steps import abandon_after, cluster_of
from koala_adapter.scheduler.outcome import JobOutcome, JobState
from koala_adapter.scheduler.roster import bounds

if TYPE_CHECKING:
    from collections.abc import Collection

    from koala_adapter.model import JobId, PlaceholderId
    from koala_adapter.scheduler import events as ev
    from koala_adapter.scheduler.changes import Change
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.malleable.jointgrowth import Part
    from koala_adapter.scheduler.records import JobRecord, PlaceholderRecord


_MOVING = (ChangePhase.TAKING, ChangePhase.RELEASING)
_UNTIL_MADE = (*_MOVING, ChangePhase.PROMISED, ChangePhase.GATHERING)


class _Found(NamedTuple):
    record: JobRecord
    claim: int
    change: Change


def point_reached(context: Context, event: ev.PointReached) -> None:
    """Note that a change is being carried out: it is not given up any more."""
    found = _find(context, event.job_id, event.number)
    if found is None or found.change.adaptation:
        return
    record, number, change = found
    if change.phase is ChangePhase.RELEASING:
        claim = record.claims[number]
        spare = claim.processors - bounds(record, claim)[0]
        mine = {rank.rank for rank in record.ranks if rank.placeholder in claim.placeholders}
        if not event.leaving or len(event.leaving) > spare or not mine.issuperset(event.leaving):
            _give_up(context, found, "the processes that were to leave are not its own any more")
            return
        change.ranks, change.accepted = list(event.leaving), change.done + len(event.leaving)
        context.roster.update(record)
    for part in parts_of(record, change):
        part.change.adaptation, part.change.point, part.change.due = event.adaptation, event.point, None


def change_made(context: Context, event: ev.ChangeMade) -> None:
    """Take newcomers into the job; let those that leave end."""
    found = _find(context, event.job_id, event.number)
    if found is None or not found.change.adaptation or found.change.made:
        return
    record, number, change = found
    parts = parts_of(record, change)
    for part in parts:
        part.change.made = True
    if change.phase is ChangePhase.TAKING:
        record.started.update(rank for part in parts for rank in part.change.ranks)
        check_taken(context, record)
        return
    gone = [rank for rank in change.ranks if rank in record.ends]  # before anybody could tell that all were done
    if gone:
        depart(context, record, number, _placeholders(record, gone))
    abandon_after(context, record, change, context.state.parameters.release_timeout)


def change_given_up(context: Context, event: ev.ChangeGivenUp) -> None:
    """Undo a change that the processes could not be brought to; one that is being carried out goes on."""
    found = _find(context, event.job_id, event.number, _UNTIL_MADE)
    if found is not None and not found.change.adaptation:
        _give_up(context, found, event.reason)


def newcomer(record: JobRecord, rank: int) -> bool:
    """Tell whether a process was started for a growth that is not made."""
    if not record.job.adapts(record.ranks[rank].component):
        return False
    return any(
        c.change is not None and c.change.phase is ChangePhase.TAKING and rank in c.change.ranks for c in record.claims
    )


def ends_alone(record: JobRecord, rank: int) -> bool:
    """Tell whether a process may end, or be lost, without the others: it is new, or was taken out."""
    return _of_rank(record, rank) is not None


def process_over(context: Context, record: JobRecord, rank: int, why: str) -> bool:
    """Take the end of a process that may end without the others: True when it is one."""
    found = _of_rank(record, rank)
    if found is None:
        return False
    if found.change.phase is ChangePhase.RELEASING:
        depart(context, record, found.claim, _placeholders(record, [rank]))
        check_all_over(context, record)
    else:
        _give_up(context, found, f"the new process {rank} {why}")
    return True


def process_lost(context: Context, record: JobRecord, rank: int, placeholder: PlaceholderRecord) -> bool:
    """Take the loss of such a process with its placeholder, to whose end somebody else sees: True when it is one."""
    found = _of_rank(record, rank)
    if found is None:
        return False
    if found.change.phase is ChangePhase.RELEASING:
        depart(context, record, found.claim, [placeholder.id], gone=True)
        check_all_over(context, record)
    else:
        pause_growth(context, cluster_of(context, record, found.claim))
        _give_up(context, found, f"the placeholder of the new process {rank} was lost", gone=placeholder.id)
    return True


def leavers_overdue(context: Context, record: JobRecord, number: int, change: Change) -> None:
    """End the placeholders of processes that were let go and have not ended."""
    left = [rank for rank in change.ranks if rank not in record.departed]
    record.last_trouble = f"processes that were taken out did not end: {', '.join(map(str, left))}"
    depart(context, record, number, _placeholders(record, left))
    check_all_over(context, record)


def check_all_over(context: Context, record: JobRecord) -> None:
    """Complete a job all of whose other processes, and launcher, have ended well."""
    if record.state is not JobState.RUNNING or not record.ends:
        return
    if record.job.launcher is Launcher.MPI:
        over = record.launcher_over and not record.ranks_awaited()
    else:
        over = len(record.ends) + len(record.departed) == len(record.ranks)
    if over:
        outcome = JobOutcome(state=JobState.COMPLETED, reason=EndReason.EXITED, exit_code=0)
        context.outcomes.append((record, outcome))


def _give_up(context: Context, found: _Found, reason: str, *, gone: PlaceholderId | None = None) -> None:
    record, number, change = found
    if change.phase is ChangePhase.GATHERING:
        withdraw(context, record, number, reason)
        return
    parts = parts_of(record, change)
    if change.phase is ChangePhase.PROMISED:
        for part in parts:
            context.ledger.end_change(record.claims[part.claim])
            where = cluster_of(context, record, part.claim)
            where.promises = [one for one in where.promises if (one.job_id, one.claim) != (record.job.id, part.claim)]
        context.roster.update(record)
        context.scan_wanted = True
        return
    if change.phase is ChangePhase.TAKING:
        for part in parts:
            _send_newcomers_home(context, record, part, gone)
            context.ledger.end_change(record.claims[part.claim])
        pause_growth(context, cluster_of(context, record, number))
        context.roster.update(record)
        context.scan_wanted = True
        announce_withdrawal(context, record, parts, reason)
        check_all_over(context, record)  # the others may have ended meanwhile
        return
    cluster = cluster_of(context, record, number).name
    record.last_trouble = f"{change.accepted - change.done} processors on {cluster} were not given back: {reason}"
    release_over(context, record, number, change)


def _send_newcomers_home(context: Context, record: JobRecord, part: Part, gone: PlaceholderId | None) -> None:
    claim, change = record.claims[part.claim], part.change
    going = _placeholders(record, change.ranks)
    record.departed.update(change.ranks)
    for rank in change.ranks:
        record.ends.pop(rank, None)
    record.unclaim(set(going))
    claim.processors -= len(going)
    for id_ in going:
        placeholder = context.state.placeholders.get(id_)
        if placeholder is not None and id_ != gone:
            end_placeholder(context, placeholder)


def _placeholders(record: JobRecord, ranks: list[int]) -> list[PlaceholderId]:
    return [record.ranks[rank].placeholder for rank in ranks]


def _find(context: Context, job_id: JobId, number: int, phases: Collection[ChangePhase] = _MOVING) -> _Found | None:
    record = context.state.jobs.get(job_id)
    if record is None or record.state is not JobState.RUNNING:
        return None
    for index, claim in enumerate(record.claims):
        change = claim.change
        if change is not None and change.number == number and change.phase in phases:
            return _Found(record, index, change)
    return None


def _of_rank(record: JobRecord, rank: int) -> _Found | None:
    """Return the change that allows a process to end: it is new and not told of it yet, or it was taken out."""
    if record.state is not JobState.RUNNING or not record.job.adapts(record.ranks[rank].component):
        return None
    for index, claim in enumerate(record.claims):
        change = claim.change
        if change is None or rank not in change.ranks:
            continue
        new = change.phase is ChangePhase.TAKING and not change.adaptation
        let_go = change.phase is ChangePhase.RELEASING and change.made
        if (new or let_go) and rank not in record.departed:
            return _Found(record, index, change)
    return None

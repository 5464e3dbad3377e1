# SPDX-License-Identifier: Apache-2.0
"""Answers of applications to offers and requests; what becomes of changes that take too long, or whose job ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.scheduler.changes import ChangePhase
from koala_adapter.scheduler.jitter import SHORTEST_PAUSE
from koala_adapter.scheduler.malleable.adapting import leavers_overdue
from koala_adapter.scheduler.malleable.growing import (
    NEAR_END,
    announce_withdrawal,
    gather_all,
    pause_growth,
    return_stubs,
    withdraw,
)
from koala_adapter.scheduler.malleable.hysteresis import pause
from koala_adapter.scheduler.malleable.jointgrowth import dispensable, join, parts_of, shared_out
from koala_adapter.scheduler.malleable.places import return_places
from koala_adapter.scheduler.malleable.policies import Direction
from koala_adapter.scheduler.malleable.shrinking import await_release, release_over
from koala_adapter.scheduler.malleable.steps import ask, cluster_of, new_change, settle
from koala_adapter.scheduler.roster import bounds

if TYPE_CHECKING:
    from collections.abc import Collection

    from koala_adapter.scheduler import events as ev
    from koala_adapter.scheduler.changes import Change
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.records import JobRecord


def offer_answered(context: Context, event: ev.OfferAnswered) -> None:
    """Take the answer to a message that still waits for one; any other comes too late."""
    record = context.state.jobs.get(event.job_id)
    if record is None:
        return
    for number, claim in enumerate(record.claims):
        change = claim.change
        if change is not None and change.number == event.number and change.phase is ChangePhase.ASKED:
            if event.trouble:
                record.last_trouble = event.trouble
            if event.memory_declined:
                for part in parts_of(record, change):
                    part.change.memory_mib = 0
            step = cluster_of(context, record, number).step
            if event.lapsed and change.in_step and step is not None:
                step.lapsed = True
            if event.in_the_way and change.processors < 0 and _ask_again(context, record, number, event.in_the_way):
                return
            take_answer(context, record, number, change, event.accepted)
            return


def _ask_again(context: Context, record: JobRecord, number: int, in_the_way: Collection[int]) -> bool:
    """Hand back growths with which an application cannot give processors up, and ask for these anew.

    Who waits for them comes before what is gathered. False, and nothing is done, when none of them is gathered any
    more: the answer was about other sizes than it has by now.
    """
    claim = record.claims[number]
    change, handed_back = claim.change, False
    for index, other in enumerate(record.claims):
        growth = other.change
        named = growth is not None and growth.number in in_the_way and other.component == claim.component
        if growth is not None and named and dispensable(record, growth):
            withdraw(context, record, index, f"with them, too few can be given back on {claim.cluster}")
            handed_back = True
    if change is None or not handed_back:
        return False
    again = new_change(context, change.processors, ChangePhase.ASKED)
    again.in_step, again.reason = change.in_step, change.reason
    context.ledger.end_change(claim)
    ask(context, record, number, again)
    return True


def take_answer(context: Context, record: JobRecord, number: int, change: Change, accepted: int) -> None:
    """Begin what the application agreed to."""
    if change.processors < 0:
        await_release(context, record, number, change, accepted)
        return
    claim, cluster, parts = record.claims[number], cluster_of(context, record, number), parts_of(record, change)
    offered = [part.change.processors for part in parts]
    most = bounds(record, claim)[1] - claim.processors + sum(offered) - change.processors
    accepted = max(0, min(accepted, sum(offered), most))
    for part in parts:
        context.ledger.end_change(record.claims[part.claim])
    shares = shared_out(parts, offered, accepted)
    if len(parts) > len(shares):
        context.scan_wanted = True  # others may have what was kept on those clusters
    join(shares)
    if accepted and record.ends_soon:
        announce_withdrawal(context, record, parts, NEAR_END)
        accepted = 0
    elif accepted and not gather_all(context, record, shares, offered=True):
        announce_withdrawal(context, record, parts, "they are no longer free")
        for part in parts:
            pause_growth(context, cluster_of(context, record, part.claim))
        accepted = 0
    elif not accepted and not change.in_step and not change.agreement:  # its owner wants it to grow, and goes on to
        pause(context, cluster, Direction.GROW, max(SHORTEST_PAUSE, context.state.parameters.scan_interval))
    context.roster.update(record)
    settle(context, record, number, change, accepted)


def drop_changes(context: Context, record: JobRecord) -> None:
    """Undo what is under way for a job that has ended."""
    for number, claim in enumerate(record.claims):
        return_places(context, claim)
        change = claim.change
        if change is None:
            continue
        context.ledger.end_change(claim)
        unreserve(context, record, number, change)
        return_stubs(context, change)
        freed = change.done + claim.processors if change.processors < 0 else 0
        settle(context, record, number, change, -freed)


def unreserve(context: Context, record: JobRecord, number: int, change: Change) -> None:
    """Have others looked at, who may have what was kept for a change."""
    cluster = cluster_of(context, record, number)
    asked_to_grow = change.phase is ChangePhase.ASKED and change.processors > 0
    if asked_to_grow or change.phase is ChangePhase.PROMISED:
        context.scan_wanted = True
    if change.phase is ChangePhase.PROMISED:
        cluster.promises = [one for one in cluster.promises if (one.job_id, one.claim) != (record.job.id, number)]


def change_timer(context: Context, record: JobRecord, number: int | None) -> None:
    """Give up a change of a job that takes too long."""
    change = None if number is None else record.claims[number].change
    if number is None or change is None:
        return
    change.due = None
    if change.phase is ChangePhase.ASKED:
        take_answer(context, record, number, change, 0)
    elif change.phase is ChangePhase.RELEASING and change.made:
        leavers_overdue(context, record, number, change)
    elif change.phase is ChangePhase.RELEASING:
        release_over(context, record, number, change)
    elif change.phase is ChangePhase.GATHERING:
        _pause_where_missing(context, record, change)
        withdraw(context, record, number, "they did not come in time")
    elif change.phase is ChangePhase.PROMISED:
        for part in parts_of(record, change):
            part.change.shrunk_others = True  # what is free by now has to do
            part.change.due = None
        context.scan_wanted = True


def _pause_where_missing(context: Context, record: JobRecord, change: Change) -> None:
    """Offer nothing for a while on the clusters whose placeholders did not come."""
    for part in parts_of(record, change):
        stubs = [context.state.placeholders.get(id_) for id_ in part.change.stubs]
        if not all(stub is not None and stub.held for stub in stubs):
            pause_growth(context, cluster_of(context, record, part.claim))

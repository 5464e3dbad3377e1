# SPDX-License-Identifier: Apache-2.0
"""The processes of an adaptive component, and the changes that are under way, from the scheduler's records. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.dynaco.adaptation import Membership, WantedChange
from koala_adapter.dynaco.notes import Place
from koala_adapter.dynaco.plan import shrinkage
from koala_adapter.model import Launcher
from koala_adapter.scheduler.changes import ChangePhase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.scheduler.actions import Rank
    from koala_adapter.scheduler.changes import Change
    from koala_adapter.scheduler.records import Claim, JobRecord


def signature(record: JobRecord) -> object:
    """Return what tells whether anything has happened to a job's sizes; cheap, as it is asked after each event."""
    changes = tuple(
        None
        if change is None
        else (change.number, change.phase, change.accepted, change.done, change.adaptation, change.made)
        for change in (claim.change for claim in record.claims)
    )
    return (record.state, len(record.ranks), len(record.departed), len(record.ends), changes)


def membership_of(record: JobRecord, component: str) -> Membership:
    """Return the processes of one component of a job, and what the scheduler wants of them."""
    ranks = [one for one in record.ranks if one.component == component and one.rank not in record.departed]
    claims = [claim for claim in record.claims if claim.component == component]
    joining = {rank for _, change in _under_way(claims, ChangePhase.TAKING) for rank in change.ranks}
    let_go = {rank for _, change in _under_way(claims, ChangePhase.RELEASING) if change.made for rank in change.ranks}
    members = [one for one in ranks if one.rank not in joining and one.rank not in let_go]
    clusters = {claim.component: claim.cluster or "" for claim in reversed(claims)}
    head = next((one for one in record.ranks if record.job.is_head(one.component)), None)
    limits = record.job.component(component)
    return Membership(
        members=tuple(one.rank for one in members),
        places={one.rank: _place(one, clusters) for one in ranks},
        wanted=tuple(
            _wanted(claim, change, claims, members)
            for claim, change in _under_way(claims, *_MOVING)
            if not change.lead  # it is a part of another one
        ),
        ended=frozenset(one.rank for one in ranks if one.rank in record.ends),
        minimum=limits.minimum,
        maximum=limits.maximum,
        head="" if head is None else head.address or head.host,
        first_only=record.job.launcher is Launcher.MPI,
    )


_MOVING = (ChangePhase.TAKING, ChangePhase.RELEASING)


def able_to_leave(members: Sequence[Rank], cluster: str) -> list[int]:
    """Return which of the processes of a component may leave a cluster: the first one bears the others."""
    return [one.rank for one in members[1:] if one.cluster == cluster]


def _under_way(claims: Sequence[Claim], *phases: ChangePhase) -> list[tuple[Claim, Change]]:
    return [(claim, claim.change) for claim in claims if claim.change is not None and claim.change.phase in phases]


def _wanted(claim: Claim, change: Change, claims: Sequence[Claim], members: Sequence[Rank]) -> WantedChange:
    joining: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    if change.phase is ChangePhase.TAKING:
        taken = [one for _, one in _under_way(claims, ChangePhase.TAKING) if change.number in {one.number, one.lead}]
        joining = tuple(rank for one in sorted(taken, key=lambda one: one.number) for rank in one.ranks)
    elif change.adaptation:
        leaving = tuple(change.ranks)
    else:
        able = able_to_leave(members, claim.cluster or "")
        leaving = tuple(sorted(step.rank for step in shrinkage(able, change.accepted - change.done)))
    return WantedChange(
        number=change.number,
        joining=joining,
        leaving=leaving,
        reason=change.reason,
        adaptation=change.adaptation,
        point=change.point,
        made=change.made,
    )


def _place(rank: Rank, clusters: dict[str, str]) -> Place:
    return Place(
        rank=rank.rank, cluster=rank.cluster or clusters.get(rank.component, ""), address=rank.address or rank.host
    )

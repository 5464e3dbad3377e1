# SPDX-License-Identifier: Apache-2.0
"""The notes by which processes learn who the members are: at the beginning, and with each change. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.dynaco.notes import listed, note

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from koala_adapter.dynaco.adaptation import Membership, WantedChange
    from koala_adapter.dynaco.notes import Note


def after(membership: Membership, wanted: WantedChange) -> tuple[int, ...]:
    """Return the members after a change, in the order of their positions."""
    return (*(rank for rank in membership.members if rank not in wanted.leaving), *wanted.joining)


def welcome_note(membership: Membership, contacts: Mapping[int, str], rank: int) -> Note:
    """Return what a first member is told when all of them have come."""
    return note(
        "welcome",
        rank=rank,
        size=len(membership.members),
        members=_listed(membership, membership.members, contacts),
        minimum=membership.minimum,
        maximum=membership.maximum,
        head=_head(membership),
    )


def change_note(membership: Membership, wanted: WantedChange, contacts: Mapping[int, str], rank: int) -> Note:
    """Return what each process is told of a change, for which all stand at the point."""
    members = after(membership, wanted)
    return note(
        "change",
        change=wanted.adaptation,
        at=wanted.point,
        size=len(members),
        members=_listed(membership, members, contacts),
        old=",".join(map(str, membership.members)),
        leaving=_listed(membership, wanted.leaving, contacts),
        rank=rank,
        minimum=membership.minimum,
        maximum=membership.maximum,
        head=_head(membership),
        reason=wanted.reason,
    )


def _listed(membership: Membership, ranks: Iterable[int], contacts: Mapping[int, str]) -> str:
    return listed(replace(membership.places[rank], contact=contacts.get(rank, "")) for rank in ranks)


def _head(membership: Membership) -> str:
    return membership.head or membership.places[membership.members[0]].address

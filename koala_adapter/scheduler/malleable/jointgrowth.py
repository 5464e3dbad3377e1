# SPDX-License-Identifier: Apache-2.0
"""One wish of an application that is met on several clusters: as many changes as clusters, which are one to all others.

Each claim has its own part of the growth, so that what is counted on its cluster is right. The parts are offered,
gathered, taken in and given up together, whatever becomes of one of them: the application knows of one agreement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from koala_adapter.scheduler.changes import ChangePhase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from koala_adapter.scheduler.changes import Change
    from koala_adapter.scheduler.records import JobRecord


class Part(NamedTuple):
    """The part of a growth that one claim has."""

    claim: int
    """Its index."""
    change: Change


class Share(NamedTuple):
    """Processors that a part is to have."""

    claim: int
    change: Change
    processors: int


def name_of(change: Change) -> int:
    """Return the number by which a change is known, also to the application: that of the first of its parts."""
    return change.lead or change.number


def parts_of(record: JobRecord, change: Change) -> list[Part]:
    """Return all parts of a change that is under way, the one that it is known by first; most have only one."""
    name = name_of(change)
    found = [
        Part(number, claim.change)
        for number, claim in enumerate(record.claims)
        if claim.change is not None and name_of(claim.change) == name
    ]
    return sorted(found, key=lambda part: part.change.number)


def dispensable(record: JobRecord, change: Change) -> bool:
    """Tell whether a change is a growth that can be handed back: it is gathered, and nobody was shrunk for it."""
    parts = (part.change for part in parts_of(record, change))
    return all(one.phase is ChangePhase.GATHERING and not one.shrunk_others for one in parts)


def shared_out(parts: Iterable[Part], most: Iterable[int], wanted: int) -> list[Share]:
    """Return how many of ``wanted`` processors each part has, the first ones as many as they can; none has 0."""
    shares = []
    for part, able in zip(parts, most, strict=True):
        count = min(able, wanted)
        if count > 0:
            shares.append(Share(*part, count))
            wanted -= count
    return shares


def join(shares: Sequence[Share]) -> int:
    """Make the changes of some shares parts of one, known by the first; return by how many processors it grows."""
    for share in shares:
        share.change.lead = 0 if share is shares[0] else shares[0].change.number
    return sum(share.processors for share in shares)

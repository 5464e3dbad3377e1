# SPDX-License-Identifier: Apache-2.0
"""Flexible components that were split: what each claim of a job is for, and pieces made one again.

KOALA's flexible requests (PAPERS section 1.2) leave the sizes of the pieces to the scheduler; so a piece that came to
nothing need not be placed again as it was.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koala_adapter.model import Component
    from koala_adapter.scheduler.records import Claim, JobRecord


def join_pieces(record: JobRecord, claims: list[Claim]) -> None:
    """Make one claim of those among ``claims`` that are pieces of the same component; none may hold anything.

    What was joined has no placement any more.
    """
    joined = {id(claim) for claim in claims}
    kept: list[Claim] = []
    whole: dict[str, Claim] = {}
    for claim in record.claims:
        first = whole.setdefault(claim.component, claim) if id(claim) in joined else claim
        if first is claim:
            kept.append(claim)
        else:
            first.piece = (first.piece or 0) + (claim.piece or 0)
            first.cluster, first.processors = None, 0
            first.excluded.update(claim.excluded)
            first.lrm_ids += claim.lrm_ids
    for claim in whole.values():
        if claim.piece == record.job.component(claim.component).minimum:
            claim.piece = None
    record.claims = kept


def sized(component: Component, claim: Claim) -> Component:
    """Return a component in the size that a claim for it has."""
    return component if claim.piece is None else replace(component, minimum=claim.piece, maximum=claim.piece)

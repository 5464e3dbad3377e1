# SPDX-License-Identifier: Apache-2.0
"""What a listing of an LRM tells of placeholders of ours that it has handed on to another one. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.scheduler.events import Move, MovesSeen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.model import ClusterName, LrmJob
    from koala_adapter.scheduler.records import State


def new_moves(state: State, cluster: ClusterName, listing: Iterable[LrmJob], *, now: float) -> MovesSeen | None:
    """Return where a listing shows placeholders to be that were moved; None when that is known already."""
    places = {job.id: job.elsewhere for job in listing if job.elsewhere}
    ours = [one for one in state.placeholders.on(cluster).values() if one.lrm_id]
    seen = {one.id: places.get(one.lrm_id, "") for one in ours if one.lrm_id is not None}
    if all(seen[one.id] == one.elsewhere for one in ours):
        return None
    moves = tuple(Move(placeholder=id_, elsewhere=place) for id_, place in seen.items() if place)
    return MovesSeen(time=now, cluster=cluster, moves=moves)

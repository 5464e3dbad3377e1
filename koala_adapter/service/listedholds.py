# SPDX-License-Identifier: Apache-2.0
"""What a listing of an LRM tells of the holds in which placeholders of ours are. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import LrmJobState
from koala_adapter.scheduler.events import Hold, HoldsSeen
from koala_adapter.service.reconciliation import end_reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.model import ClusterName, LrmJob
    from koala_adapter.scheduler.records import State


def new_holds(
    state: State, cluster: ClusterName, listing: Iterable[LrmJob], *, now: float, told: bool
) -> HoldsSeen | None:
    """Return what a listing shows of holds; None when that is known already.

    ``told``: the listing tells whose holds they are; else what was told before still holds.
    """
    held = {job.id: job for job in listing if job.state is LrmJobState.HELD and end_reason(job) is None}
    waiting = [p for p in state.placeholders.on(cluster).values() if p.waiting]
    found = [(one, held[one.lrm_id]) for one in waiting if one.lrm_id is not None and one.lrm_id in held]
    seen = tuple(
        Hold(
            placeholder=one.id,
            holder=job.hold if told else one.holder,
            reason="" if job.reason == job.state.value else job.reason,
        )
        for one, job in found
    )
    known = tuple(
        Hold(placeholder=one.id, holder=one.holder, reason=one.hold_reason)
        for one in waiting
        if one.on_hold_since is not None
    )
    return None if seen == known else HoldsSeen(time=now, cluster=cluster, holds=seen)

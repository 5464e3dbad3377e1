# SPDX-License-Identifier: Apache-2.0
"""Growths that are given up because jobs of others wait in the same queue: their stubs would stand in the way there.

An application whose stubs wait is in the middle of a change, so that it cannot be shrunk, either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.scheduler.changes import ChangePhase
from koala_adapter.scheduler.malleable.growing import withdraw
from koala_adapter.scheduler.malleable.others import others_lack

if TYPE_CHECKING:
    from koala_adapter.scheduler.changes import Change
    from koala_adapter.scheduler.clusterrecord import ClusterRecord
    from koala_adapter.scheduler.context import Context


def yield_to_others(context: Context, cluster: ClusterRecord) -> None:
    """Withdraw each growth on a cluster that waits for processors which others lack, unless its application insists."""
    if not cluster.gathering or not others_lack(context, cluster):
        return
    for member in list(context.roster.on(cluster.name)):
        record = context.state.jobs[member.job_id]
        change = record.claims[member.claim].change
        if change is not None and _waits_in_queue(context, change):
            withdraw(context, record, member.claim, "jobs of others wait for them")


def _waits_in_queue(context: Context, change: Change) -> bool:
    """Tell whether stubs of a growth wait for which no running job has been shrunk."""
    if change.phase is not ChangePhase.GATHERING or change.shrunk_others:
        return False
    stubs = (context.state.placeholders.get(id_) for id_ in change.stubs)
    return any(stub is not None and stub.waiting for stub in stubs)

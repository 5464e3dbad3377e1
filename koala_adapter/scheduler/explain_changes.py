# SPDX-License-Identifier: Apache-2.0
"""What ``koala explain`` says of malleable jobs: the sizes that they can have, and what is changing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import JobKind
from koala_adapter.scheduler.changes import ChangePhase
from koala_adapter.scheduler.malleable.policies import Direction
from koala_adapter.scheduler.roster import bounds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.changes import Change
    from koala_adapter.scheduler.records import ClusterRecord, JobRecord, State


def sizes(state: State, record: JobRecord) -> str:
    """Say what sizes a running malleable job can have, how they change, and why it does not grow; else nothing."""
    if record.job.kind is not JobKind.MALLEABLE:
        return ""
    said = []
    for claim in record.claims:
        minimum, maximum = bounds(record, claim)
        cluster = None if claim.cluster is None else state.clusters[claim.cluster]
        changing = "" if claim.change is None else f"; {_change(claim.change)}{_shrunk_for(cluster, claim.change)}"
        said.append(f" It can have {minimum} to {maximum} processors on {claim.cluster}{changing}.")
        if cluster is not None and cluster.others_waiting:
            said.append(f" {wanted_by_others(cluster)}.")
    trouble = f" Last trouble: {record.last_trouble}." if record.last_trouble else ""
    return "".join(said) + trouble


def wanted_by_others(cluster: ClusterRecord) -> str:
    """Say how many processors of a cluster others want that wait in its queue."""
    count = sum(job.processors for job in cluster.others_waiting)
    wanted = f"{count} processor of {cluster.name} is" if count == 1 else f"{count} processors of {cluster.name} are"
    return f"{wanted} wanted by others who wait in its queue"


def giving_up(state: State, names: Iterable[ClusterName]) -> list[ClusterName]:
    """Return those of some clusters on which running jobs give up processors now."""
    shrinking = []
    for name in names:
        step = state.clusters[name].step
        if step is not None and step.step.direction is Direction.SHRINK:
            shrinking.append(name)
    return shrinking


def _shrunk_for(cluster: ClusterRecord | None, change: Change) -> str:
    """Say what a job has been asked to give up processors for."""
    step = None if cluster is None or not change.in_step or change.processors > 0 else cluster.step
    return "" if step is None or step.step.direction is Direction.GROW else f" ({step.reason})"


def _change(change: Change) -> str:
    count = abs(change.processors)
    match change.phase:
        case ChangePhase.ASKED:
            return (
                f"it has been offered {count} more"
                if change.processors > 0
                else f"it has been asked to give up {count}"
            )
        case ChangePhase.PROMISED:
            return f"it asked for {count} more, and others give up processors for it"
        case ChangePhase.GATHERING:
            return f"{change.accepted} more are being gathered for it"
        case ChangePhase.TAKING:
            return f"it is taking in {len(change.ranks)} more"
    return (
        f"it is giving up {change.accepted - change.done} more" if change.done else f"it is giving up {change.accepted}"
    )

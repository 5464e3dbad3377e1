# SPDX-License-Identifier: Apache-2.0
"""What ``koala explain`` says of malleable jobs: the sizes that they can have, and what is changing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import JobKind
from koala_adapter.scheduler.changes import ChangePhase
from koala_adapter.scheduler.durations import duration
from koala_adapter.scheduler.malleable.policies import Direction

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.model import ClusterName, Component
    from koala_adapter.scheduler.changes import Change, SizeChange
    from koala_adapter.scheduler.clusterrecord import ClusterRecord
    from koala_adapter.scheduler.records import Claim, JobRecord, State


CHANGES_TOLD = 3
"""So many of the latest changes of size are told."""


def sizes(state: State, record: JobRecord, now: float) -> str:
    """Say what sizes a running malleable job can have, how they change, and why it does not grow; nothing of others."""
    if record.job.kind is not JobKind.MALLEABLE:
        return ""
    said = [_sizes(state, record, one) for one in record.job.components if record.job.changes_size(one.name)]
    past = [_past(change, f"{duration(now - change.at)} ago") for change in record.size_changes[-CHANGES_TOLD:]]
    history = f" It {'; '.join(past)}." if past else ""
    rests = " No further workers are started for a while, as some have ended by themselves." * record.growth_rests
    rests += " It grows no more: its walltime is near." * record.ends_soon
    trouble = f" Last trouble: {record.last_trouble}." if record.last_trouble else ""
    return f"{''.join(said)}{history}{rests}{trouble}"


def _sizes(state: State, record: JobRecord, component: Component) -> str:
    claims = [claim for claim in record.claims if claim.component == component.name and claim.cluster is not None]
    where = f"on {claims[0].cluster}" if len(claims) == 1 else "on all clusters together"
    who = "It" if len(record.job.components) == 1 else component.name
    clusters = [(claim, state.clusters[claim.cluster]) for claim in claims if claim.cluster is not None]
    changing = "".join(
        f"; {_change(claim.change)}{'' if len(claims) == 1 else f' on {claim.cluster}'}"
        f"{_shrunk_for(cluster, claim.change)}"
        for claim, cluster in clusters
        if claim.change is not None
    )
    changing += "".join(_places(state, record, claim) for claim in claims)
    others = "".join(f" {wanted_by_others(cluster)}." for _, cluster in clusters if cluster.others_waiting)
    return f" {who} can have {component.minimum} to {component.maximum} processors {where}{changing}.{others}"


def _places(state: State, record: JobRecord, claim: Claim) -> str:
    """Say what is queued for the size that the owner wants."""
    waiting = sum(not state.placeholders[id_].held for id_ in claim.places)
    if not waiting:
        return ""
    wait = "1 placeholder waits" if waiting == 1 else f"{waiting} placeholders wait"
    return f"; {wait} in the queue of {claim.cluster} for a growth to {record.sizes_wanted[claim.component]}"


def sizes_it_had(record: JobRecord) -> str:
    """Say how the size of a job that has ended changed while it ran; nothing of one that kept its size.

    It is told by the time since its launch, for it is read long after its end.
    """
    launched_at = record.launched_at
    if launched_at is None or not record.size_changes:
        return ""
    told = record.size_changes[-CHANGES_TOLD:]
    earlier = len(record.size_changes) - len(told)
    before = f", after {earlier} earlier change{'s' * (earlier > 1)} of its size," if earlier else ""
    past = [_past(change, f"{duration(change.at - launched_at)} after it was launched") for change in told]
    return f" While it ran{before} it {'; '.join(past)}."


def _past(change: SizeChange, when: str) -> str:
    """Say what has become of a size: ``grew from 2 to 6 on beta 12 s ago (processors are free)``."""
    reason = f" ({change.reason})" if change.reason else ""
    if change.after > change.before:
        return f"grew from {change.before} to {change.after} on {change.cluster} {when}{reason}"
    return f"gave {change.before - change.after} of {change.before} back on {change.cluster} {when}{reason}"


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
            return _asked(change, count)
        case ChangePhase.PROMISED:
            return f"it asked for {count} more, and others give up processors for it"
        case ChangePhase.GATHERING:
            return f"{change.accepted} more are being gathered for it"
        case ChangePhase.TAKING:
            return f"it is taking in {len(change.ranks)} more{_at_point(change)}"
    return _release(change)


def _asked(change: Change, count: int) -> str:
    if change.countered:
        return f"it asked for {change.wish} more and has been offered {count}, which are kept for it"
    return f"it has been offered {count} more" if change.processors > 0 else f"it has been asked to give up {count}"


def _at_point(change: Change) -> str:
    return f" at its point {change.point}" if change.adaptation else ""


def _release(change: Change) -> str:
    if change.made:
        return f"the processes of {change.accepted - change.done} that it gives up are ending"
    if change.adaptation:
        return f"it is giving up {change.accepted}{_at_point(change)}"
    return (
        f"it is giving up {change.accepted - change.done} more" if change.done else f"it is giving up {change.accepted}"
    )

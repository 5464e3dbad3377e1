# SPDX-License-Identifier: Apache-2.0
"""VJM's resource selection (Xing 2009): clusters chosen by how long earlier placeholders waited in them.

Clusters are black boxes to it: whatever makes a queue slow, priorities and local policies included, shows in the waits.
The log of a cluster is part of the scheduler's state, and is written by the events that report a placeholder as held
or as gone; so it is journaled with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.scheduler.clusterrecord import Wait
from koala_adapter.scheduler.placement.fitting import refused, sized
from koala_adapter.scheduler.placement.minimization import fewest
from koala_adapter.scheduler.placement.policy import PlacementPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.clusterrecord import ClusterRecord
    from koala_adapter.scheduler.placement.fitting import Share
    from koala_adapter.scheduler.placement.policy import ClusterView, ComponentRequest, PlacementResult
    from koala_adapter.scheduler.records import PlaceholderRecord, State

REMEMBERED = 20
"""Submissions that a cluster's waiting history holds: what was earlier says little of the load now."""


class WaitingHistory(PlacementPolicy):
    """The set of clusters with the least expected co-allocation time, which is the longest wait expected among them.

    Each cluster beyond the first costs ``cost`` seconds, for the messages between clusters. A cluster of which nothing
    is known is expected to give its processors at once, so it is tried. Flexible components may be split.
    """

    name = "waiting-history"
    splits = True

    def __init__(self, cost: float) -> None:
        """``cost``: seconds of wait that are accepted to use one cluster less."""
        self._cost = max(0.0, cost)

    def place(self, requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> PlacementResult:
        """See :meth:`PlacementPolicy.place`.

        Within clusters that wait no longer than some bound, the fewest that hold the job are the best; so each bound
        that there can be is tried, from the shortest on, until waiting longer cannot pay.
        """
        waits = {view.name: view.expected_wait or 0.0 for view in views.values() if view.closed is None}
        best: tuple[float, list[Share]] | None = None
        for bound in sorted(set(waits.values())):
            if best is not None and bound >= best[0]:
                break
            rooms = {name: views[name].room for name, wait in waits.items() if wait <= bound}
            shares = fewest(requests, rooms, views)
            if shares is None:
                continue
            value = self._value(shares, waits)
            if best is None or value < best[0]:
                best = value, shares
        return refused(requests, views) if best is None else sized(best[1], views)

    def _value(self, shares: Sequence[Share], waits: Mapping[ClusterName, float]) -> float:
        """Return the expected co-allocation time of a choice, with what its clusters cost, in seconds."""
        used = {share.cluster for share in shares}
        return max(waits[name] for name in used) + self._cost * (len(used) - 1)


def expected_wait(cluster: ClusterRecord, state: State, now: float) -> float | None:
    """Return the seconds that new placeholders will probably wait on a cluster: the mean of those before.

    What waits there now has waited long enough already to count, once it exceeds that. None: nothing is known.
    """
    known = [wait.seconds for wait in cluster.waits]
    oldest = next((state.batches[key].submitted_at for key in cluster.pending if key in state.batches), None)
    mean = sum(known) / len(known) if known else None
    if oldest is None:
        return mean
    return max(mean or 0.0, now - oldest)


def note_wait(state: State, placeholder: PlaceholderRecord, now: float) -> None:
    """Write into the waiting history that a placeholder got its processor.

    A submission is one entry: a parallel job waits for the last of its processors.
    """
    waits = state.clusters[placeholder.cluster].waits
    seconds = max(0.0, now - placeholder.submitted_at)
    for wait in reversed(waits):
        if wait.batch == placeholder.id.batch:
            wait.seconds = max(wait.seconds, seconds)
            return
    waits.append(Wait(batch=placeholder.id.batch, seconds=seconds))
    del waits[:-REMEMBERED]


def note_vain_wait(state: State, placeholder: PlaceholderRecord, now: float) -> None:
    """Write into the history that a placeholder ended without a processor, when it had waited longer than others do."""
    known = [wait.seconds for wait in state.clusters[placeholder.cluster].waits]
    if now - placeholder.submitted_at > (sum(known) / len(known) if known else 0.0):
        note_wait(state, placeholder, now)

# SPDX-License-Identifier: Apache-2.0
"""Koala's placement policies: worst fit, close to files, cluster minimization, waiting history.

Worst fit, close to files and cluster minimization are those of KOALA (CoreGRID TR-0092); choosing clusters by their
waiting history is that of VJM (Xing 2009).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from koala_adapter.scheduler.parameters import Parameters
from koala_adapter.scheduler.placement.policy import (
    Budget,
    PlacementPolicy,
    Share,
    allowed,
    pack,
    pack_fewest,
    pieces,
    refused,
    sized,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from koala_adapter.model import ClusterName, Component, InputFile
    from koala_adapter.scheduler.placement.policy import ClusterView, ComponentRequest, PlacementResult, Preference

    Views = Mapping[ClusterName, ClusterView]


# -- Worst fit, the default of KOALA: balances the load over the clusters ------------------------------------


class WorstFit(PlacementPolicy):
    """Each component to the cluster with the most idle processors, largest component first (KOALA's WF).

    When too little is idle, placeholders are queued where the load is least, as long as our own placeholders stay
    within the cluster's capacity: in a busy cluster only what waits in the queue ever gets a processor.
    """

    name = "worst-fit"

    def place(self, requests: Sequence[ComponentRequest], views: Views) -> PlacementResult:
        order = sorted(requests, key=lambda r: (r.component.cluster is None, -r.component.minimum))
        clusters = _greedy(order, views, self.preference(views)) or _searched(requests, views)
        if clusters is None:
            return refused(requests, views)
        shares = [Share(one, clusters[one.component.name], one.component.minimum) for one in requests]
        return sized(shares, views)

    def preference(self, views: Views) -> Preference | None:  # noqa: ARG002 - for policies that prefer something
        """Return a sort key that precedes the number of idle processors; None: there is none."""
        return None


def _greedy(
    order: Sequence[ComponentRequest], views: Views, preference: Preference | None
) -> Mapping[str, ClusterName] | None:
    budget = Budget(views)
    clusters: dict[str, ClusterName] = {}
    for request in order:
        cluster = budget.best(request, preference)
        if cluster is None:
            return None
        budget.take(cluster, request.component.minimum)
        clusters[request.component.name] = cluster
    return clusters


def _searched(requests: Sequence[ComponentRequest], views: Views) -> Mapping[str, ClusterName] | None:
    """Search for any placement in the room, after the greedy one has failed."""
    if len(requests) < 2:  # noqa: PLR2004 - a single component has no other way to fit
        return None
    rooms = {view.name: view.room for view in views.values() if view.closed is None}
    if sum(request.component.minimum for request in requests) > sum(max(0, room) for room in rooms.values()):
        return None
    return pack(pieces(requests, [views[name] for name in rooms]), rooms).clusters


# -- Close to files: where the input files are, or can be brought soonest ------------------------------------
# The views tell which paths a cluster holds (RLS) and the bandwidth to it (NIP). Unknown values make no difference, so
# on a site that configures none of this it is worst fit.

MIB = 1024**2
SIZE = 1.0
"""MiB that a file of unknown size counts: enough to compare bandwidths."""


class CloseToFiles(WorstFit):
    """Each component to a cluster that holds its input files, else to that with the least transfer time (KOALA's CF).

    As everywhere, clusters that can start the component at once go before those where it would queue, and equally
    close ones are told apart as worst fit does.
    """

    name = "close-to-files"

    def preference(self, views: Mapping[ClusterName, ClusterView]) -> Preference:
        """Prefer the nearest cluster; of two at unknown distances, that to which less must be moved."""

        def nearness(request: ComponentRequest, view: ClusterView) -> tuple[float, ...]:
            missing = missing_files(request.component, view)
            return -transfer_seconds(missing, view, views), -sum(size_mib(file) for file in missing)

        return nearness


def missing_files(component: Component, view: ClusterView) -> list[InputFile]:
    """Return the input files of a component that must be brought to the nodes of a cluster."""
    named = (replace(file, size=view.bringable.get(file.source)) for file in component.files_named)
    return [file for file in (*component.files_sent, *named) if not holds(view, file.source)]


def holds(view: ClusterView, path: str) -> bool:
    """Tell whether the nodes of a cluster have a file already."""
    return path in view.found or any(is_below(path, held) for held in view.files)


def is_below(path: str, above: str) -> bool:
    """Tell whether a path is another one, or below it."""
    return path == above or path.startswith(above.rstrip("/") + "/")


def size_mib(file: InputFile) -> float:
    """Return the size of a file in MiB, as far as it is known."""
    return SIZE if file.size is None else file.size / MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Travel:
    """Files that come to a cluster from one place."""

    source: ClusterName | None
    """The cluster that has them; None: the submitting host."""
    mib: float
    rate: float | None
    """MiB/s; None: not known."""


def travels(missing: Iterable[InputFile], view: ClusterView, views: Views) -> list[Travel]:
    """Return from where files come to a cluster, each from where that is fastest.

    Files without a logical name are on the submitting host, too.
    """
    found: dict[ClusterName | None, Travel] = {}
    here: list[tuple[float, ClusterName | None]] = [] if view.bandwidth is None else [(view.bandwidth, None)]
    for file in missing:
        ways = [(rate, name) for name, rate in view.bandwidth_from if name in views and holds(views[name], file.source)]
        # A file with a logical name comes from here only where it can come in no other way.
        known = ways if ways and file.logical else [*here, *ways]
        rate, source = max((one for one in known if one[0] > 0), key=lambda one: one[0], default=(None, None))
        mib = size_mib(file) + (found[source].mib if source in found else 0.0)
        found[source] = Travel(source=source, mib=mib, rate=rate)
    return list(found.values())


def transfer_seconds(missing: Iterable[InputFile], view: ClusterView, views: Views) -> float:
    """Return the seconds to bring files to a cluster, one after the other, each from where that is fastest.

    To a cluster at the same site as the submitting host those of that host need no time, unless its bandwidth is
    stated. Infinite where no bandwidth is known.
    """
    if view.here and view.bandwidth is None:
        missing = [file for file in missing if file.logical]
    return sum((inf if one.rate is None else one.mib / one.rate for one in travels(missing, view, views)), 0.0)


# -- Cluster minimization: as few clusters as possible -------------------------------------------------------
# Each further cluster means more messages over wide-area links and one more queue to wait for. CM takes the components
# as the user made them; FCM also splits those that the user calls flexible, according to the idle processors, which
# shortens the time in the queue: what fits into no cluster may fit into two.


class ClusterMinimization(PlacementPolicy):
    """As few clusters as possible; the components stay as they are (KOALA's CM).

    A placement that can start at once goes before one on fewer clusters that would queue.
    """

    name = "cluster-minimization"

    def place(self, requests: Sequence[ComponentRequest], views: Views) -> PlacementResult:
        if not self.splits:
            requests = [replace(one, splittable=False) if one.splittable else one for one in requests]
        opened = [view for view in views.values() if view.closed is None]
        for rooms in ({view.name: view.available for view in opened}, {view.name: view.room for view in opened}):
            shares = fewest(requests, rooms, views)
            if shares is not None:
                return sized(shares, views)
        return refused(requests, views)


class FlexibleClusterMinimization(ClusterMinimization):
    """As cluster minimization, and flexible components are split according to the idle processors (KOALA's FCM)."""

    name = "flexible-cluster-minimization"
    splits = True


def fewest(requests: Sequence[ComponentRequest], rooms: Mapping[ClusterName, int], views: Views) -> list[Share] | None:
    """Return shares of all components on as few clusters as possible; None when they do not fit.

    Components that may not be split come first; the others are then poured into what is left.
    """
    if sum(one.component.minimum for one in requests) > sum(max(0, room) for room in rooms.values()):
        return None
    whole = [one for one in requests if not one.splittable]
    clusters = pack_fewest(pieces(whole, [views[name] for name in rooms]), rooms)
    if clusters is None:
        return None
    left = {name: max(0, room) for name, room in rooms.items()}
    for one in whole:
        left[clusters[one.component.name]] -= one.component.minimum
    used = set(clusters.values())
    shares = {id(one): [Share(one, clusters[one.component.name], one.component.minimum)] for one in whole}
    order = [one for one in requests if one.splittable]
    for one in sorted(order, key=lambda r: (r.component.cluster is None, -r.component.minimum)):
        poured = _poured(one, left, used, views)
        if poured is None:
            return None
        shares[id(one)] = poured
        used.update(share.cluster for share in poured)
        for share in poured:
            left[share.cluster] -= share.processors
    return [share for one in requests for share in shares[id(one)]]


def _poured(
    request: ComponentRequest, left: Mapping[ClusterName, int], used: set[ClusterName], views: Views
) -> list[Share] | None:
    """Split a component over clusters in as few pieces as possible."""
    need = request.component.minimum
    usable = {
        view.name: left[view.name]
        for view in allowed(request, views)
        if left.get(view.name, 0) > 0 and request.never(view) is None
    }
    chosen: list[ClusterName] = []
    beyond = need
    for name in sorted(usable, key=lambda name: (name not in used, -usable[name])):  # used ones first, then the largest
        if name in used or beyond > 0:
            chosen.append(name)
            beyond -= usable[name]
    if beyond > 0:
        return None
    shares = []
    for name in sorted(chosen, key=lambda name: -usable[name]):
        taken = min(need, usable[name])
        if taken:
            shares.append(Share(request, name, taken))
            need -= taken
    return shares


# -- Waiting history: clusters in which earlier placeholders waited least ------------------------------------
# Clusters are black boxes to VJM's resource selection: the cause of a slow queue, priorities and local policies
# included, shows in the waits. The log of a cluster is part of the scheduler's state and is written by the events that
# report a placeholder as held or as gone, so it is journaled with them.


class WaitingHistory(PlacementPolicy):
    """Clusters with the least expected co-allocation time, from their waiting histories.

    Each cluster beyond the first costs ``cost`` seconds, for the messages between clusters. A cluster of which nothing
    is known is expected to give its processors at once, so it is tried. Flexible components may be split.
    """

    name = "waiting-history"
    splits = True

    def __init__(self, cost: float) -> None:
        """``cost``: seconds of wait that are accepted to use one cluster less."""
        self._cost = max(0.0, cost)

    def set_by(self, parameters: Parameters) -> PlacementPolicy:
        return WaitingHistory(parameters.cluster_cost)

    def place(self, requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> PlacementResult:
        """Place all components or none.

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
        """Return the expected co-allocation time of clusters plus their costs, in seconds."""
        used = {share.cluster for share in shares}
        return max(waits[name] for name in used) + self._cost * (len(used) - 1)


PLACEMENT_POLICIES: Mapping[str, PlacementPolicy] = {
    policy.name: policy
    for policy in (
        WorstFit(),
        CloseToFiles(),
        ClusterMinimization(),
        FlexibleClusterMinimization(),
        WaitingHistory(Parameters().cluster_cost),
    )
}
"""Koala's own policies, under the names that job files and site files use; each as it is where a site says nothing."""

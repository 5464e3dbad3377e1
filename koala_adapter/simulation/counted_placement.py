# SPDX-License-Identifier: Apache-2.0
"""Asking the placement policies in the count-level simulator: what they are shown of the clusters, and of the jobs.

A policy is shown clusters as in a live service, but placeholders are only sent where they start at once: what is free
is all the room there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import ClusterName, Component
from koala_adapter.scheduler.knownpolicies import OWN
from koala_adapter.scheduler.malleable.jobmanagement import Need
from koala_adapter.scheduler.parameters import Parameters
from koala_adapter.scheduler.placement.policy import ClusterView, ComponentRequest, Placed, infeasibility
from koala_adapter.scheduler.placement.worstfit import WorstFit
from koala_adapter.simulation.waiting_line import Lane

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from koala_adapter.scheduler.knownpolicies import Policies
    from koala_adapter.scheduler.placement.policy import PlacedComponent
    from koala_adapter.simulation.simulated_cluster import SimulatedCluster
    from koala_adapter.simulation.simulated_jobs import SimulatedJob

ALONE = "job"
"""Name of the component of a job that has only one."""


class CountedPlacement:
    """The placement policies and what they are asked."""

    def __init__(self, clusters: Sequence[SimulatedCluster], policies: Policies = OWN) -> None:
        """Ask about these clusters, whose indices are their places in the sequence. ``policies``: those there are."""
        self._policies = {name: policies.placement_policy(name, Parameters()) for name in policies.placement_names}
        self._clusters = clusters
        self._by_name = {cluster.name: cluster for cluster in clusters}
        self._worst_fit: dict[tuple[int, int], Sequence[PlacedComponent]] = {}
        """Its answers for a single component of fixed size, by the size and the index of the cluster with most free."""
        self._short = all(cluster.capacity == cluster.processors for cluster in clusters)
        """Whether worst fit takes the cluster with the most free: thresholds do not count in its measure of load."""
        self._requests: dict[Lane, tuple[Sequence[ComponentRequest], str | None]] = {}
        self.frees = [cluster.free for cluster in clusters]
        """``free`` of each cluster, kept up to date by whoever changes it: finding the largest must be quick."""

    def cluster(self, name: ClusterName) -> SimulatedCluster:
        """Return a cluster by its name."""
        return self._by_name[name]

    def never(self, job: SimulatedJob, lane: Lane) -> str | None:
        """Return why a job can never run here; None when it can."""
        size, most = sum(component.maximum for component in job.components) or job.initial, job.application.maximum
        if size > most:
            return f"asks for {size} processors, {job.application.name} runs on at most {most}"
        return self._asked(lane)[1]

    def place(self, lane: Lane) -> Sequence[PlacedComponent] | None:
        """Ask the placement policy where the first job of a lane goes; None: nowhere now."""
        requests, _ = self._asked(lane)
        if self._short and not lane.components and lane.placement == WorstFit.name:
            most = max(self.frees)
            if most < lane.least:
                return None
            index = self.frees.index(most)  # of all clusters, worst fit takes this one; it is asked once about each
            known = self._worst_fit.get((lane.least, index))
            if known is not None:
                return known
            best = self._clusters[index]
            result = self._policies[lane.placement].place(requests, {best.name: _view(best, most)})
            if isinstance(result, Placed):
                self._worst_fit[lane.least, index] = result.components
        else:
            views = {cluster.name: _view(cluster, cluster.free) for cluster in self._clusters}
            result = self._policies[lane.placement].place(requests, views)
        return result.components if isinstance(result, Placed) else None

    def needs(self, lane: Lane) -> Iterator[Need[SimulatedCluster]]:
        """Yield what the first job of a lane needs.

        A cluster where local users wait is left alone: they would get what comes free.
        """
        usable = [one for one in self._clusters if not one.making_room and not one.queue_seen]
        if not lane.components:
            yield Need(lane.least, usable)
            return
        for request in self._asked(lane)[0]:
            chosen = request.component.cluster
            possible = [one for one in usable if chosen in {None, one.name} and request.never(_view(one, 0)) is None]
            yield Need(request.component.minimum, possible, insists=chosen is not None)

    def _asked(self, lane: Lane) -> tuple[Sequence[ComponentRequest], str | None]:
        """Return what the jobs of a lane ask of their policy, and why they can never be placed (None: they can)."""
        found = self._requests.get(lane)
        if found is None:
            if lane.placement not in self._policies:
                return (), f"there is no placement policy {lane.placement}; there is {', '.join(self._policies)}"
            alone = Component(name=ALONE, command=(), minimum=lane.least, maximum=lane.least)
            splits = self._policies[lane.placement].splits
            requests = [
                ComponentRequest(component=component, walltime=0, splittable=splits and component.flexible)
                for component in lane.components or (alone,)
            ]
            empty = {cluster.name: _view(cluster, cluster.capacity) for cluster in self._clusters}
            found = self._requests[lane] = requests, infeasibility(requests, empty)
        return found


def lane_of(job: SimulatedJob) -> Lane:
    """Return the lane in which a job waits."""
    least = max((component.minimum for component in job.components), default=job.initial)
    return Lane(least, job.placement, job.components)


def _view(cluster: SimulatedCluster, free: int) -> ClusterView:
    return ClusterView(
        name=cluster.name,
        capacity=cluster.capacity,
        room=free,
        available=free,
        load_free=free + cluster.kept,
        walltime_limit=None,
    )

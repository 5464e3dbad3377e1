# SPDX-License-Identifier: Apache-2.0
"""Scheduling of one cluster: the interface for whoever drives it, and the factory of its policies. Pure.

A driver, live or simulated, does for every instant at which something happens:

1. tell all of it: :meth:`ClusterScheduler.end` for each job that ended, :meth:`ClusterScheduler.submit` for each that
   came, and whatever else (``withdraw``, ``revise``, ``resize``, ``adopt``);
2. ask once: ``for job in scheduler.schedule(now)``: start it; it counts as running from now on;
3. come back at ``scheduler.wake_at`` if nothing happens before (infinity for all policies but conservative).

>>> cluster = make_cluster_scheduler("easy", 4)
>>> for job in (LocalJob("a", 3, 100, 0), LocalJob("b", 4, 10, 1), LocalJob("c", 1, 99, 1)):
...     cluster.submit(job)
>>> [job.id for job in cluster.schedule(1)]
['a', 'c']
>>> cluster.reservation(cluster.waiting[0], 1).start
101
"""

from __future__ import annotations

from typing import Protocol

from koala_adapter.errors import ConfigurationError
from koala_adapter.queueing.backfill import Easy, Fcfs
from koala_adapter.queueing.conservative import Conservative
from koala_adapter.queueing.local_queue import ClusterScheduler, LocalJob, Reservation
from koala_adapter.queueing.maui import BestFit, FirstFit, Greedy, Maui, Metric
from koala_adapter.queueing.priority import ARRIVAL, PriorityWeights

__all__ = [
    "METRICS",
    "POLICIES",
    "ClusterScheduler",
    "LocalJob",
    "MakeQueue",
    "Metric",
    "PriorityWeights",
    "Reservation",
    "make_cluster_scheduler",
]

POLICIES = ("fcfs", "easy", "conservative", "firstfit", "bestfit", "greedy", "metacluster")
"""Names of the policies of one cluster."""

METRICS = tuple(metric.value for metric in Metric)
"""Names of what BESTFIT and GREEDY maximize."""


class MakeQueue(Protocol):
    """Makes the queue of a cluster under a policy that is none of :data:`POLICIES`."""

    def __call__(self, processors: int, /, *, weights: PriorityWeights) -> ClusterScheduler:
        """Return an empty queue for a cluster of so many processors."""
        ...


def make_cluster_scheduler(
    policy: str,
    processors: int,
    *,
    metric: Metric | str = Metric.PROCESSORS,
    depth: int = 1,
    weights: PriorityWeights = ARRIVAL,
    make: MakeQueue | None = None,
) -> ClusterScheduler:
    """Return an empty queue for a cluster of so many processors, ordered by a policy of :data:`POLICIES`.

    ``make``: makes it where the policy is another one. ``metric`` is for bestfit and greedy, ``depth`` (how many jobs
    have a reservation) for firstfit, bestfit and greedy; the other policies ignore both. Raises ConfigurationError for
    what is not known or out of range.
    """
    if make is not None:
        return make(processors, weights=weights)
    if policy not in POLICIES:
        raise ConfigurationError(f"there is no policy {policy!r}", hint=f"policies are {', '.join(POLICIES)}")
    if metric not in METRICS:
        raise ConfigurationError(f"there is no backfill metric {metric!r}", hint=f"metrics are {', '.join(METRICS)}")
    if depth < 1:
        raise ConfigurationError(f"the reservation depth must be at least 1, not {depth}")
    if processors < 0:
        raise ConfigurationError(f"a cluster cannot have {processors} processors")
    if policy == "fcfs":
        return Fcfs(processors, weights=weights)
    if policy == "conservative":
        return Conservative(processors, weights=weights)
    if policy == "metacluster":
        return Easy(processors, weights=weights, use_extra=False)
    if policy == "easy" or (policy == "firstfit" and depth == 1):
        return Easy(processors, weights=weights)
    families: dict[str, type[Maui]] = {"firstfit": FirstFit, "bestfit": BestFit, "greedy": Greedy}
    return families[policy](processors, metric=Metric(metric), depth=depth, weights=weights)

# SPDX-License-Identifier: Apache-2.0
"""Metacluster's two levels: first the cluster, then the order on that cluster. Pure.

The first level takes the least loaded of the clusters that satisfy a job's requirements, and the job stays there; the
second level is any :class:`ClusterScheduler`, in Metacluster FCFS or the simplest backfill. (PAPERS section 3.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from koala_adapter.errors import JobRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from koala_adapter.queueing.local_queue import ClusterScheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What a job demands of its cluster."""

    processors: int
    """Processors at the same time."""
    features: frozenset[str] = frozenset()
    """Hardware, operating system, programs and packages, by the names that the clusters give them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLoad:
    """What the first level knows of a cluster."""

    name: str
    processors: int
    """Its size now."""
    demanded: float
    """Processors held by running jobs and asked for by waiting ones."""
    features: frozenset[str] = field(default_factory=frozenset)
    """What it offers."""

    @property
    def load(self) -> float:
        """Demand over size: 1 when all is used and nobody waits."""
        return self.demanded / self.processors if self.processors else float("inf")

    def satisfies(self, requirements: Requirements) -> bool:
        """Tell whether a job can ever run here."""
        return requirements.processors <= self.processors and requirements.features <= self.features


def load_of(name: str, scheduler: ClusterScheduler, features: frozenset[str] = frozenset()) -> ClusterLoad:
    """Return the load of a cluster from its queue."""
    return ClusterLoad(name=name, processors=scheduler.processors, demanded=scheduler.demanded, features=features)


def least_loaded(requirements: Requirements, clusters: Iterable[ClusterLoad]) -> ClusterLoad:
    """Return the least loaded cluster that satisfies a job; of equals the larger one, then the first by name.

    Raises JobRefusedError, with what each cluster lacks, when none does.
    """
    known = list(clusters)
    able = [cluster for cluster in known if cluster.satisfies(requirements)]
    if not able:
        lacks = "; ".join(f"{cluster.name}: {_lack(requirements, cluster)}" for cluster in known) or "none is known"
        raise JobRefusedError(f"no cluster satisfies the job's requirements ({lacks})")
    return min(able, key=lambda cluster: (cluster.load, -cluster.processors, cluster.name))


def _lack(requirements: Requirements, cluster: ClusterLoad) -> str:
    """Return what a cluster lacks for a job."""
    if requirements.processors > cluster.processors:
        return f"has {cluster.processors} of {requirements.processors} processors"
    return "lacks " + ", ".join(sorted(requirements.features - cluster.features))


class Metacluster:
    """The first level over several queues; who drives it drives each queue of :attr:`clusters` by itself."""

    __slots__ = ("clusters", "features")

    clusters: Mapping[str, ClusterScheduler]
    """The second level: the queue of each cluster."""
    features: Mapping[str, frozenset[str]]
    """What each offers; a cluster that is not named offers nothing in particular."""

    def __init__(
        self, clusters: Mapping[str, ClusterScheduler], features: Mapping[str, frozenset[str]] | None = None
    ) -> None:
        self.clusters = clusters
        self.features = features or {}

    def choose(self, requirements: Requirements) -> str:
        """Return the cluster whose queue a job should be submitted to. Raises JobRefusedError when none will do."""
        loads = (load_of(name, queue, self.features.get(name, frozenset())) for name, queue in self.clusters.items())
        return least_loaded(requirements, loads).name

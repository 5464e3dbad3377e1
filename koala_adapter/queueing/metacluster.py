# SPDX-License-Identifier: Apache-2.0
"""The first of Metacluster's two levels: which cluster a job is submitted to. Pure.

It is the least loaded of those that satisfy the job's requirements, and the job stays there; the second level is the
queue of that cluster, in Metacluster FCFS or the simplest backfill. (Gergel 2011.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from koala_adapter.errors import JobRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable


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

# SPDX-License-Identifier: Apache-2.0
"""Policies of a site's own: of placement, malleability, a cluster's queue, sizes. See docs/policies.md."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from koala_adapter.policies import PolicyDefinition, PolicyKind
from koala_adapter.queueing.backfill import Easy
from koala_adapter.scheduler.malleable.policies import MalleabilityPolicy
from koala_adapter.scheduler.placement.policies import WorstFit
from koala_adapter.sizes import UsableSizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.model import ClusterName
    from koala_adapter.queueing.backfill import LocalJob
    from koala_adapter.scheduler.malleable.policies import J, RunningJobs, Step
    from koala_adapter.scheduler.placement.policy import ClusterView, Preference


class FirstListed(WorstFit):
    """Each component to the first cluster of the site file that can start it."""

    name = "first-listed"

    def preference(self, views: Mapping[ClusterName, ClusterView]) -> Preference:
        """Return what counts before the number of idle processors: the place in the site file."""
        places = {name: place for place, name in enumerate(views)}
        return lambda _, view: (-places[view.name],)


FIRST_LISTED = PolicyDefinition(
    kind=PolicyKind.PLACEMENT, name=FirstListed.name, summary="in the order of the site file", factory=FirstListed
)


class SmallestFirst(MalleabilityPolicy):
    """The smallest job grows, the largest shrinks, by one processor at a time."""

    name = "smallest-first"

    def _grow(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        jobs = [job for job in running.growable if job.order not in step.unwilling]
        return [(min(jobs, key=lambda job: job.size), 1)] if jobs else []

    def _shrink(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        jobs = [job for job in running.shrinkable if job.order not in step.unwilling]
        return [(max(jobs, key=lambda job: job.size), -1)] if jobs else []


SMALLEST_FIRST = PolicyDefinition(
    kind=PolicyKind.MALLEABILITY, name=SmallestFirst.name, summary="evens out sizes", factory=SmallestFirst
)


class ShortestFirst(Easy):
    """EASY, but a job that asks for an hour more stands ten hours further back in the queue."""

    def submit(self, job: LocalJob) -> None:
        """Let a job wait from now on."""
        job.priority = -10 * job.estimate
        super().submit(job)


SHORTEST_FIRST = PolicyDefinition(
    kind=PolicyKind.QUEUE, name="shortest-first", summary="short jobs before long ones", factory=ShortestFirst
)


def is_square(processors: int) -> bool:
    """Tell whether processors make a square grid."""
    return math.isqrt(processors) ** 2 == processors


def square_grids() -> UsableSizes:
    """Make the rule of programs that divide a square among a square of processes."""
    return UsableSizes("square-grids", is_square)


SQUARE_GRIDS = PolicyDefinition(
    kind=PolicyKind.SIZES, name="square-grids", summary="1, 4, 9, 16 ... processors", factory=square_grids
)

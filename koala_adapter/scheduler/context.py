# SPDX-License-Identifier: Apache-2.0
"""What the parts of the scheduler share while one event is handled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

from koala_adapter.scheduler.actions import Effects
from koala_adapter.scheduler.placement import ClusterView, ComponentRequest

if TYPE_CHECKING:
    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.outcome import JobOutcome
    from koala_adapter.scheduler.queue import PlacementQueue
    from koala_adapter.scheduler.records import Claim, ClusterRecord, JobRecord, State

SHORTEST_PAUSE = 1.0
"""Seconds between two looks at the same thing, at least: a setting of 0 must not make the scheduler spin."""
NOT_SEEN = "not seen yet"
"""Why nothing is placed on a cluster that has not been polled."""


@dataclass(slots=True)
class Context:
    """State, queue and the actions collected so far, at one point in time."""

    state: State
    queue: PlacementQueue
    now: float
    effects: Effects = field(default_factory=Effects)
    outcomes: list[tuple[JobRecord, JobOutcome]] = field(default_factory=list)
    """Jobs found to have ended, to be finished once the event's own handling is through."""
    scan_wanted: bool = False
    """Something changed that may let a waiting job be placed."""

    def view(self, cluster: ClusterRecord) -> ClusterView:
        """Return what a placement policy may know of a cluster."""
        return ClusterView(
            name=cluster.parameters.name,
            capacity=cluster.largest_capacity,
            in_flight=cluster.parameters.placeholders_in_flight,
            room=cluster.room,
            available=cluster.available,
            load_free=cluster.load_free,
            walltime_limit=cluster.parameters.walltime_limit,
            closed=closed_reason(cluster, self.now),
        )

    def views(self) -> dict[ClusterName, ClusterView]:
        """Return the views of all clusters of the site."""
        return {name: self.view(cluster) for name, cluster in self.state.clusters.items() if cluster.configured}

    def request(self, record: JobRecord, claim: Claim) -> ComponentRequest:
        """Return what a component asks of a placement policy."""
        return ComponentRequest(
            component=record.job.component(claim.component),
            walltime=record.job.walltime + self.margin(),
            excluded=frozenset(claim.excluded),
        )

    def margin(self) -> int:
        """Return the seconds asked from an LRM on top of a job's walltime, at least."""
        return int(self.state.parameters.launch_margin)

    def requests(self, record: JobRecord) -> list[ComponentRequest]:
        """Return the requests of all components of a job."""
        return [self.request(record, claim) for claim in record.claims]


def closed_reason(cluster: ClusterRecord, now: float) -> str | None:
    """Return why nothing is placed on a cluster at present; None when it is open."""
    if not cluster.configured:
        return "no longer in the site file"
    if cluster.unavailable is not None:
        return f"out of reach: {cluster.unavailable}"
    if cluster.processors is None:
        return NOT_SEEN
    if not cluster.listed:
        return "its batch system lists no processors"
    if cluster.paused_until is not None and now < cluster.paused_until:
        return f"paused for another {cluster.paused_until - now:.0f} s: {cluster.pause_reason}"
    return None


def jitter(record: JobRecord) -> float:
    """Return a number in [0, 1) that differs between jobs and tries, so that two jobs do not move in step for ever.

    Not random: the same history gives the same number, or a replay would decide differently.
    """
    return crc32(f"{record.job.id}/{record.setbacks}".encode()) / 2.0**32


def backoff(record: JobRecord, *, first: float, longest: float) -> float:
    """Return the seconds to pause after the latest setback: doubling, bounded, and out of step with other jobs."""
    exponent = min(max(0, record.setbacks - 1), 30)
    return max(SHORTEST_PAUSE, min(longest, first * 2.0**exponent * (1 + jitter(record) / 4)))

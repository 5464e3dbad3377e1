# SPDX-License-Identifier: Apache-2.0
"""What people and programs are shown of clusters and plans: plain values with a stable JSON form. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport:
    """A cluster as ``koala clusters`` shows it."""

    name: str
    plugin: str
    lrm: str | None
    closed: str | None
    """Why nothing is placed there at present; None: open."""
    processors: int | None
    idle: int | None
    others: int | None
    """Processors that jobs of others occupy."""
    threshold: int
    placeholders: int
    """All of ours that have not ended."""
    placeholders_queued: int
    available: int
    polled_at: float | None
    requests: int
    """Requests to the LRM since the service started."""
    largest_requests_per_minute: int
    requests_per_minute: int
    """The bound on them."""
    requests_last_minute: int = 0
    """Those of the last 60 seconds, those of other processes of this user included."""
    others_waiting: int = 0
    """Processors that others want who wait in its queue; looked for where running malleable jobs shrink for them."""
    down: int = 0
    """Processors that nobody has and nobody could get, as their nodes are not up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedComponent:
    """Where a component would go."""

    component: str
    cluster: str
    processors: int
    idle: int
    """Processors that a claim would get there at once; what is beyond them waits in the queue of the LRM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """Where a job would go now, as ``koala plan`` shows it."""

    result: str
    """``placed``, ``insufficient`` (not now) or ``infeasible`` (never)."""
    reason: str
    """Why it is not placed; empty when it is."""
    components: tuple[PlannedComponent, ...]
    closed: dict[str, str]
    """Clusters on which nothing is placed at present, and why."""

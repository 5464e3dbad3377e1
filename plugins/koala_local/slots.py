# SPDX-License-Identifier: Apache-2.0
"""Which waiting job starts where: first come, first served, on the node with most idle processors. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import LrmJobState
from koala_local.record import OCCUPYING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from koala_local.layout import NodeSlots
    from koala_local.record import JobRecord


def used_processors(jobs: Iterable[JobRecord]) -> dict[str, int]:
    """Return the number of occupied processors by node; nodes without any are left out."""
    used: dict[str, int] = {}
    for job in jobs:
        if job.state in OCCUPYING:
            used[job.node] = used.get(job.node, 0) + 1
    return used


def next_starts(nodes: Sequence[NodeSlots], jobs: Iterable[JobRecord]) -> list[tuple[JobRecord, str]]:
    """Return the queued jobs that can start now, each with its node.

    ``jobs`` are in order of submission. A job for which a node was chosen waits for that node, and lets others pass.
    """
    jobs = list(jobs)
    used = used_processors(jobs)
    idle = {node.name: node.processors - used.get(node.name, 0) for node in nodes}
    total = sum(count for count in idle.values() if count > 0)
    starts: list[tuple[JobRecord, str]] = []
    for job in jobs:
        if total <= 0:
            break
        if job.state is not LrmJobState.QUEUED:
            continue
        node = job.node or max(idle, key=lambda name: idle[name])
        if idle.get(node, 0) > 0:
            idle[node] -= 1
            total -= 1
            starts.append((job, node))
    return starts

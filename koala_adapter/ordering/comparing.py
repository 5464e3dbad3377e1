# SPDX-License-Identifier: Apache-2.0
"""What of listed jobs is compared: their place in the order, their shape, their nodes. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.model import LrmJob, LrmJobId

_DIGITS = re.compile(r"(\d+)")


def difference(layout: tuple[tuple[str, int], ...], nodes: tuple[tuple[str, int], ...]) -> str:
    """Return in what a job's place is not what we said."""
    if sorted(layout) == sorted(nodes):
        return ""
    if dict(layout).keys() != dict(nodes).keys():
        return "on other nodes than we said"
    alone = all(count >= dict(nodes)[name] for name, count in layout)
    return "with more processors than it asked for" if alone else "with other processors on each than we said"


def turn(id_: LrmJobId, submitted_at: float | None) -> tuple[float, tuple[int | str, ...], str]:
    """Return what brings jobs into the order of their submission: where times are equal, as their LRM counts.

    Numbers within an id count as numbers: ``9`` before ``10``, ``12_3`` and ``12.3`` before ``12_10`` and ``12.10``.
    """
    if id_.isdecimal():
        return submitted_at or 0.0, ("", int(id_), ""), id_
    parts = tuple(int(part) if part.isdecimal() else part for part in _DIGITS.split(id_))
    return submitted_at or 0.0, parts, id_


def in_order(jobs: Iterable[LrmJob]) -> list[LrmJob]:
    """Return jobs in the order of their submission: a batch system lists them in any, Slurm the newest first."""
    return sorted(jobs, key=lambda job: turn(job.id, job.submitted_at))


def shape(job: LrmJob) -> object:
    """Return all of a job that decides on which nodes it has room."""
    return (
        job.processors,
        job.queue,
        job.processors_per_task,
        job.node_bounds,
        job.tasks_per_node,
        job.memory_per_processor_mib,
        job.memory_per_node_mib,
        job.features,
        job.requested_nodes,
        job.excluded_nodes,
    )

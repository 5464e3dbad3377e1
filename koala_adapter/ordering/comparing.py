# SPDX-License-Identifier: Apache-2.0
"""What of listed jobs is compared: whether it is the same job, its place in the order, its shape, its nodes. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koala_adapter.model import LrmJob

_DIGITS = re.compile(r"(\d+)")


def is_another(job: LrmJob, submitted_at: float | None) -> bool:
    """Tell whether a batch system has given the number of a former job to this one."""
    return submitted_at != job.submitted_at and None not in {submitted_at, job.submitted_at}


def difference(layout: tuple[tuple[str, int], ...], nodes: tuple[tuple[str, int], ...]) -> str:
    """Return in what a job's place is not what we said."""
    if sorted(layout) == sorted(nodes):
        return ""
    if dict(layout).keys() != dict(nodes).keys():
        return "on other nodes than we said"
    alone = all(count >= dict(nodes)[name] for name, count in layout)
    return "with more processors than it asked for" if alone else "with other processors on each than we said"


def order(job: LrmJob) -> tuple[float, list[int | str]]:
    """Order jobs as they were submitted: where times are equal, by their numbers."""
    if job.id.isdecimal():
        return job.submitted_at or 0.0, ["", int(job.id), ""]
    parts = _DIGITS.split(job.id)
    numbers: list[int | str] = [int(part) if part.isdecimal() else part for part in parts]
    return job.submitted_at or 0.0, numbers


def shape(job: LrmJob) -> object:
    """Return all of a job that decides on which nodes it has room."""
    return (
        job.processors,
        job.queue,
        job.processors_per_task,
        job.nodes_wanted,
        job.tasks_per_node,
        job.memory_per_processor_mib,
        job.memory_per_node_mib,
        job.features,
        job.requested_nodes,
        job.excluded_nodes,
    )

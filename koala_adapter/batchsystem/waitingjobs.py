# SPDX-License-Identifier: Apache-2.0
"""What waits in a batch system's own queue for processors that come free. Pure."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from koala_adapter.model import LrmJobState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from koala_adapter.model import LrmJob, Node

MOST_TOLD = 100
"""What waits behind so many others is not for now."""


def processors_wanted(jobs: Iterable[LrmJob], nodes: Collection[Node], *, time_of_day: float) -> tuple[int, ...]:
    """Return the processors that each waiting job asks for, in the order of the listing, at most MOST_TOLD.

    Only of those that could be started on these nodes if enough were idle: not of those in hold, before their begin
    time, behind other jobs, or bound to other nodes.
    """
    largest = sum(node.processors for node in nodes)
    wanted = (
        job.processors
        for job in jobs
        if _waits_for_processors(job, time_of_day)
        and job.processors <= largest
        and any(_may_run_on(job, node) for node in nodes)
    )
    return tuple(islice(wanted, MOST_TOLD))


def _waits_for_processors(job: LrmJob, time_of_day: float) -> bool:
    waits = job.state is LrmJobState.QUEUED and not job.dependent and not job.blocked
    return waits and (job.eligible_at is None or job.eligible_at <= time_of_day)


def _may_run_on(job: LrmJob, node: Node) -> bool:
    """Tell whether a node is one of those on which a job may run; what is not told does not exclude any."""
    queues = [name for name in job.queue.split(",") if name]  # Slurm: the job may run in any of them
    if queues and node.queues and not set(queues) & set(node.queues):
        return False
    if job.requested_nodes and node.name not in job.requested_nodes:
        return False
    return node.name not in job.excluded_nodes

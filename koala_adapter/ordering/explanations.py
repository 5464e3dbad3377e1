# SPDX-License-Identifier: Apache-2.0
"""Why a job of a batch system waits, and when it starts at the latest. Pure; times are left to whoever shows them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from koala_adapter.errors import JobNotFoundError
from koala_adapter.model import LrmJobId
from koala_adapter.ordering.entries import Phase
from koala_adapter.ordering.listedjobs import array_of

if TYPE_CHECKING:
    from koala_adapter.model import LrmJob
    from koala_adapter.ordering.entries import Entry
    from koala_adapter.ordering.mirror import Mirror
    from koala_adapter.queueing.local_queue import ClusterScheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What is known of one job."""

    job_id: str
    user: str
    name: str
    processors: int
    phase: str
    reason: str
    """Why it waits; empty when it runs."""
    estimate: int
    """Seconds that it may run."""
    position: int | None = None
    """Place in the queue, from 1."""
    queued: int = 0
    """Jobs in that queue."""
    reserved_at: float | None = None
    """When it starts at the latest, as long as all jobs end by their walltimes; None: nothing is promised yet."""
    promised_at: float | None = None
    """The first start that was reserved for it."""
    started_at: float | None = None
    nodes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Where the whole queue stands."""

    read_at: float | None
    """When the batch system was listed last."""
    processors: int
    free: int
    waiting: int
    running: int
    starting: int
    left_out: int


def explain(mirror: Mirror, job_id: str, now: float) -> Explanation:
    """Return what is known of a job. Raises JobNotFoundError."""
    entry = mirror.entries.get(LrmJobId(job_id))
    if entry is None:
        elements = [other.job.id for other in mirror.entries.values() if _is_element(other.job, job_id)]
        hint = "give the id as the batch system writes it"
        if elements:
            hint = f"it is an array: ask for one of its elements, such as {', '.join(elements[:3])}"
        raise JobNotFoundError(f"the batch system shows no unfinished job {job_id}", hint=hint)
    found = Explanation(
        job_id=job_id,
        user=entry.job.user,
        name=entry.job.name,
        processors=entry.job.processors,
        phase=entry.phase.value,
        reason=entry.reason,
        estimate=entry.estimate,
        promised_at=entry.promised,
        started_at=entry.job.started_at,
        nodes=entry.nodes,
    )
    if entry.phase is not Phase.WAITING or entry.pool is None:
        return found
    return _of_waiting(found, entry, mirror.schedulers[entry.pool], now)


def _is_element(job: LrmJob, array: str) -> bool:
    return job.array_index is not None and (array_of(job) or "").rstrip("_.") == array


def _of_waiting(found: Explanation, entry: Entry, scheduler: ClusterScheduler, now: float) -> Explanation:
    if entry.local is None:
        return found
    known = scheduler.reservation(entry.local, now)
    reason = known.reason
    if entry.passed_over:
        reason = f"enough processors are free, but {entry.passed_over}"
    return replace(
        found,
        reason=reason,
        position=known.position or None,
        queued=len(scheduler.waiting),
        reserved_at=known.start,
    )


def overview(mirror: Mirror) -> Overview:
    """Return where the whole queue stands."""
    phases = [entry.phase for entry in mirror.entries.values()]
    return Overview(
        read_at=None if mirror.listing is None else mirror.listing.read_at,
        processors=sum(scheduler.processors for scheduler in mirror.schedulers),
        free=sum(max(0, scheduler.free) for scheduler in mirror.schedulers),
        waiting=phases.count(Phase.WAITING),
        running=phases.count(Phase.RUNNING),
        starting=phases.count(Phase.STARTING),
        left_out=phases.count(Phase.LEFT_OUT) + phases.count(Phase.RETURNING),
    )

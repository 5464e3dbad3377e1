# SPDX-License-Identifier: Apache-2.0
"""Why a job of a batch system waits, and when it starts at the latest. Pure; times are left to whoever shows them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from koala_adapter.errors import JobNotFoundError
from koala_adapter.model import LrmJobId
from koala_adapter.ordering.entries import Phase
from koala_adapter.ordering.listedjobs import array_of
from koala_adapter.ordering.standings import Standing

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.model import LrmJob
    from koala_adapter.ordering.entries import Entry
    from koala_adapter.ordering.mirror import Mirror


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
    """Return what is known of a job; its policy is asked why it waits. Raises JobNotFoundError."""

    def asked(entry: Entry) -> Standing | None:
        if entry.local is None or entry.pool is None:
            return None
        scheduler = mirror.schedulers[entry.pool]
        known = scheduler.reservation(entry.local, now)
        return Standing(position=known.position, queued=len(scheduler.waiting), start=known.start, reason=known.reason)

    return _explained(mirror, job_id, asked)


def explain_as_noted(mirror: Mirror, job_id: str) -> Explanation:
    """Return the same from what was noted after the last decision, so that no policy is asked.

    Raises JobNotFoundError.
    """
    noted = mirror.standings
    return _explained(mirror, job_id, lambda entry: None if noted is None else noted.of(entry))


def _explained(mirror: Mirror, job_id: str, standing_of: Callable[[Entry], Standing | None]) -> Explanation:
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
    standing = standing_of(entry) if entry.phase is Phase.WAITING else None
    if standing is None:
        return found
    passed_over = f"enough processors are free, but {entry.passed_over}" if entry.passed_over else ""
    return replace(
        found,
        reason=passed_over or standing.reason,
        position=standing.position or None,
        queued=standing.queued,
        reserved_at=standing.start,
    )


def _is_element(job: LrmJob, array: str) -> bool:
    return job.array_index is not None and (array_of(job) or "").rstrip("_.") == array


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

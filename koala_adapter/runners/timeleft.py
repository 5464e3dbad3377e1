# SPDX-License-Identifier: Apache-2.0
"""When the processes of a job are ended because their time is over, by the scheduler's records. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.vjm.jobscript import END_MARGIN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.model import PlaceholderId
    from koala_adapter.scheduler.actions import Rank
    from koala_adapter.scheduler.records import JobRecord, PlaceholderRecord


def process_ends_at(
    record: JobRecord, rank: Rank, placeholders: Mapping[PlaceholderId, PlaceholderRecord], now: float
) -> float:
    """Return when a process is ended: with the walltime of its job, or before its own placeholder, as agents do."""
    launched_at = now if record.launched_at is None else record.launched_at
    placeholder = placeholders.get(rank.placeholder)
    own = None if placeholder is None else placeholder.ends_at
    of_job = launched_at + record.job.walltime
    return of_job if own is None else min(of_job, own - END_MARGIN)


def job_ends_at(record: JobRecord, placeholders: Mapping[PlaceholderId, PlaceholderRecord], now: float) -> float:
    """Return when the first process of a launched job is ended, and with it the job if its processes are in step."""
    here = (rank for rank in record.ranks if rank.rank not in record.departed and rank.rank not in record.ends)
    return min((process_ends_at(record, rank, placeholders, now) for rank in here), default=now + record.job.walltime)

# SPDX-License-Identifier: Apache-2.0
"""From DRMAA's word for a job's state, and from what it says of a job's end, to our words. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import EndReason, LrmJob, LrmJobId, LrmJobState
from koala_drmaa.protocol import JobStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_drmaa.protocol import ListedBatch, ListedJob

STATES: Mapping[JobStatus, LrmJobState] = {
    JobStatus.UNDETERMINED: LrmJobState.UNKNOWN,
    JobStatus.QUEUED_ACTIVE: LrmJobState.QUEUED,
    JobStatus.SYSTEM_ON_HOLD: LrmJobState.HELD,
    JobStatus.USER_ON_HOLD: LrmJobState.HELD,
    JobStatus.USER_SYSTEM_ON_HOLD: LrmJobState.HELD,
    JobStatus.RUNNING: LrmJobState.RUNNING,
    JobStatus.SYSTEM_SUSPENDED: LrmJobState.SUSPENDED,
    JobStatus.USER_SUSPENDED: LrmJobState.SUSPENDED,
    JobStatus.USER_SYSTEM_SUSPENDED: LrmJobState.SUSPENDED,
    JobStatus.DONE: LrmJobState.ENDED,
    JobStatus.FAILED: LrmJobState.ENDED,
    JobStatus.GONE: LrmJobState.ENDED,
}
"""Grid Engine's library says RUNNING already while a job is being transferred to its node."""

ON_A_NODE = frozenset({LrmJobState.RUNNING, LrmJobState.SUSPENDED})
UNKNOWN_ID_PREFIX = "unknown:"


def jobs_of_batch(batch: ListedBatch, *, user: str, node: str, queue: str) -> tuple[LrmJob, ...]:
    """Return the jobs of a batch. Those without ids are reported in state UNKNOWN, never as absent."""
    known = (
        _job(batch, job, index, user=user, node=node, queue=queue) for index, job in enumerate(batch.jobs, start=1)
    )
    return (*known, *(_unknown(batch, index, user) for index in range(len(batch.jobs) + 1, batch.count + 1)))


def _unknown(batch: ListedBatch, index: int, user: str) -> LrmJob:
    return LrmJob(
        id=LrmJobId(f"{UNKNOWN_ID_PREFIX}{batch.key}.{index}"),
        name=batch.key,
        state=LrmJobState.UNKNOWN,
        user=user,
        processors=1,
        array_index=index,
        reason="the outcome of the submission is not known",
        submitted_at=batch.submitted_at,
    )


def _job(batch: ListedBatch, job: ListedJob, index: int, *, user: str, node: str, queue: str) -> LrmJob:
    state = STATES[job.status]
    return LrmJob(
        id=LrmJobId(job.id),
        name=batch.key,
        state=state,
        user=user,
        processors=1,
        array_index=index,
        nodes=(node,) if state in ON_A_NODE else (),
        queue=queue,
        end=end_of(job),
        exit_code=job.exit_code,
        signal=job.signal,
        submitted_at=batch.submitted_at,
        ends_at=job.ended_at,
        raw_state=job.status.value,
    )


def end_of(job: ListedJob) -> EndReason | None:
    """Return why a job ended, as far as DRMAA can be believed: it does not tell a walltime from a kill."""
    if job.signal is not None and not job.aborted:
        return None if job.signal == SIGKILL else EndReason.SIGNALLED
    return EndReason.EXITED if job.exit_code is not None else None


SIGKILL = 9
"""Sent by the LRM itself at the end of the walltime or on cancellation, so it says nothing about the reason."""


def unknown_key(id_: LrmJobId) -> str | None:
    """Return the key in an id that we made for a job of unknown outcome; None for a real id."""
    if not id_.startswith(UNKNOWN_ID_PREFIX):
        return None
    return id_.removeprefix(UNKNOWN_ID_PREFIX).rpartition(".")[0]

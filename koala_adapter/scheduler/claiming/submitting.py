# SPDX-License-Identifier: Apache-2.0
"""Submitting placeholders: the records of a batch, and the one request that brings it into its LRM's queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import BatchKey, PlaceholderId
from koala_adapter.scheduler.actions import SubmitPlaceholders
from koala_adapter.scheduler.outcome import PlaceholderState
from koala_adapter.scheduler.records import BatchRecord, PlaceholderRecord

if TYPE_CHECKING:
    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.records import JobRecord


def submit_batch(  # noqa: PLR0917 - what a batch consists of
    context: Context,
    record: JobRecord,
    component: str,
    cluster_name: ClusterName,
    count: int,
    seconds: float,
    *,
    stub: bool = False,
    memory_mib: int = 0,
) -> list[PlaceholderId]:
    """Submit ``count`` placeholders that are to live for so many seconds, or for as long as the cluster allows.

    ``stub``: they are for an application that runs already. ``memory_mib``: of each; 0: what the site says.
    """
    state = context.state
    cluster = state.clusters[cluster_name]
    number = context.batch_number((context.now, record.job.id, component, cluster_name, count))
    key = BatchKey(f"koala-{state.parameters.instance}-{number}")
    walltime = int(seconds)
    if cluster.parameters.walltime_limit is not None:
        walltime = min(walltime, cluster.parameters.walltime_limit)
    batch = BatchRecord(
        key=key,
        cluster=cluster_name,
        job_id=record.job.id,
        component=component,
        count=count,
        submitted_at=context.now,
    )
    placeholders = [
        PlaceholderRecord(
            id=PlaceholderId(batch=key, index=index),
            cluster=cluster_name,
            job_id=record.job.id,
            component=component,
            state=PlaceholderState.SUBMITTED,
            submitted_at=context.now,
            walltime=walltime,
            stub=stub,
        )
        for index in range(1, count + 1)
    ]
    context.ledger.add_batch(batch, placeholders)
    submit = SubmitPlaceholders(batch=key, cluster=cluster_name, count=count, walltime=walltime, memory_mib=memory_mib)
    context.effects.add(submit)
    return [placeholder.id for placeholder in placeholders]

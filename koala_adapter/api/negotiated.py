# SPDX-License-Identifier: Apache-2.0
"""What came of the negotiations of a job, for its report; what reads them is imported with the first that has any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import RunnerName

if TYPE_CHECKING:
    from koala_adapter.scheduler.records import JobRecord
    from koala_adapter.service.negotiationstore import NegotiationStore


def negotiated(store: NegotiationStore, record: JobRecord, now: float) -> str:
    """Say what came of the latest negotiations of a job; empty when there were none."""
    if record.job.runner is RunnerName.RANKS:
        return ""  # such a job keeps its size
    from koala_adapter.api.negotiationbuilder import job_negotiations

    return job_negotiations(store, record, now)

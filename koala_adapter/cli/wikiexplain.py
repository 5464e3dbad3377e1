# SPDX-License-Identifier: Apache-2.0
"""Why a job that a WIKI server reports waits, for ``koala explain``. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.errors import JobNotFoundError
from koala_adapter.model import LrmJobState
from koala_adapter.ordering.entries import Phase
from koala_adapter.ordering.explanations import Explanation
from koala_adapter.wiki.offers import offer
from koala_adapter.wiki.recordbuilder import ACTIVE, UNLIMITED, WAITING, why_not_offered

if TYPE_CHECKING:
    from koala_adapter.model import LrmJob
    from koala_adapter.wiki.inventory import Inventory

OFFERED = "it is offered to the scheduler that asks by WIKI, which has not started it yet"


def explained(inventory: Inventory, job_id: str) -> Explanation:
    """Return what is known of a job that is not over. Raises JobNotFoundError."""
    job = inventory.job(job_id)
    if job is None or job.state is LrmJobState.ENDED:
        raise JobNotFoundError(
            f"the batch system shows no unfinished job {job_id}", hint="give the id as the batch system writes it"
        )
    phase = Phase.RUNNING if job.state in ACTIVE else Phase.LEFT_OUT
    return Explanation(
        job_id=job_id,
        user=job.user,
        name=job.name,
        processors=job.processors,
        phase=(Phase.STARTING if job.state is LrmJobState.STARTING else phase).value,
        reason=_reason(inventory, job) if job.state in WAITING else "",
        estimate=job.walltime or UNLIMITED,
        started_at=job.started_at,
        nodes=job.layout,
    )


def _reason(inventory: Inventory, job: LrmJob) -> str:
    reason = why_not_offered(job, user_holds=inventory.words.user_holds)
    return reason or offer(job, inventory.offered, one_node=inventory.words.one_node).obstacle or OFFERED

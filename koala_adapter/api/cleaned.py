# SPDX-License-Identifier: Apache-2.0
"""What is told of jobs that were cleaned away."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from koala_adapter.errors import JobNotFoundError

if TYPE_CHECKING:
    from koala_adapter.service.journal import Journal


def require_not_cleaned(journal: Journal, job_id: str, wall_offset: float) -> None:
    """Raise JobNotFoundError when a job was cleaned away.

    ``wall_offset``: seconds to add to a time of the service clock for people's.
    """
    cleaned_at = journal.finished.cleaned_at(job_id)
    if cleaned_at is not None:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(cleaned_at + wall_offset))
        hint = "it had ended long before; its output and its report are gone for good"
        raise JobNotFoundError(f"job {job_id} was removed by `koala clean` on {at}", hint=hint)

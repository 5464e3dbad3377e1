# SPDX-License-Identifier: Apache-2.0
"""Which jobs are in hold for an outside scheduler, and which their users hold. Pure.

Grid Engine has one bit for the hold of a submission verifier and for that of the user; the context tells them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import LrmJobState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from koala_adapter.model import LrmJob
    from koala_sge.contexts import JobContext

_ACTIVE = frozenset({LrmJobState.STARTING, LrmJobState.RUNNING, LrmJobState.SUSPENDED})


def possibly_hook_holds(jobs: Iterable[LrmJob], in_user_hold: Collection[str]) -> list[LrmJob]:
    """Return the jobs with the hold that a verifier sets: those that wait, and those that would wait again."""
    return [
        job
        for job in jobs
        if (job.state is LrmJobState.HELD and job.id in in_user_hold) or (job.state in _ACTIVE and "h" in job.raw_state)
    ]


def without_users(jobs: Iterable[LrmJob], contexts: Mapping[str, JobContext]) -> tuple[LrmJob, ...]:
    """Return jobs but for those that their users hold; ``contexts`` by the numbers of jobs."""
    users = {number for number, context in contexts.items() if context.user_hold}
    return tuple(job for job in jobs if job.id.partition(".")[0] not in users)

# SPDX-License-Identifier: Apache-2.0
"""Which jobs are in hold for an outside scheduler, and which their users hold, by their contexts. Pure.

Grid Engine has one bit for the hold of a submission verifier and for that of the user.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from koala_adapter.model import LrmJobState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from koala_adapter.model import LrmJob

USER_HOLD = "koala_user_hold"
"""The word in the context of a job that its user held when it was submitted."""

_NUMBER = re.compile(r"job_number:\s+(?P<number>[0-9]+)")
_CONTEXT = re.compile(r"context:\s+(?P<context>\S.*)")
_ACTIVE = frozenset({LrmJobState.STARTING, LrmJobState.RUNNING, LrmJobState.SUSPENDED})


def held_by_users(text: str) -> frozenset[str]:
    """Return the numbers of the jobs of ``qstat -j`` whose contexts say that their users hold them."""
    found, number = set(), ""
    for line in text.splitlines():
        if job := _NUMBER.match(line):
            number = job["number"]
        elif number and (context := _CONTEXT.match(line)):
            words = {word.partition("=")[0].strip() for word in context["context"].split(",")}
            if USER_HOLD in words:
                found.add(number)
    return frozenset(found)


def possibly_hook_holds(jobs: Iterable[LrmJob], in_user_hold: Collection[str]) -> list[LrmJob]:
    """Return the jobs with the hold that a verifier sets: those that wait, and those that would wait again."""
    return [
        job
        for job in jobs
        if (job.state is LrmJobState.HELD and job.id in in_user_hold) or (job.state in _ACTIVE and "h" in job.raw_state)
    ]


def without_users(jobs: Iterable[LrmJob], users: Collection[str]) -> tuple[LrmJob, ...]:
    """Return jobs but for those of which their users hold the whole number."""
    return tuple(job for job in jobs if job.id.partition(".")[0] not in users)

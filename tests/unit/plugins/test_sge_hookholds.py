# SPDX-License-Identifier: Apache-2.0
"""Which jobs of Grid Engine the site's hook holds."""

from __future__ import annotations

from koala_adapter.model import LrmJob, LrmJobId, LrmJobState
from koala_sge.heldjobs import JobContext, possibly_hook_holds, without_users


def job(id_: str, state: LrmJobState, letters: str) -> LrmJob:
    """Return a job."""
    return LrmJob(id=LrmJobId(id_), name="x", state=state, user="u", processors=1, raw_state=letters)


JOBS = (
    job("1", LrmJobState.HELD, "hqw"),
    job("2", LrmJobState.HELD, "hqw"),
    job("3", LrmJobState.RUNNING, "hr"),
    job("4", LrmJobState.RUNNING, "r"),
    job("5.1", LrmJobState.HELD, "hqw"),
)


def test_operators_holds_are_not_ours() -> None:
    """What is not in user hold waits for somebody else; what runs with a hold would come back in it."""
    assert [one.id for one in possibly_hook_holds(JOBS, {"1", "5.1"})] == ["1", "3", "5.1"]


def test_what_users_hold_is_left_to_them() -> None:
    """By the word that conf/sge_jsv.sh leaves in the context of the job, or of the array."""
    contexts = {"1": JobContext(), "5": JobContext(user_hold=True)}
    assert [one.id for one in without_users(JOBS, contexts)] == ["1", "2", "3", "4"]

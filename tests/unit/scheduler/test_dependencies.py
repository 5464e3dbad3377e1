# SPDX-License-Identifier: Apache-2.0
"""Jobs that start only after others have ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koala_adapter.model import After, AfterEnd, Job, JobId
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler.explain import explain
from tests.faults.world import ILL
from tests.unit.scheduler.scheduler_site import Site, copied, job, submissions


def after(one: Job, *before: str, end: AfterEnd = AfterEnd.OK) -> Job:
    return replace(one, after=tuple(After(job=JobId(id_), end=end) for id_ in before))


@pytest.mark.parametrize(
    ("end", "well", "starts"),
    [
        (AfterEnd.OK, True, True),
        (AfterEnd.OK, False, False),
        (AfterEnd.FAILED, True, False),
        (AfterEnd.FAILED, False, True),
        (AfterEnd.ANY, True, True),
        (AfterEnd.ANY, False, True),
    ],
)
def test_a_job_starts_or_is_cancelled_when_the_one_before_ends(end: AfterEnd, *, well: bool, starts: bool) -> None:
    site = Site({"a": 4})
    site.submit(job("1", 1))
    assert submissions(site.submit(after(job("2", 1), "1", end=end))) == {}
    said = explain(site.state, None, site.record("2"), site.now)
    assert said.startswith("The job starts only after job 1 has ")
    site.run("1")
    done = site.complete("1") if well else site.rank_ends("1", 0, ILL)
    if starts:
        assert submissions(done) == {"a": 1}
    else:
        outcome = site.outcome("2")
        assert outcome.state is JobState.CANCELLED
        assert "it was to start only after job 1 had" in explain(site.state, None, site.record("2"), site.now)
    assert site.state.dependents == {}


def test_a_job_waits_for_all_that_it_names() -> None:
    site = Site({"a": 4})
    for id_ in ("1", "2"):
        site.submit(job(id_, 1))
        site.run(id_)
    site.submit(after(job("3", 4), "1", "2"))
    site.complete("2")
    assert site.record("3").state is JobState.WAITING
    site.complete("1")
    site.end_ending()
    site.poll("a", 4)
    assert site.placed("3") == {"c0": ("a", 4)}


def test_a_chain_whose_middle_fails_ends_with_it() -> None:
    """What can never start any more is cancelled at once, link by link; what asks for the failure starts."""
    site = Site({"a": 4})
    site.submit(job("1", 1))
    site.run("1")
    site.submit(after(job("2", 1), "1"))
    site.submit(after(job("3", 1), "2"))
    site.submit(after(job("4", 1), "3"))
    site.submit(after(job("5", 1), "3", end=AfterEnd.FAILED))
    site.cancel("2")
    assert [site.record(id_).state for id_ in ("2", "3", "4")] == [JobState.CANCELLED] * 3
    assert site.placed("5") == {"c0": ("a", 1)}


def test_jobs_that_wait_can_be_cancelled_and_survive_a_restart() -> None:
    site = Site({"a": 4})
    site.submit(job("1", 1))
    site.run("1")
    site.submit(after(job("2", 1), "1"))
    site.submit(after(job("3", 1), "1"))
    site.cancel("2")
    assert site.outcome("2").detail == "cancelled by the user while waiting"
    site.scheduler = Scheduler(copied(site.state))
    site.complete("1")
    assert site.placed("3") == {"c0": ("a", 1)}
    assert site.record("2").state is JobState.CANCELLED


def test_the_job_that_is_awaited_must_be_known() -> None:
    site = Site({"a": 4})
    site.submit(after(job("2", 1), "1"))
    assert site.outcome("2").state is JobState.REFUSED

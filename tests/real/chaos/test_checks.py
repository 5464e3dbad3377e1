# SPDX-License-Identifier: Apache-2.0
"""The checks of chaos find what they are for. Needs no batch system."""

from __future__ import annotations

import random

import pytest

from koala_adapter.model import EndReason
from koala_adapter.outcome import JobOutcome, JobState
from tests.real.chaos.checks import ledger_violations, mpi_output_is_good
from tests.real.chaos.following import printed_violations
from tests.real.chaos.jobs import End, PlannedComponent, PlannedJob, drawn_job
from tests.real.chaos.results import Consequence, History

LINE = b"rank=1 size=3 host=n1 component=c1 sum=6\n"


def planned(end: End = End.EXITS, number: int = 7) -> PlannedJob:
    """Return a job of two ranks that write two lines each."""
    return PlannedJob(
        name="job1", mpi=False, components=(PlannedComponent(cluster=None, minimum=2, maximum=2),), end=end,
        number=number, culprit=0, seconds=1.0, lines=2, walltime=60, followed=True,
    )  # fmt: skip


def outcome(state: JobState, code: int) -> JobOutcome:
    """Return an outcome."""
    return JobOutcome(state=state, reason=EndReason.EXITED, exit_code=code)


def test_a_job_ends_as_planned_or_as_what_happened_to_it() -> None:
    """Its own code is good in any case, that of a fault only where the fault was."""
    history = History(planned())
    assert history.violations() == ["job1 has no final state"]
    history.note(outcome(JobState.FAILED, 7))
    history.note(outcome(JobState.FAILED, 7))
    assert history.violations() == []
    history = History(planned())
    history.note(outcome(JobState.LOST, 242))
    (told,) = history.violations()
    assert "ended as lost 242" in told
    assert "may end as failed 7" in told
    history.hit("agent killed", Consequence.LOST)
    assert history.violations() == []


def test_an_outcome_that_changes_is_told() -> None:
    """Even when both are good by themselves."""
    history = History(planned())
    history.hit("koala cancel", Consequence.CANCELLED)
    history.note(outcome(JobState.CANCELLED, 243))
    history.note(outcome(JobState.FAILED, 7))
    (told,) = history.violations()
    assert "several final states" in told


@pytest.mark.parametrize(
    ("end", "result"),
    [
        (End.COMPLETES, (JobState.COMPLETED, 0)),
        (End.EXITS, (JobState.FAILED, 7)),
        (End.SIGNALLED, (JobState.FAILED, 135)),
        (End.OVERRUNS, (JobState.FAILED, 244)),
        (End.NOT_FOUND, (JobState.FAILED, 127)),
        (End.TOO_LARGE, (JobState.REFUSED, 240)),
    ],
)
def test_planned_ends_have_the_documented_codes(end: End, result: tuple[JobState, int]) -> None:
    """The codes are those of docs/failures.md."""
    assert planned(end).result() == result


@pytest.mark.parametrize(
    ("ledger", "size", "told"),
    [
        ("job1 0\njob1 1\n", 2, ""),
        ("job1 0\n", None, ""),
        ("", 0, ""),
        ("job1 0\njob1 1\njob1 0\n", 2, "started 2 times: rank job1 0"),
        ("job1 0\n", 2, "job1 ran as ranks ['0'], wanted are 2"),
        ("job1 0\njob1 2\n", 2, "job1 ran as ranks ['0', '2'], wanted are 2"),
        ("job1 0\n", 0, "job1 ran as ranks ['0'], wanted are 0"),
        ("job2 0\n", None, "job2 ran as ranks ['0'], wanted are None"),
    ],
)
def test_the_ledger_is_compared_with_the_jobs(ledger: str, size: int | None, told: str) -> None:
    """A rank that was started twice, did not run, or ran and should not is told."""
    assert ledger_violations(ledger, {"job1": size}) == ([told] if told else [])


@pytest.mark.parametrize(
    ("written", "complete", "good"),
    [
        (LINE, True, True),
        (LINE, False, True),
        (b"", False, True),
        (b"", True, False),
        (LINE + LINE, False, False),
        (LINE[:20], False, False),
        (LINE.replace(b"rank=1", b"rank=2"), True, False),
        (LINE.replace(b"sum=6", b"sum=7"), True, False),
    ],
)
def test_the_line_of_an_mpi_rank(written: bytes, *, complete: bool, good: bool) -> None:
    """All of it, once, and with the right sum; nothing only where the job did not complete."""
    assert mpi_output_is_good(written, 1, "out", complete=complete) is good


def test_what_a_rank_writes() -> None:
    """Two streams, one line for each number."""
    assert planned().written(3, "out") == b"job1 3 1\njob1 3 2\n"
    assert planned().written(3, "err") == b"job1 3 error 1\njob1 3 error 2\n"


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        (b"c1/0: job1 0 1\njob1 0 2\n", 0),
        (b"job1 0 1\nkoala: the service went away\nc1/0: job1 0 2\n", 0),
        (b"job1 0 1\n", 1),
        (b"job1 0 2\njob1 0 1\n", 1),
        (b"job1 0 1\njob1 0 2\njob1 0 2\n", 1),
    ],
)
def test_what_is_followed_is_shown_once_and_in_order(printed: bytes, found: int) -> None:
    """With or without marks, between other lines; what is missing, doubled or out of order is told."""
    assert len(printed_violations(printed, planned(), 1)) == found


def test_culprits_are_ranks_of_the_job() -> None:
    """Also of a moldable one, whatever size it gets."""
    chance = random.Random(3)
    for number in range(200):
        job = drawn_job(chance, f"job{number}")
        assert 0 <= job.culprit < sum(component.minimum for component in job.components)

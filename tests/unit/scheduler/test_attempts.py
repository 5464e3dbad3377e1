# SPDX-License-Identifier: Apache-2.0
"""Rank jobs that run again: retries, and walltimes after which they go on from what they have saved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koala_adapter.model import After, EndReason, Job, JobId, Launcher, RetriedEnd, TaskEnd
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import EndAttempt
from koala_adapter.scheduler.ends import ATTEMPT_PATIENCE
from koala_adapter.slots import Slot
from tests.faults.world import ILL, WELL
from tests.unit.scheduler.scheduler_site import Site, ends, job, of_kind, submissions

SAVED = TaskEnd(reason=EndReason.EXITED, exit_code=75)
WALLTIME = TaskEnd(reason=EndReason.WALLTIME)


def retried(count: int, *on: RetriedEnd | int, ranks: int = 1) -> Job:
    one = replace(job("1", ranks, walltime=100), retries=count)
    return replace(one, retry_on=on) if on else one


def requeued(ranks: int = 1) -> Job:
    return replace(job("1", ranks, walltime=100), requeue_on_walltime=True)


def started(one: Job) -> Site:
    """Return a site where a job runs."""
    site = Site({"a": 4})
    site.start(one)
    return site


def run_again(site: Site) -> None:
    """Have the placeholders of an attempt end, and bring the next one to running."""
    site.end_ending()
    site.pass_time(400)
    site.poll("a", 4)
    site.run("1")


def test_a_job_that_fails_runs_again_as_often_as_it_may() -> None:
    site = started(retried(2, ranks=2))
    first = site.record("1").ranks
    done = site.rank_ends("1", 1, ILL)
    assert site.record("1").state is JobState.WAITING
    assert [one.number for one in of_kind(EndAttempt, done)] == [1]
    assert len(ends(done)) == 2
    assert "is decided when the placeholders of its latest attempt are gone, in 60 s at the latest" in site.explained()
    run_again(site)
    assert {rank.placeholder for rank in site.record("1").ranks}.isdisjoint(rank.placeholder for rank in first)
    assert "Attempt 1 ended after 0 s on a: rank 1 (component 'c0') exited with status" in site.explained()
    assert "Retries left: 1." in site.explained()
    site.rank_ends("1", 0, ILL)
    run_again(site)
    site.rank_ends("1", 0, ILL)
    assert site.outcome("1").state is JobState.FAILED
    assert [one.number for one in site.record("1").attempts] == [1, 2]
    assert len(of_kind(EndAttempt, site.actions)) == 2


def test_the_first_retry_is_made_at_once_and_others_after_growing_pauses() -> None:
    site = started(retried(9))
    pauses = []
    for _ in range(5):
        site.rank_ends("1", 0, ILL)
        site.end_ending()
        not_before = site.record("1").not_before
        pauses.append(0.0 if not_before is None else not_before - site.now)
        run_again(site)
    assert pauses == [0.0, 1.0, 3.0, 7.0, 15.0]


@pytest.mark.parametrize(
    ("on", "end", "again"),
    [
        ((), TaskEnd(reason=EndReason.SIGNALLED, signal=9), True),
        ((), TaskEnd(reason=EndReason.LAUNCH_FAILED, exit_code=127), True),
        ((), TaskEnd(reason=EndReason.LOST), True),
        ((), TaskEnd(reason=EndReason.NODE_LOST), True),
        ((), TaskEnd(reason=EndReason.MEMORY), False),
        ((), WALLTIME, False),
        ((), TaskEnd(reason=EndReason.CANCELLED), False),
        ((RetriedEnd.MEMORY,), TaskEnd(reason=EndReason.MEMORY), True),
        ((RetriedEnd.WALLTIME,), WALLTIME, True),
        ((RetriedEnd.LOST,), ILL, False),
        ((3, 137), TaskEnd(reason=EndReason.EXITED, exit_code=3), True),
        ((3, 137), TaskEnd(reason=EndReason.EXITED, exit_code=4), False),
        ((3, 137), TaskEnd(reason=EndReason.SIGNALLED, signal=9), True),
    ],
)
def test_ends_after_which_a_job_runs_again(on: tuple[RetriedEnd | int, ...], end: TaskEnd, *, again: bool) -> None:
    site = started(retried(1, *on))
    site.rank_ends("1", 0, end)
    assert (site.record("1").state is JobState.WAITING) is again


def test_a_job_that_its_user_cancels_does_not_run_again() -> None:
    for between in (False, True):
        site = started(retried(3))
        if between:
            site.rank_ends("1", 0, ILL)
        site.cancel("1")
        assert site.outcome("1").state is JobState.CANCELLED
        site.end_ending()
        site.pass_time(1000)
        assert submissions(site.actions) == {"a": 1}


@pytest.mark.parametrize(
    ("told", "state"),
    [
        (EndReason.NODE_LOST, JobState.CLAIMING),
        (EndReason.WALLTIME, JobState.FAILED),
        (EndReason.CANCELLED, JobState.CANCELLED),
    ],
)
def test_the_batch_system_tells_why_a_placeholder_was_ended(told: EndReason, state: JobState) -> None:
    """An agent that is told to go does not know the reason; until its batch system tells it, nothing is decided."""
    site = started(retried(1))
    (placeholder,) = site.claimed("1")
    site.post(
        ev.PlaceholderEnding(time=site.now, placeholder=placeholder.id, reason=EndReason.CANCELLED, detail="TERM")
    )
    assert site.record("1").between_attempts
    site.ended(placeholder.id, told)
    assert site.record("1").state is state
    if state.final:
        assert site.outcome("1").state is state
        assert not site.record("1").attempts
    else:
        assert site.record("1").attempts[0].outcome.reason is told


def test_placeholders_that_do_not_end_are_not_waited_for_any_longer() -> None:
    site = Site({"a": 4, "b": 4})
    site.start(retried(1))
    site.rank_ends("1", 0, TaskEnd(reason=EndReason.NODE_LOST))
    assert site.record("1").live == 1
    before = len(site.actions)
    site.pass_time(ATTEMPT_PATIENCE)
    assert sum(submissions(site.actions[before:]).values()) == 1
    assert site.record("1").live == 2


def test_jobs_after_one_that_runs_again_wait_for_its_last_attempt() -> None:
    site = started(retried(1))
    site.submit(replace(job("2", 1), after=(After(job=JobId("1")),)))
    site.rank_ends("1", 0, ILL)
    assert site.record("2").state is JobState.WAITING
    run_again(site)
    assert submissions(site.rank_ends("1", 0, WELL)) == {"a": 1}


# -- Going on after the walltime -----------------------------------------------------------------------------


def test_a_job_goes_on_after_its_walltime_until_it_is_finished() -> None:
    site = started(requeued())
    for number in (1, 2, 3):
        site.pass_time(101)
        assert site.record("1").attempts_over == number
        run_again(site)
    site.rank_ends("1", 0, WELL)
    assert site.outcome("1").state is JobState.COMPLETED
    assert [one.outcome.reason for one in site.record("1").attempts] == [EndReason.WALLTIME] * 3


def test_ranks_that_have_saved_their_state_wait_for_the_others() -> None:
    site = started(requeued(ranks=3))
    site.rank_ends("1", 0, SAVED)
    site.rank_ends("1", 1, WELL)
    assert site.record("1").state is JobState.RUNNING
    site.rank_ends("1", 2, SAVED)
    assert site.record("1").state is JobState.WAITING
    assert "says that it has saved its state" in site.record("1").attempts[0].outcome.detail


def test_a_rank_is_lost_beside_one_of_the_same_slot_that_has_saved_its_state() -> None:
    one = requeued()
    site = started(
        replace(one, components=tuple(replace(part, slot=Slot(threads=2, ranks=2)) for part in one.components))
    )
    (placeholder,) = site.claimed("1")
    site.rank_ends("1", 0, SAVED)
    site.ended(placeholder.id, EndReason.NODE_LOST)
    assert site.outcome("1").reason is EndReason.NODE_LOST


def test_one_rank_that_fails_ends_a_job_whose_others_have_saved() -> None:
    site = started(requeued(ranks=2))
    site.rank_ends("1", 0, SAVED)
    site.rank_ends("1", 1, ILL)
    assert site.outcome("1").rank == 1


def test_the_status_means_nothing_where_a_job_does_not_go_on() -> None:
    site = started(job("1", 2))
    site.rank_ends("1", 0, SAVED)
    assert site.outcome("1").exit_code == 75


def test_mpiexec_that_ends_with_the_status_says_it_for_all_ranks() -> None:
    site = Site({"a": 4})
    one = requeued(ranks=2)
    site.start(replace(one, components=tuple(replace(part, launcher=Launcher.MPI) for part in one.components)))
    site.rank_ends("1", 0, SAVED)
    assert site.record("1").state is JobState.RUNNING
    site.rank_ends("1", None, SAVED)
    assert site.record("1").state is JobState.WAITING


def test_requeues_are_no_retries() -> None:
    site = started(replace(requeued(), retries=1))
    for end in (SAVED, ILL, SAVED):
        site.rank_ends("1", 0, end)
        run_again(site)
    site.rank_ends("1", 0, ILL)
    assert site.outcome("1").state is JobState.FAILED
    assert (site.record("1").attempts_over, site.record("1").retries_made) == (3, 1)

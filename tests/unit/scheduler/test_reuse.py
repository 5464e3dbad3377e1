# SPDX-License-Identifier: Apache-2.0
"""Placeholders handed from a completed job to the next, and what is remembered of finished jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koala_adapter.model import EndReason, TaskEnd
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import LaunchJob
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from tests.unit.scheduler.scheduler_site import WELL, A, Site, component, ends, job, launches, of_kind, submissions


def reusing(*second: object, running_size: int = 3, **fields: int) -> Site:
    """Return a site where job 1 runs on all processors and job 2 waits."""
    site = Site({"a": running_size})
    site.submit(job("1", running_size))
    site.submit(job("2", *second, **fields))  # type: ignore[arg-type]
    site.take_all()
    for placeholder in site.claimed("1"):
        site.hold(placeholder.id, ends_at=site.now + 1000)
    return site


def test_placeholders_of_a_completed_job_go_to_the_next() -> None:
    """The waiting job is launched into them at once; what it does not need is given back."""
    site = reusing(2)
    held = {p.id for p in site.claimed("1")}
    done = site.complete("1")
    (launch,) = of_kind(LaunchJob, done)
    assert launch.job_id == "2"
    used = {rank.placeholder for rank in launch.ranks}
    assert used < held
    assert ends(done) == [str(id_) for id_ in held - used]
    assert submissions(done) == {}
    assert site.record("1").live == 1


def test_placeholders_are_not_handed_to_another_user() -> None:
    """Agents run with the rights of whoever submitted them, so they serve nobody else."""
    site = Site({"a": 3})
    site.submit(job("1", 3))
    site.submit(replace(job("2", 2), user="bob"))
    site.submit(job("3", 1))
    site.run("1")
    assert launches(site.complete("1")) == ["3"]


def test_moldable_job_takes_all_that_is_handed_on() -> None:
    """A moldable job grows into the handed placeholders up to its maximum."""
    site = reusing(component("m", 1, 8))
    (launch,) = of_kind(LaunchJob, site.complete("1"))
    assert len(launch.ranks) == 3


def test_several_jobs_share_what_is_handed_on() -> None:
    """Three jobs of one processor each start in the three placeholders."""
    site = reusing(1)
    for name in ("3", "4", "5"):
        site.submit(job(name, 1))
    assert launches(site.complete("1")) == ["2", "3", "4"]


@pytest.mark.parametrize(
    "one",
    [
        (component("x", 4),),
        (2, 2),
        (component("x", 2, cluster="b"),),
    ],
)
def test_job_that_does_not_fit_entirely_gets_nothing(one: tuple[object, ...]) -> None:
    """Placeholders are not handed on in part."""
    site = Site({"a": 3, "b": 9}, Parameters(), ClusterParameters(name=A))
    site.poll("b", 9)
    site.submit(job("filler", component("x", 8, cluster="b")))
    site.submit(job("1", component("x", 3, cluster="a")))
    site.submit(job("2", *one))  # type: ignore[arg-type]
    site.run("1")
    done = site.complete("1")
    assert launches(done) == []
    assert len(ends(done)) == 3


def test_handed_placeholders_last_long_enough() -> None:
    """A longer job is not put into placeholders that end before it could."""
    assert launches(reusing(2, walltime=1001).complete("1")) == []
    assert launches(reusing(2, walltime=1000).complete("1")) == ["2"]


def test_silent_placeholder_is_not_handed_on() -> None:
    """Only agents in contact get new work."""
    site = reusing(3)
    silent = site.claimed("1")[0].id
    site.rank_ends("1", 0)
    site.post(ev.PlaceholderSilent(time=site.now, placeholder=silent, detail=""))
    site.rank_ends("1", 1)
    assert launches(site.rank_ends("1", 2)) == []


def test_placeholder_whose_process_has_not_ended_is_not_handed_on() -> None:
    """When mpiexec is done, its placeholders are used again as soon as their own processes are over, too."""
    site = Site({"a": 3})
    site.submit(job("1", component("x", 3, mpi=True)))
    site.submit(job("2", 2))
    site.submit(job("3", 1))
    site.run("1")
    site.rank_ends("1", 0)
    site.rank_ends("1", 1)
    assert launches(site.rank_ends("1", None)) == []
    assert launches(site.rank_ends("1", 2)) == ["2", "3"]


def test_failed_job_hands_nothing_on() -> None:
    """What state its processors are in nobody knows."""
    site = reusing(2)
    assert launches(site.rank_ends("1", 0, TaskEnd(reason=EndReason.EXITED, exit_code=1))) == []


def test_an_mpi_job_that_wants_files_hands_nothing_on() -> None:
    """Its end is told before they have come; so their agents end, which they do when all is sent."""
    for output_files, handed_on in (((), True), (("*",), False)):
        site = Site({"a": 2})
        site.submit(job("1", replace(component("x", 2, mpi=True), output_files=output_files)))
        site.submit(job("2", 2))
        site.take_all()
        site.hold_all("1")
        site.complete("1")
        done = site.post(ev.RankEnded(time=site.now, job_id=site.record("1").job.id, rank=None, end=WELL))
        assert bool(of_kind(LaunchJob, done)) is handed_on


def test_reuse_can_be_switched_off() -> None:
    """Then every job queues for itself."""
    site = Site({"a": 3}, Parameters(reuse=False))
    site.submit(job("1", 3))
    site.submit(job("2", 3))
    site.run("1")
    assert launches(site.complete("1")) == []


def test_handed_placeholders_belong_to_the_new_job() -> None:
    """The new job's losses and ends are its own; the old job's late messages do not touch it."""
    site = reusing(2)
    site.complete("1")
    site.rank_ends("1", 0, TaskEnd(reason=EndReason.EXITED, exit_code=9))
    site.end_ending()
    assert site.record("2").state is JobState.LAUNCHING
    lost = site.record("2").ranks[0].placeholder
    site.ended(lost, EndReason.NODE_LOST)
    assert site.outcome("2").state is JobState.LOST
    assert site.outcome("1").state is JobState.COMPLETED


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_only_the_last_finished_jobs_are_kept() -> None:
    """Records of earlier ones are dropped, but not while their placeholders are still there."""
    site = Site({"a": 4}, Parameters(finished_kept=3, reuse=False))
    site.submit(job("slow", 1))
    site.run("slow")
    site.complete("slow")
    for number in range(10):
        site.submit(job(f"j{number}", 1))
        site.run(f"j{number}")
        site.complete(f"j{number}")
        (id_,) = (p.id for p in site.state.placeholders.values() if p.job_id == f"j{number}")
        site.ended(id_)
    assert set(site.state.jobs) == {"slow", "j7", "j8", "j9"}
    site.end_ending()
    assert set(site.state.jobs) == {"j7", "j8", "j9"}
    assert not site.state.batches


def test_long_life_leaves_nothing_behind() -> None:
    """After many jobs, timers, tries, batches and queue are as empty as at the beginning."""
    site = Site({"a": 4}, Parameters(finished_kept=5))
    for number in range(200):
        site.submit(job(f"j{number}", 1 + number % 5, walltime=60, maximum_tries=10**9))
        if number % 3 == 0:
            site.cancel(f"j{number}")
        for record in list(site.state.jobs.values()):
            if record.state is JobState.CLAIMING:
                site.run(record.job.id)
                site.complete(record.job.id)
        site.end_ending()
        site.pass_time(10.0)
    site.pass_time(10_000.0)
    site.end_ending()
    state = site.state
    assert len(state.jobs) == len(state.finished) == 5
    assert (state.placeholders, state.batches, len(site.scheduler.timetable), state.tries_end) == ({}, {}, 0, {})

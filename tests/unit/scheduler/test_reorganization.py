# SPDX-License-Identifier: Apache-2.0
"""Resource reorganization: who gets what is held at the end of its life, and that strangers get it in the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koala_adapter.model import EndReason, Job, TaskEnd
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import LaunchJob
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from koala_adapter.scheduler.timers import TimerKind
from tests.unit.scheduler.scheduler_site import (
    WELL,
    A,
    B,
    Site,
    component,
    copied,
    ends,
    job,
    launches,
    of_kind,
    submissions,
)

LIFE = Parameters(placeholder_life=100.0, backoff=50.0, longest_backoff=400.0)
WITHOUT = replace(LIFE, reorganize=False)


def deadlock(parameters: Parameters = LIFE, *, walltime: int = 600, user: str = "alice") -> Site:
    """Return a site where job 1 holds 2 on a and waits for 2 on b, and job 2 (of ``user``) the other way round."""
    site = Site({"a": 4, "b": 4}, parameters)
    halves = (component("x", 2, cluster="a"), component("y", 2, cluster="b"))
    site.queue(job("1", *halves), replace(job("2", *halves, walltime=walltime), user=user))
    site.hold_all("1", "a")
    site.hold_all("2", "b")
    return site


def test_deadlock_ends_with_one_job_started_and_the_other_in_both_queues() -> None:
    """The processors of one job go to the other; nothing is given back or resubmitted, and no time lost by a pause."""
    site = deadlock()
    done = site.pass_time(100.0)
    (winner,) = launches(done)
    assert (ends(done), submissions(done)) == ([], {})
    assert copied(site.state) == site.state
    again = Scheduler()
    for event in site.events:
        again.handle(event)
    assert again.state == site.state
    giver = "2" if winner == "1" else "1"
    record = site.record(giver)
    assert (record.exchanges, record.hand_backs, record.failed_claims, record.held) == (2, 0, 0, 0)
    assert {p.cluster for p in site.claimed(giver)} == {A, B}
    assert f"2 to job {winner}" in record.last_trouble
    assert launches(site.hold_all(giver)) == [giver]


@pytest.mark.parametrize(("parameters", "user"), [(WITHOUT, "alice"), (LIFE, "bob")], ids=["not wanted", "strangers"])
def test_where_nothing_is_exchanged_both_hand_back(parameters: Parameters, user: str) -> None:
    site = deadlock(parameters, user=user)
    done = site.pass_time(100.0)
    assert launches(done) == []
    assert len(set(ends(done))) == 4
    assert site.record("1").exchanges == 0


def test_job_that_would_not_start_gets_nothing() -> None:
    """Holding more starts nobody: the processors are given back to the batch system, which has use for them."""
    site = Site({"a": 4, "b": 12}, LIFE)
    for name in ("1", "2"):
        site.submit(job(name, component("x", 2, cluster="a"), component("y", 2, cluster="b")))
    site.take_all()
    site.hold_all("1", "a")
    assert len(set(ends(site.pass_time(100.0)))) == 2
    assert site.record("1").exchanges == 0


def test_what_would_end_too_soon_is_not_exchanged() -> None:
    site = deadlock(walltime=2000)
    for placeholder in site.claimed("1"):
        if placeholder.held:
            site.hold(placeholder.id, ends_at=site.now + 1500.0)
    site.pass_time(100.0)
    assert site.record("1").exchanges == 0
    assert site.record("1").hand_backs == 1
    site = deadlock(walltime=10)
    del site.record("2").timers[TimerKind.LIFE]  # only job 1 is looked at
    site.record("1").job = replace(site.record("1").job, walltime=10_000)
    site.pass_time(100.0)
    assert site.record("1").exchanges == 0


def test_loss_of_an_exchanged_place_concerns_its_new_job() -> None:
    site = deadlock()
    site.pass_time(100.0)
    (winner,) = launches(site.actions)
    giver = "2" if winner == "1" else "1"
    lost = next(p.id for p in site.claimed(giver) if p.cluster == (A if giver == "1" else B))
    site.ended(lost, EndReason.CANCELLED)
    assert site.record(winner).state is JobState.LAUNCHING
    assert site.record(giver).reclaim_at is not None
    assert sum(submissions(site.pass_time(101.0)).values()) == 1


def test_completed_job_hands_on_to_one_that_waits_in_the_queue_of_the_cluster() -> None:
    """A claiming job that would start with it takes what a completed job held, and leaves its place in the queue."""
    site = Site({"a": 4, "b": 4}, LIFE)
    site.start(job("1", component("x", 2, cluster="a")))
    site.queue(job("2", component("x", 2, cluster="a"), component("y", 2, cluster="b")))
    site.hold_all("2", "b")
    pending = [str(p.id) for p in site.claimed("2") if not p.held]
    done = site.complete("1")
    assert launches(done) == ["2"]
    assert sorted(ends(done)) == sorted(pending)
    site.end_ending()
    assert site.record("2").live == 4


@pytest.mark.parametrize(("priority", "first"), [(1, "2"), (0, "1"), (-1, "1")])
def test_job_of_higher_priority_goes_first(priority: int, first: str) -> None:
    """A processor that a batch system gives to the earlier job goes to the one of higher priority."""
    site = Site({"a": 4}, LIFE)
    site.queue(job("1", 2), job("2", 2, priority=priority))
    arrived = [p.id for p in site.claimed("1")]
    for placeholder in arrived:
        site.hold(placeholder)
    assert launches(site.actions) == [first]


@pytest.mark.parametrize(("priority", "idle", "taken"), [(1000, 0, 2), (0, 0, 0), (1000, 2, 0)])
def test_job_of_higher_priority_takes_what_a_lower_one_holds(priority: int, idle: int, taken: int) -> None:
    """Job 1 holds 2 on a and waits on b. Job 2 comes later; where nothing is idle for it, it starts in these."""
    site = Site({"a": 6, "b": 2}, LIFE)
    site.queue(job("1", component("x", 2, cluster="a"), component("y", 2, cluster="b")))
    site.hold_all("1", "a")
    site.poll("a", 6, idle=idle, ours=2)
    before = len(site.actions)
    site.queue(job("2", component("z", 2, cluster="a"), priority=priority))
    assert launches(site.actions[before:]) == (["2"] if taken else [])
    assert site.record("1").held == 2 - taken
    assert len(site.claimed("1")) == 4


def test_waiting_job_of_higher_priority_is_placed_before_a_reclaim() -> None:
    """What job 1 lost and wants again, at the moment a paused cluster opens, goes to the more important job 2."""
    for priority, winner, loser in ((5, "2", "1"), (0, "1", "2")):
        site = Site({"a": 4, "b": 2}, LIFE)
        site.submit(job("1", component("x", 2, cluster="a"), component("y", 2, cluster="b")))
        site.queue(job("other", component("z", 2, cluster="a")))
        site.state.clusters[A].paused_until = site.now + 20.0
        for placeholder in site.claimed("1"):
            if placeholder.cluster == A:
                site.ended(placeholder.id, EndReason.NODE_LOST)
        site.submit(job("2", component("x", 2, cluster="a"), priority=priority))
        assert site.record("2").state is JobState.WAITING
        site.now += 100.0
        assert submissions(site.post(ev.TimeReached(time=site.now))) == {"a": 2}
        assert len([p for p in site.claimed(winner) if p.cluster == A]) == 2
        assert not [p for p in site.claimed(loser) if p.cluster == A]


def backfilled(parameters: Parameters, *, walltime: int = 50) -> Site:
    """Return a site where job 1 holds 3 on a and waits on b, and a small job waits because ours have all of a."""
    site = Site({"a": 3, "b": 2}, parameters)
    site.queue(job("1", component("x", 3, cluster="a"), component("y", 2, cluster="b")))
    site.hold_all("1", "a")
    site.submit(job("small", component("z", 2, cluster="a"), walltime=walltime))
    assert site.record("small").state is JobState.WAITING
    return site


def test_small_job_runs_in_what_is_handed_back_and_gives_it_to_the_first() -> None:
    """At the end of a life a waiting job starts in the held processors; only the rest is given back."""
    site = backfilled(LIFE)
    done = site.pass_time(100.0)
    assert launches(done) == ["small"]
    assert len(set(ends(done))) == 1
    record = site.record("1")
    assert (record.hand_backs, record.held, record.reclaim_at is not None) == (1, 0, True)
    assert record.last_trouble == (
        "3 held processors were handed back after their life cycle (2 of them to waiting jobs), still waiting on b"
    )
    site.finish("small")
    site.pass_time(100.0)
    site.take_all()
    site.hold_all("1")
    assert launches(site.actions) == ["small", "1"]


@pytest.mark.parametrize(
    ("parameters", "walltime"),
    [(WITHOUT, 50), (replace(LIFE, reuse=False), 50), (LIFE, 5000)],
    ids=["no reorganization", "no reuse", "too long"],
)
def test_all_is_given_back_when_no_small_job_may_use_it(parameters: Parameters, walltime: int) -> None:
    done = backfilled(parameters, walltime=walltime).pass_time(100.0)
    assert launches(done) == []
    assert len(set(ends(done))) == 3


# -- Placeholders handed from a completed job to the next, and what is remembered of finished jobs -----------


def reusing(*waiting: Job, parameters: Parameters | None = None) -> Site:
    """Return a site where job 1 runs on all three processors and others wait."""
    site = Site({"a": 3}, parameters)
    for one in (job("1", 3), *waiting):
        site.submit(one)
    site.take_all()
    for placeholder in site.claimed("1"):
        site.hold(placeholder.id, ends_at=site.now + 1000)
    return site


def test_placeholders_of_a_completed_job_go_to_the_next() -> None:
    """And are no concern of the first one any more."""
    site = reusing(job("2", 2))
    held = {p.id for p in site.claimed("1")}
    done = site.complete("1")
    (launch,) = of_kind(LaunchJob, done)
    assert launch.job_id == "2"
    used = {rank.placeholder for rank in launch.ranks}
    assert used < held
    assert ends(done) == [str(id_) for id_ in held - used]
    assert submissions(done) == {}
    assert site.record("1").live == 1
    site.rank_ends("1", 0, TaskEnd(reason=EndReason.EXITED, exit_code=9))
    site.end_ending()
    assert site.record("2").state is JobState.LAUNCHING
    site.ended(launch.ranks[0].placeholder, EndReason.NODE_LOST)
    assert site.outcome("2").state is JobState.LOST
    assert site.outcome("1").state is JobState.COMPLETED


@pytest.mark.parametrize(
    ("parameters", "waiting", "launched"),
    [
        (None, [replace(job("2", 2), user="bob"), job("3", 1)], {"3": 1}),  # agents have the rights of their user
        (None, [job("2", component("m", 1, 8))], {"2": 3}),
        (None, [job(name, 1) for name in ("2", "3", "4", "5")], {"2": 1, "3": 1, "4": 1}),
        (None, [job("2", 2, walltime=1001)], {}),  # the placeholders end in 1000 s
        (None, [job("2", 2, walltime=1000)], {"2": 2}),
        (Parameters(reuse=False), [job("2", 3)], {}),
    ],
    ids=["user", "moldable", "several", "too long", "just long enough", "off"],
)
def test_who_gets_the_placeholders_of_a_completed_job(
    parameters: Parameters | None, waiting: list[Job], launched: dict[str, int]
) -> None:
    done = reusing(*waiting, parameters=parameters).complete("1")
    assert {one.job_id: len(one.ranks) for one in of_kind(LaunchJob, done)} == launched


@pytest.mark.parametrize("one", [job("2", 4), job("2", 2, 2), job("2", component("x", 2, cluster="b"))])
def test_job_that_does_not_fit_entirely_gets_nothing(one: Job) -> None:
    site = Site({"a": 3, "b": 9})
    site.submit(job("filler", component("x", 8, cluster="b")), job("1", component("x", 3, cluster="a")), one)
    site.run("1")
    done = site.complete("1")
    assert launches(done) == []
    assert len(ends(done)) == 3


def test_silent_placeholder_is_not_handed_on() -> None:
    site = reusing(job("2", 3))
    silent = site.claimed("1")[0].id
    site.rank_ends("1", 0)
    site.silence(silent)
    site.rank_ends("1", 1)
    assert launches(site.rank_ends("1", 2)) == []


def test_placeholder_whose_process_has_not_ended_is_not_handed_on() -> None:
    """When mpiexec is done, its placeholders are used again as soon as their own processes are over, too."""
    site = Site({"a": 3})
    site.submit(job("1", component("x", 3, mpi=True)), job("2", 2), job("3", 1))
    site.run("1")
    site.rank_ends("1", 0)
    site.rank_ends("1", 1)
    assert launches(site.rank_ends("1", None)) == []
    assert launches(site.rank_ends("1", 2)) == ["2", "3"]


def test_failed_job_hands_nothing_on() -> None:
    """What state its processors are in nobody knows."""
    site = reusing(job("2", 2))
    assert launches(site.rank_ends("1", 0, TaskEnd(reason=EndReason.EXITED, exit_code=1))) == []


def test_an_mpi_job_that_wants_files_hands_nothing_on() -> None:
    """Its end is told before they have come; so their agents end, which they do when all is sent."""
    for output_files, handed_on in (((), True), (("*",), False)):
        site = Site({"a": 2})
        site.queue(job("1", replace(component("x", 2, mpi=True), output_files=output_files)), job("2", 2))
        site.hold_all("1")
        site.complete("1")
        done = site.post(ev.RankEnded(time=site.now, job_id=site.record("1").job.id, rank=None, end=WELL))
        assert bool(of_kind(LaunchJob, done)) is handed_on


def test_placeholders_go_to_no_job_whose_software_their_cluster_lacks() -> None:
    """It waits for the cluster that has it."""
    for software, launched in (((), ["2"]), (("gromacs",), [])):
        has = ClusterParameters(name=B, software=("gromacs",), placeholders_in_flight=2)
        site = Site({"a": 2, "b": 2}, None, has)
        site.submit(job("filler", component("x", 2, cluster="b")))
        site.submit(job("1", component("x", 2, cluster="a")))
        site.submit(job("2", replace(component("x", 2), software=software)))
        site.run("1")
        assert launches(site.complete("1")) == launched


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_only_the_last_finished_jobs_are_kept() -> None:
    """Records of earlier ones are dropped, but not while their placeholders are still there."""
    site = Site({"a": 4}, Parameters(finished_kept=3, reuse=False))
    site.start(job("slow", 1))
    site.complete("slow")
    for number in range(10):
        site.start(job(f"j{number}", 1))
        site.complete(f"j{number}")
        (id_,) = (p.id for p in site.state.placeholders.values() if p.job_id == f"j{number}")
        site.ended(id_)
    assert set(site.state.jobs) == {"slow", "j7", "j8", "j9"}
    site.end_ending()
    assert set(site.state.jobs) == {"j7", "j8", "j9"}
    assert not site.state.batches


def test_long_life_leaves_nothing_behind() -> None:
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

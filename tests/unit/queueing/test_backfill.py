# SPDX-License-Identifier: Apache-2.0
"""Backfilling: plans of one cluster, of several, and of a workload."""

from __future__ import annotations

import doctest

import pytest

from benchmarks.queues import plain_easy
from koala_adapter.errors import ConfigurationError
from koala_adapter.queueing import backfill as cluster_module
from koala_adapter.queueing.backfill import (
    POLICIES,
    ClusterScheduler,
    LocalJob,
    PriorityWeights,
    make_cluster_scheduler,
)
from koala_adapter.queueing.maui import COMBINATIONS, Greedy, Metric
from koala_adapter.simulation.models import lublin
from koala_adapter.simulation.replay import Policy, Site, replay

# -- Hand-computed cases for every policy of one cluster, and what only a live cluster does to them.
# The cluster of the first part has ten processors. At 0 "r" runs on six of them until 100; "h" needs eight, so it can
# start at 100 and leaves two extra processors then; four are free now.


def job(name: str, processors: int, estimate: float, submitted_at: float = 0, user: str = "") -> LocalJob:
    return LocalJob(name, processors, estimate, submitted_at, user)


def names(jobs: list[LocalJob]) -> list[str | int]:
    return [each.id for each in jobs]


def blocked(policy: str, *waiting: LocalJob, **options: object) -> ClusterScheduler:
    """Return a cluster where "r" runs, "h" is the head of the queue and the others wait behind it."""
    scheduler = make_cluster_scheduler(policy, 10, **options)  # type: ignore[arg-type]
    scheduler.submit(job("r", 6, 100))
    scheduler.submit(job("h", 8, 50, 1))
    scheduler.schedule(0)
    for each in waiting:
        scheduler.submit(each)
    return scheduler


def behind() -> list[LocalJob]:
    """Return what waits behind the head: by the shadow time, on the extra processors, neither, and by it again."""
    return [job("late", 3, 101, 2), job("extra", 2, 500, 3), job("short", 1, 100, 4), job("small", 1, 500, 5)]


@pytest.mark.parametrize(
    ("policy", "options", "started"),
    [
        ("fcfs", {}, []),
        ("easy", {}, ["extra", "short"]),
        ("firstfit", {}, ["extra", "short"]),
        ("metacluster", {}, ["short"]),
        ("conservative", {}, ["extra", "short"]),
        ("bestfit", {"metric": "processors"}, ["extra", "short"]),
        ("bestfit", {"metric": "seconds"}, ["extra", "short"]),
        ("greedy", {"metric": "processors"}, ["extra", "short"]),
    ],
)
def test_who_may_overtake_the_head(policy: str, options: dict[str, object], started: list[str]) -> None:
    """At 0, "late" would end after the shadow on three processors where two are extra; "extra" uses these up."""
    assert names(blocked(policy, *behind(), **options).schedule(0)) == started


def test_greedy_beyond_its_bound_still_fills_the_gap() -> None:
    """Too many kinds of candidates for the exact answer: the best are combined, and nothing that fits is left out."""
    free = 1000
    scheduler = make_cluster_scheduler("greedy", free + 10, metric="processor-seconds")
    assert isinstance(scheduler, Greedy)
    scheduler.adopt(job("r", 10, 5000), 0, 0)
    scheduler.submit(job("h", free + 10, 5))
    waiting = [job(f"{number}", 1 + number % 50, 100 + number) for number in range(3000)]
    assert len(waiting) * free > COMBINATIONS
    for each in waiting:
        scheduler.submit(each)
    started = scheduler.schedule(0)
    assert scheduler.beyond == 1
    assert scheduler.counters()["beyond_bound"] == 1
    assert scheduler.free == 0
    assert sum(each.processors for each in started) == free


# Order


@pytest.mark.parametrize(
    ("weights", "order"),
    [
        (PriorityWeights(), ["old", "wide", "new"]),
        (PriorityWeights(processors=100), ["wide", "new", "old"]),
        (PriorityWeights(processors=-100), ["old", "new", "wide"]),
        (PriorityWeights(queue_time=-1), ["new", "wide", "old"]),
    ],
)
def test_priority_is_a_weighted_sum(weights: PriorityWeights, order: list[str]) -> None:
    scheduler = make_cluster_scheduler("fcfs", 8, weights=weights)
    for each in (job("old", 1, 10, 0), job("wide", 5, 10, 10), job("new", 2, 10, 20)):
        scheduler.submit(each)
    assert names(list(scheduler.waiting)) == order


def test_points_of_a_job_count_as_well() -> None:
    """Sixty points are as good as a minute in the queue."""
    scheduler = make_cluster_scheduler("easy", 8)
    favoured = LocalJob("favoured", 1, 10, 59, priority=60)
    for each in (job("first", 1, 10, 0), favoured):
        scheduler.submit(each)
    assert names(list(scheduler.waiting)) == ["favoured", "first"]
    scheduler.revise(favoured, 60, priority=0)
    assert names(list(scheduler.waiting)) == ["first", "favoured"]


@pytest.mark.parametrize("policy", POLICIES)
def test_who_used_much_lately_goes_later(policy: str) -> None:
    """Ann ran for an hour, Bob did not; Bob's job came a minute later and goes first; days later it is as before."""
    for pause, first in ((0, "of bob"), (40 * 86_400, "of ann")):
        scheduler = make_cluster_scheduler(policy, 4, weights=PriorityWeights(share=3600))
        ran = job("ran", 4, 3600, 0, "ann")
        scheduler.submit(ran)
        assert scheduler.schedule(0) == [ran]
        scheduler.end(ran, 3600)
        later = 3600 + pause
        # somebody else's use makes the shares: without it ann has all there ever was
        if pause:
            other = job("other", 4, 3600, later - 3600, "eve")
            scheduler.submit(other)
            assert scheduler.schedule(later - 3600) == [other]
            scheduler.end(other, later)
        scheduler.submit(job("of ann", 4, 10, later - 60, "ann"))
        scheduler.submit(job("of bob", 4, 10, later, "bob"))
        assert names(scheduler.schedule(later)) == [first]


# What a live cluster does


@pytest.mark.parametrize("policy", POLICIES)
def test_withdrawing_the_head_lets_the_next_start(policy: str) -> None:
    scheduler = blocked(policy, job("next", 4, 900, 2))
    assert scheduler.schedule(2) == []
    head, brief = scheduler.waiting[0], job("brief", 1, 900, 3)
    scheduler.submit(brief)
    scheduler.withdraw(brief, 3)
    scheduler.withdraw(head, 3)
    assert names(scheduler.schedule(3)) == ["next"]
    with pytest.raises(ValueError, match="not in list"):
        scheduler.withdraw(head, 3)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_larger_than_the_cluster_is_in_nobodys_way(policy: str) -> None:
    scheduler = make_cluster_scheduler(policy, 4)
    large, small = job("large", 6, 10, 0), job("small", 4, 10, 1)
    scheduler.submit(large)
    scheduler.submit(small)
    assert names(scheduler.schedule(1)) == ["small"]
    assert scheduler.reservation(large, 1).reason == "it needs 6 processors, the cluster has 4 now"
    another = job("another", 2, 10, 2)
    scheduler.submit(another)
    scheduler.resize(6, 3)
    assert names(list(scheduler.waiting)) == ["large", "another"]
    scheduler.end(small, 5)
    assert names(scheduler.schedule(5)) == ["large"]
    scheduler.withdraw(another, 5)
    assert not scheduler.waiting


@pytest.mark.parametrize("policy", POLICIES)
def test_lost_nodes_are_not_given_away(policy: str) -> None:
    """Ten processors become five while six are held: nothing starts until enough is free again."""
    scheduler = blocked(policy, job("next", 1, 10, 2))
    scheduler.resize(5, 2)
    assert scheduler.free == -1
    assert scheduler.schedule(2) == []
    assert names(list(scheduler.waiting)) == ["next", "h"]
    scheduler.end(scheduler.running[0], 9)
    assert names(scheduler.schedule(9)) == ["next"]
    assert scheduler.free == 4


@pytest.mark.parametrize("policy", ["easy", "firstfit", "bestfit", "greedy", "conservative"])
def test_a_longer_walltime_moves_the_shadow(policy: str) -> None:
    """The running job may run until 200 now: who ends by 150 may overtake, and the head's start is 200."""
    scheduler = blocked(policy, job("until 150", 4, 147, 2))
    assert scheduler.schedule(2) == []
    scheduler.revise(scheduler.running[0], 3, estimate=200)
    assert names(scheduler.schedule(3)) == ["until 150"]
    assert scheduler.reservation(scheduler.waiting[0], 3).start == 200


@pytest.mark.parametrize("policy", ["easy", "metacluster", "firstfit", "bestfit", "greedy", "conservative"])
def test_a_shorter_walltime_of_a_waiting_job_lets_it_overtake(policy: str) -> None:
    long = job("long", 4, 147, 2)
    scheduler = blocked(policy, long)
    assert scheduler.schedule(2) == []
    scheduler.revise(long, 3, estimate=97)
    assert scheduler.schedule(3) == [long]
    assert names(list(scheduler.waiting)) == ["h"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_runs_without_us_holds_its_processors(policy: str) -> None:
    scheduler = make_cluster_scheduler(policy, 4)
    stranger, ours = job("stranger", 3, 100), job("ours", 2, 10)
    scheduler.submit(ours)
    scheduler.adopt(stranger, 7, 20)
    assert (scheduler.free, names(list(scheduler.running))) == (1, ["stranger"])
    assert scheduler.schedule(20) == []
    assert scheduler.reservation(ours, 20).start == 107
    scheduler.end(stranger, 30)
    assert scheduler.schedule(30) == [ours]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_overruns_is_expected_to_end_now(policy: str) -> None:
    """At 150 "r" should have ended at 100: "h" is to start now, and starts when "r" really ends."""
    scheduler = blocked(policy, job("long", 4, 500, 2))
    assert scheduler.schedule(2) == []
    assert scheduler.schedule(150) == []
    head = scheduler.waiting[0]
    reservation = scheduler.reservation(head, 150)
    assert (reservation.start, reservation.position) == (150, 1)
    assert reservation.reason == "it needs 8 processors, 4 of 10 are free; they are reserved for it"
    scheduler.end(scheduler.running[0], 170)
    assert names(scheduler.schedule(170)) == ["h"]


@pytest.mark.parametrize("policy", ["easy", "bestfit"])
def test_a_shadow_time_that_has_passed_is_worked_out_again(policy: str) -> None:
    """At 150 both that run should have ended: all ten would be free, so two are extra though nothing happened."""
    scheduler = make_cluster_scheduler(policy, 10)
    for each in (job("until 100", 6, 100), job("until 120", 2, 120), job("h", 8, 50)):
        scheduler.submit(each)
    assert names(scheduler.schedule(0)) == ["until 100", "until 120"]
    scheduler.submit(job("long", 2, 900, 150))
    assert names(scheduler.schedule(150)) == ["long"]


def test_conservative_plans_anew_what_an_overrun_broke() -> None:
    """Job "h" could not start at 100: at 120 it is to start now and "s", which needs it gone, 50 seconds later."""
    second = job("s", 9, 10, 2)
    scheduler = blocked("conservative", second)
    for now in (2, 100, 120):
        assert scheduler.schedule(now) == []
    assert list(scheduler.reservations(120).values()) == [120, 170]


def test_conservative_that_is_asked_late_does_not_give_processors_twice() -> None:
    """The pass comes at 130 instead of 100: "h" holds its processors until 180, so "s" starts no earlier."""
    second = job("s", 9, 10, 2)
    scheduler = blocked("conservative", second)
    scheduler.schedule(2)
    scheduler.end(scheduler.running[0], 130)
    assert names(scheduler.schedule(130)) == ["h"]
    assert scheduler.reservation(second, 130).start == 180


# Questions


def test_why_a_job_waits() -> None:
    second, third = job("second", 4, 147, 2), job("third", 5, 1, 3)
    scheduler = blocked("conservative", second)
    scheduler.schedule(2)
    assert scheduler.reservation(second, 2).reason == "starting it now would delay a job before it"
    scheduler = blocked("easy", second, third)
    scheduler.schedule(3)
    assert scheduler.reservation(second, 3).reason == "1 job is before it in the queue"
    assert scheduler.reservation(second, 3).start is None
    assert (
        scheduler.reservation(third, 3).reason
        == "2 jobs are before it in the queue, and it needs 5 processors, 4 of 10 are free"
    )
    with pytest.raises(ValueError, match="not in list"):
        scheduler.reservation(scheduler.running[0], 3)


def test_counters_and_metrics() -> None:
    scheduler = blocked("easy", *behind())
    scheduler.schedule(0)
    assert scheduler.counters() == {"passes": 2, "backfilled": 2}
    assert [metric.of(job("a", 3, 20)) for metric in Metric] == [3, 60, 20]


def test_the_example_of_the_interface_is_true() -> None:
    assert doctest.testmod(cluster_module).failed == 0


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("sjf", {}, "there is no policy 'sjf'"),
        ("bestfit", {"metric": "joules"}, "there is no backfill metric 'joules'"),
        ("firstfit", {"depth": 0}, "must be at least 1, not 0"),
        ("fcfs", {"processors": -1}, "cannot have -1 processors"),
    ],
)
def test_what_cannot_be_made_is_refused(policy: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_cluster_scheduler(policy, **{"processors": 4, **options})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="half-life"):
        PriorityWeights(half_life=0)


# -- The policies of one cluster on a workload of realistic size: EASY beside a bare loop written by itself.


JOBS = lublin(2000, seed=5, processors=128)
SITE = Site(name="machine", processors=128)


@pytest.fixture(scope="module")
def bare() -> list[float]:
    return plain_easy(JOBS.submits, JOBS.runs, JOBS.sizes, JOBS.estimates, SITE.processors)


@pytest.mark.parametrize("name", ["easy", "firstfit"])
def test_easy_is_what_the_bare_loop_does(name: str, bare: list[float]) -> None:
    """EASY and FIRSTFIT of depth 1 start each of two thousand jobs when the loop does, and many of them had to wait."""
    assert list(replay(JOBS, Policy(name=name), [SITE]).starts) == bare
    assert sum(start > submit for start, submit in zip(bare, JOBS.submits, strict=True)) > len(JOBS) / 10

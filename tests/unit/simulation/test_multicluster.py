# SPDX-License-Identifier: Apache-2.0
"""The simulator that counts processors, and the delays it is given."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from statistics import fmean

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from koala_adapter.errors import SimulationError
from koala_adapter.model import ClusterName, Component
from koala_adapter.scheduler.malleable.policies import MALLEABILITY_POLICIES
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.simulation.applications import (
    FREE,
    Application,
    Interpolated,
    JobResult,
    Outcome,
    ReconfigurationCost,
    SimulatedJob,
    SpeedUp,
)
from koala_adapter.simulation.countedclusters import Run
from koala_adapter.simulation.multicluster import Multicluster, Settings, simulate
from koala_adapter.simulation.platform import DAS3, BackgroundLoad, ClusterModel, Failures, Platform
from koala_adapter.simulation.world import LocalUse
from koala_adapter.sizes import AcceptanceRule, AnySize, PowerOfTwo
from koala_experiments.malleable import WM, WM_HIGH, WMR, WMR_HIGH, koala_workload
from tests.examples import examples

# -- The count-level multicluster simulator: cases worked out by hand, and identities on random workloads.


class EvenlyDivided(SpeedUp):
    """100 processor-seconds of work."""

    def execution_time(self, processors: int) -> float:
        """See :meth:`SpeedUp.execution_time`."""
        return 100.0 / processors


def application(
    minimum: int = 2, maximum: int = 8, rule: AcceptanceRule | None = None, cost: ReconfigurationCost = FREE
) -> Application:
    """Return an application with perfect speed-up."""
    return Application(
        name="perfect",
        speed_up=EvenlyDivided(),
        minimum=minimum,
        maximum=maximum,
        acceptance=rule or AnySize(),
        cost=cost,
    )


def platform(*processors: int, threshold: int = 0) -> Platform:
    """Return clusters c0, c1 ... of these sizes."""
    models = [ClusterModel(name=f"c{n}", nodes=size, threshold=threshold) for n, size in enumerate(processors)]
    return Platform(clusters=tuple(models))


def jobs(
    *submitted: float, app: Application | None = None, initial: int = 2, malleable: bool = True
) -> list[SimulatedJob]:
    """Return one job for each time of submission."""
    chosen = app or application()
    return [
        SimulatedJob(number=n, submitted_at=at, application=chosen, initial=initial, malleable=malleable)
        for n, at in enumerate(submitted)
    ]


def run(
    where: Platform,
    workload: list[SimulatedJob],
    approach: str = "pwa",
    malleability: str = "fpsma",
    *,
    placeholder_delay: float = 0.0,
    poll_interval: float = 0.0,
    seed: int = 0,
) -> Outcome:
    """Return the outcome of a simulation, its jobs in order of their numbers."""
    chosen = Settings(
        approach=Approach(approach),
        malleability=malleability,
        placeholder_delay=placeholder_delay,
        poll_interval=poll_interval,
        seed=seed,
    )
    outcome = simulate(where, workload, chosen)
    outcome.jobs.sort(key=lambda one: one.job.number)
    return outcome


def plain(outcome: Outcome) -> str:
    """Return all that came out as text, the jobs by their numbers."""
    rows = [
        (one.job.number, one.started_at, one.ended_at, one.clusters, one.average_processors) for one in outcome.jobs
    ]
    return repr((rows, replace(outcome, jobs=[])))


def times(outcome: Outcome) -> list[tuple[float, float]]:
    """Return start and end of each job, to the nanosecond."""
    return [(round(one.started_at, 9), round(one.ended_at, 9)) for one in outcome.jobs]


# ---- by hand --------------------------------------------------------------------------------------------------------


def test_a_rigid_job_runs_on_what_it_asked_for() -> None:
    """100 processor-seconds on 2 processors are 50 s; a cluster of double speed needs half."""
    outcome = run(platform(8), jobs(3.0, malleable=False))
    assert times(outcome) == [(3.0, 53.0)]
    fast = Platform(clusters=(ClusterModel(name="fast", nodes=8, speed=2.0),))
    assert times(run(fast, jobs(3.0, malleable=False))) == [(3.0, 28.0)]


def test_without_malleability_nobody_is_asked_anything() -> None:
    outcome = run(platform(4), jobs(0.0, 0.0, 0.0), "none")
    assert times(outcome) == [(0.0, 50.0), (0.0, 50.0), (50.0, 100.0)]
    assert (outcome.grow_messages, outcome.shrink_messages) == (0, 0)


def test_pwa_shrinks_for_the_head_and_grows_what_is_left() -> None:
    """The first job has all 8 processors, gives 2 to the second, and the second gets all when the first has ended.

    5 s on 8 leave 60 processor-seconds: 10 s on 6. The second does 20 on 2 until then, and its other 80 on 8.
    """
    outcome = run(platform(8), jobs(0.0, 5.0), "pwa")
    assert times(outcome) == [(0.0, 15.0), (5.0, 25.0)]
    first, second = outcome.jobs
    assert (first.maximum_processors, first.grown, first.shrunk) == (8, 1, 1)
    assert first.average_processors == pytest.approx(100 / 15)
    assert second.average_processors == pytest.approx(100 / 20)
    assert [(round(at, 9), grow, shrink) for at, grow, shrink in outcome.messages] == [(0, 1, 0), (5, 0, 1), (15, 1, 0)]
    assert [(round(at, 9), used) for at, used, _ in outcome.used] == [(0, 8), (25, 0)]


def test_pra_lets_the_queue_wait_for_the_running() -> None:
    assert times(run(platform(8), jobs(0.0, 5.0), "pra")) == [(0.0, 12.5), (12.5, 25.0)]
    # Three rigid processors leave 5: the malleable job takes them all, and those of the rigid job at 10 s.
    rigid = SimulatedJob(number=0, submitted_at=0.0, application=application(1, 8), initial=3)
    short = replace(rigid, work=0.3)
    workload = [short, *[replace(job, number=job.number + 1) for job in jobs(0.0, 1.0)]]
    outcome = run(platform(8), workload, "pra")
    # 5 processors until 10 s: 50 done; then 8: 6.25 s; the waiting job starts when that has ended.
    assert times(outcome) == [(0.0, 10.0), (0.0, 16.25), (16.25, 28.75)]
    assert outcome.shrink_messages == 0


def test_pwa_scans_the_queue_before_it_grows() -> None:
    """What comes free goes to the waiting job, although a running one could use it."""
    rigid = SimulatedJob(number=0, submitted_at=0.0, application=application(1, 8), initial=6, work=0.6)
    waiting = SimulatedJob(number=2, submitted_at=1.0, application=application(1, 8), initial=6, work=0.6)
    malleable = replace(jobs(0.0)[0], number=1)
    outcome = run(platform(8), [rigid, malleable, waiting], "pwa")
    assert times(outcome)[2] == (10.0, 20.0)
    assert outcome.jobs[1].maximum_processors == 8  # only after 20 s


def test_pwa_grows_when_shrinking_cannot_help() -> None:
    rigid = SimulatedJob(number=0, submitted_at=0.0, application=application(1, 8), initial=3, work=3.0)
    large = SimulatedJob(number=2, submitted_at=1.0, application=application(1, 8), initial=7)
    malleable = replace(jobs(0.0)[0], number=1)
    outcome = run(platform(8), [rigid, malleable, large], "pwa")
    assert outcome.shrink_messages == 0
    assert times(outcome) == [(0.0, 100.0), (0.0, 20.0), (100.0, round(100.0 + 100 / 7, 9))]


def test_fpsma_and_egs_share_differently() -> None:
    """Of 8 processors with two jobs, FPSMA gives the first 6, EGS gives each 4."""
    fpsma = run(platform(8), jobs(0.0, 0.0), "pwa", "fpsma")
    egs = run(platform(8), jobs(0.0, 0.0), "pwa", "egs")
    assert [one.maximum_processors for one in fpsma.jobs] == [6, 8]
    assert [one.maximum_processors for one in egs.jobs] == [4, 4]
    assert times(egs) == [(0.0, 25.0), (0.0, 25.0)]
    assert times(fpsma)[0] == (0.0, round(100 / 6, 9))


def test_power_of_two_sizes_are_kept() -> None:
    outcome = run(platform(7), jobs(0.0, app=application(rule=PowerOfTwo())), "pra")
    assert outcome.jobs[0].maximum_processors == 4
    assert times(outcome) == [(0.0, 25.0)]


def test_worst_fit_takes_the_cluster_with_most_idle_processors() -> None:
    """Jobs of 2 on clusters of 4, 6 and 5 go to the second, then to the third, then to the second again."""
    outcome = run(platform(4, 6, 5), jobs(0.0, 1.0, 2.0, malleable=False))
    assert [one.clusters for one in outcome.jobs] == [("c1",), ("c2",), ("c0",)]


def test_worst_fit_counts_what_a_threshold_keeps_as_idle() -> None:
    """As live, load is measured without thresholds: 10 idle with 5 kept back come before 7 idle."""
    where = Platform(
        clusters=(ClusterModel(name="c0", nodes=7), ClusterModel(name="c1", nodes=10, threshold=5)),
    )
    assert [one.clusters for one in run(where, jobs(0.0, malleable=False)).jobs] == [("c1",)]


def test_what_an_egs_round_leaves_over_is_offered_again() -> None:
    first, second = jobs(0.0, 0.0)
    workload = [replace(first, application=application(maximum=3)), replace(second, application=application(maximum=7))]
    outcome = run(platform(10), workload, "pwa", "egs-repeated")
    assert [one.maximum_processors for one in outcome.jobs] == [3, 7]
    assert outcome.messages[0] == (0.0, 3, 0)
    assert outcome.used[0] == (0.0, 10, 0)


def test_what_all_declined_is_not_offered_again() -> None:
    """FT declines 1 processor once: the end of another job that frees nothing usable brings no second offer."""
    ft = application(rule=PowerOfTwo(), maximum=8)
    rigid = SimulatedJob(number=1, submitted_at=1.0, application=application(1, 8), initial=1, work=0.01)
    outcome = run(platform(3), [replace(jobs(0.0)[0], application=ft), rigid], "pwa")
    assert outcome.messages == [(0.0, 1, 0)]


def test_a_co_allocated_job_runs_at_the_speed_of_its_slowest_cluster() -> None:
    parts = (
        Component(name="left", command=(), minimum=3, maximum=3, cluster=ClusterName("slow")),
        Component(name="right", command=(), minimum=2, maximum=2),
    )
    job = SimulatedJob(number=0, submitted_at=0.0, application=application(), initial=5, components=parts)
    where = Platform(
        clusters=(ClusterModel(name="fast", nodes=4, speed=4.0), ClusterModel(name="slow", nodes=4, speed=0.5))
    )
    outcome = run(where, [job])
    assert times(outcome) == [(0.0, 40.0)]
    assert sorted(outcome.jobs[0].clusters) == ["fast", "slow"]


def test_a_co_allocated_job_grows_on_each_of_its_clusters_and_makes_room_there() -> None:
    parts = tuple(Component(name=name, command=(), minimum=2, maximum=2) for name in ("left", "right"))
    first = SimulatedJob(
        number=0, submitted_at=0.0, application=application(4, 12), initial=4, malleable=True, components=parts,
        placement="worst-fit",
    )  # fmt: skip
    second = replace(first, number=1, submitted_at=5.0)
    outcome = run(platform(6, 6), [first, second])
    # 12 processors for 5 s leave 40; 4 of them go to the second job: 5 s on 8. Then the second has done 20 of 100.
    assert times(outcome) == [(0.0, 10.0), (5.0, round(10.0 + 80 / 12, 9))]


def test_the_threshold_is_left_to_local_users() -> None:
    outcome = run(platform(8, threshold=3), jobs(0.0, 1.0, 2.0), "pwa", "egs")
    assert max(managed for _, managed, _ in outcome.used) == 5


def test_growing_waits_for_placeholders_and_stands_still_for_its_cost() -> None:
    """With 4 s until placeholders are held and 3 s for a change, 2 processors compute until 8 s, 8 from 11 s on."""
    app = application(cost=ReconfigurationCost(fixed=3.0))
    outcome = run(platform(8), jobs(0.0, app=app), placeholder_delay=4.0)
    # From 4 s (start) to 8 s on 2: 8 of 100 done; the other 92 on 8 take 11.5 s.
    assert times(outcome) == [(4.0, 22.5)]
    assert outcome.used == [(0.0, 2, 0), (4.0, 8, 0), (22.5, 0, 0)]
    assert outcome.jobs[0].average_processors == pytest.approx(8.0)


def test_shrinking_gives_processors_back_after_its_cost() -> None:
    """The job stands still for 3 s before the 2 processors for the second one come free."""
    app = application(cost=ReconfigurationCost(fixed=3.0))
    first, second = jobs(0.0, 10.0, app=app)
    outcome = run(platform(8), [first, replace(second, malleable=False)])
    # 3 s standing still, 7 s on 8 until 10 s: 56 done; 3 s standing still; 44 on 6 take 7.33 s.
    assert times(outcome) == [(0.0, round(13.0 + 44 / 6, 9)), (13.0, 63.0)]


def test_room_is_made_once_and_not_grown_into() -> None:
    app = application(cost=ReconfigurationCost(fixed=3.0))
    workload = jobs(0.0, 0.0, 10.0, 11.0, app=app)
    outcome = run(platform(8, 8), workload)
    # Both grow to 8 until 3 s. At 10 s one gives up 2 until 13 s; then room is made for the fourth.
    assert outcome.messages[:3] == [(0.0, 2, 0), (10.0, 0, 1), (13.0, 0, 1)]
    assert [one.started_at for one in outcome.jobs] == [0.0, 0.0, 13.0, 16.0]


def test_room_is_not_made_for_local_users() -> None:
    """Where a local job waits, it would get what comes free: nobody is shrunk, and it goes first."""
    world = Multicluster(platform(8), jobs(0.0, 5.0), Settings())
    use = LocalUse(submitted_at=1.0, processors=8, run=50.0)
    world.engine.at(1.0, partial(world.members[0].local_job, use))
    outcome = world.run()
    assert outcome.shrink_messages == 0
    assert times(outcome) == [(0.0, 12.5), (62.5, 75.0)]
    assert outcome.used[1] == (12.5, 0, 8)


def test_what_was_declined_is_offered_again_when_more_comes_free() -> None:
    ft = replace(jobs(0.0)[0], application=application(rule=PowerOfTwo()))
    rigid = SimulatedJob(number=1, submitted_at=1.0, application=application(1, 8), initial=2, work=0.1)
    outcome = run(platform(7), [ft, rigid])
    assert outcome.messages == [(0.0, 2, 0), (6.0, 1, 0)]


def test_local_users_are_seen_when_the_information_service_looks() -> None:
    """Seen at once, local users cost no failed claim; seen late, a claim fails first, and all jobs run all the same."""
    busy = platform(8).model_copy(update={"background": BackgroundLoad(utilization=0.7, mean_run=100.0, mean_size=3.0)})
    workload = jobs(*(30.0 * n for n in range(60)), malleable=False)
    at_once = run(busy, workload, seed=4)
    late = run(busy, workload, seed=4, poll_interval=60.0)
    assert (at_once.failed_claims, len(at_once.jobs), len(late.jobs)) == (0, 60, 60)
    assert late.failed_claims > 0
    assert fmean(one.wait for one in late.jobs) > fmean(one.wait for one in at_once.jobs)


def test_jobs_on_a_failed_node_begin_again() -> None:
    """Failures lose work, not jobs: all end in time, some after a restart, later than without failures."""
    calm = platform(8, 8)
    failing = calm.model_copy(update={"failures": Failures(mean_time_between=400.0, mean_repair=50.0)})
    workload = jobs(*(20.0 * n for n in range(40)))
    outcome = run(failing, workload, seed=1)
    assert len(outcome.jobs) == 40
    assert sum(one.restarts for one in outcome.jobs) > 0
    assert fmean(one.response for one in outcome.jobs) > fmean(one.response for one in run(calm, workload).jobs)


def test_jobs_that_can_never_run_are_refused_with_the_reason() -> None:
    """Too many processors for every cluster, or for the application: said at once, and the others run."""
    large = SimulatedJob(number=9, submitted_at=0.0, application=application(1, 100), initial=9)
    odd = SimulatedJob(number=8, submitted_at=0.0, application=application(), initial=9)
    lost = replace(jobs(0.0)[0], number=7, placement="best-of-all")
    outcome = run(platform(8), [large, odd, lost, *jobs(0.0)])
    assert len(outcome.jobs) == 1
    reasons = [reason for _, reason in outcome.refused]
    assert "needs 9 processors, at most 8 can be used there" in reasons[0]
    assert reasons[1] == "asks for 9 processors, perfect runs on at most 8"
    assert "no placement policy best-of-all" in reasons[2]


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(SimulationError, match=r"policy luck \(there is fpsma, egs, egs-repeated, equip"):
        Settings(malleability="luck")


def test_an_interrupted_run_shows_what_came_out_so_far() -> None:
    """Until 60 s one job has ended, two run; going on gives what one run would have given."""
    workload = jobs(0.0, 20.0, 40.0, malleable=False)
    world = Multicluster(platform(8), workload, Settings())
    partial = world.run(until=60.0)
    assert ([one.job.number for one in partial.jobs], partial.unfinished) == ([0], 2)
    assert plain(world.run()) == plain(simulate(platform(8), workload, Settings()))


def test_results_can_go_elsewhere() -> None:
    """A million results need not be kept: whoever asks for them takes them one by one."""
    taken: list[JobResult] = []
    world = Multicluster(platform(8), iter(jobs(0.0, 1.0)), Settings(timeline=False), on_end=taken.append)
    outcome = world.run()
    assert (len(taken), outcome.jobs, outcome.used, outcome.messages) == (2, [], [], [])
    assert outcome.grow_messages > 0


def test_the_workloads_are_those_of_the_paper() -> None:
    """300 jobs, half FT half GADGET-2, every 120 or 30 s, all malleable or half of them, starting on 2 processors."""
    for workload, interarrival, malleable in ((WM, 120, 300), (WMR, 120, 150), (WM_HIGH, 30, 300), (WMR_HIGH, 30, 150)):
        found = koala_workload(workload, seed=5)
        assert [job.submitted_at for job in found] == [interarrival * n for n in range(300)]
        assert sum(job.malleable for job in found) == malleable
        assert sum(job.application.name == "FT" for job in found) == 150
        assert {job.initial for job in found} == {2}
        assert {(job.application.minimum, job.application.maximum) for job in found} == {(2, 32), (2, 46)}
        assert found != koala_workload(workload, seed=6)
    poisson = koala_workload(WM, seed=1, jobs=4000, poisson=True)
    assert poisson[-1].submitted_at / 3999 == pytest.approx(120.0, rel=0.05)


# ---- identities -----------------------------------------------------------------------------------------------------


class Watched(Multicluster):
    """Checks the world after every instant, and adds up the work done by itself."""

    def __init__(self, where: Platform, workload: list[SimulatedJob], chosen: Settings) -> None:
        """Watch from the beginning."""
        self.done: dict[int, float] = {}
        self.last: dict[int, tuple[Run, float, int, bool]] = {}
        super().__init__(where, workload, chosen)

    def instant(self, now: float) -> None:
        """Let an instant happen, then look at the world."""
        for number, (one, since, size, standing) in self.last.items():
            seconds = now - max(since, one.since)
            if not standing and seconds > 0:
                self.done[number] = self.done.get(number, 0.0) + seconds * size * one.speed / 100.0
        super().instant(now)
        self.last = {n: (one, max(now, one.since), one.size, bool(one.standing)) for n, one in self.runs.items()}
        for cluster in self.members:
            held = sum(one.held.get(cluster, 0) for one in self.runs.values())
            assert held == cluster.managed <= cluster.capacity
            assert cluster.idle >= 0
            assert cluster.shrinking == -sum(part.pending for part in cluster.running if part.pending < 0)
            for part in cluster.running:
                assert part.minimum <= part.size <= part.maximum
                assert part.run.held[cluster] >= part.minimum
            assert cluster.running.growth == sum(p.maximum - p.size for p in cluster.running if not p.busy)
            assert cluster.running.spare == sum(p.size - p.minimum for p in cluster.running if not p.busy)


random_jobs = st.lists(
    st.tuples(
        st.floats(0.0, 60.0),
        st.integers(1, 3),
        st.integers(0, 9),
        st.booleans(),
        st.booleans(),
        st.sampled_from([0.0, 0.0, 2.0]),
    ),
    min_size=1,
    max_size=30,
)


RIGID = (1, 0, False, False, 0.0)
SHRUNK_AT_ONCE_AND_LATER = [
    *((gap, *RIGID) for gap in (0.0, 0.0, 0.0, 17.0, 32.0, 32.0, 40.0, 44.0, 0.0, 0.0, 10.0)),
    (0.0, 1, 1, True, False, 2.0),
    (25.0, 1, 1, True, False, 0.0),
    (1.0, 3, 0, False, False, 0.0),
]
"""The last one needs what one application gives up at once, and another after standing still."""


@examples(40)
@example(SHRUNK_AT_ONCE_AND_LATER, "pwa", "egs", 0.0, (0.5, 0.0, 0))
@given(
    random_jobs,
    st.sampled_from(["none", "pra", "pwa"]),
    st.sampled_from(sorted(MALLEABILITY_POLICIES)),
    st.sampled_from([0.0, 1.5]),
    st.tuples(st.sampled_from([0.0, 0.5]), st.sampled_from([0.0, 20.0]), st.integers(0, 3)),
)
def test_processors_and_work_are_conserved(
    plan: list[tuple[float, int, int, bool, bool, float]],
    approach: str,
    malleability: str,
    delay: float,
    others: tuple[float, float, int],
) -> None:
    workload = []
    time = 0.0
    for number, (gap, minimum, extra, malleable, power, cost) in enumerate(plan):
        time += gap
        low = 1 << (minimum - 1) if power else minimum
        rule: AcceptanceRule = PowerOfTwo() if power else AnySize()
        app = application(low, low + extra, rule, ReconfigurationCost(fixed=cost))
        workload.append(
            SimulatedJob(number=number, submitted_at=time, application=app, initial=low, malleable=malleable)
        )
    utilization, poll_interval, threshold = others
    where = platform(9, 7, threshold=threshold).with_background(utilization)
    chosen = Settings(
        approach=Approach(approach), malleability=malleability, placeholder_delay=delay, poll_interval=poll_interval
    )
    world = Watched(where, workload, chosen)
    outcome = world.run()
    assert len(outcome.jobs) == len(workload)
    assert world.done == pytest.approx(dict.fromkeys(range(len(workload)), 1.0))
    assert all(cluster.managed == 0 and len(cluster.running) == 0 for cluster in world.members)
    if approach == "none":
        assert outcome.grow_messages == outcome.shrink_messages == 0
    if approach == "pra" and malleability != "equipartition":
        assert outcome.shrink_messages == 0
    for one in outcome.jobs:
        assert one.started_at >= one.job.submitted_at
        assert one.maximum_processors <= one.job.application.maximum
        assert one.average_processors <= one.maximum_processors + 1e-9


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("malleability", sorted(MALLEABILITY_POLICIES))
def test_nothing_is_lost_in_a_crowd(malleability: str, seed: int) -> None:
    chance = random.Random(seed)
    workload = []
    now = 0.0
    for number in range(60):
        now += chance.choice([0.0, 0.5, 1.0, 4.0])
        rule: AcceptanceRule = chance.choice([AnySize(), PowerOfTwo()])
        cost = ReconfigurationCost(fixed=chance.choice([0.0, 1.0, 3.0]), per_processor=chance.choice([0.0, 0.1]))
        low = chance.choice([1, 2])
        app = application(low, low + chance.randint(0, 8), rule, cost)
        malleable = chance.random() < 0.8
        workload.append(
            SimulatedJob(number=number, submitted_at=now, application=app, initial=low, malleable=malleable)
        )
    where = platform(9, 7, threshold=seed % 3)
    chosen = Settings(malleability=malleability, placeholder_delay=float(seed % 2), seed=seed)
    world = Watched(where, workload, chosen)
    outcome = world.run()
    assert len(outcome.jobs) == 60
    assert outcome.shrink_messages > 0
    assert world.done == pytest.approx(dict.fromkeys(range(60), 1.0))


@pytest.mark.parametrize("malleability", sorted(MALLEABILITY_POLICIES))
def test_a_seed_gives_the_same_outcome_to_the_last_byte(malleability: str) -> None:
    where = DAS3.with_background(0.5)
    chosen = Settings(malleability=malleability, seed=3, poll_interval=20.0, placeholder_delay=5.0)
    workload = koala_workload(WM_HIGH, 3, jobs=100)
    first = plain(simulate(where, workload, chosen))
    assert first == plain(simulate(where, koala_workload(WM_HIGH, 3, jobs=100), chosen))
    assert first != plain(simulate(where, workload, replace(chosen, seed=4)))


def test_malleability_shortens_execution_on_das3() -> None:
    """The first claim of the paper: both approaches beat rigid jobs of 2 processors."""
    for workload, approach in ((WM, Approach.PRA), (WM_HIGH, Approach.PWA)):
        rigid = simulate(DAS3, koala_workload(workload, 1, malleable=False), Settings(approach=Approach.NONE))
        malleable = simulate(DAS3, koala_workload(workload, 1), Settings(approach=approach))
        assert fmean(one.execution for one in rigid.jobs) == pytest.approx(360.0)
        assert fmean(one.execution for one in malleable.jobs) < 180.0


# -- The delays of a live system in the simulator on counts, worked out by hand.


PLATFORM = Platform(name="one", clusters=(ClusterModel(name="c", nodes=4),))


def job(number: int, at: float, size: int, seconds: float, *, least: int | None = None) -> SimulatedJob:
    """Return a job whose execution time does not depend on its size; malleable when it may have ``least``."""
    curve = Interpolated(((1, seconds), (4, seconds)))
    application = Application(name="flat", speed_up=curve, minimum=least or size, maximum=size)
    malleable = least is not None
    return SimulatedJob(number=number, submitted_at=at, application=application, initial=size, malleable=malleable)


def results(jobs: list[SimulatedJob], **delays: float) -> dict[int, JobResult]:
    """Return what becomes of jobs under PWA with FPSMA."""
    settings = Settings(approach=Approach.PWA, malleability="fpsma", **delays)  # type: ignore[arg-type]
    return {one.job.number: one for one in simulate(PLATFORM, jobs, settings).jobs}


def test_a_job_holds_its_processors_longer_than_it_computes() -> None:
    """Held after 3 s; then 2 s until it computes, 100 s of work, and 1 s until its end is known."""
    found = results([job(0, 0.0, 2, 100.0)], placeholder_delay=3.0, start_delay=2.0, end_delay=1.0)[0]
    assert (found.started_at, found.ended_at) == (3.0, 106.0)


def test_processors_of_an_ended_job_come_free_later() -> None:
    """The next job is placed 5 s after the end, and neither before nor on processors that are not idle yet."""
    found = results([job(0, 0.0, 4, 100.0), job(1, 10.0, 3, 50.0)], release_delay=5.0)
    assert found[0].ended_at == 100.0
    assert (found[1].started_at, found[1].ended_at) == (105.0, 155.0)


def test_processors_that_are_given_up_come_free_later() -> None:
    """Shrunk at 10 s for a job that waits, which starts at 15 s; nobody is asked again meanwhile."""
    found = results([job(0, 0.0, 4, 100.0, least=1), job(1, 10.0, 2, 50.0)], release_delay=5.0)
    assert found[1].started_at == 15.0
    assert found[0].shrunk == 1
    assert found[0].average_processors < 4.0


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("processors_per_node", [1, 2])
def test_a_node_fails_whose_processors_are_not_known_to_be_idle(seed: int, processors_per_node: int) -> None:
    nodes = 4 // processors_per_node
    cluster = ClusterModel(name="c", nodes=nodes, processors_per_node=processors_per_node)
    failing = Failures(mean_time_between=300.0 * nodes, mean_repair=20.0)
    workload = [job(number, 10.0 * number, 1 + number % 4, 60.0) for number in range(40)]
    outcome = simulate(
        Platform(name="one", clusters=(cluster,), failures=failing),
        workload,
        Settings(approach=Approach.PWA, malleability="fpsma", release_delay=5.0, seed=seed),
    )
    assert len(outcome.jobs) == 40
    assert sum(one.restarts for one in outcome.jobs) > 0
    assert all(0 <= managed + local <= 4 for _, managed, local in outcome.used)

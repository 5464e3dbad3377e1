# SPDX-License-Identifier: Apache-2.0
"""Traces replayed on one cluster and on platforms."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace as changed
from itertools import islice, pairwise, takewhile
from pathlib import Path

import pytest
from hypothesis import given

from koala_adapter.errors import ConfigurationError
from koala_adapter.queueing.backfill import POLICIES
from koala_adapter.simulation.metrics import Summary, job_metrics, summarized, used_processors
from koala_adapter.simulation.models import make_model
from koala_adapter.simulation.platform import (
    DAS3,
    BackgroundLoad,
    ClusterModel,
    Failures,
    load_platform,
)
from koala_adapter.simulation.replay import NEVER, PlatformReplay, Policy, Replay, Site, replay, within_memory
from koala_adapter.simulation.workload import NEEDED, Workload, read_trace, workload
from koala_adapter.simulation.world import FIRST, LAST, Engine, LocalUse, Outage, local_users, outages
from tests.unit.simulation.workloads import PROCESSORS, any_workload, archive, make

# -- Replays: schedules computed by hand, numbers of other simulators, and laws that every schedule obeys.


EVERY_POLICY = pytest.mark.parametrize("policy", POLICIES)


def played(work: Workload, policy: str = "easy", processors: int = PROCESSORS) -> Replay:
    """Return what happens on one cluster."""
    return replay(work, Policy(name=policy), [Site(name="here", processors=processors)])


def starts(policy: str, *jobs: tuple[float, ...], processors: int = 4) -> Sequence[float]:
    """Return when jobs, as `make` takes them, start on a cluster of four processors."""
    return played(make(*jobs, processors=processors), policy, processors).starts


def test_fcfs_by_hand() -> None:
    assert starts("fcfs", (0, 3, 10), (1, 2, 5), (2, 1, 1), (3, 4, 2)) == [0, 10, 10, 15]


def test_easy_by_hand() -> None:
    # 3 of 4 are taken until 10. The head needs 2: shadow time 10, two extra processors then.
    assert starts("easy", (0, 3, 10), (1, 2, 5), (2, 1, 8)) == [0, 10, 2]
    assert starts("easy", (0, 3, 10), (1, 2, 5), (2, 1, 9)) == [0, 10, 2]
    # The head needs all 4: nothing is extra, so a job must end by 10.
    assert starts("easy", (0, 3, 10), (1, 4, 5), (2, 1, 8), (2, 1, 9)) == [0, 10, 2, 15]
    # With the simplest backfill extra processors are nobody's.
    assert starts("metacluster", (0, 3, 10), (1, 2, 5), (2, 1, 9)) == [0, 10, 10]


def test_estimates_count_and_not_run_times() -> None:
    assert starts("easy", (0, 3, 5, 10), (1, 4, 5), (2, 1, 8)) == [0, 10, 2]
    assert starts("easy", (0, 3, 5, 10), (1, 4, 5), (2, 1, 2, 9)) == [0, 5, 10]


def test_all_of_an_instant_happens_before_the_pass() -> None:
    assert starts("easy", (0, 4, 10), (10, 4, 5)) == [0, 10]
    # One pass per event would start the small job in the room of the large one that comes at the same instant.
    assert starts("fcfs", (0, 4, 10), (3, 4, 5), (10, 1, 5)) == [0, 10, 15]
    assert starts("easy", (0, 2, 10), (0, 2, 10), (5, 4, 1), (5, 1, 5)) == [0, 0, 10, 11]


GIB = 1024 * 1024


@pytest.mark.parametrize(
    ("memory", "taken"),
    [(0, 2), (-1, 2), (2 * GIB, 2), (2 * GIB + 1, 3), (4 * GIB, 4), (8 * GIB, 8), (8 * GIB + 1, None)],
)
def test_memory_takes_the_processors_of_its_places(memory: int, taken: int | None) -> None:
    """On nodes of 4 processors and 8 GiB: of 3 GiB there are two places, of 8 GiB one."""
    cluster = ClusterModel(name="x", nodes=3, processors_per_node=4, memory_per_node=8192)
    assert cluster.processors_taken(2, memory) == taken
    assert cluster.model_copy(update={"memory_per_node": None}).processors_taken(2, memory) == 2


LARGE = ClusterModel(name="large", nodes=2, processors_per_node=4, memory_per_node=8192)
SMALL = ClusterModel(name="small", nodes=20, memory_per_node=1)


@pytest.mark.parametrize("clusters", [(LARGE,), (LARGE, SMALL), (SMALL, LARGE)])
def test_jobs_wait_for_memory(clusters: tuple[ClusterModel, ...]) -> None:
    """Of three jobs that need a node each, one waits for one of two; a cluster without the memory is no help."""
    sites = [Site(name=one.name, processors=one.processors, cluster=one) for one in clusters]
    work = make((0, 2, 10), (0, 2, 10), (0, 2, 10), (0, 1, 10))
    assert replay(work, Policy(name="easy"), sites).starts == [0, 0, 0, 0]
    asking = changed(work, memory=[4 * GIB, 4 * GIB, 4 * GIB, 9 * GIB])
    left = within_memory(asking, sites)
    assert [str(one) for one in left.irregularities] == ["1 jobs too large for the memory of nodes (left out)"]
    assert replay(left, Policy(name="easy"), sites).starts == [0, 0, 10]


@EVERY_POLICY
@given(work=any_workload)
def test_laws_of_every_schedule(policy: str, work: Workload) -> None:
    result = played(work, policy)
    assert not result.interrupted
    assert all(start >= submit for start, submit in zip(result.starts, work.submits, strict=True))
    measured = job_metrics(result)
    used = used_processors(measured)
    assert 0 <= min(used.values) <= max(used.values) <= PROCESSORS
    total = used.mean(0, max(measured.ends)) * max(measured.ends)
    assert total == pytest.approx(sum(size * run for size, run in zip(work.sizes, work.runs, strict=True)))


@EVERY_POLICY
@given(work=any_workload)
def test_no_policy_leaves_the_cluster_idle(policy: str, work: Workload) -> None:
    """While a job waits, the head of the queue at least does not fit: never do all processors stand idle."""
    measured = job_metrics(played(work, policy))
    idle = [
        (end, min((start for start in measured.starts if start >= end), default=end))
        for end in [0, *measured.ends]
        if not any(start <= end < until for start, until in zip(measured.starts, measured.ends, strict=True))
    ]
    waiting = list(zip(measured.submits, measured.starts, strict=True))
    assert not any(submit <= begin < end <= start for begin, end in idle for submit, start in waiting)


@given(work=any_workload)
def test_fcfs_never_overtakes(work: Workload) -> None:
    assert all(one <= other for one, other in pairwise(played(work, "fcfs").starts))


@given(work=any_workload)
def test_firstfit_is_easy(work: Workload) -> None:
    """FIRSTFIT with one reservation and the order of arrival gives the schedule of EASY."""
    assert played(work, "firstfit").starts == played(work, "easy").starts


@given(work=any_workload)
def test_the_first_of_the_queue_is_not_delayed_by_backfill(work: Workload) -> None:
    """With exact estimates, the first job that waits starts under EASY when it starts under FCFS."""
    exact = make(*zip(work.submits, work.sizes, work.runs, work.runs, strict=True))
    fcfs, easy = played(exact, "fcfs").starts, played(exact, "easy").starts
    first = next((place for place, start in enumerate(fcfs) if start > exact.submits[place]), 0)
    assert easy[: first + 1] == fcfs[: first + 1]


@pytest.mark.parametrize("names", ["bcs", "scb"])
def test_equally_loaded_clusters_are_chosen_by_size_then_name(names: str) -> None:
    """The larger, then the first by name, in whatever order they are given."""
    sizes = {"b": 8, "c": 8, "s": 4}
    sites = [Site(name=name, processors=sizes[name]) for name in names]
    jobs = make((0, 8, 100), (1, 4, 100), (2, 4, 100), (3, 8, 100))
    places = replay(jobs, Policy(name="fcfs"), sites).places
    assert [names[place] for place in places] == ["b", "c", "s", "c"]


def test_a_job_goes_to_the_least_loaded_cluster_that_is_large_enough() -> None:
    work = make((0, 1, 10), (0, 2, 10), (0, 2, 10), (0, 6, 10), (0, 2, 10))
    sites = [Site(name="small", processors=4), Site(name="large", processors=8)]
    result = replay(work, Policy(name="metacluster"), sites)
    # 0/4 and 0/8: large; 0/4 and 1/8: small; 2/4 and 1/8: large; 6 fit only on large, and wait; 2/4 and 9/8: small.
    assert list(result.places) == [1, 0, 1, 1, 0]
    assert list(result.starts) == [0, 0, 0, 10, 0]
    assert result.processors == 12


def test_a_faster_cluster_ends_jobs_sooner() -> None:
    """On a cluster of speed 2 a job of 10 s takes 5, and so does its estimate."""
    work = make((0, 4, 10), (1, 4, 10))
    result = replay(work, Policy(name="easy"), [Site(name="fast", processors=4, speed=2)])
    assert (list(result.starts), list(result.runs)) == ([0, 5], [5, 5])
    assert list(work.runs) == [10, 10]


@given(work=any_workload)
def test_one_cluster_of_several_loops_is_one_cluster(work: Workload) -> None:
    site = Site(name="here", processors=PROCESSORS)
    twice = make(
        *((t, n, 2 * r, 2 * e) for t, n, r, e in zip(work.submits, work.sizes, work.runs, work.estimates, strict=True))
    )
    fast = replay(twice, Policy(name="easy"), [Site(name="here", processors=PROCESSORS, speed=2)])
    assert list(fast.starts) == list(replay(work, Policy(name="easy"), [site]).starts)


def long_workload() -> Workload:
    """Return jobs that take many instants."""
    return make(*((number, 3, 7) for number in range(12_000)))


def test_a_watch_can_end_a_replay() -> None:
    heard: list[int] = []

    def stop_half_way(submitted: int, /) -> bool:
        heard.append(submitted)
        return submitted < 6_000

    result = replay(long_workload(), Policy(name="easy"), [Site(name="x", processors=8)], watch=stop_half_way)
    assert result.interrupted
    assert heard == sorted(heard)
    measured = job_metrics(result)
    assert 0 < len(measured.starts) < 12_000
    assert min(measured.starts) >= 0
    assert list(result.starts).count(NEVER) == 12_000 - len(measured.starts)
    assert summarized(measured, 8).jobs == len(measured.starts)


def test_an_interrupt_ends_a_replay() -> None:
    def interrupt(submitted: int, /) -> bool:
        if submitted:
            raise KeyboardInterrupt
        return True

    result = replay(long_workload(), Policy(name="easy"), [Site(name="x", processors=8)], watch=interrupt)
    assert result.interrupted
    assert 0 < len(job_metrics(result).waits) < 12_000


PUBLISHED = {
    "NASA-iPSC-1993-3.1-cln": (18_066, 128, 8.081, 4.067, 1.0119, 7_949_022),
    "CTC-SP2-1996-3.1-cln": (77_205, 338, 767_875.633, 14_990.196, 51.5512, 29_306_751),
    "SDSC-DS-2004-2.1-cln": (84_893, 1_664, 35_591.694, 5_271.240, 32.5983, 31_655_986),
    "HPC2N-2002-2.2-cln": (202_871, 240, 16_702.461, 11_259.430, 88.1741, 109_256_855),
    "SDSC-BLUE-2000-4.2-cln": (232_536, 1_152, 379_345.049, 7_756.726, 36.1679, 84_289_735),
}
"""Jobs, processors, mean wait under FCFS and EASY, mean bounded slowdown and makespan under EASY: a plain loop's."""
CHECKED = tuple(PUBLISHED) if os.environ.get("KOALA_ALL_TRACES") else ("NASA-iPSC-1993-3.1-cln",)
"""All of them take a quarter of a minute."""


@pytest.mark.parametrize("name", CHECKED)
def test_archive_traces_give_the_numbers_of_an_independent_loop(name: str) -> None:
    jobs, processors, fcfs, easy, bounded, makespan = PUBLISHED[name]
    work = workload(read_trace(archive(name), NEEDED))
    assert (len(work), work.processors) == (jobs, processors)
    totals = {policy: _totals(work, policy) for policy in ("fcfs", "easy")}
    assert round(totals["fcfs"].mean_wait, 3) == fcfs
    assert round(totals["easy"].mean_wait, 3) == easy
    assert round(totals["easy"].mean_bounded_slowdown, 4) == bounded
    assert totals["easy"].makespan == makespan


def _totals(work: Workload, policy: str) -> Summary:
    processors = work.processors or 0
    return summarized(job_metrics(played(work, policy, processors)), processors)


# -- Replays on platforms: local users share the queue, failing nodes take their jobs with them, seeds decide alone.


LOAD = BackgroundLoad(utilization=0.15)
FAILING = Failures(mean_time_between=1_000_000, mean_repair=3_600)


def site(
    nodes: int,
    processors_per_node: int = 1,
    *,
    local_users: BackgroundLoad | None = None,
    failures: Failures | None = None,
) -> Site:
    """Return a cluster."""
    cluster = ClusterModel(name="here", nodes=nodes, processors_per_node=processors_per_node)
    return Site(name="here", processors=cluster.processors, cluster=cluster, local_users=local_users, failures=failures)


def platform_played(work: Workload, *clusters: Site, policy: str = "easy", seed: int = 0) -> Replay:
    """Return what happens on a platform."""
    return replay(work, Policy(name=policy), clusters, seed=seed)


@pytest.fixture
def uses(monkeypatch: pytest.MonkeyPatch) -> list[LocalUse]:
    """Give the jobs of the local users, to be filled in, in place of those that chance would send."""
    found: list[LocalUse] = []
    monkeypatch.setattr("koala_adapter.simulation.world.local_users", lambda *_: iter(found))
    return found


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[Outage]:
    """Give the outages, to be filled in, in place of those that chance would send."""
    found: list[Outage] = []

    def coming(*_: object) -> Iterator[Outage]:
        yield from found
        yield Outage(begins_at=1e9, ends_at=2e9, node=0)

    monkeypatch.setattr("koala_adapter.simulation.world.outages", coming)
    return found


def platform_starts(work: Workload, cluster: Site) -> Sequence[float]:
    """Return when the jobs start, for the last time."""
    return platform_played(work, cluster, policy="fcfs").starts


def test_local_users_stand_in_the_same_queue(uses: list[LocalUse]) -> None:
    uses += [LocalUse(submitted_at=0, processors=2, run=30), LocalUse(submitted_at=5, processors=9, run=4)]
    # The workload begins at 100. Of 4 processors 2 are taken until 130; the job of 9, cut to 4, stands before the last.
    work = make((100, 2, 10), (101, 3, 10), (106, 1, 10))
    assert platform_starts(work, site(4, local_users=LOAD)) == [100, 130, 144]
    work = make((100, 2, 10), (106, 4, 10))
    assert platform_starts(work, site(4, local_users=LOAD)) == [100, 134]


def test_a_failing_node_takes_its_jobs_with_it(failing: list[Outage]) -> None:
    failing += [Outage(begins_at=5, ends_at=8, node=1)]
    work = make((0, 2, 10), (0, 2, 10), (1, 2, 3))
    # Two nodes of 2. At 5 the second job loses its node, and stays before the third; the node is back at 8.
    result = platform_played(work, site(2, 2, failures=FAILING), policy="fcfs")
    assert list(result.starts) == [0, 8, 10]
    assert {**result.counters, "passes": 0} == {
        "outages": 1, "restarts": 1, "given_up": 0, "passes": 0, "backfilled": 0,
    }  # fmt: skip


def test_a_job_over_several_nodes_is_lost_with_each_of_them(failing: list[Outage]) -> None:
    failing += [Outage(begins_at=4, ends_at=6, node=0), Outage(begins_at=16, ends_at=17, node=1)]
    assert platform_starts(make((0, 4, 10), (12, 4, 5)), site(2, 2, failures=FAILING)) == [6, 17]


def test_two_failures_of_one_time(failing: list[Outage]) -> None:
    failing += [Outage(begins_at=1, ends_at=9, node=0), Outage(begins_at=2, ends_at=5, node=1)]
    assert platform_starts(make((0, 1, 10), (0, 1, 10)), site(2, failures=FAILING)) == [5, 9]


def test_a_job_that_never_gets_through_is_given_up(failing: list[Outage]) -> None:
    failing += [Outage(begins_at=10 * number + 8, ends_at=10 * number + 9, node=0) for number in range(1000)]
    result = platform_played(make((0, 1, 30), (1, 1, 5)), site(1, failures=FAILING), policy="fcfs")
    assert list(result.starts) == [NEVER, 209]
    assert (result.counters["restarts"], result.counters["given_up"]) == (20, 1)
    assert summarized(job_metrics(result), 1).jobs == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_all_jobs_end_in_spite_of_all(policy: str) -> None:
    """Under every policy each job runs to its end within what the cluster has, though nodes fail and others compute."""
    work = make_model("lublin", jobs=150, processors=32, seed=3)
    result = platform_played(work, site(16, 2, local_users=LOAD, failures=FAILING), policy=policy)
    assert not result.interrupted
    assert min(start - submit for start, submit in zip(result.starts, work.submits, strict=True)) >= 0
    assert max(used_processors(job_metrics(result)).values) <= 32
    assert result.counters["restarts"] > 0
    assert result.counters["local_jobs"] > 100


def test_local_users_and_failures_make_jobs_wait_longer() -> None:
    work = make_model("lublin", jobs=1000, processors=32, seed=3)
    waits = [
        summarized(job_metrics(platform_played(work, cluster)), 32).mean_wait
        for cluster in (site(32), site(32, local_users=LOAD), site(32, local_users=LOAD, failures=FAILING))
    ]
    assert waits == sorted(waits)
    assert waits[0] < waits[2]


def test_only_the_seed_changes_what_happens() -> None:
    work = make_model("lublin", jobs=300, processors=32, seed=3)
    cluster = site(16, 2, local_users=LOAD, failures=FAILING)
    assert platform_played(work, cluster, seed=4) == platform_played(work, cluster, seed=4)
    assert platform_played(work, cluster, seed=4).starts != platform_played(work, cluster, seed=5).starts


def following(work: Workload, preceding: Sequence[int], think_times: Sequence[float]) -> Workload:
    """Return a workload in which each job has the given preceding job (-1: none) and think time (-1: unknown)."""
    return changed(work, preceding=preceding, think_times=think_times)


@pytest.mark.parametrize("clusters", [(site(8),), (Site(name="plain", processors=8),), (site(4), site(8))])
def test_a_job_is_submitted_after_its_preceding_job(clusters: tuple[Site, ...]) -> None:
    work = make((0, 4, 10), (1, 4, 10), (2, 4, 10), (90, 4, 10))
    result = platform_played(following(work, [-1, 0, 0, 1], [-1, 5, -1, -1]), *clusters)
    assert list(result.starts) == [0, 15, 10, 90]
    assert list(result.workload.submits) == [0, 15, 10, 90]
    assert job_metrics(result).waits == [0, 0, 0, 0]


def test_jobs_follow_one_that_is_given_up(failing: list[Outage]) -> None:
    failing += [Outage(begins_at=10 * number + 8, ends_at=10 * number + 9, node=0) for number in range(1000)]
    work = following(make((0, 1, 30), (1, 1, 5)), [-1, 0], [-1, 3])
    result = platform_played(work, site(1, failures=FAILING), policy="fcfs")
    assert list(result.starts) == [NEVER, 211]


def test_jobs_before_the_begin_of_time_may_never_start() -> None:
    work = make((-100, 1, 10), (-50, 1, 10), (-20, 1, 10))
    for clusters in ((Site(name="plain", processors=4),), (site(4), site(4))):
        result = replay(work, Policy(name="easy"), clusters, watch=lambda _: False)
        assert result.interrupted
        assert list(job_metrics(result).starts) == []


def test_a_local_users_job_that_is_given_up_is_forgotten(failing: list[Outage], uses: list[LocalUse]) -> None:
    failing += [Outage(begins_at=10 * number + 8, ends_at=10 * number + 9, node=0) for number in range(1000)]
    uses += [LocalUse(submitted_at=0.5, processors=1, run=30)]
    work = make((0, 1, 0.5), (1, 1, 5))
    cluster = site(1, failures=FAILING, local_users=LOAD)
    fcfs = Policy(name="fcfs")
    running = PlatformReplay(work, [cluster], [fcfs.scheduler(1)], ["", ""], 0)
    assert running.play(lambda _: True, 100)
    assert (running.counters["given_up"], running.starts) == (1, [0, 209])
    assert running.clusters[0]._local_runs == {}


def test_a_failure_costs_no_look_at_all_nodes(failing: list[Outage]) -> None:
    nodes = 10_000_000
    failing += [Outage(begins_at=5 + k / 100, ends_at=1e6, node=nodes - 1 - k) for k in range(500)]
    result = platform_played(make((0, nodes - 1000, 10)), site(nodes, failures=FAILING))
    assert (list(result.starts), result.counters["outages"], result.counters["restarts"]) == ([0], 500, 0)


# -- Platform files and their refusals, the event queue, local users and failures.


EXAMPLES = Path(__file__).parents[3] / "examples" / "platforms"


def test_das3_is_the_testbed_of_the_paper() -> None:
    """Five clusters with 85, 41, 68, 46 and 32 nodes of one processor each, 272 in all; the file says the same."""
    assert [cluster.processors for cluster in DAS3.clusters] == [85, 41, 68, 46, 32]
    assert DAS3.processors == DAS3.capacity == 272
    assert load_platform(EXAMPLES / "das3.toml") == DAS3


def test_a_file_can_say_everything() -> None:
    platform = load_platform(EXAMPLES / "two-sites.toml")
    north, south = platform.clusters
    assert (north.processors, north.threshold, north.speed) == (128, 16, 1.5)
    assert platform.capacity == 128 - 16 + 16
    assert platform.background_of(south) == BackgroundLoad(utilization=0.5, mean_run=7200, mean_size=8)
    assert platform.background_of(north) == BackgroundLoad(utilization=0.2, mean_run=600, mean_size=4)
    assert platform.failures_of(north) == Failures(mean_time_between=90 * 86_400, mean_repair=4 * 3600)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "clusters: this key is required"),
        ('[[clusters]]\nname = "a"\nnodes = 0\n', "p:3: clusters[0].nodes: found 0, allowed is a whole number from 1"),
        ('[[clusters]]\nname = "a"\nnodes = "4"\n', 'p:3: clusters[0].nodes: found "4", allowed is a whole number'),
        ('[[clusters]]\nname = "a"\nnode = 4\n', "p:3: clusters[0].node: unknown key, allowed is name, nodes"),
        (
            '[[clusters]]\nname = "a"\nnodes = 4\nthreshold = 4\n',
            "p:4: clusters[0].threshold: found 4, allowed is less than the cluster's 4 processors",
        ),
        (
            '[[clusters]]\nname = "a"\nnodes = 4\n[[clusters]]\nname = "a"\nnodes = 4\n',
            'p:5: clusters[1].name: found "a", the name of clusters[0]: allowed is a name of its own',
        ),
        (
            '[[clusters]]\nname = "a"\nnodes = 4\n[[network.links]]\nbetween = ["a", "b"]\n',
            "network: simulations have no network: leave this out",
        ),
        (
            '[[clusters]]\nname = "a"\nnodes = 4\ndomain = "campus"\n',
            "p:4: clusters[0].domain: simulations have no network: leave this out",
        ),
        (
            '[[clusters]]\nname = "a"\nnodes = 4\nspeed = -1.0\n',
            "p:4: clusters[0].speed: found -1.0, allowed is a number above 0",
        ),
        (
            '[[clusters]]\nname = "a"\nnodes = 4\n[background]\nutilization = 1.5\n',
            "p:5: background.utilization: found 1.5, allowed is a number from 0 to 1",
        ),
    ],
)
def test_refusals_name_line_key_and_what_is_allowed(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "p").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as refused:
        load_platform(tmp_path / "p")
    assert expected in str(refused.value)
    assert "koala docs simulation" in str(refused.value)


def test_background_can_be_set_for_all_clusters() -> None:
    platform = load_platform(EXAMPLES / "two-sites.toml")
    loaded = platform.with_background(0.3)
    assert {loaded.background_of(cluster) for cluster in loaded.clusters} == {BackgroundLoad(utilization=0.3)}
    quiet = platform.with_background(0.0)
    assert {quiet.background_of(cluster) for cluster in quiet.clusters} == {None}


def test_events_of_one_instant_go_by_rank_then_by_entry() -> None:
    engine = Engine()
    seen: list[str] = []
    engine.at(5.0, lambda: seen.append("decision"), rank=LAST)
    engine.at(5.0, lambda: seen.append("first"))
    engine.at(5.0, lambda: seen.append("second"))
    engine.at(5.0, lambda: seen.append("end"), rank=FIRST)
    engine.at(1.0, lambda: engine.at(0.5, lambda: seen.append(f"late at {engine.now}")))
    cancelled = engine.at(5.0, lambda: seen.append("cancelled"))
    cancelled.cancel()
    engine.run()
    assert seen == ["late at 1.0", "end", "first", "second", "decision"]
    assert (engine.now, engine.next_time) == (5.0, None)


def test_the_clock_stops_where_it_is_told() -> None:
    engine = Engine(start=10.0)
    seen: list[float] = []
    for time in (11.0, 12.0, 13.0):
        engine.at(time, lambda: seen.append(engine.now))
    engine.run(until=12.0)
    assert (seen, engine.now, engine.next_time) == ([11.0, 12.0], 12.0, 13.0)
    with pytest.raises(ValueError, match="nan"):
        engine.at(float("nan"), engine.step)


@pytest.mark.parametrize(("utilization", "mean_size"), [(0.3, 4.0), (0.8, 30.0), (0.1, 1.0)])
def test_local_users_ask_for_what_they_are_said_to(utilization: float, mean_size: float) -> None:
    cluster = ClusterModel(name="c", nodes=32)
    load = BackgroundLoad(utilization=utilization, mean_run=100.0, mean_size=mean_size)
    horizon = 3_000_000.0
    work = 0.0
    for use in takewhile(lambda one: one.submitted_at < horizon, local_users(cluster, load, seed=3)):
        assert 1 <= use.processors <= 32
        work += use.processors * use.run
    assert work / (32 * horizon) == pytest.approx(utilization, rel=0.05)


def test_chance_is_repeatable_and_belongs_to_one_cluster() -> None:
    load = BackgroundLoad(utilization=0.5)
    one, other = ClusterModel(name="one", nodes=8), ClusterModel(name="other", nodes=8)
    first = list(islice(local_users(one, load, 1), 50))
    assert first == list(islice(local_users(one, load, 1), 50))
    assert first != list(islice(local_users(one, load, 2), 50))
    assert first != list(islice(local_users(other, load, 1), 50))
    assert list(local_users(one, BackgroundLoad(utilization=0.0), 1)) == []


def test_nodes_fail_as_often_as_said_and_never_while_they_are_away() -> None:
    """100 nodes that fail every 1000 s bring nearly 0.1 failures per second, less what is in repair."""
    cluster = ClusterModel(name="c", nodes=100)
    failures = Failures(mean_time_between=1000.0, mean_repair=10.0)
    found = list(takewhile(lambda one: one.begins_at < 100_000.0, outages(cluster, failures, seed=5)))
    assert len(found) == pytest.approx(10_000 / 1.01, rel=0.05)
    back: dict[int, float] = {}
    for outage in found:
        assert back.get(outage.node, 0.0) <= outage.begins_at < outage.ends_at
        back[outage.node] = outage.ends_at

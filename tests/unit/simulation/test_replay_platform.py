# SPDX-License-Identifier: Apache-2.0
"""Replays on platforms: local users share the queue, failing nodes take their jobs with them, seeds decide alone."""

from __future__ import annotations

from dataclasses import replace as changed
from typing import TYPE_CHECKING

import pytest

from koala_adapter.queueing.backfill import POLICIES
from koala_adapter.simulation.metrics import job_metrics, summarized, used_processors
from koala_adapter.simulation.models import make_model
from koala_adapter.simulation.platform import BackgroundLoad, ClusterModel, Failures
from koala_adapter.simulation.replay import NEVER, PlatformReplay, Policy, Replay, Site, replay
from koala_adapter.simulation.world import LocalUse, Outage
from tests.unit.simulation.workloads import make

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from koala_adapter.simulation.workload import Workload

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


def played(work: Workload, *clusters: Site, policy: str = "easy", seed: int = 0) -> Replay:
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


def starts(work: Workload, cluster: Site) -> Sequence[float]:
    """Return when the jobs start, for the last time."""
    return played(work, cluster, policy="fcfs").starts


def test_local_users_stand_in_the_same_queue(uses: list[LocalUse]) -> None:
    """Their jobs hold processors and are waited for, from the first submission of the workload on."""
    uses += [LocalUse(submitted_at=0, processors=2, run=30), LocalUse(submitted_at=5, processors=9, run=4)]
    # The workload begins at 100. Of 4 processors 2 are taken until 130; the job of 9, cut to 4, stands before the last.
    work = make((100, 2, 10), (101, 3, 10), (106, 1, 10))
    assert starts(work, site(4, local_users=LOAD)) == [100, 130, 144]
    work = make((100, 2, 10), (106, 4, 10))
    assert starts(work, site(4, local_users=LOAD)) == [100, 134]


def test_a_failing_node_takes_its_jobs_with_it(failing: list[Outage]) -> None:
    """What ran there begins anew at its old place of the queue, when there is room; what ran elsewhere goes on."""
    failing += [Outage(begins_at=5, ends_at=8, node=1)]
    work = make((0, 2, 10), (0, 2, 10), (1, 2, 3))
    # Two nodes of 2. At 5 the second job loses its node, and stays before the third; the node is back at 8.
    result = played(work, site(2, 2, failures=FAILING), policy="fcfs")
    assert list(result.starts) == [0, 8, 10]
    assert {**result.counters, "passes": 0} == {
        "outages": 1, "restarts": 1, "given_up": 0, "passes": 0, "backfilled": 0,
    }  # fmt: skip


def test_a_job_over_several_nodes_is_lost_with_each_of_them(failing: list[Outage]) -> None:
    """A job larger than what is left waits until the node is back; a job that ends at that instant is not lost."""
    failing += [Outage(begins_at=4, ends_at=6, node=0), Outage(begins_at=16, ends_at=17, node=1)]
    assert starts(make((0, 4, 10), (12, 4, 5)), site(2, 2, failures=FAILING)) == [6, 17]


def test_two_failures_of_one_time(failing: list[Outage]) -> None:
    """With all nodes away nothing runs, and each comes back on its own."""
    failing += [Outage(begins_at=1, ends_at=9, node=0), Outage(begins_at=2, ends_at=5, node=1)]
    assert starts(make((0, 1, 10), (0, 1, 10)), site(2, failures=FAILING)) == [5, 9]


def test_a_job_that_never_gets_through_is_given_up(failing: list[Outage]) -> None:
    """A job that needs a node for longer than it stays up does not keep the simulation going for ever."""
    failing += [Outage(begins_at=10 * number + 8, ends_at=10 * number + 9, node=0) for number in range(1000)]
    result = played(make((0, 1, 30), (1, 1, 5)), site(1, failures=FAILING), policy="fcfs")
    assert list(result.starts) == [NEVER, 209]
    assert (result.counters["restarts"], result.counters["given_up"]) == (20, 1)
    assert summarized(job_metrics(result), 1).jobs == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_all_jobs_end_in_spite_of_all(policy: str) -> None:
    """Under every policy each job runs to its end within what the cluster has, though nodes fail and others compute."""
    work = make_model("lublin", jobs=150, processors=32, seed=3)
    result = played(work, site(16, 2, local_users=LOAD, failures=FAILING), policy=policy)
    assert not result.interrupted
    assert min(start - submit for start, submit in zip(result.starts, work.submits, strict=True)) >= 0
    assert max(used_processors(job_metrics(result)).values) <= 32
    assert result.counters["restarts"] > 0
    assert result.counters["local_jobs"] > 100


def test_local_users_and_failures_make_jobs_wait_longer() -> None:
    """More of either means a longer mean wait."""
    work = make_model("lublin", jobs=1000, processors=32, seed=3)
    waits = [
        summarized(job_metrics(played(work, cluster)), 32).mean_wait
        for cluster in (site(32), site(32, local_users=LOAD), site(32, local_users=LOAD, failures=FAILING))
    ]
    assert waits == sorted(waits)
    assert waits[0] < waits[2]


def test_only_the_seed_changes_what_happens() -> None:
    """The same seed gives the same schedule, another one another."""
    work = make_model("lublin", jobs=300, processors=32, seed=3)
    cluster = site(16, 2, local_users=LOAD, failures=FAILING)
    assert played(work, cluster, seed=4) == played(work, cluster, seed=4)
    assert played(work, cluster, seed=4).starts != played(work, cluster, seed=5).starts


def following(work: Workload, preceding: Sequence[int], think_times: Sequence[float]) -> Workload:
    """Return a workload in which each job has the given preceding job (-1: none) and think time (-1: unknown)."""
    return changed(work, preceding=preceding, think_times=think_times)


@pytest.mark.parametrize("clusters", [(site(8),), (Site(name="plain", processors=8),), (site(4), site(8))])
def test_a_job_is_submitted_after_its_preceding_job(clusters: tuple[Site, ...]) -> None:
    """With a think time it comes that much later; without one not before its own time of submission."""
    work = make((0, 4, 10), (1, 4, 10), (2, 4, 10), (90, 4, 10))
    result = played(following(work, [-1, 0, 0, 1], [-1, 5, -1, -1]), *clusters)
    assert list(result.starts) == [0, 15, 10, 90]
    assert list(result.workload.submits) == [0, 15, 10, 90]
    assert job_metrics(result).waits == [0, 0, 0, 0]


def test_jobs_follow_one_that_is_given_up(failing: list[Outage]) -> None:
    """A job whose preceding job never gets through is submitted when that is given up."""
    failing += [Outage(begins_at=10 * number + 8, ends_at=10 * number + 9, node=0) for number in range(1000)]
    work = following(make((0, 1, 30), (1, 1, 5)), [-1, 0], [-1, 3])
    result = played(work, site(1, failures=FAILING), policy="fcfs")
    assert list(result.starts) == [NEVER, 211]


def test_jobs_before_the_begin_of_time_may_never_start() -> None:
    """A job that was submitted before second -1 and has not started is not measured as started."""
    work = make((-100, 1, 10), (-50, 1, 10), (-20, 1, 10))
    for clusters in ((Site(name="plain", processors=4),), (site(4), site(4))):
        result = replay(work, Policy(name="easy"), clusters, watch=lambda _: False)
        assert result.interrupted
        assert list(job_metrics(result).starts) == []


def test_a_local_users_job_that_is_given_up_is_forgotten(failing: list[Outage], uses: list[LocalUse]) -> None:
    """It is ended, counted, and leaves its processors to the next."""
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
    """Hundreds of failures among ten million nodes cost no more than among a few, and hit only who runs there."""
    nodes = 10_000_000
    failing += [Outage(begins_at=5 + k / 100, ends_at=1e6, node=nodes - 1 - k) for k in range(500)]
    result = played(make((0, nodes - 1000, 10)), site(nodes, failures=FAILING))
    assert (list(result.starts), result.counters["outages"], result.counters["restarts"]) == ([0], 500, 0)

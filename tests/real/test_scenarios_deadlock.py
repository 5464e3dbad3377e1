# SPDX-License-Identifier: Apache-2.0
"""Two jobs that each hold what the other needs, of people who know nothing of each other (Xing 2009).

Two clusters of three nodes; on each somebody else is first in line. Whoever gives way lets the other run, and is next.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from koala_adapter.outcome import JobState
from tests.real.leftovers import Traces
from tests.real.lrms import jobs_named, local_job
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import KoalaUser, part

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.real.conftest import NewSlurm
    from tests.real.systems import SlurmCluster
    from tests.real.user import Values

pytestmark = [pytest.mark.real("slurmctld", "slurmd"), pytest.mark.timeout(600)]

NODES = 3
LIFE = 15
SCHEDULER: Values = {"placeholder_life": LIFE, "backoff": 8, "longest_backoff": 120}
LAST_IN_LINE = "--nice=1000"
MOST_ROUNDS = 10
"""So often at most one of the two gives back what it holds: two that draw lives at chance agree in one of three."""
BOUND = MOST_ROUNDS * (LIFE + 10) + 120.0
"""Seconds within which both jobs are over: for each round a life and what Slurm and agents need; and both runs."""
DIRECT = """#!/bin/sh
touch {directory}/$SLURM_JOB_NAME
until [ -e {directory}/direct-a ] && [ -e {directory}/direct-b ]; do sleep 0.2; done
"""
"""A piece of a job that was submitted past koala: it holds its nodes until the other piece runs, too."""


@pytest.fixture
def clusters(new_slurm: NewSlurm) -> tuple[SlurmCluster, SlurmCluster]:
    """Two clusters of three processors."""
    # By itself a newer Slurm gives all jobs one priority, from which --nice takes nothing.
    settings = {"PriorityType": "priority/basic"}
    first, second = (new_slurm(name, nodes=NODES, cpus=1, settings=settings) for name in ("a", "b"))
    return first, second


@pytest.fixture
def users(clusters: tuple[SlurmCluster, SlurmCluster], tmp_path: Path) -> Iterator[tuple[KoalaUser, KoalaUser]]:
    """Two users with a service each; the first is first in line on a, the second on b."""
    with ExitStack() as stack:
        made = []
        for name, behind in (("first", "b"), ("second", "a")):
            last: Values = {"directives": {"add": [LAST_IN_LINE]}}  # type: ignore[dict-item]
            user = KoalaUser(tmp_path / name, clusters, scheduler=SCHEDULER, clusters={behind: last})
            stack.callback(user.close)
            user.serve()
            made.append(user)
        yield made[0], made[1]


def submitted(user: KoalaUser, mark: dict[str, str]) -> str:
    """Submit a job that needs all of both clusters; return when its placeholders are in both queues."""
    job = user.submit(user.job_file(*(part(name, NODES, "sleep", "1", environment=mark) for name in "ab")))
    wait_until(
        lambda: all(len(jobs_named(system, user.prefix)) == NODES for system in user.systems.values()),
        seconds=PATIENCE,
        what="its placeholders are in both queues",
        details=user.details,
    )
    return job


def test_two_instances_run_one_after_the_other(
    clusters: tuple[SlurmCluster, SlurmCluster], users: tuple[KoalaUser, KoalaUser]
) -> None:
    """Each gets one cluster; one gives it back in time for the other, and both jobs end."""
    traces = [Traces(user) for user in users]
    with ExitStack() as full:
        for cluster in clusters:
            full.enter_context(local_job(cluster, NODES))
        jobs = [submitted(user, one.mark) for user, one in zip(users, traces, strict=True)]
    reports = [user.wait_over(job, seconds=BOUND) for user, job in zip(users, jobs, strict=True)]
    assert [report.state for report in reports] == [JobState.COMPLETED, JobState.COMPLETED]
    assert 1 <= max(report.hand_backs for report in reports) <= MOST_ROUNDS
    for one in traces:
        one.expect_none()


def test_a_third_party_that_holds_directly_runs_first(
    clusters: tuple[SlurmCluster, SlurmCluster], users: tuple[KoalaUser, KoalaUser], tmp_path: Path
) -> None:
    """Both pieces went to sbatch; the one that runs never gives way. Ours does, and runs when both have ended."""
    user = users[0]
    traces = Traces(user)
    tmp_path.chmod(0o755)
    directory = tmp_path / "direct"
    directory.mkdir()
    with ExitStack() as full:
        for cluster in clusters:
            full.enter_context(local_job(cluster, NODES))
        job = submitted(user, traces.mark)
        for cluster in clusters:
            line = LAST_IN_LINE if cluster.name == "a" else "--nice=0"
            options = (f"--nodes={NODES}", "--output=/dev/null", f"--job-name=direct-{cluster.name}", line)
            cluster.submit(DIRECT.format(directory=directory), *options)
    wait_until((directory / "direct-b").exists, seconds=PATIENCE, what="the other piece holds b")
    wait_until((directory / "direct-a").exists, seconds=BOUND, what="the third party got a, too")
    assert user.report(job).hand_backs >= 1
    report = user.wait_over(job, seconds=BOUND)
    assert report.state is JobState.COMPLETED
    assert report.hand_backs <= MOST_ROUNDS
    assert not any(jobs_named(cluster, "direct") for cluster in clusters)
    traces.expect_none()

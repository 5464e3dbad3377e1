# SPDX-License-Identifier: Apache-2.0
"""Jobs of users on a real PBS server, and on PBS and Slurm at once; queues that pass jobs on, or take no arrays."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from koala_adapter.outcome import JobState
from tests.real.leftovers import Traces
from tests.real.lrms import placeholders
from tests.real.ranks import NotedRanks, expect_noted_end
from tests.real.systems.pbs import PbsServer, missing_for_pbs
from tests.real.systems.requirements import require
from tests.real.user import part

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.real.conftest import NewUser
    from tests.real.systems import SlurmCluster

pytestmark = [pytest.mark.real, pytest.mark.never_required, pytest.mark.timeout(300)]


@pytest.fixture
def server() -> Iterator[PbsServer]:
    """Give the server of this machine, without jobs."""
    require(missing_for_pbs())
    server = PbsServer()
    with server.alone():
        yield server
        server.clear()


@contextmanager
def queue(server: PbsServer, name: str, settings: str) -> Iterator[str]:
    """Have one more queue during the block."""
    server.run("qmgr", "-c", f"create queue {name} {settings},enabled=t,started=t")
    try:
        yield name
    finally:
        server.clear()
        server.run("qmgr", "-c", f"delete queue {name}")


@pytest.mark.real("slurmctld", "slurmd")
def test_processes_on_pbs_and_slurm_do_not_notice_a_kill(
    new_user: NewUser, server: PbsServer, slurm_a: SlurmCluster, tmp_path: Path
) -> None:
    """The service is killed while the job runs on both; nothing of it is left anywhere afterwards."""
    user = new_user(server, slurm_a)
    traces = Traces(user)
    ranks = NotedRanks(tmp_path / "notes", {server.name: 2, "a": 2}, lines=5, mark=traces.mark)
    job = user.submit(user.job_file(*ranks.parts()))
    user.wait(job, lambda report: report.state is JobState.RUNNING, what="runs")
    user.kill()
    assert (len(placeholders(server)), len(placeholders(slurm_a))) == (2, 2)
    user.serve()
    ranks.let_end()
    expect_noted_end(user, job, ranks, user.wait_over(job))
    traces.expect_none()


def test_a_routing_queue_into_one_without_arrays(new_user: NewUser, server: PbsServer) -> None:
    """PBS would take an array into the routing queue and delete it without a word; single jobs get through."""
    with (
        queue(server, "koala_one", "queue_type=e,max_array_size=1") as single,
        queue(server, "koala_route", f"queue_type=r,route_destinations={single}") as route,
    ):
        user = new_user(server, clusters={server.name: {"queue": route}})
        traces = Traces(user)
        job = user.submit(user.job_file(part(server.name, 2, "sh", "-c", "echo here", environment=traces.mark)))
        report = user.wait_over(job)
        assert report.state is JobState.COMPLETED
        assert [user.output_of(job, report.components[0].name, rank) for rank in range(2)] == [b"here\n"] * 2
        traces.expect_none()


def test_a_job_that_cannot_go_on_is_cancelled(new_user: NewUser, server: PbsServer) -> None:
    """Its placeholders wait in the queue, some of them hold processors; all are gone after ``koala cancel``."""
    user = new_user(server)
    with server.local_jobs(1):
        processors = server.processors()
        job = user.submit(user.job_file(part(server.name, processors, "sleep", "60")))
        user.wait_held(job, processors - 1)
        done = user.run("cancel", job)
        assert done.code == 0, done.stderr
        assert placeholders(server) == []

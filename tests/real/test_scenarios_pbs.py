# SPDX-License-Identifier: Apache-2.0
"""Jobs of users on a real PBS server, and on PBS and Slurm at once; queues that pass jobs on, or take no arrays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from koala_adapter.outcome import JobState
from tests.real.conftest import NewUser
from tests.real.lrms import Traces, placeholders
from tests.real.ranks import NotedRanks, expect_noted_end
from tests.real.systems import SlurmCluster
from tests.real.systems.pbs import PbsServer
from tests.real.test_drmaa_systems import pbs_library
from tests.real.test_malleable import expect_right, workers
from tests.real.test_malleable import submit as submit_workers
from tests.real.user import part, until

pytestmark = pytest.mark.never_required


@pytest.fixture(params=["commands", "drmaa"])
def submitting(request: pytest.FixtureRequest, server: PbsServer) -> PbsServer:
    """Give the same server, to which koala submits in one way or the other."""
    if request.param == "commands":
        return server
    return PbsServer(pbs_library())


@contextmanager
def queue(server: PbsServer, name: str, settings: str) -> Iterator[str]:
    """Have one more queue during the block."""
    server.run("qmgr", "-c", f"create queue {name} {settings},enabled=t,started=t")
    try:
        yield name
    finally:
        server.clear()
        server.run("qmgr", "-c", f"delete queue {name}")


def test_processes_on_pbs_and_slurm_do_not_notice_a_kill(
    new_user: NewUser, server: PbsServer, slurm_a: SlurmCluster, tmp_path: Path
) -> None:
    """The service is killed while the job runs on both; nothing of it is left anywhere afterwards."""
    user = new_user(server, slurm_a)
    traces = Traces(user)
    ranks = NotedRanks(tmp_path / "notes", {server.name: 2, "a": 2}, lines=5, mark=traces.mark)
    job = user.submit(user.job_file(*ranks.parts()))
    user.wait_running(job)
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
        report = user.wait_completed(job)
        assert [user.output_of(job, report.components[0].name, rank) for rank in range(2)] == [b"here\n"] * 2
        traces.expect_none()


def test_output_and_cancellation(new_user: NewUser, submitting: PbsServer) -> None:
    """What ranks print is there, with their exit codes; a job that is cancelled leaves nothing on any node."""
    user = new_user(submitting)
    traces = Traces(user)
    text = "echo rank $KOALA_RANK; exit $(( KOALA_RANK * 3 ))"
    job = user.submit(user.job_file(part(submitting.name, 2, "sh", "-c", text, environment=traces.mark)))
    report = user.wait_over(job)
    assert report.outcome is not None
    assert (report.state, report.outcome.exit_code) == (JobState.FAILED, 3)
    assert [user.output_of(job, "c1", rank) for rank in range(2)] == [b"rank 0\n", b"rank 1\n"]
    long = user.submit(user.job_file(part(submitting.name, 3, "sleep", "600", environment=traces.mark)))
    user.wait_running(long)
    assert user.run("cancel", long).code == 0
    assert user.wait_over(long).state is JobState.CANCELLED
    traces.expect_none()


def test_a_sweep(new_user: NewUser, submitting: PbsServer) -> None:
    """Each task runs once on one of four processors, and its result is kept."""
    user = new_user(submitting, clusters=four_processors(submitting))
    done = user.run("sweep", "-n", "4", "--", "sh", "-c", "echo $(( {a} * {a} ))", ":::", "a=1..20")
    assert done.code == 0, done.stderr
    report = user.wait_over(user.client.jobs()[0].id)
    assert report.sweep is not None
    assert (report.sweep.done, report.sweep.failed) == (20, 0)
    directory = user.state / "jobs" / report.id / "sweep"
    entries = [json.loads(line) for line in (directory / "results.jsonl").read_text().splitlines()]
    found = {int(one["parameters"]["a"]): int((directory / one["stdout"]).read_text()) for one in entries}
    assert found == {number: number**2 for number in range(1, 21)}
    assert len(entries) == 20
    assert placeholders(submitting) == []


def test_a_job_of_workers_grows_and_shrinks(new_user: NewUser, submitting: PbsServer) -> None:
    """It gets what is idle, makes room for another job, and grows again; the service is killed meanwhile."""
    user = new_user(submitting, clusters=four_processors(submitting))
    job = submit_workers(user)
    user.wait(job, lambda report: sum(workers(report).values()) == 3, what="has all there is")
    go = user.directory / "go"
    waiting = until(go)
    rigid = user.submit(user.job_file(part(submitting.name, 2, *waiting), name="rigid"))
    user.wait(rigid, lambda report: report.launched_at is not None, what="has got its processors")
    assert sum(workers(user.report(job)).values()) == 1
    user.kill()
    user.serve()
    go.touch()
    user.wait_completed(rigid)
    user.wait(job, lambda report: sum(workers(report).values()) == 3, what="has grown again")
    expect_right(user, job)


def four_processors(server: PbsServer) -> dict[str, dict[str, int]]:
    """Return settings by which jobs may have four processors."""
    return {server.name: {"threshold": server.processors() - 4}}

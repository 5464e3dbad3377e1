# SPDX-License-Identifier: Apache-2.0
"""The service, or the daemons of a batch system, end and come back."""

from __future__ import annotations

import random
import socket
import threading
import time
from pathlib import Path
from typing import Literal

import pytest

from koala_adapter.outcome import JobState
from tests.real.conftest import NewUser
from tests.real.lrms import Traces, local_job, placeholders, submissions
from tests.real.ranks import NotedRanks, expect_noted_end
from tests.real.systems import GridEngineCell, SlurmCluster
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import KoalaUser, PausedCommand, part

# -- The service is killed at any moment and started again: nothing that a user can see changes, except time.


SEED = 1
LONG = 200.0
"""Seconds for a job, when a submission may have to be waited for that never arrived."""


def killed_and_started(user: KoalaUser) -> None:
    """Kill the service and start it again."""
    user.kill()
    assert not user.client.running()
    user.serve()


def test_jobs_do_not_notice(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell, allreduce: Path, tmp_path: Path
) -> None:
    """Killed while a job waits, holding half of it, and again while it runs: one submission in each batch system.

    Two jobs: of processes, and of one MPI_COMM_WORLD, whose ranks meet again after the service was away.
    """
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    plain = NotedRanks(tmp_path / "plain", {"a": 2, "c": 2}, lines=5, mark=traces.mark)
    mpi = NotedRanks(tmp_path / "mpi", {"a": 2, "c": 2}, lines=0, mark=traces.mark)
    go = tmp_path / "go"
    with local_job(sge_cell, sge_cell.slots):
        job = user.submit(user.job_file(*plain.parts()))
        world = user.submit(user.job_file(*mpi.mpi_parts(allreduce, str(go)), name="world", launcher="mpi"))
        for _ in range(2):
            for one in (job, world):
                user.wait_held(one, 2)
            assert (len(placeholders(slurm_a)), len(placeholders(sge_cell))) == (4, 4)
            if not user.kills:
                killed_and_started(user)
    for one in (job, world):
        user.wait_running(one)
    killed_and_started(user)
    plain.let_end()
    go.touch()
    report = user.wait_over(job)
    expect_noted_end(user, job, plain, report)
    user.wait_completed(world)
    assert mpi.ran() == [0, 1, 2, 3]
    assert [b"sum=10" in user.output_of(world, f"c{1 + rank // 2}", rank % 2) for rank in range(4)] == [True] * 4
    assert report.hand_backs == 0
    assert len(submissions(slurm_a, user.prefix)) == len(submissions(sge_cell, user.prefix)) == 2
    traces.expect_none()


def test_an_end_while_nobody_listens_is_told_later(new_user: NewUser, slurm_a: SlurmCluster, tmp_path: Path) -> None:
    """The job ends while the service is dead; the next one hears how, with all that was written.

    Meanwhile another program has taken the port on which agents expect it: it waits until that is free.
    """
    user = new_user(slurm_a)
    traces = Traces(user)
    ranks = NotedRanks(tmp_path / "notes", {"a": 3}, lines=5, mark=traces.mark)
    job = user.submit(user.job_file(*ranks.parts()))
    user.wait_running(job)
    user.kill()
    with socket.create_server(("127.0.0.1", user.port), reuse_port=False) as thief:
        ranks.let_end()
        wait_until(lambda: len(ranks.over()) == 2, seconds=PATIENCE, what="all but the last rank end")
        wait_until(lambda: not traces.ranks(), seconds=PATIENCE, what="the last one has ended, too")
        release = threading.Timer(4, thief.close)
        release.start()
        user.serve()
        release.join()
    expect_noted_end(user, job, ranks, user.wait_over(job))
    assert len(submissions(slurm_a, user.prefix)) == 1
    traces.expect_none()


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_while_submitting(
    new_user: NewUser, slurm_a: SlurmCluster, tmp_path: Path, when: Literal["before", "after"]
) -> None:
    """Nobody heard sbatch's answer, be it that it had yet to ask: the submission is found by its name, not repeated."""
    commands = tmp_path / "commands"
    pause = PausedCommand(commands, "sbatch", when=when)
    user = new_user(slurm_a, path=commands)
    traces = Traces(user)
    ranks = NotedRanks(tmp_path / "notes", {"a": 2}, lines=2, mark=traces.mark)
    ranks.let_end()
    job = user.submit(user.job_file(*ranks.parts()))
    pause.wait_reached()
    killed_and_started(user)
    user.wait(job, lambda report: "unknown" in report.explanation or report.components[0].held > 0, what="looked for")
    pause.let_go()
    expect_noted_end(user, job, ranks, user.wait_over(job))
    assert len(submissions(slurm_a, user.prefix)) == 1
    traces.expect_none()


def test_a_killed_run_is_taken_over(new_user: NewUser, slurm_a: SlurmCluster, tmp_path: Path) -> None:
    """`koala run` without a service is the service itself; when it is killed, the next service goes on with its job."""
    user = new_user(slurm_a, serve=False)
    traces = Traces(user)
    ranks = NotedRanks(tmp_path / "notes", {"a": 2}, lines=5, mark=traces.mark)
    command = user.start("run", str(user.job_file(*ranks.parts())))
    wait_until(lambda: ranks.ran() == [0, 1], seconds=PATIENCE, what="both ranks run")
    command.kill()
    command.communicate()
    assert not user.client.running()
    user.serve()
    ranks.let_end()
    (job,) = [report.id for report in user.client.jobs()]
    expect_noted_end(user, job, ranks, user.wait_over(job))
    assert len(submissions(slurm_a, user.prefix)) == 1
    traces.expect_none()


def test_a_cancellation_is_not_forgotten(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """Killed right after a user was told that the job will be cancelled: the next service does it."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    job = user.submit(user.job_file(*(part(name, 2, "sleep", "600", environment=traces.mark) for name in "ac")))
    user.wait_running(job)
    user.client.cancel(job)
    killed_and_started(user)
    report = user.wait_over(job)
    assert report.state is JobState.CANCELLED
    traces.expect_none()


def test_killed_at_random_moments(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell, tmp_path: Path
) -> None:
    """Six times within a few seconds, with two jobs under way: all end as they should, none ran twice."""
    chance = random.Random(SEED)
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    jobs: dict[str, NotedRanks] = {}
    for number in range(6):
        if number < 2:
            ranks = NotedRanks(tmp_path / f"notes{number}", {"a": 2, "c": 1}, lines=20, mark=traces.mark)
            ranks.let_end()
            jobs[user.submit(user.job_file(*ranks.parts(), name=f"job{number}"))] = ranks
        time.sleep(chance.uniform(0, 2.0))
        killed_and_started(user)
    for job, ranks in jobs.items():
        expect_noted_end(user, job, ranks, user.wait_over(job, seconds=LONG))
    for system in (slurm_a, sge_cell):
        names = [name for name, _ in submissions(system, user.prefix)]
        assert len(names) == len(set(names)), "one submission was made twice under the same name"
    traces.expect_none()


# -- A batch system's controller is away for a while: no job is lost, and nothing is submitted twice.


def wait_noticed(user: KoalaUser, cluster: str) -> None:
    """Return when the user is told that a cluster is out of reach."""

    def noticed() -> bool:
        closed = {one.name: one.closed for one in user.client.clusters()}
        return "out of reach" in (closed[cluster] or "")

    wait_until(noticed, seconds=PATIENCE, what=f"{cluster} is known to be out of reach", details=user.details)


def test_away_while_the_job_runs(
    new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster, tmp_path: Path
) -> None:
    """The job runs on, and comes to its end, without the controller, also when the service is killed meanwhile.

    What it held is given back when the controller returns.
    """
    user = new_user(slurm_a, slurm_b)
    traces = Traces(user)
    ranks = NotedRanks(tmp_path / "notes", {"a": 2, "b": 2}, lines=5, mark=traces.mark)
    job = user.submit(user.job_file(*ranks.parts()))
    user.wait_running(job)
    slurm_a.stop_controller()
    try:
        wait_noticed(user, "a")
        killed_and_started(user)
        ranks.let_end()
        report = user.wait(job, lambda report: report.outcome is not None, what="ended")
        expect_noted_end(user, job, ranks, report)
    finally:
        slurm_a.start_controller()
    report = user.wait_over(job)
    expect_noted_end(user, job, ranks, report)
    assert len(submissions(slurm_a, user.prefix)) == len(submissions(slurm_b, user.prefix)) == 1
    traces.expect_none()


def test_away_while_the_job_claims(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell, tmp_path: Path
) -> None:
    """What is held there is still ours: the job starts, with the controller away, when the rest has come."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    ranks = NotedRanks(tmp_path / "notes", {"a": 2, "c": 2}, lines=5, mark=traces.mark)
    ranks.let_end()
    with local_job(sge_cell, sge_cell.slots):
        job = user.submit(user.job_file(*ranks.parts()))
        user.wait_held(job, 2)
        slurm_a.stop_controller()
    try:
        report = user.wait(job, lambda report: report.outcome is not None, what="ended")
        expect_noted_end(user, job, ranks, report)
    finally:
        slurm_a.start_controller()
    user.wait_over(job)
    assert len(submissions(slurm_a, user.prefix)) == len(submissions(sge_cell, user.prefix)) == 1
    traces.expect_none()


def test_away_before_the_job_is_submitted(new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster) -> None:
    """The job waits, without holding anything elsewhere, and the user is told for what; then it runs."""
    user = new_user(slurm_a, slurm_b)
    traces = Traces(user)
    # While there is a job, koala looks more often.
    other = user.submit(user.job_file(part("b", 1, "sleep", "600", environment=traces.mark)))
    user.wait_running(other)
    slurm_a.stop_controller()
    try:
        wait_noticed(user, "a")
        job = user.submit(user.job_file(*(part(name, 2, "true", environment=traces.mark) for name in "ab")))
        told = user.run("explain", job).text
        assert "a is out of reach" in told, told
        assert user.report(job).state is JobState.WAITING
    finally:
        slurm_a.start_controller()
    user.wait_completed(job)
    user.client.cancel(other)
    user.wait_over(other)
    assert (len(submissions(slurm_a, user.prefix)), len(submissions(slurm_b, user.prefix))) == (1, 2)
    traces.expect_none()

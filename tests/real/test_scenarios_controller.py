# SPDX-License-Identifier: Apache-2.0
"""A batch system's controller is away for a while: no job is lost, and nothing is submitted twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.outcome import JobState
from tests.real.leftovers import Traces
from tests.real.lrms import local_job, submissions
from tests.real.ranks import NotedRanks, expect_noted_end
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import part

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.report.values import JobReport
    from tests.real.conftest import NewUser
    from tests.real.systems import GridEngineCell, SlurmCluster
    from tests.real.user import KoalaUser

pytestmark = [pytest.mark.real("slurmctld", "slurmd")]


def runs(report: JobReport) -> bool:
    """Tell whether all processes of a job run."""
    return report.state is JobState.RUNNING


def wait_noticed(user: KoalaUser, cluster: str) -> None:
    """Return when the user is told that a cluster is out of reach."""

    def noticed() -> bool:
        closed = {one.name: one.closed for one in user.client.clusters()}
        return "out of reach" in (closed[cluster] or "")

    wait_until(noticed, seconds=PATIENCE, what=f"{cluster} is known to be out of reach", details=user.details)


def test_away_while_the_job_runs(
    new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster, tmp_path: Path
) -> None:
    """The job runs on, and comes to its end, without the controller; what it held is given back when that returns."""
    user = new_user(slurm_a, slurm_b)
    traces = Traces(user)
    ranks = NotedRanks(tmp_path / "notes", {"a": 2, "b": 2}, lines=5, mark=traces.mark)
    job = user.submit(user.job_file(*ranks.parts()))
    user.wait(job, runs, what="runs")
    slurm_a.stop_controller()
    try:
        wait_noticed(user, "a")
        ranks.let_end()
        report = user.wait(job, lambda report: report.outcome is not None, what="ended")
        expect_noted_end(user, job, ranks, report)
    finally:
        slurm_a.start_controller()
    report = user.wait_over(job)
    expect_noted_end(user, job, ranks, report)
    assert len(submissions(slurm_a, user.prefix)) == len(submissions(slurm_b, user.prefix)) == 1
    traces.expect_none()


@pytest.mark.real("sge_qmaster")
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
    slurm_a.stop_controller()
    try:
        wait_noticed(user, "a")
        job = user.submit(user.job_file(*(part(name, 2, "true", environment=traces.mark) for name in "ab")))
        told = user.run("explain", job).text
        assert "a is out of reach" in told, told
        assert user.report(job).state is JobState.WAITING
    finally:
        slurm_a.start_controller()
    report = user.wait_over(job)
    assert report.outcome is not None
    assert report.outcome.exit_code == 0
    assert len(submissions(slurm_a, user.prefix)) == len(submissions(slurm_b, user.prefix)) == 1
    traces.expect_none()


def test_away_when_the_service_comes_up(new_user: NewUser, slurm_a: SlurmCluster, tmp_path: Path) -> None:
    """Service and controller are both gone, and the service returns first: the job runs on, none is submitted anew."""
    user = new_user(slurm_a)
    traces = Traces(user)
    ranks = NotedRanks(tmp_path / "notes", {"a": 2}, lines=5, mark=traces.mark)
    job = user.submit(user.job_file(*ranks.parts()))
    user.wait(job, runs, what="runs")
    slurm_a.stop_controller()
    try:
        user.kill()
        user.serve()
        ranks.let_end()
        report = user.wait(job, lambda report: report.outcome is not None, what="ended")
        expect_noted_end(user, job, ranks, report)
    finally:
        slurm_a.start_controller()
    user.wait_over(job)
    assert len(submissions(slurm_a, user.prefix)) == 1
    traces.expect_none()

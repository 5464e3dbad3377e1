# SPDX-License-Identifier: Apache-2.0
"""Placeholders that are ended from outside while the job runs: the user learns the true reason, and nothing stays.

How the processes of a job end by themselves is in test_scenarios_ends.py, under MPI in test_scenarios_mpi.py.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest

from koala_adapter.errors import EXIT_CANCELLED, EXIT_LOST, EXIT_WALLTIME
from koala_adapter.model import EndReason
from koala_adapter.outcome import JobOutcome, JobState
from tests.real.leftovers import Traces, parent_of
from tests.real.systems.processes import SeenProcess, find_processes
from tests.real.user import part

if TYPE_CHECKING:
    from koala_adapter.report.values import JobReport
    from tests.real.conftest import NewSlurm, NewUser
    from tests.real.systems import GridEngineCell, SlurmCluster
    from tests.real.user import KoalaUser

    System: TypeAlias = SlurmCluster | GridEngineCell

pytestmark = pytest.mark.real("slurmctld", "slurmd")

LONG = ("sleep", "600")
"""What all ranks do; they must be ended."""


def running(user: KoalaUser, traces: Traces, *parts: str, launcher: str = "process") -> JobReport:
    """Submit a job and return its report once all its ranks run."""
    job = user.submit(user.job_file(*parts, launcher=launcher))
    report = user.wait(job, lambda report: report.state is JobState.RUNNING, what="runs")
    traces.note_running()
    return report


def outcome_of(user: KoalaUser, job: str) -> JobOutcome:
    """Return the outcome of a job once nothing of it is left in any batch system."""
    outcome = user.wait_over(job).outcome
    assert outcome is not None
    return outcome


def agent(system: System, index: int) -> SeenProcess:
    """Return the agent in the placeholder that is element ``index`` of its array."""

    def belongs(process: SeenProcess) -> bool:
        told = {process.environment.get(name) for name in ("SLURM_ARRAY_TASK_ID", "SGE_TASK_ID")}
        return process.uses(system.directory) and str(index) in told and process.command.startswith("python")

    # What it started has its environment, or is below it.
    found = find_processes(belongs)
    (seen,) = [SeenProcess.read(pid) for pid in found if parent_of(pid) not in found]
    assert seen is not None
    return seen


def test_scancel_of_one_placeholder_cancels_the_job(
    new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster
) -> None:
    """The user is told that the job was cancelled, and where; the placeholders of both clusters are ended."""
    user = new_user(slurm_a, slurm_b)
    traces = Traces(user)
    report = running(user, traces, *(part(name, 2, *LONG, environment=traces.mark) for name in "ab"))
    slurm_b.run("scancel", report.components[1].lrm_ids[1])
    outcome = outcome_of(user, report.id)
    assert (outcome.state, outcome.reason) == (JobState.CANCELLED, EndReason.CANCELLED)
    assert outcome.exit_code == EXIT_CANCELLED
    assert "on b, " in outcome.detail
    traces.expect_none()


@pytest.mark.nightly  # Slurm looks for jobs beyond their limit once a minute
@pytest.mark.real("sge_qmaster")
def test_time_limit_that_slurm_enforces_is_a_walltime(new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """An operator cuts the limit short: the agent only gets SIGTERM, Slurm knows it for TIMEOUT."""
    user = new_user(slurm_a)
    traces = Traces(user)
    report = running(user, traces, part("a", 2, *LONG, environment=traces.mark))
    (first, _) = report.components[0].lrm_ids
    slurm_a.run("scontrol", "update", f"jobid={first}", "TimeLimit=1")
    outcome = outcome_of(user, report.id)
    assert (outcome.state, outcome.exit_code, outcome.reason) == (JobState.FAILED, EXIT_WALLTIME, EndReason.WALLTIME)
    assert user.run("status", report.id, "--json").json["outcome"]["exit_code"] == EXIT_WALLTIME
    traces.expect_none()


def test_qdel_of_one_placeholder_ends_the_job(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """Grid Engine kills the agent without warning: cancelled if it is seen to delete the placeholder, else lost."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    report = running(user, traces, *(part(name, 2, *LONG, environment=traces.mark) for name in "ac"))
    number, _, task = report.components[1].lrm_ids[1].partition(".")
    sge_cell.run("qdel", number, "-t", task)
    outcome = outcome_of(user, report.id)
    ends = {EndReason.CANCELLED: (JobState.CANCELLED, EXIT_CANCELLED), EndReason.LOST: (JobState.LOST, EXIT_LOST)}
    assert (outcome.state, outcome.exit_code) == ends[outcome.reason]
    assert "on c, " in outcome.detail
    traces.expect_none()


@pytest.mark.real("sge_qmaster")
@pytest.mark.parametrize("victim", ["a", "c"], ids=["Slurm", "Grid Engine"])
def test_a_killed_agent_loses_the_job(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell, victim: str
) -> None:
    """SIGKILL of one agent, which can say nothing any more: its rank does not outlive it, and all others are ended."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    report = running(user, traces, *(part(name, 2, *LONG, environment=traces.mark) for name in "ac"))
    os.kill(agent(slurm_a if victim == "a" else sge_cell, 2).pid, signal.SIGKILL)
    outcome = outcome_of(user, report.id)
    assert (outcome.state, outcome.exit_code) == (JobState.LOST, EXIT_LOST)
    assert f"on {victim}, " in outcome.detail
    if victim == "a":
        assert "its agent was killed by signal 9" in outcome.detail
    traces.expect_none()


@pytest.mark.real("mpiexec.hydra")
def test_a_killed_agent_ends_an_mpi_world(
    new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster, allreduce: Path
) -> None:
    """The user is told of the agent, not of mpiexec, which fails for its sake; proxies and ranks are ended."""
    user = new_user(slurm_a, slurm_b)
    traces = Traces(user)
    parts = [part(name, 2, str(allreduce), "/no/such/file", environment=traces.mark) for name in "ab"]
    report = running(user, traces, *parts, launcher="mpi")
    os.kill(agent(slurm_b, 2).pid, signal.SIGKILL)
    outcome = outcome_of(user, report.id)
    assert (outcome.state, outcome.exit_code) == (JobState.LOST, EXIT_LOST)
    assert "rank 3" in outcome.detail
    assert "its agent was killed by signal 9" in outcome.detail
    traces.expect_none()


def test_a_lost_node_loses_the_job(new_user: NewUser, new_slurm: NewSlurm, slurm_a: SlurmCluster) -> None:
    """Whether a whole node dies or slurmd alone, while the ranks go on: Slurm gives it up, and so does the job."""
    dead, deaf = (new_slurm(name, cpus=2) for name in ("dead", "deaf"))
    user = new_user(slurm_a, dead, deaf)
    traces = Traces(user)
    jobs = {}
    for system in (dead, deaf):
        parts = [part(name, 2, *LONG, environment=traces.mark) for name in ("a", system.name)]
        jobs[system.name] = running(user, traces, *parts).id
    disk = own_files(dead)
    dead.kill_node("n1")
    deaf.kill_node("n1", with_jobs=False)
    for system in (dead, deaf):  # it does so by itself when it has not heard of a node for long
        system.run("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=test")
    for name, job in jobs.items():
        outcome = outcome_of(user, job)
        assert (outcome.state, outcome.reason) == (JobState.LOST, EndReason.NODE_LOST)
        assert outcome.exit_code == EXIT_LOST
        assert f"on {name}, host " in outcome.detail
    for path in disk:  # nobody could tidy up there
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    traces.expect_none()


def own_files(system: SlurmCluster) -> set[Path]:
    """Return the private directories of the agents on a cluster, and the files of their output."""
    seen = [SeenProcess.read(pid) for pid in find_processes(lambda process: process.uses(system.directory))]
    ranks = [process for process in seen if process is not None and "KOALA_STDOUT" in process.environment]
    directories = {Path(process.environment["KOALA_STDOUT"]).parents[1] for process in ranks}
    return directories | {Path(f"/proc/{agent(system, index).pid}/fd/2").readlink() for index in (1, 2)}

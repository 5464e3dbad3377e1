# SPDX-License-Identifier: Apache-2.0
"""Dask over Slurm, Grid Engine and a local cluster at once, while local users come and go."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import EXIT_CANCELLED
from koala_adapter.outcome import JobState
from tests.daskexample import write_dasksum
from tests.daskprogram import DaskProgram, sum_of_squares
from tests.daskprograms import TASKS
from tests.real.lrms import local_job, placeholders
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import part

if TYPE_CHECKING:
    from koala_adapter.report.values import JobReport
    from tests.real.conftest import NewUser
    from tests.real.systems import GridEngineCell, SlurmCluster
    from tests.real.user import KoalaUser

pytestmark = [pytest.mark.real("slurmctld", "slurmd", "sge_qmaster")]

STREAM = Path(__file__).parents[1] / "daskstream.py"
LOCAL_CLUSTER = """
[[clusters]]
name = "here"
plugin = "local"
poll_interval = 1
requests_per_minute = 600
output_directory = "{directory}"
settings = {{ processors = 2, idle_seconds = 5 }}
"""


def workers(report: JobReport) -> int:
    """Return how many processors the workers have."""
    return sum(one.processors for one in report.components if one.name == "worker")


def two_systems(
    new_user: NewUser, slurm: SlurmCluster, cell: GridEngineCell, *, on_slurm: int, on_cell: int
) -> KoalaUser:
    """Return a user who may have so many processors on Slurm and on Grid Engine; no service runs yet."""
    thresholds = {slurm.name: kept_free(slurm, on_slurm), cell.name: cell.slots - on_cell}
    settings = {name: {"threshold": threshold} for name, threshold in thresholds.items()}
    return new_user(slurm, cell, clusters=settings, serve=False)


def kept_free(slurm: SlurmCluster, ours: int) -> int:
    """Return the processors of a Slurm cluster that are left to local users when so many are ours."""
    return slurm.cpus * len(slurm.nodes) - ours


def expect_over(user: KoalaUser, job: str, *codes: int) -> JobReport:
    """Wait until a job has ended in one of these ways, and nothing of it is left in any batch system."""
    report = user.wait_over(job)
    assert report.outcome is not None
    assert report.outcome.exit_code in codes, report.outcome
    nothing_left(user)
    return report


def nothing_left(user: KoalaUser) -> None:
    """Wait until no batch system has anything of this user's: the service ends what it has a moment after the job."""
    wait_until(
        lambda: not any(placeholders(system) for system in user.systems.values()),
        seconds=PATIENCE,
        what="no placeholder is left",
        details=user.details,
    )


def test_dask_workers_come_and_go_with_local_users(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """1 worker becomes 6 on three systems, 2 for jobs of sbatch and qsub, and 4 when one of them ends."""
    user = two_systems(new_user, slurm_a, sge_cell, on_slurm=3, on_cell=2)
    with user.site.open("a") as site:
        site.write(LOCAL_CLUSTER.format(directory=user.output))
    user.serve()
    enough = user.directory / "enough"
    shutil.copy(STREAM, user.directory)
    stream = {
        '"dasksum.py", "200"]': f'"daskstream.py", "{enough}"]\ncluster = "here"',
        '"dasksum.py", ': '"daskstream.py", ',
    }
    job = user.submit(write_dasksum(user.directory, tasks=200, seconds=0.25, replaced=stream))
    report = user.wait(job, lambda report: workers(report) == 6, what="has all there is")
    assert {one.cluster for one in report.components} == {"here", *user.systems}
    with local_job(sge_cell, sge_cell.slots):
        with local_job(slurm_a, kept_free(slurm_a, 3) + 2):
            # Where the batch system starts an array piece by piece, more may be given at first than is taken.
            user.wait(job, lambda report: workers(report) == 2, what="has made room")
        report = user.wait(job, lambda report: workers(report) == 4, what="has grown again on Slurm alone")
    shrunk = [one for one in report.size_changes if one.after < one.before]
    assert {one.cluster for one in shrunk} == set(user.systems)
    assert all(" that wait" in one.reason for one in shrunk), shrunk
    enough.touch()
    expect_over(user, job, 0)
    tasks, total, lost = (int(line) for line in user.output_of(job, "head", 0).split())
    assert (f"sum {total}", lost) == (sum_of_squares(0, tasks), 0)


def test_a_cluster_of_a_script_over_two_batch_systems(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """It begins a service, has workers from both, is made smaller by koala, and loses nothing; closed, all is gone."""
    user = two_systems(new_user, slurm_a, sge_cell, on_slurm=2, on_cell=1)
    user.serve()
    with DaskProgram(user.directory, user.environment(), "breathe", 3, 1, site=user.site, state=user.state) as dask:
        assert dask.until_said("many on") == " ".join(sorted(user.systems))
        go = user.directory / "go"
        waiting = ("sh", "-c", f"until [ -e {go} ]; do sleep 0.2; done")
        rigid = user.submit(user.job_file(*(part(name, 1, *waiting) for name in user.systems)))
        dask.until_said("during")  # it was made smaller
        go.touch()
        dask.until_said("closed")
        assert dask.ended() == 0
    again = sum_of_squares(0, TASKS)
    assert dask.results == [again, "during True", again, "scattered True", "executor 0 1 4 9 16", "lost 0", "closed"], (
        dask.said
    )
    assert user.wait_over(rigid).state is JobState.COMPLETED
    changes = expect_over(user, "1", 0, EXIT_CANCELLED).size_changes
    assert {one.cluster for one in changes if one.reason == f"room for job {rigid}"} == set(user.systems)

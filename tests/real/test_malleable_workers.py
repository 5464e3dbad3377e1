# SPDX-License-Identifier: Apache-2.0
"""A head and workers over Slurm and Grid Engine at once: the job grows, shrinks, and survives losses on both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.outcome import JobState
from tests.real.lrms import local_job, placeholders
from tests.real.user import part
from tests.taskqueue import expected_sum, write_taskqueue

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.report.values import JobReport
    from tests.real.conftest import NewUser
    from tests.real.systems import GridEngineCell, SlurmCluster
    from tests.real.user import KoalaUser

pytestmark = [pytest.mark.real("slurmctld", "slurmd", "sge_qmaster")]


def workers(report: JobReport) -> dict[str | None, int]:
    """Return the processors of the workers on each cluster."""
    found: dict[str | None, int] = {}
    for one in report.components:
        if one.name == "worker" and one.processors:
            found[one.cluster] = found.get(one.cluster, 0) + one.processors
    return found


def two_systems(new_user: NewUser, slurm: SlurmCluster, cell: GridEngineCell) -> KoalaUser:
    """Return a user who may have four processors on Slurm, and all of Grid Engine."""
    return new_user(slurm, cell, clusters={slurm.name: {"threshold": slurm.cpus * len(slurm.nodes) - 4}})


def enough(user: KoalaUser) -> Path:
    """Return the file that tells a task queue that there are no more tasks."""
    return user.directory / "enough"


def submit(user: KoalaUser) -> str:
    """Submit a task queue of short tasks."""
    return user.submit(write_taskqueue(user.directory, tasks=1, seconds=0.5, until=enough(user)))


def expect_right(user: KoalaUser, job: str) -> None:
    """Let a task queue end: every result is right, and nothing is left in any batch system."""
    enough(user).touch()
    report = user.wait_over(job)
    assert report.outcome is not None
    assert (report.state, report.outcome.exit_code) == (JobState.COMPLETED, 0), report.outcome
    *results, total = user.output_of(job, "head", 0).decode().splitlines()
    assert sorted(int(line.split()[0]) for line in results) == [*range(len(results))]
    assert total == expected_sum(len(results))
    assert all(not placeholders(system) for system in user.systems.values())


def test_a_job_breathes_over_slurm_and_grid_engine(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """It grows on both systems, makes room on both for a rigid job that is co-allocated there, and grows again."""
    user = two_systems(new_user, slurm_a, sge_cell)
    job = submit(user)
    everything = 4 + sge_cell.slots
    user.wait(job, lambda report: sum(workers(report).values()) == everything - 1, what="has all there is")
    go = user.directory / "go"
    waiting = ("sh", "-c", f"until [ -e {go} ]; do sleep 0.2; done")
    rigid = user.submit(user.job_file(*(part(name, 2, *waiting) for name in user.systems), name="rigid"))
    user.wait(rigid, lambda report: report.launched_at is not None, what="has got its processors")
    report = user.report(job)
    assert sum(workers(report).values()) <= everything - 1 - 4
    shrunk = [one for one in report.size_changes if one.after < one.before]
    assert {one.cluster for one in shrunk} == set(user.systems)
    assert {one.reason for one in shrunk} == {f"room for job {rigid}"}
    go.touch()
    assert user.wait_over(rigid).state is JobState.COMPLETED
    user.wait(job, lambda report: sum(workers(report).values()) == everything - 1, what="has grown again")
    expect_right(user, job)


def test_a_job_makes_room_for_local_users_who_wait(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """What `sbatch` and `qsub` put in a queue is seen by polling and gets processors; after it the job grows again."""
    user = two_systems(new_user, slurm_a, sge_cell)
    job = submit(user)
    full = 4 + sge_cell.slots - 1
    user.wait(job, lambda report: sum(workers(report).values()) == full, what="has all there is")
    left_to_local_users = slurm_a.cpus * len(slurm_a.nodes) - 4
    with local_job(slurm_a, left_to_local_users + 2), local_job(sge_cell, 2):
        # Where the batch system starts an array piece by piece, more may be given at first than is taken.
        report = user.wait(job, lambda report: sum(workers(report).values()) == full - 4, what="has made room")
        shrunk = [one for one in report.size_changes if one.after < one.before]
        assert {one.cluster for one in shrunk} == set(user.systems)
        assert all(" that wait" in one.reason for one in shrunk), shrunk
    user.wait(job, lambda report: sum(workers(report).values()) == full, what="has grown again")
    expect_right(user, job)


def test_workers_whose_placeholders_are_ended_by_others_are_replaced(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """An operator's scancel and qdel cost a worker each; what it was doing is done by another; the size comes back."""
    user = two_systems(new_user, slurm_a, sge_cell)
    job = submit(user)
    full = 4 + sge_cell.slots - 1
    user.wait(job, lambda report: sum(workers(report).values()) == full, what="has all there is")
    latest = {one.cluster: one.lrm_ids[-1] for one in user.report(job).components if one.name == "worker"}
    slurm_a.run("scancel", latest[slurm_a.name])
    sge_cell.run("qdel", latest[sge_cell.name].partition(".")[0], "-t", latest[sge_cell.name].partition(".")[2] or "1")
    lost = user.wait(
        job, lambda report: sum("was lost" in one.reason for one in report.size_changes) >= 2, what="lost two workers"
    )
    assert lost.state is JobState.RUNNING
    user.wait(job, lambda report: sum(workers(report).values()) == full, what="has all there is again")
    expect_right(user, job)


@pytest.mark.parametrize("moment", ["growing", "shrinking"])
def test_the_service_is_killed_while_a_job_changes(
    moment: str, new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """The application works on meanwhile; the next service goes on with the change; nobody else is kept waiting."""
    user = two_systems(new_user, slurm_a, sge_cell)
    with local_job(sge_cell, sge_cell.slots):
        job = submit(user)
        user.wait(job, lambda report: sum(workers(report).values()) == 3, what="has all there is on Slurm")
        if moment == "shrinking":
            rigid = user.submit(user.job_file(part(slurm_a.name, 2, "true"), name="rigid"))
    if moment == "growing":
        user.wait(
            job,
            lambda report: (
                any(one.cluster == sge_cell.name and one.queued for one in report.components)
                or len(placeholders(sge_cell)) > 0
                or sge_cell.name in workers(report)
            ),
            what="grows on Grid Engine",
        )
    user.kill()
    user.serve()
    if moment == "shrinking":
        assert user.wait_over(rigid).state is JobState.COMPLETED
    user.wait(job, lambda report: sge_cell.name in workers(report), what="is on Grid Engine, too")
    expect_right(user, job)

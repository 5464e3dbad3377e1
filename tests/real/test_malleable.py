# SPDX-License-Identifier: Apache-2.0
"""Malleable workers and MPI programs on real systems."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from koala_adapter.outcome import JobState
from koala_adapter.report.values import JobReport
from tests.examplejobs import expected_sum, write_taskqueue
from tests.mpi_by_hand import HandLauncher, Mpich, of_system, of_wheel
from tests.real.conftest import NewUser
from tests.real.lrms import local_job, placeholders
from tests.real.systems import GridEngineCell, SlurmCluster
from tests.real.systems.processes import PATIENCE, SYSTEM_PATH, wait_until
from tests.real.user import KoalaUser, Values, at_most, part, toml, until

# -- A head and workers over Slurm and Grid Engine at once: the job grows, shrinks, and survives losses on both.


def workers(report: JobReport) -> dict[str | None, int]:
    """Return the processors of the workers on each cluster."""
    found: dict[str | None, int] = {}
    for one in report.components:
        if one.name == "worker" and one.processors:
            found[one.cluster] = found.get(one.cluster, 0) + one.processors
    return found


def enough(user: KoalaUser) -> Path:
    """Return the file that tells a task queue that there are no more tasks."""
    return user.directory / "enough"


def submit(user: KoalaUser) -> str:
    """Submit a task queue of short tasks."""
    return user.submit(write_taskqueue(user.directory, tasks=1, seconds=0.5, until=enough(user)))


def expect_right(user: KoalaUser, job: str) -> None:
    """Let a task queue end: every result is right, and nothing is left in any batch system."""
    enough(user).touch()
    user.wait_completed(job)
    *results, total = user.output_of(job, "head", 0).decode().splitlines()
    assert sorted(int(line.split()[0]) for line in results) == [*range(len(results))]
    assert total == expected_sum(len(results))
    assert all(not placeholders(system) for system in user.systems.values())


def test_a_job_breathes_over_slurm_and_grid_engine(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """It grows on both systems, makes room on both for a rigid job that is co-allocated there, and grows again."""
    user = new_user(slurm_a, sge_cell, clusters={"a": at_most(slurm_a, 4)})
    job = submit(user)
    everything = 4 + sge_cell.slots
    user.wait(job, lambda report: sum(workers(report).values()) == everything - 1, what="has all there is")
    go = user.directory / "go"
    waiting = until(go)
    rigid = user.submit(user.job_file(*(part(name, 2, *waiting) for name in user.systems), name="rigid"))
    user.wait(rigid, lambda report: report.launched_at is not None, what="has got its processors")
    report = user.report(job)
    assert sum(workers(report).values()) <= everything - 1 - 4
    shrunk = [one for one in report.size_changes if one.after < one.before]
    assert {one.cluster for one in shrunk} == set(user.systems)
    assert {one.reason for one in shrunk} == {f"room for job {rigid}"}
    go.touch()
    user.wait_completed(rigid)
    user.wait(job, lambda report: sum(workers(report).values()) == everything - 1, what="has grown again")
    expect_right(user, job)


def test_a_job_makes_room_for_local_users_who_wait(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """What `sbatch` and `qsub` put in a queue is seen by polling and gets processors; after it the job grows again."""
    user = new_user(slurm_a, sge_cell, clusters={"a": at_most(slurm_a, 4)})
    job = submit(user)
    full = 4 + sge_cell.slots - 1
    user.wait(job, lambda report: sum(workers(report).values()) == full, what="has all there is")
    left_to_local_users = slurm_a.processors - 4
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
    user = new_user(slurm_a, sge_cell, clusters={"a": at_most(slurm_a, 4)})
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


def test_the_service_is_killed_while_a_job_shrinks_and_while_it_grows(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """The application works on meanwhile; the next service goes on with the change; nobody else is kept waiting."""
    user = new_user(slurm_a, sge_cell, clusters={"a": at_most(slurm_a, 4)})
    with local_job(sge_cell, sge_cell.slots):
        job = submit(user)
        user.wait(job, lambda report: sum(workers(report).values()) == 3, what="has all there is on Slurm")
        rigid = user.submit(user.job_file(part(slurm_a.name, 2, "true"), name="rigid"))
        user.kill()
        user.serve()
        user.wait_completed(rigid)
    wait_until(lambda: bool(placeholders(sge_cell)), seconds=PATIENCE, what="grows on the cell", details=user.details)
    user.kill()
    user.serve()
    user.wait(job, lambda report: sge_cell.name in workers(report), what="is on Grid Engine, too")
    expect_right(user, job)


# -- MPI programs that grow and shrink over real batch systems: right results, and who leaves is out of the system.


@pytest.fixture(scope="module", params=["spawn", "restart"])
def mpich(request: pytest.FixtureRequest) -> Mpich:
    """An MPICH with dynamic processes, and that of the system, which has none."""
    found = of_wheel() if request.param == "spawn" else of_system()
    if found is None:
        pytest.skip("the PyPI package mpich is not installed" if request.param == "spawn" else "no MPICH of the system")
    return found


def job_file(user: KoalaUser, mpich: Mpich, command: Sequence[str], **component: bool | int | str) -> Path:
    """Write the file of a job of one malleable component."""
    head: dict[str, object] = {"name": "mpi", "kind": "malleable", "runner": "adaptive", "launcher": "mpi"}
    head["walltime"] = 600
    if not mpich.spawns:
        head["working_directory"] = str(user.directory)
    environment = {"PATH": f"{mpich.commands}:{SYSTEM_PATH}"}
    table = {"name": "program", "command": list(command), "minimum": 1, **component}
    path = user.directory / "mpi.toml"
    path.write_text(toml({**head, "environment": environment}) + f"\n[[components]]\n{toml(table)}")
    return path


def sizes(lines: Sequence[str]) -> list[int]:
    """Return the numbers of processes that a program had, one after the other."""
    return [int(line.split(": ")[1].split()[0]) for line in lines if line.endswith(" processes")]


def says(user: KoalaUser, job: str, size: int) -> bool:
    """Tell whether the program itself has said last that it has so many processes."""
    lines = user.output_of(job, "program", 0).decode().splitlines()
    return sizes(lines)[-1:] == [size]


@pytest.mark.real("cc")
def test_nbody_over_slurm_and_grid_engine(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell, mpich: Mpich, tmp_path: Path
) -> None:
    """2 to 5 to 3 processes on both systems at once; the end state is that of fixed size, bit by bit."""
    method: Values = {"mpi_resize": "spawn" if mpich.spawns else "restart"}
    own = {slurm_a.name: {**at_most(slurm_a, 3), **method}, sge_cell.name: method}
    user = new_user(slurm_a, sge_cell, clusters=own)
    program, stop = mpich.compile("nbody", tmp_path), tmp_path / "stop"
    command = [str(program), "100", "100000", "0.1", str(stop)]
    job = user.submit(job_file(user, mpich, command, maximum=5, initial=2, flexible=True))
    user.wait(job, lambda _: says(user, job, 5), what="computes on 5")
    assert all(placeholders(system) for system in user.systems.values())
    user.client.resize(job, 3)
    user.wait(job, lambda report: sum(one.processors for one in report.components) == 3, what="has shrunk to 3")
    user.wait(job, lambda _: sum(len(placeholders(one)) for one in user.systems.values()) == 3, what="who left is gone")
    stop.touch()
    user.wait_completed(job)
    assert all(not placeholders(system) for system in user.systems.values())
    lines = user.output_of(job, "program", 0).decode().splitlines()
    assert {2, 5, 3} <= set(sizes(lines))
    assert (sizes(lines)[0], sizes(lines)[-1]) == (2, 3)
    steps = lines[-1].split(":")[0].removeprefix("step ")
    with HandLauncher(mpich, [str(program), "100", steps], size=2, environment={}) as fixed:
        assert fixed.wait() == 0
    assert lines[-1] == fixed.text[-1]

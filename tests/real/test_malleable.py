# SPDX-License-Identifier: Apache-2.0
"""Malleable workers and MPI programs on real systems, and as simulated."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from koala_adapter.outcome import JobState
from koala_adapter.report.values import JobReport
from koala_adapter.scheduler.parameters import Approach
from tests.examplejobs import expected_sum, write_taskqueue
from tests.mpi_by_hand import HandLauncher, Mpich, of_system, of_wheel
from tests.real.conftest import NewUser
from tests.real.lrms import System, local_job, placeholders, time_to_notice
from tests.real.systems import GridEngineCell, SlurmCluster
from tests.real.systems.processes import PATIENCE, SYSTEM_PATH, wait_until
from tests.real.user import KoalaUser, part, toml
from tests.sizes_over_time import PROCESSORS, expect_the_same, live

# -- A head and workers over Slurm and Grid Engine at once: the job grows, shrinks, and survives losses on both.


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
    user.wait_completed(job)
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
    user.wait_completed(rigid)
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
        user.wait_completed(rigid)
    user.wait(job, lambda report: sge_cell.name in workers(report), what="is on Grid Engine, too")
    expect_right(user, job)


# -- MPI programs that grow and shrink over real batch systems: right results, and who leaves is out of the system.


LEAVING = 5.0
"""Seconds in which who leaves is out of its batch system, beside what the system takes for any job that ends."""
IN_TIME = [pytest.param(False, id="in the end"), pytest.param(True, id="in time", marks=pytest.mark.nightly)]
"""Whether that bound counts, which an idle machine keeps."""


@pytest.fixture(scope="module", params=["spawn", "restart"])
def mpich(request: pytest.FixtureRequest) -> Mpich:
    """An MPICH with dynamic processes, and that of the system, which has none."""
    found = of_wheel() if request.param == "spawn" else of_system()
    if found is None:
        pytest.skip("the PyPI package mpich is not installed" if request.param == "spawn" else "no MPICH of the system")
    return found


def method(mpich: Mpich) -> dict[str, str]:
    """Return what the site file says of clusters with an MPI."""
    return {"mpi_resize": "spawn" if mpich.spawns else "restart"}


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


def size(user: KoalaUser, job: str) -> int:
    """Return how many processors a job has."""
    return sum(one.processors for one in user.report(job).components)


def sizes(lines: Sequence[str]) -> list[int]:
    """Return the numbers of processes that a program had, one after the other."""
    return [int(line.split(": ")[1].split()[0]) for line in lines if line.endswith(" processes")]


def says(user: KoalaUser, job: str, size: int) -> bool:
    """Tell whether the program itself has said last that it has so many processes."""
    lines = user.output_of(job, "program", 0).decode().splitlines()
    return sizes(lines)[-1:] == [size]


def finished(user: KoalaUser, job: str) -> list[str]:
    """Wait until a job has completed, and return what its first process printed."""
    user.wait_completed(job)
    assert all(not placeholders(system) for system in user.systems.values())
    return user.output_of(job, "program", 0).decode().splitlines()


def time_of_systems(user: KoalaUser, *systems: System) -> float:
    """Return the seconds that the slowest of some batch systems takes to show no more a job that has ended."""
    return max(time_to_notice(system, user.directory) for system in systems)


def expect_placeholders(user: KoalaUser, count: int, *, own: float | None) -> None:
    """Insist that who left goes out of the batch systems; ``own``: within five seconds plus the systems' own time."""
    wait_until(
        lambda: sum(len(placeholders(system)) for system in user.systems.values()) == count,
        seconds=PATIENCE if own is None else LEAVING + own,
        what="who left is gone" if own is None else f"the same within {LEAVING:g} s and the {own:.1f} s of the systems",
        details=user.details,
    )


@pytest.mark.real("cc")
@pytest.mark.parametrize("in_time", IN_TIME)
def test_nbody_over_slurm_and_grid_engine(
    new_user: NewUser,
    slurm_a: SlurmCluster,
    sge_cell: GridEngineCell,
    mpich: Mpich,
    tmp_path: Path,
    *,
    in_time: bool,
) -> None:
    """2 to 5 to 3 processes on both systems at once; the end state is that of fixed size, bit by bit."""
    threshold = slurm_a.cpus * len(slurm_a.nodes) - 3
    own: dict[str, dict[str, int | float | str | bool]] = {
        slurm_a.name: {"threshold": threshold, **method(mpich)},
        sge_cell.name: {**method(mpich)},
    }
    user = new_user(slurm_a, sge_cell, clusters=own)
    program, stop = mpich.compile("nbody", tmp_path), tmp_path / "stop"
    system_time = time_of_systems(user, slurm_a, sge_cell) if in_time else None
    command = [str(program), "100", "100000", "0.1", str(stop)]
    job = user.submit(job_file(user, mpich, command, maximum=5, initial=2, flexible=True))
    user.wait(job, lambda _: says(user, job, 5), what="computes on 5")
    assert all(placeholders(system) for system in user.systems.values())
    user.client.resize(job, 3)
    user.wait(job, lambda _: size(user, job) == 3, what="has shrunk to 3")
    expect_placeholders(user, 3, own=system_time)
    stop.touch()
    lines = finished(user, job)
    assert {2, 5, 3} <= set(sizes(lines))
    assert (sizes(lines)[0], sizes(lines)[-1]) == (2, 3)
    steps = lines[-1].split(":")[0].removeprefix("step ")
    with HandLauncher(mpich, [str(program), "100", steps], size=2, environment={}) as fixed:
        assert fixed.wait() == 0
    assert lines[-1] == fixed.text[-1]


@pytest.mark.real("cc")
@pytest.mark.parametrize("in_time", IN_TIME)
def test_ft_takes_powers_of_two(
    new_user: NewUser,
    slurm_a: SlurmCluster,
    mpich: Mpich,
    tmp_path: Path,
    *,
    in_time: bool,
) -> None:
    """1, 2, 4 and 2 processes: of three processors that are offered to two it takes two; every checksum is right."""
    processors = slurm_a.cpus * len(slurm_a.nodes)
    user = new_user(slurm_a, clusters={slurm_a.name: {"threshold": processors - 5, **method(mpich)}})
    program, stop = mpich.compile("ft", tmp_path), tmp_path / "stop"
    system_time = time_of_systems(user, slurm_a) if in_time else None
    with ExitStack() as others:
        others.enter_context(local_job(slurm_a, processors - 2))
        user.wait_available(2)
        command = [str(program), "S", "100000", "0.2", str(stop)]
        job = user.submit(job_file(user, mpich, command, maximum=8))
        user.wait(job, lambda _: says(user, job, 2), what="computes on 2")
    user.wait(job, lambda _: says(user, job, 4), what="computes on 4")
    user.client.resize(job, 2)
    user.wait(job, lambda _: size(user, job) == 2, what="has shrunk to 2")
    expect_placeholders(user, 2, own=system_time)
    stop.touch()
    lines = finished(user, job)
    assert sizes(lines) == [1, 2, 4, 2]
    assert lines[-1] == "VERIFICATION SUCCESSFUL"


# -- Two malleable jobs and a rigid one on Slurm under PRA and PWA: sizes over time as the simulator has them.


@pytest.mark.parametrize("approach", [Approach.PRA, Approach.PWA])
def test_sizes_over_time_are_those_of_the_simulator(
    approach: Approach, new_user: NewUser, slurm_a: SlurmCluster
) -> None:
    """The same changes in the same order; under PRA the rigid job waits for an end, under PWA it does not."""
    assert slurm_a.cpus * len(slurm_a.nodes) == PROCESSORS
    user = new_user(slurm_a, serve=False)
    expect_the_same(approach, live(approach, site=str(user.site)))
    assert not placeholders(slurm_a)

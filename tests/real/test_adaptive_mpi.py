# SPDX-License-Identifier: Apache-2.0
"""MPI programs that grow and shrink over real batch systems: right results, and who leaves is out of the system."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from koala_adapter.outcome import JobState
from tests.mpi_by_hand import HandLauncher, Mpich, of_system, of_wheel
from tests.real.lrms import local_job, placeholders, time_to_notice
from tests.real.systems.processes import PATIENCE, SYSTEM_PATH, wait_until
from tests.real.user import toml

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.real.conftest import NewUser
    from tests.real.lrms import System
    from tests.real.systems import GridEngineCell, SlurmCluster
    from tests.real.user import KoalaUser

pytestmark = [pytest.mark.real("slurmctld", "slurmd", "sge_qmaster", "cc")]

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
    report = user.wait_over(job)
    assert report.outcome is not None
    assert (report.state, report.outcome.exit_code) == (JobState.COMPLETED, 0), report.outcome
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

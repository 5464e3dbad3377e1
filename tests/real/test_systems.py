# SPDX-License-Identifier: Apache-2.0
"""Shows that the test systems are what the other tests take them for: real, kept apart, and gone at the end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.real.conftest import NewGridEngine, NewSlurm
from tests.real.systems import CommandError, GridEngineCell, SlurmCluster, SystemFailedError
from tests.real.systems.processes import (
    Ports,
    SystemDirectory,
    base_environment,
    find_processes,
    remove_abandoned,
    run_command,
    wait_reaped,
    wait_until,
)
from tests.real.systems.requirements import missing_for_grid_engine, missing_for_slurm, require

SECONDS = 90.0
"""Bound on what takes about one second on an idle machine."""

SLEEP = "#!/bin/sh\nexec sleep 600\n"


def read(path: Path) -> str:
    """Return the contents of a file, or nothing while there is none."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


def wait_for_text(path: Path, text: str) -> None:
    """Return when a file that a job writes contains a text."""
    wait_until(lambda: text in read(path), seconds=SECONDS, what=f"{text} in {path}", details=lambda: read(path))


def states(cluster: SlurmCluster, job: str) -> list[str]:
    """Return the states of the tasks of a job that the controller still knows."""
    return [state for _, state, _ in cluster.squeue(f"--jobs={job}", "--states=all")]


def wait_running(cluster: SlurmCluster, job: str, count: int) -> None:
    """Return when so many tasks of the job run, and no other tasks of it are left."""
    wait_until(lambda: states(cluster, job) == ["RUNNING"] * count, seconds=SECONDS, what=f"{job} runs")


def wait_tasks(cell: GridEngineCell, count: int) -> None:
    """Return when so many jobs and tasks run in the cell."""
    wait_until(lambda: cell.qstat().count(" r ") == count, seconds=SECONDS, what=f"{count} running", details=cell.qstat)


def processes_of(directory: Path) -> list[int]:
    """Return the processes of the test system in a directory."""
    return find_processes(lambda process: process.uses(directory))


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Directory that all users may write to."""
    directory = SystemDirectory.create("output")
    directory.path.chmod(0o1777)
    yield directory.path
    directory.remove()


# -- Slurm -----------------------------------------------------------------------------------------------------------


def test_slurm_job_runs(slurm_a: SlurmCluster, open_directory: Path) -> None:
    """A script handed to sbatch runs on a node of the cluster, and its output arrives."""
    output = open_directory / "out"
    slurm_a.submit("#!/bin/sh\necho on $SLURMD_NODENAME of $SLURM_CLUSTER_NAME\n", f"--output={output}")
    wait_for_text(output, "of a\n")
    assert re.fullmatch(r"on n[12] of a\n", read(output))


def test_slurm_clusters_are_apart(slurm_a: SlurmCluster, slurm_b: SlurmCluster) -> None:
    """Two clusters run at once, and a job of one is unknown to the other."""
    slurm_a.submit(SLEEP, "--output=/dev/null", "--job-name=only-in-a")
    assert [row[0] for row in slurm_a.squeue(form="%j")] == ["only-in-a"]
    assert slurm_b.squeue() == []


def test_slurm_reset_leaves_nothing(slurm_a: SlurmCluster) -> None:
    """After a reset no job is left: none that runs and ignores SIGTERM, none that waits, none of another user."""
    running = slurm_a.submit("#!/bin/sh\ntrap '' TERM\nsleep 600\nsleep 600\n", "--output=/dev/null", "--array=1-4")
    wait_running(slurm_a, running, 4)
    slurm_a.submit(SLEEP, "--output=/dev/null", "--hold")
    slurm_a.submit(SLEEP, "--output=/dev/null", user="nobody")
    slurm_a.reset()
    assert slurm_a.squeue() == []


def test_slurm_job_survives_the_controller(slurm_a: SlurmCluster) -> None:
    """Jobs go on running while the controller is away, and it knows them when it is back."""
    job = slurm_a.submit(SLEEP, "--output=/dev/null", "--array=1-2")
    wait_running(slurm_a, job, 2)
    slurm_a.stop_controller()
    with pytest.raises(CommandError, match="Unable to contact slurm controller"):
        slurm_a.squeue()
    slurm_a.start_controller()
    assert states(slurm_a, job) == ["RUNNING"] * 2


def test_slurm_users_are_told_apart(new_slurm: NewSlurm, open_directory: Path) -> None:
    """With munge a user's job runs as that user, and another user can neither read its script nor cancel it."""
    cluster, output = new_slurm(auth="munge"), open_directory / "out"
    job = cluster.submit("#!/bin/sh\nid -un\nsleep 600\n", f"--output={output}", user="nobody")
    wait_for_text(output, "nobody")
    scripts = cluster.run("scontrol", "write", "batch_script", job, "-", user="daemon", check=False)
    spooled = list(cluster.spool("n1").rglob("slurm_script"))
    assert scripts == ""
    assert len(spooled) == 1
    with pytest.raises(CommandError, match="Permission denied"):
        cluster.run("cat", str(spooled[0]), user="daemon")
    with pytest.raises(CommandError, match="Access/permission denied"):
        cluster.run("scancel", job, user="daemon")


def test_slurm_failure_shows_the_log(new_slurm: NewSlurm) -> None:
    """A cluster that cannot start says why, in the words of the daemon."""
    with pytest.raises(SystemFailedError, match="select/nonsense"):
        new_slurm(settings={"SelectType": "select/nonsense"})


# -- Grid Engine -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", [None, "nobody"])
def test_grid_engine_job_runs(sge_cell: GridEngineCell, open_directory: Path, user: str | None) -> None:
    """A script handed to qsub runs as its user, root or not, and its output arrives."""
    output = open_directory / "out"
    options = ("-wd", "/tmp", "-j", "y", "-o", str(output))
    sge_cell.submit("#!/bin/sh\necho $(id -un) in $QUEUE\n", *options, user=user)
    wait_for_text(output, "in all.q\n")
    assert read(output) == f"{user or 'root'} in all.q\n"


def test_grid_engine_cells_are_apart(sge_cell: GridEngineCell, new_grid_engine: NewGridEngine) -> None:
    """Two cells run at once: deleting all jobs of one leaves those of the other, and their processes, alone."""
    other = new_grid_engine("other", slots=2)
    for cell in (sge_cell, other):
        cell.submit(SLEEP, "-o", "/dev/null", "-j", "y", "-t", "1-2")
        wait_tasks(cell, 2)
    other.reset()
    assert other.qstat() == ""
    assert sge_cell.qstat().count(" r ") == 2


def test_grid_engine_knows_the_end(sge_cell: GridEngineCell) -> None:
    """The exit code of an ended job is in the accounting as soon as the job is gone from the list."""
    job = sge_cell.submit("#!/bin/sh\nexit 3\n", "-o", "/dev/null", "-j", "y")
    wait_until(lambda: not sge_cell.qstat(), seconds=SECONDS, what=f"end of {job}", details=sge_cell.qstat)
    with suppress(CommandError):  # It may take qmaster one more moment to write the line.
        sge_cell.run("qacct", "-j", job)
    wait_until(
        lambda: "exit_status  3 " in sge_cell.run("qacct", "-j", job, check=False), seconds=SECONDS, what="accounting"
    )


# -- both ------------------------------------------------------------------------------------------------------------


def test_stop_leaves_nothing(new_slurm: NewSlurm, new_grid_engine: NewGridEngine) -> None:
    """After stop neither a daemon nor a job process nor a file of the system is left."""
    cluster, cell = new_slurm(), new_grid_engine()
    wait_running(cluster, cluster.submit(SLEEP, "--output=/dev/null"), 1)
    cell.submit(SLEEP, "-o", "/dev/null", "-j", "y")
    wait_tasks(cell, 1)
    for system in (cluster, cell):
        assert len(processes_of(system.directory)) > 3
        system.stop()
        assert processes_of(system.directory) == []
        assert not system.directory.exists()


START_AND_DIE = """
import os, signal, sys
from tests.real.systems import SlurmCluster
cluster = SlurmCluster("orphan", nodes=1)
cluster.start()
print(cluster.directory, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_abandoned_system_is_removed() -> None:
    """What a killed test process left is ended and deleted by a later one; what has an owner stays."""
    require(missing_for_slurm())
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", START_AND_DIE]
    environment = {**base_environment(), "PYTHONPATH": str(root)}
    died = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=180, check=False)
    directory, owned = Path(died.stdout.strip()), SystemDirectory.create("owned")
    assert died.returncode == -signal.SIGKILL
    assert processes_of(directory) != []
    remove_abandoned(older_than=0.0)
    assert processes_of(directory) == []
    assert not directory.exists()
    assert owned.path.exists()
    owned.remove()


def test_the_dead_are_waited_for_until_nobody_takes_them_for_alive() -> None:
    """A killed process has a number until its parent, or init, has heard of its end."""
    child = subprocess.Popen(["sleep", "600"])
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(SystemFailedError):
        wait_reaped({child.pid}, seconds=0.0)
    child.wait()
    wait_reaped({child.pid})


def test_ports_have_one_owner() -> None:
    """No port is given to two owners, and one that was given back can be had again."""
    claimed = [Ports.claim(3) for _ in range(20)]
    numbers = [ports[index] for ports in claimed for index in range(3)]
    assert len(set(numbers)) == 60
    for ports in claimed:
        ports.release()
    with pytest.raises(IndexError):
        claimed[0][0]


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the programs the requirements name them and the packages that have them."""
    monkeypatch.setattr("tests.real.systems.requirements.SYSTEM_PATH", "/nonexistent")
    monkeypatch.setattr("tests.real.systems.requirements.SLURM_PATH", "")
    monkeypatch.setattr("tests.real.systems.requirements.GRID_ENGINE", {"/nonexistent/qsub": "gridengine-client"})
    assert "munged (Debian package munge)" in missing_for_slurm(munge=True)
    assert "slurmd (Debian package slurmd)" in missing_for_slurm()
    monkeypatch.setattr("tests.real.systems.requirements.SLURM_PATH", "/nonexistent/sbin")
    assert "slurmd in /nonexistent/sbin (KOALA_TEST_SLURM)" in missing_for_slurm()
    assert "/nonexistent/qsub (Debian package gridengine-client)" in missing_for_grid_engine()


def test_allreduce_program(allreduce: Path) -> None:
    """The compiled MPI program adds up the numbers of its ranks."""
    argv = ["mpiexec.hydra", "-launcher", "fork", "-n", "3", str(allreduce)]
    lines = run_command(argv, environment={**base_environment(), "KOALA_COMPONENT": "left"}).splitlines()
    assert sorted(line.split()[0] for line in lines) == ["rank=0", "rank=1", "rank=2"]
    assert all(re.fullmatch(r"rank=\d size=3 host=\S+ component=left sum=6", line) for line in lines)

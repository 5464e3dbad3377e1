# SPDX-License-Identifier: Apache-2.0
"""Shows that the test systems are what the other tests take them for: real, kept apart, and gone at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.real.systems import GridEngineCell, SlurmCluster, SystemFailedError
from tests.real.systems.processes import (
    SystemDirectory,
    base_environment,
    find_processes,
    remove_abandoned,
    wait_reaped,
    wait_until,
)
from tests.real.systems.requirements import missing_for_slurm, require

SECONDS = 90.0
"""Bound on what takes about one second on an idle machine."""

SLEEP = "#!/bin/sh\nexec sleep 600\n"


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


# -- Slurm -----------------------------------------------------------------------------------------------------------


def test_slurm_failure_shows_the_log(started: ExitStack) -> None:
    """A cluster that cannot start says why, in the words of the daemon."""
    with pytest.raises(SystemFailedError, match="select/nonsense"):
        started.enter_context(SlurmCluster("x", nodes=1, settings={"SelectType": "select/nonsense"}))


# -- Grid Engine -----------------------------------------------------------------------------------------------------


def test_grid_engine_cells_are_apart(sge_cell: GridEngineCell, started: ExitStack) -> None:
    """Two cells run at once: deleting all jobs of one leaves those of the other, and their processes, alone."""
    other = started.enter_context(GridEngineCell("other", slots=2))
    for cell in (sge_cell, other):
        cell.submit(SLEEP, "-o", "/dev/null", "-j", "y", "-t", "1-2")
        wait_tasks(cell, 2)
    other.reset()
    assert other.qstat() == ""
    assert sge_cell.qstat().count(" r ") == 2


# -- both ------------------------------------------------------------------------------------------------------------


def test_stop_leaves_nothing(started: ExitStack) -> None:
    """After stop neither a daemon nor a job process nor a file of the system is left."""
    cluster, cell = started.enter_context(SlurmCluster("x", nodes=1)), started.enter_context(GridEngineCell("x"))
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
    os.utime(directory, (0, 0))  # older than a directory that its maker has yet to lock
    remove_abandoned()  # unless another process of pytest does at this moment
    wait_until(lambda: not directory.exists(), seconds=SECONDS, what="it is removed")
    assert processes_of(directory) == []
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

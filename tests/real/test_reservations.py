# SPDX-License-Identifier: Apache-2.0
"""Processors reserved by real batch systems for one job over both: used, found again after a kill, and given back."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.real.conftest import NewUser
from tests.real.lrms import placeholders
from tests.real.systems import GridEngineCell, SlurmCluster
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import PausedCommand, part


def reserved(slurm: SlurmCluster, cell: GridEngineCell) -> tuple[bool, bool]:
    """Tell on which of both something of koala is reserved."""
    return "koala-" in slurm.run("scontrol", "-o", "show", "reservation"), "koala-" in cell.run("qrstat")


def test_one_job_in_reservations_of_slurm_and_grid_engine(
    slurm_a: SlurmCluster, started: ExitStack, new_user: NewUser, tmp_path: Path
) -> None:
    """Each rank has two processors. The service is killed while both are reserved; the next one leaves nothing."""
    cell = started.enter_context(GridEngineCell("reserving"))
    cell.add_environment("spread", rule="$fill_up")
    cell.add_environment("smp", rule="$pe_slots")
    commands = tmp_path / "commands"
    pause = PausedCommand(commands, "sbatch", when="after")
    user = new_user(slurm_a, cell, path=commands)
    user.wait_available(8, 4)
    parts = (part(cluster.name, 2, "hostname", threads=2) for cluster in (slurm_a, cell))
    file = user.job_file(*parts, claiming="reserve")
    job = user.submit(file)
    # By then both have been sent what is to run there: what was not would not run in what is reserved.
    pause.wait_reached()
    wait_until(lambda: bool(placeholders(cell)), seconds=PATIENCE, what="the other submission")
    user.kill()
    pause.let_go()
    assert reserved(slurm_a, cell) == (True, True)
    user.serve()
    user.wait_completed(job)
    assert "are not reserved" not in user.run("explain", job).text
    wait_until(lambda: reserved(slurm_a, cell) == (False, False), seconds=PATIENCE, what="nothing is reserved")


def test_where_one_batch_system_refuses_the_job_runs_in_placeholders(
    slurm_a: SlurmCluster, started: ExitStack, new_user: NewUser
) -> None:
    """Without a parallel environment Grid Engine reserves one processor alone: Slurm's reservation is given back."""
    cell = started.enter_context(GridEngineCell("refusing"))
    user = new_user(slurm_a, cell)
    user.wait_available(8, 4)
    file = user.job_file(part(slurm_a.name, 2, "hostname"), part(cell.name, 2, "hostname"), claiming="reserve")
    job = user.submit(file)
    user.wait_completed(job)
    assert "no parallel environment of its queue spreads over hosts" in user.run("explain", job).text
    wait_until(lambda: reserved(slurm_a, cell) == (False, False), seconds=PATIENCE, what="nothing is reserved")

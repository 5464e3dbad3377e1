# SPDX-License-Identifier: Apache-2.0
"""What the batch systems themselves say of placeholders, asked past koala, and the jobs of their local users."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from tests.real.systems import GridEngineCell, SlurmCluster
from tests.real.systems.pbs import PbsServer
from tests.real.systems.processes import PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

System: TypeAlias = SlurmCluster | GridEngineCell
"""Systems that the tests start themselves."""

Served: TypeAlias = System | PbsServer
"""Those, and a server that the machine has."""

OURS = "koala-"
LOCAL = "local"
PLAIN = "plain"
JOB_NAME, JOB_NUMBER = 4, 5
"""Fields of a line of accounting(5), from 0."""


def listing(system: Served) -> str:
    """Return what a batch system shows of all jobs, ended ones included as far as it does."""
    if isinstance(system, PbsServer):
        return system.run("qstat", "-x", "-t")
    if isinstance(system, SlurmCluster):
        return "\n".join("|".join(row) for row in system.squeue("--states=all", form="%i|%j|%T|%r|%N"))
    return system.qstat()


def placeholders(system: Served, *, running: bool = False) -> list[str]:
    """Return the names of our placeholders that a batch system has now, one for each; ``running``: on a node."""
    return jobs_named(system, OURS, running=running)


def jobs_named(system: Served, prefix: str, *, running: bool = False) -> list[str]:
    """Return the names, one for each task, of the jobs that a batch system has now and whose name has a prefix."""
    if isinstance(system, PbsServer):
        return system.names(prefix, running=running)
    if isinstance(system, SlurmCluster):
        states = ("--states=RUNNING",) if running else ()
        return [row[0] for row in system.squeue(*states, form="%j") if row[0].startswith(prefix)]
    tasks = sge_tasks(system)
    return [name for name, state in tasks if name.startswith(prefix) and not (running and "q" in state)]


def sge_tasks(cell: GridEngineCell) -> list[tuple[str, str]]:
    """Return name and state of each task in a Grid Engine cell (`qstat -g d`: one line for each task)."""
    tasks: list[tuple[str, str]] = []
    for line in cell.run("qstat", "-u", "*", "-g", "d", "-r").splitlines():
        words = line.split()
        if line.lstrip().startswith("Full jobname:") and tasks:
            tasks[-1] = (words[-1], tasks[-1][1])
        elif words and words[0].isdecimal() and not line.startswith("       "):
            tasks.append((words[2], words[4]))
    return tasks


def submissions(system: System, prefix: str) -> list[tuple[str, str]]:
    """Return name and LRM job id of every submission whose name has the prefix that the system ever had.

    Slurm: those of the last MinJobAge seconds. Grid Engine: those of which at least one task ran, or that are there.
    """
    if isinstance(system, SlurmCluster):
        rows = system.squeue("--states=all", form="%j|%F")
        return sorted({(name, number) for name, number in rows if name.startswith(prefix)})
    accounting = system.root / system.cell / "common" / "accounting"
    lines = accounting.read_text(errors="replace").splitlines() if accounting.exists() else []
    fields = [line.split(":") for line in lines if line and not line.startswith("#")]
    over = {(field[JOB_NAME], field[JOB_NUMBER]) for field in fields if field[JOB_NAME].startswith(prefix)}
    return sorted(over | {one for one in _sge_numbers(system) if one[0].startswith(prefix)})


def _sge_numbers(cell: GridEngineCell) -> set[tuple[str, str]]:
    numbers: set[tuple[str, str]] = set()
    number = ""
    for line in cell.run("qstat", "-u", "*", "-r").splitlines():
        words = line.split()
        if line.lstrip().startswith("Full jobname:"):
            numbers.add((words[-1], number))
        elif words and words[0].isdecimal() and not line.startswith("       "):
            number = words[0]
    return numbers


@contextmanager
def local_job(system: System, processors: int, *, user: str = "nobody") -> Iterator[None]:
    """Have a local user's job occupy processors during the block; at its end the job ends."""
    script = "#!/bin/sh\nexec sleep 900\n"
    if isinstance(system, SlurmCluster):
        number = system.submit(
            script, f"--array=1-{processors}", "--output=/dev/null", f"--job-name={LOCAL}", user=user
        )
    else:
        options = ("-N", LOCAL, "-t", f"1-{processors}", "-wd", "/tmp", "-o", "/dev/null", "-j", "y")
        number = system.submit(script, *options, user=user)
    wait_until(
        lambda: len(jobs_named(system, LOCAL, running=True)) == processors,
        seconds=PATIENCE,
        what="a local user's job runs",
        details=lambda: listing(system),
    )
    try:
        yield
    finally:
        system.run("scancel" if isinstance(system, SlurmCluster) else "qdel", number)


def time_to_notice(system: Served, directory: Path) -> float:
    """Return the seconds from the end of a job that ends by itself until the system does not show it any more.

    ``directory``: where the job notes its end.
    """
    ended = directory / f"{PLAIN}-{system.name}"
    script = f"#!/bin/sh\n: >{ended}\n"
    if isinstance(system, SlurmCluster):
        system.submit(script, "--output=/dev/null", f"--job-name={PLAIN}")
    elif isinstance(system, PbsServer):
        system.run("qsub", "-f", "-N", PLAIN, "-S", "/bin/sh", "-o", "/dev/null", "-j", "oe", stdin=script)
    else:
        system.submit(script, "-N", PLAIN, "-wd", "/tmp", "-o", "/dev/null", "-j", "y")
    wait_until(
        lambda: ended.exists() and not jobs_named(system, PLAIN),
        seconds=PATIENCE,
        what="a plain job has ended",
        details=lambda: listing(system),
    )
    return max(0.0, time.time() - ended.stat().st_mtime)

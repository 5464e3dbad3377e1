# SPDX-License-Identifier: Apache-2.0
"""What the batch systems themselves say of placeholders, asked past koala, and what jobs leave behind."""

from __future__ import annotations

import secrets
import sqlite3
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import anyio

from koala_adapter.host.regularfile import paths_matching
from tests.real.systems import GridEngineCell, SlurmCluster
from tests.real.systems.pbs import PbsServer
from tests.real.systems.processes import PATIENCE, SeenProcess, find_processes, wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from koala_adapter.model import BatchKey
    from tests.real.user import KoalaUser


# -- What the batch systems themselves say of placeholders, asked past koala, and the jobs of their local users.

System: TypeAlias = SlurmCluster | GridEngineCell
"""Systems that the tests start themselves."""

Served: TypeAlias = System | PbsServer
"""Those, and a server that the machine has."""

OURS = "koala-"
LOCAL = "local"
STRANGER = "nobody"
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
    # What is being transferred (t) does not run yet.
    return [name for name, state in tasks if name.startswith(prefix) and ("r" in state or not running)]


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


def submit_array(
    system: System,
    name: str,
    count: int,
    *,
    script: str = "#!/bin/sh\nexec sleep 900\n",
    held: bool = False,
    output: str = "/dev/null",
) -> str:
    """Submit an array of jobs of one processor as a local user, who has no home directory; return its number."""
    options = ["-N", name, "-t", f"1-{count}", "-wd", "/tmp", "-o", output, "-j", "y", *(["-h"] if held else [])]
    if isinstance(system, SlurmCluster):
        options = [f"--job-name={name}", f"--array=1-{count}", f"--output={output}", *(["--hold"] if held else [])]
    return system.submit(script, *options, user=STRANGER)


def end_job(system: System, number: str) -> None:
    """End a job through its batch system."""
    system.run("scancel" if isinstance(system, SlurmCluster) else "qdel", number)


@contextmanager
def local_job(system: System, processors: int) -> Iterator[None]:
    """Have a local user's job occupy processors during the block; at its end the job ends."""
    number = submit_array(system, LOCAL, processors)
    wait_until(
        lambda: len(jobs_named(system, LOCAL, running=True)) == processors,
        seconds=PATIENCE,
        what="a local user's job runs",
        details=lambda: listing(system),
    )
    try:
        yield
    finally:
        end_job(system, number)


def foreign_job(system: System) -> Callable[[int], AbstractAsyncContextManager[None]]:
    """Return what the conformance kit takes for jobs of another user that run."""

    @asynccontextmanager
    async def running(processors: int) -> AsyncIterator[None]:
        with ExitStack() as job:
            await anyio.to_thread.run_sync(job.enter_context, local_job(system, processors))
            yield

    return running


def namesake_job(system: System) -> Callable[[BatchKey, int], AbstractAsyncContextManager[None]]:
    """Return what the conformance kit takes for another user's array of a name that is held."""

    @asynccontextmanager
    async def held(name: BatchKey, count: int) -> AsyncIterator[None]:
        number = submit_array(system, name, count, held=True)
        try:
            yield
        finally:
            end_job(system, number)

    return held


# -- What a job could leave behind, and the proof that it did not: LRM jobs, processes, directories, files, secrets.

WORDS = "output of a placeholder"


class Traces:
    """The traces of one user's jobs. Take it before the first of them, and give each component ``mark``."""

    def __init__(self, user: KoalaUser) -> None:
        """Look at the present."""
        self._user = user
        self.mark = {"SCENARIO": secrets.token_hex(8)}
        """Environment by which the processes of jobs are known."""
        self.directories: set[Path] = set()
        """Private directories of agents that were seen."""

    def note_running(self) -> None:
        """Remember the private directories of all ranks that run now (their FIFOs are in them)."""
        for pid in self.ranks():
            process = SeenProcess.read(pid)
            if process is not None and "KOALA_STDOUT" in process.environment:
                self.directories.add(Path(process.environment["KOALA_STDOUT"]).parent)

    def expect_none(self, *, but_words: bool = False) -> None:
        """Insist that nothing is left: some of it, such as an LRM's own bookkeeping, may take a moment.

        ``but_words``: placeholders may have been killed before their agents ran, so that nobody removed the files into
        which their LRM puts its own words.
        """

        def left() -> list[str]:
            return [one for one in self.left() if not (but_words and one.startswith(WORDS))]

        wait_until(lambda: not left(), seconds=PATIENCE, what="nothing left", details=lambda: str(left()))

    def left(self) -> list[str]:
        """Return everything of the user's jobs that is still there."""
        user = self._user
        found = [f"{name}: placeholder {one}" for name, system in user.systems.items() for one in placeholders(system)]
        found += [f"process {pid}" for pid in (*self.ranks(), *self._agents())]
        found += [f"private directory {path}" for path in self.directories if path.exists()]
        found += [f"{WORDS} {path.name}" for path in user.output.iterdir()]
        for pattern in ("clusters/*/scripts/*", "jobs/*/_input", "*.token"):
            found += [f"file {path}" for path in paths_matching(user.state, pattern)]
        return found + self._secrets()

    def ranks(self) -> list[int]:
        """Return the processes of its ranks that are there."""
        mark = next(iter(self.mark.items()))
        return find_processes(lambda process: mark in process.environment.items())

    def _agents(self) -> list[int]:
        def belongs(process: SeenProcess) -> bool:
            used = any(process.uses(system.directory) for system in self._user.systems.values())
            return used and process.command.startswith("python")

        service = self._user.service
        found = find_processes(belongs)
        # The helper that speaks DRMAA is told of its cell, too, and lives as long as the service.
        return [pid for pid in found if service is None or parent_of(pid) != service.pid]

    def _secrets(self) -> list[str]:
        with sqlite3.connect(f"{(self._user.state / 'journal.sqlite').as_uri()}?mode=ro", uri=True) as database:
            tables = ("tokens", "sessions")
            counts = {name: database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}  # noqa: S608
        database.close()
        return [f"{count} {name}" for name, count in counts.items() if count]


def agents_directories(system: System) -> set[Path]:
    """Return the private directories of the agents of a batch system that have ranks."""
    seen = [SeenProcess.read(pid) for pid in find_processes(lambda process: process.uses(system.directory))]
    ranks = [one for one in seen if one is not None and "KOALA_STDOUT" in one.environment]
    return {Path(one.environment["KOALA_STDOUT"]).parents[1] for one in ranks}


def parent_of(pid: int) -> int:
    """Return the parent of a process; -1 when the process is gone."""
    process = SeenProcess.read(pid)
    return -1 if process is None else process.parent

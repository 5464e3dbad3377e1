# SPDX-License-Identifier: Apache-2.0
"""What a job could leave behind, and the proof that it did not: LRM jobs, processes, directories, files, secrets."""

from __future__ import annotations

import secrets
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from tests.real.lrms import placeholders
from tests.real.systems.processes import PATIENCE, SeenProcess, find_processes, wait_until

if TYPE_CHECKING:
    from tests.real.user import KoalaUser

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
        for pattern in ("clusters/*/scripts/*", "jobs/*/input", "*.token"):
            found += [f"file {path}" for path in user.state.glob(pattern)]
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


def parent_of(pid: int) -> int:
    """Return the parent of a process; -1 when the process is gone."""
    process = SeenProcess.read(pid)
    return -1 if process is None else process.parent

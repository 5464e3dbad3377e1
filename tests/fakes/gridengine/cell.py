# SPDX-License-Identifier: Apache-2.0
"""A fake Grid Engine cell with a DRMAA library, on a directory, from the side of the test that uses it.

One small process is its qmaster; jobs are processes of this host.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fakes.gridengine.engine import DOWN, STATE, Engine, State, Task
from tests.fakes.scripts import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class FakeCell:
    """A fake cell of one host."""

    def __init__(self, directory: Path, *, slots: int = 4) -> None:
        """Make the cell in ``directory``."""
        self.root = directory
        for part in ("exits", "job_scripts"):
            (directory / part).mkdir(parents=True)
        (directory / STATE).write_text(State(slots=slots).text())
        self.engine = Engine(directory)
        argv = [sys.executable, "-S", "-E", "-m", "tests.fakes.gridengine.engine", str(directory)]
        self._qmaster = subprocess.Popen(argv, cwd=REPOSITORY, stdin=subprocess.PIPE)

    def close(self) -> None:
        """End the fake qmaster and all jobs."""
        self._qmaster.communicate(timeout=120)

    @property
    def helper_variables(self) -> dict[str, str]:
        """Variables with which a helper process imports the fake library."""
        modules = Path(__file__).parent / "modules"
        return {"PYTHONPATH": f"{modules}:{REPOSITORY}", "SGE_ROOT": str(self.root)}

    def variables_of(self, library: str) -> dict[str, str]:
        """Variables with which a helper imports a library that is odd in its way: ``slurm`` or ``pbs``."""
        modules = Path(__file__).parents[1] / "drmaalibraries"
        return {"PYTHONPATH": f"{modules}:{REPOSITORY}", "SGE_ROOT": str(self.root), "FAKE_DRMAA": library}

    async def stop(self) -> None:
        """Let the fake qmaster not answer; jobs go on."""
        (self.root / DOWN).touch()

    async def start(self) -> None:
        """Let it answer again."""
        (self.root / DOWN).unlink(missing_ok=True)

    def call_library(self, name: str) -> None:
        """Have the library call itself so, as that of another batch system, and keep what such a one does not say."""
        (self.root / "library").write_text(name)

    def misbehave(self, how: str, *, on: bool = True) -> None:
        """Switch a failure of the library (``crash-at-third``, ``hang`` ...)."""
        if on:
            (self.root / how).touch()
        else:
            (self.root / how).unlink()

    @asynccontextmanager
    async def namesake_job(self, name: str, count: int) -> AsyncIterator[None]:
        """Have another user hold an array of a name while the context is open."""
        with self.engine.open() as state:
            number = state.next_number
            state.next_number += 1
            state.tasks.extend(
                Task(
                    number=number,
                    index=index,
                    name=name,
                    user="nobody",
                    command=["sleep", "600"],
                    output="/dev/null",
                    state="hqw",
                    submitted_at=time.time(),
                )
                for index in range(1, count + 1)
            )
        try:
            yield
        finally:
            with self.engine.open() as state:
                for task in state.tasks:
                    if not task.ended_at and task.number == number:
                        self.engine.delete(task)

# SPDX-License-Identifier: Apache-2.0
"""What the fake cell knows, in one locked file, and what can be done to it; only the fake qmaster moves it on.

``python -m tests.fakes.gridengine.engine DIRECTORY`` is the fake qmaster: it starts jobs and notices their ends. It
ends when its stdin is closed, and deletes all jobs then.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


QUEUE = "all.q"
STATE = "state.json"
DOWN = "down"
"""While a file of this name exists, the fake qmaster does not answer."""


_WRAPPER = 'e="$1"; shift; "$@"; c=$?; echo $c > "$e.new"; mv "$e.new" "$e"'


@dataclass(kw_only=True)
class Task:
    """One task of an array."""

    number: int
    index: int
    name: str
    user: str
    command: list[str]
    output: str
    state: str
    submitted_at: float
    walltime: int | None = None
    slots: int = 1
    variables: dict[str, str] = field(default_factory=dict)
    told_index: bool = True
    pid: int = 0
    started_at: float = 0.0
    ended_at: float = 0.0
    failed: int = 0
    status: int = 0

    @property
    def id(self) -> str:
        """As DRMAA writes it."""
        return f"{self.number}.{self.index}"

    @property
    def occupies(self) -> bool:
        """Tell whether it has a slot."""
        return bool(self.started_at) and not self.ended_at


@dataclass(kw_only=True)
class State:
    """All that the fake qmaster knows."""

    slots: int
    next_number: int = 1
    tasks: list[Task] = field(default_factory=list)

    @property
    def slots_used(self) -> int:
        """Slots that tasks have."""
        return sum(task.slots for task in self.tasks if task.occupies)

    def text(self) -> str:
        """Return all of it as JSON."""
        # asdict copies all that it finds, twenty times a second.
        return json.dumps({**vars(self), "tasks": [vars(task) for task in self.tasks]})

    def task(self, id_: str) -> Task | None:
        """Return a task that has not ended."""
        return next((task for task in self.tasks if task.id == id_ and not task.ended_at), None)

    def ended(self, id_: str) -> Task | None:
        return next((task for task in self.tasks if task.id == id_ and task.ended_at), None)


class UnreachableError(Exception):
    """The fake qmaster is down."""


class Engine:
    """Access to the state of a fake cell; its directory is its SGE_ROOT."""

    def __init__(self, directory: Path) -> None:
        """``directory`` was made by FakeCell."""
        self.directory = directory

    @contextmanager
    def open(self) -> Iterator[State]:
        """Lock the state, let the caller look and change, and write it back."""
        if (self.directory / DOWN).exists():
            raise UnreachableError
        with self.locked() as state:
            yield state

    @contextmanager
    def locked(self) -> Iterator[State]:
        """Do the same although the fake qmaster does not answer: the part of sge_execd."""
        with (self.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = self.directory / STATE
            before = path.read_text()
            raw = json.loads(before)
            state = State(**{**raw, "tasks": [Task(**task) for task in raw["tasks"]]})
            yield state
            after = state.text()
            if after != before:
                path.write_text(after)

    def delete(self, task: Task) -> None:
        """Delete a task, as qdel does."""
        if task.pid:
            _signal(task, signal.SIGKILL)
            self._end(task, failed=100, status=128 + signal.SIGKILL)
        else:
            task.ended_at = time.time()

    def suspend(self, task: Task) -> None:
        """Stop the processes of a task."""
        _signal(task, signal.SIGSTOP)
        task.state = "s"

    def resume(self, task: Task) -> None:
        """Continue the processes of a task."""
        _signal(task, signal.SIGCONT)
        task.state = "r"

    def advance(self, state: State) -> None:
        """Notice ends and start jobs. Only the fake qmaster does this: the jobs are its children."""
        _reap()
        for task in state.tasks:
            if task.occupies:
                self._look(task)
        free = state.slots - state.slots_used
        for task in state.tasks:
            if free >= task.slots and task.state == "qw" and not task.ended_at:
                free -= task.slots * self._start(task)

    def _look(self, task: Task) -> None:
        exit_file = self._exit_file(task)
        if exit_file.exists():
            status = int(exit_file.read_text())
            # A shell shows death by a signal as 128 + number; the fake takes such a status for one.
            self._end(task, failed=100 if status > 128 else 0, status=status)
        elif task.walltime is not None and time.time() - task.started_at > task.walltime:
            _signal(task, signal.SIGKILL)
            self._end(task, failed=37, status=128 + signal.SIGKILL)
        elif not Path(f"/proc/{task.pid}").exists():
            self._end(task, failed=100, status=128 + signal.SIGKILL)

    def _start(self, task: Task) -> int:
        try:
            # SIM115: the job keeps it open.
            output = Path(task.output).open("ab")  # noqa: SIM115
        except OSError:
            # So it is with jobs that came through DRMAA; those of qsub stay in error state.
            task.ended_at, task.failed = time.time(), 26
            return 0
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": "/",
            "JOB_ID": str(task.number),
            **({"SGE_TASK_ID": str(task.index)} if task.told_index else {}),
            "JOB_NAME": task.name,
            **task.variables,
        }
        argv = ["/bin/sh", "-c", _WRAPPER, "shepherd", str(self._exit_file(task)), *task.command]
        with output:
            process = subprocess.Popen(
                argv,
                env=environment,
                cwd="/tmp",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        task.pid, task.started_at, task.state = process.pid, time.time(), "r"
        # _reap buries it.
        process.returncode = 0
        return 1

    def _end(self, task: Task, *, failed: int, status: int) -> None:
        task.ended_at, task.failed, task.status = time.time(), failed, status

    def _exit_file(self, task: Task) -> Path:
        return self.directory / "exits" / task.id


def _signal(task: Task, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(task.pid, number)


def _reap() -> None:
    """Bury jobs."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


SCHEDULE_SECONDS = 0.05


def main() -> None:
    """Move time on until stdin ends."""
    engine = Engine(Path(sys.argv[1]))
    while not select.select([sys.stdin], [], [], SCHEDULE_SECONDS)[0]:
        with engine.locked() as state:
            engine.advance(state)
    with engine.locked() as state:
        for task in state.tasks:
            if not task.ended_at:
                engine.delete(task)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""``koala schedule`` as a process of its own, and jobs that leave a trace of each of their runs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests import forkserver
from tests.forkserver import Forked
from tests.real.lrms import System
from tests.real.systems.processes import PATIENCE, tail, wait_until
from tests.real.user import KoalaUser, toml

PACE = {"requests_per_minute": 6000, "poll_interval": 0.5}


class Scheduling:
    """One cluster, and ``koala schedule --json`` for it, which can be killed and started again."""

    def __init__(self, directory: Path, system: System, *options: str) -> None:
        """Nothing is started yet. ``options`` of the command."""
        self.user = KoalaUser(directory / "user", [system], clusters={system.name: PACE})
        self.system = system
        self.runs = directory / "runs"
        self.runs.mkdir(mode=0o777)
        self.runs.chmod(0o777)
        self.cluster = system.name
        self.options = options
        self.output = directory / "schedule.json"
        self.errors = directory / "schedule.err"
        self.process: Forked | None = None

    def __enter__(self) -> Self:
        """Start it, unless it runs."""
        if self.process is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, in good order if it still runs."""
        if self.process is not None:
            self.stop()

    @contextmanager
    def ended(self) -> Iterator[None]:
        """See to it that nothing of it is left after the block, whatever happens there."""
        try:
            yield
        finally:
            if self.process is not None:
                self.kill()

    def over_wiki(self, port: int, key_file: Path) -> None:
        """Schedule through a WIKI resource manager of this host instead."""
        self.cluster = "old"
        settings = {"host": "127.0.0.1", "port": port, "dialect": "wiki2", "key_file": str(key_file)}
        table = {"name": self.cluster, "plugin": "wiki", "enabled": False, **PACE}
        with self.user.site.open("a") as site:
            site.write(f"\n[[clusters]]\n{toml(table)}[clusters.settings]\n{toml(settings)}")

    def start(self, *more: str) -> None:
        """Start the command, and return when it is up."""
        said = len(self.said())
        argv = ["schedule", "--cluster", self.cluster, "--json", *self.options, *more]
        with self.output.open("ab") as output, self.errors.open("ab") as errors:
            self.process = forkserver.start(
                argv,
                environment=self.user.environment(),
                directory=self.user.directory,
                output=output.fileno(),
                errors=errors.fileno(),
            )
        self.wait(lambda: len(self.said()) > said, what="koala schedule is up")

    def said(self) -> list[str]:
        """Return the lines that it wrote for people."""
        return self.errors.read_text().splitlines() if self.errors.exists() else []

    def kill(self) -> None:
        """Kill it as a power cut would."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        self.process = None

    def stop(self) -> int:
        """End it as Ctrl-C does; return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process = None
        assert "Traceback" not in self.errors.read_text()
        return code

    def script(self, name: str, seconds: float) -> str:
        """Return a job's script: each run of it adds a line to a file."""
        return self._script(name, f"sleep {seconds}")

    def script_until_told(self, name: str) -> str:
        """Return the script of a job that runs until `let_end`."""
        return self._script(name, f"while [ ! -e {self._told(name)} ]; do sleep 0.1; done")

    def let_end(self, name: str) -> None:
        """Have a job end."""
        self._told(name).touch()

    def _told(self, name: str) -> Path:
        return self.runs.with_name(f"{name}.end")

    def _script(self, name: str, work: str) -> str:
        return f"#!/bin/sh\necho run >> {self.runs}/{name}\n{work}\necho end >> {self.runs}/{name}\n"

    def traces(self) -> dict[str, list[str]]:
        """Return what the runs of each job have written."""
        return {path.name: path.read_text().split() for path in self.runs.iterdir()}

    def lines(self) -> list[dict[str, Any]]:
        """Return what it has printed so far."""
        whole = self.output.read_text().rpartition("\n")[0] if self.output.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]

    def told(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return what it printed last of each job, of one kind."""
        return {line["job_id"]: line for line in self.lines() if line["kind"] == kind}

    def wait(self, condition: Callable[[], bool], *, what: str, seconds: float = PATIENCE) -> None:
        """Wait until something is so."""
        wait_until(condition, seconds=seconds, what=what, details=self.details)

    def wait_new_line(self, *, or_when: Callable[[], bool]) -> None:
        """Wait until it prints one more line than when this is called, or something else is so."""
        begun = len(self.lines())
        self.wait(lambda: len(self.lines()) > begun or or_when(), what="it looks")

    def wait_runs(self, names: set[str]) -> None:
        """Wait until all these jobs have run to their ends."""
        self.wait(lambda: {n for n, found in self.traces().items() if "end" in found} >= names, what=f"runs of {names}")

    def details(self) -> str:
        """Return what helps to understand a failure."""
        return f"{tail(self.output, 40)}\n{tail(self.errors, 20)}\n{self.traces()}\n{self.user.details()}"

# SPDX-License-Identifier: Apache-2.0
"""``koala schedule`` and ``koala wiki serve`` as processes of their own, which can be killed and started again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import anyio

from koala_adapter.wiki.client import Peer, exchange
from koala_adapter.wiki.codec.frames import read_key
from koala_adapter.wiki.codec.records import JobRecord, NodeRecord, parse_jobs, parse_nodes
from koala_adapter.wiki.codec.verbs import Reply, parse_request
from koala_adapter.wiki.codec.words import Dialect
from tests import forkserver
from tests.forkserver import Forked
from tests.real.lrms import System
from tests.real.systems import SlurmCluster
from tests.real.systems.processes import PATIENCE, Ports, tail, wait_until
from tests.real.user import KoalaUser, toml

S_co = TypeVar("S_co", bound=System, covariant=True)
PIECE = Path(__file__).parents[2] / "conf" / "job_submit.lua"
PACE = {"requests_per_minute": 6000, "poll_interval": 0.5}


class HoldingCluster(SlurmCluster):
    """A Slurm cluster with the site's piece, by which ordinary jobs come in held."""

    def __init__(self, name: str, *, settings: Mapping[str, str] | None = None, **more: Any) -> None:  # noqa: ANN401
        """``more``: as of SlurmCluster."""
        super().__init__(name, settings={"JobSubmitPlugins": "lua", **(settings or {})}, **more)
        (self.directory / PIECE.name).write_text(PIECE.read_text())


class Serving(Generic[S_co]):
    """One cluster, and a command of koala that serves it as a process of its own."""

    ended_by = signal.SIGTERM

    def __init__(self, directory: Path, system: S_co, errors: str, *options: str) -> None:
        """Nothing is started yet. ``errors``: file for what it writes for people; ``options`` of the command."""
        self.user = KoalaUser(directory / "user", [system], clusters={system.name: PACE})
        self.system = system
        self.options = options
        self.errors = directory / errors
        self.process: Forked | None = None

    def start(self) -> None:
        """Start it, and return when it is up."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Start it, unless it runs."""
        if self.process is None:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it in good order, if it still runs."""
        if self.process is not None:
            self.stop()

    def kill(self) -> None:
        """Kill it as a power cut would."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        self.process = None

    def stop(self) -> int:
        """End it in good order; return its exit code."""
        assert self.process is not None
        self.process.send_signal(self.ended_by)
        try:
            code = self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process = None
        assert "Traceback" not in self.errors.read_text()
        return code

    def said(self) -> list[str]:
        """Return the lines that it wrote for people."""
        return self.errors.read_text().splitlines() if self.errors.exists() else []

    def wait(self, condition: Callable[[], bool], *, what: str, seconds: float = PATIENCE) -> None:
        """Wait until something is so."""
        wait_until(condition, seconds=seconds, what=what, details=self.details)

    def details(self) -> str:
        """Return what helps to understand a failure."""
        return tail(self.errors, 40)


class Scheduling(Serving[S_co]):
    """``koala schedule --json`` for a cluster."""

    ended_by = signal.SIGINT

    def __init__(self, directory: Path, system: S_co, *options: str) -> None:
        """Nothing is started yet. ``options`` of the command."""
        super().__init__(directory, system, "schedule.err", *options)
        self.runs = directory / "runs"
        self.runs.mkdir(mode=0o777)
        self.runs.chmod(0o777)
        self.cluster = system.name
        self.output = directory / "schedule.json"

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


# -- ``koala wiki serve`` as a process of its own, and a peer that asks it as a scheduler would.

KEY = "1234567890"


class WikiServing(Serving[S_co]):
    """``koala wiki serve`` for a cluster."""

    def __init__(self, directory: Path, system: S_co, *options: str) -> None:
        """Nothing is started yet. ``options`` of the command."""
        super().__init__(directory, system, "serve.err", *options)
        self.key_file = directory / "key"
        self.key_file.write_text(f"{KEY}\n")
        self.key_file.chmod(0o600)
        self._ports = Ports.claim(1)

    def __exit__(self, *failure: object) -> None:
        """End it, and give its port back."""
        super().__exit__(*failure)
        self._ports.release()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._ports[0]

    def peer(self, dialect: Dialect = Dialect.WIKI2, *, timeout: float = 90.0) -> Peer:
        """Return it as a client sees it."""
        return Peer(host="127.0.0.1", port=self.port, key=read_key(KEY), dialect=dialect, user="maui", timeout=timeout)

    def start(self) -> None:
        """Start it and return when it answers."""
        before = sum(f"port {self.port}" in line for line in self.said())
        argv = ["wiki", "serve", "--cluster", self.system.name, "--key-file", str(self.key_file)]
        argv += ["--start-reply-within", "60"]  # refusals are looked for in the answers
        argv += ["--reply-within", "60"]  # a machine that is so busy is no reason to refuse a start
        with self.errors.open("ab") as errors:
            self.process = forkserver.start(
                [*argv, "--port", str(self.port), *self.options],
                environment=self.user.environment(),
                directory=self.user.directory,
                output=errors.fileno(),
                errors=errors.fileno(),
            )

        def listens() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.details()
            return sum(f"port {self.port}" in line for line in self.said()) > before

        self.wait(listens, what="koala wiki serve is up")

    # -- asking -------------------------------------------------------------------------------------------------------

    def ask(self, message: str, *, dialect: Dialect = Dialect.WIKI2, timeout: float = 90.0) -> Reply:
        """Send a request, written as on the wire (``GETJOBS ARG=0:ALL``), and return the reply."""
        request = parse_request(f"CMD={message}".encode(), Dialect.WIKI2)
        return anyio.run(partial(exchange, self.peer(dialect, timeout=timeout), request))

    def done(self, message: str) -> str:
        """Send a request that must succeed; return what is said."""
        reply = self.ask(message)
        assert reply.status == 0, (message, reply, self.details())
        if message.startswith("STARTJOB"):
            # It is answered before the job runs.
            job = message.partition("ARG=")[2].partition(" ")[0]
            self.wait(lambda: self.job(job).state != "Starting", what=f"job {job} has started")
        return reply.text if reply.argument is None else reply.argument

    def nodes(self) -> dict[str, NodeRecord]:
        """Return the nodes as a scheduler sees them."""
        return {node.name: node for node in parse_nodes(self.done("GETNODES ARG=0:ALL"))}

    def jobs(self) -> dict[str, JobRecord]:
        """Return the jobs as a scheduler sees them."""
        return {job.id: job for job in parse_jobs(self.done("GETJOBS ARG=0:ALL"))}

    def job(self, id_: str) -> JobRecord:
        """Return one job as a scheduler sees it, once it does: a listing serves all for a moment."""
        self.wait(lambda: len(self._listed(id_)) == 1, what=f"job {id_}")
        return self._listed(id_)[0]

    def _listed(self, id_: str) -> tuple[JobRecord, ...]:
        return parse_jobs(self.done(f"GETJOBS ARG=0:{id_}"))

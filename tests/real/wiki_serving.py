# SPDX-License-Identifier: Apache-2.0
"""``koala wiki serve`` as a process of its own, and a peer that asks it as a scheduler would."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from koala_adapter.wiki.client import Peer, exchange
from koala_adapter.wiki.codec.frames import read_key
from koala_adapter.wiki.codec.records import JobRecord, NodeRecord, parse_jobs, parse_nodes
from koala_adapter.wiki.codec.verbs import Reply, parse_request
from koala_adapter.wiki.codec.words import Dialect
from tests import forkserver
from tests.forkserver import Forked
from tests.real.lrms import System
from tests.real.systems.processes import PATIENCE, Ports, tail, wait_until
from tests.real.user import KoalaUser

KEY = "1234567890"
PACE = {"requests_per_minute": 6000, "poll_interval": 0.5}


class WikiServing:
    """One cluster, and ``koala wiki serve`` for it, which can be killed and started again."""

    def __init__(self, directory: Path, system: System, *options: str) -> None:
        """Nothing is started yet. ``options`` of the command."""
        self.user = KoalaUser(directory / "user", [system], clusters={system.name: PACE})
        self.system = system
        self.options = options
        self.errors = directory / "serve.err"
        self.key_file = directory / "key"
        self.key_file.write_text(f"{KEY}\n")
        self.key_file.chmod(0o600)
        self._ports = Ports.claim(1)
        self.process: Forked | None = None

    def __enter__(self) -> Self:
        """Start it."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        if self.process is not None:
            self.stop()
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
        wait_until(self._listens, seconds=PATIENCE, what="koala wiki serve", details=lambda: tail(self.errors, 30))

    def _listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, tail(self.errors, 30)
        return self.errors.read_text().count(f"port {self.port}") > self._starts_before

    _starts_before = 0

    def kill(self) -> None:
        """Kill it as a power cut would."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        self.process = None
        self._starts_before = self.errors.read_text().count(f"port {self.port}")

    def stop(self) -> int:
        """End it in good order; return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process = None

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

    def wait(self, condition: Callable[[], bool], *, what: str, seconds: float = PATIENCE) -> None:
        """Wait until something is so."""
        wait_until(condition, seconds=seconds, what=what, details=self.details)

    def details(self) -> str:
        """Return what helps to understand a failure."""
        return tail(self.errors, 40)

# SPDX-License-Identifier: Apache-2.0
"""A WIKI resource manager over a cluster, in a thread of its own, and what asks it as Maui does."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import TaskStatus
from anyio.from_thread import start_blocking_portal

from koala_adapter.host.metrics import process_meter
from koala_adapter.host.sockets import free_port
from koala_adapter.lrm import Lrm
from koala_adapter.lrm.startlog import StartLog
from koala_adapter.wiki.client import Peer, exchange
from koala_adapter.wiki.codec.frames import Key, read_key
from koala_adapter.wiki.codec.records import JobRecord, parse_jobs
from koala_adapter.wiki.codec.verbs import Reply, parse_request
from koala_adapter.wiki.codec.words import Dialect
from koala_adapter.wiki.resource import WikiResource
from koala_adapter.wiki.server import serve
from koala_adapter.wiki.serving import Served, ServerOptions
from tests.real.systems.processes import wait_until


class WikiServer:
    """Serves one cluster; may be stopped and started again on the same port."""

    def __init__(self, make: Callable[[], Lrm], *, dialect: Dialect, key: Key, directory: Path) -> None:
        """``make`` makes the cluster's LRM; ``directory``: where starts are noted. Nothing runs before `start`."""
        self._make = make
        self._dialect = dialect
        self._key = key
        self._directory = directory
        self._stack = ExitStack()
        self._serving = False
        self.port = free_port()

    def start(self) -> None:
        """Serve, on the port of the last time; returns when it takes requests. Nothing happens when it does."""
        if self._serving:
            return
        self._serving = True
        portal = self._stack.enter_context(start_blocking_portal())
        future, self.port = portal.start_task(self._serve)
        self._stack.callback(future.cancel)

    def stop(self) -> None:
        """Serve no more; returns when the port is closed."""
        self._serving = False
        self._stack.close()

    async def _serve(self, *, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED) -> None:
        options = ServerOptions(
            dialect=self._dialect,
            port=self.port,
            cache=0.05,
            reply_within=60.0,
            start_reply_within=60.0,
            user_holds=True,
            requests_per_minute=100_000,
        )
        lrm = self._make()
        await lrm.start()
        self._directory.mkdir(parents=True, exist_ok=True)
        starts = StartLog(self._directory / "starts.sqlite")
        try:
            served = Served(lrm, options, starts, clock=time.time, steady=time.monotonic)
            await serve(WikiResource(served, self._key, process_meter("wiki")), task_status=task_status)
        finally:
            starts.close()
            await lrm.close()


# What asks a WIKI resource manager as Maui does.

KEY = "1234567890"
SECONDS = 120.0


class Scheduler:
    """What asks the server as Maui does."""

    def __init__(self, port: int) -> None:
        """``port`` of the server."""
        self._peer = Peer(
            host="127.0.0.1", port=port, key=read_key(KEY), dialect=Dialect.WIKI2, user="maui", timeout=SECONDS
        )

    def ask(self, message: str) -> Reply:
        """Send a request, written as on the wire, and return the reply."""
        return anyio.run(partial(exchange, self._peer, parse_request(f"CMD={message}".encode(), Dialect.WIKI2)))

    def done(self, message: str) -> str:
        """Send a request that must succeed; return what is said."""
        reply = self.ask(message)
        assert reply.status == 0, (message, reply)
        return reply.text if reply.argument is None else reply.argument

    def jobs(self) -> dict[str, JobRecord]:
        """Return the jobs by their ids."""
        return {job.id: job for job in parse_jobs(self.done("GETJOBS ARG=0:ALL"))}

    def wait(self, job: str, state: str) -> JobRecord:
        """Wait until a job is in a state, and return it."""
        wait_until(lambda: self.jobs()[job].state == state, seconds=SECONDS, what=f"{job} is {state}")
        return self.jobs()[job]

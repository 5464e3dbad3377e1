# SPDX-License-Identifier: Apache-2.0
"""What asks a WIKI resource manager as Maui does."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

from koala_adapter.wiki.client import Peer, exchange
from koala_adapter.wiki.codec.frames import read_key
from koala_adapter.wiki.codec.records import JobRecord, parse_jobs
from koala_adapter.wiki.codec.verbs import parse_request
from koala_adapter.wiki.codec.words import Dialect
from tests.real.systems.processes import wait_until

if TYPE_CHECKING:
    from koala_adapter.wiki.codec.verbs import Reply

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

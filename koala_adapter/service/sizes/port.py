# SPDX-License-Identifier: Apache-2.0
"""Where programs connect that negotiate for jobs, with nothing but sockets and XML.

Each shows a one-time token, which only the user who owns the service can get, and speaks for one job for as long as its
connection lasts. The port is open from the first token on.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import NegotiationError
from koala_adapter.model import JobId
from koala_adapter.negotiation.conversation import CHUNK, WRITE_WITHIN
from koala_adapter.negotiation.framing import FrameBuffer, frame
from koala_adapter.negotiation.peerlistener import PeerListener
from koala_adapter.negotiation.template import Side, Status, Template, sayable
from koala_adapter.negotiation.templatexml import build
from koala_adapter.negotiation.tokens import OneTimeTokens
from koala_adapter.service.changetemplates import HOST

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import SocketStream, TaskGroup

MOST_WAITING = 64
"""Frames for a program that does not read them; one more, and it is gone."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a program gets to negotiate for a job, once."""

    host: str
    port: int
    token: str


class _Connection:
    """One program and what is to be said to it."""

    def __init__(self, stream: SocketStream) -> None:
        self.stream = stream
        self._send, self._due = anyio.create_memory_object_stream[bytes](MOST_WAITING)
        self.scope = anyio.CancelScope()

    def say(self, data: bytes) -> None:
        try:
            self._send.send_nowait(data)
        except (anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self.scope.cancel()

    async def write(self) -> None:
        """Write what is to be said until there is nothing more to come."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            async with self._due:
                async for data in self._due:
                    with anyio.fail_after(WRITE_WITHIN):
                        await self.stream.send(data)
        self.scope.cancel()

    def finish(self) -> None:
        """Nothing more is to be said."""
        self._send.close()


class NegotiationPort:
    """Listens for programs that negotiate for jobs."""

    def __init__(self, host: str) -> None:
        """``host``: address on which to listen. Nothing listens before the first :meth:`access`."""
        self._host = host
        self._tokens = OneTimeTokens()
        self._listener = PeerListener(self._converse, self._tokens)
        self._connections: dict[JobId, _Connection] = {}
        self._opening = anyio.Lock()
        self._tasks: TaskGroup | None = None
        self._heard: Callable[[JobId, bytes], None] = lambda _job, _data: None
        self._came: Callable[[JobId], None] = lambda _job: None
        self._went: Callable[[JobId], None] = lambda _job: None
        self.port: int | None = None

    def open(
        self,
        tasks: TaskGroup,
        *,
        heard: Callable[[JobId, bytes], None],
        came: Callable[[JobId], None],
        went: Callable[[JobId], None],
    ) -> None:
        """Be ready to listen within ``tasks``.

        ``heard`` takes each frame of a program that speaks for a job, ``came`` and ``went`` that there is one. It may
        raise NegotiationError, which ends the connection.
        """
        self._tasks, self._heard, self._came, self._went = tasks, heard, came, went

    async def access(self, job_id: JobId) -> Access:
        """Return how a program gets to negotiate for a job; an earlier token that was not used is void.

        Raises ServiceRunningError when the port cannot be opened.
        """
        async with self._opening:
            if self.port is None:
                if self._tasks is None:
                    raise NegotiationError("the service is still starting", hint="try again in a moment")
                self.port = await self._tasks.start(self._listener.serve_tcp, self._host)
        self._tokens.revoke(job_id)
        return Access(host=self._host, port=self.port, token=self._tokens.issue(job_id))

    def represents(self, job_id: JobId) -> bool:
        """Tell whether a program speaks for a job now."""
        return job_id in self._connections

    def say(self, job_id: JobId, data: bytes) -> None:
        """Say something to the program that speaks for a job; without one it is lost."""
        connection = self._connections.get(job_id)
        if connection is not None:
            connection.say(data)

    def close(self, job_id: JobId) -> None:
        """A job is over: its program hears what was said last, and that there is no more."""
        self._tokens.revoke(job_id)
        connection = self._connections.pop(job_id, None)
        if connection is not None:
            connection.finish()

    async def _converse(self, application: str, stream: SocketStream) -> None:
        job_id, connection = JobId(application), _Connection(stream)
        if job_id in self._connections:
            await stream.send(_complaint("another program negotiates for this job already"))
            return
        self._connections[job_id] = connection
        log.info("a program negotiates for a job", job=job_id)
        try:
            with connection.scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(connection.write)
                    self._came(job_id)
                    await self._read(job_id, connection)
                    connection.finish()
        finally:
            if self._connections.get(job_id) is connection:
                del self._connections[job_id]
        self._went(job_id)  # not when the service ends: what stands is settled with the next one

    async def _read(self, job_id: JobId, connection: _Connection) -> None:
        frames = FrameBuffer()
        try:
            while self._connections.get(job_id) is connection:
                for payload in frames.feed(await connection.stream.receive(CHUNK)):
                    self._heard(job_id, frame(payload))
        except NegotiationError as error:
            connection.say(_complaint(error.message))
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            pass


def _complaint(reason: str) -> bytes:
    template = Template(
        agreement_id="unreadable",
        initiator=Side.RMS,
        source=HOST,
        dest="negotiator",
        status=Status.ERROR,
        reason=sayable(reason),
    )
    return frame(build(template))

# SPDX-License-Identifier: Apache-2.0
"""The port where programs negotiate for jobs.

In this order: one-time tokens, and the port of a service.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import anyio
import structlog
from anyio.abc import SocketAttribute

from koala_adapter import negotiation as nt
from koala_adapter.errors import NegotiationError, ServiceRunningError, UnreadableTemplateError
from koala_adapter.host.accepting import Admission, serve_streams
from koala_adapter.host.containment import report_defect, report_refused
from koala_adapter.model import JobId
from koala_adapter.negotiation.templates import NT_ERROR, RMS, sayable
from koala_adapter.service.sizes.offers import HOST
from koala_adapter.vjm.certificate import digest, matches, new_token

if TYPE_CHECKING:
    from anyio.abc import SocketStream, TaskGroup, TaskStatus


# -- One-time tokens -----------------------------------------------------------------------------------------
# A program that connects by TCP proves its identity by a token. It is sent in the first frame of a connection, before
# any template is read, and is good for one connection. Only digests are kept.

LONGEST_GREETING = 256
"""Bytes."""


class OneTimeTokens:
    """Unused one-time tokens by application."""

    def __init__(self) -> None:
        self._applications: dict[str, str] = {}

    def issue(self, application: str) -> str:
        """Return a new token for an application."""
        token = new_token()
        self._applications[digest(token)] = application
        return token

    def redeem(self, greeting: bytes) -> str | None:
        """Return the application of a greeting's token and use it up; None: the token is invalid."""
        if not greeting.startswith(nt.GREETING):
            return None
        shown = greeting.removeprefix(nt.GREETING).decode("ascii", "replace")
        # Every token is compared, so that the time says nothing of how nearly one was met.
        found = [kept for kept in self._applications if matches(shown, kept)]
        return self._applications.pop(found[0]) if found else None

    def revoke(self, application: str) -> None:
        """Make the tokens of an application void."""
        self._applications = {kept: one for kept, one in self._applications.items() if one != application}


# -- The port of a service -----------------------------------------------------------------------------------
# Programs need only sockets and XML. Each shows a one-time token, available only to the user who owns the service,
# and speaks for one job while it is connected. The port is opened with the first token.
#
# No template is read from a peer before it is identified. A slow peer costs a descriptor for some seconds; when there
# are too many, the one that has been silent longest is closed.

log = structlog.get_logger()

MOST_SILENT = 64
"""Connections that have not shown a token."""
GREET_WITHIN = 10.0
"""Seconds in which a token must be shown."""
MOST_CONNECTIONS = 10_000
"""Programs that are connected."""
CHUNK = 65_536
WRITE_WITHIN = 30.0
"""Seconds in which a program must take what is said to it; one that does not is gone."""
MOST_WAITING = 64
"""Frames for a program that does not read them; one more, and it is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One-time access of a program to a job's negotiations."""

    host: str
    port: int
    token: str


class _Connection:
    """Connection of a program with its outgoing messages."""

    def __init__(self, stream: SocketStream) -> None:
        self.stream = stream
        self._send, self._due = anyio.create_memory_object_stream[bytes](MOST_WAITING)
        self.scope = anyio.CancelScope()

    def say(self, payload: bytes) -> None:
        try:
            self._send.send_nowait(nt.frame(payload))
        except (anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self.scope.cancel()

    async def write(self) -> None:
        """Send messages until `finish` is called and none is left."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            async with self._due:
                async for data in self._due:
                    with anyio.fail_after(WRITE_WITHIN):
                        await self.stream.send(data)
        self.scope.cancel()

    def finish(self) -> None:
        """Mark the outgoing messages as complete."""
        self._send.close()


class ProgramListener(Protocol):
    """Receiver of negotiating programs' messages (protocol)."""

    def program_came(self, job_id: JobId) -> None:
        """Called when a program negotiates for a job from now on."""

    def program_said(self, job_id: JobId, payload: bytes) -> None:
        """Called with a program's template. Raises NegotiationError, which ends the connection."""

    def program_went(self, job_id: JobId) -> None:
        """Called when a program's connection has ended."""


class NegotiationPort:
    """TCP port for programs that negotiate for jobs."""

    def __init__(self, host: str, listener: ProgramListener) -> None:
        """``host``: address on which to listen. Nothing listens before the first :meth:`access`."""
        self._host = host
        self._programs = listener
        self._tokens = OneTimeTokens()
        self.admission = Admission(limit=MOST_SILENT, time_limit=GREET_WITHIN, patience=0.0)
        self.most_connections = MOST_CONNECTIONS
        self.connections: dict[JobId, _Connection] = {}
        """Programs that are connected, by the jobs for which they negotiate."""
        self._opening = anyio.Lock()
        self._tasks: TaskGroup | None = None
        self.port: int | None = None

    def open(self, tasks: TaskGroup) -> None:
        """Prepare to listen within ``tasks``."""
        self._tasks = tasks

    async def access(self, job_id: JobId) -> Access:
        """Return one-time access for a program; an unused earlier token becomes void.

        Raises ServiceRunningError when the port cannot be opened.
        """
        async with self._opening:
            if self.port is None:
                if self._tasks is None:
                    raise NegotiationError("the service is still starting", hint="try again in a moment")
                self.port = await self._tasks.start(self._serve)
        self._tokens.revoke(job_id)
        return Access(host=self._host, port=self.port, token=self._tokens.issue(job_id))

    def represents(self, job_id: JobId) -> bool:
        """Return whether a program negotiates for a job now."""
        return job_id in self.connections

    def say(self, job_id: JobId, payload: bytes) -> None:
        """Send a template to a job's program; without one it is lost."""
        connection = self.connections.get(job_id)
        if connection is not None:
            connection.say(payload)

    def close(self, job_id: JobId) -> None:
        """Send a job's program the last messages and end its connection."""
        self._tokens.revoke(job_id)
        connection = self.connections.pop(job_id, None)
        if connection is not None:
            connection.finish()

    async def _serve(self, *, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED) -> None:
        """Listen at any free port until cancelled; report the port once it is open. Raises ServiceRunningError."""
        try:
            listeners = await anyio.create_tcp_listener(local_host=self._host)
        except OSError as error:
            message = f"programs cannot negotiate: cannot listen on {self._host}: {error.strerror or error}"
            raise ServiceRunningError(message, hint="see control_center.negotiation_listen in the site file") from error
        async with listeners:
            task_status.started(listeners.extra(SocketAttribute.local_port))
            await serve_streams(listeners, self._greet)

    async def _greet(self, stream: SocketStream) -> None:
        """Identify a program by its token, and converse with it."""
        async with stream:
            greeting = await self._greeting(stream)
            application = None if greeting is None else self._tokens.redeem(greeting)
            if application is None:
                peer = str(stream.extra(SocketAttribute.remote_address)[0])
                report_refused("a connection without a good token", kind=peer, peer=peer)
                return
            if len(self.connections) >= self.most_connections:
                report_refused("too many applications are connected", bound=self.most_connections)
                return
            await self._converse(JobId(application), stream)

    async def _greeting(self, stream: SocketStream) -> bytes | None:
        """Return the payload of the first frame, or None if there is none or it is invalid."""
        frames = nt.FrameBuffer(limit=LONGEST_GREETING)
        await self.admission.room()
        with (
            self.admission.applicant(),
            suppress(nt.NegotiationError, anyio.EndOfStream, anyio.BrokenResourceError, OSError),
        ):
            while True:
                # No more than the frame: what follows it is the conversation's.
                for payload in frames.feed(await stream.receive(frames.missing)):
                    return payload
        return None

    async def _converse(self, job_id: JobId, stream: SocketStream) -> None:
        if job_id in self.connections:
            await stream.send(nt.frame(_complaint("another program negotiates for this job already")))
            return
        connection = self.connections[job_id] = _Connection(stream)
        log.info("a program negotiates for a job", job=job_id)
        try:
            with connection.scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(connection.write)
                    try:
                        self._programs.program_came(job_id)
                        await self._read(job_id, connection)
                    except Exception as error:  # noqa: BLE001 - a defect costs this connection, not the service
                        report_defect("a negotiation", error, job=job_id)
                        connection.say(_complaint("koala failed on this"))
                    connection.finish()
        finally:
            connection.finish()
            if self.connections.get(job_id) is connection:
                del self.connections[job_id]
        self._programs.program_went(job_id)  # not when the service ends: what stands is settled with the next one

    async def _read(self, job_id: JobId, connection: _Connection) -> None:
        frames = nt.FrameBuffer()
        try:
            while self.connections.get(job_id) is connection:
                for payload in frames.feed(await connection.stream.receive(CHUNK)):
                    self._programs.program_said(job_id, payload)
        except UnreadableTemplateError:
            pass
        except NegotiationError as error:
            connection.say(_complaint(error.message))
        except nt.NegotiationError as error:  # no frame: nothing that follows can be told apart
            connection.say(_complaint(str(error)))
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            pass


def _complaint(reason: str) -> bytes:
    return nt.build(nt.Template("unreadable", RMS, HOST, "negotiator", NT_ERROR, reason=sayable(reason)))

# SPDX-License-Identifier: Apache-2.0
"""The control center: where agents report, and through which they are told what to run.

A peer is nobody until its Hello has been checked. Then its placeholder belongs to that agent process (its *session*)
for ever, and what it says becomes events. Everything the service must not forget is told to it, synchronously, before
the next message of that agent is read; what it wants from an agent that is not connected it must ask for again when
the agent registers.
"""

from __future__ import annotations

import ipaddress
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import anyio
from anyio.abc import SocketAttribute, SocketListener
from anyio.streams.tls import TLSStream

from koala_adapter.errors import ConfigurationError, JournalBlockedError, ProtocolError
from koala_adapter.model import BatchKey, PlaceholderId
from koala_adapter.vjm import agentevents, channel
from koala_adapter.vjm.admission import Admission
from koala_adapter.vjm.credentials import digest, matches
from koala_adapter.vjm.outputstore import OutputStore

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from anyio.abc import SocketStream, TaskGroup, TaskStatus

    from koala_adapter.vjm.channel import AgentMessage, CenterMessage, Decoder

APPLICANTS = 512
"""Peers that may be connected without having proved themselves."""

TIME_TO_PROVE = 10.0
"""Seconds from the connection to a good Hello."""

PATIENCE = 2.0
"""The same while others wait for the place."""

SILENT_INTERVALS = 3
"""Heartbeats that may be missing before a connection is closed."""

BACKLOG = 4096
PIECE = 16 * 1024
"""Bytes written at once: one TLS record, so that buffers of a connection never grow with the size of a message."""

UNREAD = 10_000
"""Messages that may wait for one agent to read them."""

FIRST_RETRY = 0.5
"""Seconds before output that could not be written is tried again; doubled with each try."""
LONGEST_RETRY = 15.0


LOST = (OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)
"""What reading from or writing to a peer may raise that is no fault of ours."""


class SessionRegistry(Protocol):
    """Where it is remembered, also across restarts, which agent process owns a placeholder."""

    def bound_session(self, placeholder: PlaceholderId) -> str | None:
        """Return the digest of the session that owns ``placeholder``; None when nobody has registered for it."""

    def bind(self, placeholder: PlaceholderId, session_hash: str) -> None:
        """Remember the owner, durably before this returns."""


@dataclass(eq=False, slots=True, kw_only=True)
class _Connection:
    """A registered agent."""

    placeholder: PlaceholderId
    stream: TLSStream
    decoder: Decoder[AgentMessage]
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    outgoing: list[bytes] = field(default_factory=list)
    writing: bool = False
    retrying: bool = False
    resends: bool = False
    """The agent understands Resend."""
    unwritten: dict[_Stream, _Unwritten] = field(default_factory=dict)
    """Output whose file cannot be written: what comes of it meanwhile is left to the agent, which keeps it."""
    fault: str = ""
    """Why ``scope`` was cancelled, when somebody did that."""

    def drop(self, fault: str) -> None:
        """End the connection."""
        self.fault = fault
        self.scope.cancel()


_Stream: TypeAlias = "tuple[str, str]"
"""Task and name of one of its output streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unwritten:
    """What is known of a stream whose file cannot be written."""

    file: Path
    piece: channel.Output | None
    """The first piece that could not be written; None: it is now, and the agent was asked to send on from there."""


class ResultReceiver(Protocol):
    """Where the ranks' output files go."""

    def take(self, placeholder: PlaceholderId, piece: channel.FilePiece) -> channel.FileAck:
        """Keep a piece of a file, or refuse the file. Raises ProtocolError for what no agent says."""

    def conclude(self, placeholder: PlaceholderId, files: channel.TaskFiles) -> None:
        """Keep what is said of a task's files when all that come are there. Raises OSError."""


_Greeting: TypeAlias = "tuple[TLSStream, Decoder[AgentMessage], channel.Hello]"


class ControlCenter:
    """Listens for agents, tells of them by events, and takes orders for them."""

    def __init__(  # noqa: PLR0913 - all that it needs of the service
        self,
        *,
        ssl_context: ssl.SSLContext,
        authenticate: Callable[[PlaceholderId, str], bool],
        sessions: SessionRegistry,
        on_event: Callable[[agentevents.AgentEvent], None],
        output_path: Callable[[PlaceholderId, str], Path | None],
        lease: float,
        heartbeat: float,
        on_rejected: Callable[[str, str], None] | None = None,
        on_output: Callable[[str, str, int, bytes], None] | None = None,
        on_unwritten: Callable[[str, str, Path, str], None] | None = None,
        results: ResultReceiver | None = None,
    ) -> None:
        """Make a center that does nothing before ``serve``.

        ``authenticate`` tells whether a token is that of the placeholder's batch, and that the batch is still wanted.
        ``on_event`` is called in order; what it raises ends ``serve``. ``output_path`` gives the path, without its
        ending, of a task's output: ``.out`` and ``.err`` are added; None drops the output. ``lease`` and ``heartbeat``
        are seconds. ``on_rejected`` hears address and fault of peers that did not prove themselves: for a log only, and
        not for every one of them, since anybody can be one. ``on_output`` gets task, stream, offset and bytes of each
        piece of output once it is in its file. ``on_unwritten`` gets task, stream, file and reason when a piece cannot
        be written: it is tried again, and ``on_output`` hears of it then. ``results`` takes output files; without it
        they are refused.
        """
        self._ssl_context = ssl_context
        self._authenticate = authenticate
        self._sessions = sessions
        self._on_event = on_event
        self._output_path = output_path
        self._welcome = channel.Welcome(lease=lease, heartbeat=heartbeat)
        self._silence = SILENT_INTERVALS * heartbeat
        self._on_rejected = on_rejected
        self._on_output = on_output
        self._on_unwritten = on_unwritten
        self._results = results
        self._output = OutputStore()
        self._connected: dict[PlaceholderId, _Connection] = {}
        self._tasks: TaskGroup | None = None

    @property
    def connected(self) -> AbstractSet[PlaceholderId]:
        """Placeholders whose agents are connected now."""
        return self._connected.keys()

    async def serve(
        self, host: str | None, port: int, *, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen until cancelled. Reports the bound port (``port`` 0: any free one); ``host`` None: all interfaces.

        Raises ConfigurationError when it cannot listen there.
        """
        try:
            listener = await anyio.create_tcp_listener(local_host=host, local_port=port, backlog=BACKLOG)
        except OSError as error:
            raise ConfigurationError(
                f"the control center cannot listen on {host or '*'}:{port}: {error.strerror or error}",
                hint="choose another address or port, or port 0",
            ) from error
        admission = Admission(limit=APPLICANTS, time_limit=TIME_TO_PROVE, patience=PATIENCE)
        async with listener, anyio.create_task_group() as self._tasks:
            try:
                for one in listener.listeners:
                    if isinstance(one, SocketListener):
                        self._tasks.start_soon(self._accept, one, admission, self._tasks)
                task_status.started(listener.extra(SocketAttribute.local_port))
                await anyio.sleep_forever()
            finally:
                self._connected.clear()

    def launch(self, placeholder: PlaceholderId, launch: channel.Launch) -> bool:
        """Send an order to start a task. False when the agent is not connected.

        Raises ProtocolError when the order cannot be sent to any agent, such as for its size.
        """
        return self._order(placeholder, launch)

    def signal(self, placeholder: PlaceholderId, signal: channel.Signal) -> bool:
        """Send a signal to a task. False when the agent is not connected."""
        return self._order(placeholder, signal)

    def release(self, placeholder: PlaceholderId, grace: float) -> bool:
        """Tell an agent to end: its tasks get SIGTERM, ``grace`` seconds later SIGKILL. False when not connected."""
        return self._order(placeholder, channel.Release(grace=grace))

    def disconnect_all(self, reason: str) -> None:
        """End all connections: the agents come back by themselves, and tell again what they know."""
        for connection in self._connected.values():
            connection.drop(reason)

    async def _accept(self, listener: SocketListener, admission: Admission, tasks: TaskGroup) -> None:
        while True:
            await admission.room()
            try:
                stream = await listener.accept()
            except OSError as error:  # no descriptor left, or the peer is gone again: others must not suffer
                self._reject("", f"accept: {error.strerror or error}")
                await anyio.sleep(0.1)
                continue
            tasks.start_soon(self._receive_peer, stream, admission)

    async def _receive_peer(self, transport: SocketStream, admission: Admission) -> None:
        async with transport:
            address = str(transport.extra(SocketAttribute.remote_address, ("", 0))[0])
            connection = None
            with admission.applicant() as scope:
                greeting = await self._greeting(transport, address)
                if greeting is not None:
                    connection = await self._answer_if_possible(greeting, address)
            if scope.cancelled_caught:
                self._reject(address, "did not prove itself in time")
            if connection is not None:
                await self._follow(connection)

    async def _greeting(self, transport: SocketStream, address: str) -> _Greeting | None:
        try:
            stream = await TLSStream.wrap(
                transport, server_side=True, ssl_context=self._ssl_context, standard_compatible=False
            )
            decoder = channel.agent_decoder()
            while not (messages := decoder.feed(await stream.receive())):
                pass
        except (*LOST, ProtocolError) as error:
            self._reject(address, str(error) or type(error).__name__)
            return None
        if len(messages) > 1 or not isinstance(messages[0], channel.Hello):
            self._reject(address, "its first message is not a lone Hello")
            return None
        return stream, decoder, messages[0]

    async def _answer_if_possible(self, greeting: _Greeting, address: str) -> _Connection | None:
        try:
            return await self._answer(*greeting, address)
        except JournalBlockedError as error:  # whose the placeholder is cannot be noted: the agent will ask again
            self._reject(address, error.message)
            return None

    async def _answer(
        self, stream: TLSStream, decoder: Decoder[AgentMessage], hello: channel.Hello, address: str
    ) -> _Connection | None:
        placeholder = PlaceholderId(batch=BatchKey(hello.batch), index=hello.index)
        refusal = self._refusal(placeholder, hello, address)
        if not refusal:
            decoder.limit = channel.AGENT_LINE_LIMIT
            connection = _Connection(placeholder=placeholder, stream=stream, decoder=decoder, resends=hello.resends)
            return self._admit(connection, hello, address)
        self._reject(address, f"{placeholder} on {hello.host}: {refusal}")
        with suppress(*LOST):
            await stream.send(channel.encode(channel.Refused(reason=refusal)))
        return None

    def _refusal(self, placeholder: PlaceholderId, hello: channel.Hello, address: str) -> str:
        if hello.version != channel.VERSION:
            return f"version {hello.version} of the channel is not spoken here (but {channel.VERSION})"
        if not self._authenticate(placeholder, hello.token):
            return "not accepted"
        bound = self._sessions.bound_session(placeholder)
        if bound is not None and not matches(hello.session, bound):
            self._on_event(agentevents.AgentRefused(placeholder=placeholder, host=hello.host, address=address))
            return "not accepted"
        return ""

    def _admit(self, connection: _Connection, hello: channel.Hello, address: str) -> _Connection:
        placeholder = connection.placeholder
        first = self._sessions.bound_session(placeholder) is None
        if first:
            self._sessions.bind(placeholder, digest(hello.session))
        former = self._connected.get(placeholder)
        if former is not None:  # half open: the agent knows better than we that it is dead
            former.drop("replaced by a new connection")
        self._connected[placeholder] = connection
        self._post(connection, self._welcome)
        self._on_event(
            agentevents.AgentRegistered(
                placeholder=placeholder,
                lrm_id=hello.lrm_id,
                host=hello.host,
                address=_address(hello.address, address),
                ends_in=hello.ends_in,
                tasks=hello.tasks,
                first=first,
            )
        )
        return connection

    async def _follow(self, connection: _Connection) -> None:
        detail = ""
        with connection.scope as scope:
            try:
                while True:
                    scope.deadline = anyio.current_time() + self._silence
                    data = await self._receive(connection)
                    for message in connection.decoder.feed(data):
                        self._handle(connection, message)
            except ProtocolError as error:
                detail = error.message
        if self._connected.get(connection.placeholder) is connection:
            del self._connected[connection.placeholder]
            detail = detail or connection.fault or f"silent for {self._silence:g} s"
            dropped = bool(connection.fault)
            self._on_event(
                agentevents.AgentDisconnected(placeholder=connection.placeholder, detail=detail, dropped=dropped)
            )

    async def _receive(self, connection: _Connection) -> bytes:
        try:
            return await connection.stream.receive()
        except anyio.EndOfStream:
            raise ProtocolError("closed by the agent") from None
        except LOST as error:
            raise ProtocolError(f"connection lost: {error.__cause__ or error}") from None

    def _handle(self, connection: _Connection, message: AgentMessage) -> None:
        placeholder = connection.placeholder
        match message:
            case channel.Heartbeat():
                self._post(connection, channel.Pong())
            case channel.Output():
                self._keep(connection, message)
            case channel.FilePiece():
                refused = channel.FileAck(task=message.task, number=message.number, offset=0, refusal="not wanted here")
                self._post(connection, self._results.take(placeholder, message) if self._results else refused)
            case channel.TaskFiles():
                self._conclude(connection, message)
            case channel.TaskStarted(task=task, pid=pid):
                self._on_event(agentevents.AgentTaskStarted(placeholder=placeholder, task=task, pid=pid))
            case channel.Resending(task=task, stream=stream):
                connection.unwritten.pop((task, stream), None)
            case channel.TaskEnded():
                self._task_ended(connection, message)
            case channel.Ending(reason=reason, detail=detail):
                self._on_event(agentevents.AgentEnding(placeholder=placeholder, reason=reason, detail=detail))
            case channel.Hello():
                raise ProtocolError("a second Hello")

    def _task_ended(self, connection: _Connection, message: channel.TaskEnded) -> None:
        if any(task == message.task for task, _ in connection.unwritten):
            return  # it will be told again, after the output that is still to come
        ended = agentevents.AgentTaskEnded(placeholder=connection.placeholder, task=message.task, end=message.end)
        self._on_event(ended)

    def _conclude(self, connection: _Connection, files: channel.TaskFiles) -> None:
        if self._results is not None:
            try:
                self._results.conclude(connection.placeholder, files)
            except OSError as error:  # the agent says it again
                raise ProtocolError(f"cannot write of output files: {error.strerror or error}") from None
        self._post(connection, channel.FilesAck(task=files.task))

    def _keep(self, connection: _Connection, piece: channel.Output) -> None:
        if (piece.task, piece.stream) in connection.unwritten:
            return
        path = self._output_path(connection.placeholder, piece.task)
        if path is None:
            self._acknowledge(connection, piece, piece.offset + len(piece.data))
            return
        file = path.with_name(f"{path.name}.{piece.stream}")
        try:
            self._put(connection, file, piece)
        except OSError as error:
            self._put_off(connection, file, piece, error)

    def _put(self, connection: _Connection, file: Path, piece: channel.Output) -> None:
        size = self._write_piece(file, piece)
        if self._on_output is not None:
            self._on_output(piece.task, piece.stream, piece.offset, piece.data)
        self._acknowledge(connection, piece, size)

    def _acknowledge(self, connection: _Connection, piece: channel.Output, size: int) -> None:
        self._post(connection, channel.OutputAck(task=piece.task, stream=piece.stream, offset=size))

    def _put_off(self, connection: _Connection, file: Path, piece: channel.Output, error: OSError) -> None:
        connection.unwritten[piece.task, piece.stream] = _Unwritten(file=file, piece=piece)
        self._tell_unwritten(piece, file, error)
        if not connection.retrying and self._tasks is not None:
            connection.retrying = True
            self._tasks.start_soon(self._write_later, connection)

    async def _write_later(self, connection: _Connection) -> None:
        """Try again, at growing intervals, what could not be written, until all is or the connection is gone."""
        pause = FIRST_RETRY
        while connection.unwritten:
            await anyio.sleep(pause)
            pause = min(LONGEST_RETRY, 2 * pause)
            if self._connected.get(connection.placeholder) is not connection:
                return
            for stream, unwritten in list(connection.unwritten.items()):
                if unwritten.piece is not None and self._try_again(connection, unwritten.file, unwritten.piece):
                    connection.unwritten[stream] = _Unwritten(file=unwritten.file, piece=None)
                    pause = FIRST_RETRY
        connection.retrying = False

    def _try_again(self, connection: _Connection, file: Path, piece: channel.Output) -> bool:
        try:
            self._put(connection, file, piece)
        except OSError as error:
            self._tell_unwritten(piece, file, error)
            return False
        if connection.resends:
            self._post(connection, channel.Resend(task=piece.task, stream=piece.stream))
        else:
            connection.drop("its output can be written again, which it sends when it comes back")
        return True

    def _tell_unwritten(self, piece: channel.Output, file: Path, error: OSError) -> None:
        if self._on_unwritten is not None:
            why = os.strerror(error.errno) if error.errno else str(error)
            self._on_unwritten(piece.task, piece.stream, file, why)

    def _write_piece(self, file: Path, piece: channel.Output) -> int:
        try:
            return self._output.append(file, piece.offset, piece.data)
        except ProtocolError:  # what is missing was acknowledged: somebody has emptied or removed the file since
            self._output.skip(file, piece.offset)
            return self._output.append(file, piece.offset, piece.data)

    def _order(self, placeholder: PlaceholderId, message: CenterMessage) -> bool:
        connection = self._connected.get(placeholder)
        if connection is None:
            return False
        self._post(connection, message)
        return True

    def _post(self, connection: _Connection, message: CenterMessage) -> None:
        if len(connection.outgoing) >= UNREAD:
            connection.drop("does not read")
            return
        connection.outgoing.append(channel.encode(message))
        if not connection.writing and self._tasks is not None:
            connection.writing = True
            self._tasks.start_soon(self._write, connection)

    async def _write(self, connection: _Connection) -> None:
        try:
            while connection.outgoing:
                data = b"".join(connection.outgoing)
                connection.outgoing.clear()
                for start in range(0, len(data), PIECE):
                    await connection.stream.send(data[start : start + PIECE])
            connection.writing = False
        except LOST as error:
            connection.drop(f"connection lost: {error.__cause__ or error}")

    def _reject(self, address: str, fault: str) -> None:
        if self._on_rejected is not None:
            self._on_rejected(address, fault)


def _address(own_word: str, seen: str) -> str:
    try:
        return str(ipaddress.ip_address(own_word.partition("%")[0]))
    except ValueError:
        return seen

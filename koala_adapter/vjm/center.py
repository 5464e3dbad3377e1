# SPDX-License-Identifier: Apache-2.0
"""The control center: where agents register, and through which they are told what to run.

A peer is unknown until its Hello has been checked. Then its placeholder belongs to that agent process (its *session*)
for ever, and its messages become events. Everything that the service must not forget is reported to it, synchronously,
before the next message of that agent is read. What the service wants from an agent that is not connected, it must ask
for again when the agent registers. The events come first, then the center.
"""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

import anyio
from anyio.abc import SocketAttribute, SocketListener
from anyio.streams.tls import TLSStream

from koala_adapter.errors import ConfigurationError, JournalBlockedError, ProtocolError
from koala_adapter.host.accepting import Admission, accepted
from koala_adapter.host.containment import report_defect
from koala_adapter.model import BatchKey, PlaceholderId
from koala_adapter.vjm import channel
from koala_adapter.vjm.certificate import digest, matches
from koala_adapter.vjm.output import FILES, FIRST_RETRY, LONGEST_RETRY, LOST, AgentConnection, OutputFiles, TaskOutput

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from anyio.abc import SocketStream, TaskGroup, TaskStatus

    from koala_adapter.model import EndReason, TaskEnd
    from koala_adapter.vjm.channel import AgentMessage, CenterMessage, Decoder, TaskReport


# -- Events that the control center reports to the service ---------------------------------------------------
# They are values, passed to its ``on_event`` one after another.


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRegistered:
    """An agent proved itself, for the first time or again after a lost connection. It can be launched into now."""

    placeholder: PlaceholderId
    lrm_id: str
    """Id of the LRM job as the LRM told it inside the job; may be empty."""
    host: str
    """The node's own name."""
    address: str
    """IP address of the node: its own word, or what we see when that is none."""
    ends_in: float | None
    """Seconds until the walltime of the placeholder ends; None: not known."""
    tasks: tuple[TaskReport, ...]
    """Everything that this agent ever ran (the newest, when there were very many)."""
    first: bool
    """False when it comes back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDisconnected:
    """The connection is gone; the agent may come back within its lease."""

    placeholder: PlaceholderId
    detail: str
    closed: bool
    """The agent closed it. One that was lost, or ended here, says nothing of the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRefused:
    """An agent with the right token but another session asked for a placeholder that is taken.

    Either the LRM ran the same placeholder twice, or the token is stolen.
    """

    placeholder: PlaceholderId
    host: str
    address: str
    """As we see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTaskStarted:
    """The process of a task runs. May be told more than once."""

    placeholder: PlaceholderId
    task: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTaskEnded:
    """A task is over and all of its output is in its files. May be told more than once."""

    placeholder: PlaceholderId
    task: str
    end: TaskEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationSaid:
    """The process of a task says something to koala."""

    placeholder: PlaceholderId
    task: str
    frame: bytes
    """One whole frame, as the agent has cut it; what is in it is not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnding:
    """The placeholder is about to go, and its tasks with it; their ends follow."""

    placeholder: PlaceholderId
    reason: EndReason
    detail: str


AgentEvent: TypeAlias = (
    AgentRegistered
    | AgentDisconnected
    | AgentRefused
    | AgentTaskStarted
    | AgentTaskEnded
    | ApplicationSaid
    | AgentEnding
)


# -- The control center --------------------------------------------------------------------------------------

APPLICANTS = 512
"""Peers that may be connected without having proved themselves."""

TIME_TO_PROVE = 10.0
"""Seconds from the connection to a good Hello."""

PATIENCE = 2.0
"""Seconds for a peer to prove itself while others wait to connect."""

UNPROVEN_BYTES = 16 * 1024**2
"""Bytes that peers may have sent, all together, before they proved themselves; beyond it each may send its share only.

A Hello with very many tasks is long. Without the bound as many of them as there are places would take 128 MiB, which
the process keeps when they have gone."""

UNPROVEN_SHARE = UNPROVEN_BYTES // APPLICANTS

SILENT_INTERVALS = 3
"""Heartbeats that may be missing before a connection is closed."""

BACKLOG = 4096


class SessionRegistry(Protocol):
    """Where it is remembered, also across restarts, which agent process owns a placeholder."""

    def bound_session(self, placeholder: PlaceholderId) -> str | None:
        """Return the digest of the session that owns ``placeholder``; None when no agent has registered for it."""

    def bind(self, placeholder: PlaceholderId, session_hash: str) -> None:
        """Remember the owner, durably before this returns."""


class ResultReceiver(Protocol):
    """Receives the output files of ranks."""

    def take(self, placeholder: PlaceholderId, piece: channel.FilePiece) -> channel.FileAck:
        """Keep a piece of a file, or refuse the file. Raises ProtocolError for what no agent says."""

    def conclude(self, placeholder: PlaceholderId, files: channel.TaskFiles) -> None:
        """Keep what is said of a task's files when all that come are there. Raises OSError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peer:
    """A peer that has sent Hello, and has not proved itself yet."""

    address: str
    stream: TLSStream
    decoder: Decoder[AgentMessage]
    hello: channel.Hello

    @property
    def placeholder(self) -> PlaceholderId:
        """Placeholder that the peer claims to hold."""
        return PlaceholderId(batch=BatchKey(self.hello.batch), index=self.hello.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Agent:
    """A registered agent."""

    connection: AgentConnection
    output: TaskOutput
    tasks: TaskGroup
    """Within which what could not be kept is tried again."""


class ControlCenter:
    """Listens for agents, tells of them by events, and takes orders for them."""

    def __init__(  # noqa: PLR0913 - all that it needs of the service
        self,
        *,
        ssl_context: ssl.SSLContext,
        authenticate: Callable[[PlaceholderId, str], bool],
        sessions: SessionRegistry,
        on_event: Callable[[AgentEvent], None],
        output_path: Callable[[PlaceholderId, str], Path | None],
        lease: float,
        heartbeat: float,
        on_rejected: Callable[[str, str], None] | None = None,
        on_output: Callable[[str, str, int, bytes], None] | None = None,
        on_unwritten: Callable[[str, str, Path, str], None] | None = None,
        on_written: Callable[[str, str], None] | None = None,
        results: ResultReceiver | None = None,
    ) -> None:
        """Make a center that does nothing before ``serve``.

        ``authenticate`` tells whether a token is that of the placeholder's batch, and that the batch is still wanted.
        ``on_event`` is called in order; what it raises ends that connection. ``output_path`` gives the path, without
        its ending, of a task's output: ``.out`` and ``.err`` are added; None drops the output. ``lease`` and
        ``heartbeat`` are seconds. ``on_rejected`` hears address and fault of peers that did not prove themselves: for a
        log only, and not for every one of them. ``on_output`` gets task, stream, offset and
        bytes of each piece of output once it is in its file. ``on_unwritten`` gets task, stream, file and reason when a
        piece cannot be written: it is tried again, and ``on_output`` hears of it then. It also gets what is said of
        output files, as the stream ``files``, of which ``on_written`` (task, stream) hears. ``results`` takes output
        files; without it they are refused.
        """
        self._ssl_context = ssl_context
        self._authenticate = authenticate
        self._sessions = sessions
        self._on_event = on_event
        self._welcome = channel.Welcome(lease=lease, heartbeat=heartbeat)
        self._silence = SILENT_INTERVALS * heartbeat
        self._on_rejected = on_rejected
        self._on_written = on_written
        self._results = results
        self._files = OutputFiles(path=output_path, on_output=on_output, on_unwritten=on_unwritten)
        self._connected: dict[PlaceholderId, AgentConnection] = {}
        self._unproven = 0
        """Bytes that are kept of peers that have not proved themselves yet."""

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
        async with listener, anyio.create_task_group() as tasks:
            try:
                for one in listener.listeners:
                    if isinstance(one, SocketListener):
                        tasks.start_soon(self._accept, one, admission, tasks)
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

    def tell_application(self, placeholder: PlaceholderId, task: str, frame: bytes) -> bool:
        """Send one whole frame to the process of a task, which it may not reach. False when not connected."""
        return self._order(placeholder, channel.Application(task=task, data=frame))

    def release(self, placeholder: PlaceholderId, grace: float) -> bool:
        """Tell an agent to end: its tasks get SIGTERM, ``grace`` seconds later SIGKILL. False when not connected."""
        return self._order(placeholder, channel.Release(grace=grace))

    def disconnect(self, placeholder: PlaceholderId, reason: str) -> None:
        """End the connection of an agent, if it has one: it comes back by itself, and tells again what it knows."""
        connection = self._connected.get(placeholder)
        if connection is not None:
            connection.drop(reason)

    def disconnect_all(self, reason: str) -> None:
        """End all connections."""
        for connection in self._connected.values():
            connection.drop(reason)

    async def _accept(self, listener: SocketListener, admission: Admission, tasks: TaskGroup) -> None:
        while True:
            await admission.room()
            stream = await accepted(listener, failed=self._accept_failed)
            tasks.start_soon(self._receive_peer, stream, admission, tasks)

    def _accept_failed(self, error: OSError) -> None:
        self._reject("", f"accept: {error.strerror or error}")

    async def _receive_peer(self, transport: SocketStream, admission: Admission, tasks: TaskGroup) -> None:
        async with transport:
            address = str(transport.extra(SocketAttribute.remote_address, ("", 0))[0])
            try:
                await self._converse(transport, address, admission, tasks)
            except Exception as error:  # noqa: BLE001 - whatever it is, it costs this connection alone
                report_defect("the connection of an agent", error, address=address)

    async def _converse(self, transport: SocketStream, address: str, admission: Admission, tasks: TaskGroup) -> None:
        agent = None
        with admission.applicant() as scope:
            peer = await self._greeted(transport, address)
            if peer is not None:
                agent = await self._answer_if_possible(peer, tasks)
        if scope.cancelled_caught:
            self._reject(address, "did not prove itself in time")
        if agent is not None:
            await self._follow(agent)

    async def _greeted(self, transport: SocketStream, address: str) -> _Peer | None:
        try:
            stream = await TLSStream.wrap(
                transport, server_side=True, ssl_context=self._ssl_context, standard_compatible=False
            )
            decoder = channel.agent_decoder()
            messages = await self._first_messages(stream, decoder)
        except (*LOST, ProtocolError) as error:
            self._reject(address, str(error) or type(error).__name__)
            return None
        if len(messages) > 1 or not isinstance(messages[0], channel.Hello):
            self._reject(address, "its first message is not a lone Hello")
            return None
        return _Peer(address=address, stream=stream, decoder=decoder, hello=messages[0])

    async def _first_messages(self, stream: TLSStream, decoder: Decoder[AgentMessage]) -> list[AgentMessage]:
        """Return what a peer says first. Raises ProtocolError when it says too much, and LOST when it has gone."""
        sent = 0
        try:
            while True:
                data = await stream.receive()
                sent += len(data)
                self._unproven += len(data)
                if sent > UNPROVEN_SHARE and self._unproven > UNPROVEN_BYTES:
                    raise ProtocolError("peers that have not proved themselves have sent too much")
                if messages := decoder.feed(data):
                    return messages
        finally:
            self._unproven -= sent

    async def _answer_if_possible(self, peer: _Peer, tasks: TaskGroup) -> _Agent | None:
        try:
            return await self._answer(peer, tasks)
        except JournalBlockedError as error:  # whose the placeholder is cannot be noted: the agent will ask again
            self._reject(peer.address, error.message)
            return None

    async def _answer(self, peer: _Peer, tasks: TaskGroup) -> _Agent | None:
        refusal = self._refusal(peer)
        if not refusal:
            return self._admit(peer, tasks)
        self._reject(peer.address, f"{peer.placeholder} on {peer.hello.host}: {refusal}")
        with suppress(*LOST):
            await peer.stream.send(channel.encode(channel.Refused(reason=refusal)))
        return None

    def _refusal(self, peer: _Peer) -> str:
        hello, placeholder = peer.hello, peer.placeholder
        if hello.version != channel.VERSION:
            return f"version {hello.version} of the channel is not spoken here (but {channel.VERSION})"
        if not self._authenticate(placeholder, hello.token):
            return "not accepted"
        bound = self._sessions.bound_session(placeholder)
        if bound is not None and not matches(hello.session, bound):
            refused = AgentRefused(placeholder=placeholder, host=hello.host, address=peer.address)
            self._on_event(refused)
            return "not accepted"
        return ""

    def _admit(self, peer: _Peer, tasks: TaskGroup) -> _Agent:
        placeholder, hello = peer.placeholder, peer.hello
        first = self._sessions.bound_session(placeholder) is None
        if first:
            self._sessions.bind(placeholder, digest(hello.session))
        former = self._connected.get(placeholder)
        if former is not None:  # half open: the agent knows better than we that it is dead
            former.drop("replaced by a new connection")
        connection = AgentConnection(placeholder, peer.stream, peer.decoder, tasks)
        self._connected[placeholder] = connection
        connection.post(self._welcome)
        registered = AgentRegistered(
            placeholder=placeholder,
            lrm_id=hello.lrm_id,
            host=hello.host,
            address=_address(hello.address, peer.address),
            ends_in=hello.ends_in,
            tasks=hello.tasks,
            first=first,
        )
        try:
            self._on_event(registered)
        except Exception:
            if self._is_current(connection):
                del self._connected[placeholder]
            raise
        is_current = partial(self._is_current, connection)
        output = TaskOutput(self._files, connection, tasks, resends=hello.resends, is_current=is_current)
        return _Agent(connection=connection, output=output, tasks=tasks)

    def _is_current(self, connection: AgentConnection) -> bool:
        return self._connected.get(connection.placeholder) is connection

    async def _follow(self, agent: _Agent) -> None:
        connection, detail = agent.connection, ""
        placeholder = connection.placeholder
        with connection.scope as scope:
            try:
                while True:
                    scope.deadline = anyio.current_time() + self._silence
                    for message in await connection.receive():
                        self._handle(agent, message)
            except ProtocolError as error:
                detail = error.message
            except Exception as error:  # noqa: BLE001 - a defect costs this connection, and the agent says all again
                report_defect("what an agent said", error, placeholder=str(placeholder))
                detail = f"koala failed on what it said: {error!r}"
        if self._is_current(connection):
            del self._connected[placeholder]
            detail = detail or connection.fault or f"silent for {self._silence:g} s"
            self._on_event(AgentDisconnected(placeholder=placeholder, detail=detail, closed=connection.closed))

    def _handle(self, agent: _Agent, message: AgentMessage) -> None:  # noqa: C901 - one plain line per kind of message
        connection, output = agent.connection, agent.output
        placeholder = connection.placeholder
        match message:
            case channel.Heartbeat():
                connection.post(channel.Pong())
            case channel.Output():
                output.keep(message)
            case channel.FilePiece():
                refused = channel.FileAck(task=message.task, number=message.number, offset=0, refusal="not wanted here")
                connection.post(self._results.take(placeholder, message) if self._results else refused)
            case channel.TaskFiles():
                self._conclude(agent, message)
            case channel.TaskStarted(task=task, pid=pid):
                self._on_event(AgentTaskStarted(placeholder=placeholder, task=task, pid=pid))
            case channel.Resending(task=task, stream=stream):
                output.resending(task, stream)
            case channel.TaskEnded():
                self._task_ended(agent, message)
            case channel.Application(task=task, data=frame):
                self._on_event(ApplicationSaid(placeholder=placeholder, task=task, frame=frame))
            case channel.Ending(reason=reason, detail=detail):
                self._on_event(AgentEnding(placeholder=placeholder, reason=reason, detail=detail))
            case channel.Hello():
                raise ProtocolError("a second Hello")

    def _task_ended(self, agent: _Agent, ended: channel.TaskEnded) -> None:
        if agent.output.is_behind(ended.task):
            return  # it will be told again, after the output that is still to come
        placeholder = agent.connection.placeholder
        self._on_event(AgentTaskEnded(placeholder=placeholder, task=ended.task, end=ended.end))

    def _conclude(self, agent: _Agent, files: channel.TaskFiles) -> None:
        """Keep what an agent says of a task's files, and tell it: now or later."""
        if not self._kept(agent.connection, files):
            agent.tasks.start_soon(self._conclude_later, agent.connection, files)

    async def _conclude_later(self, connection: AgentConnection, files: channel.TaskFiles) -> None:
        """Try again, at growing intervals, while the agent is there: by a later connection it says it itself."""
        pause = FIRST_RETRY
        await anyio.sleep(pause)
        while self._is_current(connection) and not self._kept(connection, files):
            pause = min(LONGEST_RETRY, 2 * pause)
            await anyio.sleep(pause)

    def _kept(self, connection: AgentConnection, files: channel.TaskFiles) -> bool:
        """Keep what is said of files if it can be written; then tell the agent."""
        if self._results is not None:
            try:
                self._results.conclude(connection.placeholder, files)
            except OSError as error:
                self._files.tell_unkept(connection.placeholder, files.task, error)
                return False
        connection.post(channel.FilesAck(task=files.task))
        if self._on_written is not None:
            self._on_written(files.task, FILES)
        return True

    def _order(self, placeholder: PlaceholderId, message: CenterMessage) -> bool:
        connection = self._connected.get(placeholder)
        if connection is None:
            return False
        connection.post(message)
        return True

    def _reject(self, address: str, fault: str) -> None:
        if self._on_rejected is not None:
            self._on_rejected(address, fault)


def _address(own_word: str, seen: str) -> str:
    try:
        return str(ipaddress.ip_address(own_word.partition("%")[0]))
    except ValueError:
        return seen

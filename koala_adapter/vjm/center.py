# SPDX-License-Identifier: Apache-2.0
"""The control center: where agents register, and through which they are told what to run.

A peer is unknown until its Hello has been checked. Then its placeholder belongs to that agent process (its *session*)
for ever, and its messages become events. Everything that the service must not forget is reported to it, synchronously,
before the next message of that agent is read. What the service wants from an agent that is not connected, it must ask
for again when the agent registers.
"""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio.abc import SocketAttribute
from anyio.streams.tls import TLSStream

from koala_adapter.errors import ConfigurationError, JournalBlockedError, ProtocolError
from koala_adapter.host.accepting import Admission, accepted, parts
from koala_adapter.host.containment import report_defect
from koala_adapter.model import BatchKey, PlaceholderId
from koala_adapter.vjm import channel
from koala_adapter.vjm.certificate import digest, matches
from koala_adapter.vjm.listener import AgentDisconnected, AgentRefused, AgentRegistered
from koala_adapter.vjm.output import AT_ONCE, LOST, AgentConnection, InputSender, TaskOutput
from koala_adapter.vjm.tunnels import Tunnels

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable
    from collections.abc import Set as AbstractSet

    from anyio.abc import SocketListener, SocketStream, TaskGroup, TaskStatus

    from koala_adapter.vjm.channel import AgentMessage, CenterMessage, Decoder
    from koala_adapter.vjm.listener import AgentListener, TaskListener


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peer:
    """A peer that has said who it is, and has not proved itself yet."""

    address: str
    stream: TLSStream
    decoder: Decoder[AgentMessage]
    hello: channel.FirstMessage

    @property
    def placeholder(self) -> PlaceholderId:
        """Placeholder that the peer claims to hold."""
        return PlaceholderId(batch=BatchKey(self.hello.batch), index=self.hello.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Agent:
    """A registered agent."""

    connection: AgentConnection
    output: TaskOutput
    inputs: InputSender


class ControlCenter:
    """Server for agents: reports their messages as events and sends them orders."""

    def __init__(
        self,
        listener: AgentListener,
        task_listener: TaskListener,
        ssl_context: ssl.SSLContext,
        *,
        lease: float,
        heartbeat: float,
        host: str = "127.0.0.1",
    ) -> None:
        """Make a center that does nothing before ``serve``. ``lease`` and ``heartbeat`` are seconds.

        ``host``: address at which programs of this host are reached by ranks that may do that.
        """
        self._listener = listener
        self._task_listener = task_listener
        self._ssl_context = ssl_context
        self._lease, self._heartbeat = lease, heartbeat
        self._silence = SILENT_INTERVALS * heartbeat
        self._room = anyio.CapacityLimiter(AT_ONCE)
        self.tunnels = Tunnels(task_listener.route, self.tell, host)
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
        """Listen until cancelled; report the bound port (``port`` 0: any; ``host`` None: all interfaces).

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
                for one in parts(listener):
                    tasks.start_soon(self._accept, one, admission, tasks)
                task_status.started(listener.extra(SocketAttribute.local_port))
                await anyio.sleep_forever()
            finally:
                self._connected.clear()

    def tell(self, placeholder: PlaceholderId, message: CenterMessage) -> bool:
        """Send a message to an agent. False when it is not connected.

        Raises ProtocolError when the message cannot be sent to any agent, such as for its size.
        """
        connection = self._connected.get(placeholder)
        if connection is None:
            return False
        connection.post(message)
        return True

    def disconnect(self, placeholder: PlaceholderId, reason: str) -> None:
        """Close an agent's connection; it reconnects and reports its state again."""
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
        self._listener.on_rejected("", f"accept: {error.strerror or error}")

    async def _receive_peer(self, transport: SocketStream, admission: Admission, tasks: TaskGroup) -> None:
        async with transport:
            address = str(transport.extra(SocketAttribute.remote_address, ("", 0))[0])
            try:
                await self._converse(transport, address, admission, tasks)
            except Exception as error:  # noqa: BLE001 - whatever it is, it costs this connection alone
                report_defect("the connection of an agent", error, address=address)

    async def _converse(self, transport: SocketStream, address: str, admission: Admission, tasks: TaskGroup) -> None:
        serve = None
        with admission.applicant() as scope:
            peer = await self._greeted(transport, address)
            if peer is not None:
                try:
                    serve = await self._answer(peer, tasks)
                except JournalBlockedError as error:  # whose the placeholder is cannot be noted: it will ask again
                    self._listener.on_rejected(address, error.message)
        if scope.cancelled_caught:
            self._listener.on_rejected(address, "did not prove itself in time")
        if serve is not None:
            await serve()

    async def _greeted(self, transport: SocketStream, address: str) -> _Peer | None:
        try:
            stream = await TLSStream.wrap(
                transport, server_side=True, ssl_context=self._ssl_context, standard_compatible=False
            )
            decoder = channel.agent_decoder()
            messages = await self._first_messages(stream, decoder)
        except (*LOST, ProtocolError) as error:
            self._listener.on_rejected(address, str(error) or type(error).__name__)
            return None
        if len(messages) > 1 or not isinstance(messages[0], channel.FirstMessage):
            self._listener.on_rejected(address, "its first message is not a lone Hello")
            return None
        return _Peer(address=address, stream=stream, decoder=decoder, hello=messages[0])

    async def _first_messages(self, stream: TLSStream, decoder: Decoder[AgentMessage]) -> list[AgentMessage]:
        """Return the first messages of a peer. Raises ProtocolError when there is too much, LOST when it left."""
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

    async def _answer(self, peer: _Peer, tasks: TaskGroup) -> Callable[[], Awaitable[None]] | None:
        """Return what serves a peer that has proved itself: as an agent, or for a tunnel."""
        hello, placeholder = peer.hello, peer.placeholder
        if not isinstance(hello, channel.Hello):
            bound = self._listener.bound_session(placeholder)
            if bound is None or not matches(hello.session, bound):
                self._listener.on_rejected(peer.address, f"{placeholder}: not accepted")
            elif self._listener.admits(placeholder, hello.token):
                if isinstance(hello, channel.TunnelAsked):
                    return partial(self.tunnels.asked, peer.stream, placeholder, hello)
                if isinstance(hello, channel.TunnelTaken):
                    return partial(self.tunnels.taken, peer.stream, placeholder, hello)
            return None
        refusal = self._refusal(hello, peer)
        if not refusal:
            return partial(self._follow, self._admit(hello, peer, tasks))
        self._listener.on_rejected(peer.address, f"{peer.placeholder} on {hello.host}: {refusal}")
        with suppress(*LOST):
            await peer.stream.send(channel.encode(channel.Refused(reason=refusal)))
        return None

    def _refusal(self, hello: channel.Hello, peer: _Peer) -> str:
        placeholder = peer.placeholder
        if hello.version != channel.VERSION:
            return f"version {hello.version} of the channel is not spoken here (but {channel.VERSION})"
        if not self._listener.admits(placeholder, hello.token):
            return "not accepted"
        bound = self._listener.bound_session(placeholder)
        if bound is not None and not matches(hello.session, bound):
            refused = AgentRefused(placeholder=placeholder, host=hello.host, address=peer.address)
            self._listener.on_event(refused)
            return "not accepted"
        return ""

    def _admit(self, hello: channel.Hello, peer: _Peer, tasks: TaskGroup) -> _Agent:
        placeholder = peer.placeholder
        first = self._listener.bound_session(placeholder) is None
        if first:
            self._listener.bind(placeholder, digest(hello.session))
        former = self._connected.get(placeholder)
        if former is not None:  # half open: the agent knows better than we that it is dead
            former.drop("replaced by a new connection")
        connection = AgentConnection(placeholder, peer.stream, peer.decoder, tasks)
        self._connected[placeholder] = connection
        lease = self._listener.lease_of(placeholder) or self._lease
        connection.post(channel.Welcome(lease=lease, heartbeat=self._heartbeat))
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
            self._listener.on_event(registered)
        except Exception:
            if self._is_current(connection):
                del self._connected[placeholder]
            raise
        self.tunnels.registered(placeholder)
        is_current = partial(self._is_current, connection)
        output = TaskOutput(self._task_listener, connection, resends=hello.resends, is_current=is_current)
        inputs = InputSender(self._task_listener, connection, self._room)
        return _Agent(connection=connection, output=output, inputs=inputs)

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
            self._listener.on_event(AgentDisconnected(placeholder=placeholder, detail=detail, closed=connection.closed))

    def _handle(self, agent: _Agent, message: AgentMessage) -> None:
        connection, output = agent.connection, agent.output
        placeholder = connection.placeholder
        match message:
            case channel.Heartbeat():
                connection.post(channel.Pong())
            case channel.Output():
                output.keep(message)
            case channel.Fetch():
                agent.inputs.want(message)
            case channel.FilePiece():
                output.take_file(message)
            case channel.TaskFiles():
                output.conclude(message)
            case channel.Resending(task=task, stream=stream):
                output.resending(task, stream)
            case channel.TaskEnded(task=task) if output.is_behind(task):
                pass  # it will be told again, after the output that is still to come
            case channel.FirstMessage():
                raise ProtocolError("a second Hello")
            case channel.Ending() | channel.Probing() | channel.Probed():
                self._listener.on_report(placeholder, message)
            case _:
                self._task_listener.on_report(placeholder, message)


def _address(own_word: str, seen: str) -> str:
    try:
        return str(ipaddress.ip_address(own_word.partition("%")[0]))
    except ValueError:
        return seen

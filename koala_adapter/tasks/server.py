# SPDX-License-Identifier: Apache-2.0
"""Task server: accepts programs on nodes that have the token, and sends tasks to those that wait for work.

The tasks come from a ``Board``, which the caller provides. A server belongs to one asyncio event loop.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import ssl
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Protocol

from koala_adapter.tasks.connection import LEAVING, LENGTH

if TYPE_CHECKING:
    from koala_adapter.vjm.certificate import Certificate


# -- Files that are sent to nodes: a program, and beside it the connection -----------------------------------

CONNECTION_FILE = "koala_pull.py"


def node_files(package: str, module: str, name: str) -> dict[str, bytes]:
    """Return the files of a program for nodes: a module as ``name``, and the connection module."""
    text = resources.files(package).joinpath(f"{module}.py").read_text(encoding="utf-8")
    alone = text.replace("koala_adapter.tasks.connection", CONNECTION_FILE.removesuffix(".py"))
    connection = resources.files("koala_adapter.tasks").joinpath("connection.py").read_bytes()
    return {CONNECTION_FILE: connection, name: alone.encode()}


# -- The server ----------------------------------------------------------------------------------------------

TOKEN_BYTES = 32
CLOSING_STEPS = 5
"""Turns of the event loop in which connections that were closed let go of their sockets."""
PROVING = 30.0
"""Seconds in which TLS must be there, and then the token."""
ACCEPTING_PAUSE = 0.5
"""Seconds until it is tried again to accept a connection."""
MOST_UNPROVEN = 256
"""Connections that may be on their way to that at once; then the one that has been there longest must go."""
FAIR_CHANCE = 1.0
"""Seconds that it has had by then at least."""
BACKLOG = 4096
"""Connections that may wait to be accepted, in their order: no client waits behind more than these."""


@dataclass(slots=True, eq=False)
class Puller:
    """A connected client that waits for work or has some."""

    writer: asyncio.StreamWriter
    work: object = None
    """What the board has given to it."""
    leaving: bool = False
    """It wants no more."""


class Board(Protocol):
    """Source of work for clients, told of their messages (protocol)."""

    def came(self, puller: Puller) -> None:
        """Called when a client has shown the token; call ``PullServer.free`` to have work sent to it."""

    def heard(self, puller: Puller, frame: bytes) -> None:
        """Called with each frame from a client."""

    def gone(self, puller: Puller) -> None:
        """Called when the connection of a client has ended."""

    def work_for(self, puller: Puller) -> bytes | None:
        """Return a frame of work for a waiting client; None: there is none now."""


@dataclass(slots=True)
class _Present:
    idle: deque[Puller] = field(default_factory=deque)
    proven: set[Puller] = field(default_factory=set)
    unproven: dict[asyncio.Task[None], float] = field(default_factory=dict)
    """Conversations without the token so far, and since when, oldest first."""
    conversing: set[asyncio.Task[None]] = field(default_factory=set)
    """With all of them."""


class PullServer:
    """TLS server that sends work to clients that have the token."""

    def __init__(self, board: Board, token: bytes, *, largest_frame: int | None = None) -> None:
        """``largest_frame``: bytes; the connection of a client that sends a larger one is ended. None: no bound."""
        self._board = board
        self._token = token
        self._largest = largest_frame
        self._present = _Present()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._accepting: asyncio.Task[None] | None = None

    @property
    def pullers(self) -> set[Puller]:
        """Connected clients that have shown the token."""
        return self._present.proven

    def listen(self, listening: socket.socket, certificate: Certificate, loop: asyncio.AbstractEventLoop) -> None:
        """Accept connections on a listening socket, which is closed with the server. Raises OSError."""
        self._tls.load_cert_chain(certificate.path)
        listening.setblocking(False)  # noqa: FBT003 - its only parameter has no name
        self._accepting = loop.create_task(self._accept(listening))
        self._accepting.add_done_callback(lambda _: listening.close())

    def free(self, puller: Puller) -> None:
        """Register that a client waits for work; may be called again."""
        if not puller.leaving and puller not in self._present.idle:
            self._present.idle.append(puller)
            self.dispatch()

    def dispatch(self) -> None:
        """Send work to waiting clients as long as there is some."""
        idle = self._present.idle
        while idle:
            frame = self._board.work_for(idle[0])
            if frame is None:
                return
            send(idle.popleft(), frame)

    async def close(self) -> None:
        """Stop listening, end all connections, and return when their tasks have ended."""
        ours = {*self._present.conversing, *((self._accepting,) if self._accepting is not None else ())}
        for one in ours:
            one.cancel()
        if ours:
            await asyncio.wait(ours)
        for _ in range(CLOSING_STEPS):
            await asyncio.sleep(0)

    async def _accept(self, listening: socket.socket) -> None:
        """Accept connections; those without the token are counted from the first moment."""
        loop, present = asyncio.get_running_loop(), self._present
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError:  # it has gone again, or there are no descriptors left
                await asyncio.sleep(ACCEPTING_PAUSE)
                continue
            try:
                await self._room()
            except asyncio.CancelledError:
                connection.close()
                raise
            conversation = loop.create_task(self._converse(connection))
            present.conversing.add(conversation)
            present.unproven[conversation] = loop.time()
            conversation.add_done_callback(partial(self._end, connection))

    async def _room(self) -> None:
        """Wait until one more connection without the token is allowed."""
        unproven = self._present.unproven
        while len(unproven) >= MOST_UNPROVEN:
            oldest, since = next(iter(unproven.items()))
            wait = since + FAIR_CHANCE - asyncio.get_running_loop().time()
            if wait <= 0:
                del unproven[oldest]
                oldest.cancel()
                return
            await asyncio.wait([oldest], timeout=wait)

    def _end(self, connection: socket.socket, conversation: asyncio.Task[None]) -> None:
        """Close a connection, also one that was cancelled before its first message."""
        self._present.conversing.discard(conversation)
        self._present.unproven.pop(conversation, None)
        connection.close()

    async def _converse(self, connection: socket.socket) -> None:
        try:
            async with asyncio.timeout(PROVING):
                reader, writer = await self._with_tls(connection)
        except (OSError, TimeoutError):
            return
        puller = Puller(writer)
        try:
            await self._hear(puller, reader)
        except (OSError, EOFError, TimeoutError):
            pass
        finally:
            self._forget(puller)
            if puller in self._present.proven:
                self._present.proven.discard(puller)
                self._board.gone(puller)
            writer.transport.abort()

    async def _with_tls(self, connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the streams of a connection once TLS is set up. Raises OSError."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=self._tls)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _hear(self, puller: Puller, reader: asyncio.StreamReader) -> None:
        """Process the frames of a client until it leaves. Raises OSError, EOFError and TimeoutError."""
        async with asyncio.timeout(PROVING):
            shown = await reader.readexactly(TOKEN_BYTES)
        if not hmac.compare_digest(shown, self._token):
            return
        self._proven(puller)
        while True:
            (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
            if self._largest is not None and size > self._largest:
                return
            frame = await reader.readexactly(size)
            if frame == LEAVING:
                puller.leaving = True
                self._forget(puller)
            else:
                self._board.heard(puller, frame)

    def _proven(self, puller: Puller) -> None:
        conversation = asyncio.current_task()
        if conversation is not None:
            self._present.unproven.pop(conversation, None)
        self._present.proven.add(puller)
        self._board.came(puller)

    def _forget(self, puller: Puller) -> None:
        if puller in self._present.idle:
            self._present.idle.remove(puller)


def listening_socket(host: str, port: int = 0) -> socket.socket:
    """Return a socket that listens on an address; port 0: any. Raises OSError."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family, backlog=BACKLOG)


def send(puller: Puller, frame: bytes) -> None:
    """Send a frame to a client."""
    puller.writer.write(LENGTH.pack(len(frame)) + frame)

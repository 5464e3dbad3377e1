# SPDX-License-Identifier: Apache-2.0
"""Where programs on nodes get their work: connections, who has shown the token, and who waits for work.

What the work is, a board knows. Belongs to one asyncio event loop.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import ssl
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from koala_adapter.pull.connection import LEAVING, LENGTH

if TYPE_CHECKING:
    from koala_adapter.vjm.certificate import Certificate

TOKEN_BYTES = 32
CLOSING_STEPS = 5
"""Turns of the event loop in which connections that were closed let go of their sockets."""
PROVING = 30.0
"""Seconds in which who connects must show the token."""


@dataclass(slots=True, eq=False)
class Puller:
    """Somebody who wants work, or is at it."""

    writer: asyncio.StreamWriter
    work: object = None
    """What the board has given to it."""
    leaving: bool = False
    """It wants no more."""


class Board(Protocol):
    """Who has the work."""

    def came(self, puller: Puller) -> None:
        """Somebody has shown the token; ``PullServer.free`` says that it waits for work."""

    def heard(self, puller: Puller, frame: bytes) -> None:
        """It has said something."""

    def gone(self, puller: Puller) -> None:
        """Its connection has ended."""

    def work_for(self, puller: Puller) -> bytes | None:
        """Return the frame with work for somebody who waits; None: there is none now."""


@dataclass(slots=True)
class _Present:
    idle: deque[Puller] = field(default_factory=deque)
    proven: set[Puller] = field(default_factory=set)
    conversing: dict[asyncio.Task[None], Puller] = field(default_factory=dict)
    """Those, and whoever has not shown the token yet."""


class PullServer:
    """Listens, lets in who has the token, and sends work to who waits for it."""

    def __init__(self, board: Board, token: bytes, *, largest_frame: int | None = None) -> None:
        """``largest_frame``: bytes; who sends a larger one is sent away. None: no bound."""
        self._board = board
        self._token = token
        self._largest = largest_frame
        self._present = _Present()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def pullers(self) -> set[Puller]:
        """Who is there now and has shown the token."""
        return self._present.proven

    async def listen(self, listening: socket.socket, certificate: Certificate) -> None:
        """Accept connections on a listening socket, which is closed with this. Raises OSError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.path)
        self._server = await asyncio.start_server(self._accepted, sock=listening, ssl=context)

    def free(self, puller: Puller) -> None:
        """Note that somebody waits for work."""
        if not puller.leaving:
            self._present.idle.append(puller)
            self.dispatch()

    def dispatch(self) -> None:
        """Send work to those who wait, as far as there is any."""
        idle = self._present.idle
        while idle:
            frame = self._board.work_for(idle[0])
            if frame is None:
                return
            send(idle.popleft(), frame)

    async def close(self) -> None:
        """Listen no more, end all connections, and return when nobody is at them."""
        if self._server is not None:
            self._server.close()
        ours = self._present.conversing
        while ours:
            for puller in ours.values():
                puller.writer.transport.abort()
            await asyncio.wait(set(ours))
        for _ in range(CLOSING_STEPS):
            await asyncio.sleep(0)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        puller = Puller(writer)
        conversation = asyncio.get_running_loop().create_task(self._converse(puller, reader))
        self._present.conversing[conversation] = puller
        conversation.add_done_callback(self._present.conversing.pop)

    async def _converse(self, puller: Puller, reader: asyncio.StreamReader) -> None:
        try:
            async with asyncio.timeout(PROVING):
                shown = await reader.readexactly(TOKEN_BYTES)
            if not hmac.compare_digest(shown, self._token):
                return
            self._present.proven.add(puller)
            self._board.came(puller)
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
        except (OSError, EOFError, TimeoutError):
            pass
        finally:
            self._forget(puller)
            if puller in self._present.proven:
                self._present.proven.discard(puller)
                self._board.gone(puller)
            puller.writer.close()

    def _forget(self, puller: Puller) -> None:
        if puller in self._present.idle:
            self._present.idle.remove(puller)


def listening_socket(host: str, port: int = 0) -> socket.socket:
    """Return a socket that listens on an address; port 0: any. Raises OSError."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family, backlog=256)


def send(puller: Puller, frame: bytes) -> None:
    """Send a frame to somebody."""
    puller.writer.write(LENGTH.pack(len(frame)) + frame)

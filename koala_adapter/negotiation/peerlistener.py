# SPDX-License-Identifier: Apache-2.0
"""Listens for applications that negotiate: by TCP with a one-time token, by a Unix socket with the same user.

Nothing that an application says is read before it has shown who it is. Who is slow in that costs a descriptor for some
seconds; when there are too many, the one that has been silent longest goes.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import structlog
from anyio.abc import SocketAttribute

from koala_adapter.errors import NegotiationError, ServiceRunningError
from koala_adapter.negotiation.framing import FrameBuffer
from koala_adapter.negotiation.tokens import LONGEST_GREETING
from koala_adapter.net.accepting import serve_streams
from koala_adapter.net.unixsocket import checked_path, same_user

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from anyio.abc import SocketStream, TaskStatus

    from koala_adapter.negotiation.tokens import OneTimeTokens

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerBounds:
    """What strangers may cost."""

    most_silent: int = 64
    """Connections that have not shown a token."""
    most_connections: int = 10_000
    """Applications that are connected."""
    greet_within: float = 10.0
    """Seconds in which a token must be shown."""


class PeerListener:
    """Accepts connections, finds out whose they are, and hands them on."""

    def __init__(
        self,
        converse: Callable[[str, SocketStream], Awaitable[None]],
        tokens: OneTimeTokens,
        bounds: ListenerBounds | None = None,
    ) -> None:
        """``converse`` takes the name of an application and its connection, until that ends."""
        self._converse = converse
        self._tokens = tokens
        self._bounds = bounds or ListenerBounds()
        self._silent: OrderedDict[int, anyio.CancelScope] = OrderedDict()
        self._number = 0
        self.connections = 0
        """Applications that are connected."""

    async def serve_tcp(
        self, host: str = "127.0.0.1", port: int = 0, *, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen until cancelled; the port is told when it is open. Raises ServiceRunningError when it is taken."""
        try:
            listeners = await anyio.create_tcp_listener(local_host=host, local_port=port, reuse_port=False)
        except OSError as error:
            message = f"cannot listen on {host} port {port}: {error.strerror or error}"
            raise ServiceRunningError(message, hint="is another service there?") from error
        async with listeners:
            task_status.started(listeners.extra(SocketAttribute.local_port))
            await serve_streams(listeners, self._greet)

    async def serve_unix(
        self, path: Path, application: str, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen on the socket of one application, which only our user can open, until cancelled.

        Raises ConfigurationError for a path that is too long, ServiceRunningError when it cannot be listened on.
        """
        try:
            listener = await anyio.create_unix_listener(checked_path(path), mode=0o600)
        except OSError as error:
            raise ServiceRunningError(f"cannot listen on {path}: {error.strerror or error}") from error

        async def admit(stream: SocketStream) -> None:
            async with stream:
                if same_user(stream.extra(SocketAttribute.raw_socket)):
                    await self._admit(application, stream)
                else:
                    log.warning("refused a connection of another user", application=application)

        async with listener:
            task_status.started()
            await serve_streams(listener, admit)

    async def _greet(self, stream: SocketStream) -> None:
        async with stream:
            greeting = await self._greeting(stream)
            application = None if greeting is None else self._tokens.redeem(greeting)
            if application is None:
                log.warning("a connection without a good token", peer=str(stream.extra(SocketAttribute.remote_address)))
                return
            await self._admit(application, stream)

    async def _admit(self, application: str, stream: SocketStream) -> None:
        if self.connections >= self._bounds.most_connections:
            log.warning("too many applications are connected", bound=self._bounds.most_connections)
            return
        self.connections += 1
        try:
            await self._converse(application, stream)
        finally:
            self.connections -= 1

    async def _greeting(self, stream: SocketStream) -> bytes | None:
        """Return the payload of the first frame; None: it did not come, or is none."""
        self._number += 1
        number, frames = self._number, FrameBuffer(limit=LONGEST_GREETING)
        with anyio.move_on_after(self._bounds.greet_within) as scope:
            self._silent[number] = scope
            if len(self._silent) > self._bounds.most_silent:
                self._silent.popitem(last=False)[1].cancel()
            try:
                with suppress(NegotiationError, anyio.EndOfStream, anyio.BrokenResourceError, OSError):
                    while True:
                        # No more than the frame: what follows it is the conversation's.
                        if payloads := frames.feed(await stream.receive(frames.missing)):
                            return payloads[0]
            finally:
                self._silent.pop(number, None)
        return None

# SPDX-License-Identifier: Apache-2.0
"""The connection of an agent that has proved itself: messages go out in order, and bounded, without anybody waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import ProtocolError
from koala_adapter.vjm import channel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anyio.abc import TaskGroup
    from anyio.streams.tls import TLSStream

    from koala_adapter.model import PlaceholderId
    from koala_adapter.vjm.channel import AgentMessage, CenterMessage, Decoder

LOST = (OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)
"""What reading from or writing to a peer may raise that is no fault of ours."""

PIECE = 16 * 1024
"""Bytes written at once: one TLS record, so that buffers of a connection never grow with the size of a message."""

UNREAD = 10_000
"""Messages that may wait for one agent to read them."""


class AgentConnection:
    """What is said to and by one agent."""

    def __init__(
        self, placeholder: PlaceholderId, stream: TLSStream, decoder: Decoder[AgentMessage], tasks: TaskGroup
    ) -> None:
        """``tasks``: within which messages are written."""
        self.placeholder = placeholder
        self.scope = anyio.CancelScope()
        """In which it is followed; cancelled to end it."""
        self.fault = ""
        """Why ``scope`` was cancelled, when somebody did that."""
        self.closed = False
        """The agent has closed it."""
        self._stream = stream
        self._decoder = decoder
        self._decoder.limit = channel.AGENT_LINE_LIMIT
        self._tasks = tasks
        self._outgoing: list[bytes] = []
        self._writing = False

    def drop(self, fault: str) -> None:
        """End the connection."""
        self.fault = fault
        self.scope.cancel()

    async def receive(self) -> Sequence[AgentMessage]:
        """Return the messages that have come. Raises ProtocolError when it breaks the rules, or is lost."""
        try:
            data = await self._stream.receive()
        except anyio.EndOfStream:
            self.closed = True
            raise ProtocolError("closed by the agent") from None
        except LOST as error:
            raise ProtocolError(f"connection lost: {error.__cause__ or error}") from None
        return self._decoder.feed(data)

    def post(self, message: CenterMessage) -> None:
        """Send a message after those before it. An agent that does not read is dropped.

        Raises ProtocolError when the message cannot be sent to any agent, such as for its size.
        """
        if len(self._outgoing) >= UNREAD:
            self.drop("does not read")
            return
        self._outgoing.append(channel.encode(message))
        if not self._writing:
            self._writing = True
            self._tasks.start_soon(self._write)

    async def _write(self) -> None:
        try:
            while self._outgoing:
                data = b"".join(self._outgoing)
                self._outgoing.clear()
                for start in range(0, len(data), PIECE):
                    await self._stream.send(data[start : start + PIECE])
            self._writing = False
        except LOST as error:
            self.drop(f"connection lost: {error.__cause__ or error}")

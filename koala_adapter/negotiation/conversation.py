# SPDX-License-Identifier: Apache-2.0
"""Carries the bytes of an endpoint over a stream, and calls it when a deadline comes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import ByteStream

    from koala_adapter.negotiation.endpoint import Endpoint
    from koala_adapter.negotiation.events import Event
    from koala_adapter.negotiation.template import NegotiationKey, Template

CHUNK = 65_536
WRITE_WITHIN = 30.0
"""Seconds in which a peer must take what is said to it; one that does not is gone."""


class Conversation:
    """One connection of an endpoint, from its beginning to its end."""

    def __init__(self, stream: ByteStream, endpoint: Endpoint, handle: Callable[[Event, float], None]) -> None:
        """``handle`` takes each event and the time, and may have the endpoint say something."""
        self._stream = stream
        self._endpoint = endpoint
        self._handle = handle
        self._writing = anyio.Lock()
        self._waiting: anyio.CancelScope | None = None
        self._gone = False

    async def run(self) -> None:
        """Go on until the connection ends, or the peer sends what is no template; then the stream is closed."""
        self._endpoint.resumed()
        async with self._stream:
            try:
                while not self._gone and not self._endpoint.unreadable:
                    await self._flush()
                    await self._wait()
                await self._flush()
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                pass
            finally:
                self._gone = True
                self._take(self._endpoint.disconnected(anyio.current_time()))

    async def say(self, template: Template) -> NegotiationKey:
        """Say something of our own accord. Raises NegotiationStepError when it does not follow.

        What cannot be written because the connection has just ended is lost, as an event tells.
        """
        key = self._endpoint.send(template, anyio.current_time())
        await self.flush()
        return key

    async def flush(self) -> None:
        """Write what the endpoint has to send."""
        deadline = self._endpoint.next_deadline()
        if self._waiting is not None and deadline is not None:
            self._waiting.deadline = min(self._waiting.deadline, deadline)
        try:
            await self._flush()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            self._gone = True

    async def _wait(self) -> None:
        """Take what comes next, or end what was not answered in time."""
        deadline = self._endpoint.next_deadline()
        with anyio.CancelScope(deadline=math.inf if deadline is None else deadline) as self._waiting:
            data = await self._stream.receive(CHUNK)
            self._take(self._endpoint.receive(data, anyio.current_time()))
        self._take(self._endpoint.time_passed(anyio.current_time()))

    def _take(self, events: list[Event]) -> None:
        for event in events:
            self._handle(event, anyio.current_time())

    async def _flush(self) -> None:
        async with self._writing:
            while data := self._endpoint.data_to_send():
                with anyio.move_on_after(WRITE_WITHIN) as scope:
                    await self._stream.send(data)
                if scope.cancelled_caught:
                    self._gone = True
                    if self._waiting is not None:
                        self._waiting.cancel()
                    return

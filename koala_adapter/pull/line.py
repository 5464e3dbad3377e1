# SPDX-License-Identifier: Apache-2.0
"""One connection of somebody who pulls work: a token first, then frames, each handed on as soon as it is whole."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from koala_adapter.pull.connection import LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN_BYTES = 32


class Line(asyncio.Protocol):
    """Cuts what comes into a token and frames; belongs to the running event loop."""

    def __init__(
        self, *, shown: Callable[[Line, bytes], None], heard: Callable[[Line, bytes], None], largest: int | None
    ) -> None:
        """``shown`` gets the token, ``heard`` each frame; what either raises as OSError ends the connection.

        ``largest``: bytes of a frame; a larger one ends the connection. None: no bound.
        """
        loop = asyncio.get_running_loop()
        self.token_shown: asyncio.Future[None] = loop.create_future()
        """Also done when it never will be, as the connection is gone."""
        self.gone: asyncio.Future[None] = loop.create_future()
        self._shown = shown
        self._heard = heard
        self._largest = largest
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()
        self._aborted = False

    @property
    def transport(self) -> asyncio.WriteTransport:
        """Where to write; there once the connection is."""
        if self._transport is None:
            raise AssertionError("a connection that was made")
        return self._transport

    def abort(self) -> None:
        """End the connection, and hear nothing more."""
        self._aborted = True
        if self._transport is not None:
            self._transport.abort()

    # ---- as asyncio sees it -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol: TLS is there."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - it is all the same why
        """See asyncio.Protocol."""
        for future in (self.token_shown, self.gone):
            if not future.done():
                future.set_result(None)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._aborted:
            return
        self._data += data
        try:
            self._cut()
        except OSError:
            self.abort()

    def _cut(self) -> None:
        """Hand on what is whole. Raises OSError."""
        at = 0
        if not self.token_shown.done():
            if len(self._data) < TOKEN_BYTES:
                return
            at = TOKEN_BYTES
            self._shown(self, bytes(self._data[:at]))
            self.token_shown.set_result(None)
        while not self._aborted and (end := self._end_of_frame(at)) is not None:
            with memoryview(self._data) as view:
                frame = bytes(view[at + LENGTH.size : end])
            at = end
            self._heard(self, frame)
        del self._data[:at]

    def _end_of_frame(self, start: int) -> int | None:
        """Return where the frame ends that begins there; None: it is not all here. Raises ConnectionError."""
        if len(self._data) < start + LENGTH.size:
            return None
        (size,) = LENGTH.unpack_from(self._data, start)
        if self._largest is not None and size > self._largest:
            raise ConnectionError("the frame is too large")
        end = start + LENGTH.size + int(size)
        return end if len(self._data) >= end else None

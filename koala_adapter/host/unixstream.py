# SPDX-License-Identifier: Apache-2.0
"""Reading from a Unix socket in a task that may be cancelled at any moment.

Where a read of anyio 4.16 from a Unix socket is cancelled in the round of the event loop in which something comes, the
loop reports an InvalidStateError with its traceback. :func:`anyio.wait_readable` has no such moment. This module is
apart from :mod:`koala_adapter.host.accepting` as clients import it, which log nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
from anyio.abc import ByteReceiveStream, SocketAttribute

if TYPE_CHECKING:
    from anyio.abc import SocketStream


class Received(ByteReceiveStream):
    """The receiving side of a connection by a Unix socket."""

    def __init__(self, stream: SocketStream) -> None:
        """``stream``: closed by its owner."""
        self._stream = stream
        self._socket = stream.extra(SocketAttribute.raw_socket)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Return what has come, as soon as there is something. Raises as the stream does."""
        await anyio.wait_readable(self._socket)
        return await self._stream.receive(max_bytes)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()

# SPDX-License-Identifier: Apache-2.0
"""Ways to a peer that listens, for programs that negotiate with koala's own modules: see ``peerlistener.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from koala_adapter.negotiation.framing import frame
from koala_adapter.negotiation.tokens import GREETING

if TYPE_CHECKING:
    from pathlib import Path

    from anyio.abc import SocketStream


async def connect(host: str, port: int, token: str = "") -> SocketStream:
    """Connect by TCP, and show the one-time token if there is one. The stream is for a `Conversation`.

    Raises OSError.
    """
    stream = await anyio.connect_tcp(host, port)
    if token:
        await stream.send(frame(GREETING + token.encode("ascii")))
    return stream


async def connect_unix(path: Path) -> SocketStream:
    """Connect to a Unix socket. Raises OSError."""
    return await anyio.connect_unix(path)

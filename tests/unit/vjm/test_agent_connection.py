# SPDX-License-Identifier: Apache-2.0
"""The agent's side of the connection: whatever comes in, other things are looked after in between."""

from __future__ import annotations

import selectors
from typing import TYPE_CHECKING, cast

import pytest

from koala_adapter.vjm.agent.connection import PIECES, Channel

if TYPE_CHECKING:
    import socket
    import ssl

    from koala_adapter.vjm.agent.node import Settings


class Flood:
    """A TLS connection on which there is always more, ``ahead`` records of which have left the socket already."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.reads = 0

    def recv(self, _size: int) -> bytes:
        """Return a piece of a long line."""
        self.reads += 1
        return b"x"

    def pending(self) -> int:
        """Return how much the selector does not know of."""
        return max(0, self.ahead - self.reads)


@pytest.mark.parametrize(("ahead", "reads"), [(0, PIECES), (PIECES + 5, PIECES + 5)])
def test_a_long_order_is_read_in_turns(ahead: int, reads: int) -> None:
    """A turn ends after some pieces, so that heartbeats go out meanwhile, but not before what TLS holds is read."""
    heard: list[None] = []
    channel = Channel(
        cast("Settings", None),
        selectors.DefaultSelector(),
        opened=lambda: None,
        heard=lambda: heard.append(None),
        received=lambda _line: None,
        closed=lambda _reason: None,
    )
    flood = Flood(ahead)
    channel.open = True
    channel._socket = cast("socket.socket", flood)
    channel._tls = cast("ssl.SSLSocket", flood)
    channel._transfer(channel._socket)
    assert flood.reads == len(heard) == reads

# SPDX-License-Identifier: Apache-2.0
"""The agent's side of the connection: whatever comes in, other things are looked after in between."""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from koala_adapter.vjm.agent.connection import PIECES, STALE, Channel
from koala_adapter.vjm.certificate import load_or_create

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from koala_adapter.vjm.agent.node import Settings


class Flood:
    """A TLS connection on which there is always more, ``ahead`` records of which have left the socket already."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.reads = 0

    def recv(self, _size: int) -> bytes:
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


def test_a_resolver_that_is_away_stops_nobody_who_was_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Addresses that were good once are used again; after some failures they are looked up, and kept if that fails."""
    certificate = load_or_create(tmp_path / "c")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate.path)
    listening = socket.create_server(("127.0.0.1", 0))
    lookups: list[str] = []
    found = socket.getaddrinfo("127.0.0.1", listening.getsockname()[1], 0, socket.SOCK_STREAM)

    def answering(*_: object) -> object:
        lookups.append("answered")
        return found

    def away(*_: object) -> object:
        lookups.append("away")
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    selector = selectors.DefaultSelector()
    reasons: list[str] = []
    settings = SimpleNamespace(host="center", port=1, fingerprint=certificate.fingerprint)
    channel = Channel(
        cast("Settings", settings),
        selector,
        opened=lambda: None,
        heard=lambda: None,
        received=lambda _line: None,
        closed=reasons.append,
    )

    seen_open = threading.Event()

    def serve_one() -> None:
        connection, _ = listening.accept()
        with server.wrap_socket(connection, server_side=True):
            seen_open.wait(60)  # closed at once, the channel could open and close within one turn of the selector

    def until(reached: Callable[[], bool]) -> None:
        while not reached():
            for key, mask in selector.select(60):
                key.data(mask)

    monkeypatch.setattr(socket, "getaddrinfo", answering)
    thread = threading.Thread(target=serve_one)
    thread.start()
    channel.dial()
    until(lambda: channel.open)
    seen_open.set()
    until(lambda: len(reasons) == 1)
    thread.join()
    listening.close()
    monkeypatch.setattr(socket, "getaddrinfo", away)
    for number in range(STALE + 1):
        channel.dial()
        until(lambda number=number: len(reasons) == number + 2)  # type: ignore[misc] # the number of this turn
    assert lookups == ["answered", "away"]
    assert "Connection refused" in reasons[-1]

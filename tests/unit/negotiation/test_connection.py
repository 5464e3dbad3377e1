# SPDX-License-Identifier: Apache-2.0
"""Connections of programs: blocking sockets, deadlines, and peers that go or err."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from koala_adapter import negotiation as nt
from tests.unit.negotiation.templates import request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def stranger() -> Iterator[tuple[nt.Connection, socket.socket]]:
    """Return a connection and the bare socket at its other end."""
    here, there = socket.socketpair()
    connection = nt.Connection(here)
    with there:
        yield connection, there
    connection.close()


def test_two_applications_talk_over_sockets() -> None:
    """The published calls: accept, connect, send, recv, decide, close; to an agreement that is consumed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        heard = []

        def manager() -> None:
            rms = nt.accept(listening, nt.Endpoint("RMS"))
            while (event := rms.recv(10)) is not None and event.kind != "closed":
                heard.append(event.kind)
                assert event.template is not None
                if event.kind == "offer":
                    rms.send(nt.decide(event.template, {"CPU": 6}))
                else:
                    rms.send(nt.committed(event.template))
                    rms.send(nt.consumed(event.template))
            rms.close()

        thread = threading.Thread(target=manager)
        thread.start()
        connection = nt.connect("127.0.0.1", listening.getsockname()[1])
        wish = nt.template("1", "APPLICATION", "node7", "head", [nt.resource("CPU", 14)], direction="grow")
        connection.send(wish)
        offer = connection.recv(10)
        assert offer is not None
        assert offer.template is not None
        assert (offer.kind, offer.template.quantity("CPU")) == ("offer", 6)
        connection.send(nt.accepted(offer.template))
        kinds = [event.kind for event in (connection.recv(10), connection.recv(10)) if event]
        connection.close()
        thread.join(10)
    # The offer was RMS' last: it is the one that commits, and its report says that the processors are there.
    assert kinds == ["agreed", "consumed"]
    assert heard == ["offer", "accepted"]


def test_silence_ends_at_the_deadline(stranger: tuple[nt.Connection, socket.socket]) -> None:
    connection, _ = stranger
    offer = request()
    connection.send(offer._replace(answer_within=0.05))
    assert connection.recv(0) is None
    event = connection.recv(10)
    assert event is not None
    assert (event.kind, event.state, event.reason) == ("ended", "expired", "no answer in time")


@pytest.mark.parametrize("data", [b"", b"99999999\n", b"00000005\n<NT/>", b"\x00" * 100])
def test_a_peer_that_goes_or_errs_ends_the_connection(
    stranger: tuple[nt.Connection, socket.socket], data: bytes
) -> None:
    """What is open is lost, and the program is told; garbage is answered before."""
    connection, peer = stranger
    connection.send(request())
    peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)
    kinds = []
    while (event := connection.recv(10)) is not None:
        kinds.append(event.kind)
        if event.kind == "closed":
            break
    assert kinds == [*(["unreadable"] if data else []), "ended", "closed"]
    if data:
        answer = b"".join(iter(lambda: peer.recv(65536), b""))
        assert b"NT_ERROR" in answer


def test_small_templates_are_sent_at_once() -> None:
    """On both sides of a connection by TCP, also of one that the program has made or accepted itself."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as made,
    ):
        for end in (nt.accept(listening), nt.Connection(made)):
            with socket.socket(fileno=socket.dup(end.fileno())) as stream:
                assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            end.close()


def test_a_unix_socket(tmp_path: Path) -> None:
    """It is connected to by its path; where nothing listens, nothing stays open."""
    path = tmp_path / "nt.sock"
    with pytest.raises(OSError, match="No such file"):
        nt.connect_unix(str(path))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        connection = nt.connect_unix(str(path))
        peer = nt.accept(listening, nt.Endpoint("RMS"))
        connection.send(request())
        event = peer.recv(60)
        assert event is not None
        assert event.kind == "offer"
        peer.close()
        connection.close()

# SPDX-License-Identifier: Apache-2.0
"""The control center towards agents: its certificate, what strangers cost it, connections, and output files."""

from __future__ import annotations

import hashlib
import os
import selectors
import socket
import ssl
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import ConfigurationError
from koala_adapter.vjm.agent.connection import PIECES, STALE, Channel
from koala_adapter.vjm.agent.node import Settings
from koala_adapter.vjm.certificate import digest, load_or_create, matches, new_token, server_context
from koala_adapter.vjm.output import append

# The control center's certificate: made once, private, and good for what agents compare.


def shown_certificate(context: ssl.SSLContext) -> tuple[bytes | None, str | None]:
    """Shake hands in memory and return the certificate that a client sees, and the version of TLS."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_mode = ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server)
    for _ in range(3):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client.getpeercert(binary_form=True), client.version()


def test_clients_see_what_the_fingerprint_says(tmp_path: Path) -> None:
    """The fingerprint is the SHA-256 of what a client is shown, over TLS 1.3."""
    certificate = load_or_create(tmp_path / "state")
    shown, version = shown_certificate(server_context(certificate))
    assert shown is not None
    assert hashlib.sha256(shown).hexdigest() == certificate.fingerprint
    assert version == "TLSv1.3"


def test_services_that_start_at_once_agree(tmp_path: Path) -> None:
    """Nobody replaces what another has just put there."""
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(load_or_create, [tmp_path / "state"] * 16))
    assert len(found) == 1
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["control-center.pem"]


def test_key_is_private(tmp_path: Path) -> None:
    """File 0600, directory 0700, whatever the umask; one that others can read is refused, as it may be known."""
    before = os.umask(0)
    try:
        certificate = load_or_create(tmp_path / "state")
    finally:
        os.umask(before)
    assert certificate.path.stat().st_mode & 0o777 == 0o600
    assert certificate.path.parent.stat().st_mode & 0o777 == 0o700
    certificate.path.chmod(0o644)
    with pytest.raises(ConfigurationError, match=r"control-center\.pem.*remove it"):
        load_or_create(tmp_path / "state")


@pytest.mark.parametrize("text", ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    certificate = load_or_create(tmp_path)
    certificate.path.write_text(text)
    with pytest.raises(ConfigurationError, match="control-center"):
        load_or_create(tmp_path)


def test_tokens_differ_and_match_only_themselves() -> None:
    """A token matches its own digest and no other, and the digest does not contain it."""
    one, other = new_token(), new_token()
    assert one != other
    assert matches(one, digest(one))
    assert not matches(other, digest(one))
    assert not matches(digest(one), digest(one))
    assert one not in digest(one)


# The agent's side of the connection: whatever comes in, other things are looked after in between.


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
    owner = SimpleNamespace(in_contact=lambda: heard.append(None))
    channel = Channel(cast("Settings", None), selectors.DefaultSelector(), owner)
    flood = Flood(ahead)
    channel.open = True
    channel._socket = cast("socket.socket", flood)
    channel._tls = cast("ssl.SSLSocket", flood)
    channel._transfer(channel._socket)
    assert flood.reads == len(heard) == reads


@contextmanager
def center_that_serves(
    directory: Path, serve: Callable[[ssl.SSLSocket], object], *, reset: bool = False
) -> Iterator[tuple[str, int]]:
    """Serve one connection by TLS; give fingerprint and port. ``reset``: the connection ends with a reset."""
    certificate = load_or_create(directory)

    def accept() -> None:
        connection, _ = listening.accept()
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with server_context(certificate).wrap_socket(connection, server_side=True) as tls:
            serve(tls)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=accept)
        thread.start()
        yield certificate.fingerprint, listening.getsockname()[1]
        thread.join()


class Dialler:
    """An agent's loop with a channel, and the reasons for which that was closed."""

    def __init__(self, fingerprint: str, port: int, first: bytes = b"") -> None:
        """``first``: what is sent when the channel is open."""
        settings = SimpleNamespace(host="127.0.0.1", port=port, fingerprint=fingerprint)
        self.reasons: list[str] = []
        owner = SimpleNamespace(in_contact=lambda: None, closed=self.reasons.append)
        self.selector = selectors.DefaultSelector()
        self.channel = Channel(cast("Settings", settings), self.selector, owner)
        owner.opened = lambda: self.channel.send({}, first)

    def run_until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            for key, mask in self.selector.select(60):
                key.data(mask)
            self.channel.flush()


def test_a_connection_may_break_while_much_is_sent(tmp_path: Path) -> None:
    """The agent is told of it, and goes on."""
    with center_that_serves(tmp_path, lambda tls: tls.recv(1), reset=True) as center:
        agent = Dialler(*center, first=bytes(2**24))
        agent.channel.dial()
        agent.run_until(lambda: bool(agent.reasons))
    assert agent.channel.queued == 0


def test_a_resolver_that_is_away_stops_nobody_who_was_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Addresses that were good once are used again; after some failures they are looked up, and kept if that fails."""
    lookups: list[str] = []
    seen_open = threading.Event()
    # Closed at once, the channel could open and close within one turn of the selector.
    with center_that_serves(tmp_path, lambda _tls: seen_open.wait(60)) as center:
        agent = Dialler(*center)
        found = socket.getaddrinfo("127.0.0.1", center[1], 0, socket.SOCK_STREAM)

        def answering(*_: object) -> object:
            lookups.append("answered")
            return found

        monkeypatch.setattr(socket, "getaddrinfo", answering)
        agent.channel.dial()
        agent.run_until(lambda: agent.channel.open)
        seen_open.set()
        agent.run_until(lambda: bool(agent.reasons))

    def away(*_: object) -> object:
        lookups.append("away")
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", away)
    for number in range(STALE + 1):
        agent.channel.dial()
        agent.run_until(lambda number=number: len(agent.reasons) == number + 2)  # type: ignore[misc] # of this turn
    assert lookups == ["answered", "away"]
    assert "Connection refused" in agent.reasons[-1]


# Output files: each byte once and in order, whatever is sent twice; private.

STREAM = bytes(range(256)) * 2


@given(pieces=st.lists(st.tuples(st.integers(0, 511), st.integers(0, 120)), max_size=20))
def test_any_overlap_gives_the_stream_once(pieces: list[tuple[int, int]]) -> None:
    """What is there is never written again, and what lies before a piece reads as NUL bytes."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rank.out"
        there = b""
        for offset, length in pieces:
            data = STREAM[offset : offset + length]
            there = there.ljust(offset, b"\0")
            there += data[len(there) - offset :]
            assert append(path, offset, data) == len(there)
            assert path.read_bytes() == there


def test_files_are_private(tmp_path: Path) -> None:
    """Files 0600, every new directory 0700, whatever the umask."""
    before = os.umask(0)
    try:
        append(tmp_path / "job" / "component" / "0.out", 0, b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "job" / "component" / "0.out").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "job" / "component").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "job").stat().st_mode & 0o777 == 0o700


def test_nothing_is_written_through_a_link_or_into_a_fifo(tmp_path: Path) -> None:
    """What somebody put in the place of the file is left alone, and is an error, not a wait."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "link.out").symlink_to(victim)
    os.mkfifo(tmp_path / "fifo.out")
    for name in ("link.out", "fifo.out"):
        with pytest.raises(OSError):  # noqa: PT011 - which error depends on what is there
            append(tmp_path / name, 0, b"x")
    assert victim.read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.out"
    path.touch()
    os.chown(path, 65534, 65534)
    with pytest.raises(PermissionError, match="not a plain file of our own"):
        append(path, 0, b"x")


def test_a_file_that_was_emptied_can_go_on(tmp_path: Path) -> None:
    """The lost part reads as NUL bytes, the rest is in its place; what is there is never cut."""
    path = tmp_path / "x.out"
    append(path, 0, b"12345")
    path.unlink()
    assert append(path, 5, b"678") == 8
    assert path.read_bytes() == b"\0\0\0\0\x00678"

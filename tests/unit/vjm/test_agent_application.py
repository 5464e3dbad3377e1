# SPDX-License-Identifier: Apache-2.0
"""The agent's socket for the process of a task: whole frames both ways, bounds, and what breaks them."""

from __future__ import annotations

import os
import selectors
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from koala_adapter.vjm.agent import application
from koala_adapter.vjm.agent.application import ApplicationSocket
from koala_adapter.vjm.agent.node import Timers


def frame(payload: bytes) -> bytes:
    return b"%08d\n" % len(payload) + payload


class Node:
    """An agent's loop, with a socket for one task."""

    def __init__(self, directory: Path) -> None:
        self.selector = selectors.DefaultSelector()
        self.timers = Timers()
        self.socket = ApplicationSocket(self.selector, self.timers, str(directory))
        self._place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self.clients: list[socket.socket] = []

    @property
    def address(self) -> str:
        return f"/proc/self/fd/{self._place}/{Path(self.socket.path).name}"

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.connect(self.address)
        client.settimeout(10)
        self.clients.append(client)
        self.turn()
        return client

    def turn(self, times: int = 4) -> None:
        for _ in range(times):
            self.timers.run()
            for key, mask in self.selector.select(0.02):
                key.data(mask)

    def said(self) -> list[bytes]:
        self.turn()
        found = []
        while self.socket.said:
            found.append(self.socket.next())
        return found

    def close(self) -> None:
        self.socket.close()
        self.selector.close()
        os.close(self._place)
        for client in self.clients:
            client.close()


@pytest.fixture
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    directory = tmp_path / getattr(request, "param", "private")
    directory.mkdir(mode=0o700)
    one = Node(directory)
    try:
        yield one
    finally:
        one.close()


@pytest.mark.parametrize("node", ["short", "long" * 40], indirect=True)
def test_frames_go_both_ways_in_whatever_pieces_they_come(node: Node) -> None:
    """However long the path is; the mode of the socket lets nobody else connect, whatever the directory's."""
    assert stat.S_IMODE(Path(node.socket.path).stat().st_mode) == 0o600
    client = node.connect()
    both = frame(b"hello version=1") + frame(b"<NT/>")
    for start in range(0, len(both), 7):
        client.sendall(both[start : start + 7])
        node.turn(1)
    assert node.said() == [frame(b"hello version=1"), frame(b"<NT/>")]
    node.socket.tell(frame(b"who"))
    node.turn()
    assert client.recv(100) == frame(b"who")


@pytest.mark.parametrize(
    ("hello", "told"), [(b"hello version=1 ends=1 away=1", True), (b"hello version=1 ends=1", False)]
)
def test_a_process_hears_that_koala_is_away_if_it_knows_the_word(node: Node, hello: bytes, *, told: bool) -> None:
    """A library of an earlier version would tell people that it cannot follow it."""
    client = node.connect()
    node.socket.out_of_contact()
    client.sendall(frame(hello))
    node.turn()
    node.socket.out_of_contact()
    node.socket.tell(frame(b"who"))
    node.turn()
    assert client.recv(100) == (frame(b"away") if told else b"") + frame(b"who")


def test_one_process_speaks_at_a_time(node: Node) -> None:
    """A second connection is told why it is closed, and the first goes on; when that ends, another may come."""
    first, second = node.connect(), node.connect()
    node.turn()
    assert b"fail text=another" in second.recv(200)
    assert second.recv(200) == b""
    first.sendall(frame(b"a"))
    assert node.said() == [frame(b"a")]
    first.close()
    node.turn()
    third = node.connect()
    third.sendall(frame(b"b"))
    assert node.said() == [frame(b"b")]


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n", b"00000000\n", b"00065537\n", b"99999999\n", b"123\n45678", b"0000001 \nx"]
)
def test_what_is_no_frame_ends_the_connection_with_the_reason(node: Node, garbage: bytes) -> None:
    """Nothing of it is handed on, and nothing is kept for a size that is claimed."""
    client = node.connect()
    client.sendall(garbage)
    node.turn()
    assert b"fail text=a%20frame" in client.recv(300)
    assert node.said() == []


def test_a_process_that_is_not_read_waits(node: Node) -> None:
    """While the control center takes nothing, only so much is kept; all of it arrives in the end."""
    client = node.connect()
    client.settimeout(0)
    big = frame(b"x" * 60_000)
    left, tries = bytearray(big * 60), 0
    while left and tries < 5:
        try:
            del left[: client.send(left)]
        except BlockingIOError:
            tries += 1
            node.turn(1)
    assert len(left) > 30 * len(big)
    arrived = node.said()
    while left:
        del left[: client.send(left)]
        arrived += node.said()
    assert arrived + node.said() == [big] * 60


def test_a_flood_ends_the_connection(node: Node) -> None:
    """Many frames in a short time are more than a program has to say."""
    client = node.connect()
    one, heard = frame(b"x"), 0
    for _ in range(application.MOST // 1000 + 2):
        try:
            client.sendall(one * 1000)
        except OSError:
            break
        heard += len(node.said())
    assert heard <= application.MOST
    assert b"more%20than" in client.recv(300)


def test_who_does_not_read_is_cut_off(node: Node) -> None:
    """What waits for a process is bounded."""
    node.connect()
    for _ in range(40):
        node.socket.tell(frame(b"x" * 65_000))
    node.turn()
    another = node.connect()
    another.sendall(frame(b"a"))
    assert node.said() == [frame(b"a")]


def test_another_user_is_turned_away(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever got past the modes is not read."""
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    client = node.connect()
    assert client.recv(10) == b""
    assert node.said() == []


def test_the_last_words_of_a_process_are_kept(node: Node) -> None:
    client = node.connect()
    client.sendall(frame(b"wrong") + frame(b"last") + b"0000")
    client.close()
    unseen = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with unseen:
        unseen.connect(node.address)
        unseen.sendall(frame(b"unseen"))
    node.socket.finish()
    assert [node.socket.next() for _ in range(3)] == [frame(b"wrong"), frame(b"last"), frame(b"unseen")]
    assert not node.socket.said


def test_what_it_said_is_kept_when_it_cannot_be_told_anything_more(node: Node) -> None:
    """A frame for a process that has ended finds nobody."""
    client = node.connect()
    client.sendall(frame(b"wrong"))
    client.close()
    node.socket.tell(frame(b"who"))
    assert node.said() == [frame(b"wrong")]


def test_last_words_go_beyond_what_may_wait(node: Node) -> None:
    """No process is left that could wait with them."""
    client = node.connect()
    big = frame(b"x" * 60_000)
    for _ in range(application.SAID // len(big) + 1):
        client.sendall(big)
        node.turn(2)
    client.sendall(big + frame(b"last"))
    client.close()
    node.socket.finish()
    found = []
    while node.socket.said:
        found.append(node.socket.next())
    assert found[-2:] == [big, frame(b"last")]

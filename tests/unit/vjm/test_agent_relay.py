# SPDX-License-Identifier: Apache-2.0
"""Relayed connections of the agent, as far as they need no control center."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from koala_adapter.vjm.agent.handing import NAME, HandedSocket, hand_over, task_directory
from koala_adapter.vjm.agent.node import Timers
from koala_adapter.vjm.agent.relay import Dialling, Relay
from koala_adapter.vjm.agent.sockets import process_at

LIVENESS = 60.0
BROADCAST = ("255.255.255.255", 9)
"""An address to which connecting is refused at once: connect(2), EACCES or ENETUNREACH."""


def test_a_connection_that_is_refused_at_once_is_not_ended_later() -> None:
    """What asked for it was told by an exception, and knows it no more."""
    with socket.socket() as tried:
        refused = tried.connect_ex(BROADCAST)
    timers, channel = Timers(), SimpleNamespace(peer=(socket.AF_INET, BROADCAST))
    ended: list[str] = []
    with selectors.DefaultSelector() as selector:
        relay = cast("Relay", SimpleNamespace(channel=channel, selector=selector, timers=timers))
        with pytest.raises(OSError, match=os.strerror(refused)):
            Dialling(relay, {}, lambda _framed: ended.append("joined"), lambda: ended.append("failed"))
    assert timers.wait() is None
    assert ended == []


def test_a_connection_is_handed_over_whatever_else_comes(tmp_path: Path) -> None:
    """What processes of the task write to the socket by themselves ends neither the agent nor its socket."""
    taken: list[tuple[int, bytes]] = []

    def take(said: dict[str, Any], connection: socket.socket) -> None:
        with connection:
            taken.append((int(said["port"]), connection.recv(9)))

    with selectors.DefaultSelector() as selector, closing(HandedSocket(selector, str(tmp_path), take)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(b"hello")
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as writer:
                writer.sendto(b"no JSON and no connection", str(tmp_path / NAME))
            assert hand_over(theirs, {"port": "none"}, str(tmp_path))
            assert hand_over(theirs, {"port": 7}, str(tmp_path))
            while not taken:
                for key, mask in selector.select(LIVENESS):
                    key.data(mask)
    assert taken == [(7, b"hello")]
    assert not hand_over(ours, {}, str(tmp_path / "none"))


def test_the_task_of_a_socket_is_found(tmp_path: Path) -> None:
    """By the process that has it open, or by the leader of its session where that has no environment."""
    for cleared in ((), ("env", "-i")):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            text = f"import socket, time; s = socket.create_connection(('127.0.0.1', {port})); time.sleep(600)"
            process = subprocess.Popen(
                ["sh", "-c", '"$@" & wait', "", *cleared, sys.executable, "-c", text],
                env={"KOALA_STDOUT": str(tmp_path / "out")}, start_new_session=True,
            )  # fmt: skip
            try:
                connection, _ = listener.accept()
                with connection:
                    found = process_at(connection)
                    assert found is not None
                    assert found[0] == os.geteuid()
                    directory = task_directory(found[1])
                    assert directory is not None
                    assert Path(directory).samefile(tmp_path)
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert task_directory(0) is None

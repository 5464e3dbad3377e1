# SPDX-License-Identifier: Apache-2.0
"""Relayed connections of the agent, as far as they need no control center."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from koala_adapter.vjm.agent import relay
from koala_adapter.vjm.agent.handing import NAME, HandedSocket, hand_over, task_directory
from koala_adapter.vjm.agent.node import Timers
from koala_adapter.vjm.agent.relay import Dialling, Plain, Relay
from koala_adapter.vjm.agent.sockets import is_connected, owners_of, process_at, reset

if TYPE_CHECKING:
    from koala_adapter.vjm.agent.connection import Channel
    from koala_adapter.vjm.agent.node import Settings

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
        made = cast("Relay", SimpleNamespace(channel=channel, selector=selector, timers=timers))
        with pytest.raises(OSError, match=os.strerror(refused)):
            Dialling(made, {}, lambda _framed: ended.append("joined"), lambda: ended.append("failed"))
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
            once_more = partial(hand_over, theirs, {"port": "none"}, str(tmp_path))
            with pytest.raises(BlockingIOError):
                all(once_more() for _ in range(10_000))
            while not taken:
                for key, mask in selector.select(LIVENESS):
                    key.data(mask)
    assert taken == [(7, b"hello")]
    assert not hand_over(ours, {}, str(tmp_path / "none"))


@pytest.mark.parametrize("command", ["exec {}", "env -i {} & wait", "exec env -i {}"])
def test_the_task_of_a_socket_is_found(tmp_path: Path, command: str) -> None:
    """By the process that has it open, by the leader of its session, or by the agent, as the test is here."""
    (tmp_path / NAME).touch()
    with (tmp_path / "out").open("w"), socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        text = f"import socket, time; s = socket.create_connection(('127.0.0.1', {port})); time.sleep(600)"
        process = subprocess.Popen(
            ["sh", "-c", command.format('"$0" -c "$1"'), sys.executable, text],
            env={"KOALA_STDOUT": str(tmp_path / "out"), "PATH": os.defpath}, start_new_session=True,
        )  # fmt: skip
        try:
            connection, _ = listener.accept()
            with connection:
                found = process_at(connection)
                assert found is not None
                directory = task_directory(owners_of({found[1]})[found[1]])
                assert directory is not None
                assert Path(directory).samefile(tmp_path)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert owners_of({0}) == {}
    assert task_directory(process.pid) is None


def tcp_pair(address: str = "127.0.0.1") -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a connection."""
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as listener:
        one = socket.create_connection(listener.getsockname()[:2])
        other, _ = listener.accept()
    return one, other


def relay_of(selector: selectors.BaseSelector, timers: Timers) -> Relay:
    """Return the relay of an agent that is out of contact with its control center."""
    settings, channel = SimpleNamespace(batch="b", index=1, token="t"), SimpleNamespace(open=False)
    return Relay(cast("Settings", settings), selector, timers, cast("Channel", channel), "session")


def test_what_a_task_that_runs_has_sent_is_given_up_with_the_last_one_of_its_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who has closed a connection may be a task that runs: the end of another one leaves its bytes on their way."""
    monkeypatch.setattr(relay, "PASSING_ON", 0.0)
    timers = Timers()
    process, ours = tcp_pair()
    towards_peer, peer = tcp_pair()
    with selectors.DefaultSelector() as selector, process, ours, towards_peer, peer:
        made = relay_of(selector, timers)
        for task in ("1:0", "1:1"):
            made.expect(task, [], told=False)
        for one in (process, ours, towards_peer):
            one.setblocking(False)  # noqa: FBT003 - the library's own way
        towards_peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with suppress(BlockingIOError):
            while process.send(bytes(65536)):
                pass
        process.close()
        made._carry("1", Plain(ours), Plain(towards_peer))
        made.end("1:0")
        timers.run()
        assert is_connected(peer)
        made.end("1:1")
        timers.run()
        assert not is_connected(peer)


def test_an_agent_that_leaves_ends_connections_of_others_with_a_reset() -> None:
    """Their processes would take it for a good end."""
    process, ours = tcp_pair()
    towards_peer, peer = tcp_pair()
    with selectors.DefaultSelector() as selector, process, ours, towards_peer, peer:
        for one in (ours, towards_peer):
            one.setblocking(False)  # noqa: FBT003 - the library's own way
        made = relay_of(selector, Timers())
        made._carry("1", Plain(ours), Plain(towards_peer))
        made.finish()
        for one in (process, peer):
            with pytest.raises(ConnectionResetError):
                one.recv(1)


def test_a_tunnel_that_is_asked_for_again_is_made_once() -> None:
    """The control center asks again after an outage, as it cannot know what had arrived."""
    with selectors.DefaultSelector() as selector, socket.create_server(("127.0.0.1", 0)) as server:
        made = relay_of(selector, Timers())
        made.channel = cast("Channel", SimpleNamespace(open=True, peer=(socket.AF_INET, server.getsockname())))
        port = server.getsockname()[1]
        made._told["1:0"] = {port: "127.0.0.1"}
        for tunnel in ("one", "one", "two"):
            made.tunnel({"task": "1:0", "tunnel": tunnel, "port": port})
        assert sorted(held.tunnel for held in made._connections.values()) == ["one", "two"]
        made.finish()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_process_at_the_other_end_is_known(address: str) -> None:
    one, other = tcp_pair(address)
    with other:
        with one:
            assert process_at(other) == (os.geteuid(), os.fstat(one.fileno()).st_ino)
        assert process_at(other) is None
        assert is_connected(other)
    one, other = tcp_pair(address)
    with other:
        reset(one)
        one.close()
        assert process_at(other) is None
        assert not is_connected(other)

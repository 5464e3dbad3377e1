# SPDX-License-Identifier: Apache-2.0
"""Relayed connections of the agent, as far as they need no control center."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from koala_adapter.vjm.agent import attempts, relay
from koala_adapter.vjm.agent.attempts import Attempt, Attempts, answered, dropping_listener
from koala_adapter.vjm.agent.node import Timers
from koala_adapter.vjm.agent.processes import descendants
from koala_adapter.vjm.agent.relay import Dialling, Plain, Relay
from koala_adapter.vjm.agent.sockets import in_hexadecimal, is_connected, process_at, reset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.vjm.agent.connection import Channel
    from koala_adapter.vjm.agent.node import Settings

LIVENESS = 60.0
PLACE, OTHER = (f"127.{os.getpid() // 256 % 200 + 10}.{os.getpid() % 256}.{last}" for last in (11, 12))
"""Addresses of this process of pytest alone: to others of this user, bind(2) may give the same port."""
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


def seen(looking: Attempts, listener: socket.socket) -> Attempt:
    """Return the only attempt to connect to a listener, once there is one."""
    ends = time.monotonic() + LIVENESS
    while not (found := looking.look([listener.getsockname()])):
        assert time.monotonic() < ends
        time.sleep(0.01)
    (attempt,) = found
    return attempt


@pytest.mark.parametrize("prefix", ["", "::ffff:"])
def test_a_process_that_sends_and_ends_at_once_is_known(prefix: str) -> None:
    """It waits in connect(2) until it is answered, by one of those that listen there; then all that it sent comes."""
    looking, text = Attempts(), "import socket, sys; socket.create_connection(sys.argv[1:]).sendall(bytes(100_000))"
    with dropping_listener(PLACE, 0) as one, dropping_listener(*one.getsockname()):
        command = [sys.executable, "-c", text, prefix + PLACE, str(one.getsockname()[1])]
        with subprocess.Popen(command) as process:
            found = seen(looking, one)
            assert process.poll() is None
            ((_, connection),) = answered([found])
            with connection:
                assert answered([found]) == []
                assert process.wait(LIVENESS) == 0
                assert process_at(connection) is None
                connection.setblocking(True)  # noqa: FBT003 - the library's own way
                with connection.makefile("rb") as stream:
                    assert len(stream.read()) == 100_000


def test_processes_of_a_task_that_hide_are_found() -> None:
    """They have left its session, and have no environment; their agent is an ancestor."""
    with subprocess.Popen(["sh", "-c", "env -i setsid cat; true"], stdin=subprocess.PIPE) as shell:
        try:
            ends = time.monotonic() + LIVENESS
            while not any(Path(f"/proc/{pid}/comm").read_text() == "cat\n" for pid in descendants(os.getpid())):
                assert time.monotonic() < ends
        finally:
            shell.kill()


def test_an_attempt_is_answered_for_its_own_process_alone() -> None:
    """Another process may have its port by then; or none has, if it has given up."""
    with dropping_listener(PLACE, 0) as listener:
        with socket.socket() as tried:
            tried.setblocking(False)  # noqa: FBT003 - the library's own way
            tried.bind((OTHER, 0))
            tried.connect_ex(listener.getsockname())
            found = seen(Attempts(), listener)
            assert found.process == (os.geteuid(), os.fstat(tried.fileno()).st_ino)
            end = tried.getsockname()
            assert answered([Attempt(listener.getsockname(), end, (os.geteuid(), found.inode + 1))]) == []
        assert answered([found]) == []
        with socket.create_server(end) as other:  # connects what comes before its process looks whose it is
            assert answered([found]) == []
            connection, _ = other.accept()
            with connection, pytest.raises(ConnectionResetError):
                connection.recv(1)


def test_sockets_are_looked_at_while_anything_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or when the kernel has dropped something; where it does not count that, always."""
    looks: list[str] = []
    sockets = [("02", "0100007F", 40000, in_hexadecimal((PLACE, 9)), os.geteuid(), 5)]
    counter: list[bytes | None] = [b"7"]
    monkeypatch.setattr(attempts, "count_of", lambda _name: counter[0])

    def look_at_sockets() -> Iterator[tuple[str, str, int, str, int, int]]:
        looks.append("look")
        return iter(sockets)

    monkeypatch.setattr(attempts, "tcp_sockets", look_at_sockets)
    looking = Attempts()
    assert [one.inode for one in looking.look([(PLACE, 9)])] == [5]
    sockets.clear()
    for _ in range(3):
        assert looking.look([(PLACE, 9)]) == []
    assert len(looks) == 2
    for count in (b"8", None, None):
        counter[0] = count
        looking.look([])
    assert len(looks) == 5


def test_looks_take_half_of_a_processor_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that is done about what they find: others may open many sockets, or have many processes."""
    now = 100.0
    monkeypatch.setattr(attempts, "clock", lambda: now)
    looking = Attempts()
    looking.look([])
    assert looking.pause == attempts.PAUSE
    now += 0.5
    assert looking.pause == 0.5


def test_a_node_whose_packets_live_longest_is_told_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing would be dropped there."""
    (tmp_path / "ttl").write_text("255\n")
    monkeypatch.setattr(attempts, "DEFAULT_TTL", str(tmp_path / "ttl"))
    with pytest.raises(OSError, match=r"net\.ipv4\.ip_default_ttl is 255"):
        dropping_listener(PLACE, 0)


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

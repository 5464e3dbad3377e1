# SPDX-License-Identifier: Apache-2.0
"""Relayed connections: real agents and a real control center, with processes that reach each other by them alone."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from koala_adapter.model import JobId, PlaceholderId
from koala_adapter.vjm import tunnels
from koala_adapter.vjm.channel import (
    Forward,
    Forwarded,
    Launch,
    Listening,
    Probed,
    ProbeListen,
    ProbeReach,
    Probing,
    Release,
    TaskStarted,
    TunnelAsked,
)
from koala_adapter.vjm.listener import AgentRegistered, Route
from tests.real.agents import LIVENESS, Site, placeholder

PEER, HOST = "127.77.0.3", "127.77.0.0"
SERVER = """
import socket, struct
listening = socket.create_server(("127.0.0.1", 0))
while True:
    connection, _ = listening.accept()
    data = b""
    while piece := connection.recv(65536):
        data += piece
        if data == b"reset me":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            break
    else:
        connection.sendall(data[::-1])
    connection.close()
"""
"""Answers all that it was sent in reverse, once the other direction has ended."""


class RelayingSite(Site):
    """Lets each agent connect to the second one's task, and to one port of this host."""

    host_port = 0

    async def route(self, placeholder: PlaceholderId, asked: TunnelAsked) -> Route | None:
        """Return the port that is asked for, unless it is 9: that is not allowed."""
        del placeholder
        if asked.port == 9:
            return None
        if asked.peer == -1:
            return Route(job_id=JobId("1"), port=self.host_port)
        return Route(job_id=JobId("1"), port=asked.port, placeholder=SECOND, task="1:1")


SECOND = placeholder(2)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RelayingSite]:
    made = RelayingSite(tmp_path)
    yield made
    made.close()


def connected(address: str, port: int) -> socket.socket:
    """Return a connection of this test's own user, as a rank on the node of the first agent has it."""
    connection = socket.create_connection((address, port), timeout=LIVENESS)
    connection.settimeout(LIVENESS)
    return connection


def answer(address: str, port: int, data: bytes) -> bytes:
    """Send data and the end of it; return all that comes back."""
    with closing(connected(address, port)) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        while piece := connection.recv(65536):
            found += piece
        return found


def _is_of(one: PlaceholderId, event: AgentRegistered) -> bool:
    return event.placeholder == one


async def listening(site: RelayingSite) -> int:
    """Start two agents, a server in the second one, and have the first one listen for it; return its port."""
    site.start_agent(1)
    site.start_agent(2)
    for one in (placeholder(1), SECOND):
        await site.wait_for(AgentRegistered, partial(_is_of, one))
    server = Launch(task="1:1", argv=(sys.executable, "-c", SERVER), relayed=True)
    assert site.center.tell(SECOND, server)
    told = await site.wait_for(Listening, lambda event: bool(event.ports))
    assert told.task == "1:1"
    (port,) = told.ports
    forwards = (
        Forward(job="1", number=1, peer=1, address=PEER, ports=(port, 9)),
        Forward(job="1", number=2, peer=-1, address=HOST, ports=(site.host_port or 1024,)),
    )
    waits = Launch(task="1:0", argv=("sleep", "600"), relayed=True, forwards=forwards)
    assert site.center.tell(placeholder(1), waits)
    await site.wait_for(TaskStarted, lambda event: event.task == "1:0")
    done = await site.wait_for(Forwarded, lambda event: event.number == 2)
    assert "9 on" in done.fault or os.getuid() == 0
    return port


async def test_bytes_and_ends_are_carried(site: RelayingSite) -> None:
    """Megabytes go both ways at once, the end of one direction alone is seen, and a reset stays a reset."""
    async with site.serving():
        port = await listening(site)
        data = os.urandom(3_000_000)
        assert await to_thread.run_sync(answer, PEER, port, data) == data[::-1]
        with pytest.raises(ConnectionResetError):
            await to_thread.run_sync(answer, PEER, port, b"reset me")
        async with anyio.create_task_group() as tasks:  # each has its own connection to the control center
            for number in range(20):
                tasks.start_soon(check_answer, port, b"%d" % number)


async def check_answer(port: int, data: bytes) -> None:
    assert await to_thread.run_sync(answer, PEER, port, data) == data[::-1]


async def test_what_is_not_allowed_or_not_there_is_reset(site: RelayingSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control center says no; or the process listens no more, and soon the first agent may not know that yet."""
    monkeypatch.setattr(tunnels, "DIALLING", 2.0)
    async with site.serving():
        port = await listening(site)
        if os.getuid() == 0:
            with pytest.raises(ConnectionResetError):
                await to_thread.run_sync(answer, PEER, 9, b"x")
        with pytest.raises(ConnectionResetError):  # no program of this host listens there
            await to_thread.run_sync(answer, HOST, 1024, b"x")
        assert site.center.tell(SECOND, Release(grace=0.1))
        with pytest.raises(OSError, match="reset"):
            await to_thread.run_sync(answer, PEER, port, b"x")


async def test_a_program_of_this_host_is_reached(site: RelayingSite) -> None:
    """Its port is named by the job; bytes go from a node to it and back."""
    async with site.serving():
        with socket.create_server(("127.0.0.1", 0)) as program:
            site.host_port = program.getsockname()[1]
            await listening(site)
            with closing(connected(HOST, site.host_port)) as connection:
                peer, _ = await to_thread.run_sync(program.accept)
                with closing(peer):
                    peer.settimeout(LIVENESS)
                    connection.sendall(b"ping")
                    assert await to_thread.run_sync(peer.recv, 10) == b"ping"
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with pytest.raises(ConnectionResetError):
                    await to_thread.run_sync(connection.recv, 10)


async def test_agents_try_whether_their_nodes_connect(site: RelayingSite) -> None:
    """One that reaches the other's port hears what only that one knows; another program gives no answer."""
    async with site.serving():
        site.start_agent(1)
        site.start_agent(2)
        for one in (placeholder(1), SECOND):
            await site.wait_for(AgentRegistered, partial(_is_of, one))
        assert site.center.tell(SECOND, ProbeListen(probe="there", answer="secret"))
        listening = await site.wait_for(Probing)
        with socket.create_server(("127.0.0.1", 0)) as other:
            for says, port in (("there", listening.port), ("wrong", listening.port), ("there", other.getsockname()[1])):
                reach = ProbeReach(probe=f"{says}-{port}", says=says, address="127.0.0.1", port=port)
                assert site.center.tell(placeholder(1), reach)
            for name, answer in ((f"there-{listening.port}", "secret"), (f"wrong-{listening.port}", "")):
                told = await site.wait_for(Probed, partial(_answers, name))
                assert told == Probed(probe=name, answer=answer)
            name = f"there-{other.getsockname()[1]}"
            assert (await site.wait_for(Probed, partial(_answers, name))) == Probed(probe=name, answer="")


def _answers(name: str, event: Probed) -> bool:
    return event.probe == name


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_another_user_of_the_node_is_refused(site: RelayingSite) -> None:
    """The listener is on the node's loopback, which all users of the node can connect to."""
    async with site.serving():
        port = await listening(site)
        text = f"import socket; s = socket.create_connection(({PEER!r}, {port})); s.sendall(b'x'); print(s.recv(1))"
        command = ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", "-c", text]
        done = await to_thread.run_sync(
            lambda: subprocess.run(command, capture_output=True, timeout=LIVENESS, check=False)
        )
        assert done.returncode
        assert b"ConnectionResetError" in done.stderr or b"BrokenPipeError" in done.stderr
        assert await to_thread.run_sync(answer, PEER, port, b"ours") == b"sruo"

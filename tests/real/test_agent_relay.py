# SPDX-License-Identifier: Apache-2.0
"""Relayed connections: real agents and a real control center, with processes that reach each other by them alone."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
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
from koala_adapter.vjm.agent.attempts import SYN_SENT
from koala_adapter.vjm.agent.processes import session_of
from koala_adapter.vjm.agent.relay import MOST_CONNECTIONS
from koala_adapter.vjm.agent.sockets import in_hexadecimal, tcp_sockets
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
    Signal,
    TaskEnded,
    TaskStarted,
    TunnelAsked,
)
from koala_adapter.vjm.listener import AgentDisconnected, Route
from tests.real.agents import LIVENESS, Site, placeholder
from tests.real.systems.processes import wait_until

PEER, HOST = (f"127.{100 + os.getpid() // 256 % 100}.{os.getpid() % 256}.{last}" for last in (3, 0))
"""Addresses of this process of pytest alone: the agents of others listen at the same ports."""
COUNTER = """
import os, socket, sys, time
listening = socket.create_server(("127.0.0.1", 0))
connection, _ = listening.accept()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
size = 0
while piece := connection.recv(65536):
    size += len(piece)
print(size)
"""
"""Tells how many bytes it was sent; it reads them once a file has been made."""
SENDER = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.settimeout(1.0)
size = 0
try:
    while True:
        size += connection.send(bytes(65536))
except TimeoutError:
    print(size)
"""
"""Sends as much as there is room for on the way, tells how much that is, and ends."""
COLLECTOR = """
import socket, sys
listening = socket.create_server(("127.0.0.1", 0))
for _ in range(int(sys.argv[1])):
    connection, _ = listening.accept()
    size = 0
    while piece := connection.recv(65536):
        size += len(piece)
    print(size, flush=True)
"""
"""Tells how many bytes each of so many connections brought."""
LEAVING = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(bytes(int(sys.argv[3])))
"""
"""Sends bytes and ends at once."""
LASTING = """
import os, socket, sys, time
address, port, begins, ended = sys.argv[1:]
while not os.path.exists(begins):
    time.sleep(0.05)
connections = [socket.create_connection((address, int(port))) for _ in range(16)]
for connection in connections:
    connection.sendall(b"x" * 7)
print("connected", flush=True)
while not os.path.exists(ended):
    time.sleep(0.05)
for connection in connections:
    connection.sendall(b"y")
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(9) == b"yxxxxxxx", connection
print("answered", flush=True)
"""
"""Makes connections after a file has been made, and uses them after another one has."""
GREETER = """
import socket
listening, kept = socket.create_server(("127.0.0.1", 0), backlog=200), []
while True:
    kept.append(listening.accept()[0])
    kept[-1].sendall(b"!")
"""
"""Greets all that connect, and keeps their connections."""
GREETED = """
import socket, sys, time
connections = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(int(sys.argv[3]))]
greeted = 0
for connection in connections:
    try:
        greeted += connection.recv(1) == b"!"
    except ConnectionResetError:
        pass
print(greeted, flush=True)
time.sleep(600)
"""
"""Makes so many connections, tells how many are greeted, and keeps them."""
SERVER = """
import socket, struct, threading
def answer(connection):
    data = b""
    while piece := connection.recv(65536):
        data += piece
        if data == b"reset me":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            break
    else:
        connection.sendall(data[::-1])
    connection.close()
listening = socket.create_server(("127.0.0.1", 0))
while True:
    connection, _ = listening.accept()
    threading.Thread(target=answer, args=(connection,), daemon=True).start()
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


async def listening(site: RelayingSite, program: str = SERVER, *arguments: str) -> int:
    """Start two agents, a server in the second one, and have the first one listen for it; return its port."""
    for index in (1, 2):
        site.start_agent(index)
    for index in (1, 2):
        await site.registered(index)
    server = Launch(task="1:1", argv=(sys.executable, "-c", program, *arguments), relayed=True)
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


@pytest.mark.parametrize("gone", [(1,), (2,), (1, 2)])
async def test_connections_wait_for_agents_that_are_out_of_contact(site: RelayingSite, gone: tuple[int, ...]) -> None:
    """After a node stood still for a while, its processes may go on before its agent has connected again."""
    async with site.serving():
        port = await listening(site)
        for index in gone:
            site.center.disconnect(placeholder(index), "silent")
        for index in gone:
            await site.wait_for(AgentDisconnected, partial(_is_of, placeholder(index)))
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(check_answer, port, b"%d" % number)


def _is_of(placeholder: PlaceholderId, event: AgentDisconnected) -> bool:
    return event.placeholder == placeholder


async def test_what_a_process_sent_before_its_end_arrives(site: RelayingSite, tmp_path: Path) -> None:
    """However slowly its peer reads, its agent tells the end of the task only when all is on its way."""
    ended = tmp_path / "ended"
    async with site.serving():
        port = await listening(site, COUNTER, str(ended))
        assert site.center.tell(placeholder(1), Signal(task="1:0", signal=signal.SIGKILL))
        await site.wait_for(TaskEnded, lambda event: event.task == "1:0")
        argv = (sys.executable, "-c", SENDER, PEER, str(port))
        assert site.center.tell(placeholder(1), Launch(task="1:2", argv=argv, relayed=True, forwards=(to_peer(port),)))
        started = await site.wait_for(TaskStarted, lambda event: event.task == "1:2")
        gone = partial(wait_until, seconds=LIVENESS, what="the sender ends")
        await to_thread.run_sync(gone, lambda: session_of(started.pid) is None)
        ended.touch()
        for task in ("1:2", "1:1"):
            await site.wait_for(TaskEnded, partial(_is_end_of, task))
        assert site.output("1:1") == site.output("1:2")


def to_peer(port: int) -> Forward:
    return Forward(job="1", number=3, peer=1, address=PEER, ports=(port,))


def _is_start_of(task: str, event: TaskStarted) -> bool:
    return event.task == task


def _is_end_of(task: str, event: TaskEnded) -> bool:
    return event.task == task


def attempts_at(address: str, port: int) -> int:
    """Return how many processes of this node wait for a connection."""
    place = in_hexadecimal((address, port))
    return sum(state == SYN_SENT and remote == place for state, _, _, remote, _, _ in tcp_sockets())


@pytest.mark.parametrize("stands", [False, True], ids=["it runs", "it stood still"])
async def test_the_end_of_one_agent_leaves_the_connections_of_others_on_its_node(
    site: RelayingSite,
    tmp_path: Path,
    stands: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Both listen at the same address; each has connections of its own processes alone."""
    begins, ended = tmp_path / "begins", tmp_path / "ended"
    async with site.serving():
        port = await listening(site)
        third = placeholder(3)
        site.start_agent(3)
        await site.registered(third.index)
        argv = (sys.executable, "-c", LASTING, PEER, str(port), str(begins), str(ended))
        assert site.center.tell(third, Launch(task="1:2", argv=argv, relayed=True, forwards=(to_peer(port),)))
        await site.wait_for(TaskStarted, partial(_is_start_of, "1:2"))
        if stands:
            os.killpg(site.processes[2].pid, signal.SIGSTOP)
        begins.touch()
        if stands:
            await site.wait_until(lambda: attempts_at(PEER, port) > 0)
            await check_answer(port, b"the first agent answers whom no other one does")
            assert attempts_at(PEER, port) > 0
            os.killpg(site.processes[2].pid, signal.SIGCONT)
        await site.wait_for_output("1:2", b"connected\n")
        assert site.center.tell(placeholder(1), Release(grace=0.1))
        await site.ended(site.processes[0])
        ended.touch()
        await site.wait_for_output("1:2", b"connected\nanswered\n")


@pytest.mark.parametrize("size", [1, 2_000_000])
async def test_what_processes_of_a_node_sent_right_before_their_end_arrives(site: RelayingSite, size: int) -> None:
    """However soon they end, and whichever agent of the node they belong to."""
    async with site.serving():
        port = await listening(site, COLLECTOR, "20")
        third = placeholder(3)
        site.start_agent(3)
        await site.registered(third.index)
        argv = (sys.executable, "-c", LEAVING, PEER, str(port), str(size))
        for number in range(10):
            for index in (1, 3):
                launch = Launch(task=f"1:{10 * index + number}", argv=argv, relayed=True, forwards=(to_peer(port),))
                assert site.center.tell(placeholder(index), launch)
        for number in range(10):
            for index in (1, 3):
                await site.wait_for(TaskEnded, partial(_is_end_of, f"1:{10 * index + number}"))
        await site.wait_for(TaskEnded, partial(_is_end_of, "1:1"))
        assert site.output("1:1") == b"%d\n" % size * 20


async def test_what_is_beyond_the_bound_of_the_agent_that_is_reached_is_reset(
    site: RelayingSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: the control center would wait for the agent to dial."""
    monkeypatch.setattr(tunnels, "DIALLING", 10 * LIVENESS)
    async with site.serving():
        port = await listening(site, GREETER)
        third, each = placeholder(3), MOST_CONNECTIONS * 3 // 4
        site.start_agent(3)
        await site.registered(third.index)
        argv = (sys.executable, "-c", GREETED, PEER, str(port), str(each))
        tasks = {"1:2": placeholder(1), "1:3": third}
        for task, whose in tasks.items():
            assert site.center.tell(whose, Launch(task=task, argv=argv, relayed=True, forwards=(to_peer(port),)))
        await site.wait_until(lambda: all(site.output(task) for task in tasks))
        assert sum(int(site.output(task)) for task in tasks) == MOST_CONNECTIONS


async def test_what_is_not_allowed_or_not_there_is_reset(site: RelayingSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control center says no; or the process listens no more, and soon the first agent may not know that yet."""
    monkeypatch.setattr(tunnels, "DIALLING", 2.0)
    async with site.serving():
        port = await listening(site)
        os.killpg(site.processes[0].pid, signal.SIGSTOP)  # who gives up before the agent has seen it costs that nothing
        with closing(socket.socket()) as given_up:
            given_up.setblocking(False)  # noqa: FBT003 - the library's own way
            assert given_up.connect_ex((PEER, port)) == errno.EINPROGRESS
        os.killpg(site.processes[0].pid, signal.SIGCONT)
        await check_answer(port, b"others are served")
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
        for index in (1, 2):
            site.start_agent(index)
        for index in (1, 2):
            await site.registered(index)
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
async def test_another_user_of_the_node_is_not_answered(site: RelayingSite) -> None:
    """The listener is on the node's loopback, which all users of the node can try to connect to."""
    async with site.serving():
        port = await listening(site)
        text = f"import socket; socket.create_connection(({PEER!r}, {port}))"
        command = ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", "-c", text]
        waiting = (SYN_SENT, in_hexadecimal((PEER, port)), 65534)
        async with await anyio.open_process(command) as other:
            await site.wait_until(lambda: waiting in {(one[0], *one[3:5]) for one in tcp_sockets()})
            assert await to_thread.run_sync(answer, PEER, port, b"ours") == b"sruo"
            assert other.returncode is None
            other.kill()

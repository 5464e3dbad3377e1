# SPDX-License-Identifier: Apache-2.0
"""Sockets: ports, connections that are accepted, and who may come."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.host import sockets as freeport
from koala_adapter.host.accepting import Admission
from koala_adapter.host.sockets import local_tcp_user

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


# -- Connections are accepted again when there are descriptors again.


LIVENESS = 60.0
SERVER = """\
import resource, sys
from contextlib import suppress
import anyio
from koala_adapter.host.accepting import serve_streams

async def echo(stream):
    async with stream:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            await stream.send(await stream.receive(1))

async def main():
    path = sys.argv[1]
    if path:
        listener = await anyio.create_unix_listener(path)
    else:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    print(path or listener.extra(anyio.abc.SocketAttribute.local_port), flush=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
    async with listener:
        await serve_streams(listener, echo)

anyio.run(main)
"""


def connection(where: str) -> socket.socket:
    if where.isdecimal():
        return socket.create_connection(("127.0.0.1", int(where)), timeout=LIVENESS)
    found = socket.socket(socket.AF_UNIX)
    found.settimeout(LIVENESS)
    found.connect(where)
    return found


@pytest.mark.parametrize("family", ["tcp", "unix"])
def test_a_flood_of_connections_ends_nothing(family: str, tmp_path: Path) -> None:
    """More than the server has descriptors for; as soon as these have gone the next one is answered."""
    path = str(tmp_path / "s") if family == "unix" else ""
    with subprocess.Popen([sys.executable, "-c", SERVER, path], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            where = server.stdout.readline().strip()
            with ExitStack() as flood:
                for _ in range(40):
                    flood.enter_context(connection(where))
                late = connection(where)
                late.send(b"x")
            with late:
                assert late.recv(1) == b"x"
            assert server.poll() is None
        finally:
            server.kill()


# -- The door of the control center: a bound on strangers that keeps nobody out for long.


async def stand(admission: Admission, log: list[str], name: str) -> None:
    """Come in and say nothing."""
    with admission.applicant() as scope:
        log.append(f"{name} in")
        await anyio.sleep_forever()
    log.append(f"{name} {'thrown out' if scope.cancelled_caught else 'left'}")


async def test_silent_peers_are_thrown_out_when_their_time_is_up() -> None:
    """Nobody stands in the door for ever."""
    admission = Admission(limit=2, time_limit=0.05, patience=0.01)
    log: list[str] = []
    with anyio.fail_after(60):
        await stand(admission, log, "a")
    assert log == ["a in", "a thrown out"]


async def test_the_oldest_makes_room_when_the_door_is_full() -> None:
    """A newcomer waits for the patience at most, and the one that stood longest goes, long before its time is up."""
    admission = Admission(limit=2, time_limit=1000, patience=0.05)
    log: list[str] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for name in ("a", "b"):
                await admission.room()
                tasks.start_soon(stand, admission, log, name)
                await anyio.wait_all_tasks_blocked()
            await admission.room()
            await anyio.wait_all_tasks_blocked()
            assert log == ["a in", "b in", "a thrown out"]
            tasks.cancel_scope.cancel()


async def test_there_is_room_as_soon_as_somebody_leaves() -> None:
    """Whoever proves itself makes room at once."""
    admission = Admission(limit=1, time_limit=1000, patience=1000)
    proved = anyio.Event()

    async def prove() -> None:
        with admission.applicant():
            await proved.wait()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(prove)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(admission.room)
            await anyio.wait_all_tasks_blocked()
            proved.set()


# -- A port for somebody who needs one soon is free, and none that the system might give to another meanwhile.


def test_it_is_below_what_the_system_gives() -> None:
    """Who asks for any port gets another one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        given = listener.getsockname()[1]
    assert freeport.free_port() in freeport.UNLIKELY_PORTS
    assert given not in freeport.UNLIKELY_PORTS


def test_it_is_none_at_which_somebody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all of those are taken it is any that is free."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr(freeport, "UNLIKELY_PORTS", [taken] * 20)
        port = freeport.free_port()
    assert port != taken


# -- The user of a TCP connection from this machine.


@pytest.mark.parametrize(("listen", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_the_user_of_a_connection_from_here_is_known(listen: str, family: socket.AddressFamily) -> None:
    """As long as somebody has the client's socket, and no longer: the kernel then calls it root's."""
    with closing(socket.create_server((listen, 0), family=family)) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        served, _ = listener.accept()
        ends = client.getsockname()[:2], client.getpeername()[:2]
        with served:
            assert local_tcp_user(*ends) == os.geteuid()
            client.close()
            assert local_tcp_user(*ends) is None
        assert local_tcp_user(*ends) is None


def test_an_ipv4_connection_of_an_ipv6_socket_is_found() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener, socket.socket(socket.AF_INET6) as client:
        port = listener.getsockname()[1]
        client.connect(("::ffff:127.0.0.1", port))
        ends = ("127.0.0.1", client.getsockname()[1]), ("127.0.0.1", port)
        assert local_tcp_user(*ends) == os.geteuid()


def test_a_socket_elsewhere_has_no_user_here() -> None:
    assert local_tcp_user(("192.0.2.1", 1), ("192.0.2.2", 2)) is None

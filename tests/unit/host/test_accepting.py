# SPDX-License-Identifier: Apache-2.0
"""Connections are accepted again when there are descriptors again."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

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
    """Connect to a path or to a port of this machine."""
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

# SPDX-License-Identifier: Apache-2.0
"""Relayed connections: bytes per second and round trips from a program here to a rank at a site.

python -m benchmarks.relay relayed [--repeat 5] [--mib 64] [--pings 200] [--delay 0.02]
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import PYTHONPATH, Row, in_turns, main, until
from benchmarks.sites import site_file
from tests.real.systems.othersite import ADDRESS, OtherSite

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1024**2
SERVER = """
import os, socket, threading

def serve(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if connection.recv(1) == b"p":
        while connection.recv(1):
            connection.sendall(b"p")
    else:
        while connection.recv(1 << 20):
            pass
        connection.sendall(b"!")
    connection.close()

listening = socket.create_server(("", 0))
print(os.environ.get("KOALA_RELAY_ADDRESS", "127.0.0.1"), listening.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=listening.accept()[:1], daemon=True).start()
"""
"""Answers each byte, or takes all bytes and answers when they have ended."""
JOB = """
walltime = "1h"
relay = true
host_ports = [9]
[[components]]
command = ["{python}", "-c", '''{server}''']
processors = 1
"""


def relayed(*, repeat: int = 5, mib: int = 64, pings: int = 200, delay: float = 0.0) -> list[Row]:
    """A connection to a rank at a site through koala, by ``ssh -L`` to the same rank, and to a server here.

    ``delay``: seconds that each way to the site takes.
    """
    with ExitStack() as stack:
        there = stack.enter_context(OtherSite(delay=delay))
        koala = stack.enter_context(rank_there(there))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        forward = f"127.0.0.1:{port}:{ADDRESS}:{koala[1]}"
        stack.enter_context(process(["ssh", "-F", str(there.ssh_config), "-N", "-L", forward, "site"]))
        here = stack.enter_context(process([sys.executable, "-c", SERVER]))
        ways = {"koala": koala, "ssh -L": ("127.0.0.1", port), "direct": told(here)}
        for address in ways.values():
            until("the server answers", partial(answers, address))
        speeds = in_turns({name: partial(speed, one, mib) for name, one in ways.items()}, repeat)
        trips = in_turns({name: partial(round_trip, one, pings) for name, one in ways.items()}, repeat)
    return [row("MiB/s", speeds), row("round trip, ms", trips)]


def row(name: str, turns: dict[str, list[float]]) -> Row:
    """Return the medians of all ways, and koala's over that of ssh."""
    found = {way: statistics.median(values) for way, values in turns.items()}
    return {"": name, **found, "koala / ssh -L": found["koala"] / found["ssh -L"]}


def speed(address: tuple[str, int], mib: int) -> float:
    """Return MiB/s of one connection, in one direction."""
    data = os.urandom(MIB)
    with closing(socket.create_connection(address)) as connection:
        began = time.monotonic()
        connection.sendall(b"b")
        for _ in range(mib):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        if connection.recv(1) != b"!":
            raise SystemExit("a connection of the benchmark broke")
        return mib / (time.monotonic() - began)


def round_trip(address: tuple[str, int], pings: int) -> float:
    """Return milliseconds from a byte to its answer, on an open connection."""
    with closing(socket.create_connection(address)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"p")
        times = []
        for _ in range(pings):
            began = time.monotonic()
            connection.sendall(b"p")
            if not connection.recv(1):
                raise SystemExit("a connection of the benchmark broke")
            times.append(time.monotonic() - began)
        return 1000 * statistics.median(times)


def answers(address: tuple[str, int]) -> bool:
    """Tell whether a byte is answered."""
    try:
        return round_trip(address, 1) > 0
    except (OSError, SystemExit):
        return False


@contextmanager
def process(command: list[str], **options: object) -> Iterator[subprocess.Popen[str]]:
    """Run a process during the block."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as one:  # type: ignore[call-overload]
        try:
            yield one
        finally:
            one.terminate()


def told(server: subprocess.Popen[str]) -> tuple[str, int]:
    """Return where a server listens, as it prints it, alone or behind the name of its rank."""
    for line in server.stdout or ():
        words = line.split()
        if len(words) in {2, 3} and words[-1].isdecimal():
            return words[-2], int(words[-1])
    raise SystemExit("the server of the benchmark has failed; its message is above")


@contextmanager
def rank_there(there: OtherSite) -> Iterator[tuple[str, int]]:
    """Have a job with a server at a site during the block; yield the address at which it is reached here."""
    with tempfile.TemporaryDirectory(prefix="koala-") as place:
        directory = Path(place)
        (directory / "job.toml").write_text(JOB.format(python=sys.executable, server=SERVER))
        where = ["--site", str(site_file(there, directory)), "--state", str(directory / "state")]
        run = [sys.executable, "-m", "koala_adapter.cli", *where, "run", str(directory / "job.toml")]
        with process(run, env={**os.environ, "PYTHONPATH": PYTHONPATH}, stderr=subprocess.DEVNULL) as koala:
            yield told(koala)


if __name__ == "__main__":
    main(relayed)

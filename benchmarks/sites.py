# SPDX-License-Identifier: Apache-2.0
"""Clusters at other sites: the connection, files and relayed bytes beside plain ssh, and the gateway with many agents.

python -m benchmarks.sites connection [--repeat 5] [--megabytes 100]
python -m benchmarks.sites short-job [--repeat 5]
python -m benchmarks.sites there-and-back [--repeat 3] [--megabytes 300]
python -m benchmarks.sites relayed [--repeat 5] [--mib 64] [--pings 200]
python -m benchmarks.sites measured [--repeat 5] [--mib 64]
python -m benchmarks.sites many [--agents 1000]
python -m benchmarks.sites idle [--agents 100] [--seconds 60]

Those up to ``measured`` need root: the site is a network namespace with real sshd, reached at once and with 40 ms for a
way there and back. ``many`` and ``idle`` have the gateway on this host, with no ssh
before it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import structlog
from anyio.abc import SocketAttribute, SocketStream
from anyio.from_thread import start_blocking_portal

from benchmarks.agents import measure, raise_files
from benchmarks.common import (
    Row,
    command_cost,
    in_turns,
    main,
    process,
    processor_time,
    resident_mib,
    succeeds,
    until,
)
from koala_adapter.sites.link import SiteAddress
from koala_adapter.sites.remotesite import RemoteSite
from tests.gateways import resident_gateways
from tests.real.systems.othersite import ADDRESS, OtherSite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

MEGABYTE, MIB = 1_000_000, 1024**2
DELAYS = {0.0: "0 ms", 0.02: "40 ms"}
HEARTBEAT = 20.0
"""Seconds between two signs of life of an agent, as a site file has it by default."""
SIGN = bytes(120)
"""Of the size of a heartbeat within TLS."""


# -- What all have in common ---------------------------------------------------------------------------------


def at_both_delays(measured: Callable[[OtherSite, Path], Sequence[Row]]) -> list[Row]:
    """Return the rows of a site that is reached at once, and of one that takes 40 ms for a way there and back."""
    rows: list[Row] = []
    for one_way, delay in DELAYS.items():
        with OtherSite(delay=one_way) as there, tempfile.TemporaryDirectory(prefix="koala-") as directory:
            rows += [{**row, "there and back": delay} for row in measured(there, Path(directory))]
    return rows


def row_of(what: str, turns: Mapping[str, Sequence[float]], base: str) -> Row:
    """Return the medians of all ways, and koala's over that of one."""
    found = {way: statistics.median(values) for way, values in turns.items()}
    return {"": what, **found, "ratio": found["koala"] / found[base]}


def ssh_to(there: OtherSite, *options: str) -> list[str]:
    """Return how ssh is called for a site."""
    return ["ssh", "-F", str(there.ssh_config), *options, there.name]


@contextmanager
def kept_ssh(there: OtherSite, directory: Path) -> Iterator[list[str]]:
    """Keep an ssh connection to a site during the block; yield how ssh is called that uses it."""
    by_socket = ("-S", str(directory / "ssh"))
    master = ssh_to(there, *by_socket, "-o", "ControlMaster=auto", "-o", "ControlPersist=600")
    subprocess.run([*master, "true"], check=True)
    try:
        yield ssh_to(there, *by_socket)
    finally:
        subprocess.run(ssh_to(there, *by_socket, "-O", "exit"), stderr=subprocess.DEVNULL, check=False)


def koala_for(there: OtherSite, directory: Path) -> list[str]:
    """Write the site file of a control center on this host with the clusters of a site; return how koala is called."""
    site = directory / "site.toml"
    site.write_text('[control_center]\nlisten = "127.0.0.1"\n' + there.tables(directory))
    return [str(Path(sys.executable).with_name("koala")), "--site", str(site), "--state", str(directory / "state")]


@contextmanager
def service_for(there: OtherSite, directory: Path) -> Iterator[list[str]]:
    """Run a service for another site, which has run a job; yield how ``koala`` is called."""
    koala = koala_for(there, directory)
    with (directory / "log").open("wb") as log, process([*koala, "serve"], stderr=log):
        until("an answer of the service", lambda: succeeds([*koala, "metrics"]))
        succeeds([*koala, "run", "-n", "1", "--", "true"])
        yield koala


# -- The connection beside plain ssh -------------------------------------------------------------------------


def connection(*, repeat: int = 5, megabytes: int = 100) -> list[Row]:
    """Time to connect, to run a command and to move bytes, beside ssh with a connection that is kept for it."""
    return at_both_delays(lambda there, directory: anyio.run(_connection, there, directory, repeat, megabytes))


async def _connection(there: OtherSite, directory: Path, repeat: int, megabytes: int) -> list[Row]:
    much = ["head", "-c", str(megabytes * MEGABYTE), "/dev/zero"]
    taken: dict[str, dict[str, list[float]]] = {}
    options = ("-F", str(there.ssh_config))
    address = SiteAddress(
        name=there.name, ssh=there.name, options=options, directory=str(directory / "there"), listen=ADDRESS
    )

    async def compare(what: str, ours: Callable[[], Awaitable[object]], plain: Sequence[str]) -> None:
        times = taken.setdefault(what, {"koala": [], "ssh": []})
        for way, action in (("koala", ours), ("ssh", partial(anyio.run_process, plain))):
            began = time.monotonic()
            await action()
            times[way].append(time.monotonic() - began)

    with kept_ssh(there, directory) as ssh:
        for _ in range(repeat):
            site = RemoteSite(address, title=f"of a benchmark for {there.name}", port_file=directory / "port")
            await compare("connect, s", site.facts, [*ssh_to(there), "true"])
            await site.run(["true"])
            await compare("run a command, s", partial(site.run, ["true"]), [*ssh, "true"])
            await compare(f"{megabytes} MB from there, s", partial(site.run, much), [*ssh, *much])
            await site.close()
    return [row_of(what, turns, "ssh") for what, turns in taken.items()]


# -- A short job ---------------------------------------------------------------------------------------------


def short_job(*, repeat: int = 5) -> list[Row]:
    """Time of ``koala run -n 1 -- true`` with a service, beside ``ssh HOST sbatch --wait``."""

    def measured(there: OtherSite, directory: Path) -> list[Row]:
        ssh = [*ssh_to(there), f"SLURM_CONF={there.conf}"]
        with service_for(there, directory) as koala:
            commands = {
                "koala": [*koala, "run", "-n", "1", "--", "true"],
                "ssh sbatch --wait": [*ssh, "sbatch --wait --output=/dev/null --wrap=true"],
            }
            ways = {name: partial(command_cost, command, os.environ) for name, command in commands.items()}
            turns = in_turns(ways, repeat)
        times = {name: [one["elapsed, s"] for one in costs] for name, costs in turns.items()}
        return [row_of("a short job, s", times, "ssh sbatch --wait")]

    return at_both_delays(measured)


# -- Files ---------------------------------------------------------------------------------------------------

COPYING = """
walltime = 600
[[components]]
command = ["sh", "-c", "mkdir out; cp input out/copy; date +%s.%N"]
processors = 1
cluster = "far"
input_files = [{{ source = "{source}", target = "input" }}]
output_files = ["out"]
"""
"""Copies its input file to its output files, and prints when it ends."""


def there_and_back(*, repeat: int = 3, megabytes: int = 300) -> list[Row]:
    """Seconds until a file is at a site, and back here, by koala and by rsync.

    Koala's begin with ``koala submit``, which copies the file first, and with the end of the process that has written
    it. rsync uses an ssh connection that is there already, as koala does.
    """

    def measured(there: OtherSite, directory: Path) -> list[Row]:
        with service_for(there, directory) as koala, kept_ssh(there, directory) as ssh:
            turns = [_there_and_back(there, directory, koala, ssh, megabytes) for _ in range(repeat)]
        return [
            row_of(f"{way}, s", {by: [turn[way][by] for turn in turns] for by in turns[0][way]}, "rsync")
            for way in turns[0]
        ]

    return at_both_delays(measured)


def _there_and_back(
    there: OtherSite, directory: Path, koala: Sequence[str], ssh: Sequence[str], megabytes: int
) -> dict[str, dict[str, float]]:
    """Return seconds, by way and program."""
    source, copy, back = directory / "source", directory / "copy", directory / "back"
    source.write_bytes(os.urandom(megabytes * MEGABYTE))
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    rsync = ["rsync", "--whole-file", "--rsh", " ".join(ssh[:-1])]
    job_file = directory / "job.toml"
    job_file.write_text(COPYING.format(source=source))
    copies = {
        "there": [*rsync, str(source), f"{there.name}:{copy}"],
        "back": [*rsync, f"{there.name}:{copy}", str(back)],
    }
    plain = {way: command_cost(command, os.environ)["elapsed, s"] for way, command in copies.items()}
    began = time.monotonic()
    submitted = subprocess.run([*koala, "submit", "--json", str(job_file)], check=True, capture_output=True).stdout
    job = str(json.loads(submitted)["id"])
    cached = directory / "there" / "cache" / digest
    until("the file is there", cached.exists, look=0.005)
    taken = time.monotonic() - began
    arrived = directory / "state" / "jobs" / job / "c1" / "0" / "out" / "copy"
    until("the file is back", arrived.exists, look=0.005)
    ended = time.time()
    out = subprocess.run([*koala, "logs", job], check=True, capture_output=True, text=True).stdout
    if hashlib.sha256(arrived.read_bytes()).hexdigest() != digest:
        raise SystemExit("another content has come back")
    for path in (source, copy, back, cached, arrived):
        path.unlink()
    ours = {"there": taken, "back": ended - float(out.split()[-1])}
    return {way: {"koala": ours[way], "rsync": plain[way]} for way in ours}


# -- Relayed connections -------------------------------------------------------------------------------------

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
RELAYED = """
walltime = "1h"
relay = true
host_ports = [9]
[[components]]
command = ["{python}", "-c", '''{server}''']
processors = 1
"""


def relayed(*, repeat: int = 5, mib: int = 64, pings: int = 200) -> list[Row]:
    """A connection to a rank at a site through koala, by ``ssh -L`` to the same rank, and to a server here."""

    def measured(there: OtherSite, directory: Path) -> list[Row]:
        with ExitStack() as stack:
            (directory / "job.toml").write_text(RELAYED.format(python=sys.executable, server=SERVER))
            run = [*koala_for(there, directory), "run", str(directory / "job.toml")]
            koala = told(stack.enter_context(process(run, stderr=subprocess.DEVNULL)))
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            stack.enter_context(process(ssh_to(there, "-N", "-L", f"127.0.0.1:{port}:{ADDRESS}:{koala[1]}")))
            here = stack.enter_context(process([sys.executable, "-c", SERVER]))
            ways = {"koala": koala, "ssh -L": ("127.0.0.1", port), "direct": told(here)}
            for address in ways.values():
                until("the server answers", partial(answers, address))
            speeds = in_turns({name: partial(speed, one, mib) for name, one in ways.items()}, repeat)
            trips = in_turns({name: partial(round_trip, one, pings) for name, one in ways.items()}, repeat)
            made = in_turns({name: partial(first_answer, one) for name, one in ways.items()}, pings)
        rows = {"MiB/s": speeds, "round trip, ms": trips, "first answer of a new connection, ms": made}
        return [row_of(name, figures, "ssh -L") for name, figures in rows.items()]

    return at_both_delays(measured)


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


def first_answer(address: tuple[str, int]) -> float:
    """Return milliseconds until a new connection has brought an answer."""
    began = time.monotonic()
    with closing(socket.create_connection(address)) as connection:
        connection.sendall(b"pp")
        if not connection.recv(1):
            raise SystemExit("a connection of the benchmark broke")
        return 1000 * (time.monotonic() - began)


def answers(address: tuple[str, int]) -> bool:
    """Tell whether a byte is answered."""
    try:
        return round_trip(address, 1) > 0
    except (OSError, SystemExit):
        return False


def told(server: subprocess.Popen[str]) -> tuple[str, int]:
    """Return where a server listens, as it prints it, alone or behind the name of its rank."""
    for line in server.stdout or ():
        words = line.split()
        if len(words) in {2, 3} and words[-1].isdecimal():
            return words[-2], int(words[-1])
    raise SystemExit("the server of the benchmark has failed; its message is above")


# -- What koala knows of the network -------------------------------------------------------------------------


def measured(*, repeat: int = 5, mib: int = 64) -> list[Row]:
    """Bandwidth to a site as koala measures it with 6 MiB at most, over that of ``ssh SITE 'cat > /dev/null'``."""
    content = os.urandom(mib * MIB)

    def beside_ssh(there: OtherSite, _: Path) -> list[Row]:
        options = ("-F", str(there.ssh_config))
        address = SiteAddress(name=there.name, ssh=there.name, options=options, listen=ADDRESS)

        def copied() -> float:
            """Return MiB/s, with the time to log in left out."""
            times = []
            for data in (b"", content):
                began = time.monotonic()
                subprocess.run([*ssh_to(there), "cat > /dev/null"], input=data, check=True)
                times.append(time.monotonic() - began)
            return mib / (times[1] - times[0])

        async def bandwidth() -> float:
            site = RemoteSite(address)
            try:
                found = await site.measure()
            finally:
                await site.close()
            return found.size / found.seconds / MIB

        turns = in_turns({"koala": lambda: anyio.run(bandwidth), "ssh cat": copied}, repeat)
        least, most = min(turns["koala"]), max(turns["koala"])
        return [{**row_of("bandwidth, MiB/s", turns, "ssh cat"), "koala, least": least, "koala, most": most}]

    return at_both_delays(beside_ssh)


# -- Many agents behind one gateway --------------------------------------------------------------------------


@asynccontextmanager
async def gateway_before(port: int) -> AsyncIterator[tuple[RemoteSite, int]]:
    """Start a gateway on this host whose agents go to a port; yield the site and the id of its process."""
    with tempfile.TemporaryDirectory() as directory:
        ssh = Path(directory) / "ssh"
        ssh.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nexec sh -c "exec $3"\n')
        ssh.chmod(0o755)
        os.environ["PATH"] = f"{directory}:{os.environ['PATH']}"
        title = f"of a benchmark in {directory}"
        address = SiteAddress(name="there", ssh="there", directory=f"{directory}/there", listen="127.0.0.1")
        site = RemoteSite(address, title=title, port_file=Path(directory) / "port")
        site.relay_agents_to("127.0.0.1", port)
        try:
            await site.facts()
            (gateway,) = resident_gateways(title)
            yield site, gateway
        finally:
            await site.close()


def many(*, agents: int = 1000) -> list[Row]:
    """Time for N simulated agents to register and be launched into, through a gateway and directly."""
    raise_files(4 * agents)
    used: dict[str, float] = {}

    @contextmanager
    def gateway_door(port: int) -> Iterator[int]:
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(gateway_before(port)) as (site, gateway),
        ):
            before = processor_time(gateway)
            yield site.door[1]
            used["processor time of the gateway, s"] = processor_time(gateway) - before
            used["memory of the gateway, MiB"] = resident_mib(gateway)

    direct, through = measure("center", agents, 1), measure("center", agents, 1, gateway_door)
    rows: list[Row] = [
        {"": name, "through a gateway": through[name], "directly": direct[name], "ratio": through[name] / direct[name]}
        for name in ("register, s", "total, s")
    ]
    alone: list[Row] = [{"": name, "through a gateway": value} for name, value in used.items()]
    return rows + alone


def idle(*, agents: int = 100, seconds: int = 60) -> list[Row]:
    """Processor time of a gateway with idle agents, which give a sign of life every 20 s, and its memory.

    Beside it, its memory when as many agents take nothing of what they are sent.
    """
    raise_files(4 * agents)
    cases = ((agents, seconds, "idle"), (0, 1, "none"), (agents, 20, "stuck"))
    return [{"agents": case[0], "state": case[2], **anyio.run(_at_gateway, *case)} for case in cases]


async def _at_gateway(agents: int, seconds: float, state: str) -> dict[str, float]:
    """Return what a gateway uses with agents that take what they are sent, or do not."""

    async def answer(stream: SocketStream) -> None:
        async with stream:
            async for data in stream:
                await stream.send(data)
                while state == "stuck":
                    await stream.send(bytes(65536))

    at_once = anyio.CapacityLimiter(100)

    async def agent(port: int, number: int) -> None:
        async with at_once:
            stream = await anyio.connect_tcp("127.0.0.1", port)
            stream.extra(SocketAttribute.raw_socket).setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await stream.send(SIGN)
        async with stream:
            if state == "stuck":
                await anyio.sleep_forever()
            await anyio.sleep(HEARTBEAT * number / agents)
            while True:
                await stream.send(SIGN)
                await stream.receive()
                await anyio.sleep(HEARTBEAT)

    async with served(answer) as (port, gateway), anyio.create_task_group() as tasks:
        for number in range(agents):
            tasks.start_soon(agent, port, number)
        await anyio.sleep(2)
        before, most = processor_time(gateway), 0.0
        for _ in range(round(5 * seconds)):
            await anyio.sleep(0.2)
            most = max(most, resident_mib(gateway))
        share = (processor_time(gateway) - before) / seconds
        tasks.cancel_scope.cancel()
    return {"share of a processor, %": 100 * share, "most memory, MiB": most}


@asynccontextmanager
async def served(serve: Callable[[SocketStream], Awaitable[None]]) -> AsyncIterator[tuple[int, int]]:
    """Serve the connections of agents that come through a gateway; yield its port for them and its process."""

    async def contained(stream: SocketStream) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
            await serve(stream)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", backlog=4096)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, contained)
        async with gateway_before(listener.extra(SocketAttribute.local_port)) as (site, gateway):
            yield site.door[1], gateway
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    main(connection, short_job, there_and_back, relayed, measured, many, idle)

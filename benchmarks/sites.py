# SPDX-License-Identifier: Apache-2.0
"""Clusters at other sites: the connection, files and relayed bytes beside plain ssh, and the gateway with many agents.

python -m benchmarks.sites connection [--repeat 5] [--megabytes 100]
python -m benchmarks.sites short-job [--repeat 5]
python -m benchmarks.sites there-and-back [--repeat 3] [--megabytes 300]
python -m benchmarks.sites relayed [--repeat 5] [--mib 64] [--pings 200] [--delay 0.02]
python -m benchmarks.sites measured [--repeat 5] [--mib 64] [--delay 0]
python -m benchmarks.sites many [--agents 1000]
python -m benchmarks.sites idle [--agents 100] [--seconds 60]

Those up to ``measured`` need root: the site is a network namespace with real sshd, reached at once and with 40 ms for a
way there and back, or with the delay that is given. ``many`` and ``idle`` have the gateway on this host, with no ssh
before it.
"""

from __future__ import annotations

import asyncio
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

from benchmarks.agents import heard, raise_files, started
from benchmarks.common import (
    PYTHONPATH,
    Row,
    command_cost,
    in_turns,
    main,
    medians,
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
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

MIB = 1024**2
DELAYS = {0.0: "0 ms", 0.02: "40 ms"}
HEARTBEAT = 20.0
"""Seconds between two signs of life of an agent, as a site file has it by default."""
SIGN = bytes(120)
"""Of the size of a heartbeat within TLS."""


# -- The connection beside plain ssh -------------------------------------------------------------------------


def connection(*, repeat: int = 5, megabytes: int = 100) -> list[Row]:
    """Time to connect, to run a command and to move bytes, beside ssh with a connection that is kept for it."""
    rows: list[Row] = []
    for one_way, delay in DELAYS.items():
        with OtherSite(delay=one_way) as there, tempfile.TemporaryDirectory() as directory:
            found = anyio.run(_connection, there, Path(directory), repeat, megabytes)
        rows += [{"": one.pop(""), "a way there and back": delay, **one} for one in found]
    return rows


async def _connection(there: OtherSite, directory: Path, repeat: int, megabytes: int) -> list[dict[str, str | float]]:
    host, options = there.name, ("-F", str(there.ssh_config))
    kept = (
        "ssh",
        *options,
        "-S",
        str(directory / f"{host}.ssh"),
        "-o",
        "ControlMaster=auto",
        "-o",
        "ControlPersist=60",
    )
    much = ["head", "-c", str(megabytes * 1_000_000), "/dev/zero"]
    taken: dict[str, tuple[list[float], list[float]]] = {}
    address = SiteAddress(name=host, ssh=host, options=options, directory=str(directory / "there"), listen=ADDRESS)

    async def compare(what: str, ours: Callable[[], Awaitable[object]], plain: tuple[str, ...]) -> None:
        times = taken.setdefault(what, ([], []))
        times[0].append(await _seconds(ours))
        times[1].append(await _seconds(partial(anyio.run_process, plain)))

    for _ in range(repeat):
        site = RemoteSite(address, title=f"of a benchmark for {host}", port_file=directory / f"{host}.port")
        await compare("connect, s", site.facts, ("ssh", *options, host, "true"))
        await anyio.run_process([*kept, host, "true"])  # so that both connections are there
        await site.run(["true"])
        await compare("run a command, s", partial(site.run, ["true"]), (*kept, host, "true"))
        await compare(f"{megabytes} MB from there, s", partial(site.run, much), (*kept, host, *much))
        await site.close()
    await anyio.run_process([*kept, "-O", "exit", host], check=False)
    return [
        {
            "": what,
            "koala": statistics.median(ours),
            "ssh": statistics.median(plain),
            "ratio": statistics.median(ours) / statistics.median(plain),
        }
        for what, (ours, plain) in taken.items()
    ]


async def _seconds(action: Callable[[], Awaitable[object]]) -> float:
    began = time.monotonic()
    await action()
    return time.monotonic() - began


# -- A short job ---------------------------------------------------------------------------------------------


def short_job(*, repeat: int = 5) -> list[Row]:
    """Time of ``koala run -n 1 -- true`` with a service, beside ``ssh HOST srun true`` and ``sbatch --wait``."""
    rows = []
    for one_way, delay in DELAYS.items():
        with OtherSite(delay=one_way) as there:
            rows.append(_short_job(there, delay, repeat))
    return rows


def _short_job(there: OtherSite, delay: str, repeat: int) -> Row:
    ssh = ("ssh", "-F", str(there.ssh_config), there.name, f"SLURM_CONF={there.conf}")
    with tempfile.TemporaryDirectory() as directory, service_for(there, Path(directory)) as koala:
        commands: dict[str, tuple[str, ...]] = {
            "koala run": (*koala, "run", "-n", "1", "--", "true"),
            "srun": (*ssh, "srun", "true"),
            "sbatch": (*ssh, "sbatch --wait --output=/dev/null --wrap=true"),
        }
        ways = {name: partial(command_cost, command, os.environ) for name, command in commands.items()}
        times = {name: medians(turns)["elapsed, s"] for name, turns in in_turns(ways, repeat).items()}
    return {
        "a way there and back": delay,
        "koala run, s": times["koala run"],
        "ssh sbatch --wait, s": times["sbatch"],
        "ratio": times["koala run"] / times["sbatch"],
        "ssh srun, s": times["srun"],
    }


def site_file(there: OtherSite, directory: Path) -> Path:
    """Write the site file of a control center on this host with the clusters of another site."""
    path = directory / "site.toml"
    path.write_text('[control_center]\nlisten = "127.0.0.1"\n' + there.tables(directory))
    return path


@contextmanager
def service_for(there: OtherSite, directory: Path) -> Iterator[tuple[str, ...]]:
    """Run a service for another site, which has run a job; yield how ``koala`` is called."""
    program = str(Path(sys.executable).with_name("koala"))
    koala = (program, "--site", str(site_file(there, directory)), "--state", f"{directory}/state")
    with (directory / "log").open("wb") as log, subprocess.Popen([*koala, "serve"], stderr=log) as service:
        try:
            until("an answer of the service", lambda: succeeds((*koala, "metrics")))
            succeeds((*koala, "run", "-n", "1", "--", "true"))
            yield koala
        finally:
            service.terminate()


# -- Files ---------------------------------------------------------------------------------------------------

MEGABYTE = 1_000_000
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
    """Seconds until a file is at a site, and back here, by koala, by rsync and by ``cat``.

    Koala's begin with ``koala submit``, which copies the file first, and with the end of the process that has written
    it. rsync and cat use an ssh connection that is there already, as koala does.
    """
    rows: list[Row] = []
    for one_way, delay in DELAYS.items():
        with (
            OtherSite(delay=one_way) as there,
            tempfile.TemporaryDirectory() as name,
            serving(there, Path(name)) as koala,
        ):
            turns = [_there_and_back(there, Path(name), koala, megabytes) for _ in range(repeat)]
        for way in turns[0]:
            found = {by: statistics.median(turn[way][by] for turn in turns) for by in turns[0][way]}
            ratio = found["rsync, s"] / found["koala, s"]
            rows.append({"": way, "a way there and back": delay, **found, "speed, by that of rsync": ratio})
    return rows


@contextmanager
def serving(there: OtherSite, directory: Path) -> Iterator[tuple[str, ...]]:
    """Run a service for a site, and an ssh connection beside it; yield how ``koala`` is called."""
    master = _ssh(there, directory)
    with service_for(there, directory) as koala:
        kept = [*master, "-o", "ControlMaster=auto", "-o", "ControlPersist=600"]
        subprocess.run([*kept, there.name, "true"], check=True)
        try:
            yield koala
        finally:
            subprocess.run([*master, "-O", "exit", there.name], stderr=subprocess.DEVNULL, check=False)


def _ssh(there: OtherSite, directory: Path) -> list[str]:
    return ["ssh", "-F", str(there.ssh_config), "-S", str(directory / "ssh")]


def _there_and_back(
    there: OtherSite, directory: Path, koala: tuple[str, ...], megabytes: int
) -> dict[str, dict[str, float]]:
    """Return seconds, by way and program."""
    source, copy, back = directory / "source", directory / "copy", directory / "back"
    source.write_bytes(os.urandom(megabytes * MEGABYTE))
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    ssh = _ssh(there, directory)
    rsync = ["rsync", "--whole-file", "--rsh", " ".join(ssh)]
    plain = {
        "there": ([*rsync, str(source), f"{there.name}:{copy}"], [*ssh, there.name, f"cat > {copy}"]),
        "back": ([*rsync, f"{there.name}:{copy}", str(back)], [*ssh, there.name, f"cat {copy}"]),
    }
    found: dict[str, dict[str, float]] = {}
    for way, (by_rsync, by_cat) in plain.items():
        found[way] = {"rsync, s": _copy_seconds(by_rsync, source, back)}
        found[way]["cat, s"] = _copy_seconds(by_cat, source, back)
    job_file = directory / "job.toml"
    job_file.write_text(COPYING.format(source=source))
    began = time.monotonic()
    job = json.loads(
        subprocess.run([*koala, "submit", "--json", str(job_file)], check=True, capture_output=True).stdout
    )
    submitted = time.monotonic() - began
    cached = directory / "there" / "cache" / digest
    until("the file is there", cached.exists, look=0.005)
    found["there"] = {"koala, s": time.monotonic() - began, "until submitted, s": submitted, **found["there"]}
    arrived = directory / "state" / "jobs" / str(job["id"]) / "c1" / "0" / "out" / "copy"
    until("the file is back", arrived.exists, look=0.005)
    ended = time.time()
    out = subprocess.run([*koala, "logs", str(job["id"])], check=True, capture_output=True, text=True).stdout
    found["back"] = {"koala, s": ended - float(out.split()[-1]), **found["back"]}
    if hashlib.sha256(arrived.read_bytes()).hexdigest() != digest:
        raise SystemExit("another content has come back")
    for path in (source, copy, back, cached, arrived):
        path.unlink()
    return found


def _copy_seconds(command: list[str], source: Path, target: Path) -> float:
    """Run a command that copies from its input, or to its output; return how long it takes."""
    target.unlink(missing_ok=True)
    with source.open("rb") as given, target.open("wb") as taken:
        began = time.monotonic()
        subprocess.run(command, stdin=given, stdout=taken, check=True)
        return time.monotonic() - began


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
    return [_medians_beside_ssh("MiB/s", speeds), _medians_beside_ssh("round trip, ms", trips)]


def _medians_beside_ssh(name: str, turns: dict[str, list[float]]) -> Row:
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
        (directory / "job.toml").write_text(RELAYED.format(python=sys.executable, server=SERVER))
        where = ["--site", str(site_file(there, directory)), "--state", str(directory / "state")]
        run = [sys.executable, "-m", "koala_adapter.cli", *where, "run", str(directory / "job.toml")]
        with process(run, env={**os.environ, "PYTHONPATH": PYTHONPATH}, stderr=subprocess.DEVNULL) as koala:
            yield told(koala)


# -- What koala knows of the network -------------------------------------------------------------------------


def measured(*, repeat: int = 5, mib: int = 64, delay: float = 0.0) -> list[Row]:
    """Bandwidth to a site as koala measures it with 6 MiB at most, over that of ``ssh SITE 'cat > /dev/null'``.

    ``delay``: seconds that each way takes.
    """
    content = os.urandom(mib * MIB)
    with OtherSite(delay=delay) as there:
        ssh = ["ssh", "-F", str(there.ssh_config), "site"]
        address = SiteAddress(name="site", ssh="site", options=("-F", str(there.ssh_config)), listen=ADDRESS)

        def copied() -> float:
            """Return MiB/s, with the time to log in left out."""
            times = []
            for data in (b"", content):
                began = time.monotonic()
                subprocess.run([*ssh, "cat > /dev/null"], input=data, check=True)
                times.append(time.monotonic() - began)
            return mib / (times[1] - times[0])

        async def measure() -> float:
            site = RemoteSite(address)
            try:
                found = await site.measure()
            finally:
                await site.close()
            return found.size / found.seconds / MIB

        turns = in_turns({"koala": lambda: anyio.run(measure), "ssh": copied}, repeat)
    koala, ssh_cat = (statistics.median(turns[name]) for name in ("koala", "ssh"))
    return [
        {
            "": "bandwidth, MiB/s",
            "koala": koala,
            "least": min(turns["koala"]),
            "most": max(turns["koala"]),
            "ssh cat": ssh_cat,
            "ratio": koala / ssh_cat,
        }
    ]


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
    direct, through = (anyio.run(partial(_registered, agents, through=way)) for way in (False, True))
    rows: list[Row] = [
        {"": name, "through a gateway": through[name], "directly": direct[name], "ratio": through[name] / direct[name]}
        for name in ("register, s", "register and launch, s")
    ]
    alone: list[Row] = [{"": name, "through a gateway": through[name]} for name in through if name not in direct]
    return rows + alone


async def _registered(agents: int, *, through: bool) -> dict[str, float]:
    found: dict[str, float] = {}

    def conduct(port: int) -> None:
        with started("client", "--port", str(port), "--indices", f"1:{agents + 1}") as client:
            heard(client.stdout)
            began = time.monotonic()
            if client.stdin:
                client.stdin.close()
            told = heard(server.stdout)
            found["register, s"] = told["registered"] - began
            found["register and launch, s"] = told["launched"] - began

    with (
        tempfile.TemporaryDirectory() as directory,
        started("center", "--agents", str(agents), "--directory", directory) as server,
    ):
        port = int(heard(server.stdout)["port"])
        if not through:
            await anyio.to_thread.run_sync(conduct, port)
            return found
        async with gateway_before(port) as (site, gateway):
            before = processor_time(gateway)
            await anyio.to_thread.run_sync(conduct, site.door[1])
            found["processor time of the gateway, s"] = processor_time(gateway) - before
            found["memory of the gateway, MiB"] = resident_mib(gateway)
    return found


def idle(*, agents: int = 100, seconds: int = 60) -> list[Row]:
    """Processor time of a gateway with idle agents, which give a sign of life every 20 s, and its memory.

    Beside it, its memory when as many agents take nothing of what they are sent.
    """
    raise_files(4 * agents)
    share, memory = anyio.run(_idle, agents, seconds)
    return [
        {"agents": agents, "state": "idle", "share of a processor, %": 100 * share, "memory, MiB": memory},
        {"agents": agents, "state": "none", "share of a processor, %": 0.0, "memory, MiB": anyio.run(_idle, 0, 1)[1]},
        {"agents": agents, "state": "stuck", "share of a processor, %": 0.0, "memory, MiB": anyio.run(_stuck, agents)},
    ]


async def _idle(agents: int, seconds: float) -> tuple[float, float]:
    async def answer(stream: SocketStream) -> None:
        async with stream:
            async for data in stream:
                await stream.send(data)

    at_once = anyio.CapacityLimiter(100)

    async def agent(port: int, number: int) -> None:
        async with at_once:
            stream = await anyio.connect_tcp("127.0.0.1", port)
            await stream.send(SIGN)
        async with stream:
            await anyio.sleep(HEARTBEAT * number / agents)
            while True:
                await stream.send(SIGN)
                await stream.receive()
                await anyio.sleep(HEARTBEAT)

    async with served(answer) as (port, gateway), anyio.create_task_group() as tasks:
        for number in range(agents):
            tasks.start_soon(agent, port, number)
        await anyio.sleep(2)
        before = processor_time(gateway)
        await anyio.sleep(seconds)
        share = (processor_time(gateway) - before) / seconds
        memory = resident_mib(gateway)
        tasks.cancel_scope.cancel()
    return share, memory


async def _stuck(agents: int) -> float:
    async def flood(stream: SocketStream) -> None:
        async with stream:
            while True:
                await stream.send(bytes(65536))

    at_once = anyio.CapacityLimiter(100)

    async def agent(port: int) -> None:
        with socket.socket() as stream:
            stream.setblocking(False)  # noqa: FBT003 - the library's own way
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            async with at_once:
                await asyncio.get_running_loop().sock_connect(stream, ("127.0.0.1", port))
                await asyncio.get_running_loop().sock_sendall(stream, SIGN)
            await anyio.sleep_forever()

    most = 0.0
    async with served(flood) as (port, gateway), anyio.create_task_group() as tasks:
        for _ in range(agents):
            tasks.start_soon(agent, port)
        for _ in range(100):
            await anyio.sleep(0.2)
            most = max(most, resident_mib(gateway))
        tasks.cancel_scope.cancel()
    return most


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

# SPDX-License-Identifier: Apache-2.0
"""Clusters at other sites: the connection beside plain ssh, and the gateway with many agents behind it.

python -m benchmarks.sites connection [--repeat 5] [--megabytes 100]
python -m benchmarks.sites short-job [--repeat 5]
python -m benchmarks.sites many [--agents 1000]
python -m benchmarks.sites idle [--agents 100] [--seconds 60]

The first two need root: the site is a network namespace with real sshd, reached at once and with 40 ms for a way there
and back. The others have the gateway on this host, with no ssh before it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import structlog
from anyio.abc import SocketAttribute, SocketStream

from benchmarks.agents import heard, raise_files, started
from benchmarks.common import (
    Row,
    command_cost,
    in_turns,
    main,
    medians,
    processor_time,
    resident_mib,
    succeeds,
    until,
)
from koala_adapter.sites.remotesite import RemoteSite, SiteAddress
from tests.gateways import resident_gateways
from tests.real.systems.othersite import ADDRESS, OtherSite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

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
    koala = (str(Path(sys.executable).with_name("koala")), "--site", str(site_file(there, directory)))
    koala += ("--state", f"{directory}/state")
    with (directory / "log").open("wb") as log, subprocess.Popen([*koala, "serve"], stderr=log) as service:
        try:
            until("an answer of the service", lambda: succeeds((*koala, "metrics")))
            succeeds((*koala, "run", "-n", "1", "--", "true"))
            yield koala
        finally:
            service.terminate()


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
    main(connection, short_job, many, idle)

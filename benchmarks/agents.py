# SPDX-License-Identifier: Apache-2.0
"""Agents: how many a control center can hold, what it costs to start one, and how soon they are held on Slurm.

python -m benchmarks.agents many [--agents 5000] [--clients 2]
python -m benchmarks.agents start [--sizes 1,8,64] [--repeat 5]
python -m benchmarks.agents held [--sizes 1,8,64] [--repeat 5]
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import socket
import sqlite3
import ssl
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

import anyio
import anyio.to_thread

from benchmarks.common import (
    PYTHONPATH,
    ROOT,
    Row,
    in_turns,
    main,
    median_rows,
    medians,
    process,
    resident_mib,
    slurm_site,
    until,
)
from koala_adapter.model import BatchKey, PlaceholderId
from koala_adapter.vjm import channel
from koala_adapter.vjm.center import ControlCenter
from koala_adapter.vjm.certificate import digest, load_or_create, matches, server_context
from koala_adapter.vjm.jobscript import AgentConfig, render_job_script
from koala_adapter.vjm.listener import AgentEvent, AgentListener, AgentRegistered, AgentReport, TaskListener
from tests.real.systems import SlurmCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BATCH = BatchKey("koala-benchmark-1")
TOKEN = "a-token-that-guards-nothing-at-all"  # noqa: S105 - lives for the length of a benchmark
HANDSHAKES_AT_ONCE = 100
"""Of one client process, so that it does not run out of its own time for each."""
ENVIRONMENT = tuple((f"KOALA_VARIABLE_{number}", "a value of usual length") for number in range(20))


class Listener(AgentListener, TaskListener):
    """Admits all agents that know the token, and drops their output."""

    def __init__(self, hear: Callable[[AgentEvent | AgentReport], None]) -> None:
        self._hear = hear
        self._stored = digest(TOKEN)
        self._owners: dict[PlaceholderId, str] = {}

    def admits(self, placeholder: PlaceholderId, token: str) -> bool:
        """Tell whether the token is ours."""
        del placeholder
        return matches(token, self._stored)

    def bound_session(self, placeholder: PlaceholderId) -> str | None:
        """Return the session that owns a placeholder."""
        return self._owners.get(placeholder)

    def bind(self, placeholder: PlaceholderId, session_hash: str) -> None:
        """Give a placeholder to a session."""
        self._owners[placeholder] = session_hash

    def on_event(self, event: AgentEvent) -> None:
        """Pass an event on to the benchmark."""
        self._hear(event)

    def on_report(self, placeholder: PlaceholderId, report: AgentReport) -> None:
        """Pass a message on to the benchmark."""
        del placeholder
        self._hear(report)

    def output_path(self, placeholder: PlaceholderId, task: str) -> None:
        """Drop the output."""


def control_center(directory: Path, hear: Callable[[AgentEvent | AgentReport], None], lease: int) -> ControlCenter:
    """Return a control center that takes all agents that know the token."""
    listener = Listener(hear)
    return ControlCenter(listener, listener, server_context(load_or_create(directory)), lease=lease, heartbeat=30)


# -- Many agents at once -------------------------------------------------------------------------------------
# The agents are simulated: they speak the channel, each over a TLS connection of its own, but share a few processes. In
# the same run the same number of peers does no more than a TLS handshake, one line there and one line back, with a
# server written straight upon the standard library's sockets; the ratios to that say what the control center adds.


def many(*, agents: int = 5000, clients: int = 2) -> list[Row]:
    """Time, processor time and memory of a control center for N agents over real TLS sockets."""
    raise_files(agents)
    bare, center = (measure(role, agents, clients) for role in ("bare", "center"))
    rows: list[Row] = [
        {"": name, "control center": center[name], "bare TLS": bare[name], "ratio": center[name] / bare[name]}
        for name in ("total, s", "processor time of the server, s", "memory, KiB each")
    ]
    return [*rows, *({"": name, "control center": center[name]} for name in ("register, s", "launch into all, s"))]


def raise_files(agents: int) -> None:
    """Allow this process and those it starts as many open files as the system does."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if 0 <= hard < agents + 100:
        raise SystemExit(f"{agents} agents need as many descriptors, the limit is {hard}: see ulimit -Hn")


def measure(
    role: str, agents: int, clients: int, door: Callable[[int], AbstractContextManager[int]] = nullcontext
) -> dict[str, float]:
    """Run one server against N simulated agents; ``door`` yields the port for them, given that of the server."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        server = stack.enter_context(started(role, "--agents", str(agents), "--directory", directory))
        port = str(stack.enter_context(door(int(heard(server.stdout)["port"]))))
        shares = [f"{1 + agents * i // clients}:{1 + agents * (i + 1) // clients}" for i in range(clients)]
        processes = [stack.enter_context(started("client", "--port", port, "--indices", share)) for share in shares]
        for one in processes:
            heard(one.stdout)
        begin = time.monotonic()
        for one in processes:
            if one.stdin:
                one.stdin.close()
        result = heard(server.stdout)
        for one in (server, *processes):
            one.wait(timeout=60)
    return {
        "register, s": result["registered"] - begin,
        "launch into all, s": result["launched"] - result["registered"],
        "total, s": result["launched"] - begin,
        "processor time of the server, s": result["cpu"],
        "memory, KiB each": result["kib"],
    }


def started(role: str, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Return a process of this benchmark, which runs during the block."""
    command = [sys.executable, "-m", "benchmarks.agents", role, *arguments]
    return process(command, cwd=ROOT, stdin=subprocess.PIPE)


def heard(output: IO[str] | None) -> dict[str, float]:
    """Return what a process of this benchmark reports next."""
    line = output.readline() if output else ""
    if not line:
        raise SystemExit("a process of the benchmark has failed; its message is above")
    values: dict[str, float] = json.loads(line)
    return values


def tell(**values: float) -> None:
    """Report to the process that started us."""
    print(json.dumps(values), flush=True)


def center(*, directory: str = "", agents: int = 1) -> None:
    """Be the control center: tell the port, then what it took."""
    anyio.run(_serve, Path(directory), agents)


async def _serve(directory: Path, agents: int) -> None:
    counts = dict.fromkeys((AgentRegistered, channel.TaskStarted), 0)
    news = anyio.Event()

    def count(event: AgentEvent | AgentReport) -> None:
        nonlocal news
        if type(event) in counts:
            counts[type(event)] += 1
            if counts[type(event)] == agents:
                news.set()
                news = anyio.Event()

    controls = control_center(directory, count, 600)
    async with anyio.create_task_group() as tasks:
        port = await tasks.start(controls.serve, "127.0.0.1", 0)
        before, cpu = resident_mib(os.getpid()), time.process_time()
        tell(port=port)
        while counts[AgentRegistered] < agents:
            await news.wait()
        registered = time.monotonic()
        for placeholder in controls.connected:
            rank = str(placeholder.index)
            order = channel.Launch(task=rank, argv=("/bin/program", "--rank", rank), environment=ENVIRONMENT)
            controls.tell(placeholder, order)
        while counts[channel.TaskStarted] < agents:
            await news.wait()
        used, mib = time.process_time() - cpu, (resident_mib(os.getpid()) - before) / agents
        tell(registered=registered, launched=time.monotonic(), cpu=used, kib=1024 * mib)
        tasks.cancel_scope.cancel()


def bare(*, directory: str = "", agents: int = 1) -> None:
    """Shake hands, take one line, give one back, keep the connection: the least that any such server does."""
    context = server_context(load_or_create(Path(directory)))
    kept: list[ssl.SSLSocket] = []
    answered = 0
    with selectors.DefaultSelector() as selector, socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        listener.settimeout(0)
        selector.register(listener, selectors.EVENT_READ)
        before, cpu = resident_mib(os.getpid()), time.process_time()
        tell(port=listener.getsockname()[1])
        while answered < agents:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    connection.settimeout(0)
                    tls = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
                    selector.register(tls, selectors.EVENT_READ)
                    kept.append(tls)
                elif isinstance(key.fileobj, ssl.SSLSocket):
                    answered += answer(key.fileobj)
        now = time.monotonic()
        used, mib = time.process_time() - cpu, (resident_mib(os.getpid()) - before) / agents
        tell(registered=now, launched=now, cpu=used, kib=1024 * mib)


def answer(connection: ssl.SSLSocket) -> bool:
    """Go on with a connection of the bare server; True when its line was answered."""
    try:
        connection.do_handshake()
        connection.recv(65536)
        connection.send(channel.encode(channel.Welcome(lease=600, heartbeat=30)))
    except ssl.SSLWantReadError:
        return False
    return True


def client(*, port: int = 0, indices: str = "1:2") -> None:
    """Be some of the agents."""
    raise_files(0)
    SimulatedAgents(port, range(*map(int, indices.split(":")))).run()


class SimulatedAgents:
    """Many agents in one process, with no more than the channel needs."""

    def __init__(self, port: int, indices: range) -> None:
        self._port = port
        self._indices = iter(indices)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self._selector = selectors.DefaultSelector()
        self._decoders: dict[ssl.SSLSocket, channel.Decoder[channel.CenterMessage]] = {}
        """Of those that have shaken hands."""
        self._welcomed: set[ssl.SSLSocket] = set()

    def run(self) -> None:
        """Connect all when told to begin, answer every Launch, and go when the server goes."""
        tell(ready=1)
        sys.stdin.read()
        for index in islice(self._indices, HANDSHAKES_AT_ONCE):
            self._connect(index)
        while self._selector.get_map():
            for key, _ in self._selector.select():
                if isinstance(key.fileobj, ssl.SSLSocket):
                    self._advance(key.fileobj, key.data)

    def _connect(self, index: int) -> None:
        connection = socket.create_connection(("127.0.0.1", self._port))
        connection.settimeout(0)
        tls = self._context.wrap_socket(connection, do_handshake_on_connect=False)
        self._selector.register(tls, selectors.EVENT_READ, index)
        self._advance(tls, index)

    def _advance(self, connection: ssl.SSLSocket, index: int) -> None:
        try:
            if connection not in self._decoders:
                connection.do_handshake()
                connection.getpeercert(binary_form=True)
                self._decoders[connection] = channel.center_decoder()
                connection.send(channel.encode(_hello(index)))
            data = connection.recv(65536)
        except ssl.SSLWantReadError:
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(connection)
            connection.close()
            self._decoders.pop(connection, None)
            if connection not in self._welcomed:  # lost before it was registered: the server waits for it
                self._connect(index)
            return
        for message in self._decoders[connection].feed(data):
            if isinstance(message, channel.Launch):
                connection.send(channel.encode(channel.TaskStarted(task=message.task, pid=index)))
            elif isinstance(message, channel.Welcome):
                self._welcomed.add(connection)
                for another in islice(self._indices, 1):
                    self._connect(another)


def _hello(index: int) -> channel.Hello:
    return channel.Hello(
        batch=BATCH, index=index, token=TOKEN, session=f"session-{index}", lrm_id=str(index), host="node",
        address="127.0.0.1", pid=index, ends_in=3600.0, python="3.6.8",
    )  # fmt: skip


# -- Starting agents -----------------------------------------------------------------------------------------
# Real job scripts on this machine, all at once, with a real control center; no batch system. The baseline, in turns
# with them, are as many bare shell scripts that only say that they have begun.

PATIENCE = 120.0


def start(*, sizes: tuple[int, ...] = (1, 8, 64), repeat: int = 5) -> list[Row]:
    """Seconds until N agents are held, and milliseconds of processor time of each, held and to its end."""
    rows: list[Row] = []
    for size in sizes:
        ways: dict[str, Callable[[], dict[str, float]]] = {
            "bare": partial(bare_scripts, size),
            "agents": partial(anyio.run, agents_held, size),
        }
        rows += [{"N": size, **row} for row in median_rows(ways, repeat, "all held, s")]
    return rows


def used_by(pid: int) -> float:
    """Return the processor time of a process so far, in seconds (without that of its children)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def begin(script: Path, count: int, output: int | None = None) -> list[subprocess.Popen[bytes]]:
    """Start a script so many times, each with its index."""
    return [
        subprocess.Popen(
            ["/bin/sh", str(script)],
            env={"PATH": os.defpath, "INDEX": str(index)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            cwd="/",
        )
        for index in range(1, count + 1)
    ]


def processor_seconds(processes: Sequence[subprocess.Popen[bytes]]) -> float:
    """Wait for all and return the mean processor time."""
    total = 0.0
    for one in processes:
        _, status, usage = os.wait4(one.pid, 0)
        one.returncode = os.waitstatus_to_exitcode(status)
        assert one.returncode == 0, one.returncode
        total += usage.ru_utime + usage.ru_stime
    return total / len(processes)


def bare_scripts(count: int) -> dict[str, float]:
    """Start scripts that only say that they have begun."""
    reader, writer = os.pipe()
    with tempfile.TemporaryDirectory() as directory, os.fdopen(reader, "rb") as words:
        script = Path(directory) / "script"
        script.write_text("#!/bin/sh\necho begun\n")
        begun = time.monotonic()
        processes = begin(script, count, writer)
        os.close(writer)
        for _ in range(count):
            words.readline()
        seconds = time.monotonic() - begun
        used = 1000 * processor_seconds(processes)
    return {"all held, s": seconds, "held, ms": used, "to the end, ms": used}


async def agents_held(count: int) -> dict[str, float]:
    """Start agents, release them when all are held."""
    processes: list[subprocess.Popen[bytes]] = []
    used: list[float] = []
    all_here = anyio.Event()

    def hear(event: AgentEvent | AgentReport) -> None:
        if isinstance(event, AgentRegistered):
            used.append(used_by(processes[event.placeholder.index - 1].pid))
            if len(used) == count:
                all_here.set()

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        own = load_or_create(directory / "certificate")
        controls = control_center(directory / "certificate", hear, 60)
        async with anyio.create_task_group() as tasks:
            port = await tasks.start(controls.serve, "127.0.0.1", 0)
            config = AgentConfig(
                batch=BATCH, host="127.0.0.1", port=port, fingerprint=own.fingerprint, lease=60, walltime=600,
                token=TOKEN,
            )  # fmt: skip
            script = directory / "script"
            script.write_text(render_job_script(agent=config, array_index_variable="INDEX", job_id_variable=None))
            begun = time.monotonic()
            processes += begin(script, count)
            with anyio.fail_after(PATIENCE):
                await all_here.wait()
            seconds = time.monotonic() - begun
            for placeholder in controls.connected:
                controls.tell(placeholder, channel.Release(grace=1.0))
            whole = await anyio.to_thread.run_sync(processor_seconds, processes)
            tasks.cancel_scope.cancel()
    return {"all held, s": seconds, "held, ms": 1000 * sum(used) / count, "to the end, ms": 1000 * whole}


# -- Placeholders on Slurm -----------------------------------------------------------------------------------
# The baseline is a bare ``sbatch --array=1-N``, from the submission until the last of the N scripts has begun.


def held(*, sizes: tuple[int, ...] = (1, 8, 64), repeat: int = 5) -> list[Row]:
    """Seconds until N placeholders are held, and from there until the first output of the last rank is here.

    Needs the Debian packages slurmctld, slurmd and slurm-client, and root.
    """
    rows: list[Row] = []
    with SlurmCluster("bench", nodes=4, cpus=max(16, -(-max(sizes) // 4))) as cluster:
        for size in sizes:
            ways = {"bare": partial(bare_array, cluster, size), "koala": partial(koala_job, cluster, size)}
            found = {way: medians(turns) for way, turns in in_turns(ways, repeat).items()}
            ratio = found["koala"]["held, s"] / found["bare"]["bare array begun, s"]
            rows.append({"N": size, **found["bare"], **found["koala"], "ratio": ratio})
    return rows


def bare_array(cluster: SlurmCluster, size: int) -> dict[str, float]:
    """Return the seconds from a bare array's submission to the beginning of its last script."""
    with tempfile.TemporaryDirectory() as directory:
        script = f'#!/bin/sh\n: > "{directory}/$SLURM_ARRAY_TASK_ID"\nexec sleep {PATIENCE:g}\n'
        begun = time.time()
        cluster.submit(script, f"--array=1-{size}", "--ntasks=1", "--output=/dev/null", "--chdir=/tmp")
        until("the bare array", lambda: sum(1 for _ in os.scandir(directory)) == size, look=0.005)
        last = max(entry.stat().st_mtime for entry in os.scandir(directory))
    cluster.reset()
    return {"bare array begun, s": last - begun}


def koala_job(cluster: SlurmCluster, size: int) -> dict[str, float]:
    """Return the seconds from a job's submission to its last placeholder held, and from there to all first output."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        site = slurm_site(directory, cluster.conf, requests_per_minute=240, poll_interval=2)
        job, state = directory / "job.toml", directory / "state"
        job.write_text(f'walltime = 60\n[[components]]\ncommand = ["sh", "-c", "echo; sleep 2"]\nprocessors = {size}\n')
        command = [sys.executable, "-m", "koala_adapter.cli", "--site", str(site), "--state", str(state)]
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
        subprocess.run([*command, "run", "--quiet", str(job)], check=True, env=environment, timeout=PATIENCE)
        submitted, all_held = times(state / "journal.sqlite")
        output = max(path.stat().st_mtime for path in (state / "jobs" / "1").glob("*/*.out"))
        # The ranks write once, so the time of a file's last change is that of its first and only output.
    return {"held, s": all_held - submitted, "launched into all, s": output - all_held}


def times(journal: Path) -> tuple[float, float]:
    """Return when the placeholders were submitted and when the last one was held, as the journal has it."""
    with closing(sqlite3.connect(journal)) as database:
        found = database.execute("SELECT type, body FROM events ORDER BY number").fetchall()
    events = [(kind, json.loads(body)["time"]) for kind, body in found]
    taken = min(at for kind, at in events if kind == "BatchSubmitted")
    submitted = max(at for kind, at in events if kind in {"JobSubmitted", "ClusterPolled"} and at <= taken)
    return submitted, max(at for kind, at in events if kind == "PlaceholderHeld")


if __name__ == "__main__":
    main(many, start, held, helpers=(center, bare, client))

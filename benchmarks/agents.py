# SPDX-License-Identifier: Apache-2.0
"""How many agents can one control center hold? Time, CPU and memory for N of them over real TLS sockets.

The agents are simulated: they speak the channel, each over a TLS connection of its own, but share a few processes. In
the same run the same number of peers does no more than a TLS handshake, one line there and one line back, with a server
written straight upon the standard library's sockets; the ratios to that say what the control center adds.

    python benchmarks/agents.py [--agents 5000] [--clients 2] [--limit 600] [--json]

Each process ends after the limit, in seconds, and says how far it was.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import selectors
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import anyio

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import cutoff
from koala_adapter.model import BatchKey, PlaceholderId
from koala_adapter.vjm import channel
from koala_adapter.vjm.center import ControlCenter
from koala_adapter.vjm.certificate import digest, load_or_create, matches, server_context
from koala_adapter.vjm.listener import AgentEvent, AgentListener, AgentRegistered, AgentTaskStarted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH = BatchKey("koala-benchmark")
TOKEN = "a-token-that-guards-nothing-at-all"  # noqa: S105 - lives for the length of a benchmark
HANDSHAKES_AT_ONCE = 100
"""Of one client process, so that it does not run out of its own time for each."""

ENVIRONMENT = tuple((f"KOALA_VARIABLE_{number}", "a value of usual length") for number in range(20))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a server used for N peers."""

    seconds_to_register: float
    """From the start of the clients until the last has its answer to the first line."""
    seconds_to_launch: float
    """From the first order until the last agent has said that its task runs."""
    cpu_seconds: float
    """Of the server, for both."""
    kib_per_agent: float
    """Growth of the server's resident memory, divided by N."""


def resident_kib() -> int:
    """Return the resident memory of this process (proc(5), statm)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def limit_to(seconds: int, progress: Callable[[], str]) -> None:
    """End this process after so many seconds, and say on standard error how far it was."""

    def end(_number: int, _frame: object) -> None:
        sys.stderr.write(f"benchmarks/agents.py: not done after {seconds} s: {progress()}\n")
        sys.stderr.flush()
        os._exit(1)

    signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)


def tell(**values: float) -> None:
    """Report to the process that started us."""
    print(json.dumps(values), flush=True)


class Count(AgentListener):
    """Counts what agents report, for one control center."""

    def __init__(self, agents: int) -> None:
        self.agents = agents
        self._stored = digest(TOKEN)
        self.owners: dict[PlaceholderId, str] = {}
        self.registered = 0
        self.started = 0
        self.news = anyio.Event()

    def admits(self, placeholder: PlaceholderId, token: str) -> bool:
        """Admit agents with the token."""
        del placeholder
        return matches(token, self._stored)

    def output_path(self, placeholder: PlaceholderId, task: str) -> None:
        """Drop the output."""

    def bound_session(self, placeholder: PlaceholderId) -> str | None:
        """Return who owns ``placeholder``."""
        return self.owners.get(placeholder)

    def bind(self, placeholder: PlaceholderId, session_hash: str) -> None:
        """Remember it."""
        self.owners[placeholder] = session_hash

    def on_event(self, event: AgentEvent) -> None:
        """Count it."""
        self.registered += isinstance(event, AgentRegistered)
        self.started += isinstance(event, AgentTaskStarted)
        if self.agents in (self.registered, self.started):
            self.news.set()
            self.news = anyio.Event()


async def serve_agents(directory: Path, agents: int, limit: int) -> None:
    """Be the control center: tell the port, then each milestone."""
    count = Count(agents)
    limit_to(limit, lambda: f"center: {count.registered} of {agents} agents registered, {count.started} started")
    center = ControlCenter(count, server_context(load_or_create(directory)), lease=600, heartbeat=30)
    async with anyio.create_task_group() as tasks:
        port = await tasks.start(center.serve, "127.0.0.1", 0)
        before, cpu = resident_kib(), time.process_time()
        tell(port=port)
        while count.registered < agents:
            await count.news.wait()
        registered = time.monotonic()
        for placeholder in center.connected:
            rank = str(placeholder.index)
            order = channel.Launch(task=rank, argv=("/bin/program", "--rank", rank), environment=ENVIRONMENT)
            center.launch(placeholder, order)
        while count.started < agents:
            await count.news.wait()
        tell(
            registered=registered,
            launched=time.monotonic(),
            cpu=time.process_time() - cpu,
            kib=(resident_kib() - before) / agents,
        )
        tasks.cancel_scope.cancel()


def serve_bare(directory: Path, agents: int, limit: int) -> None:
    """Shake hands, take one line, give one back, keep the connection: the least that any such server does."""
    context = server_context(load_or_create(directory))
    kept: list[ssl.SSLSocket] = []
    answered = 0
    limit_to(limit, lambda: f"bare server: {answered} of {agents} agents answered")
    with selectors.DefaultSelector() as selector, socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        listener.settimeout(0)
        selector.register(listener, selectors.EVENT_READ)
        before, cpu = resident_kib(), time.process_time()
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
        tell(registered=now, launched=now, cpu=time.process_time() - cpu, kib=(resident_kib() - before) / agents)


def answer(connection: ssl.SSLSocket) -> bool:
    """Go on with a connection of the bare server; True when its line was answered."""
    try:
        connection.do_handshake()
        connection.recv(65536)
        connection.send(channel.encode(channel.Welcome(lease=600, heartbeat=30)))
    except ssl.SSLWantReadError:
        return False
    return True


class SimulatedAgents:
    """Many agents in one process, with no more than the channel needs."""

    def __init__(self, port: int, indices: range, limit: int) -> None:
        self._port = port
        self._agents = len(indices)
        self._limit = limit
        self._indices = iter(indices)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self._selector = selectors.DefaultSelector()
        self._greeted: set[ssl.SSLSocket] = set()
        self._decoders: dict[ssl.SSLSocket, channel.Decoder[channel.CenterMessage]] = {}
        self._welcomed: set[ssl.SSLSocket] = set()

    def run(self) -> None:
        """Connect all when told to begin, answer every Launch, and go when the server goes."""
        limit_to(self._limit, lambda: f"client: {len(self._welcomed)} of {self._agents} agents welcomed")
        tell(ready=1)
        sys.stdin.read()
        for _ in range(HANDSHAKES_AT_ONCE):
            self._dial()
        while self._selector.get_map():
            for key, _ in self._selector.select():
                if isinstance(key.fileobj, ssl.SSLSocket):
                    self._advance(key.fileobj, key.data)

    def _dial(self) -> None:
        index = next(self._indices, None)
        if index is not None:
            self._connect(index)

    def _connect(self, index: int) -> None:
        try:
            connection = socket.create_connection(("127.0.0.1", self._port), timeout=self._limit)
        except ConnectionRefusedError as error:
            raise SystemExit(f"client: the server is gone, and agent {index} was never welcomed") from error
        connection.settimeout(0)
        tls = self._context.wrap_socket(connection, do_handshake_on_connect=False)
        self._decoders[tls] = channel.center_decoder()
        self._selector.register(tls, selectors.EVENT_READ, index)
        self._advance(tls, index)

    def _advance(self, connection: ssl.SSLSocket, index: int) -> None:
        try:
            if connection not in self._greeted:
                connection.do_handshake()
                connection.getpeercert(binary_form=True)
                self._greeted.add(connection)
                connection.send(channel.encode(self._hello(index)))
            data = connection.recv(65536)
        except ssl.SSLWantReadError:
            return
        except OSError:
            data = b""
        for message in self._decoders[connection].feed(data):
            if isinstance(message, channel.Launch):
                connection.send(channel.encode(channel.TaskStarted(task=message.task, pid=index)))
            elif isinstance(message, channel.Welcome):
                self._welcomed.add(connection)
                self._dial()
        if not data:
            self._selector.unregister(connection)
            connection.close()
            del self._decoders[connection]
            if connection not in self._welcomed:  # lost before it was registered: the server waits for it
                self._connect(index)

    @staticmethod
    def _hello(index: int) -> channel.Hello:
        return channel.Hello(
            batch=BATCH, index=index, token=TOKEN, session=f"session-{index}", lrm_id=str(index), host="node",
            address="127.0.0.1", pid=index, ends_in=3600.0, python="3.6.8",
        )  # fmt: skip


@contextmanager
def started(role: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process of this benchmark, and kill it at the end if it is still there."""
    command = [sys.executable, __file__, "--role", role, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def heard(output: IO[str] | None) -> dict[str, float]:
    """Return what a process of this benchmark reports next."""
    line = output.readline() if output else ""
    if not line:
        raise SystemExit("a process of the benchmark has failed; its message is above")
    values: dict[str, float] = json.loads(line)
    return values


def measure(role: str, agents: int, clients: int, limit: int) -> Measured:
    """Run one server against N simulated agents."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        limited = ("--limit", str(limit))
        server = stack.enter_context(started(role, "--agents", str(agents), "--directory", directory, *limited))
        port = int(heard(server.stdout)["port"])
        shares = [f"{1 + agents * i // clients}:{1 + agents * (i + 1) // clients}" for i in range(clients)]
        processes = [
            stack.enter_context(started("client", "--port", str(port), "--indices", share, *limited))
            for share in shares
        ]
        for process in processes:
            heard(process.stdout)
        begin = time.monotonic()
        for process in processes:
            if process.stdin:
                process.stdin.close()
        result = heard(server.stdout)
        for process in (server, *processes):
            process.wait(timeout=60)
    return Measured(
        seconds_to_register=round(result["registered"] - begin, 2),
        seconds_to_launch=round(result["launched"] - result["registered"], 2),
        cpu_seconds=round(result["cpu"], 2),
        kib_per_agent=round(result["kib"], 1),
    )


def report(agents: int, clients: int, limit: int, *, as_json: bool) -> None:
    """Measure both servers and print what came out."""
    bare = measure("bare", agents, clients, limit)
    center = measure("center", agents, clients, limit)
    total = center.seconds_to_register + center.seconds_to_launch
    ratios = {
        "seconds": round(total / bare.seconds_to_register, 2),
        "cpu_seconds": round(center.cpu_seconds / bare.cpu_seconds, 2),
        "kib_per_agent": round(center.kib_per_agent / bare.kib_per_agent, 2),
    }
    if as_json:
        print(json.dumps({"agents": agents, "center": asdict(center), "bare": asdict(bare), "ratios": ratios}))
        return
    print(f"{agents} agents over TLS, simulated by {clients} processes, {os.cpu_count()} processors")
    print(f"{'':24}{'control center':>16}{'bare TLS':>12}{'ratio':>8}")
    print(f"{'register, s':24}{center.seconds_to_register:16.2f}{bare.seconds_to_register:12.2f}")
    print(f"{'launch into all, s':24}{center.seconds_to_launch:16.2f}")
    print(f"{'total, s':24}{total:16.2f}{bare.seconds_to_register:12.2f}{ratios['seconds']:8.2f}")
    print(f"{'CPU of the server, s':24}{center.cpu_seconds:16.2f}{bare.cpu_seconds:12.2f}{ratios['cpu_seconds']:8.2f}")
    memory = f"{center.kib_per_agent:16.1f}{bare.kib_per_agent:12.1f}{ratios['kib_per_agent']:8.2f}"
    print(f"{'memory, KiB per agent':24}{memory}")


def main() -> None:
    """Read the command line, and be one of the processes that this takes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--agents", type=int, default=5000, help="number of simulated agents (default 5000)")
    parser.add_argument("--clients", type=int, default=2, help="processes that simulate them (default 2)")
    parser.add_argument("--limit", type=int, default=600, help="seconds after which it ends (default 600)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    for hidden in ("--role", "--port", "--indices", "--directory"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if 0 <= hard < options.agents + 100:
        raise SystemExit(f"{options.agents} agents need as many descriptors, the limit is {hard}: see ulimit -Hn")
    match options.role:
        case "center":
            anyio.run(serve_agents, Path(options.directory), options.agents, options.limit)
        case "bare":
            serve_bare(Path(options.directory), options.agents, options.limit)
        case "client":
            SimulatedAgents(int(options.port), range(*map(int, options.indices.split(":"))), options.limit).run()
        case _:
            cutoff.begin(2 * options.limit)
            report(options.agents, options.clients, options.limit, as_json=options.json)


if __name__ == "__main__":
    main()

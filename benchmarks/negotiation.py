# SPDX-License-Identifier: Apache-2.0
"""How long a whole negotiation takes: open, exchange, close, for 1 to 5 rounds, by TCP on loopback and by Unix socket.

In a round the application makes an offer and resource management answers it: with a counter-offer, in the last round
with its acceptance, after which the application commits and closes. The baselines of the same run exchange the very
same bytes without looking at them: an echo in C, where there is a compiler, and one in Python. *modules*: koala's own
modules on both sides, both validating against the schema, over blocking sockets. *listener*: the module for
applications against koala's listener, which validates and reserves; by TCP with a one-time token. Milliseconds as
measured by the application: the median of all repetitions and, on a machine that does other work too, the least; and
the processor time of both sides together, on which other work has less influence. Every server is a process of its own.

The ways take turns, so that other work is the same for all: each does a block of negotiations in a row, of which those
of the first tenth are not counted, because what the others have left in the processor's caches is no matter of the
protocol. With ``--block 1`` each negotiation finds the caches as the other ways have left them, as one does that comes
once in a while.

Where the two sides run makes more difference than all else: on two processors each message wakes the other one, which
takes the echo, too, up to twice as long, in processor time as well. Left alone, the kernel chooses anew every second or
so, and not for all ways alike. So both sides are bound: once to the same processor, once to two. ``--unbound`` leaves
them to the kernel.

Last, what each of 10,000 negotiations costs that are open at once in one process.

    python benchmarks/negotiation.py [--repeat 1000] [--block 100] [--rounds 5] [--unbound] [--json]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import anyio

from benchmarks import cutoff
from koala_adapter import negotiation as nt
from koala_adapter.negotiation.serviceside.endpoint import Endpoint, Limits, OfferAccepted, OfferReceived
from koala_adapter.negotiation.serviceside.states import ENDED, State
from koala_adapter.negotiation.serviceside.template import (
    CPU,
    Direction,
    Resource,
    ResourceKey,
    Side,
    Template,
    accepted,
    committed,
    countered,
)
from koala_adapter.service.sizes.port import OneTimeTokens, PeerListener
from tests.granting import Conversation, Granter, Promised, ReservationBook, serve_unix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from anyio.abc import SocketStream

Address: TypeAlias = tuple[str, int] | str
"""Of TCP, or the path of a Unix socket."""

PUBLISHED = (0.03, 0.04, 0.12, 0.20, 0.28)
"""Milliseconds for 1 to 5 rounds, Ghafoor and others 2005; between which machines is not said."""
PROCESSORS = ResourceKey(type=CPU)
WANTED = 100
MANY = 10_000
SETTLED = {State.AGREED, *ENDED}
LIMITS = Limits(most_rounds=100, most_kept=4)
ECHO_IN_C = r"""
#include <signal.h>
#include <stdlib.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int count, char **words) {
    int listening = atoi(words[1]), one = 1;
    static char buffer[1 << 16];
    signal(SIGPIPE, SIG_IGN);
    for (;;) {
        int peer = accept(listening, 0, 0);
        ssize_t size;
        setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        while ((size = read(peer, buffer, sizeof buffer)) > 0)
            if (write(peer, buffer, size) < 0) break;
        close(peer);
    }
}
"""


def wish() -> Template:
    """Return the application's first offer."""
    return Template(
        agreement_id="1", initiator=Side.APPLICATION, source="node7", dest="head", direction=Direction.GROW,
        resources=(Resource(type=CPU, quantity=WANTED),),
    )  # fmt: skip


def answer_of(event: OfferReceived, rounds: int) -> Template:
    """Return what resource management says: in the last round, that it accepts."""
    asked = event.template.quantity(CPU)
    last = (event.template.round or 1) >= 2 * rounds - 1
    return accepted(event.template) if last else countered(event.template, {PROCESSORS: asked - 1})


def conversation(rounds: int) -> list[tuple[bytes, int]]:
    """Return what an application writes and how many bytes it gets for it, of each exchange of a negotiation."""
    rms, application = make_ends()
    application.send(wish(), 0)
    exchanges = []
    while data := application.data_to_send():
        for event in rms.receive(data, 0):
            if isinstance(event, OfferReceived):
                rms.send(answer_of(event, rounds), 0)
        answer = rms.data_to_send()
        exchanges.append((data, len(answer)))
        for event in application.receive(answer, 0):
            react(application, event)
    return exchanges


def make_ends() -> tuple[Endpoint, Endpoint]:
    """Return both sides."""
    return rms_end(), application_end()


def rms_end() -> Endpoint:
    """Return the side of resource management."""
    return Endpoint(side=Side.RMS, host="head", peer="node7", limits=LIMITS)


def application_end() -> Endpoint:
    """Return the side of the application."""
    return Endpoint(side=Side.APPLICATION, host="node7", peer="head", limits=LIMITS)


def react(application: Endpoint, event: object) -> None:
    """Have an application go one lower, or commit."""
    if isinstance(event, OfferReceived):
        asked = event.template.quantity(CPU)
        application.send(countered(event.template, {PROCESSORS: asked - 1}), 0)
    elif isinstance(event, OfferAccepted):
        application.send(committed(event.template), 0)


def opened(address: Address) -> socket.socket:
    """Return a connection."""
    if isinstance(address, str):
        stream = socket.socket(socket.AF_UNIX)
    else:
        stream = socket.socket(socket.AF_INET)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.connect(address)
    return stream


def echo_once(address: Address, exchanges: list[tuple[bytes, int]]) -> None:
    """Exchange the bytes of a negotiation with an echo; what is said last is not waited for."""
    with opened(address) as stream:
        for data, answered in exchanges:
            stream.sendall(data)
            missing = len(data) if answered else 0
            while missing:
                got = len(stream.recv(65536))
                assert got, "the echo has gone"
                missing -= got


def negotiate_once(address: Address) -> None:
    """Negotiate with koala's modules on both sides."""
    application = application_end()
    with opened(address) as stream:
        key = application.send(wish(), 0)
        while True:
            stream.sendall(application.data_to_send())
            if application.state(key) in SETTLED:
                return
            for event in application.receive(stream.recv(65536), 0):
                react(application, event)


def negotiate_with_listener(address: Address, token: str) -> None:
    """Negotiate as an application does."""
    end = nt.Endpoint(most_rounds=LIMITS.most_rounds)
    first = nt.template("1", "APPLICATION", "node7", "head", [nt.resource("CPU", WANTED)], direction="grow")
    connection = nt.connect_unix(address, end) if isinstance(address, str) else nt.connect(*address, token, end)
    connection.send(first)
    while (event := connection.recv(30)) is not None:
        assert event.template is not None, event
        if event.kind == "accepted":
            connection.send(nt.committed(event.template))
            break
        quantity = event.template.quantity("CPU")
        connection.send(nt.countered(event.template, {("CPU", "", ""): quantity - 1}))
    connection.close()


def serve_echo(listening: socket.socket) -> None:
    """Send back what comes, connection after connection."""
    while True:
        stream, _ = listening.accept()
        with stream, suppress(OSError):
            while data := stream.recv(65536):
                stream.sendall(data)


def serve_modules(listening: socket.socket, rounds: int) -> None:
    """Answer as resource management, with koala's modules over blocking sockets."""
    while True:
        stream, _ = listening.accept()
        rms = rms_end()
        with stream, suppress(OSError):
            while data := stream.recv(65536):
                for event in rms.receive(data, 0):
                    if isinstance(event, OfferReceived):
                        rms.send(answer_of(event, rounds), 0)
                stream.sendall(rms.data_to_send())


def serve_listener(address: Address, rounds: int, tokens: int, told: Connection) -> None:
    """Run koala's listener; tell the port and the tokens."""

    async def converse(application: str, stream: SocketStream) -> None:
        book: ReservationBook[Promised] = ReservationBook({PROCESSORS: WANTED})
        endpoint = rms_end()
        granter = Granter(application, endpoint, book)

        def handle(event: object, now: float) -> None:
            if isinstance(event, OfferReceived) and (event.template.round or 1) < 2 * rounds - 1:
                endpoint.send(answer_of(event, rounds), now)
            elif isinstance(event, OfferReceived):
                granter.handle(event, now)

        await Conversation(stream, endpoint, handle).run()

    async def serve() -> None:
        kept = OneTimeTokens()
        listener = PeerListener(converse, kept)
        async with anyio.create_task_group() as tasks:
            if isinstance(address, str):
                await tasks.start(serve_unix, Path(address), converse)
                told.send((address, []))
            else:
                port = await tasks.start(listener.serve_tcp)
                told.send((("127.0.0.1", port), [kept.issue("application") for _ in range(tokens)]))

    anyio.run(serve)


@contextmanager
def served(work: Callable[..., None], *arguments: object) -> Iterator[int]:
    """Run a server in a process of its own, whose number is returned."""
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments, daemon=True)
    process.start()
    assert process.pid is not None
    try:
        yield process.pid
    finally:
        process.kill()
        process.join()


@contextmanager
def listening_socket(address: Address) -> Iterator[tuple[socket.socket, Address]]:
    """Listen by TCP on a free port, or on a path."""
    stream = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    with stream:
        stream.bind(address)
        stream.listen(100)
        yield stream, stream.getsockname()
    if isinstance(address, str):
        Path(address).unlink()


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Milliseconds that the same work took."""

    median: float
    least: float
    processor: float
    """Of both sides, on average."""

    def __str__(self) -> str:
        """All in a cell of a table."""
        return f"{self.median:.3f} ({self.least:.3f}) {self.processor:.3f}"


@dataclass(slots=True)
class Way:
    """One way to exchange a negotiation, and what it took so far."""

    work: Callable[[], None]
    server: int
    """Its process."""
    used: float = 0.0
    """Seconds of processor time of both processes."""
    seconds: list[float] = field(default_factory=list)

    def block(self, warm_up: int, count: int) -> None:
        """Do it so many times in a row, after some that are not counted."""
        for _ in range(warm_up):
            self.work()
        used = time.process_time() + processor_time(self.server)
        for _ in range(count):
            begin = time.perf_counter()
            self.work()
            self.seconds.append(time.perf_counter() - begin)
        self.used += time.process_time() + processor_time(self.server) - used

    def times(self) -> Times:
        """Return what it took."""
        return Times(
            median=statistics.median(self.seconds) * 1000,
            least=min(self.seconds) * 1000,
            processor=self.used / len(self.seconds) * 1000,
        )


def processor_time(process: int) -> float:
    """Return the seconds that all threads of a process have had a processor."""
    tasks = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(one.read_text(encoding="ascii").split()[0]) for one in tasks) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How often and where the same is measured."""

    repeat: int
    block: int
    """Negotiations of one way in a row."""
    client: frozenset[int]
    """The processors on which the application may run."""
    server: frozenset[int]


def placements(*, unbound: bool) -> dict[str, tuple[frozenset[int], frozenset[int]]]:
    """Return on which processors application and server may run, by what that is called."""
    allowed = sorted(os.sched_getaffinity(0))
    if unbound:
        return {"unbound": (frozenset(allowed), frozenset(allowed))}
    first, last = frozenset(allowed[:1]), frozenset(allowed[-1:])
    return {"one processor": (first, first)} | ({"two processors": (first, last)} if first != last else {})


def measured(address: Address, rounds: int, setting: Setting, echo: Path | None) -> dict[str, Times]:
    """Return what each way to do so many rounds takes; they take turns, in blocks."""
    repeat, block = setting.repeat, setting.block
    warm_up = block // 10
    exchanges = conversation(rounds)
    ways: dict[str, Way] = {}
    with ExitStack() as servers:

        def listen() -> tuple[socket.socket, Address]:
            place = f"{address}{len(ways)}" if isinstance(address, str) else address
            return servers.enter_context(listening_socket(place))

        if echo is not None:
            listening, where = listen()
            fd = listening.fileno()
            process = servers.enter_context(subprocess.Popen([echo, str(fd)], pass_fds=[fd]))
            servers.callback(process.kill)
            ways["echo in C"] = Way(partial(echo_once, where, exchanges), process.pid)
        listening, where = listen()
        pid = servers.enter_context(served(serve_echo, listening))
        ways["echo in Python"] = Way(partial(echo_once, where, exchanges), pid)
        listening, where = listen()
        pid = servers.enter_context(served(serve_modules, listening, rounds))
        ways["modules"] = Way(partial(negotiate_once, where), pid)
        here, there = multiprocessing.Pipe()
        pid = servers.enter_context(served(serve_listener, address, rounds, repeat // block * (block + warm_up), there))
        listener, tokens = here.recv()
        left = iter(tokens)
        ways["listener"] = Way(lambda: negotiate_with_listener(listener, next(left, "")), pid)
        servers.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        os.sched_setaffinity(0, setting.client)
        for way in ways.values():
            os.sched_setaffinity(way.server, setting.server)
        for _ in range(repeat // block):
            for way in ways.values():
                way.block(warm_up, block)
        found = {name: way.times() for name, way in ways.items()}
    if isinstance(address, str):
        Path(address).unlink()
    return found


def opened_at_once(many: int) -> tuple[float, float]:
    """Return microseconds of processor time and KiB of memory of one of so many open negotiations in one process.

    Each has an end of its own, and was answered with a promise from the book that all share.
    """
    application = application_end()
    application.send(wish(), 0)
    first = application.data_to_send()

    def opened_by(count: int) -> list[Granter]:
        book: ReservationBook[Promised] = ReservationBook({PROCESSORS: WANTED * count})
        granters = []
        for number in range(count):
            rms = rms_end()
            granters.append(Granter(str(number), rms, book))
            for event in rms.receive(first, 0):
                granters[-1].handle(event, 0)
            rms.data_to_send()
        assert len(book.holders()) == count
        return granters

    begin = time.process_time()
    opened_by(many)
    taken = time.process_time() - begin
    tracemalloc.start()
    kept = opened_by(1000)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / many * 1e6, size / len(kept) / 1024


def compiled(directory: Path) -> Path | None:
    """Return the echo in C; None: there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    source, program = directory / "echo.c", directory / "echo"
    source.write_text(ECHO_IN_C, encoding="utf-8")
    subprocess.run([compiler, "-O2", "-o", program, source], check=True)
    return program


def shown(results: dict[str, list[dict[str, Times]]]) -> None:
    """Print the tables."""
    for transport, rows in results.items():
        print(f"{transport}, milliseconds: median (least), and processor time of both sides")
        print("rounds  published", *(f"{name:>24}" for name in rows[0]), "  modules / echo in Python")
        for number, row in enumerate(rows, 1):
            published = f"{PUBLISHED[number - 1]:.2f}" if number <= len(PUBLISHED) else ""
            koala, echo = row["modules"], row["echo in Python"]
            median, least, processor = (
                f"{getattr(koala, name) / getattr(echo, name):.1f}" for name in ("median", "least", "processor")
            )
            print(
                f"{number:>6}  {published:>9}", *(f"{one!s:>24}" for one in row.values()),
                f"  {median} of medians, {least} of least, {processor} of processor time",
            )  # fmt: skip


def main() -> None:
    """Measure all, and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=1000)
    parser.add_argument("--block", type=int, default=100, help="negotiations of one way in a row")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--unbound", action="store_true", help="leave to the kernel where both sides run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    cutoff.begin()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        echo = compiled(directory)
        places = placements(unbound=given.unbound)
        addresses: dict[str, Address] = {"TCP": ("127.0.0.1", 0), "Unix socket": str(directory / "nt.sock")}
        results = {
            f"{transport}, {where}": [
                measured(
                    address, rounds,
                    Setting(repeat=given.repeat, block=given.block, client=client, server=server), echo,
                )
                for rounds in range(1, given.rounds + 1)
            ]
            for transport, address in addresses.items()
            for where, (client, server) in places.items()
        }  # fmt: skip
    time_each, memory_each = opened_at_once(MANY)
    if given.json:
        plain: dict[str, object] = {
            transport: [{name: asdict(one) for name, one in row.items()} for row in rows]
            for transport, rows in results.items()
        }
        plain["open at once"] = {"negotiations": MANY, "microseconds each": time_each, "KiB each": memory_each}
        print(json.dumps(plain, indent=2))
    else:
        shown(results)
        print(f"{MANY} open at once: {time_each:.0f} us of processor time and {memory_each:.1f} KiB each")


if __name__ == "__main__":
    main()

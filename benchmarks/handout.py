# SPDX-License-Identifier: Apache-2.0
"""How many tasks can be handed out and taken in again in a second, when doing them takes no time.

This bounds sweeps and executors on any number of nodes. Launchers and workers are simulated: a process with a
connection for each of them, which answers at once. In the same run, as the baseline, the same process plays with a
server of the standard library's streams, which sends a frame of the same kind for each answer and knows nothing.

    python benchmarks/handout.py [--tasks 20000] [--pullers 64] [--repeat 3] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pickle
import selectors
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks import cutoff  # noqa: E402 - needs the path set above
from koala_adapter.model import Component, Job, JobId, JobKind, RunnerName, Sweep  # noqa: E402 - needs the path set above
from koala_adapter.python.executor import (  # noqa: E402
    Task,
    TaskServer,
)
from koala_adapter.service.sweeps import (  # noqa: E402
    Contact,
    RunningSweep,
    SweepFiles,
)
from koala_adapter.tasks.connection import (  # noqa: E402
    LENGTH,
    connected,
    received,
    sent,
)
from koala_adapter.tasks.server import (  # noqa: E402
    TOKEN_BYTES,
    listening_socket,
)
from koala_adapter.tasks.sweep import (  # noqa: E402
    Expansion,
    range_axis,
)
from koala_adapter.vjm.certificate import load_or_create, server_context  # noqa: E402

if TYPE_CHECKING:
    from koala_adapter.vjm.certificate import Certificate

HOST = "127.0.0.1"
TOKEN = "17" * TOKEN_BYTES
TASK = json.dumps({"task": 1, "attempt": 1, "argv": ["/bin/true", "1"]}).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Tasks in a second, and what one costs the process that hands it out."""

    rate: float
    milliseconds: float
    """Of processor time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Medians, and the ratio of processor time to that of the baseline."""

    what: str
    rate: float
    milliseconds: float
    ratio: float


def main() -> None:
    """Measure and print, or answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--pullers", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--answer", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer(*options.answer, pullers=options.pullers)
        return
    cutoff.begin()
    found: dict[str, list[Rate]] = {"bare": [], "sweep": [], "executor": []}
    for _ in range(options.repeat):
        for what, measure in (("bare", bare), ("sweep", swept), ("executor", executed)):
            with tempfile.TemporaryDirectory() as directory:
                found[what].append(measure(Path(directory), options.tasks, options.pullers))
    middle = {what: statistics.median(one.milliseconds for one in rates) for what, rates in found.items()}
    rows = [
        Row(
            what=what,
            rate=round(statistics.median(one.rate for one in rates), 1),
            milliseconds=round(middle[what], 3),
            ratio=round(middle[what] / middle["bare"], 2),
        )
        for what, rates in found.items()
    ]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"{'':10} {'tasks/s':>8} {'ms each':>8} {'ratio':>6}")
    for row in rows:
        print(f"{row.what:10} {row.rate:8.0f} {row.milliseconds:8.3f} {row.ratio:6.2f}")


def bare(directory: Path, tasks: int, pullers: int) -> Rate:
    """Measure a server that only sends and receives."""
    return asyncio.run(_bare(load_or_create(directory / "certificate"), tasks, pullers))


async def _bare(certificate: Certificate, tasks: int, pullers: int) -> Rate:
    left = tasks
    over = asyncio.Event()
    conversations: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        own = asyncio.current_task()
        assert own is not None
        conversations.add(own)
        try:
            await reader.readexactly(TOKEN_BYTES)
            while left > 0:
                (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                await reader.readexactly(size)
                writer.write(LENGTH.pack(len(TASK)) + TASK)
                left -= 1
        except (OSError, EOFError):
            pass
        over.set()
        writer.transport.abort()

    server = await asyncio.start_server(serve, HOST, 0, ssl=server_context(certificate))
    begun, used = time.monotonic(), time.process_time()
    with answering(server.sockets[0].getsockname()[1], certificate, TOKEN, "sweep", pullers):
        await over.wait()
        rate = Rate(rate=tasks / (time.monotonic() - begun), milliseconds=1000 * (time.process_time() - used) / tasks)
    server.close()
    await asyncio.wait(conversations)
    return rate


def swept(directory: Path, tasks: int, pullers: int) -> Rate:
    """Measure the running sweep of a service."""
    return asyncio.run(_swept(directory, tasks, pullers))


async def _swept(directory: Path, tasks: int, pullers: int) -> Rate:
    over = asyncio.Event()
    axis = range_axis("number", f"1..{tasks}")
    assert axis is not None
    plan = Sweep(axes=(axis,), repeats=0)
    job = Job(
        id=JobId("1"),
        name="sweep",
        kind=JobKind.MALLEABLE,
        components=(Component(name="c", command=("/bin/true", "{number}"), minimum=1, maximum=pullers),),
        walltime=60,
        user="u",
        submitted_at=0.0,
        runner=RunnerName.SWEEP,
        sweep=plan,
    )
    files = SweepFiles(directory / "sweep")
    files.keep(job)
    sweep = RunningSweep(job, files, Expansion(plan, {}), changed=lambda: over.set() if sweep.over else None)
    with listening_socket(HOST) as free:
        port = int(free.getsockname()[1])
    certificate = load_or_create(directory / "certificate")
    sweep.listen(HOST, Contact(port=port, token=TOKEN), certificate)
    begun, used = time.monotonic(), time.process_time()
    with answering(port, certificate, TOKEN, "sweep", pullers):
        await over.wait()
        rate = Rate(rate=tasks / (time.monotonic() - begun), milliseconds=1000 * (time.process_time() - used) / tasks)
    assert sweep.progress.done == tasks
    await sweep.close()
    return rate


def executed(directory: Path, tasks: int, pullers: int) -> Rate:
    """Measure the task server of an Executor."""
    certificate = load_or_create(directory / "certificate")
    server = TaskServer(HOST, certificate)
    payload = pickle.dumps((time.sleep, (0.0,), {}))
    begun, used = time.monotonic(), time.process_time()
    with answering(server.port, certificate, server.token.hex(), "executor", pullers):
        futures: list[Future[Any]] = [Future() for _ in range(tasks)]
        for future in futures:
            server.add(Task(payload, future))
        assert not wait(futures).not_done
        rate = Rate(rate=tasks / (time.monotonic() - begun), milliseconds=1000 * (time.process_time() - used) / tasks)
        server.close()
    return rate


class answering:  # noqa: N801 - to be read as a verb
    """A process that answers for all pullers during the block."""

    def __init__(self, port: int, certificate: Certificate, token: str, kind: str, pullers: int) -> None:
        """``kind``: sweep or executor."""
        said = [str(port), certificate.fingerprint, token, kind, "--pullers", str(pullers)]
        self._process = subprocess.Popen([sys.executable, __file__, "--answer", *said])

    def __enter__(self) -> None:
        """It has begun."""

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def answer(port: str, fingerprint: str, token: str, kind: str, *, pullers: int) -> None:
    """Be all pullers, until killed."""
    done = pickle.dumps((True, None))
    with selectors.DefaultSelector() as selector:
        for _ in range(pullers):
            line = connected(HOST, int(port), fingerprint)
            line.sendall(bytes.fromhex(token))
            if kind == "sweep":
                sent(line, b'{"cluster": "alpha", "host": "node"}')
            selector.register(line, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                asked = key.fileobj
                assert isinstance(asked, ssl.SSLSocket)
                frame = received(asked)
                if frame is None:
                    selector.unregister(asked)
                    continue
                sent(asked, done if kind == "executor" else of_task(frame))


def of_task(frame: bytes) -> bytes:
    """Return what a launcher says of a task that printed nothing."""
    task = json.loads(frame)
    head = {
        "task": task.get("task", 0),
        "attempt": task.get("attempt", 0),
        "status": 0,
        "seconds": 0.01,
        "out": 0,
        "err": 0,
    }
    return json.dumps(head).encode() + b"\n"


if __name__ == "__main__":
    main()

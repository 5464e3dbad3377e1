# SPDX-License-Identifier: Apache-2.0
"""Many short tasks: how many koala and others do in a second, and how many can be handed out.

python -m benchmarks.tasks done [--commands 5000] [--functions 20000] [--placeholders 64] [--seconds 0.01]
    [--repeat 2] [--ways xargs,parsl,hyperqueue] [--here]
python -m benchmarks.tasks handed-out [--tasks 20000] [--pullers 64] [--repeat 3]
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import multiprocessing
import os
import pickle
import selectors
import ssl
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import koala_adapter as koala
from benchmarks.common import (
    DEADLINE,
    PYTHONPATH,
    ROOT,
    Row,
    dask_on_slurm,
    in_turns,
    main,
    median_rows,
    medians,
    parsl_executor,
    parsl_loaded,
    process,
    slurm_site,
    until,
    untyped,
)
from benchmarks.naps import command, nap, shell_command
from koala_adapter.model import Component, Job, JobId, JobKind, RunnerName, Sweep
from koala_adapter.python.executor import Task, TaskServer
from koala_adapter.service.sweepfiles import Contact, SweepFiles
from koala_adapter.service.sweeps import RunningSweep, restored_book
from koala_adapter.tasks.connection import LENGTH, connected, received, sent
from koala_adapter.tasks.server import TOKEN_BYTES, listening_socket
from koala_adapter.tasks.sweep import Expansion, range_axis
from koala_adapter.vjm.certificate import load_or_create, server_context
from tests.real.systems import SlurmCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from koala_adapter.vjm.certificate import Certificate

# -- Tasks done in a second ----------------------------------------------------------------------------------

GOAL = 2000.0
"""Tasks in a second."""
NODES = 4
KINDS = ("commands", "functions")
NOTHING = "0.0000000000"
"""Before the number of a task: a further time for sleep, of no length."""
WALLTIME = "01:00:00"


def done(
    *,
    commands: int = 5000,
    functions: int = 20_000,
    placeholders: int = 64,
    seconds: float = 0.01,
    repeat: int = 2,
    ways: tuple[str, ...] = ("xargs", "parsl", "hyperqueue"),
    here: bool = False,
) -> list[Row]:
    """How many short tasks are done in a second: by koala, and by others with as many workers, in turns.

    *commands*, each a process of its own, ``sleep 0.01``: ``koala sweep`` beside ``xargs -P``, which keeps no record
    and is on this machine always, ``bash_app`` of Parsl, ``subprocess.run`` by Dask, and HyperQueue, in one process.
    *functions*, ``time.sleep(0.01)``: ``koala.Executor`` beside ``python_app`` of Parsl and ``client.map`` of Dask.

    All workers are there before it begins. On Slurm, workers of Parsl and Dask are jobs of it, as koala's placeholders
    are. With ``--here`` koala has a local cluster, and no batch system is needed; then only xargs is measured beside
    it. Dask is asked for with ``--ways``: 64 workers of it did not end within five minutes on two processors. The
    number of placeholders is a multiple of four.

    Needs the Debian packages slurmctld, slurmd and slurm-client, and root, or --here. Of those from PyPI what is not
    installed is left out, and said: parsl, dask-jobqueue, hyperqueue.
    """
    os.environ["PYTHONPATH"] = os.pathsep.join([PYTHONPATH, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    chosen = ["koala"]
    for way in ("xargs",) if here else ways:
        package = PACKAGES.get(way)
        if package is None or importlib.util.find_spec(package) is not None:
            chosen.append(way)
        else:
            print(f"{way} is left out: there is no package {package} here", file=sys.stderr)
    with koala.local_site(["alpha"], processors=placeholders) if here else on_slurm(placeholders) as site:
        given = Measurement(site=site, workers=placeholders, commands=commands, functions=functions, seconds=seconds)
        turns = in_turns({way: partial(said, way, given) for way in chosen}, repeat)
    middle = {way: medians(rates) for way, rates in turns.items()}
    return [
        {"": kind, "way": way, "tasks/s": rates[kind], "koala's ratio": middle["koala"][kind] / rates[kind],
         "of the goal": rates[kind] / GOAL}
        for kind in KINDS
        for way, rates in middle.items()
        if kind in rates
    ]  # fmt: skip


def said(way: str, given: Measurement) -> dict[str, float]:
    """Return the rates of one way, and print them at once: a run takes minutes."""
    rates = WAYS[way](given)
    words = ", ".join(f"{rate:.0f} {kind}" for kind, rate in rates.items())
    print(f"{way}: {words} in a second, load {os.getloadavg()[0]:.0f}", file=sys.stderr)
    return rates


@contextlib.contextmanager
def on_slurm(processors: int) -> Iterator[koala.Site]:
    """Have a private Slurm of simulated nodes."""
    with SlurmCluster("sweep", nodes=NODES, cpus=processors // NODES) as cluster, tempfile.TemporaryDirectory() as name:
        os.environ["SLURM_CONF"] = str(cluster.conf)
        file = slurm_site(Path(name), cluster.conf, requests_per_minute=240, poll_interval=2)
        state = Path(name) / "state"
        state.mkdir(mode=0o700)
        with koala.Site.load(file, state=state) as site:
            yield site


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What is to be done, and where."""

    site: koala.Site
    workers: int
    commands: int
    functions: int
    seconds: float
    """Of each task."""


def by_koala(given: Measurement) -> dict[str, float]:
    """Measure ``koala sweep`` and ``koala.Executor``."""
    return {"commands": swept(given), "functions": executed(given)}


def swept(given: Measurement) -> float:
    """Return the tasks in a second of a sweep, from when all its launchers are at work until its last result."""
    job = koala.Job(
        ["/usr/bin/sleep", str(given.seconds), NOTHING + "{number}"],
        kind="malleable",
        runner="sweep",
        minimum=1,
        initial=given.workers,
        maximum=given.workers,
        walltime="1h",
        sweep={"parameters": {"number": f"1..{given.commands}"}},
    )
    handle = given.site.submit(job)

    def all_at_work() -> bool:
        report = handle.report()
        if report.outcome is not None:
            raise SystemExit("the sweep was over before all its launchers were there: it needs more tasks")
        return report.sweep is not None and report.sweep.running == given.workers

    until("that all launchers are at work", all_at_work)
    begun = time.time()
    sweep = handle.result().report.sweep
    if sweep is None or sweep.done != given.commands:
        raise SystemExit(f"the sweep did not end well: {sweep}")
    with (Path(sweep.directory) / "results.jsonl").open() as lines:
        since = [at for at in (float(json.loads(line)["at"]) for line in lines) if at >= begun]
    handle.wait_until_over()
    return len(since) / (max(since) - begun)


def executed(given: Measurement) -> float:
    """Return the calls in a second of an Executor, from the first submission until the last result."""
    environment = {"PYTHONPATH": str(ROOT)}
    with koala.Executor(given.workers, site=given.site, environment=environment) as executor:
        until(f"{given.workers} workers", lambda: executor.workers == given.workers)
        list(executor.map(nap, [0.1] * given.workers))
        begun = time.monotonic()
        for _ in executor.map(nap, [given.seconds] * given.functions):
            pass
        rate = given.functions / (time.monotonic() - begun)
    executor.job.wait_until_over()
    return rate


def by_xargs(given: Measurement) -> dict[str, float]:
    """Measure ``xargs -P`` on this machine alone: the same processes, of which no record is kept."""
    numbers = "\n".join(map(str, range(given.commands))).encode()
    begun = time.monotonic()
    argv = ["/usr/bin/xargs", "-P", str(given.workers), "-I", "{}"]
    subprocess.run([*argv, "/usr/bin/sleep", str(given.seconds), NOTHING + "{}"], input=numbers, check=True)
    return {"commands": given.commands / (time.monotonic() - begun)}


def by_parsl(given: Measurement) -> dict[str, float]:
    """Measure ``bash_app`` and ``python_app``."""
    parsl = untyped("parsl")
    with parsl_workers(given):
        shell, call = parsl.bash_app(shell_command), parsl.python_app(nap)
        all_done([call(0.1) for _ in range(given.workers)])
        return {
            "commands": rate_of(given.commands, lambda: [shell(given.seconds) for _ in range(given.commands)]),
            "functions": rate_of(given.functions, lambda: [call(given.seconds) for _ in range(given.functions)]),
        }


@contextlib.contextmanager
def parsl_workers(given: Measurement) -> Iterator[None]:
    """Have the workers of a HighThroughputExecutor, a block for each node of the Slurm."""
    each = given.workers // NODES
    provider = untyped("parsl.providers").SlurmProvider(
        init_blocks=NODES,
        max_blocks=NODES,
        worker_init=f"export PYTHONPATH={ROOT}",
        exclusive=False,
        cores_per_node=each,
        walltime=WALLTIME,
        launcher=untyped("parsl.launchers").SimpleLauncher(),
    )
    with tempfile.TemporaryDirectory() as directory:
        executor = parsl_executor(provider, each)
        kernel = parsl_loaded(executor, Path(directory))
        try:

            def workers() -> int:
                return sum(int(one["worker_count"]) for one in executor.connected_managers())

            until(f"{given.workers} workers of Parsl", lambda: workers() == given.workers)
            yield
        finally:
            kernel.cleanup()
            untyped("parsl").clear()


def by_dask(given: Measurement) -> dict[str, float]:
    """Measure ``client.map`` of functions, and of one that has a process of its own each time."""
    distributed = untyped("distributed")
    with dask_workers(given) as cluster, distributed.Client(cluster) as client:
        client.wait_for_workers(given.workers, timeout=DEADLINE)
        distributed.wait(client.map(nap, [0.1] * given.workers, pure=False))

        def mapped(task: Callable[..., Any], tasks: int) -> Callable[[], list[Any]]:
            return lambda: client.map(task, [given.seconds] * tasks, pure=False)

        return {
            "commands": rate_of(given.commands, mapped(command, given.commands)),
            "functions": rate_of(given.functions, mapped(nap, given.functions)),
        }


@contextlib.contextmanager
def dask_workers(given: Measurement) -> Iterator[Any]:
    """Have a cluster of workers by dask-jobqueue, a job of the Slurm each."""
    path = f"export PYTHONPATH={os.environ['PYTHONPATH']}"
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        dask_on_slurm(Path(directory), walltime=WALLTIME, nanny=False, job_script_prologue=[path]) as cluster,
    ):
        cluster.scale(given.workers)
        yield cluster


def by_hyperqueue(given: Measurement) -> dict[str, float]:
    """Measure processes, with server and worker inside one process, as its Python package has no program for nodes."""
    alone = multiprocessing.get_context("spawn")  # this process is large, and would be copied for each task
    with ProcessPoolExecutor(1, mp_context=alone) as pool:
        return {"commands": pool.submit(hyperqueue_rate, given.workers, given.commands, given.seconds).result()}


def hyperqueue_rate(workers: int, commands: int, seconds: float) -> float:
    """Return the tasks in a second of HyperQueue inside this process."""
    os.environ["TQDM_DISABLE"] = "1"
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # it prints a table
    hyperqueue, worker_config = untyped("hyperqueue"), untyped("hyperqueue.cluster").WorkerConfig
    with tempfile.TemporaryDirectory() as directory, hyperqueue.LocalCluster() as cluster:
        cluster.start_worker(worker_config(cores=workers))
        client = cluster.client()

        def run(tasks: int) -> None:
            job = hyperqueue.Job(default_workdir=directory)
            for number in range(tasks):
                argv = ["/usr/bin/sleep", str(seconds), f"{NOTHING}{number}"]
                job.program(argv, stdout=None, stderr=None)
            client.wait_for_jobs([client.submit(job)])

        run(workers)
        begun = time.monotonic()
        run(commands)
        return commands / (time.monotonic() - begun)


def rate_of(tasks: int, submitted: Callable[[], Sequence[Future[Any]]]) -> float:
    """Return the tasks in a second, from the first submission until all results are here."""
    begun = time.monotonic()
    all_done(submitted())
    return tasks / (time.monotonic() - begun)


def all_done(futures: Sequence[Future[Any]]) -> None:
    """Wait for each result. Raises what a task has raised."""
    for one in futures:
        one.result()


WAYS: Mapping[str, Callable[[Measurement], dict[str, float]]] = {
    "koala": by_koala,
    "xargs": by_xargs,
    "parsl": by_parsl,
    "dask": by_dask,
    "hyperqueue": by_hyperqueue,
}
PACKAGES = {"parsl": "parsl", "dask": "dask_jobqueue", "hyperqueue": "hyperqueue"}
"""Without which a way is left out."""


# -- Tasks handed out in a second ----------------------------------------------------------------------------
# This bounds sweeps and executors on any number of nodes. Launchers and workers are simulated: a process with a
# connection for each of them, which answers at once.

HOST = "127.0.0.1"
TOKEN = "17" * TOKEN_BYTES
TASK = json.dumps({"task": 1, "attempt": 1, "argv": ["/bin/true", "1"]}).encode()


def handed_out(*, tasks: int = 20_000, pullers: int = 64, repeat: int = 3) -> list[Row]:
    """How many tasks can be handed out and taken in again in a second, when doing them takes no time.

    The baseline is a server of the standard library's streams, which sends a frame of the same kind for each answer and
    knows nothing. The ratio is that of the processor time of the process that hands out.
    """

    def measured(way: Callable[[Path, int, int], dict[str, float]]) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as directory:
            return way(Path(directory), tasks, pullers)

    ways = {"bare": partial(measured, bare), "sweep": partial(measured, sweep), "executor": partial(measured, executor)}
    return median_rows(ways, repeat, "ms each")


def rate(tasks: int, begun: float, used: float) -> dict[str, float]:
    """Return tasks in a second since a time, and the processor time of each since another."""
    each = 1000 * (time.process_time() - used) / tasks
    return {"tasks/s": tasks / (time.monotonic() - begun), "ms each": each}


def bare(directory: Path, tasks: int, pullers: int) -> dict[str, float]:
    """Measure a server that only sends and receives."""
    return asyncio.run(_bare(load_or_create(directory / "certificate"), tasks, pullers))


async def _bare(certificate: Certificate, tasks: int, pullers: int) -> dict[str, float]:
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
        found = rate(tasks, begun, used)
    server.close()
    await asyncio.wait(conversations)
    return found


def sweep(directory: Path, tasks: int, pullers: int) -> dict[str, float]:
    """Measure the running sweep of a service."""
    return asyncio.run(_sweep(directory, tasks, pullers))


async def _sweep(directory: Path, tasks: int, pullers: int) -> dict[str, float]:
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
    expansion = Expansion(plan, {})
    book = restored_book(job, files, expansion)
    running = RunningSweep(job, files, expansion, book, changed=lambda: over.set() if running.over else None)
    listening = listening_socket(HOST)
    port = int(listening.getsockname()[1])
    certificate = load_or_create(directory / "certificate")
    running.serve(listening, Contact(port=port, token=TOKEN), certificate)
    begun, used = time.monotonic(), time.process_time()
    with answering(port, certificate, TOKEN, "sweep", pullers):
        await over.wait()
        found = rate(tasks, begun, used)
    assert running.progress.done == tasks
    await running.close()
    return found


def executor(directory: Path, tasks: int, pullers: int) -> dict[str, float]:
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
        found = rate(tasks, begun, used)
        server.close()
    return found


def answering(
    port: int, certificate: Certificate, token: str, kind: str, pullers: int
) -> AbstractContextManager[subprocess.Popen[str]]:
    """Return a process that answers for all pullers during the block; ``kind``: sweep or executor."""
    words = {"port": port, "fingerprint": certificate.fingerprint, "token": token, "kind": kind, "pullers": pullers}
    options = [word for name, value in words.items() for word in (f"--{name}", str(value))]
    return process([sys.executable, "-m", "benchmarks.tasks", "answer", *options], cwd=ROOT)


def answer(*, port: int = 0, fingerprint: str = "", token: str = "", kind: str = "sweep", pullers: int = 64) -> None:
    """Be all pullers, until killed."""
    done = pickle.dumps((True, None))
    with selectors.DefaultSelector() as selector:
        for _ in range(pullers):
            line = connected(HOST, port, fingerprint)
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
    main(done, handed_out, helpers=(answer,))

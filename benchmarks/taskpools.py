# SPDX-License-Identifier: Apache-2.0
"""Ways of doing many short tasks for benchmarks/sweep.py: koala's, xargs, Parsl, Dask, and HyperQueue."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import koala_adapter as koala
from benchmarks.naps import command, nap, shell_command
from benchmarks.workerpools import DEADLINE, MEMORY, untyped, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

ROOT = Path(__file__).resolve().parent.parent
NOTHING = "0.0000000000"
"""Before the number of a task: a further time for sleep, of no length."""
WALLTIME = "01:00:00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What is to be done, and where."""

    site: koala.Site
    nodes: int
    """Of a Slurm that SLURM_CONF names; 0: there is none, and workers are processes of this machine."""
    workers: int
    commands: int
    functions: int
    seconds: float
    """Of each task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Tasks in a second; None: not measured."""

    commands: float | None = None
    functions: float | None = None


def by_koala(given: Measurement) -> Rates:
    """Measure ``koala sweep`` and ``koala.Executor``."""
    return Rates(commands=swept(given), functions=executed(given))


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

    wait_for("that all launchers are at work", all_at_work)
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
        wait_for(f"{given.workers} workers", lambda: executor.workers == given.workers)
        list(executor.map(nap, [0.1] * given.workers))
        begun = time.monotonic()
        for _ in executor.map(nap, [given.seconds] * given.functions):
            pass
        rate = given.functions / (time.monotonic() - begun)
    executor.job.wait_until_over()
    return rate


def by_xargs(given: Measurement) -> Rates:
    """Measure ``xargs -P``, on this machine whatever there is: the same processes, and nobody who keeps a record."""
    numbers = "\n".join(map(str, range(given.commands))).encode()
    begun = time.monotonic()
    argv = ["/usr/bin/xargs", "-P", str(given.workers), "-I", "{}"]
    subprocess.run([*argv, "/usr/bin/sleep", str(given.seconds), NOTHING + "{}"], input=numbers, check=True)
    return Rates(commands=given.commands / (time.monotonic() - begun))


# ---- Parsl -----------------------------------------------------------------------------------------------------------


def by_parsl(given: Measurement) -> Rates:
    """Measure ``bash_app`` and ``python_app``."""
    parsl = untyped("parsl")
    with parsl_workers(given):
        shell, call = parsl.bash_app(shell_command), parsl.python_app(nap)
        all_done([call(0.1) for _ in range(given.workers)])
        return Rates(
            commands=rate_of(given.commands, lambda: [shell(given.seconds) for _ in range(given.commands)]),
            functions=rate_of(given.functions, lambda: [call(given.seconds) for _ in range(given.functions)]),
        )


@contextlib.contextmanager
def parsl_workers(given: Measurement) -> Iterator[None]:
    """Have the workers of a HighThroughputExecutor: on Slurm a block for each node, else one of this machine."""
    parsl, executors, providers = map(untyped, ("parsl", "parsl.executors", "parsl.providers"))
    started = untyped("parsl.executors.high_throughput.executor").DEFAULT_LAUNCH_CMD
    package = "parsl.executors.high_throughput"
    blocks = given.nodes or 1
    here: dict[str, Any] = {"init_blocks": blocks, "max_blocks": blocks}
    each = given.workers // blocks
    if given.nodes:
        launcher = untyped("parsl.launchers").SimpleLauncher()
        here |= {"exclusive": False, "cores_per_node": each, "walltime": WALLTIME, "launcher": launcher}
        provider = providers.SlurmProvider(worker_init=f"export PYTHONPATH={ROOT}", **here)
    else:
        provider = providers.LocalProvider(worker_init=f"export PYTHONPATH={ROOT}", **here)
    with tempfile.TemporaryDirectory() as directory:
        executor = executors.HighThroughputExecutor(
            address="127.0.0.1",
            provider=provider,
            encrypted=False,
            max_workers_per_node=each,
            launch_cmd=started.replace("process_worker_pool.py", f"{sys.executable} -m {package}.process_worker_pool"),
            interchange_launch_cmd=[sys.executable, "-m", f"{package}.interchange"],
        )
        config = parsl.Config(executors=[executor], run_dir=directory, strategy="none", initialize_logging=False)
        kernel = parsl.load(config)
        try:

            def workers() -> int:
                return sum(int(one["worker_count"]) for one in executor.connected_managers())

            wait_for(f"{given.workers} workers of Parsl", lambda: workers() == given.workers)
            yield
        finally:
            kernel.cleanup()
            parsl.clear()


# ---- Dask ------------------------------------------------------------------------------------------------------------


def by_dask(given: Measurement) -> Rates:
    """Measure ``client.map`` of functions, and of one that has a process of its own each time."""
    distributed = untyped("distributed")
    with dask_workers(given) as cluster, distributed.Client(cluster) as client:
        client.wait_for_workers(given.workers, timeout=DEADLINE)
        distributed.wait(client.map(nap, [0.1] * given.workers, pure=False))

        def done(task: Callable[..., Any], tasks: int) -> Callable[[], list[Any]]:
            return lambda: client.map(task, [given.seconds] * tasks, pure=False)

        return Rates(
            commands=rate_of(given.commands, done(command, given.commands)),
            functions=rate_of(given.functions, done(nap, given.functions)),
        )


@contextlib.contextmanager
def dask_workers(given: Measurement) -> Iterator[Any]:
    """Have a cluster of workers: on Slurm by dask-jobqueue, a job each, else processes of this machine."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        if given.nodes:
            cluster = untyped("dask_jobqueue").SLURMCluster(
                cores=1,
                processes=1,
                nanny=False,
                memory=MEMORY,
                walltime=WALLTIME,
                interface="lo",
                death_timeout=DEADLINE,
                python=sys.executable,
                job_script_prologue=[f"export PYTHONPATH={os.environ['PYTHONPATH']}"],
                log_directory=directory,
                local_directory=directory,
                scheduler_options={"dashboard_address": ":0"},
            )
            cluster.scale(given.workers)
        else:
            local = untyped("distributed").LocalCluster
            cluster = local(n_workers=given.workers, threads_per_worker=1, dashboard_address=None)
        with cluster:
            yield cluster


# ---- HyperQueue ------------------------------------------------------------------------------------------------------


def by_hyperqueue(given: Measurement) -> Rates:
    """Measure processes, with server and worker inside one process, as its Python package has no program for nodes."""
    alone = multiprocessing.get_context("spawn")  # this process is large, and would be copied for each task
    with ProcessPoolExecutor(1, mp_context=alone) as pool:
        return Rates(commands=pool.submit(hyperqueue_rate, given.workers, given.commands, given.seconds).result())


def hyperqueue_rate(workers: int, commands: int, seconds: float) -> float:
    """Return the tasks in a second of HyperQueue inside this process."""
    os.environ["TQDM_DISABLE"] = "1"
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # it prints a table
    hyperqueue, worker_config = untyped("hyperqueue"), untyped("hyperqueue.cluster").WorkerConfig
    with tempfile.TemporaryDirectory() as directory, hyperqueue.LocalCluster() as cluster:
        cluster.start_worker(worker_config(cores=workers))
        client = cluster.client()

        def done(tasks: int) -> None:
            job = hyperqueue.Job(default_workdir=directory)
            for number in range(tasks):
                argv = ["/usr/bin/sleep", str(seconds), f"{NOTHING}{number}"]
                job.program(argv, stdout=None, stderr=None)
            client.wait_for_jobs([client.submit(job)])

        done(workers)
        begun = time.monotonic()
        done(commands)
        return commands / (time.monotonic() - begun)


# ---- all -------------------------------------------------------------------------------------------------------------


def rate_of(tasks: int, submitted: Callable[[], Sequence[Future[Any]]]) -> float:
    """Return the tasks in a second, from the first submission until all results are here."""
    begun = time.monotonic()
    all_done(submitted())
    return tasks / (time.monotonic() - begun)


def all_done(futures: Sequence[Future[Any]]) -> None:
    """Wait for each result. Raises what a task has raised."""
    for one in futures:
        one.result()


WAYS: Mapping[str, Callable[[Measurement], Rates]] = {
    "koala": by_koala,
    "xargs": by_xargs,
    "parsl": by_parsl,
    "dask": by_dask,
    "hyperqueue": by_hyperqueue,
}


def missing(way: str, *, slurm: bool) -> str | None:
    """Return the package without which there is nothing to be measured; None: all is there."""
    needed = {"parsl": "parsl", "dask": "dask_jobqueue" if slurm else "distributed", "hyperqueue": "hyperqueue"}
    package = needed.get(way)
    return package if package is not None and importlib.util.find_spec(package) is None else None

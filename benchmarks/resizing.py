# SPDX-License-Identifier: Apache-2.0
"""Changes of size: how soon workers come and go, and how long MPI programs stand still.

python -m benchmarks.resizing latency [--sizes 1,16] [--repeat 3] [--ways dask,parsl]
python -m benchmarks.resizing standstill [--changes 5] [--bodies 2000] [--rest 2]
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import (
    DEADLINE,
    MEMORY,
    PYTHONPATH,
    ROOT,
    Row,
    dask_on_slurm,
    in_turns,
    main,
    medians,
    parsl_executor,
    parsl_loaded,
    slurm_site,
    until,
    untyped,
)
from koala_adapter.api.client import Client
from koala_adapter.api.statedirectory import start_in_background
from koala_adapter.config.jobfile import load_job_text
from koala_adapter.lrm.commands import login_name
from koala_adapter.model import JobId
from tests.mpi_by_hand import Mpich, of_system, of_wheel
from tests.real.systems import SlurmCluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@contextlib.contextmanager
def service(site: Path) -> Iterator[Client]:
    """Run a service of koala, with its state beside its site file."""
    client = Client(site.parent / "state")
    os.environ["PYTHONPATH"] = PYTHONPATH
    start_in_background(site, client.directory)
    try:
        client.wait_until_seen(DEADLINE)
        yield client
    finally:
        client.stop()


def submitted(client: Client, text: str, directory: Path = ROOT) -> str:
    """Submit a job, as it stands in a job file of a directory; return its id."""
    job = load_job_text(text, directory=directory, job_id=JobId("0"), user=login_name(), submitted_at=time.time())
    return client.submit(job)


# -- How soon workers come and go ----------------------------------------------------------------------------
# The other ways are dask-jobqueue's SLURMCluster, and Parsl's SlurmProvider; koala runs the same worker programs each
# time, as a job with ``runner = "workers"`` that its owner resizes.

LARGEST = 32
"""Processors of the cluster."""


def latency(
    *, sizes: tuple[int, ...] = (1, 16), repeat: int = 3, ways: tuple[str, ...] = ("dask", "parsl")
) -> list[Row]:
    """How soon workers come and go under koala, and by other ways on the same Slurm: seconds, and koala's over theirs.

    A pool of one worker becomes one of 1 + N, and of one again. *grow*: from the wish until all N new workers compute,
    N processors being idle. *freed*: the same from the moment in which a local user's job gives up the processors that
    are waited for. *shrink*: from the wish until Slurm has the N processors back.

    Needs the Debian packages slurmctld, slurmd and slurm-client, root, and dask-jobqueue and parsl from PyPI.
    """
    with SlurmCluster("bench", nodes=4, cpus=8) as cluster, tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        os.environ["SLURM_CONF"] = str(cluster.conf)
        site = slurm_site(directory, cluster.conf, head='[scheduler]\napproach = "none"\n')
        with service(site) as client:
            return [compared(cluster, client, way, size, repeat, directory) for way in ways for size in sizes]


def compared(  # noqa: PLR0917 - what is measured, with what
    cluster: SlurmCluster, client: Client, name: str, size: int, repeat: int, directory: Path
) -> Row:
    """Return the row of one way: the medians of its own pools and of koala's, in turns."""

    def times(*, by_koala: bool) -> dict[str, float]:
        with WAYS[name](directory) as way:
            if by_koala:
                with KoalaPool(client, way.command()) as pool:
                    return times_of(cluster, pool, way, size)
            way.begin()
            return times_of(cluster, way, way, size)

    kinds = {"theirs": partial(times, by_koala=False), "koala": partial(times, by_koala=True)}
    theirs, ours = (medians(turns) for turns in in_turns(kinds, repeat).values())
    row: dict[str, str | float] = {"way": name, "N": size}
    for phase in theirs:
        row |= {f"{phase}, theirs": theirs[phase], "koala's " + phase: ours[phase]}
        row[f"{phase}, ratio"] = ours[phase] / theirs[phase]
    return row


def times_of(cluster: SlurmCluster, pool: Pool, way: Way, size: int) -> dict[str, float]:
    """Return the times of an idle cluster's one pool, whose workers are those of a framework."""
    until("an idle cluster", lambda: running(cluster) == 0)
    pool.scale(1)
    way.wait(1)
    pool.wait_until_idle(size)
    begun = time.monotonic()
    pool.scale(1 + size)
    way.wait(1 + size)
    grow = time.monotonic() - begun
    begun = time.monotonic()
    pool.scale(1)
    until("one worker", lambda: running(cluster) <= 1)
    shrink = time.monotonic() - begun
    way.wait(1)
    local = cluster.submit("#!/bin/sh\nexec sleep 900\n", f"--array=1-{LARGEST - 1}", "--output=/dev/null")
    until("a full cluster", lambda: running(cluster) >= LARGEST)
    pool.wait_until_busy()
    pool.scale(1 + size)
    time.sleep(1.0)  # the wish is known everywhere
    begun = time.monotonic()
    cluster.run("scancel", local)
    way.wait(1 + size)
    freed = time.monotonic() - begun
    return {"grow": grow, "freed": freed, "shrink": shrink}


def running(cluster: SlurmCluster) -> int:
    """Return how many processors are in use, or on nodes in the state COMPLETING, where Slurm starts no job yet."""
    idle = int(cluster.run("sinfo", "--noheader", "--format=%C").split("/")[1])
    return LARGEST - idle + len(cluster.squeue("--states=COMPLETING", form="%i"))


# -- Pools of workers ----------------------------------------------------------------------------------------


class Pool(contextlib.ExitStack, ABC):
    """Workers; at its end they are told to go."""

    @abstractmethod
    def scale(self, workers: int) -> None:
        """Wish for a number of workers; return at once."""

    def wait_until_idle(self, processors: int) -> None:
        """Wait until who decides knows of so many idle processors; others let Slurm decide."""

    def wait_until_busy(self) -> None:
        """Wait until who decides knows that no processor is idle."""


class Way(Pool):
    """A framework that gets its workers from Slurm, or with ``command`` from koala."""

    def __init__(self, directory: Path) -> None:
        """``directory``: for whatever is written."""
        super().__init__()
        self.directory = directory

    @abstractmethod
    def begin(self) -> None:
        """Begin the framework's own pool, without workers yet."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Begin the framework without workers of its own; return the command of one."""

    @abstractmethod
    def wait(self, workers: int) -> None:
        """Wait until so many workers compute, no more and no fewer."""


class Dask(Way):
    """Workers of Dask, by dask-jobqueue."""

    def begin(self) -> None:
        self._cluster = self._kept(dask_on_slurm(self.directory / "dask", walltime="00:30:00"))

    def command(self) -> Sequence[str]:
        local = untyped("distributed").LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=":0")
        self._cluster = self._kept(local)
        worker = ["-m", "distributed.cli.dask_worker", local.scheduler_address, "--nthreads", "1"]
        options = ["--memory-limit", MEMORY, "--death-timeout", str(DEADLINE), "--interface", "lo", "--no-dashboard"]
        options += ["--no-nanny", "--preload", untyped("koala_adapter.dask.leave").__file__]
        return [sys.executable, *worker, *options, "--local-directory", str(self.directory / "dask")]

    def _kept(self, cluster: Any) -> Any:  # noqa: ANN401 - it has no types
        self.callback(cluster.close)
        return cluster

    def scale(self, workers: int) -> None:
        self._cluster.scale(workers)

    def wait(self, workers: int) -> None:
        with untyped("distributed").Client(self._cluster, set_as_default=False) as client:
            until(f"{workers} workers", lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == workers)
            if len(client.run(os.getpid)) != workers:
                raise SystemExit("a worker does not compute")


class Parsl(Way):
    """Workers of a HighThroughputExecutor, each a block of SlurmProvider."""

    _blocks = 0

    def begin(self) -> None:
        launcher = untyped("parsl.launchers").SimpleLauncher()
        provider = untyped("parsl.providers").SlurmProvider(
            init_blocks=0, max_blocks=LARGEST, exclusive=False, walltime="00:30:00", launcher=launcher
        )
        self._begin(provider)

    def command(self) -> Sequence[str]:
        self._begin(untyped("parsl.providers").LocalProvider(init_blocks=0, max_blocks=0))
        return ["/bin/bash", "-c", f"exec {self._executor.launch_cmd.format(block_id='koala')}"]

    def _begin(self, provider: Any) -> None:  # noqa: ANN401 - Parsl's, of several classes
        # A killed process is noticed within a few seconds.
        self._executor = parsl_executor(provider, 1, heartbeat_period=2, heartbeat_threshold=8)
        self.callback(parsl_loaded(self._executor, self.directory / "runinfo").cleanup)

    def scale(self, workers: int) -> None:
        if workers > self._blocks:
            self._executor.scale_out_facade(workers - self._blocks)
        else:
            self._executor.scale_in_facade(self._blocks - workers)
        self._blocks = workers

    def wait(self, workers: int) -> None:

        def active() -> int:
            return sum(bool(one["active"]) for one in self._executor.connected_managers())

        until(f"{workers} managers", lambda: active() == workers)
        futures = [self._executor.submit(os.getpid, {}) for _ in range(workers)]
        for one in futures:
            one.result(DEADLINE)


class KoalaPool(Pool):
    """A malleable job of workers alone, resized by its owner."""

    def __init__(self, client: Client, command: Sequence[str]) -> None:
        """Nothing is submitted before the first worker is wished for."""
        super().__init__()
        self._client = client
        self._command = command
        self._job = ""
        self.callback(self._end)

    def scale(self, workers: int) -> None:
        if self._job:
            self._client.resize(self._job, workers)
            return
        text = (
            'kind = "malleable"\nrunner = "workers"\nwalltime = "30m"\n[[components]]\n'
            f"command = {json.dumps(list(self._command))}\nminimum = 1\nmaximum = {LARGEST}\n"
        )
        self._job = submitted(self._client, text)

    def wait_until_idle(self, processors: int) -> None:
        until("idle processors", lambda: (self._client.clusters()[0].available or 0) >= processors)

    def wait_until_busy(self) -> None:
        until("busy processors", lambda: self._client.clusters()[0].available == 0)

    def _end(self) -> None:
        self._client.cancel(self._job)
        until("the end of the job", lambda: self._client.job(self._job).over)


WAYS: Mapping[str, type[Way]] = {"dask": Dask, "parsl": Parsl}


# -- MPI programs --------------------------------------------------------------------------------------------

SMALL, LARGE = 2, 4
TOLD = re.compile(r"resize: (stands|goes on) at ([0-9.]+)")
STEPS = "100000000"
"""More than there is time for: the program ends when it is told to."""


def standstill(*, changes: int = 5, bodies: int = 2000, rest: float = 2.0) -> list[Row]:
    """For how long an MPI program stands still when its size changes, and what share of its run that is.

    n-body (100 B of state a body) and FT of class W (16 MiB of state) run under koala on a local cluster, by both
    methods where an MPICH for it is there. Their owner has them grow from 2 to 4 processes and shrink again, time after
    time. The program stands still from when its first process reaches the point at which all stop until it goes on
    behind it; the share is that of all changes in the time from the first to the last.

    Needs MPICH of the system, or that of the PyPI package mpich, and a C compiler.
    """
    rows: list[Row] = []
    for mpich in (of_wheel(), of_system()):
        if mpich is not None:
            with tempfile.TemporaryDirectory() as name:
                rows += programs_with(Path(name), mpich, changes, bodies, rest)
    return rows


def programs_with(directory: Path, mpich: Mpich, changes: int, bodies: int, rest: float) -> list[Row]:
    """Return the rows of one MPICH."""
    site = directory / "site.toml"
    site.write_text(
        '[control_center]\nlisten = "127.0.0.1"\n[scheduler]\napproach = "none"\n'
        f'[[clusters]]\nname = "bench"\nplugin = "local"\nmpi_resize = "{method_of(mpich)}"\n'
        f"[clusters.settings]\nprocessors = {LARGE}\n"
    )
    programs = {"nbody": [str(bodies), STEPS, "0"], "ft": ["W", STEPS, "0"]}
    with service(site) as client:
        return [changed(directory, client, mpich, name, words, changes, rest) for name, words in programs.items()]


def method_of(mpich: Mpich) -> str:
    """Return by which method programs of an MPICH change their sizes."""
    return "spawn" if mpich.spawns else "restart"


def changed(  # noqa: PLR0917 - what is measured, with what
    directory: Path, client: Client, mpich: Mpich, name: str, words: Sequence[str], changes: int, rest: float
) -> Row:
    """Return the row of one program."""
    stop = directory / f"{name}.stop"
    command = [str(mpich.compile(name, directory)), *words, str(stop)]
    environment = {"PATH": f"{mpich.commands}:/usr/bin:/bin", "RESIZE_TIMES": "1"}
    text = (
        'kind = "malleable"\nrunner = "adaptive"\nlauncher = "mpi"\nwalltime = "30m"\n'
        f'working_directory = "{directory}"\n[environment]\n'
        + "".join(f"{key} = {json.dumps(value)}\n" for key, value in environment.items())
        + f'[[components]]\nname = "program"\ncommand = {json.dumps(command)}\nminimum = {SMALL}\nmaximum = {LARGE}\n'
    )
    job = submitted(client, text, directory)
    told = directory / "state" / "jobs" / job / "program" / "0.err"
    until("the launch", lambda: client.job(job).launched_at is not None)
    for number in range(2 * changes):
        if client.job(job).outcome is not None:
            raise SystemExit(f"{name} ended too soon: {client.job(job).outcome}\n{told.read_text()}")
        client.resize(job, SMALL if number % 2 else LARGE)
        until("a change", lambda number=number: len(stands(told)) > number or client.job(job).outcome is not None)  # type: ignore[misc]
        time.sleep(rest)
    stop.touch()
    until("the end of the job", lambda: client.job(job).over)
    stood = stands(told)
    lengths = [end - begin for begin, end in stood]
    if min(lengths) < 0:
        raise SystemExit(f"this cannot be:\n{told.read_text()}")
    whole = stood[-1][1] - stood[0][0]
    return {
        "program": name,
        "method": method_of(mpich),
        "2 to 4, s": statistics.median(lengths[::2]),
        "4 to 2, s": statistics.median(lengths[1::2]),
        "changes": len(stood),
        "one in, s": statistics.mean(later[0] - earlier[0] for earlier, later in pairwise(stood)),
        "share": sum(lengths) / whole,
    }


def stands(path: Path) -> list[tuple[float, float]]:
    """Return from when to when the program stood still, as far as it has told."""
    found = TOLD.findall(path.read_text()) if path.exists() else []
    begins = [float(when) for what, when in found if what == "stands"]
    ends = [float(when) for what, when in found if what == "goes on"]
    return list(zip(begins, ends, strict=False))


if __name__ == "__main__":
    main(latency, standstill)

# SPDX-License-Identifier: Apache-2.0
"""Pools of workers on Slurm for benchmarks/malleable_latency.py: by sbatch, by Dask, by Parsl, and by koala."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koala_adapter.api.client import Client
from koala_adapter.api.statedirectory import start_in_background
from koala_adapter.config.jobfile import load_job_text
from koala_adapter.lrm.commands import login_name
from koala_adapter.model import JobId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LARGEST = 32
"""Processors of the cluster."""
DEADLINE = 180.0
MEMORY = "400MB"
LOOK = 0.02


class Pool(contextlib.ExitStack, ABC):
    """Workers; at its end they are told to go."""

    @abstractmethod
    def scale(self, workers: int) -> None:
        """Wish for a number of workers; return at once."""

    def wait_until_idle(self, processors: int) -> None:
        """Wait until who decides knows of so many idle processors; others let Slurm decide."""

    def wait_until_busy(self) -> None:
        """Wait until who decides knows that no processor is idle."""


class Way(contextlib.ExitStack, ABC):
    """A kind of worker, and how its framework gets them from Slurm."""

    def __init__(self, directory: Path) -> None:
        """``directory``: for whatever is written."""
        super().__init__()
        self.directory = directory

    @abstractmethod
    def theirs(self) -> Pool:
        """Return an empty pool of the framework's own."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the command of a worker, for koala."""

    @abstractmethod
    def wait(self, workers: int) -> None:
        """Wait until so many workers compute, no more and no fewer."""


def untyped(module: str) -> Any:  # noqa: ANN401 - that is what it is for
    """Import a module that has no types, or need not be here, when it is used."""
    return importlib.import_module(module)


def wait_for(what: str, condition: Any) -> None:  # noqa: ANN401 - any callable without arguments
    """Look until a condition holds."""
    until = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"{what} did not come to pass")
        time.sleep(LOOK)


# ---- sbatch ----------------------------------------------------------------------------------------------------------


class Bare(Way):
    """Shell scripts that say that they have begun, by sbatch and scancel."""

    def __init__(self, directory: Path) -> None:
        """See Way."""
        super().__init__(directory)
        self._begun = directory / "begun"
        self._begun.mkdir(exist_ok=True)

    @property
    def script(self) -> str:
        """What a worker does: its file is there while it computes."""
        return f'f={self._begun}/$$; trap "rm $f; exit 0" TERM; : > $f; while :; do sleep 1 & wait; done'

    def theirs(self) -> Pool:
        """See Way."""
        return BarePool(self.script, self._begun)

    def command(self) -> Sequence[str]:
        """See Way."""
        return ["sh", "-c", self.script]

    def wait(self, workers: int) -> None:
        """See Way."""
        wait_for(f"{workers} scripts", lambda: sum(1 for _ in os.scandir(self._begun)) == workers)


class BarePool(Pool):
    """Array jobs: one task, and all further ones."""

    def __init__(self, script: str, begun: Path) -> None:
        """``script``: of a worker; ``begun``: where workers leave files, which those that are killed leave for good."""
        super().__init__()
        self._script = script
        self._begun = begun
        self._sbatch, self._scancel = (shutil.which(name) or name for name in ("sbatch", "scancel"))
        self._jobs: list[str] = []
        self.callback(self._end)

    def scale(self, workers: int) -> None:
        """See Pool."""
        if workers == 1 and self._jobs:
            subprocess.run([self._scancel, self._jobs.pop()], check=True)
            return
        count = workers - len(self._jobs)
        script = f"#!/bin/sh\n{self._script}\n"
        command = [self._sbatch, "--parsable", f"--array=1-{count}", "--output=/dev/null", "--chdir=/tmp", "--time=30"]
        done = subprocess.run(command, input=script, capture_output=True, text=True, check=True)
        self._jobs.append(done.stdout.strip())

    def _end(self) -> None:
        subprocess.run([self._scancel, *self._jobs], check=True)


# ---- Dask ------------------------------------------------------------------------------------------------------------


class Dask(Way):
    """Workers of Dask, by dask-jobqueue."""

    def __init__(self, directory: Path) -> None:
        """Import it only now: who does not compare with it need not have it."""
        super().__init__(directory)
        self._cluster: Any = None

    def theirs(self) -> Pool:
        """See Way."""
        cluster = untyped("dask_jobqueue").SLURMCluster(
            cores=1,
            processes=1,
            memory=MEMORY,
            walltime="00:30:00",
            interface="lo",
            death_timeout=DEADLINE,
            python=sys.executable,
            log_directory=str(self.directory / "dask-logs"),
            local_directory=str(self.directory / "dask"),
            scheduler_options={"dashboard_address": ":0"},
        )
        self._cluster = cluster
        return DaskPool(cluster)

    def command(self) -> Sequence[str]:
        """See Way: a worker as koala's examples have it, of a scheduler of its own."""
        self._cluster = untyped("distributed").LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=":0")
        self.callback(self._cluster.close)
        worker = ["-m", "distributed.cli.dask_worker", self._cluster.scheduler_address, "--nthreads", "1"]
        options = ["--memory-limit", MEMORY, "--death-timeout", str(DEADLINE), "--interface", "lo", "--no-dashboard"]
        options += ["--no-nanny", "--preload", untyped("koala_adapter.dask.leave").__file__]
        return [sys.executable, *worker, *options, "--local-directory", str(self.directory / "dask")]

    def wait(self, workers: int) -> None:
        """See Way."""
        with untyped("distributed").Client(self._cluster, set_as_default=False) as client:
            wait_for(f"{workers} workers", lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == workers)
            if len(client.run(os.getpid)) != workers:
                raise SystemExit("a worker does not compute")


class DaskPool(Pool):
    """A cluster of dask-jobqueue."""

    def __init__(self, cluster: Any) -> None:  # noqa: ANN401 - it has no types
        """``cluster``: without workers yet."""
        super().__init__()
        self._cluster = cluster
        self.callback(cluster.close)

    def scale(self, workers: int) -> None:
        """See Pool."""
        self._cluster.scale(workers)


# ---- Parsl -----------------------------------------------------------------------------------------------------------


class Parsl(Way):
    """Workers of a HighThroughputExecutor, each a block of SlurmProvider."""

    def __init__(self, directory: Path) -> None:
        """Import it only now: who does not compare with it need not have it."""
        super().__init__(directory)
        self._executor: Any = None

    def _begin(self, provider: Any) -> Any:  # noqa: ANN401 - Parsl's, of several classes
        import parsl  # noqa: PLC0415 - see above
        from parsl.executors import HighThroughputExecutor  # noqa: PLC0415
        from parsl.executors.high_throughput.executor import DEFAULT_LAUNCH_CMD  # noqa: PLC0415

        pool = f"{sys.executable} -m parsl.executors.high_throughput.process_worker_pool"
        self._executor = HighThroughputExecutor(
            address="127.0.0.1",
            provider=provider,
            encrypted=False,
            max_workers_per_node=1,
            heartbeat_period=2,  # whoever was killed is noticed soon
            heartbeat_threshold=8,
            launch_cmd=DEFAULT_LAUNCH_CMD.replace("process_worker_pool.py", pool, 1),
            interchange_launch_cmd=[sys.executable, "-m", "parsl.executors.high_throughput.interchange"],
        )
        parsl.clear()
        config = parsl.Config(
            executors=[self._executor],
            run_dir=str(self.directory / "runinfo"),
            strategy="none",
            initialize_logging=False,
        )
        return parsl.load(config)

    def theirs(self) -> Pool:
        """See Way."""
        from parsl.launchers import SimpleLauncher  # noqa: PLC0415 - see above
        from parsl.providers import SlurmProvider  # noqa: PLC0415

        provider = SlurmProvider(
            init_blocks=0, max_blocks=LARGEST, exclusive=False, walltime="00:30:00", launcher=SimpleLauncher()
        )
        kernel = self._begin(provider)
        return ParslPool(self._executor, kernel)

    def command(self) -> Sequence[str]:
        """See Way: the command that Parsl gives its providers, of an executor that is to start no blocks itself."""
        kernel = self._begin(untyped("parsl.providers").LocalProvider(init_blocks=0, max_blocks=0))
        self.callback(kernel.cleanup)
        return ["/bin/bash", "-c", f"exec {self._executor.launch_cmd.format(block_id='koala')}"]

    def wait(self, workers: int) -> None:
        """See Way."""

        def active() -> int:
            return sum(bool(one["active"]) for one in self._executor.connected_managers())

        wait_for(f"{workers} managers", lambda: active() == workers)
        futures = [self._executor.submit(os.getpid, {}) for _ in range(workers)]
        for one in futures:
            one.result(DEADLINE)


class ParslPool(Pool):
    """The blocks of an executor."""

    def __init__(self, executor: Any, kernel: Any) -> None:  # noqa: ANN401 - Parsl's
        """``executor``: without blocks yet."""
        super().__init__()
        self._executor = executor
        self._blocks = 0
        self.callback(kernel.cleanup)

    def scale(self, workers: int) -> None:
        """See Pool."""
        if workers > self._blocks:
            self._executor.scale_out_facade(workers - self._blocks)
        else:
            self._executor.scale_in_facade(self._blocks - workers)
        self._blocks = workers


# ---- koala -----------------------------------------------------------------------------------------------------------


class Service(contextlib.ExitStack):
    """A service of koala on the cluster, with what a site file has when it says nothing."""

    def __init__(self, directory: Path, conf: Path, *, poll: float, requests: int) -> None:
        """``poll``: seconds between two looks at the cluster. ``requests``: the bound on requests per minute."""
        super().__init__()
        site = directory / "site.toml"
        site.write_text(
            '[control_center]\nlisten = "127.0.0.1"\n[scheduler]\napproach = "none"\n'
            f'[[clusters]]\nname = "bench"\nplugin = "slurm"\npoll_interval = {poll}\n'
            f"requests_per_minute = {requests}\n"
            f'[clusters.settings]\nconf = "{conf}"\n'
        )
        self.client = Client(directory / "state")
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
        start_in_background(site, directory / "state")
        self.callback(self.client.stop)
        self.client.wait_until_seen(DEADLINE)


class KoalaPool(Pool):
    """A malleable job of workers alone, resized by its owner."""

    def __init__(self, service: Service, way: Way) -> None:
        """Nothing is submitted before the first worker is wished for."""
        super().__init__()
        self._client = service.client
        self._way = way
        self._job = ""
        self.callback(self._end)

    def scale(self, workers: int) -> None:
        """See Pool."""
        if self._job:
            self._client.resize(self._job, workers)
            return
        text = (
            'kind = "malleable"\nrunner = "workers"\nwalltime = "30m"\n[[components]]\n'
            f"command = {json.dumps(list(self._way.command()))}\nminimum = 1\nmaximum = {LARGEST}\n"
        )
        job = load_job_text(text, directory=Path("/"), job_id=JobId("0"), user=login_name(), submitted_at=0.0)
        self._job = self._client.submit(job)

    def wait_until_idle(self, processors: int) -> None:
        """See Pool: what others gave up a moment ago is seen by the next poll."""
        wait_for("idle processors", lambda: (self._client.clusters()[0].available or 0) >= processors)

    def wait_until_busy(self) -> None:
        """See Pool."""
        wait_for("busy processors", lambda: self._client.clusters()[0].available == 0)

    def _end(self) -> None:
        self._client.cancel(self._job)
        wait_for("the end of the job", lambda: self._client.job(self._job).over)


WAYS: Mapping[str, type[Way]] = {"sbatch": Bare, "dask": Dask, "parsl": Parsl}

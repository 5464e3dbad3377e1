# SPDX-License-Identifier: Apache-2.0
"""Parsl and Dask as benchmarks set them up: imported when they are used, as they need not be installed."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from benchmarks.common import DEADLINE

if TYPE_CHECKING:
    from pathlib import Path

MEMORY = "400MB"
"""Of a worker of Dask."""


def untyped(module: str) -> Any:  # noqa: ANN401 - that is what it is for
    """Import a module that has no types, or need not be here, when it is used."""
    return importlib.import_module(module)


def parsl_executor(provider: Any, workers: int, **more: object) -> Any:  # noqa: ANN401 - Parsl's
    """Return a HighThroughputExecutor with so many workers on each node; ``more``: further arguments of it."""
    package = "parsl.executors.high_throughput"
    launch = untyped(f"{package}.executor").DEFAULT_LAUNCH_CMD
    return untyped("parsl.executors").HighThroughputExecutor(
        address="127.0.0.1",
        provider=provider,
        encrypted=False,
        max_workers_per_node=workers,
        launch_cmd=launch.replace("process_worker_pool.py", f"{sys.executable} -m {package}.process_worker_pool", 1),
        interchange_launch_cmd=[sys.executable, "-m", f"{package}.interchange"],
        **more,
    )


def parsl_loaded(executor: Any, directory: Path) -> Any:  # noqa: ANN401 - Parsl's
    """Return Parsl's kernel, loaded with one executor that is scaled by hand; ``directory``: for what it writes."""
    parsl = untyped("parsl")
    parsl.clear()
    config = parsl.Config(executors=[executor], run_dir=str(directory), strategy="none", initialize_logging=False)
    return parsl.load(config)


def dask_on_slurm(directory: Path, *, walltime: str, **more: object) -> Any:  # noqa: ANN401 - it has no types
    """Return a SLURMCluster of dask-jobqueue without workers yet; ``more``: further arguments of it."""
    return untyped("dask_jobqueue").SLURMCluster(
        cores=1,
        processes=1,
        memory=MEMORY,
        walltime=walltime,
        interface="lo",
        death_timeout=DEADLINE,
        python=sys.executable,
        log_directory=str(directory),
        local_directory=str(directory),
        scheduler_options={"dashboard_address": ":0"},
        **more,
    )

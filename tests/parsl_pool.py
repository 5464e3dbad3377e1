# SPDX-License-Identifier: Apache-2.0
"""Parsl with one HighThroughputExecutor over a koala site, for tests; loaded and cleaned up again."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.executors.high_throughput.executor import DEFAULT_LAUNCH_CMD

from koala_adapter.parsl import KoalaProvider

POOL = "parsl.executors.high_throughput.process_worker_pool"
TASKS_ARE_FOUND = f"export PYTHONPATH={Path(__file__).parents[1]}"
"""For workers, which import the module of a task."""
INTERCHANGE = "parsl.executors.high_throughput.interchange"


@contextlib.contextmanager
def parsl_over(provider: KoalaProvider, directory: Path) -> Iterator[parsl.DataFlowKernel]:
    """Load Parsl with a provider; at the end, clean it up."""
    executor = HighThroughputExecutor(
        label="everywhere",
        address="127.0.0.1",
        provider=provider,
        encrypted=False,
        cores_per_worker=1,
        launch_cmd=DEFAULT_LAUNCH_CMD.replace("process_worker_pool.py", f"{sys.executable} -m {POOL}", 1),
        interchange_launch_cmd=[sys.executable, "-m", INTERCHANGE],
    )
    config = Config(
        executors=[executor], run_dir=str(directory / "runinfo"), strategy_period=0.5, initialize_logging=False
    )
    kernel = parsl.load(config)
    try:
        yield kernel
    finally:
        kernel.cleanup()
        parsl.clear()


def squares(kernel: parsl.DataFlowKernel, count: int, *, seconds: float) -> list[Any]:
    """Submit tasks that say where they ran; return their futures."""

    def square(number: int, seconds: float) -> tuple[int, str]:
        import os  # noqa: PLC0415 - done where the task runs
        import time  # noqa: PLC0415

        time.sleep(seconds)
        return number * number, os.environ["KOALA_CLUSTER"]

    app = parsl.python_app(square, data_flow_kernel=kernel)
    return [app(number, seconds) for number in range(count)]

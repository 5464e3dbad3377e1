# SPDX-License-Identifier: Apache-2.0
"""For `dask worker --no-nanny --preload leave.py`: a worker that gets SIGTERM leaves, and nothing is lost.

It begins no further task, hands its results to other workers, and finishes the tasks that it is computing. Those that
take longer than DASK_LEAVE_SECONDS (15 by default) are begun again by others. Without this, a worker ends at once: what
it has is computed again, data that were scattered to it are gone, and a task that this befalls too often fails.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Worker

PATIENCE = float(os.environ.get("DASK_LEAVE_SECONDS", "15"))
"""Seconds that tasks have to be finished."""
LOOK_AGAIN = 0.05


async def dask_setup(worker: Worker) -> None:
    """Leave in good order when a signal says so (Dask calls this when the worker has started)."""
    leaving: list[asyncio.Task[None]] = []

    def begin() -> None:
        if not leaving:
            leaving.append(asyncio.create_task(leave(worker)))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, begin)


async def leave(worker: Worker) -> None:
    """Hand over what the worker has, let it finish what it does, and close it."""
    try:
        retired = await worker.scheduler.retire_workers(workers=[worker.address], remove=False)
        if worker.address in retired:  # otherwise no other worker can take its results
            until = time.monotonic() + PATIENCE
            while (worker.state.executing or worker.state.long_running) and time.monotonic() < until:  # noqa: ASYNC110 - Dask tells nobody
                await asyncio.sleep(LOOK_AGAIN)
            worker.periodic_callbacks["heartbeat"].stop()  # or the scheduler wonders who this is
            await worker.scheduler.retire_workers(workers=[worker.address], remove=True)
    finally:
        try:
            await worker.close(executor_wait=False, reason="it was asked to leave")
        finally:
            end()


def end() -> None:
    """End this process: exit handlers run, but Python does not tidy up, which takes longer than all of the above."""
    try:
        atexit._run_exitfuncs()  # noqa: SLF001 - Python has no other name for it
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)

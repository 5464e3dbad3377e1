# SPDX-License-Identifier: Apache-2.0
"""For `dask worker --no-nanny --preload leave.py`: a worker that gets SIGTERM leaves without losing results.

It begins no further task, hands its results to other workers, and finishes the tasks that it is computing. Tasks that
take longer than DASK_LEAVE_SECONDS (15 by default) are begun again by others. Without this, a worker ends at once:
its results are computed again, data scattered to it are lost, and a task to which this happens too often fails.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import sys
import time
import uuid
from typing import TYPE_CHECKING

from distributed import Lock
from distributed.comm.addressing import get_address_host
from distributed.core import Status

if TYPE_CHECKING:
    from typing import Any

    from distributed import Worker

PATIENCE = float(os.environ.get("DASK_LEAVE_SECONDS", "15"))
"""Seconds that tasks have to be finished."""
LOOK_AGAIN = 0.02
CUT_OFF = "worker-handle-scheduler-connection-broken"
"""Why Dask closes a worker whose connection to the scheduler has broken."""


async def dask_setup(worker: Worker) -> None:
    """Leave in good order when a signal says so.

    Dask calls this when the worker listens, before it tells the scheduler its address.
    """
    relayed = os.environ.get("KOALA_RELAY_ADDRESS")
    if relayed:  # by which the scheduler and all other workers reach this one
        worker._address = worker.address.replace(get_address_host(worker.address), relayed)  # noqa: SLF001 - Dask's own way wants the port
        begin_again_when_cut_off(worker)
    leaving: list[asyncio.Task[None]] = []

    def begin() -> None:
        if not leaving:
            leaving.append(asyncio.create_task(leave(worker)))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, begin)


def begin_again_when_cut_off(worker: Worker) -> None:
    """Start a new worker in this process when the connection to the scheduler breaks; Dask's own would end.

    Relayed connections end with koala's connection to the site, which is soon made again. The new worker has until its
    --death-timeout to find the scheduler.
    """
    close = worker.close

    async def closed(*, reason: str = "worker-close", **options: Any) -> str | None:  # noqa: ANN401 - of Dask
        cut_off = reason == CUT_OFF and worker.status in {Status.running, Status.paused}
        try:
            return await close(reason=reason, **options)
        finally:
            if cut_off:
                os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - the same program again

    worker.close = closed  # type: ignore[method-assign,assignment]


async def leave(worker: Worker) -> None:
    """Hand over what the worker has, let it finish what it does, and close it."""
    try:
        if worker.status in {Status.running, Status.paused}:
            await hand_over(worker)
    finally:
        try:
            await worker.close(executor_wait=False, reason="it was asked to leave")
        finally:
            end()


async def hand_over(worker: Worker) -> None:
    """Begin no further task, finish those that are being computed, and have others take all results.

    Then the scheduler knows this worker no more. Where no other worker can take results, nothing is waited for.
    """
    until = time.monotonic() + PATIENCE
    worker.status = Status.closing_gracefully  # others who leave hand nothing to this worker from now on
    if not await retire(worker, remove=False):
        return
    while (worker.state.executing or worker.state.long_running) and time.monotonic() < until:  # noqa: ASYNC110 - Dask tells nobody
        await asyncio.sleep(LOOK_AGAIN)
    await be_heard(worker)
    worker.periodic_callbacks["heartbeat"].stop()  # or the scheduler wonders who this is
    await retire(worker, remove=True)


async def be_heard(worker: Worker) -> None:
    """Wait, for a bounded time, until the scheduler has heard all that this worker has said.

    Results are told in a stream. Retirement is asked for beside it, and can overtake them: then the scheduler takes a
    result for a task that is still being computed, or does not see that no other worker has it, and repeats it.
    """
    mark = {"action": "leaving", "mark": uuid.uuid4().hex}
    worker.log_event(worker.address, mark)
    until = time.monotonic() + PATIENCE / 4
    while time.monotonic() < until:
        if any(event == mark for _, event in await worker.scheduler.events(topic=worker.address)):
            return
        await asyncio.sleep(LOOK_AGAIN)


async def retire(worker: Worker, *, remove: bool) -> bool:
    """Have the scheduler copy all results of this worker to others; return False if no worker can take them.

    One worker after the other: of a result that two have who leave at once, each takes the other's for one that stays.
    """
    turn = Lock("koala-leave", scheduler_rpc=worker.scheduler, loop=worker.loop)
    has_turn = await turn.acquire(timeout=PATIENCE / 2)
    try:
        return worker.address in await worker.scheduler.retire_workers(workers=[worker.address], remove=remove)
    finally:
        if has_turn:
            await turn.release()


def end() -> None:
    """End this process: exit handlers run, but not the slow cleanup of the interpreter."""
    try:
        atexit._run_exitfuncs()  # noqa: SLF001 - Python has no other name for it
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)

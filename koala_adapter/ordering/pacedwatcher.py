# SPDX-License-Identifier: Apache-2.0
"""Looking at a batch system at intervals, or earlier when something will have changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

import anyio

from koala_adapter.batchsystem.listing import answering, local_jobs, read_listing
from koala_adapter.batchsystem.watcher import Watcher
from koala_adapter.errors import LrmError
from koala_adapter.host.clock import ServiceClock
from koala_adapter.plugin.limits import CircuitBreaker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from koala_adapter.batchsystem.listing import Listing
    from koala_adapter.model import Queue
    from koala_adapter.plugin import Lrm

QUEUES_AGAIN = 60.0
"""Seconds after which the queues are listed again: they change rarely."""
SLOWEST_START = 60.0
CLUSTER = "the cluster that is scheduled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often a batch system is looked at (seconds)."""

    interval: float
    """Between two looks while nothing is about to change."""
    shortest: float
    """Between two looks at least."""


async def start_plugin(lrm: Lrm, *, on_trouble: Callable[[str], None]) -> None:
    """Make a plugin ready, however long its batch system does not answer.

    ``on_trouble`` hears when it does not answer (why), and when it answers after that (empty).
    """
    pause, failed = 1.0, False
    while True:
        try:
            with answering(CLUSTER):
                await lrm.start()
        except LrmError as error:
            if not failed:
                on_trouble(str(error))
            failed = True
            await anyio.sleep(pause)
            pause = min(SLOWEST_START, pause * 2)
        else:
            break
    if failed:
        on_trouble("")


class PacedWatcher:
    """Lists one batch system at intervals, or earlier when it is told that something will have changed."""

    def __init__(
        self, lrm: Lrm, pace: Pace, *, on_trouble: Callable[[str], None], clock: ServiceClock | None = None
    ) -> None:
        """``lrm`` has been started. ``clock``: by which all is dated; None: a new one.

        ``on_trouble`` hears when the batch system stops answering (why), and when it answers again (empty).
        """
        self.clock = clock or ServiceClock()
        self._lrm = lrm
        self._pace = pace
        self._watcher = Watcher(
            self._read,
            breaker=CircuitBreaker(pause=pace.interval),
            on_trouble=lambda error: on_trouble("" if error is None else str(error)),
        )
        self._wanted = anyio.Event()
        self._queues: Mapping[str, Queue] = {}
        self._queues_at = -inf

    @property
    def failure(self) -> str | None:
        """Why the last look was not answered; None when it was."""
        return None if self._watcher.failure is None else str(self._watcher.failure)

    async def look(self) -> Listing | None:
        """Return a listing; None when the batch system does not answer now."""
        if self._watcher.resting:
            return None
        try:
            return await self._watcher.look()
        except LrmError:
            return None

    def look_soon(self) -> None:
        """Have the next look come as early as the bounds allow."""
        self._wanted.set()

    async def pause(self, *, restless: bool, due: float | None) -> None:
        """Wait until the next look. ``due``: seconds after which something is to be looked at anyway."""
        await anyio.sleep(self._pace.shortest)
        left = self._pace.interval - self._pace.shortest
        if not restless and left > 0:
            with anyio.move_on_after(left if due is None else min(left, max(0.0, due - self._pace.shortest))):
                await self._wanted.wait()
        self._wanted = anyio.Event()

    async def _read(self) -> Listing:
        listing = await read_listing(self._lrm, cluster=CLUSTER, read_at=self.clock.now(), offset=self.clock.offset)
        if anyio.current_time() > self._queues_at + QUEUES_AGAIN:
            with answering(CLUSTER):
                self._queues = {queue.name: queue for queue in await self._lrm.queues()}
            self._queues_at = anyio.current_time()
        return replace(listing, jobs=local_jobs(listing), queues=self._queues)

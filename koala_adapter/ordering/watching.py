# SPDX-License-Identifier: Apache-2.0
"""Looking at a batch system again and again, with restraint: one listing for everybody, fewer when it fails."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, TypeVar

import anyio
import structlog

from koala_adapter.errors import LrmError, LrmUnavailableError
from koala_adapter.host.clock import ServiceClock
from koala_adapter.ordering.standing import Listing
from koala_adapter.plugin.limits import CircuitBreaker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from koala_adapter.model import Queue
    from koala_adapter.plugin import Lrm

T = TypeVar("T")

QUEUES_AGAIN = 60.0
"""Seconds after which the queues are listed again: they change rarely."""
SLOWEST_START = 60.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often a batch system is looked at (seconds)."""

    interval: float
    """Between two looks while nothing is about to change."""
    shortest: float
    """Between two looks at least."""


class Watcher:
    """Lists one batch system at intervals, or earlier when it is told that something will have changed."""

    def __init__(self, lrm: Lrm, pace: Pace, *, on_trouble: Callable[[str], None]) -> None:
        """``on_trouble`` hears when the batch system stops answering (why), and when it answers again (empty)."""
        self.clock = ServiceClock()
        """By which all is dated; whoever drives this may give another one before the first look."""
        self._lrm = lrm
        self._pace = pace
        self._on_trouble = on_trouble
        self._breaker = CircuitBreaker(pause=pace.interval)
        self._wanted = anyio.Event()
        self._queues: Mapping[str, Queue] = {}
        self._queues_at = -inf
        self.failure: str | None = None
        self.looks = 0

    async def start(self) -> None:
        """Make the plugin ready, however long its batch system does not answer."""
        pause = 1.0
        while True:
            try:
                await self._answering(self._lrm.start)
            except LrmError as error:
                self._trouble(str(error))
                await anyio.sleep(pause)
                pause = min(SLOWEST_START, pause * 2)
            else:
                return

    async def look(self) -> Listing | None:
        """Return a listing; None when the batch system does not answer now."""
        if not self._breaker.may_ask(anyio.current_time()):
            return None
        read_at, offset = self.clock.now(), self.clock.offset
        try:
            # Jobs first: a job that starts between the two makes us think less is free, never more.
            jobs = await self._answering(self._lrm.jobs)
            nodes = await self._answering(self._lrm.nodes)
            if anyio.current_time() > self._queues_at + QUEUES_AGAIN:
                self._queues = {queue.name: queue for queue in await self._answering(self._lrm.queues)}
                self._queues_at = anyio.current_time()
        except LrmError as error:
            self._breaker.failed(anyio.current_time())
            self._trouble(str(error))
            return None
        self._breaker.succeeded()
        self._trouble("")
        self.looks += 1
        return Listing(read_at=read_at, jobs=jobs, nodes=nodes, queues=self._queues, offset=offset)

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

    def _trouble(self, why: str) -> None:
        if (self.failure or "") != why and (not self.failure or not why):
            self._on_trouble(why)
        self.failure = why or None

    async def _answering(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Take a defect of a plugin for a batch system that does not answer: it is asked again."""
        try:
            return await ask()
        except LrmError:
            raise
        except Exception as error:
            log.exception("a plugin failed")
            raise LrmUnavailableError(f"its plugin failed: {error!r}") from error

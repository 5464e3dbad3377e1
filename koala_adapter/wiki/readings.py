# SPDX-License-Identifier: Apache-2.0
"""One shared, cached reading of a source for all who poll, and none that is older than the last thing we did to it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import LrmError

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.wiki.inventory import Inventory
    from koala_adapter.wiki.sources import Listing, Source

log = structlog.get_logger()


class Readings:
    """Keeps an inventory as fresh as its readers need it, with as few questions as possible."""

    def __init__(
        self,
        source: Source,
        inventory: Inventory,
        *,
        cache: float,
        clock: Callable[[], float],
        steady: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        """``cache``: seconds that a reading serves all; ``on_change`` is called when a job came, started or ended.

        ``clock``: the time of day; ``steady``: a clock that nobody sets.
        """
        self._source = source
        self._inventory = inventory
        self._cache = cache
        self._clock = clock
        self._steady = steady
        self._on_change = on_change
        self._lock = anyio.Lock()
        self._begun_at = float("-inf")
        """When the reading that the inventory shows was begun (monotonic)."""
        self._changed_at = float("-inf")
        """When something was last done to the source."""
        self.failure: str | None = None

    def spoil(self) -> None:
        """Say that something was done to the source: no reading begun before now will do."""
        self._changed_at = anyio.current_time()

    async def fresh(self, *, now: bool = False) -> None:
        """Return when the inventory is fresh enough; ``now``: as it is at this moment. Raises LrmError.

        All who wait at the same time share one reading.
        """
        wanted = anyio.current_time() if now else max(self._changed_at, anyio.current_time() - self._cache)
        if self._begun_at >= wanted:
            return
        async with self._lock:
            if self._begun_at >= wanted:
                return
            begun = anyio.current_time()
            try:
                listing = await self._source.read()
            except LrmError as error:
                if self.failure is None:
                    log.warning("cluster does not answer", cluster=self._source.name, error=str(error))
                self.failure = error.message
                raise
            if self.failure is not None:
                log.info("cluster answers again", cluster=self._source.name)
                self.failure = None
            if await self._take_back(listing):
                with suppress(LrmError):
                    listing = await self._source.read()
            moved = self._inventory.learn(listing, self._clock(), steady=self._steady())
            self._begun_at = begun
            if moved:
                self._on_change()

    async def _take_back(self, listing: Listing) -> bool:
        """Hold and untie the jobs that were started and have been queued again, before anybody sees them wait."""
        tied = [job.id for job in listing.jobs if job.tied]
        for job in tied:
            log.warning("a job was queued again", cluster=self._source.name, job=job)
            try:
                await self._source.take_back(job)
            except LrmError as error:
                log.warning("a job cannot be put in hold again", job=job, error=str(error))
        return bool(tied)

# SPDX-License-Identifier: Apache-2.0
"""The inventory, kept as fresh as its readers need it: one look for all who poll, none older than our last change."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from koala_adapter.batchsystem.watcher import Watcher
from koala_adapter.errors import LrmError
from koala_adapter.plugin.limits import CircuitBreaker

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.wiki.inventory import Inventory
    from koala_adapter.wiki.sources import Source, Survey

LONGEST_REST = 15.0
"""Seconds at most that a source which fails again and again is left alone: peers poll about as often."""

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
        breaker = CircuitBreaker(pause=min(cache, LONGEST_REST), longest_pause=LONGEST_REST)
        self._watcher = Watcher(self._read, breaker=breaker, on_trouble=self._note_trouble)

    def spoil(self) -> None:
        """Say that something was done to the source: no reading begun before now will do."""
        self._watcher.spoil()

    async def fresh(self, *, now: bool = False) -> None:
        """Return when the inventory is fresh enough; ``now``: as it is at this moment. Raises LrmError.

        All who wait at the same time share one reading.
        """
        await self._watcher.fresh(within=self._cache, now=now)

    async def _read(self) -> None:
        survey = await self._source.read()
        if await self._take_back(survey):
            with suppress(LrmError):
                survey = await self._source.read()
        if self._inventory.learn(survey, self._clock(), steady=self._steady()):
            self._on_change()

    def _note_trouble(self, error: LrmError | None) -> None:
        if error is None:
            log.info("cluster answers again", cluster=self._source.name)
        else:
            log.warning("cluster does not answer", cluster=self._source.name, error=str(error))

    async def _take_back(self, survey: Survey) -> bool:
        """Hold and untie the jobs that were started and have been queued again, before anybody sees them wait."""
        tied = [job.id for job in survey.jobs if job.tied]
        for job in tied:
            log.warning("a job was queued again", cluster=self._source.name, job=job)
            try:
                await self._source.take_back(job)
            except LrmError as error:
                log.warning("a job cannot be put in hold again", job=job, error=str(error))
        return bool(tied)

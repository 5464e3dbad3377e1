# SPDX-License-Identifier: Apache-2.0
"""The inventory, kept as fresh as its readers need it: one look for all who poll, none older than our last change."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.batchsystem.starts import up_for_us
from koala_adapter.batchsystem.watcher import Watcher
from koala_adapter.errors import LrmError, LrmUnavailableError
from koala_adapter.plugin.limits import CircuitBreaker

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskStatus

    from koala_adapter.batchsystem.starter import Starter
    from koala_adapter.batchsystem.starts import Failure
    from koala_adapter.batchsystem.watcher import Look
    from koala_adapter.model import LrmJobId
    from koala_adapter.wiki.inventory import Inventory
    from koala_adapter.wiki.options import ServerOptions
    from koala_adapter.wiki.sources import Source, SourceListing

LONGEST_REST = 15.0
"""Seconds at most that a source which fails again and again is left alone: peers poll about as often."""

log = structlog.get_logger()


class FreshInventory:
    """Keeps an inventory as fresh as its readers need it, with as few questions as possible."""

    def __init__(
        self,
        source: Source,
        inventory: Inventory,
        starter: Starter,
        *,
        options: ServerOptions,
        clock: Callable[[], float],
        steady: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        """``on_change`` is called when a job came, started or ended.

        ``starter`` judges its starts by each reading, before anybody sees that. ``clock``: the time of day; ``steady``:
        a clock that nobody sets.
        """
        self._source = source
        self._inventory = inventory
        self._starter = starter
        self._cache = options.cache
        self._oldest = options.oldest
        self.patience = options.reply_within
        """Seconds for which a poll waits for a reading."""
        self._clock = clock
        self._steady = steady
        self._on_change = on_change
        breaker = CircuitBreaker(pause=min(options.cache, LONGEST_REST), longest_pause=LONGEST_REST)
        self._watcher = Watcher(self._read, breaker=breaker, on_trouble=self._note_trouble)
        self._waited_for: Look[None] | None = None
        """The reading for which somebody has waited as long as an answer may take."""

    @property
    def under_way(self) -> Look[None] | None:
        """The reading that is being made."""
        return self._watcher.under_way

    def invalidate(self) -> None:
        """Say that something was done to the source: no reading begun before now will do."""
        self._watcher.invalidate()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Have readings outlive those who ask for them, until cancelled: a slow source could not be read otherwise."""
        await self._watcher.run(task_status=task_status)

    async def fresh(self, *, within: float | None = None, now: bool = False) -> None:
        """Return when the inventory is fresh enough: read within so many seconds, None: as polls need it.

        ``now``: as it is at this moment. All who wait at the same time share one reading. Raises LrmError.
        """
        await self._watcher.fresh(within=self._cache if within is None else within, now=now)

    async def latest(self) -> None:
        """Return when the inventory is fresh enough for polls, or the source has been waited for as long as it may be.

        While one reading takes longer than that, what the last one showed will do, within the bound for its age; that
        is waited for once, not for each request. Raises LrmError.
        """
        patience = 0.0 if self._is_waited_for else self.patience
        with anyio.move_on_after(patience) as scope:
            await self.fresh()
        if not scope.cancelled_caught:
            return
        age = anyio.current_time() - self._watcher.begun_at
        if age > self._oldest:
            raise LrmUnavailableError(f"{self._source.name} did not answer in time")
        if not self._is_waited_for:
            self._waited_for = self.under_way
            log.warning(
                "the cluster is slow: peers are told what it showed earlier",
                cluster=self._source.name,
                age=round(age, 1),
            )

    @property
    def _is_waited_for(self) -> bool:
        return self._waited_for is not None and self._waited_for is self.under_way

    async def _read(self) -> None:
        # What was promised meanwhile cannot show in a reading that takes long: by its beginning is judged what is late.
        begun = self._steady()
        survey, taken_back = await self._settled()
        if taken_back:
            with suppress(LrmError):
                begun, (survey, _) = self._steady(), await self._settled()
        if self._inventory.learn(survey, self._clock(), steady=begun):
            self._on_change()

    def _note_trouble(self, error: LrmError | None) -> None:
        if error is None:
            log.info("cluster answers again", cluster=self._source.name)
        else:
            log.warning("cluster does not answer", cluster=self._source.name, error=str(error))

    def _note_failure(self, job_id: LrmJobId, failure: Failure) -> None:
        """Tell of a job whose start has failed what is shown of it, and keep it back for a while."""
        if self._inventory.withdraw(job_id):
            self._inventory.pinned.add(job_id)
            setback = self._inventory.set_back(job_id, failure.reason, refused=failure.refused)
            pause = round(setback.until - self._steady(), 1)
            log.warning("not started", job=job_id, reason=failure.reason, failures=setback.failures, kept_back=pause)

    async def _settled(self) -> tuple[SourceListing, bool]:
        """Read, and have the starts judged; tell whether jobs were taken back, which the reading does not show."""
        read_at = anyio.current_time()
        survey = await self._source.read()
        in_hand = self._starter.starts.in_hand(read_at)
        taken_back, failures = await self._starter.settle(survey.jobs, read_at)
        for job_id, failure in failures.items():
            self._note_failure(job_id, failure)
        nodes = {cluster: up_for_us(listed, in_hand) for cluster, listed in survey.nodes.items()}
        return replace(survey, nodes=nodes), taken_back

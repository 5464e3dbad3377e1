# SPDX-License-Identifier: Apache-2.0
"""Reservations of one cluster's batch system: asked for, removed, and found again by name after a restart."""

from __future__ import annotations

from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import JournalBlockedError, LrmError, LrmUnavailableError
from koala_adapter.lrm import Submission
from koala_adapter.lrm.contract import ReservationRequest
from koala_adapter.lrm.listing import answering
from koala_adapter.model import BatchKey
from koala_adapter.scheduler.events import ReservationMade, ReservationRefused
from koala_adapter.service.core import Nudge

if TYPE_CHECKING:
    from koala_adapter.config.sitefile import ClusterConfig
    from koala_adapter.lrm import Lrm
    from koala_adapter.scheduler.actions import ReserveProcessors
    from koala_adapter.scheduler.events import Event
    from koala_adapter.service.core import Core

PAUSE = 10.0
"""Seconds before a reservation is removed that could not be: a batch system keeps it while a job runs in it."""

log = structlog.get_logger()


class Reservations:
    """What is reserved for us on one cluster."""

    def __init__(self, core: Core, config: ClusterConfig, lrm: Lrm) -> None:
        """Do nothing before :meth:`run`."""
        self._core = core
        self._config = config
        self._lrm = lrm
        self._asked: list[ReserveProcessors] = []
        self._key = f"reserved on {config.name}"
        """Key of the journal under which it is kept that there may be reservations of ours."""
        self._over = bool(core.journal.value(self._key))
        """Reservations with our names may be there that belong to no job: also those of an earlier process."""
        self._ended = False
        """Some of this process are among them."""
        self._more = Nudge()

    def ask(self, action: ReserveProcessors) -> None:
        """Have processors reserved; the answer comes as an event."""
        self._asked.append(action)
        self._more.set()

    def remove_unowned(self) -> None:
        """Have the reservations removed that belong to no job any more."""
        self._over = self._ended = True
        self._more.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            while self._asked:
                action = self._asked.pop(0)
                self._core.loop.post(await self._reserve(action))
            able = self._lrm.capabilities.reserve
            if self._over and able:
                # Whether an earlier process has left some is asked once, and again only while one is in use.
                self._over = self._ended = not await self._remove()
            with anyio.move_on_after(PAUSE if self._over and able else None):
                await self._more.wait()

    async def conclude(self) -> None:
        """Remove what belongs to no job, at the end of the service; what cannot be is left to the next one."""
        if self._ended and self._lrm.capabilities.reserve:
            await self._remove()

    def _keep(self, kept: str) -> None:
        with suppress(JournalBlockedError):  # then the next process asks, which does no harm
            self._core.journal.set_value(self._key, kept)

    async def _reserve(self, action: ReserveProcessors) -> Event:
        self._keep("yes")
        now, job_id, name = self._core.now(), action.job_id, action.name
        try:
            with answering(self._config.name):
                known = (await self._lrm.reservations()).get(name)
                handle = known or await self._lrm.reserve(
                    ReservationRequest(
                        placeholders=Submission(
                            key=BatchKey(name),
                            count=action.count,
                            script="#!/bin/sh\n",
                            walltime=ceil(action.seconds),
                            queue=action.slot.queue or self._config.queue,
                            memory_mib=action.slot.memory_mib or self._config.memory_mib,
                            slot=action.slot,
                        ),
                        starts_in=max(0.0, action.start_at - now),
                    )
                )
        except LrmError as error:
            self._over = self._ended = True  # it may have been made all the same
            return ReservationRefused(time=self._core.now(), job_id=job_id, name=name, reason=error.message)
        return ReservationMade(time=self._core.now(), job_id=job_id, name=name, handle=handle)

    async def _remove(self) -> bool:
        """Remove the reservations that belong to no job; tell whether none is left."""
        wanted = {one.name for record in self._core.state.jobs.values() for one in record.reservations}
        prefix, done = f"{self._core.name_prefix}r-", True
        try:
            with answering(self._config.name):
                there = await self._lrm.reservations()
        except LrmError as error:
            log.info("reservations cannot be listed", cluster=self._config.name, error=str(error))
            return not self._ended
        for name, handle in there.items():
            if name.startswith(prefix) and name not in wanted:
                try:
                    with answering(self._config.name):
                        await self._lrm.unreserve(handle)
                except LrmError as error:
                    done = False
                    if not isinstance(error, LrmUnavailableError):
                        log.warning("a reservation stays", cluster=self._config.name, name=name, error=str(error))
        if done and not wanted:
            self._keep("")
        return done

# SPDX-License-Identifier: Apache-2.0
"""The scheduler of a live batch system: look, decide, put on record, start, look whether it started.

The batch system stays the truth. While it does not answer nothing is decided and nothing is lost; when this process is
killed the next one finds its starts on record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import LrmError, LrmUnavailableError
from koala_adapter.ordering.entries import Phase
from koala_adapter.ordering.schedulingpass import decide
from koala_adapter.ordering.timeofday import as_read

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anyio.abc import TaskGroup

    from koala_adapter.batchsystem.listing import Listing
    from koala_adapter.batchsystem.startlog import StartLog
    from koala_adapter.model import LrmJobId
    from koala_adapter.ordering.entries import Happening, Start
    from koala_adapter.ordering.mirror import Mirror
    from koala_adapter.ordering.pacedwatcher import PacedWatcher
    from koala_adapter.ordering.schedulingpass import Manner
    from koala_adapter.plugin import Lrm

AT_ONCE = 8
"""Starts that are asked for at the same time."""

log = structlog.get_logger()


class Driver:
    """Owns the order of one batch system while it runs."""

    def __init__(
        self,
        lrm: Lrm,
        watcher: PacedWatcher,
        mirror: Mirror,
        manner: Manner,
        record: StartLog,
        *,
        tell: Callable[[Sequence[Happening]], None],
    ) -> None:
        """``tell`` hears after each look what went on, if anything, in times of day.

        The watcher's plugin has been started, and its clock is ours.
        """
        self._lrm = lrm
        self._watcher = watcher
        self.mirror = mirror
        self._manner = manner
        self._record = record
        self._tell = tell
        self._limit = anyio.CapacityLimiter(AT_ONCE)
        self._observed_at = 0.0

    async def run(self, *, once: bool = False) -> None:
        """Schedule until cancelled; ``once``: one pass, and return when what it started has shown.

        Raises JournalError when starts cannot be put on record: nothing is started without.
        """
        async with anyio.create_task_group() as tasks:
            decided = False
            while not (once and decided and not self.restless):
                listing = await self._watcher.look()
                if listing is not None:
                    await self._follow(listing, tasks, deciding=not (once and decided))
                    decided = True
                if once and decided and not self.restless:
                    break
                now = self._watcher.clock.now()
                due = self.mirror.next_due(now)
                await self._watcher.pause(restless=self.restless, due=None if due is None else due - now)

    @property
    def restless(self) -> bool:
        """Tell whether something is about to show."""
        return any(entry.phase in {Phase.STARTING, Phase.RETURNING} for entry in self.mirror.entries.values())

    async def _follow(self, listing: Listing, tasks: TaskGroup, *, deciding: bool) -> None:
        """Take in a listing and do what follows from it."""
        mirror = self.mirror
        if self._watcher.clock.step():
            self._record.note_clock(self._watcher.clock.reading())
        due = mirror.next_due(self._observed_at)
        mirror.observe(listing)
        self._observed_at = listing.read_at
        for job_id in mirror.to_hold():
            await self._take_back(job_id)
        for job_id in mirror.started():
            tasks.start_soon(self._hold_when_requeued, job_id)
        starts: list[Start] = []
        if deciding and (mirror.dirty or (due is not None and due <= listing.read_at)):
            starts = decide(mirror, self._manner, listing.read_at)
        self._record.store(mirror.pins)
        for start in starts:
            tasks.start_soon(self._start, start)
        self._tell_all()

    async def _start(self, start: Start) -> None:
        """Have one job started; what came of it shows in the next looks."""
        job_id = start.job_id
        async with self._limit:
            self.mirror.asking(job_id, start.allocation.nodes)
            try:
                await self._lrm.start_on(job_id, start.allocation.entries)
                self.mirror.accepted(job_id, self._watcher.clock.now())
            except LrmUnavailableError as error:
                log.warning("it is not known whether a start was taken", job=job_id, error=str(error))
                self.mirror.accepted(job_id, self._watcher.clock.now(), doubtful=True)
            except LrmError as error:
                self.mirror.refused(job_id, self._watcher.clock.now(), str(error))
            except Exception:
                # A defect of a plugin costs this start, not the others.
                log.exception("a plugin failed", job=job_id)
                self.mirror.accepted(job_id, self._watcher.clock.now(), doubtful=True)
        self._tell_all()
        self._watcher.look_soon()

    async def _take_back(self, job_id: LrmJobId) -> None:
        """Hold and untie a job that did not start, or was queued again; if that fails, again at the next look."""
        try:
            await self._lrm.take_back(job_id)
            self.mirror.taken_back(job_id)
        except LrmError as error:
            log.warning("a job cannot be put in hold again", job=job_id, error=str(error))

    async def _hold_when_requeued(self, job_id: LrmJobId) -> None:
        async with self._limit:
            try:
                await self._lrm.hold_when_requeued(job_id)
            except LrmError as error:
                log.warning("a job that is queued again will not be in hold", job=job_id, error=str(error))

    def _tell_all(self) -> None:
        happened, self.mirror.happened = self.mirror.happened, []
        offset = self._watcher.clock.offset
        self._tell([as_read(one, offset) for one in happened])

# SPDX-License-Identifier: Apache-2.0
"""The scheduler of a live batch system: look, decide, put on record, start, look whether it started.

The batch system stays the truth. While it does not answer nothing is decided and nothing is lost; when this process is
killed the next one finds its starts on record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import JournalError
from koala_adapter.ordering.entries import Phase
from koala_adapter.ordering.schedulingpass import decide
from koala_adapter.ordering.timeofday import as_read

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anyio.abc import TaskGroup

    from koala_adapter.batchsystem.listing import Listing
    from koala_adapter.batchsystem.starter import Starter
    from koala_adapter.batchsystem.startlog import StartLog
    from koala_adapter.ordering.entries import JobEvent, Start
    from koala_adapter.ordering.mirror import Mirror
    from koala_adapter.ordering.notewriter import NoteWriter
    from koala_adapter.ordering.pacedwatcher import PacedWatcher
    from koala_adapter.ordering.schedulingpass import MisfitRules

log = structlog.get_logger()


class OutsideScheduler:
    """Owns the order of one batch system while it runs."""

    def __init__(
        self,
        watcher: PacedWatcher,
        mirror: Mirror,
        misfit_rules: MisfitRules,
        starter: Starter,
        record: StartLog,
        *,
        tell: Callable[[Sequence[JobEvent]], None],
        notes: NoteWriter | None = None,
    ) -> None:
        """``tell`` hears after each look what went on, if anything, in times of day. ``notes``: None for no notes.

        The watcher's plugin has been started, and its clock is ours and the starter's, whose starts are the mirror's.
        """
        self._watcher = watcher
        self.mirror = mirror
        self._misfit_rules = misfit_rules
        self._starter = starter
        self._record = record
        self._tell = tell
        self._notes = notes
        self._observed_at = 0.0

    async def run(self, *, once: bool = False) -> None:
        """Schedule until cancelled; ``once``: one pass, and return when what it started has shown.

        What does not run when it is cancelled is held again. While starts cannot be put on record nothing is started.
        """
        try:
            await self._run(once=once)
        finally:
            await self._starter.leave()

    async def _run(self, *, once: bool) -> None:
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
            self._note_clock()
        due = mirror.next_due(self._observed_at)
        mirror.observe(listing)
        self._observed_at = listing.read_at
        for job_id in mirror.starts_to_undo():
            await self._starter.undo_start(job_id)
        for job_id in self._starter.to_confirm():
            tasks.start_soon(self._starter.confirm, job_id)
        starts: list[Start] = []
        if deciding and (mirror.dirty or (due is not None and due <= listing.read_at)):
            starts = decide(mirror, self._misfit_rules, listing.read_at)
        if self._starter.note_before([start.job_id for start in starts]):
            for start in starts:
                tasks.start_soon(self._start, start)
        if self._notes is not None and (changes := self._notes.due(mirror)):
            tasks.start_soon(self._notes.write, mirror, changes)
        self._tell_all()

    def _note_clock(self) -> None:
        try:
            self._record.note_clock(self._watcher.clock.reading())
        except JournalError as error:
            # What is lost is that the time of day was set, should this process end before it is noted again.
            log.warning("the clock's reading cannot be put on record", error=str(error))

    async def _start(self, start: Start) -> None:
        """Have one job started; what came of it shows in the next looks."""
        await self._starter.ask(start.pin)
        self._watcher.look_soon()

    def _tell_all(self) -> None:
        happened, self.mirror.happened = self.mirror.happened, []
        offset = self._watcher.clock.offset
        self._tell([as_read(one, offset) for one in happened])

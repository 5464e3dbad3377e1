# SPDX-License-Identifier: Apache-2.0
"""What a service does beside handling events: wakes the scheduler, writes snapshots, tries the journal, tidies up."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import JournalBlockedError
from koala_adapter.scheduler import events as ev
from koala_adapter.service.scriptmaker import tidy_words, words_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from anyio.abc import TaskGroup

    from koala_adapter.driver.loop import EventLoop
    from koala_adapter.host.clock import ServiceClock
    from koala_adapter.model import ClusterName
    from koala_adapter.service.clusterdriver import ClusterDriver
    from koala_adapter.service.journal import Journal
    from koala_adapter.service.liveeffector import LiveEffector

FIRST_PAUSE = 0.5
"""Seconds before the journal is tried again; doubled with each try."""
LONGEST_PAUSE = 15.0
LONGEST_WAIT = 60.0
"""Seconds after which the clock is looked at again: a wait does not count the time for which the machine sleeps."""

log = structlog.get_logger()


class Upkeep:
    """Looks after the loop, the journal and the clusters of a service."""

    def __init__(
        self,
        directory: Path,
        *,
        loop: EventLoop,
        journal: Journal,
        clock: ServiceClock,
        clusters: Mapping[ClusterName, ClusterDriver],
        effector: LiveEffector,
        changed: Callable[[], anyio.Event],
        tell: Callable[[], None],
    ) -> None:
        """``directory``: of the service's state.

        ``changed``: what is set at the next change; ``tell``: something has changed.
        """
        self._directory = directory
        self._loop = loop
        self._journal = journal
        self._clock = clock
        self._clusters = clusters
        self._effector = effector
        self._changed = changed
        self._tell = tell
        self._halted = anyio.Event()
        self._snapshot_begun = anyio.Event()

    def start(self, tasks: TaskGroup) -> None:
        """Begin, within ``tasks``."""
        for work in (self._keep_trying, self._keep_time, self._write_snapshots, self._tidy):
            tasks.start_soon(work)

    def halted(self) -> None:
        """Hear that the journal cannot be written."""
        self._halted.set()

    def snapshot_begun(self) -> None:
        """Hear that a snapshot is to be written."""
        self._snapshot_begun.set()

    def watch_time_of_day(self) -> None:
        """Note it when somebody sets the time of day, or the next boot would take that for time that has passed."""
        step = self._clock.step()
        if step:
            log.warning("the time of day of this machine was set", seconds=round(step, 1))
            with suppress(JournalBlockedError):
                self._journal.note_clock(self._clock.reading())

    async def _keep_trying(self) -> None:
        """Try the journal, while it cannot be written, until that works; then see what happened on the clusters."""
        while True:
            await self._halted.wait()
            pause = FIRST_PAUSE
            while self._loop.trouble:
                await anyio.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
                self._loop.try_again()
            self._halted = anyio.Event()
            log.info("the journal can be written again")
            self._tell()
            for driver in self._clusters.values():
                driver.poller.poll_soon()

    async def _write_snapshots(self) -> None:
        """Write each snapshot group by group; in between whoever asks is answered, and agents are heard."""
        while True:
            await self._snapshot_begun.wait()
            self._snapshot_begun = anyio.Event()
            while self._loop.write_snapshot_group():
                await anyio.lowlevel.checkpoint()
            for driver in self._clusters.values():
                driver.look_again()

    async def _keep_time(self) -> None:
        while True:
            at = None if self._loop.holding else self._loop.scheduler.next_wakeup
            changed = self._changed()
            self.watch_time_of_day()
            if at is not None and at <= self._clock.now():
                self._loop.post(ev.TimeReached(time=self._clock.now()))
                await anyio.lowlevel.checkpoint()
                continue
            left = LONGEST_WAIT if at is None else at - self._clock.now()
            with anyio.move_on_after(min(LONGEST_WAIT, max(0.0, left))):
                await changed.wait()

    async def _tidy(self) -> None:
        """Drop the secrets of submissions that are over."""
        while True:
            await self._changed().wait()
            if len(self._effector.with_secrets) > len(self._loop.scheduler.state.batches) and not self._loop.trouble:
                with suppress(JournalBlockedError):  # at the next change
                    self._forget_secrets()

    def _forget_secrets(self) -> None:
        for batch in [key for key in self._effector.with_secrets if key not in self._loop.scheduler.state.batches]:
            self._journal.forget_batch(batch)
            self._effector.with_secrets.discard(batch)
            for driver in self._clusters.values():
                driver.forget(batch)
                with suppress(OSError):
                    tidy_words(words_directory(driver.config, self._directory), batch)

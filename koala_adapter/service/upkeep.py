# SPDX-License-Identifier: Apache-2.0
"""Maintenance of a service: agents asked again after a defect, timers, snapshots, a blocked journal, tidying up."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import structlog

from koala_adapter.errors import JournalBlockedError
from koala_adapter.scheduler import events as ev
from koala_adapter.service.agents import LiveEffector, tidy_words
from koala_adapter.service.core import Core, Nudge
from koala_adapter.service.opening import words_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from anyio.abc import TaskGroup

    from koala_adapter.model import ClusterName, PlaceholderId
    from koala_adapter.scheduler.events import Event
    from koala_adapter.service.clusters import ClusterDriver

log = structlog.get_logger()


# -- Agents asked again for events that were set aside -------------------------------------------------------
# Such agents are disconnected; they reconnect and report everything again. A defect that recurs would disconnect them
# for ever, so each further failure of a kind of event doubles the pause before its agents are disconnected; until
# then they stay connected.

FIRST_ASKING_PAUSE = 1.0
"""Seconds before what a kind of event told is asked for that has failed before; doubled with each further time."""
LONGEST_ASKING_PAUSE = 300.0
FORGOTTEN_AFTER = 3600.0
"""Seconds without a failure of its kind after which one counts as the first."""


class AskingAgain:
    """Agents that must report again, and when."""

    def __init__(self, core: Core) -> None:
        """Agents are disconnected at the control center of ``core``."""
        self._core = core
        self._failed: dict[type[Event], tuple[float, float]] = {}
        """For each kind of event when it failed last, and the pause before what the next tells is asked for."""
        self._due: dict[PlaceholderId, float] = {}
        self._more = Nudge()

    def ask(self, event: Event, placeholders: Iterable[PlaceholderId]) -> None:
        """Ask agents to repeat what they told in an event: at once the first time."""
        now, kind = self._core.now(), type(event)
        failed_at, pause = self._failed.get(kind, (now, 0.0))
        if now - failed_at > FORGOTTEN_AFTER:
            pause = 0.0
        self._failed[kind] = now, min(LONGEST_ASKING_PAUSE, max(FIRST_ASKING_PAUSE, 2 * pause))
        for placeholder in placeholders:
            self._due.setdefault(placeholder, now + pause)
        self._ask_due()
        self._more.set()

    def _ask_due(self) -> None:
        now = self._core.now()
        for placeholder in [one for one, at in self._due.items() if at <= now]:
            del self._due[placeholder]
            self._core.center.disconnect(placeholder, "an event was set aside: tell again how things stand")

    async def run(self) -> None:
        """Disconnect agents when they are due, until cancelled."""
        while True:
            await self._more.wait()
            while self._due:
                await anyio.sleep(max(0.0, min(self._due.values()) - self._core.now()))
                self._ask_due()


# -- Upkeep: timers, snapshots, a blocked journal, tidying up ------------------------------------------------

FIRST_JOURNAL_PAUSE = 0.5
"""Seconds before the journal is tried again; doubled with each try."""
LONGEST_JOURNAL_PAUSE = 15.0
LONGEST_WAIT = 60.0
"""Seconds after which the clock is looked at again: a wait does not count the time for which the machine sleeps."""


class Upkeep:
    """Maintenance of loop, journal and clusters."""

    def __init__(
        self,
        core: Core,
        clusters: Mapping[ClusterName, ClusterDriver],
        effector: LiveEffector,
        *,
        journal_patience: float | None,
    ) -> None:
        """``journal_patience``: as of :class:`Service`."""
        self._journal_patience = inf if journal_patience is None else journal_patience
        self._core = core
        self._loop = core.loop
        self._journal = core.journal
        self._clock = core.clock
        self._clusters = clusters
        self._effector = effector
        self.halted = Nudge()
        """Set when the journal cannot be written."""
        self.snapshot_begun = Nudge()

    def start(self, tasks: TaskGroup) -> None:
        """Begin, within ``tasks``."""
        for work in (self._keep_trying, self._keep_time, self._write_snapshots, self._tidy):
            tasks.start_soon(work)

    def watch_time_of_day(self) -> None:
        """Record changes of the time of day, which after a reboot would look like elapsed time."""
        step = self._clock.step()
        if step:
            log.warning("the time of day of this machine was set", seconds=round(step, 1))
            with suppress(JournalBlockedError):
                self._journal.note_clock(self._clock.reading())

    async def _keep_trying(self) -> None:
        """Retry the journal until it can be written, then poll the clusters."""
        while True:
            await self.halted.wait()
            pause, since = FIRST_JOURNAL_PAUSE, anyio.current_time()
            while self._loop.trouble:
                await anyio.sleep(pause)
                pause = min(LONGEST_JOURNAL_PAUSE, 2 * pause)
                self._loop.try_again()
                if anyio.current_time() - since >= self._journal_patience:
                    self._require_use()
            log.info("the journal can be written again")
            self._core.note_change()
            for driver in self._clusters.values():
                driver.poller.poll_soon()

    def _require_use(self) -> None:
        """Raise JournalBlockedError while nothing is decided, unless an application runs."""
        jobs = self._loop.scheduler.state.jobs.values()
        if self._loop.trouble and not any(one.launched_at is not None and not one.state.final for one in jobs):
            hint = "make room; `koala serve`, or the next `koala run`, goes on with what waits"
            raise JournalBlockedError(self._loop.trouble, hint=hint)

    async def _write_snapshots(self) -> None:
        """Write snapshots group by group, serving clients and agents in between."""
        while True:
            await self.snapshot_begun.wait()
            while self._loop.write_snapshot_group():
                await anyio.lowlevel.checkpoint()
            for driver in self._clusters.values():
                driver.look_again()

    async def _keep_time(self) -> None:
        while True:
            at = None if self._loop.holding else self._loop.scheduler.next_wakeup
            changed = self._core.changed
            self.watch_time_of_day()
            if at is not None and at <= self._clock.now():
                self._loop.post(ev.TimeReached(time=self._clock.now()))
                await anyio.lowlevel.checkpoint()
                continue
            left = LONGEST_WAIT if at is None else at - self._clock.now()
            with anyio.move_on_after(min(LONGEST_WAIT, max(0.0, left))):
                await changed.wait()

    async def _tidy(self) -> None:
        """Delete the secrets of ended submissions."""
        while True:
            await self._core.changed.wait()
            if len(self._effector.with_secrets) > len(self._loop.scheduler.state.batches) and not self._loop.trouble:
                with suppress(JournalBlockedError):  # at the next change
                    self._forget_secrets()

    def _forget_secrets(self) -> None:
        for batch in [key for key in self._effector.with_secrets if key not in self._loop.scheduler.state.batches]:
            self._journal.forget_batch(batch)
            cluster = self._effector.with_secrets.pop(batch)
            for driver in self._clusters.values() if cluster is None else [self._clusters[cluster]]:
                driver.forget(batch)
                with suppress(OSError):
                    tidy_words(words_directory(driver.config, self._core.directory), batch)

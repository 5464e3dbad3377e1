# SPDX-License-Identifier: Apache-2.0
"""The order of things in a service: an event is journaled, then the scheduler handles it, then its actions are done.

While the journal cannot be written nothing of that happens: events wait here, in their order, and so do actions that
need the journal, until it can be written again. What users ask for is refused meanwhile.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import JournalBlockedError
from koala_adapter.scheduler import actions as act

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.scheduler.actions import Action
    from koala_adapter.scheduler.events import Event
    from koala_adapter.service.journal import Journal

FIRST_PAUSE = 0.5
"""Seconds before the journal is tried again; doubled with each try."""
LONGEST_PAUSE = 15.0

log = structlog.get_logger()


class EventQueue:
    """Takes events one after the other, each with all its actions before the next."""

    def __init__(
        self,
        journal: Journal,
        *,
        handle: Callable[[Event, int], list[Action]],
        act_on: Callable[[Action], None],
        settled: Callable[[], None],
    ) -> None:
        """``handle`` gets each event, once, with its number in the journal; ``act_on`` what it returned, in order.

        ``act_on`` may raise JournalBlockedError, and gets the same action again later. ``settled`` is called when all
        that there was is done, or waits for the journal.
        """
        self._journal = journal
        self._handle = handle
        self._act_on = act_on
        self._settled = settled
        self._events: deque[Event] = deque()
        self._actions: deque[Action] = deque()
        self._sync_wanted = False
        self._draining = False
        self._halted = anyio.Event()
        self.trouble = ""
        """Why the journal cannot be written at present; empty while it can."""

    def post(self, event: Event) -> None:
        """Take in what has happened: now, or as soon as the journal can be written."""
        self._events.append(event)
        self._drain()

    def enter(self, event: Event) -> None:
        """Take in what a user wants; it is on disk before this returns.

        Raises JournalBlockedError when it cannot be journaled: then it was never wanted.
        """
        self.require_journal()
        try:
            self._take(event)
        except JournalBlockedError as error:
            self.halt(error)
            raise
        self._sync_wanted = True
        self._drain()

    def require_journal(self) -> None:
        """Raise JournalBlockedError while the journal cannot be written."""
        if self.trouble:
            raise JournalBlockedError(self.trouble, hint="nothing is accepted until it can; make room, then try again")

    def halt(self, error: JournalBlockedError) -> None:
        """Do nothing more until the journal can be written."""
        self.trouble = error.message
        if not self._halted.is_set():
            log.error("nothing is decided until the journal can be written", error=error.message)
            self._halted.set()

    async def keep_trying(self, resumed: Callable[[], None]) -> None:
        """Try the journal, while it cannot be written, until that works; ``resumed`` is called then."""
        while True:
            await self._halted.wait()
            pause = FIRST_PAUSE
            while self.trouble:
                await anyio.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
                self._try_again()
            self._halted = anyio.Event()
            log.info("the journal can be written again")
            resumed()

    def _try_again(self) -> None:
        try:
            self._journal.probe()
        except JournalBlockedError as error:
            self.trouble = error.message
        else:
            self.trouble = ""
            self._drain()

    def _drain(self) -> None:
        if self._draining:
            return
        self._draining = True
        try:
            while not self.trouble and (self._events or self._actions or self._sync_wanted):
                self._go_on()
        except JournalBlockedError as error:
            self.halt(error)
        finally:
            self._draining = False
        self._settled()

    def _go_on(self) -> None:
        if self._sync_wanted:
            self._journal.sync()
            self._sync_wanted = False
        elif self._actions:
            action = self._actions.popleft()
            try:
                self._act_on(action)
            except JournalBlockedError:
                self._actions.appendleft(action)
                raise
        else:
            self._take(self._events[0])
            self._events.popleft()

    def _take(self, event: Event) -> None:
        number = self._journal.append(event)
        actions = self._handle(event, number)
        self._actions.extend(actions)
        self._sync_wanted |= any(isinstance(one, act.SubmitPlaceholders | act.LaunchJob) for one in actions)

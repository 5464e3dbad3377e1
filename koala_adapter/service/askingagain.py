# SPDX-License-Identifier: Apache-2.0
"""Asks agents again for what they told in an event that was set aside: they are cut off, come back, and tell all.

A defect that shows each time would cut them off for ever. So each further time that a kind of event fails, what it
told is asked for after a longer pause; meanwhile they stay connected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from koala_adapter.model import PlaceholderId
    from koala_adapter.scheduler.events import Event

FIRST_PAUSE = 1.0
"""Seconds before what a kind of event told is asked for that has failed before; doubled with each further time."""
LONGEST_PAUSE = 300.0
FORGOTTEN_AFTER = 3600.0
"""Seconds without a failure of its kind after which one counts as the first."""


class AskingAgain:
    """Whose agents are to be asked again, and when."""

    def __init__(self, *, clock: Callable[[], float], disconnect: Callable[[PlaceholderId, str], None]) -> None:
        """``disconnect`` cuts an agent off, if it is connected, for a reason."""
        self._clock = clock
        self._disconnect = disconnect
        self._failed: dict[type[Event], tuple[float, float]] = {}
        """For each kind of event when it failed last, and the pause before what the next tells is asked for."""
        self._due: dict[PlaceholderId, float] = {}
        self._more = anyio.Event()

    def ask(self, event: Event, placeholders: Iterable[PlaceholderId]) -> None:
        """Ask agents for what they told in an event: at once, if it is the first of its kind."""
        now, kind = self._clock(), type(event)
        failed_at, pause = self._failed.get(kind, (now, 0.0))
        if now - failed_at > FORGOTTEN_AFTER:
            pause = 0.0
        self._failed[kind] = now, min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * pause))
        for placeholder in placeholders:
            self._due.setdefault(placeholder, now + pause)
        self._ask_due()
        self._more.set()

    def _ask_due(self) -> None:
        now = self._clock()
        for placeholder in [one for one, at in self._due.items() if at <= now]:
            del self._due[placeholder]
            self._disconnect(placeholder, "an event was set aside: tell again how things stand")

    async def run(self) -> None:
        """Ask when it is time, until cancelled."""
        while True:
            await self._more.wait()
            while self._due:
                await anyio.sleep(max(0.0, min(self._due.values()) - self._clock()))
                self._ask_due()
            self._more = anyio.Event()

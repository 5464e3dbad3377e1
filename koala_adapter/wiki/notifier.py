# SPDX-License-Identifier: Apache-2.0
"""Tells a scheduler's event port that something has changed (WIKI2): five bytes on a connection of their own.

Slurm drops what comes too soon after another event, so that a job could wait a whole polling interval; here it is sent
when the interval is over. A port that does not answer is tried again later, and never holds anything up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.wiki.codec.replies import build_event
from koala_adapter.wiki.codec.words import Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.wiki.options import ServerOptions

CONNECT_WITHIN = 5.0
PAUSE_AFTER_FAILURE = 30.0

log = structlog.get_logger()


class Notifier:
    """Sends events, each kind at most once in an interval."""

    def __init__(self, options: ServerOptions, *, clock: Callable[[], float]) -> None:
        """``clock``: monotonic seconds."""
        self._host = options.event_host
        self.port = options.event_port
        """0: nobody wants events."""
        self._interval = options.event_interval
        self._clock = clock
        self._wanted: set[Event] = set()
        self._sent: dict[Event, float] = {}
        self._changed = anyio.Event()

    def send_to(self, host: str, port: int) -> None:
        """Send events there from now on; port 0: to nobody."""
        self._host, self.port = host, port
        self._sent.clear()

    def tell(self, event: Event) -> None:
        """Have an event sent as soon as the interval allows."""
        self._wanted.add(event)
        self._changed.set()

    async def run(self) -> None:
        """Send events until cancelled."""
        self.tell(Event.CONFIGURATION)
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            while self._wanted and self.port:
                event = min(self._wanted, key=self._due)
                await anyio.sleep(max(0.0, self._due(event) - self._clock()))
                self._wanted.discard(event)
                if not await self._send(event):
                    self._wanted.add(event)
                    await anyio.sleep(PAUSE_AFTER_FAILURE)
            self._wanted.clear()

    def _due(self, event: Event) -> float:
        return self._sent.get(event, float("-inf")) + self._interval

    async def _send(self, event: Event) -> bool:
        self._sent[event] = self._clock()
        if not (self.port and self._host):
            return True
        try:
            with anyio.fail_after(CONNECT_WITHIN):
                async with await anyio.connect_tcp(self._host, self.port) as stream:
                    await stream.send(build_event(event))
        except (OSError, TimeoutError, anyio.BrokenResourceError) as error:
            log.info("the event port does not answer", host=self._host, port=self.port, error=str(error))
            return False
        return True

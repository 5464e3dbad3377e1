# SPDX-License-Identifier: Apache-2.0
"""Admission control of ports: how many peers may be connected without a proof, and for how long.

Whoever can reach the port can open connections. Without a bound they would use up memory and descriptors; with a bound
alone they would keep the agents out. So there is room for a number of them, each has its time, and when the room is
full the one that has stood longest must go as soon as it had a fair chance.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Iterator


class Admission:
    """Bounds the peers that have connected and not yet proved themselves."""

    def __init__(self, *, limit: int, time_limit: float, patience: float) -> None:
        """``limit`` peers at once; each has ``time_limit`` seconds, but only ``patience`` while others must wait."""
        self._limit = limit
        self._time_limit = time_limit
        self._patience = patience
        self._applicants: dict[anyio.CancelScope, float] = {}
        self._left = anyio.Event()

    async def room(self) -> None:
        """Wait until one more peer may come in."""
        while len(self._applicants) >= self._limit:
            oldest, since = next(iter(self._applicants.items()))
            wait = since + self._patience - anyio.current_time()
            if wait <= 0:
                self._applicants.pop(oldest)
                oldest.cancel()
                return
            with anyio.move_on_after(wait):
                await self._left.wait()

    @contextmanager
    def applicant(self) -> Iterator[anyio.CancelScope]:
        """Count a peer as not yet proved during the block, which is cancelled when its time is up."""
        now = anyio.current_time()
        with anyio.CancelScope(deadline=now + self._time_limit) as scope:
            self._applicants[scope] = now
            try:
                yield scope
            finally:
                self._applicants.pop(scope, None)
                self._left.set()
                self._left = anyio.Event()

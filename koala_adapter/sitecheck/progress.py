# SPDX-License-Identifier: Apache-2.0
"""What is being looked at in one cluster, and what it keeps waiting for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.plugin.commands import CommandRunner

SOON = 2.0
"""Seconds without an answer from which on that is told."""
TOLD_EVERY = 1.0
"""Seconds."""


class Progress:
    """Tells a person how the check of a cluster gets on."""

    def __init__(self, tell: Callable[[str], None], commands: CommandRunner) -> None:
        """``commands``: whose requests are waited for."""
        self._tell = tell
        self._commands = commands
        self._step = ""

    def __call__(self, step: str) -> None:
        """Tell what is being looked at from now on."""
        self._step = step
        self._tell(step)

    async def tell_waits(self) -> None:
        """Tell which request has no answer yet and for how long, until cancelled."""
        while True:
            await anyio.sleep(TOLD_EVERY)
            awaited = self._commands.awaited
            if awaited is not None and awaited[1] >= SOON:
                name, seconds = awaited
                self._tell(f"{self._step}: no answer of {name} for {seconds:.0f} s")

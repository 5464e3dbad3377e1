# SPDX-License-Identifier: Apache-2.0
"""How a command that serves until it is stopped hears of that."""

from __future__ import annotations

import signal

import anyio


async def stop_on_signal(scope: anyio.CancelScope) -> None:
    """Cancel ``scope`` at the first SIGTERM, SIGINT or SIGHUP."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for _ in signals:
            scope.cancel()
            return

# SPDX-License-Identifier: Apache-2.0
"""How a command that serves until it is stopped hears of that, and tells systemd that it lives."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import anyio

from koala_adapter.host.servicemanager import ServiceManager

if TYPE_CHECKING:
    from anyio.abc import TaskGroup


async def stop_on_signal(scope: anyio.CancelScope) -> None:
    """Cancel ``scope`` at the first SIGTERM, SIGINT or SIGHUP."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for _ in signals:
            scope.cancel()
            return


def under_supervision(tasks: TaskGroup) -> ServiceManager:
    """Give signs of life to systemd while the task group runs, if it wants any; return what tells it more."""
    manager = ServiceManager()
    tasks.start_soon(manager.keep_alive)
    return manager

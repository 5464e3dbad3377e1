# SPDX-License-Identifier: Apache-2.0
"""Supervision of this process: notifications to systemd (sd_notify(3)), and stopping on a signal.

Where systemd has not started the program, notifications do nothing.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from anyio.abc import TaskGroup


# -- Notifications to systemd: ready, alive, stopping --------------------------------------------------------

SIGNS_PER_LIMIT = 3
"""Signs of life within the time after which systemd takes a service for dead: one may be late."""
MICROSECOND = 1e-6


class ServiceManager:
    """Notifications to the supervisor of this process (sd_notify(3))."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """``environment``: where systemd has written what it wants to be told."""
        self._path = environment.get("NOTIFY_SOCKET", "")
        self._limit = _watchdog_limit(environment)

    def ready(self) -> None:
        """Notify the supervisor that the service is ready (READY=1)."""
        self._tell("READY=1")

    def stopping(self) -> None:
        """Notify the supervisor of an orderly end (STOPPING=1)."""
        self._tell("STOPPING=1")

    async def keep_alive(self) -> None:
        """Send watchdog notifications while the event loop runs, until cancelled; return at once if none are wanted."""
        while self._path and self._limit is not None:
            self._tell("WATCHDOG=1")
            await anyio.sleep(self._limit / SIGNS_PER_LIMIT)

    def _tell(self, text: str) -> None:
        if not self._path.startswith(("/", "@")):
            return
        address = f"\0{self._path[1:]}" if self._path.startswith("@") else self._path
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        # A supervisor that does not listen must not end what it supervises.
        with socket.socket(socket.AF_UNIX, kind) as way, suppress(OSError):
            way.sendto(text.encode(), address)


def _watchdog_limit(environment: Mapping[str, str]) -> float | None:
    """Return the watchdog interval of the supervisor in seconds; None when there is no watchdog."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        limit = int(environment.get("WATCHDOG_USEC", ""))
    except ValueError:
        return None
    return limit * MICROSECOND if limit > 0 else None


# -- Stopping a server on a signal, and signs of life while it serves ----------------------------------------


async def stop_on_signal(scope: anyio.CancelScope) -> None:
    """Cancel ``scope`` at the first SIGTERM, SIGINT or SIGHUP."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for _ in signals:
            scope.cancel()
            return


def under_supervision(tasks: TaskGroup, goes_on: Callable[[], bool] = lambda: False) -> ServiceManager:
    """Notify systemd while the task group runs, and of the end; return the notifier.

    ``goes_on``: at the end of the task group, whether another one follows in this process.
    """
    manager = ServiceManager()
    tasks.start_soon(manager.keep_alive)
    tasks.start_soon(_tell_end, manager, goes_on)
    return manager


async def _tell_end(manager: ServiceManager, goes_on: Callable[[], bool]) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        if not goes_on():
            manager.stopping()

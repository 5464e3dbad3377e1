# SPDX-License-Identifier: Apache-2.0
"""Finding and ending the daemon of a local cluster by its process id, for tests that start one."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from pathlib import Path


def daemon_pid(directory: Path) -> int:
    """Return the process id of the daemon that serves a state directory."""
    return int((directory / "pid").read_text(encoding="ascii"))


async def end_daemon(directory: Path, how: signal.Signals = signal.SIGTERM) -> None:
    """End the daemon, if one runs, and return when it has gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        descriptor = os.pidfd_open(daemon_pid(directory))
        try:
            signal.pidfd_send_signal(descriptor, how)
            with anyio.fail_after(10):
                await anyio.wait_readable(descriptor)
        finally:
            os.close(descriptor)

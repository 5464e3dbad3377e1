# SPDX-License-Identifier: Apache-2.0
"""Finding and ending the daemon of a local cluster by its process id, for tests that start one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio


def daemon_pid(directory: Path) -> int:
    """Return the process id of the daemon that serves a state directory. Raises ProcessLookupError."""
    try:
        pid = int((directory / "pid").read_text(encoding="ascii"))
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError as error:
        raise ProcessLookupError(f"no daemon of {directory}") from error
    # A daemon that was killed leaves its id behind, which may be another process's by now.
    if os.fsencode(directory) not in arguments:
        raise ProcessLookupError(f"no daemon of {directory}")
    return pid


async def end_daemon(directory: Path, how: signal.Signals = signal.SIGTERM) -> None:
    """End the daemon, if one runs, and return when it has gone."""
    try:
        descriptor = os.pidfd_open(daemon_pid(directory))
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(descriptor, how)
        with anyio.fail_after(120):
            await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)

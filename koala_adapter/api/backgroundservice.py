# SPDX-License-Identifier: Apache-2.0
"""Starting a service as a process of its own, which outlives the command that needed one."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from koala_adapter.api.statedirectory import LOG_NAME, ownership
from koala_adapter.errors import ServiceUnavailableError

if TYPE_CHECKING:
    from pathlib import Path

READY = b"ready\n"
IDLE_LIMIT = 1800
"""Seconds without an unfinished job after which a service that a command started in the background ends."""


def start_in_background(site_file: Path, directory: Path, *, timeout: float = 120.0) -> int:
    """Start ``koala serve`` as a process of its own, return its pid once it answers.

    Raises ServiceRunningError when another process owns the directory, and ServiceUnavailableError with the end of what
    it wrote to its log when it does not come up.
    """
    with ownership(directory, "koala serve, about to start") as lock:
        reader, writer = os.pipe()
        log = os.open(directory / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        earlier = os.fstat(log).st_size
        command = [sys.executable, "-m", "koala_adapter.cli", "--site", str(site_file), "--state", str(directory)]
        command += ["serve", "--ready-descriptor", str(writer), "--lock-descriptor", str(lock)]
        try:
            process = subprocess.Popen(
                [*command, "--end-when-idle", str(IDLE_LIMIT)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(writer, lock),
                start_new_session=True,
                cwd="/",
            )
        finally:
            os.close(writer)
            os.close(log)
    # A caller that goes on for long, such as a notebook, is to have no zombie when the service ends.
    threading.Thread(target=process.wait, name="koala service", daemon=True).start()
    with os.fdopen(reader, "rb") as ready:
        if _read_within(ready.fileno(), timeout) == READY:
            return process.pid
    process.terminate()
    with (directory / LOG_NAME).open("rb") as file:
        file.seek(earlier)
        lines = file.read().decode(errors="replace").strip().splitlines()
    said = "".join(f"\n  {line}" for line in lines[-5:]) or " and said nothing"
    raise ServiceUnavailableError(f"the service did not come up{said}", hint=f"see {directory / LOG_NAME}")


def ended_within(pid: int, timeout: float) -> bool:
    """Wait until a process has ended, at most ``timeout`` seconds; tell whether it has."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        readable, _, _ = select.select([process], [], [], timeout)
        return bool(readable)
    finally:
        os.close(process)


def _read_within(descriptor: int, timeout: float) -> bytes:
    readable, _, _ = select.select([descriptor], [], [], timeout)
    return os.read(descriptor, len(READY)) if readable else b""

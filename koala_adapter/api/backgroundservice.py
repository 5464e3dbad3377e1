# SPDX-License-Identifier: Apache-2.0
"""A service where none runs: as a process of its own, which outlives whoever needed one, or as somebody else's."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from koala_adapter.api.statedirectory import LOG_NAME, ownership
from koala_adapter.errors import ServiceRunningError, ServiceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from koala_adapter.api.client import Client

T = TypeVar("T")

COMING_UP = 120.0
"""Seconds to wait for a service that somebody else is starting."""
OTHER_START = 2.0
"""Seconds after which it is looked whether that one is still there."""
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
    # Whoever lives longer than the service must not keep what is left of it.
    threading.Thread(target=process.wait, name="koala-service-end", daemon=True).start()
    with os.fdopen(reader, "rb") as ready:
        if _read_within(ready.fileno(), timeout) == READY:
            return process.pid
    process.terminate()
    with (directory / LOG_NAME).open("rb") as file:
        file.seek(earlier)
        lines = file.read().decode(errors="replace").strip().splitlines()
    said = "".join(f"\n  {line}" for line in lines[-5:]) or " and said nothing"
    raise ServiceUnavailableError(f"the service did not come up{said}", hint=f"see {directory / LOG_NAME}")


def unless_another_answers(client: Client, start: Callable[[], T]) -> T | None:
    """Return what ``start`` returns; None when another service, on whose start it waited, answers instead.

    Raises ServiceRunningError when another process owns the directory and does not come to answer.
    """
    until = time.monotonic() + COMING_UP
    while True:
        try:
            return start()
        except ServiceRunningError as error:
            # In between the start is tried again: the other one may fail.
            if client.wait_until_running(OTHER_START):
                return None
            if time.monotonic() > until:
                message = f"{error.message}, but has not answered for {COMING_UP:.0f} s"
                hint = f"see what it says there, or in {client.directory / LOG_NAME}; end it and try again"
                raise ServiceRunningError(message, hint=hint) from None


def _read_within(descriptor: int, timeout: float) -> bytes:
    readable, _, _ = select.select([descriptor], [], [], timeout)
    return os.read(descriptor, len(READY)) if readable else b""

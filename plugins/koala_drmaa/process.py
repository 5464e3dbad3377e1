# SPDX-License-Identifier: Apache-2.0
"""The helper process seen from its parent: lines go in, lines come out, and it can be killed at any moment.

No background tasks: whoever asks waits for the answer itself, one at a time.
"""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from koala_adapter.errors import LrmUnavailableError
from koala_drmaa.protocol import LONGEST_LINE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from anyio.abc import Process

FAREWELL_SECONDS = 5.0
"""How long a helper may take to end its session when its stdin is closed."""

BURIAL_SECONDS = 0.1
"""How long asyncio may take to notice that a process has died."""

LOG_TAIL = 2000
"""Bytes of the helper's stderr that go into an error message, at most."""


class HelperProcess:
    """One running helper."""

    def __init__(self, process: Process, log: Path) -> None:
        """Take over a process; use :meth:`start`."""
        self._process = process
        self._log = log
        if process.stdin is None or process.stdout is None:
            message = "a helper needs pipes for its stdin and stdout"
            raise ValueError(message)
        self._stdin = process.stdin
        self._lines = BufferedByteReceiveStream(process.stdout)

    @classmethod
    async def start(cls, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> HelperProcess:
        """Start a helper; its stderr goes to ``log``, which begins anew. Raises LrmUnavailableError."""
        try:
            with log.open("wb") as stderr:
                process = await anyio.open_process(
                    list(argv),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env=dict(environment),
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as error:
            message = f"cannot start the DRMAA helper: {error.strerror or error}"
            raise LrmUnavailableError(message, hint=f"look at {log}") from error
        return cls(process, log)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def is_running(self) -> bool:
        """Tell whether it has not ended."""
        return self._process.returncode is None

    async def send(self, line: bytes) -> None:
        """Write one line. Raises LrmUnavailableError when the helper has died."""
        try:
            await self._stdin.send(line)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            raise self._died() from None

    async def receive(self) -> bytes:
        """Return the next line. Raises LrmUnavailableError when the helper has died."""
        try:
            return await self._lines.receive_until(b"\n", LONGEST_LINE)
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise self._died() from None

    async def stop(self) -> None:
        """Close its stdin, wait a little, kill it if need be; return when it is gone."""
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(anyio.BrokenResourceError, OSError):
                await self._stdin.aclose()
            with anyio.move_on_after(FAREWELL_SECONDS):
                await self._process.wait()
            await self.kill()

    async def kill(self) -> None:
        """Kill it at once; return when it is gone. It may hang in a library call, so nothing else is sure."""
        with anyio.CancelScope(shield=True):
            # If it has just died, it must not be buried twice: by asyncio's watcher, and on the way of a signal to it.
            with anyio.move_on_after(BURIAL_SECONDS):
                await self._process.wait()
            if self.is_running():
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            await self._process.wait()
            await self._process.aclose()

    def _died(self) -> LrmUnavailableError:
        said = self.last_words()
        message = "the DRMAA helper died" + (f": {said}" if said else "")
        return LrmUnavailableError(message, hint=f"it is started again; its log is {self._log}")

    def last_words(self) -> str:
        """Return the last line that it wrote to stderr."""
        try:
            text = self._log.read_bytes()[-LOG_TAIL:].decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else ""

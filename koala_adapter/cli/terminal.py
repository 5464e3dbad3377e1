# SPDX-License-Identifier: Apache-2.0
"""Standard streams on a terminal that may go away: closed window, ``tmux kill-session``, cut connection.

Whatever is written to such a terminal fails from then on (EIO), at any line that prints something, also at those of an
orderly end. Here it goes nowhere instead, and the first failure is taken for what it is, a hangup, whether or not the
kernel or a shell sends SIGHUP as well.
"""

from __future__ import annotations

import errno
import io
import signal
import sys
import threading
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from _typeshed import ReadableBuffer


def survive_hangup() -> None:
    """Have standard output and standard error survive the end of the terminal that they are."""
    if sys.stdout is not None and sys.stdout.isatty():
        sys.stdout = _surviving(sys.stdout)
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr = _surviving(sys.stderr)


def _surviving(stream: TextIO) -> TextIO:
    stream.flush()
    writer = io.BufferedWriter(TerminalWriter(stream.fileno()))
    text = io.TextIOWrapper(writer, encoding=stream.encoding, errors=stream.errors, line_buffering=True)
    return cast("TextIO", text)


class TerminalWriter(io.FileIO):
    """Writes to a terminal; once that is gone, to nowhere."""

    def __init__(self, descriptor: int, hang_up: Callable[[], None] | None = None) -> None:
        """``hang_up`` is called at the first failure; by default it sends this process SIGHUP."""
        super().__init__(descriptor, "w", closefd=False)
        self._hang_up = hang_up or send_hangup
        self._gone = False

    def write(self, data: ReadableBuffer) -> int:
        """Write, or say that it was written. Raises OSError for other troubles than the end of the terminal."""
        if self._gone:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        self._gone = True
        self._hang_up()
        return memoryview(data).nbytes


def send_hangup() -> None:
    """Send SIGHUP to the main thread, the one that may be waiting for something."""
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGHUP)


def hangup_once(handle: Callable[[int, FrameType | None], object]) -> Callable[[int, FrameType | None], None]:
    """Return a handler of SIGHUP that passes on the first one only.

    One hangup comes from the kernel, from the shell and from a failed write: these are not somebody who insists.
    """
    heard = False

    def handle_first(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        if not heard:
            heard = True
            handle(number, frame)

    return handle_first

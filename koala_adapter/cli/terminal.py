# SPDX-License-Identifier: Apache-2.0
"""Terminals and pipes: closed standard descriptors, hangups, readers that go away, and interrupts."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, TextIO, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Self

    from _typeshed import ReadableBuffer


# -- Closed standard descriptors -----------------------------------------------------------------------------
# A caller may have closed them (``koala submit job.toml >&-``, some daemons). The next file that is opened would get
# such a number, and then be written to by whatever prints.


def open_standard_descriptors() -> None:
    """Open closed descriptors among 0, 1 and 2 on /dev/null, with Python's streams for them."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != descriptor:
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
            os.set_inheritable(descriptor, True)  # noqa: FBT003 - processes that are started have it, too
        if getattr(sys, name) is None:
            mode = "w" if descriptor else "r"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - never closed


# -- Terminals that go away ----------------------------------------------------------------------------------
# A closed window, ``tmux kill-session``, a cut connection: whatever is written to such a terminal fails from then on
# (EIO), at any line that prints something, also at those of an orderly end. Here it goes nowhere instead, and the first
# failure counts as a hangup, whether or not the kernel or a shell sends SIGHUP as well.


def survive_hangup() -> None:
    """Replace standard output and error by streams that work after the end of their terminal."""
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
    """Raw stream of a terminal that discards output once the terminal is gone."""

    def __init__(self, descriptor: int, hang_up: Callable[[], None] | None = None) -> None:
        """``hang_up`` is called at the first failure; by default it sends this process SIGHUP."""
        super().__init__(descriptor, "w", closefd=False)
        self._hang_up = hang_up or send_hangup
        self._gone = False

    def write(self, data: ReadableBuffer) -> int:
        """Write, or discard the data when the terminal is gone. Raises OSError for other failures."""
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
    """Send SIGHUP to the main thread."""
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGHUP)


def hangup_once(handle: Callable[[int, FrameType | None], object]) -> Callable[[int, FrameType | None], None]:
    """Return a handler that passes on the first SIGHUP only.

    One hangup comes from the kernel, from the shell and from a failed write: these do not count as a second one.
    """
    heard = False

    def handle_first(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        if not heard:
            heard = True
            handle(number, frame)

    return handle_first


# -- Readers that go away ------------------------------------------------------------------------------------

EXIT_BROKEN_PIPE = 141
"""The reader of our output has gone: 128 + SIGPIPE."""


def leave_broken_pipe() -> NoReturn:
    """End quietly because the reader of our output has gone."""
    abandon_output()
    sys.exit(EXIT_BROKEN_PIPE)


def abandon_output() -> None:
    """Send what is still buffered for standard output nowhere, or Python complains when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


# -- Interrupts ----------------------------------------------------------------------------------------------
# Ctrl-C is taken at any moment, but never in the middle of what would leave a job, a thread or a process behind.


class Interrupts:
    """Turns Ctrl-C, SIGTERM and SIGHUP into KeyboardInterrupt, except in blocks that must not be broken off."""

    def __init__(self) -> None:
        """Handlers are installed by ``__enter__``."""
        self._former: dict[signal.Signals, signal._HANDLER] = {}
        self._deferred = False
        self._pending = False

    def __enter__(self) -> Self:
        """Install the signal handlers."""
        handlers = {signal.SIGINT: self._handle, signal.SIGTERM: self._handle, signal.SIGHUP: hangup_once(self._handle)}
        for number, handler in handlers.items():
            self._former[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the former signal handlers."""
        for number, handler in self._former.items():
            signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Delay interrupts to the end of the block."""
        former, self._deferred = self._deferred, True
        try:
            yield
        finally:
            self._deferred = former
        self._deliver()

    @contextmanager
    def let_in(self) -> Iterator[None]:
        """Allow interrupts in this part of a :meth:`deferred` block."""
        former, self._deferred = self._deferred, False
        try:
            self._deliver()
            yield
        finally:
            self._deferred = former

    def _deliver(self) -> None:
        if self._pending and not self._deferred:
            self._pending = False
            raise KeyboardInterrupt

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self._pending = True
        self._deliver()

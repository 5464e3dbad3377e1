# SPDX-License-Identifier: Apache-2.0
"""The log file of a background service, and where log lines go while a command runs.

First the file, which is put aside before it gets large, then the settings of structlog.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO, cast

import structlog

from koala_adapter.config.tomlfile import printable

if TYPE_CHECKING:
    from pathlib import Path

    from structlog.typing import EventDict


# -- Rotated log file ----------------------------------------------------------------------------------------

LARGEST = 10 * 1024**2
"""Bytes after which the file is put aside."""
KEPT = 3
"""Files that are kept beside it, ``service.log.1`` the latest of them."""


class RotatedLog:
    """Log file with a limit of size; when it is renamed, the descriptors of all writers move to the new file."""

    def __init__(self, path: Path, descriptors: tuple[int, ...] = (1, 2), *, largest: int = LARGEST) -> None:
        """``path``: the file that ``descriptors`` are open on; text is written to the last of them."""
        self._path = path
        self._descriptors = descriptors
        self._largest = largest

    def write(self, text: str) -> int:
        """Write the text; start a new file first when the present one is full. Raises OSError."""
        descriptor = self._descriptors[-1]
        data = text.encode("utf-8", "backslashreplace")
        size = os.fstat(descriptor).st_size
        if size and size + len(data) > self._largest:
            # What cannot be put aside goes on growing: that is better than no log.
            with suppress(OSError):
                self._put_aside()
        os.write(descriptor, data)
        return len(text)

    def flush(self) -> None:
        """Do nothing: each line is written at once."""

    def _put_aside(self) -> None:
        if not os.path.samestat(self._path.stat(), os.fstat(self._descriptors[-1])):
            return  # somebody else, such as logrotate, has done it
        for number in range(KEPT, 0, -1):
            earlier = self._path if number == 1 else self._aside(number - 1)
            with suppress(FileNotFoundError):
                earlier.replace(self._aside(number))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        new = os.open(self._path, flags, 0o600)
        try:
            for descriptor in self._descriptors:
                os.dup2(new, descriptor)
        finally:
            os.close(new)

    def _aside(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


# -- Log settings of a command -------------------------------------------------------------------------------
# Lines go to standard error or to a file, or nowhere.


class LogStream:
    """Text stream that ignores failing writes, so that logging never fails."""

    def __init__(self, stream: TextIO) -> None:
        """Write to ``stream``."""
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text; ignore a failure."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream; ignore a failure."""
        with suppress(OSError):
            self._stream.flush()


def escape_values(_logger: object, _method: str, entry: EventDict) -> EventDict:
    """Escape control characters in all texts of a log entry (processor of structlog)."""
    return {name: printable(value) if isinstance(value, str) else value for name, value in entry.items()}


def set_up_log(*, shown: bool, file: Path | None = None) -> None:
    """Set up the log: on standard error when ``shown``, else nowhere.

    ``file``: what standard output and standard error are, if it is to be put aside before it gets large.
    """
    stream = sys.stderr if file is None else RotatedLog(file)
    level = logging.INFO if shown else logging.CRITICAL
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            escape_values,
            structlog.processors.ExceptionRenderer(),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", LogStream(cast("TextIO", stream)))),
    )
    if not shown:
        # What asyncio complains of on its own is for us, not for the person at the terminal.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)

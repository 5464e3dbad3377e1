# SPDX-License-Identifier: Apache-2.0
"""How parts that log do so while a command runs: in lines on standard error, or not at all."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO, cast

import structlog

from koala_adapter.cli.rotatedlog import RotatedLog

if TYPE_CHECKING:
    from pathlib import Path


class LogStream:
    """A text stream that drops what cannot be written, so that nothing that is logged about fails by it."""

    def __init__(self, stream: TextIO) -> None:
        """Write to ``stream``."""
        self._stream = stream

    def write(self, text: str) -> int:
        """Write as far as possible."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Pass on what was written, as far as possible."""
        with suppress(OSError):
            self._stream.flush()


def set_up_log(*, shown: bool, file: Path | None = None) -> None:
    """Log on standard error when ``shown``; otherwise to nowhere.

    ``file``: what standard output and standard error are, if it is to be put aside before it gets large.
    """
    stream = sys.stderr if file is None else RotatedLog(file)
    level = logging.INFO if shown else logging.CRITICAL
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.ExceptionRenderer(),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", LogStream(cast("TextIO", stream)))),
    )
    if not shown:
        # What asyncio complains of on its own is for us, not for the person at the terminal.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)

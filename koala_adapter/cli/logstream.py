# SPDX-License-Identifier: Apache-2.0
"""Where log lines go: a line that cannot be written costs that line, and nothing of what the log is about."""

from __future__ import annotations

from contextlib import suppress
from typing import TextIO


class LogStream:
    """A text stream that drops what cannot be written, such as for want of space or of a reader."""

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

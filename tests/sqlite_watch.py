# SPDX-License-Identifier: Apache-2.0
"""Warns of SQLite connections that nobody closed, as Python 3.13 does by itself, under Python 3.11 and 3.12, too."""

from __future__ import annotations

import sqlite3
import sys
import warnings
from functools import partial
from typing import Protocol, TypeVar


class Closes(Protocol):
    """Something that is closed."""

    def close(self) -> None:
        """Close it."""


T = TypeVar("T", bound=Closes)
_OPEN: list[Closes] = []


def closed_later(thing: T) -> T:
    """Return it, and have it closed at the end of the test."""
    _OPEN.append(thing)
    return thing


def close_all() -> None:
    """Close what was to be closed later."""
    while _OPEN:
        _OPEN.pop().close()


class WatchedConnection(sqlite3.Connection):
    """A connection that must be closed before it is collected."""

    _is_open = False

    def __init__(self, *args: object, **options: object) -> None:
        """Open it, as `sqlite3.connect` does."""
        super().__init__(*args, **options)  # type: ignore[arg-type] # all that connect() takes
        self._is_open = True

    def close(self) -> None:
        """Close it."""
        super().close()
        self._is_open = False

    def __del__(self) -> None:
        """Warn if it is still open."""
        if self._is_open:
            warnings.warn(f"unclosed database in {self!r}", ResourceWarning, stacklevel=2, source=self)


def watch_connections() -> None:
    """Have all connections of this process watched, where Python does not do so itself."""
    if sys.version_info < (3, 13):
        sqlite3.connect = partial(sqlite3.connect, factory=WatchedConnection)  # type: ignore[assignment]

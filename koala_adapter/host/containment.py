# SPDX-License-Identifier: Apache-2.0
"""Containment of defects: what was not foreseen costs one connection, one job or one action, and not the process.

A peer, a program or a plugin may make koala raise anything. Where that is caught, it is logged with its traceback, at
most once a minute for each place and type of exception, with the number of those that were not logged.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from koala_adapter.errors import JournalBlockedError, RecoveryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOG_INTERVAL = 60.0
"""Seconds between two log entries of the same place and type of exception."""

log = structlog.get_logger()


class DefectLog:
    """Logs unexpected exceptions, with a bound for each place and type."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds."""
        self._clock = clock
        self._logged: dict[tuple[str, type[BaseException]], tuple[float, int]] = {}
        """When it was logged last, and how many were not logged since."""

    def report(self, what: str, error: Exception, **context: object) -> None:
        """Log an exception with its traceback; ``what`` failed."""
        kind, now = (what, type(error)), self._clock()
        logged_at, unlogged = self._logged.get(kind, (-LOG_INTERVAL, 0))
        if now - logged_at < LOG_INTERVAL:
            self._logged[kind] = logged_at, unlogged + 1
            return
        self._logged[kind] = now, 0
        more = {"not_logged_since": unlogged} if unlogged else {}
        log.error("koala failed on something, and goes on without it", what=what, exc_info=error, **context, **more)


_defects = DefectLog()


def report_defect(what: str, error: Exception, **context: object) -> None:
    """Log an exception that was not foreseen, at most once a minute for each ``what`` and type of exception."""
    _defects.report(what, error, **context)


@contextmanager
def contained(what: str, **context: object) -> Iterator[None]:
    """Log whatever the block raises, and go on after it.

    A journal that cannot be written, or read again, is no defect of the block: these errors are raised.
    """
    try:
        yield
    except (JournalBlockedError, RecoveryError):
        raise
    except Exception as error:  # noqa: BLE001 - that is what it is for
        report_defect(what, error, **context)

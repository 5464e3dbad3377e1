# SPDX-License-Identifier: Apache-2.0
"""Containment of defects: what was not foreseen costs one connection, one job or one action, and not the process.

A peer, a program or a plugin may make koala raise anything. Where that is caught, it is logged with its traceback, at
most once a minute for each place and type of exception, with the number of those that were not logged. Peers that are
turned away are logged under the same bound, so that no peer can fill the log.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from koala_adapter.errors import JournalBlockedError, RecoveryError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

LOG_INTERVAL = 60.0
"""Seconds between two log entries of the same kind."""
MOST_KINDS = 256
"""Kinds of entries that are counted one by one; further ones within a minute count as one kind."""

log = structlog.get_logger()


class DefectLog:
    """Logs unexpected exceptions and refused peers, with a bound for each kind of entry."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: returns monotonic seconds."""
        self._clock = clock
        self._logged: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        """When an entry of each kind was logged last, and how many were not logged since; the oldest first."""

    def report(self, what: str, error: Exception, **context: object) -> None:
        """Log an exception with its traceback; ``what`` failed."""
        more = self._more((what, type(error)))
        if more is not None:
            log.error("koala failed on something, and goes on without it", what=what, exc_info=error, **context, **more)

    def refused(self, what: str, *, kind: Hashable = None, **context: object) -> None:
        """Log a refused peer; ``kind``: entries are bounded for each ``what`` and kind."""
        more = self._more((what, kind))
        if more is not None:
            log.warning(what, **context, **more)

    def _more(self, kind: Hashable) -> dict[str, int] | None:
        """Return a note on suppressed earlier entries; None when this entry is suppressed, too."""
        now = self._clock()
        if kind not in self._logged and len(self._logged) >= MOST_KINDS:
            oldest, (logged_at, _) = next(iter(self._logged.items()))
            if now - logged_at < LOG_INTERVAL:
                kind = None
            else:
                del self._logged[oldest]
        logged_at, unlogged = self._logged.get(kind, (-LOG_INTERVAL, 0))
        if now - logged_at < LOG_INTERVAL:
            self._logged[kind] = logged_at, unlogged + 1
            return None
        self._logged[kind] = now, 0
        self._logged.move_to_end(kind)
        return {"not_logged_since": unlogged} if unlogged else {}


_defects = DefectLog()


def report_defect(what: str, error: Exception, **context: object) -> None:
    """Log an exception that was not foreseen, at most once a minute for each ``what`` and type of exception."""
    _defects.report(what, error, **context)


def report_refused(what: str, *, kind: Hashable = None, **context: object) -> None:
    """Log that a peer was turned away, at most once a minute for each ``what`` and ``kind``."""
    _defects.refused(what, kind=kind, **context)


@contextmanager
def contained(what: str, **context: object) -> Iterator[None]:
    """Log any exception of the block, and continue after it.

    A journal that cannot be written, or read again, is no defect of the block: these errors are raised.
    """
    try:
        yield
    except (JournalBlockedError, RecoveryError):
        raise
    except Exception as error:  # noqa: BLE001 - that is what it is for
        report_defect(what, error, **context)

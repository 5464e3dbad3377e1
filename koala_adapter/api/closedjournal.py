# SPDX-License-Identifier: Apache-2.0
"""The journal of a service that ended in good order: its reports of jobs, read without a replay.

Most commands that run without a service ask for jobs that are over, so of the service only its records are imported.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from koala_adapter.api.archive import kept_report, open_read_only, with_kept
from koala_adapter.report.selection import JobSelection
from koala_adapter.service.records import SCHEMA_VERSION, schema_version, unfinished_at_close

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from koala_adapter.api.offline import JournalView
    from koala_adapter.report.sitevalues import NegotiationReport
    from koala_adapter.report.values import JobReport


class ClosedJournal:
    """Journal of a stopped service, read only as far as questions about ended jobs need."""

    def __init__(
        self, path: Path, whole: Callable[[], JournalView], *, unfinished: tuple[str, ...], negotiated: frozenset[str]
    ) -> None:
        """``unfinished``: jobs that were not over.

        ``negotiated``: jobs of whose negotiations it is told how long ago they were, which a kept report cannot.
        """
        self._path = path
        self._whole = whole
        self._incomplete = negotiated.union(unfinished)
        self.unfinished = unfinished
        """Jobs that have no outcome yet or whose placeholders are not all gone."""

    def defects(self) -> list[str]:
        """Return nothing: finding defects would need the whole journal."""
        return []

    def job(self, job_id: str) -> JobReport:
        """Return the report of a job, however long ago it ended. Raises JobNotFoundError."""
        found = None if job_id in self._incomplete else kept_report(self._path, job_id)
        return self._whole().job(job_id) if found is None else found

    def jobs(self, limit: int, selection: JobSelection | None = None) -> list[JobReport]:
        """Return the latest jobs, or those of a selection, in order of submission."""
        if not self.unfinished:
            found = with_kept(self._path, (), selection or JobSelection(), limit)
            if not any(one.id in self._incomplete for one in found):
                return found
        return self._whole().jobs(limit, selection)

    def negotiations(self, *, job_id: str = "", number: int = 0, limit: int = 50) -> list[NegotiationReport]:
        """Return the latest negotiations; as `Client.negotiations`."""
        return self._whole().negotiations(job_id=job_id, number=number, limit=limit)


def closed_journal(path: Path, whole: Callable[[], JournalView]) -> ClosedJournal | None:
    """Return the journal at ``path`` as ClosedJournal; None when it must be read as a whole.

    None: it was not left in good order, is of another version or damaged, or there is something to be told of which
    ``whole`` knows more.
    """
    try:
        with closing(open_read_only(path)) as database:
            database.execute("BEGIN")
            if schema_version(database.execute) != SCHEMA_VERSION:
                return None
            unfinished = unfinished_at_close(database.execute)
            if unfinished is None or database.execute("SELECT 1 FROM set_aside LIMIT 1").fetchone():
                return None
            negotiated = frozenset(str(job) for (job,) in database.execute("SELECT DISTINCT job FROM negotiations"))
            return ClosedJournal(path, whole, unfinished=unfinished, negotiated=negotiated)
    except sqlite3.Error:
        return None  # whoever reads all of it says what is wrong

# SPDX-License-Identifier: Apache-2.0
"""The journal of a service that ended in good order: its reports of jobs, read without a replay.

Most commands that run without a service ask for jobs that are over, so of the service only its records are imported.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.api.protocol import from_json, parse
from koala_adapter.report.values import JobReport, of_the_past
from koala_adapter.service.records import SCHEMA_VERSION, schema_version, unfinished_at_close

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from koala_adapter.api.offline import JournalView
    from koala_adapter.report.sitevalues import NegotiationReport


class ClosedJournal:
    """What a journal says of jobs that are over; for whatever else is asked, all of it is read."""

    def __init__(
        self, path: Path, whole: Callable[[], JournalView], *, unfinished: tuple[str, ...], negotiated: frozenset[str]
    ) -> None:
        """``unfinished``: jobs that are not over; some may have ended, with placeholders left.

        ``negotiated``: jobs of whose negotiations it is told how long ago they were, which a kept report cannot.
        """
        self._path = path
        self._whole = whole
        self._incomplete = negotiated.union(unfinished)
        self.unfinished = unfinished
        """Jobs that have no outcome yet or whose placeholders are not all gone."""

    def defects(self) -> list[str]:
        """Return what is to be told of the events on which koala failed: nothing, or all would be read."""
        return []

    def job(self, job_id: str) -> JobReport:
        """Return the report of a job, however long ago it ended. Raises JobNotFoundError."""
        found = self._reports("WHERE id = ?", job_id)
        if not found or job_id in self._incomplete:
            return self._whole().job(job_id)
        return _as_of_now(found[0][1])

    def jobs(self, limit: int) -> list[JobReport]:
        """Return the latest jobs in order of submission."""
        latest = self._reports("ORDER BY CAST(id AS INTEGER) DESC, id DESC LIMIT ?", limit)
        if self.unfinished or any(job_id in self._incomplete for job_id, _ in latest):
            return self._whole().jobs(limit)
        return [_as_of_now(text) for _, text in reversed(latest)]

    def negotiations(self, *, job_id: str = "", number: int = 0, limit: int = 50) -> list[NegotiationReport]:
        """Return the latest negotiations; as `Client.negotiations`."""
        return self._whole().negotiations(job_id=job_id, number=number, limit=limit)

    def _reports(self, which: str, value: object) -> list[tuple[str, str]]:
        """Return ids and reports (JSON). Nothing where the journal cannot be read: who reads all of it says why."""
        with suppress(sqlite3.Error), closing(_opened(self._path)) as database:
            return database.execute(f"SELECT id, body FROM finished {which}", (value,)).fetchall()  # noqa: S608 - constants
        return []


def _as_of_now(text: str) -> JobReport:
    return replace(of_the_past(from_json(JobReport, parse(text))), reported_at=time.time())


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def closed_journal(path: Path, whole: Callable[[], JournalView]) -> ClosedJournal | None:
    """Return what the journal at ``path`` says, if that can be read at once.

    None: it was not left in good order, is of another version or damaged, or there is something to be told of which
    ``whole`` knows more.
    """
    try:
        with closing(_opened(path)) as database:
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

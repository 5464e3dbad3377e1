# SPDX-License-Identifier: Apache-2.0
"""The part of the journal that keeps reports of jobs that have ended, until they are cleaned away."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from koala_adapter.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.service.negotiationstore import Execute, NegotiationStore

TABLES = """
CREATE TABLE IF NOT EXISTS finished (id TEXT PRIMARY KEY, finished_at REAL NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS cleaned (id TEXT PRIMARY KEY, cleaned_at REAL NOT NULL);
"""


class FinishedJobs:
    """Reports (JSON), by jobs. Each method raises JournalError when the journal cannot be used."""

    def __init__(self, execute: Execute, negotiations: NegotiationStore) -> None:
        """``negotiations`` of a job are cleaned away with its report."""
        self._execute = execute
        self._negotiations = negotiations

    def keep(self, job_id: str, finished_at: float, body: str) -> None:
        """Keep the report of a finished job."""
        self._execute("INSERT OR REPLACE INTO finished VALUES (?, ?, ?)", (job_id, finished_at, body))

    def report(self, job_id: str) -> str | None:
        """Return the report of a job; None: it has not ended, or was cleaned away."""
        row = self._execute("SELECT body FROM finished WHERE id = ?", (job_id,)).fetchone()
        return None if row is None else str(row[0])

    def outcome(self, job_id: str) -> dict[str, object] | None:
        """Return how a job ended, as its report says it; None: it has not, or was cleaned away."""
        outcome = "CASE WHEN json_valid(body) THEN json_extract(body, '$.outcome') END"
        row = self._execute(f"SELECT {outcome} FROM finished WHERE id = ?", (job_id,)).fetchone()  # noqa: S608 - a constant
        found: dict[str, object] | None = None if row is None or row[0] is None else json.loads(row[0])
        return found

    def latest(self, limit: int) -> list[str]:
        """Return the reports of the jobs that finished last, newest first."""
        rows = self._execute("SELECT body FROM finished ORDER BY finished_at DESC LIMIT ?", (limit,))
        return [str(row[0]) for row in rows]

    def before(self, limit: float) -> list[tuple[str, int]]:
        """Return id and length of the report of each job that finished before ``limit``, oldest first."""
        rows = self._execute(
            "SELECT id, length(CAST(body AS BLOB)) FROM finished WHERE finished_at < ? ORDER BY finished_at", (limit,)
        )
        return [(str(row[0]), int(row[1])) for row in rows]

    def since(self, limit: float) -> list[str]:
        """Return the reports of the jobs that finished at ``limit`` or later."""
        return [str(row[0]) for row in self._execute("SELECT body FROM finished WHERE finished_at >= ?", (limit,))]

    def clean(self, job_ids: Iterable[str], now: float) -> None:
        """Drop what is kept of finished jobs, but for the fact that it was. Raises JournalBlockedError."""
        self._execute("BEGIN IMMEDIATE")
        try:
            for job_id in job_ids:
                self._execute("INSERT OR REPLACE INTO cleaned VALUES (?, ?)", (job_id, now))
                self._execute("DELETE FROM finished WHERE id = ?", (job_id,))
                self._negotiations.drop(job_id)
            self._execute("COMMIT")
        except JournalError:
            with suppress(JournalError):
                self._execute("ROLLBACK")
            raise

    def cleaned_at(self, job_id: str) -> float | None:
        """Return when what was kept of a job was dropped; None: it was not, or there is no such job."""
        # An earlier version left a journal without this table, which is not made while it is only read.
        if self._execute("SELECT 1 FROM sqlite_master WHERE name = 'cleaned'").fetchone() is None:
            return None
        row = self._execute("SELECT cleaned_at FROM cleaned WHERE id = ?", (job_id,)).fetchone()
        return None if row is None else float(row[0])

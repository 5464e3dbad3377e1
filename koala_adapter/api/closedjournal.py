# SPDX-License-Identifier: Apache-2.0
"""The journal of a service that ended in good order: its reports of jobs, read without a replay.

Most commands that run without a service ask for jobs that are over, so of the service only its records are imported.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.api.protocol import from_json, parse
from koala_adapter.report.values import JobReport, by_number, of_the_past
from koala_adapter.service.records import unfinished_at_close

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from koala_adapter.api.offline import JournalView
    from koala_adapter.report.sitevalues import NegotiationReport


class ClosedJournal:
    """What a journal says of jobs that are over; for whatever else is asked, all of it is read."""

    def __init__(
        self,
        reports: Mapping[str, str],
        whole: Callable[[], JournalView],
        *,
        unfinished: tuple[str, ...],
        negotiated: frozenset[str],
    ) -> None:
        """``reports``: JSON, by jobs that have ended, some of which may be ``unfinished`` still.

        ``negotiated``: jobs of whose negotiations it is told how long ago they were, which a kept report cannot.
        """
        self._reports = reports
        self._whole = whole
        self._incomplete = negotiated.union(unfinished)
        self.unfinished = unfinished
        """Jobs that have no outcome yet or whose placeholders are not all gone."""

    def defects(self) -> list[str]:
        """Return what is to be told of the events on which koala failed: nothing, or all would be read."""
        return []

    def job(self, job_id: str) -> JobReport:
        """Return the report of a job. Raises JobNotFoundError."""
        text = self._reports.get(job_id)
        if text is None or job_id in self._incomplete:
            return self._whole().job(job_id)
        return _as_of_now(text)

    def jobs(self, limit: int) -> list[JobReport]:
        """Return the latest jobs in order of submission."""
        latest = sorted(self._reports, key=by_number)[-limit:]
        if self.unfinished or not self._incomplete.isdisjoint(latest):
            return self._whole().jobs(limit)
        return [_as_of_now(self._reports[job_id]) for job_id in latest]

    def negotiations(self, *, job_id: str = "", number: int = 0, limit: int = 50) -> list[NegotiationReport]:
        """Return the latest negotiations; as `Client.negotiations`."""
        return self._whole().negotiations(job_id=job_id, number=number, limit=limit)


def _as_of_now(text: str) -> JobReport:
    return replace(of_the_past(from_json(JobReport, parse(text))), reported_at=time.time())


def closed_journal(path: Path, whole: Callable[[], JournalView], *, most: int) -> ClosedJournal | None:
    """Return what the journal at ``path`` says, with so many jobs that have ended, if that can be read at once.

    None: it was not left in good order, or is damaged, or there is something to be told of which ``whole`` knows more.
    """
    try:
        read_only = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(read_only, uri=True, isolation_level=None)) as database:
            database.execute("BEGIN")
            unfinished = unfinished_at_close(database.execute)
            if unfinished is None or database.execute("SELECT 1 FROM set_aside LIMIT 1").fetchone():
                return None
            rows = database.execute("SELECT id, body FROM finished ORDER BY finished_at DESC LIMIT ?", (most,))
            negotiated = database.execute("SELECT DISTINCT job FROM negotiations")
            return ClosedJournal(
                dict(rows), whole, unfinished=unfinished, negotiated=frozenset(str(job) for (job,) in negotiated)
            )
    except sqlite3.Error:
        return None  # whoever reads all of it says what is wrong

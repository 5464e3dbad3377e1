# SPDX-License-Identifier: Apache-2.0
"""The reports of ended jobs in a journal, read without a service and beside one.

Of the service only its records are imported.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.api.protocol import from_json, parse
from koala_adapter.errors import JournalError
from koala_adapter.report.selection import Document, JobSelection, latest_of
from koala_adapter.report.values import JobReport, as_kept
from koala_adapter.service.records import FinishedJobs, NegotiationStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open a journal for reading while a service may use it. Raises sqlite3.Error."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def kept_report(path: Path, job_id: str) -> JobReport | None:
    """Return the journal's report of an ended job; None when there is none, or the journal is unreadable."""
    with suppress(sqlite3.Error), closing(open_read_only(path)) as database:
        text = _finished(database).report(job_id)
        return None if text is None else _as_of_now(parse(text))
    return None


def with_kept(path: Path, live: Sequence[Document], selection: JobSelection, limit: int) -> list[JobReport]:
    """Return the latest selected jobs in order of submission: live ones, and kept reports of ended ones.

    ``live``: jobs of the scheduler. Raises JournalError.
    """
    try:
        with closing(open_read_only(path)) as database:
            kept = _finished(database).newest_first(selection.since)
            found = latest_of(live, kept, selection, limit)
    except sqlite3.Error as error:
        raise JournalError(f"{path}: the journal cannot be read: {error}", hint="is the file damaged?") from error
    now = {one["id"] for one in live}
    return [from_json(JobReport, one) if one["id"] in now else _as_of_now(one) for one in found]


def _finished(database: sqlite3.Connection) -> FinishedJobs:
    return FinishedJobs(database.execute, NegotiationStore(database.execute))


def _as_of_now(document: object) -> JobReport:
    return replace(as_kept(from_json(JobReport, document)), reported_at=time.time())

# SPDX-License-Identifier: Apache-2.0
"""The jobs of a local cluster on disk, so that a daemon that was killed knows them when it is started again."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING

from koala_local.protocol import decode, encode
from koala_local.record import JobRecord

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from koala_adapter.model import LrmJobId

SCHEMA = """
CREATE TABLE IF NOT EXISTS job (id TEXT PRIMARY KEY, number INTEGER NOT NULL, record BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS counter (last INTEGER NOT NULL) STRICT;
INSERT INTO counter SELECT 0 WHERE NOT EXISTS (SELECT * FROM counter);
"""


class JobStore:
    """Keeps job records; each method is durable against the daemon's death when it returns."""

    def __init__(self, directory: Path) -> None:
        """Open or create the database in the private directory."""
        path = directory / "jobs.db"
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        # Enough against the death of the daemon; a crash of the whole host ends the jobs anyway.
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.executescript(SCHEMA)

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def load(self) -> list[JobRecord]:
        """Return all jobs in the order of their submission."""
        rows = self._database.execute("SELECT record FROM job")
        records = [JobRecord.from_json(decode(raw)) for (raw,) in rows]
        return sorted(records, key=lambda record: (record.number, record.index))

    def next_number(self) -> int:
        """Return a submission number that was never returned before."""
        query = "UPDATE counter SET last = last + 1 RETURNING last"
        with contextlib.closing(self._database.execute(query)) as cursor:
            return int(cursor.fetchall()[0][0])

    def save(self, records: Iterable[JobRecord]) -> None:
        """Write these records, all or none."""
        rows = [(record.id, record.number, encode(record.to_json())) for record in records]
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany("INSERT OR REPLACE INTO job VALUES (?, ?, ?)", rows)
        self._database.execute("COMMIT")

    def forget(self, ids: Iterable[LrmJobId]) -> None:
        """Delete the records of these jobs."""
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany("DELETE FROM job WHERE id = ?", [(id_,) for id_ in ids])
        self._database.execute("COMMIT")

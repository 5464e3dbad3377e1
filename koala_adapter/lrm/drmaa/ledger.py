# SPDX-License-Identifier: Apache-2.0
"""The ledger of a DRMAA helper: a record of submissions on disk, because DRMAA cannot find a job by its name.

The intent (the key) is on disk before the jobs go to the LRM, their ids right after. Jobs of a batch that has fewer ids
than jobs are *unknown*: they may be in the LRM. Several helpers may use one ledger, one after another or at the same
time. The module is loaded by the helper process alone. Python 3.6 or newer.
"""

import os
import sqlite3
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Mapping, Optional, Tuple, Union

KEEP_SECONDS = 24 * 3600.0
"""How long batches are kept after their last job has ended."""

TIDIED_EVERY = 3600.0
"""Seconds after which the ledger is rid again of what is not asked for any more."""

KEEP_UNKNOWN_SECONDS = 14 * 24 * 3600.0
"""How long batches of unknown outcome are kept: longer than an LRM will keep a job waiting."""

LOCKED_SECONDS = 30.0
"""How long another helper on the same ledger is waited for."""

TABLES = """
CREATE TABLE IF NOT EXISTS batches (key TEXT PRIMARY KEY, count INTEGER NOT NULL, submitted_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS jobs (
    key TEXT NOT NULL REFERENCES batches ON DELETE CASCADE, position INTEGER NOT NULL, id TEXT NOT NULL,
    ended_at REAL, failed INTEGER, exit_code INTEGER, signal INTEGER, aborted INTEGER, PRIMARY KEY (key, position)
);
CREATE INDEX IF NOT EXISTS job_ids ON jobs (id);
CREATE TABLE IF NOT EXISTS slots (
    key TEXT PRIMARY KEY REFERENCES batches ON DELETE CASCADE, processors INTEGER NOT NULL
);
"""


class JobEnd(NamedTuple):
    """Recorded end of a job."""

    at: float
    """Time at which we saw that it had ended."""
    failed: bool = False
    exit_code: "Optional[int]" = None
    signal: "Optional[int]" = None
    aborted: bool = False


class LedgerBatch(NamedTuple):
    """A recorded submission with its jobs."""

    key: str
    size: int
    """Jobs that were to be submitted."""
    submitted_at: float
    processors: int
    """Of each job."""
    ids: "Tuple[str, ...]"
    ends: "Mapping[str, JobEnd]"

    def live(self) -> "Tuple[str, ...]":
        """Ids of jobs whose end has not been seen."""
        return tuple(id_ for id_ in self.ids if id_ not in self.ends)

    def forgettable(self, now: float) -> bool:
        """Return whether the batch is complete and no longer of use."""
        if len(self.ids) < self.size:
            return now - self.submitted_at > KEEP_UNKNOWN_SECONDS
        return not self.live() and all(now - end.at > KEEP_SECONDS for end in self.ends.values())


class Ledger:
    """The ledger of one cluster. Each change is on disk when its method returns. Raises sqlite3.Error."""

    def __init__(self, path: "Union[str, os.PathLike[str]]") -> None:
        """``path`` need not exist; its directory must."""
        self._tidied_at: "Optional[float]" = None
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._database = sqlite3.connect(os.fspath(path), timeout=LOCKED_SECONDS, isolation_level=None)
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute("PRAGMA foreign_keys = ON")
        self._database.executescript(TABLES)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def intend(self, key: str, count: int, now: float, *, processors: int = 1) -> None:
        """Record that jobs of this name are about to be submitted; ``processors``: of each."""
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute("INSERT OR REPLACE INTO batches VALUES (?, ?, ?)", (key, count, now))
            if processors > 1:
                self._database.execute("INSERT INTO slots VALUES (?, ?)", (key, processors))

    def add(self, key: str, ids: "Iterable[str]") -> None:
        """Record the ids of the next jobs of a batch that the LRM took."""
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            (first,) = self._database.execute("SELECT count(*) FROM jobs WHERE key = ?", (key,)).fetchone()
            rows = [(key, position, id_) for position, id_ in enumerate(ids, start=first)]
            self._database.executemany("INSERT INTO jobs (key, position, id) VALUES (?, ?, ?)", rows)

    def settle(self, keys: "Iterable[str]") -> None:
        """Mark batches as complete: they have no further jobs. One without jobs is dropped."""
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            for key in keys:
                (known,) = self._database.execute("SELECT count(*) FROM jobs WHERE key = ?", (key,)).fetchone()
                if known:
                    self._database.execute("UPDATE batches SET count = ? WHERE key = ?", (known, key))
                else:
                    self._database.execute("DELETE FROM batches WHERE key = ?", (key,))

    def end(self, ends: "Mapping[str, JobEnd]") -> None:
        """Record the ends of jobs, by id."""
        rows = [(end.at, end.failed, end.exit_code, end.signal, end.aborted, id_) for id_, end in ends.items()]
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(
                "UPDATE jobs SET ended_at = ?, failed = ?, exit_code = ?, signal = ?, aborted = ? WHERE id = ?", rows
            )

    def batches(self, prefix: str = "") -> "Dict[str, LedgerBatch]":
        """Return the batches whose key begins with ``prefix``, by key, in the order of their submission."""
        found: "Dict[str, Tuple[int, float, List[str], Dict[str, JobEnd]]]" = {
            key: (count, submitted_at, [], {})
            for key, count, submitted_at in self._database.execute("SELECT * FROM batches ORDER BY rowid")
            if key.startswith(prefix)
        }
        for key, id_, at, failed, exit_code, signal, aborted in self._database.execute(
            "SELECT key, id, ended_at, failed, exit_code, signal, aborted FROM jobs ORDER BY key, position"
        ):
            if key in found:
                found[key][2].append(id_)
                if at is not None:
                    found[key][3][id_] = JobEnd(
                        at=at, failed=bool(failed), exit_code=exit_code, signal=signal, aborted=bool(aborted)
                    )
        processors = dict(self._database.execute("SELECT key, processors FROM slots"))
        return {
            key: LedgerBatch(
                key=key,
                size=count,
                submitted_at=submitted_at,
                processors=processors.get(key, 1),
                ids=tuple(ids),
                ends=ends,
            )
            for key, (count, submitted_at, ids, ends) in found.items()
        }

    def tidy(self, now: float) -> None:
        """Drop batches of no further use, at most once in TIDIED_EVERY seconds."""
        if self._tidied_at is not None and 0 <= now - self._tidied_at < TIDIED_EVERY:
            return
        self._tidied_at = now
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            forgotten = [(key,) for key, batch in self.batches().items() if batch.forgettable(now)]
            self._database.executemany("DELETE FROM batches WHERE key = ?", forgotten)

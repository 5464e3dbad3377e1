# SPDX-License-Identifier: Apache-2.0
"""The journal of a service: events before they take effect, snapshots, hashes of secrets, and ended jobs.

In this order: events that the scheduler failed on, snapshots in pieces, and the SQLite database (WAL mode, one writer).
Recovery is the latest snapshot plus the events after it. A killed process loses nothing that was appended;
:meth:`Journal.sync` makes the same true for a power failure, and is called before any request is sent to a cluster or
an agent.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import tempfile
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from koala_adapter.errors import JournalBlockedError, JournalError
from koala_adapter.host.clock import ClockReading
from koala_adapter.model import BatchKey, JobId, PlaceholderId
from koala_adapter.scheduler.clusters import ClusterRecord
from koala_adapter.scheduler.context import batch_number
from koala_adapter.scheduler.events import EVENT_TYPES, Event
from koala_adapter.scheduler.records import BatchRecord, JobRecord, PlaceholderRecord, State
from koala_adapter.service.records import (
    INDEXES,
    SCHEMA_VERSION,
    TABLES,
    FinishedJobs,
    NegotiationStore,
    leave_closing_note,
    schema_version,
    unfinished_at_close,
)
from koala_adapter.vjm.certificate import digest
from koala_adapter.wire.messages import adapter_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from pathlib import Path
    from typing import Self


# -- Events that the scheduler failed on (pure) --------------------------------------------------------------
# They are set aside, and an operator is told of them for a while.

TOLD_FOR = 86400.0
"""Seconds for which the operator is told of an event that was set aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """An event that is excluded because the scheduler failed on it."""

    number: int
    time: float
    """By the service clock."""
    event_type: str
    event: str
    """The event itself, as JSON."""
    failure: str
    """The traceback."""

    @property
    def summary(self) -> str:
        """Last line of the traceback."""
        return self.failure.strip().rpartition("\n")[2]

    def sentence(self, now: float) -> str:
        """Message for operators, at a time of the service clock."""
        what, ago = f"event {self.number} ({self.event_type})", max(0.0, now - self.time) / 60
        return f"a defect of koala: {what} was set aside {ago:.0f} min ago: {self.summary}"


def sentences(set_aside: Iterable[SetAside], now: float) -> list[str]:
    """Return messages for operators about events set aside lately."""
    return [one.sentence(now) for one in set_aside if now - one.time <= TOLD_FOR]


# -- Snapshots in pieces -------------------------------------------------------------------------------------
# A snapshot is a head and rows of records, each small enough to be written while others wait.

GROUP = 250
"""Records in a row of a snapshot: some milliseconds' work."""
_PARTS: dict[str, tuple[Any, Callable[[Any], str]]] = {
    "jobs": (list[JobRecord], attrgetter("job.id")),
    "placeholders": (list[PlaceholderRecord], attrgetter("id")),
    "batches": (list[BatchRecord], attrgetter("key")),
    "clusters": (list[ClusterRecord], attrgetter("parameters.name")),
}
"""Fields of the state that may be long: their groups as they are written, and the keys of their records."""


def head(state: State) -> str:
    """Return a state without the parts that are stored in rows."""
    return adapter_of(State).dump_json(state, exclude=set(_PARTS)).decode()


def rows(state: State) -> Iterator[tuple[str, str]]:
    """Yield the parts stored in rows, by group; the state must not change meanwhile."""
    for part in _PARTS:
        records = iter(getattr(state, part).values())
        while group := list(islice(records, GROUP)):
            yield part, adapter_of(_PARTS[part][0]).dump_json(group).decode()


def restored(body: str, stored: Iterable[tuple[str, str]]) -> State:
    """Return a state from its head and its rows. Raises ValueError."""
    state = adapter_of(State).validate_json(body)
    for part, group in stored:
        kind, key = _PARTS[part]
        for record in adapter_of(kind).validate_json(group):
            getattr(state, part)[key(record)] = record
    return state


# -- The database --------------------------------------------------------------------------------------------

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (number INTEGER PRIMARY KEY AUTOINCREMENT, type TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS snapshots (number INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS snapshot_rows (
    number INTEGER, row INTEGER, part TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (number, row)
);
CREATE TABLE IF NOT EXISTS tokens (batch TEXT PRIMARY KEY, hash TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS sessions (batch TEXT, element INTEGER, hash TEXT NOT NULL, PRIMARY KEY (batch, element));
CREATE TABLE IF NOT EXISTS submissions (
    batch TEXT PRIMARY KEY, submitted_at REAL NOT NULL, job TEXT NOT NULL, component TEXT NOT NULL,
    cluster TEXT NOT NULL, count INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS set_aside (number INTEGER PRIMARY KEY, time REAL NOT NULL, type TEXT NOT NULL,
    body TEXT NOT NULL, failure TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS client_submissions (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, job TEXT NOT NULL
);
"""
_NUMBER = "CAST(substr(batch, length(rtrim(batch, '0123456789')) + 1) AS INTEGER)"
"""The number in the name of a submission."""
ROWS_DROPPED = 10
"""Rows of snapshots that are removed at once: some milliseconds' work."""
MOST_SET_ASIDE = 1000
"""Events that the scheduler failed on and that are kept, the latest ones."""
MOST_SUBMISSIONS = 10_000
"""Names of clients' submissions that are kept, the latest ones."""
_EVENT_TYPES: dict[str, type[Event]] = {cls.__name__: cls for cls in EVENT_TYPES}
_MAY_PASS = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
    }
)
"""Results that say nothing against the file itself: the same may succeed when there is room, or somebody lets us."""


def _opened(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open or create a database. Raises OSError and sqlite3.Error."""
    if not read_only:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    mode = "ro" if read_only else "rw"
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None)
    try:
        if read_only:
            database.execute("BEGIN")
        else:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
    except BaseException:
        database.close()
        raise
    return database


_PROBE = 65_536
"""Bytes that are written to find out why SQLite could not: more than its shared memory grows by."""


def _cause(error: Exception, path: Path) -> str:
    """Return why a database cannot be used; if SQLite does not say, why its directory cannot be written."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR:
        try:
            with tempfile.TemporaryFile(dir=path.parent) as file:
                file.write(bytes(_PROBE))
        except OSError as found:
            return found.strerror or str(found)
    return str(error)


class Journal:
    """The database of one state directory."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Open or create the database at ``path`` (mode 0600). Raises JournalError.

        ``read_only``: it must exist; readers see it as it is now, while its owner continues to write.
        """
        self.path = path
        try:
            self._database = _opened(path, read_only=read_only)
        except (OSError, sqlite3.Error) as error:
            why = _cause(error, path)
            raise JournalError(f"{path}: cannot open the journal: {why}", hint="check the state directory") from error
        try:
            self._begin(read_only=read_only)
        except sqlite3.Error as error:
            self.close()
            raise self._unusable(error) from error
        except BaseException:
            self.close()
            raise

    def _begin(self, *, read_only: bool) -> None:
        """Read the database's version and state. Raises JournalError when it is another version or unreadable."""
        found = schema_version(self._execute)
        if found is not None and found != SCHEMA_VERSION:
            raise JournalError(
                f"{self.path}: written by another version of koala (its schema is {found}, that of this one "
                f"{SCHEMA_VERSION})",
                hint="end its jobs with the version that wrote it; then remove the state directory, or name another "
                "one with --state",
            )
        if found is None and read_only:
            raise JournalError(f"{self.path}: the journal is just being made", hint="ask again in a moment")
        if found is None:
            version = f"INSERT OR REPLACE INTO meta VALUES ('schema', '{SCHEMA_VERSION}');"  # noqa: S608 - a constant
            self._database.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}{TABLES}{version}COMMIT;")
        if not read_only:
            with suppress(sqlite3.Error):  # a disk that is full, for example: the answers are the same without them
                self._database.executescript(INDEXES)
        self.negotiations = NegotiationStore(self._execute)
        """What applications and koala said to each other."""
        self.finished = FinishedJobs(self._execute, self.negotiations)
        """Reports of jobs that have ended."""
        self._read_only = read_only
        self._left_out: set[int] = {one.number for one in self.events_set_aside()}
        """Numbers of the events that are set aside."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        try:
            return self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def _unusable(self, error: sqlite3.Error) -> JournalError:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _MAY_PASS:
            return self._blocked(_cause(error, self.path))
        return JournalError(f"{self.path}: the journal cannot be used: {error}", hint="is the file damaged?")

    def _blocked(self, why: str) -> JournalBlockedError:
        hint = "make room where it is, or see to its permissions and limits"
        return JournalBlockedError(f"{self.path}: the journal cannot be written: {why}", hint=hint)

    def append(self, event: Event) -> int:
        """Store an event and return its number. Raises JournalError when it cannot: then it never happened."""
        name = type(event).__name__
        body = adapter_of(type(event)).dump_json(event).decode()
        cursor = self._execute("INSERT INTO events (type, body) VALUES (?, ?)", (name, body))
        return cursor.lastrowid or 0

    def sync(self) -> None:
        """Force what was appended to disk. Raises JournalBlockedError when it cannot."""
        try:
            with suppress(FileNotFoundError):
                descriptor = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise self._blocked(error.strerror or str(error)) from error

    def recover(self) -> tuple[State | None, Generator[tuple[int, Event], None, None]]:
        """Return the latest snapshot of the scheduler's state (or None) and the numbered events after it.

        Those that are set aside are left out.
        """
        row = self._execute("SELECT number, body FROM snapshots ORDER BY number DESC LIMIT 1").fetchone()
        rows_of = "SELECT part, body FROM snapshot_rows WHERE number = ? ORDER BY row"
        try:
            state = None if row is None else restored(row[1], self._execute(rows_of, (row[0],)))
        except ValueError as error:
            raise JournalError(f"{self.path}: snapshot {row[0]} cannot be read: {error}") from error
        return state, self._events_after(0 if row is None else row[0])

    def _events_after(self, number: int) -> Generator[tuple[int, Event], None, None]:
        rows = self._execute("SELECT number, type, body FROM events WHERE number > ? ORDER BY number", (number,))
        with closing(rows):
            for found, name, body in rows:
                if found in self._left_out:
                    continue
                try:
                    event = adapter_of(_EVENT_TYPES[name]).validate_json(body)
                except (KeyError, ValueError) as error:
                    raise JournalError(f"{self.path}: event {found} ({name}) cannot be read: {error}") from error
                yield found, event

    def events_since_snapshot(self) -> int:
        """Return how many events the next recovery will replay."""
        return int(self._execute("SELECT count(*) FROM events").fetchone()[0])

    def set_aside(self, number: int, event: Event, failure: str) -> None:
        """Exclude an event from recoveries and keep it with the traceback of its failure.

        Who only reads leaves it out for himself. Raises JournalBlockedError.
        """
        if not self._read_only:
            name = type(event).__name__
            body = adapter_of(type(event)).dump_json(event).decode()
            self._execute(
                "INSERT OR REPLACE INTO set_aside VALUES (?, ?, ?, ?, ?)", (number, event.time, name, body, failure)
            )
            oldest = "SELECT number FROM set_aside ORDER BY number DESC LIMIT -1 OFFSET ?"
            kept = "number > (SELECT coalesce(max(number), 0) FROM snapshots)"
            self._execute(f"DELETE FROM set_aside WHERE number IN ({oldest}) AND NOT {kept}", (MOST_SET_ASIDE,))  # noqa: S608 - constants
        self._left_out.add(number)

    def note_batch(self, batch: BatchRecord) -> None:
        """Record a submission's name, if the journal is writable. Raises JournalBlockedError."""
        if not self._read_only:
            contents = (batch.key, *batch.contents)
            self._execute("INSERT OR REPLACE INTO submissions VALUES (?, ?, ?, ?, ?, ?)", contents)

    def batches(self) -> list[BatchRecord]:
        """Return the submissions made since the latest snapshot, in the order of their numbers."""
        rows = self._execute("SELECT batch, submitted_at, job, component, cluster, count FROM submissions")
        found = [
            BatchRecord(key=key, submitted_at=at, job_id=job, component=component, cluster=cluster, count=count)
            for key, at, job, component, cluster, count in rows
        ]
        return sorted(found, key=lambda batch: batch_number(batch.key))

    def largest_batch_number(self) -> int:
        """Return the largest recorded number of a submission."""
        keys = {*self.batches_with_secrets(), *(batch.key for batch in self.batches())}
        return max(map(batch_number, keys), default=0)

    def events_set_aside(self) -> list[SetAside]:
        """Return the events on which the scheduler failed, oldest first."""
        rows = self._execute("SELECT number, time, type, body, failure FROM set_aside ORDER BY number")
        return [
            SetAside(number=number, time=time, event_type=name, event=body, failure=failure)
            for number, time, name, body, failure in rows
        ]

    def snapshot_in_groups(self, state: State, number: int) -> Generator[None, None, None]:
        """Store the state as of event ``number``, and drop what that makes superfluous.

        There is a pause after each group of records, in which others may go first. The state must not change before the
        end. The snapshot counts once all groups are there: what an earlier one that was broken off has left is ignored
        and removed. Raises JournalBlockedError.
        """
        if self._execute("SELECT 1 FROM snapshots WHERE number = ?", (number,)).fetchone():
            return  # nothing has happened since
        yield from self._drop_superfluous_rows()
        for row, (part, body) in enumerate(rows(state)):
            self._execute("INSERT INTO snapshot_rows VALUES (?, ?, ?, ?)", (number, row, part, body))
            yield
        self._execute("BEGIN IMMEDIATE")
        try:
            self._execute("INSERT INTO snapshots (number, body) VALUES (?, ?)", (number, head(state)))
            self._execute("DELETE FROM snapshots WHERE number < ?", (number,))
            self._execute("DELETE FROM events WHERE number <= ?", (number,))
            self._execute(f"DELETE FROM submissions WHERE {_NUMBER} <= ?", (state.batches_made,))  # noqa: S608 - a constant
            self._execute("COMMIT")
        except JournalError:
            # What is appended from now on must not be part of a transaction that nobody ends.
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise
        yield from self._drop_superfluous_rows()

    def _drop_superfluous_rows(self) -> Generator[None, None, None]:
        """Remove rows of outdated snapshots, some at a time."""
        some = "SELECT rowid FROM snapshot_rows WHERE number NOT IN (SELECT number FROM snapshots) LIMIT ?"
        while self._execute(f"DELETE FROM snapshot_rows WHERE rowid IN ({some})", (ROWS_DROPPED,)).rowcount:  # noqa: S608 - constants
            yield

    def defects_told(self, now: float) -> list[str]:
        """Return messages for operators about events set aside lately."""
        return sentences(self.events_set_aside(), now)

    def value(self, key: str) -> str | None:
        """Return a single stored value."""
        row = self._execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def set_value(self, key: str, value: str) -> None:
        """Store a single value."""
        self._execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))

    def instance(self) -> str:
        """Return the short random name of this state directory, created at first use."""
        found = self.value("instance")
        if found is None:
            found = secrets.token_hex(4)
            self.set_value("instance", found)
        return found

    def leave_closing_note(self, unfinished: Iterable[str]) -> None:
        """Record at an orderly end which jobs are unfinished."""
        leave_closing_note(self._execute, unfinished)

    @property
    def closed_well(self) -> bool:
        """Whether the last process ended in order and nothing was recorded since."""
        return unfinished_at_close(self._execute) is not None

    def probe(self) -> None:
        """Test whether the journal can be written. Raises JournalBlockedError."""
        self.set_value("probe", "written")

    def clock_reading(self) -> ClockReading | None:
        """Return the last recorded reading of the clocks; None when there is none."""
        found = self.value("clock")
        try:
            return None if found is None else adapter_of(ClockReading).validate_json(found)
        except ValueError:
            return None

    def note_clock(self, reading: ClockReading) -> None:
        """Record the clocks for the next process."""
        self.set_value("clock", adapter_of(ClockReading).dump_json(reading).decode())

    def next_job_number(self) -> int:
        """Return the next job number, never used before."""
        number = int(self.value("jobs") or "0") + 1
        self.set_value("jobs", str(number))
        return number

    def note_submission(self, name: str, job_id: JobId) -> None:
        """Record which job a client's submission will be, before the job is journaled. Raises JournalBlockedError."""
        noted = self._execute("INSERT OR REPLACE INTO client_submissions (name, job) VALUES (?, ?)", (name, job_id))
        oldest = (noted.lastrowid or 0) - MOST_SUBMISSIONS
        self._execute("DELETE FROM client_submissions WHERE number <= ?", (oldest,))

    def submitted(self, name: str) -> JobId | None:
        """Return the job recorded for a client's submission; None: unknown name. The job may not exist."""
        row = self._execute("SELECT job FROM client_submissions WHERE name = ?", (name,)).fetchone()
        return None if row is None else JobId(row[0])

    def skip_job_numbers(self, largest: int) -> bool:
        """Use only numbers above ``largest`` from now on; return whether that changes anything."""
        if largest <= int(self.value("jobs") or "0"):
            return False
        self.set_value("jobs", str(largest))
        return True

    def set_token(self, batch: BatchKey, token: str) -> None:
        """Store the hash of a submission's one-time token."""
        self._execute("INSERT OR REPLACE INTO tokens VALUES (?, ?)", (batch, digest(token)))

    def token_hash(self, batch: BatchKey) -> str | None:
        """Return the stored hash; None for an unknown or old submission."""
        row = self._execute("SELECT hash FROM tokens WHERE batch = ?", (batch,)).fetchone()
        return None if row is None else str(row[0])

    def bind(self, placeholder: PlaceholderId, session_hash: str) -> None:
        """Record the session that owns a placeholder."""
        values = (placeholder.batch, placeholder.index, session_hash)
        self._execute("INSERT INTO sessions VALUES (?, ?, ?)", values)

    def bound_session(self, placeholder: PlaceholderId) -> str | None:
        """Return the hash of the session that owns a placeholder."""
        values = (placeholder.batch, placeholder.index)
        row = self._execute("SELECT hash FROM sessions WHERE batch = ? AND element = ?", values).fetchone()
        return None if row is None else str(row[0])

    def forget_batch(self, batch: BatchKey) -> None:
        """Delete the secrets of an ended submission."""
        self._execute("DELETE FROM tokens WHERE batch = ?", (batch,))
        self._execute("DELETE FROM sessions WHERE batch = ?", (batch,))

    def batches_with_secrets(self) -> list[BatchKey]:
        """Return the submissions whose secrets are kept."""
        return [BatchKey(row[0]) for row in self._execute("SELECT batch FROM tokens")]

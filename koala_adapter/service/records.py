# SPDX-License-Identifier: Apache-2.0
"""Records that a service keeps in its journal besides events: negotiations, the closing note, reports.

In this order: the messages of negotiations as unparsed text and their tables, the note of an orderly end, and the
reports of ended jobs. No negotiation code is imported here, so that a service whose jobs never negotiate does not
load it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from koala_adapter.errors import JournalError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator


SCHEMA_VERSION = "4"
"""Of the database with its events and records. What an earlier version could not read has another number."""


def schema_version(execute: Execute) -> str | None:
    """Return the version of the database; None: nothing has been written into it."""
    if execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None:
        return None
    row = execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    return None if row is None else str(row[0])


# -- Messages of a negotiation, as unparsed text -------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message."""

    at: float
    """By the service clock."""
    sender: str
    """A side."""
    template: str
    """As it was written: XML."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptNegotiation:
    """One negotiation from its first message on."""

    number: int = 0
    """What people call it."""
    job_id: str
    component: str
    rank: int
    """Of the process that negotiated."""
    initiator: str
    """The side that began."""
    agreement_id: str
    messages: tuple[Message, ...] = field(default=())


# -- Tables of negotiations ----------------------------------------------------------------------------------

_NEGOTIATION_TABLES = """
CREATE TABLE IF NOT EXISTS negotiations (
    number INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, component TEXT NOT NULL, rank INTEGER NOT NULL,
    initiator TEXT NOT NULL, agreement TEXT NOT NULL, UNIQUE (job, rank, initiator, agreement)
);
CREATE TABLE IF NOT EXISTS negotiation_messages (
    negotiation INTEGER NOT NULL, time REAL NOT NULL, sender TEXT NOT NULL, template TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS messages_of_negotiation ON negotiation_messages (negotiation);
"""
MOST_KEPT = 10_000
"""Negotiations, the latest ones."""


class Execute(Protocol):
    """Executor of SQL statements (protocol). Raises JournalError."""

    def __call__(self, statement: str, values: tuple[object, ...] = (), /) -> sqlite3.Cursor:
        """Execute ``statement`` with these values."""


class NegotiationStore:
    """Keeps negotiations by numbers that people can name."""

    def __init__(self, execute: Execute) -> None:
        """``execute``: on a database that has the tables."""
        self._execute = execute

    def keep(self, kept: KeptNegotiation, message: Message) -> None:
        """Store a message of a negotiation, unless the same side's message is stored.

        ``kept``: which negotiation it is; its number is not looked at. Raises JournalBlockedError.
        """
        number = self._number(kept) or self._begin(kept)
        self._execute(
            "INSERT INTO negotiation_messages SELECT ?1, ?2, ?3, ?4 WHERE NOT EXISTS (SELECT 1 FROM"
            " negotiation_messages WHERE negotiation = ?1 AND sender = ?3 AND template = ?4)",
            (number, message.at, message.sender, message.template),
        )

    def recalled(self, job_id: str, initiator: str, agreement_id: str) -> KeptNegotiation | None:
        """Return the latest negotiation with a side's name for it; None: there is none."""
        found = self._execute(
            "SELECT number FROM negotiations WHERE job = ? AND initiator = ? AND agreement = ? ORDER BY number DESC",
            (job_id, initiator, agreement_id),
        ).fetchone()
        return None if found is None else self.latest(number=found[0])[0]

    def _number(self, kept: KeptNegotiation) -> int | None:
        found = self._execute(
            "SELECT number FROM negotiations WHERE job = ? AND rank = ? AND initiator = ? AND agreement = ?",
            (kept.job_id, kept.rank, kept.initiator, kept.agreement_id),
        ).fetchone()
        return None if found is None else int(found[0])

    def _begin(self, kept: KeptNegotiation) -> int:
        number = self._execute(
            "INSERT INTO negotiations (job, component, rank, initiator, agreement) VALUES (?, ?, ?, ?, ?)",
            (kept.job_id, kept.component, kept.rank, kept.initiator, kept.agreement_id),
        ).lastrowid
        oldest = (number or 0) - MOST_KEPT
        self._execute("DELETE FROM negotiation_messages WHERE negotiation <= ?", (oldest,))
        self._execute("DELETE FROM negotiations WHERE number <= ?", (oldest,))
        return number or 0

    def drop(self, job_id: str) -> None:
        """Delete a job's negotiations. Raises JournalBlockedError."""
        of_the_job = "SELECT number FROM negotiations WHERE job = ?"
        self._execute(f"DELETE FROM negotiation_messages WHERE negotiation IN ({of_the_job})", (job_id,))  # noqa: S608 - a constant
        self._execute("DELETE FROM negotiations WHERE job = ?", (job_id,))

    def latest(self, *, job_id: str = "", number: int = 0, limit: int = 1) -> list[KeptNegotiation]:
        """Return the latest negotiations in order; ``job_id``, ``number``: only of a job, or one."""
        wanted = "SELECT * FROM negotiations WHERE (?1 = '' OR job = ?1) AND (?2 = 0 OR number = ?2)"
        rows = self._execute(f"{wanted} ORDER BY number DESC LIMIT ?3", (job_id, number, limit)).fetchall()
        return [
            KeptNegotiation(
                number=row[0],
                job_id=row[1],
                component=row[2],
                rank=row[3],
                initiator=row[4],
                agreement_id=row[5],
                messages=self._messages(row[0]),
            )
            for row in reversed(rows)
        ]

    def _messages(self, negotiation: int) -> tuple[Message, ...]:
        rows = self._execute(
            "SELECT time, sender, template FROM negotiation_messages WHERE negotiation = ? ORDER BY rowid",
            (negotiation,),
        )
        return tuple(Message(at=at, sender=sender, template=template) for at, sender, template in rows)


# -- Note of an orderly end ----------------------------------------------------------------------------------
# It lists the unfinished jobs, so that a command without a service need not replay the journal.

_KEY = "closing"
_LATEST = "SELECT seq FROM sqlite_sequence WHERE name = 'events'"


def leave_closing_note(execute: Execute, unfinished: Iterable[str]) -> None:
    """Record which jobs are unfinished; the next event makes the note void.

    Raises JournalBlockedError.
    """
    body = json.dumps({"event": _latest_event(execute), "unfinished": list(unfinished)})
    execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (_KEY, body))


def unfinished_at_close(execute: Execute) -> tuple[str, ...] | None:
    """Return the jobs that are not over; None: the service did not end in order, or events followed."""
    row = execute("SELECT value FROM meta WHERE key = ?", (_KEY,)).fetchone()
    if row is None:
        return None
    note = json.loads(row[0])
    return tuple(note["unfinished"]) if note["event"] == _latest_event(execute) else None


def _latest_event(execute: Execute) -> int:
    """Return the number of the latest event ever; 0: there was none."""
    row = execute(_LATEST).fetchone()
    return 0 if row is None else int(row[0])


# -- Reports of ended jobs, kept until they are cleaned ------------------------------------------------------

TABLES = f"""{_NEGOTIATION_TABLES}
CREATE TABLE IF NOT EXISTS finished (id TEXT PRIMARY KEY, finished_at REAL NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS cleaned (id TEXT PRIMARY KEY, cleaned_at REAL NOT NULL);
"""
_ENDED = "CASE WHEN json_valid(body) THEN json_extract(body, '$.finished_at') END"
"""When a job ended, by people's clocks, as its report says; NULL: the report cannot be read."""
_NUMBER = "CAST(id AS INTEGER)"
INDEXES = f"""
CREATE INDEX IF NOT EXISTS finished_by_number ON finished ({_NUMBER}, id);
CREATE INDEX IF NOT EXISTS finished_by_service_clock ON finished (finished_at);
CREATE INDEX IF NOT EXISTS finished_by_end ON finished ({_ENDED});
"""
"""Made where they are missing. Without them every question is answered, too, but more slowly. An index with other
contents has another name."""


AT_ONCE = 200
"""Reports that are looked at without a pause."""


class FinishedJobs:
    """Reports (JSON) of finished jobs. Each method raises JournalError when the journal cannot be used."""

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

    def newest_first(self, since: float | None) -> Iterator[str]:
        """Yield the reports of jobs, the one submitted last first.

        ``since``: of those that ended then or later by people's clocks; None: of all.
        """
        # Only the ids are sorted: the reports of many jobs are long. The sign keeps SQLite from
        # looking through all jobs in order of submission for the few that ended since then.
        which = f"ORDER BY {_NUMBER} DESC, id DESC"
        which = which if since is None else f"WHERE {_ENDED} >= ? ORDER BY +{_NUMBER} DESC, id DESC"
        values = () if since is None else (since,)
        for (job_id,) in self._execute(f"SELECT id FROM finished {which}", values):  # noqa: S608 - constants
            if (body := self.report(job_id)) is not None:
                yield body

    def before(self, limit: float) -> list[tuple[str, int]]:
        """Return id and length of the report of each job that finished before ``limit``, oldest first."""
        rows = self._execute(
            "SELECT id, length(CAST(body AS BLOB)) FROM finished WHERE finished_at < ? ORDER BY finished_at", (limit,)
        )
        return [(str(row[0]), int(row[1])) for row in rows]

    def sweeps_since(self, limit: float) -> Iterator[dict[str, str | None]]:
        """Yield the jobs that finished at ``limit`` or later with the directories of their sweeps (None: no sweep).

        Each part is read with a request of its own: between two of them others may use the journal.
        """
        latest = 0
        while True:
            found = self._execute(
                "SELECT rowid, id, CASE WHEN json_valid(body) THEN json_extract(body, '$.sweep.directory') END"
                " FROM finished WHERE rowid > ? AND finished_at >= ? ORDER BY rowid LIMIT ?",
                (latest, limit, AT_ONCE),
            ).fetchall()
            if not found:
                return
            latest = found[-1][0]
            yield {str(id_): directory for _, id_, directory in found}

    def clean(self, job_ids: Iterable[str], now: float) -> None:
        """Delete reports of finished jobs and record that. Raises JournalBlockedError."""
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
        """Return when a job's report was deleted; None when it was not."""
        row = self._execute("SELECT cleaned_at FROM cleaned WHERE id = ?", (job_id,)).fetchone()
        return None if row is None else float(row[0])

# SPDX-License-Identifier: Apache-2.0
"""The part of the journal that keeps what applications and koala said to each other in negotiations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from koala_adapter.service.keptnegotiations import KeptNegotiation, Message

if TYPE_CHECKING:
    import sqlite3

_TABLES = (
    """CREATE TABLE IF NOT EXISTS negotiations (
    number INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, component TEXT NOT NULL, rank INTEGER NOT NULL,
    initiator TEXT NOT NULL, agreement TEXT NOT NULL, UNIQUE (job, rank, initiator, agreement))""",
    """CREATE TABLE IF NOT EXISTS negotiation_messages (
    negotiation INTEGER NOT NULL, time REAL NOT NULL, sender TEXT NOT NULL, template TEXT NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS messages_of_negotiation ON negotiation_messages (negotiation)",
)
MOST_KEPT = 10_000
"""Negotiations, the latest ones."""


class Execute(Protocol):
    """Executes a statement. Raises JournalError."""

    def __call__(self, statement: str, values: tuple[object, ...] = (), /) -> sqlite3.Cursor:
        """Execute it with these values."""


class NegotiationStore:
    """Keeps negotiations by numbers that people can name."""

    def __init__(self, execute: Execute, *, read_only: bool) -> None:
        """Make what is missing, unless it is only read. Raises JournalError."""
        self._execute = execute
        if not read_only:
            for statement in _TABLES:
                execute(statement)

    def keep(self, kept: KeptNegotiation, message: Message) -> None:
        """Keep what was said in a negotiation; what the same side has said before is not kept again.

        ``kept``: which negotiation it is; its number is not looked at. Raises JournalBlockedError.
        """
        number = self._number(kept) or self._begin(kept)
        self._execute(
            "INSERT INTO negotiation_messages SELECT ?1, ?2, ?3, ?4 WHERE NOT EXISTS (SELECT 1 FROM"
            " negotiation_messages WHERE negotiation = ?1 AND sender = ?3 AND template = ?4)",
            (number, message.at, message.sender, message.template),
        )

    def recalled(self, job_id: str, initiator: str, agreement_id: str) -> KeptNegotiation | None:
        """Return the latest negotiation that a side has begun under a name; None: none."""
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
        """Forget what was negotiated for a job. Raises JournalBlockedError."""
        of_the_job = "SELECT number FROM negotiations WHERE job = ?"
        self._execute(f"DELETE FROM negotiation_messages WHERE negotiation IN ({of_the_job})", (job_id,))  # noqa: S608 - a constant
        self._execute("DELETE FROM negotiations WHERE job = ?", (job_id,))

    def latest(self, *, job_id: str = "", number: int = 0, limit: int = 1) -> list[KeptNegotiation]:
        """Return the latest in the order in which they began; ``job_id``, ``number``: of one job, or one, only."""
        if self._execute("SELECT 1 FROM sqlite_master WHERE name = 'negotiations'").fetchone() is None:
            return []  # read only, and written by a version that did not keep any
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

# SPDX-License-Identifier: Apache-2.0
"""The starts that are under way, on disk before they are asked for: those of `koala schedule` and of WIKI.

Together with ``start_on``, which acts on held jobs only, this makes a kill at any moment harmless: what is on record
and still held may be started again, what was released and did not start is held again, what runs is left running.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import ValidationError

from koala_adapter.adapters import adapter_of
from koala_adapter.errors import JournalError
from koala_adapter.host.clock import ClockReading
from koala_adapter.model import LrmJobId  # noqa: TC001 - the codec of the log reads annotations at run time

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from koala_adapter.model import LrmJob


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginalRequest:
    """What of a job a batch system may show differently once we have tied it to nodes."""

    processors: int
    requested_nodes: tuple[str, ...] = ()
    nodes_wanted: int | None = None
    nodes_least: int = 1
    nodes_most: int | None = None
    tasks_per_node: int | None = None

    @classmethod
    def of(cls, job: LrmJob) -> OriginalRequest:
        """Return those of a job that is not tied."""
        return cls(
            processors=job.processors,
            requested_nodes=job.requested_nodes,
            nodes_wanted=job.nodes_wanted,
            nodes_least=job.nodes_least,
            nodes_most=job.nodes_most,
            tasks_per_node=job.tasks_per_node,
        )

    def restored(self, job: LrmJob) -> LrmJob:
        """Return a job as it was before it was tied."""
        return replace(
            job,
            processors=self.processors,
            requested_nodes=self.requested_nodes,
            nodes_wanted=self.nodes_wanted,
            nodes_least=self.nodes_least,
            nodes_most=self.nodes_most,
            tasks_per_node=self.tasks_per_node,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """What is on record of a start before it is asked for, so that a kill at any time loses and doubles nothing."""

    job_id: LrmJobId
    submitted_at: float | None
    """Tells the job from a later one of the same number."""
    nodes: tuple[tuple[str, int], ...]
    wishes: OriginalRequest
    """What its user asked for (called so on disk): what the batch system shows from now on is ours."""
    at: float
    """Like all times but ``submitted_at`` by our own clock."""
    failures: int = 0
    """How many starts have failed; one that was cut short by our own end did not."""
    not_before: float = 0.0
    """After a failed start: when the next one may be tried."""
    failure: str = ""
    """Why the last start failed, or that the job was queued again."""
    started: bool = False
    """It ran there: kept until it is over, because the batch system may queue it again."""


HINT = "is the disk full, or the file damaged?"


class StartLog:
    """The pins of one cluster in one SQLite file of mode 0600."""

    def __init__(self, path: Path) -> None:
        """Open or create it. Raises JournalError."""
        self._path = path
        self._stored: dict[LrmJobId, Pin] = {}
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            self._database = sqlite3.connect(path, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            # Each change is on disk before it is acted on.
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.execute("CREATE TABLE IF NOT EXISTS pins (job TEXT PRIMARY KEY, body TEXT NOT NULL)")
            self._database.execute("CREATE TABLE IF NOT EXISTS clock (only INTEGER PRIMARY KEY, body TEXT NOT NULL)")
            with closing(self._database.execute("SELECT body FROM clock")) as rows:
                self.clock = next((adapter_of(ClockReading).validate_json(body) for (body,) in rows), None)
                """How the clocks stood when they were noted last."""
            with closing(self._database.execute("SELECT body FROM pins")) as rows:
                self._stored = {pin.job_id: pin for (body,) in rows for pin in [adapter_of(Pin).validate_json(body)]}
        except (OSError, sqlite3.Error, ValidationError) as error:
            raise JournalError(f"{path}: cannot be used: {error}", hint="check the state directory") from error

    @property
    def pins(self) -> tuple[Pin, ...]:
        """What is on record."""
        return tuple(self._stored.values())

    def note_clock(self, reading: ClockReading) -> None:
        """Keep how the clocks stand, so that a later process goes on from there. Raises JournalError."""
        self._write(
            "INSERT OR REPLACE INTO clock VALUES (1, ?)", (adapter_of(ClockReading).dump_json(reading).decode(),)
        )

    def _write(self, statement: str, values: tuple[str, ...]) -> None:
        try:
            self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise JournalError(f"{self._path}: cannot be written: {error}", hint=HINT) from error

    def note(self, pin: Pin) -> None:
        """Put a start on record; on return that is on disk. Raises JournalError: then it must not be asked for."""
        self.store({**self._stored, pin.job_id: pin})

    def store(self, pins: Mapping[LrmJobId, Pin]) -> None:
        """Make the record equal to ``pins``; on return that is on disk. Raises JournalError: then nothing changed."""
        gone = [job for job in self._stored if job not in pins]
        new = [pin for job, pin in pins.items() if self._stored.get(job) != pin]
        if not gone and not new:
            return
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                self._database.executemany("DELETE FROM pins WHERE job = ?", [(job,) for job in gone])
                rows = [(pin.job_id, adapter_of(Pin).dump_json(pin).decode()) for pin in new]
                self._database.executemany("INSERT OR REPLACE INTO pins VALUES (?, ?)", rows)
                self._database.execute("COMMIT")
            except sqlite3.Error:
                self._database.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise JournalError(f"{self._path}: cannot be written: {error}", hint=HINT) from error
        self._stored = dict(pins)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

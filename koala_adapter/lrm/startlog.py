# SPDX-License-Identifier: Apache-2.0
"""The log of the starts of an outside scheduler: on disk before a start is asked for.

Together with ``start_on``, which acts on held jobs only, this makes a kill at any moment harmless: a job on record
and still held may be started again, one that was released and did not start is held again, one that runs is left
running.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeAlias

from pydantic import ValidationError

from koala_adapter.errors import JournalError
from koala_adapter.host.clock import ClockReading
from koala_adapter.lrm.contract import PinnedStart
from koala_adapter.model import LrmJobId  # noqa: TC001 - read at run time
from koala_adapter.wire.messages import adapter_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from koala_adapter.model import LrmJob


Layout: TypeAlias = "tuple[tuple[str, int], ...]"
"""Names of nodes with the number of processors on each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginalRequest:
    """Properties of a job, under its names, that a batch system may show differently once it is tied to nodes."""

    processors: int
    requested_nodes: tuple[str, ...] = ()
    nodes_wanted: int | None = None
    nodes_least: int = 1
    nodes_most: int | None = None
    tasks_per_node: int | None = None

    @classmethod
    def of(cls, job: LrmJob) -> OriginalRequest:
        """Return the properties of an untied job."""
        return cls(**{one.name: getattr(job, one.name) for one in fields(cls)})

    def restored(self, job: LrmJob) -> LrmJob:
        """Return a job with the properties that it had before it was tied."""
        return replace(job, **{one.name: getattr(self, one.name) for one in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Record of a start, written before the start is requested, so that it survives a kill at any time."""

    job_id: LrmJobId
    submitted_at: float | None
    """Tells the job from a later one of the same number."""
    nodes: tuple[tuple[str, int], ...]
    wishes: OriginalRequest | None
    """What its user asked for (called so on disk): what the batch system shows from now on is ours.

    None: it was refused before anything had tied it, so what the batch system shows is its user's.
    """
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
    original: str = ""
    """What the plugin must know to untie it, in the plugin's own words (`Lrm.original_request`)."""

    @property
    def start(self) -> PinnedStart:
        """The start in the form that plugins take."""
        return PinnedStart(job=self.job_id, nodes=entries_of(self.nodes), original=self.original)


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
        except (OSError, sqlite3.Error) as error:
            raise JournalError(f"{path}: cannot be used: {error}", hint="check the state directory") from error
        try:
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
        except (sqlite3.Error, ValidationError) as error:
            self._database.close()
            raise JournalError(f"{path}: cannot be used: {error}", hint="check the state directory") from error

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The recorded starts."""
        return tuple(self._stored.values())

    def note_clock(self, reading: ClockReading) -> None:
        """Record the clocks, for the next process. Raises JournalError."""
        self._write(
            "INSERT OR REPLACE INTO clock VALUES (1, ?)", (adapter_of(ClockReading).dump_json(reading).decode(),)
        )

    def _write(self, statement: str, values: tuple[str, ...]) -> None:
        try:
            self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise JournalError(f"{self._path}: cannot be written: {error}", hint=HINT) from error

    def store(self, pins: Mapping[LrmJobId, Pin]) -> None:
        """Replace the record on disk by ``pins``. Raises JournalError: then nothing changed."""
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


def entries_of(nodes: Layout) -> tuple[str, ...]:
    """Return a list with one node name for each processor."""
    return tuple(name for name, count in nodes for _ in range(count))

# SPDX-License-Identifier: Apache-2.0
"""What daemon and client of a local cluster share: protocol, layout, job records, slots, store."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import struct
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Self, TypeAlias, Union

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError, ProtocolError
from koala_adapter.model import EndReason, HoldOwner, LrmJob, LrmJobId, LrmJobState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


# -- Protocol between client and daemon ----------------------------------------------------------------------
# One JSON object each way per connection, ended by end of file. The socket lies in a directory that only its user can
# enter, and both sides check the other's user all the same.

Json: TypeAlias = Union[bool, int, float, str, "list[Json]", "dict[str, Json]", None]

SOCKET_NAME = "socket"
LONGEST_MESSAGE = 64 * 1024 * 1024
"""Bytes; a submission with its script is far below."""

ERRORS: Mapping[str, type[LrmError]] = {
    "rejected": LrmRejectedError,
    "not found": LrmNotFoundError,
    "unavailable": LrmUnavailableError,
}


class Fields:
    """Typed reading of a JSON object that came from outside; every method raises ProtocolError."""

    def __init__(self, value: Json) -> None:
        """``value`` must be an object."""
        if not isinstance(value, dict):
            raise ProtocolError(f"expected a JSON object, found {type(value).__name__}")
        self._values = value

    def text(self, name: str) -> str:
        """Return a string."""
        value = self._values.get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a string")
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a string, or None when it is null or absent."""
        return None if self._values.get(name) is None else self.text(name)

    def integer(self, name: str) -> int:
        """Return an integer."""
        value = self._values.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(name, "an integer")
        return value

    def optional_integer(self, name: str) -> int | None:
        """Return an integer, or None when it is null or absent."""
        return None if self._values.get(name) is None else self.integer(name)

    def number(self, name: str) -> float:
        """Return an integer or a fraction."""
        value = self._values.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(name, "a number")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """Return a number, or None when it is null or absent."""
        return None if self._values.get(name) is None else self.number(name)

    def flag(self, name: str) -> bool:
        """Return true or false."""
        value = self._values.get(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings."""
        value = self._values.get(name)
        if not isinstance(value, list):
            raise self._wrong(name, "a list of strings")
        texts = tuple(item for item in value if isinstance(item, str))
        if len(texts) != len(value):
            raise self._wrong(name, "a list of strings")
        return texts

    def objects(self, name: str) -> tuple[Fields, ...]:
        """Return a list of objects."""
        value = self._values.get(name)
        if not isinstance(value, list):
            raise self._wrong(name, "a list of objects")
        return tuple(Fields(item) for item in value)

    def object(self, name: str) -> Fields:
        """Return an object."""
        return Fields(self._values.get(name))

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def _wrong(self, name: str, wanted: str) -> ProtocolError:
        return ProtocolError(f"{name!r} must be {wanted}, found {self._values.get(name)!r:.80}")


def encode(message: Mapping[str, Json]) -> bytes:
    """Return a message as bytes. Text that is no valid Unicode (undecodable bytes) survives as escapes."""
    return json.dumps(message, separators=(",", ":")).encode("ascii")


def decode(raw: bytes) -> Fields:
    """Return the object in ``raw``. Raises ProtocolError."""
    try:
        return Fields(json.loads(raw))
    except ValueError as error:
        raise ProtocolError(f"not a JSON object: {error}") from error


def failure(error: LrmError) -> dict[str, Json]:
    """Return the answer that makes `raise_failure` raise the same error at the other end."""
    kind = next((name for name, known in ERRORS.items() if isinstance(error, known)), "unavailable")
    return {"error": kind, "message": error.message, "hint": error.hint}


def raise_failure(answer: Fields) -> None:
    """Raise the LrmError that an answer tells of; do nothing when it tells of none."""
    if "error" in answer:
        kind = ERRORS.get(answer.text("error"), LrmUnavailableError)
        raise kind(answer.text("message"), hint=answer.text("hint"))


def peer_user(connection: socket.socket) -> int:
    """Return the user id of the process at the other end of a Unix socket (unix(7), SO_PEERCRED)."""
    form = "3i"
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(form))
    _pid, user, _group = struct.unpack(form, raw)
    return int(user)


def short_path(directory: int) -> str:
    """Return a path of the socket in an open directory: a Unix socket's path must be below 108 bytes (unix(7))."""
    return f"/proc/{os.getpid()}/fd/{directory}/{SOCKET_NAME}"


# -- Layout of a cluster -------------------------------------------------------------------------------------
# The simulated nodes and a few limits, as the daemon is told them.

KILL_WAIT = 2.0
QUEUE = "local"
"""Name of the one queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSlots:
    """A simulated node: a name, and how many jobs of one processor run on it at once."""

    name: str
    processors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A cluster as its settings describe it."""

    nodes: tuple[NodeSlots, ...]
    walltime_limit: int | None = None
    """Seconds; None: no limit."""
    idle_seconds: float = 600.0
    remember_seconds: float = 600.0
    kill_wait: float = KILL_WAIT
    """Seconds from SIGTERM to SIGKILL."""

    @property
    def processors(self) -> int:
        """Processors of all nodes."""
        return sum(node.processors for node in self.nodes)

    def to_json(self) -> dict[str, Json]:
        """Return what `from_json` reads."""
        return {
            "nodes": [{"name": node.name, "processors": node.processors} for node in self.nodes],
            "walltime_limit": self.walltime_limit,
            "idle_seconds": self.idle_seconds,
            "remember_seconds": self.remember_seconds,
            "kill_wait": self.kill_wait,
        }

    @classmethod
    def from_json(cls, fields: Fields) -> Self:
        """Read what `to_json` wrote. Raises ProtocolError."""
        kill_wait = fields.optional_number("kill_wait")  # earlier versions do not say it
        return cls(
            nodes=tuple(
                NodeSlots(name=node.text("name"), processors=node.integer("processors"))
                for node in fields.objects("nodes")
            ),
            walltime_limit=fields.optional_integer("walltime_limit"),
            idle_seconds=fields.number("idle_seconds"),
            remember_seconds=fields.number("remember_seconds"),
            kill_wait=KILL_WAIT if kill_wait is None else kill_wait,
        )


# -- Job records ---------------------------------------------------------------------------------------------
# One job as the daemon keeps it, stores it and reports it.


class Ending(StrEnum):
    """Why the daemon ends a job's processes."""

    CANCEL = "cancel"
    WALLTIME = "walltime"
    REQUEUE = "requeue"


END_OF = {Ending.CANCEL: EndReason.CANCELLED, Ending.WALLTIME: EndReason.WALLTIME}
OCCUPYING = frozenset({LrmJobState.STARTING, LrmJobState.RUNNING, LrmJobState.SUSPENDED, LrmJobState.ENDING})
"""States in which a job holds its processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One element of a submission; it needs one processor."""

    number: int
    """Number of the submission, from 1, never used again."""
    index: int
    """Index within the submission, from 1."""
    name: str
    user: str
    walltime: int
    """Seconds."""
    output_directory: str
    submitted_at: float
    state: LrmJobState
    node: str = ""
    """The node where it runs or ran; before that, the node that was chosen for it, if any."""
    pid: int | None = None
    """Process id and process group of the running script."""
    birth: str = ""
    """Identity of that process beyond its id, which the system uses again."""
    starts: int = 0
    """How often it was started; more than once when it was requeued."""
    started_at: float | None = None
    """Time of day, as the listing shows it; so is `ended_at`."""
    started_since_boot: float | None = None
    """The start in seconds since boot, from which its walltime is counted."""
    ended_at: float | None = None
    ending: Ending | None = None
    end: EndReason | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    """Why it waits or ended, for people."""

    @property
    def id(self) -> LrmJobId:
        """``NUMBER_INDEX``."""
        return LrmJobId(f"{self.number}_{self.index}")

    @property
    def ends_at(self) -> float | None:
        """End of the walltime while the job runs; time of the end afterwards."""
        if self.ended_at is not None or self.started_at is None:
            return self.ended_at
        return self.started_at + self.walltime

    def to_json(self) -> dict[str, Json]:
        """Return what `from_json` reads."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, values: Fields) -> Self:
        """Read what `to_json` wrote. Raises ProtocolError."""
        ending, end = values.optional_text("ending"), values.optional_text("end")
        try:
            return cls(
                number=values.integer("number"),
                index=values.integer("index"),
                name=values.text("name"),
                user=values.text("user"),
                walltime=values.integer("walltime"),
                output_directory=values.text("output_directory"),
                submitted_at=values.number("submitted_at"),
                state=LrmJobState(values.text("state")),
                node=values.text("node"),
                pid=values.optional_integer("pid"),
                birth=values.text("birth"),
                starts=values.integer("starts"),
                started_at=values.optional_number("started_at"),
                started_since_boot=values.optional_number("started_since_boot"),
                ended_at=values.optional_number("ended_at"),
                ending=Ending(ending) if ending else None,
                end=EndReason(end) if end else None,
                exit_code=values.optional_integer("exit_code"),
                signal=values.optional_integer("signal"),
                reason=values.text("reason"),
            )
        except ValueError as error:
            raise ProtocolError(f"not a job: {error}") from error

    def to_lrm_job(self) -> LrmJob:
        """Return the job in the words of the plugin contract."""
        occupying = self.state in OCCUPYING or self.state is LrmJobState.ENDED
        return LrmJob(
            id=self.id,
            name=self.name,
            state=self.state,
            user=self.user,
            processors=1,
            array_index=self.index,
            nodes=(self.node,) if occupying and self.node else (),
            queue=QUEUE,
            reason=self.reason,
            end=self.end,
            exit_code=self.exit_code,
            signal=self.signal,
            submitted_at=self.submitted_at,
            started_at=self.started_at,
            ends_at=self.ends_at,
            raw_state=self.state.value,
            walltime=self.walltime,
            hold=HoldOwner.USER if self.state is LrmJobState.HELD else None,
            layout=((self.node, 1),) if occupying and self.node else (),
        )


# -- Slots ---------------------------------------------------------------------------------------------------
# Which waiting job starts where: first come, first served, on the node with most idle processors.


def used_processors(jobs: Iterable[JobRecord]) -> dict[str, int]:
    """Return the number of occupied processors by node; nodes without any are left out."""
    used: dict[str, int] = {}
    for job in jobs:
        if job.state in OCCUPYING:
            used[job.node] = used.get(job.node, 0) + 1
    return used


def next_starts(nodes: Sequence[NodeSlots], jobs: Iterable[JobRecord]) -> list[tuple[JobRecord, str]]:
    """Return the queued jobs that can start now, each with its node.

    ``jobs`` are in order of submission. A job for which a node was chosen waits for that node, and lets others pass.
    """
    jobs = list(jobs)
    used = used_processors(jobs)
    idle = {node.name: node.processors - used.get(node.name, 0) for node in nodes}
    total = sum(count for count in idle.values() if count > 0)
    starts: list[tuple[JobRecord, str]] = []
    for job in jobs:
        if total <= 0:
            break
        if job.state is not LrmJobState.QUEUED:
            continue
        node = job.node or max(idle, key=lambda name: idle[name])
        if idle.get(node, 0) > 0:
            idle[node] -= 1
            total -= 1
            starts.append((job, node))
    return starts


# -- Store ---------------------------------------------------------------------------------------------------
# Jobs on disk, so that a daemon that was killed knows them when it is started again.

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
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            # Enough against the death of the daemon; a crash of the whole host ends the jobs anyway.
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.executescript(SCHEMA)
        except BaseException:
            self._database.close()
            raise

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

# SPDX-License-Identifier: Apache-2.0
"""What daemon and client of a local cluster share: protocol, layout, job records, slots, store."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast, get_args, get_type_hints

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError, ProtocolError
from koala_adapter.model import OCCUPYING, EndReason, HoldOwner, LrmJob, LrmJobId, LrmJobState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from _typeshed import DataclassInstance

T = TypeVar("T")


# -- Protocol between client and daemon ----------------------------------------------------------------------
# One JSON object each way per connection, ended by end of file. The socket lies in a directory that only its user can
# enter, and both sides check the other's user all the same.

Message: TypeAlias = "Mapping[str, object]"
"""What is sent: values of JSON, and dataclasses, each as an object of its fields."""

SOCKET_NAME = "socket"
LAYOUT_NAME = "layout.json"
LOG_NAME = "daemon.log"
UNHEARD = 3
"""Exit status of the program that passes a request on, where no daemon has heard it."""
LONGEST_MESSAGE = 64 * 1024 * 1024
"""Bytes; a submission with its script is far below."""

ERRORS: Mapping[str, type[LrmError]] = {
    "rejected": LrmRejectedError,
    "not found": LrmNotFoundError,
    "unavailable": LrmUnavailableError,
}


class Fields:
    """Typed reading of a JSON object that came from outside; every method raises ProtocolError."""

    def __init__(self, value: object) -> None:
        """``value`` must be an object."""
        if not isinstance(value, dict):
            raise ProtocolError(f"expected a JSON object, found {type(value).__name__}")
        self._values = value

    def text(self, name: str) -> str:
        """Return a string."""
        return self._value(name, str)

    def integer(self, name: str) -> int:
        """Return an integer."""
        return self._value(name, int)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings."""
        return self._value(name, tuple[str, ...])

    def object(self, name: str) -> Fields:
        """Return an object."""
        return self._value(name, Fields)

    def records(self, name: str, kind: type[T]) -> tuple[T, ...]:
        """Return a list of objects as dataclasses, as `record` does."""
        return tuple(one.record(kind) for one in self._value(name, tuple[Fields, ...]))

    def record(self, kind: type[T]) -> T:
        """Return the dataclass whose fields the object has; a field that is absent, as in older versions, its default.

        Its types are strings, numbers, enumerations, such dataclasses, lists (tuples) of one of them, or None.
        """
        hints = _hints(cast("type", kind))
        given = {name: self._value(name, hint) for name, hint in hints.items() if name in self._values}
        try:
            return kind(**given)
        except TypeError as error:
            raise ProtocolError(f"no {kind.__name__}: {error}") from error

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def _value(self, name: str, kind: type[T]) -> T:
        value = self._values.get(name)
        try:
            return cast("T", _read(kind, value))
        except ValueError as error:
            raise ProtocolError(f"{name!r} must be {error}, found {value!r:.80}") from error


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


_PLAIN = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}


def _read(kind: Any, value: object) -> object:  # noqa: ANN401 - annotations of many forms
    """Return a value of JSON as one of a type. Raises ValueError with the words for what it should have been."""
    if kind is float and type(value) is int:
        return float(value)
    if kind in _PLAIN:
        if type(value) is not kind:
            raise ValueError(_PLAIN[kind])
        return value
    if arguments := get_args(kind):
        if NoneType in arguments:
            return None if value is None else _read(arguments[0], value)
        if not isinstance(value, list):
            raise ValueError("a list")
        return tuple(_read(arguments[0], one) for one in value)
    if issubclass(kind, StrEnum):
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"one of {', '.join(kind)}") from None
    found = Fields(value)
    return found if kind is Fields else found.record(kind)


def encode(message: object) -> bytes:
    """Return a message, or a dataclass, as bytes. Text that is no valid Unicode survives as escapes."""
    return json.dumps(message, default=_members, separators=(",", ":")).encode("ascii")


def _members(record: DataclassInstance) -> Message:
    return {one.name: getattr(record, one.name) for one in fields(record)}


def decode(raw: bytes) -> Fields:
    """Return the object in ``raw``. Raises ProtocolError."""
    try:
        return Fields(json.loads(raw))
    except ValueError as error:
        raise ProtocolError(f"not a JSON object: {error}") from error


def failure(error: LrmError) -> Message:
    """Return the answer that makes `raise_failure` raise the same error at the other end."""
    kind = next((name for name, known in ERRORS.items() if isinstance(error, known)), "unavailable")
    return {"error": kind, "message": error.message, "hint": error.hint}


def raise_failure(answer: Fields) -> None:
    """Raise the LrmError that an answer tells of; do nothing when it tells of none."""
    if "error" in answer:
        kind = ERRORS.get(answer.text("error"), LrmUnavailableError)
        raise kind(answer.text("message"), hint=answer.text("hint"))


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
    """A simulated node: processors, memory and GPUs for jobs."""

    name: str
    processors: int
    memory_mib: int | None = None
    """None: memory is not counted."""
    gpus: int = 0


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
    bind: bool = True
    """Jobs of several processors are bound to processors of this host."""

    @property
    def processors(self) -> int:
        """Processors of all nodes."""
        return sum(node.processors for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """A node with what jobs have of it, as the daemon reports it."""

    name: str
    processors: int
    used: int
    """Processors."""
    memory_mib: int | None = None
    memory_used_mib: int | None = None
    gpus: int = 0
    gpus_used: int = 0


# -- Job records ---------------------------------------------------------------------------------------------
# One job as the daemon keeps it, stores it and reports it.


class Ending(StrEnum):
    """Why the daemon ends a job's processes."""

    CANCEL = "cancel"
    WALLTIME = "walltime"
    REQUEUE = "requeue"


END_OF = {Ending.CANCEL: EndReason.CANCELLED, Ending.WALLTIME: EndReason.WALLTIME}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What each job of a submission asks for."""

    name: str
    user: str
    walltime: int
    """Seconds."""
    output_directory: str
    threads: int = 1
    """Processors."""
    memory_mib: int = 0
    """0: none in particular."""
    gpus: int = 0
    exclusive: bool = False
    """It has its node for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord(JobRequest):
    """One element of a submission."""

    number: int
    """Number of the submission, from 1, never used again."""
    index: int
    """Index within the submission, from 1."""
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
    taken: int = 0
    """Processors of its node that it has, or had: all of them when it is exclusive. 0: it has not started."""
    bound_to: tuple[int, ...] = ()
    """Processors of this host on which its processes run; empty: all."""
    devices: tuple[int, ...] = ()
    """Numbers of its GPUs."""

    @property
    def processors(self) -> int:
        """Processors that it has, or asks for."""
        return self.taken or self.threads

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

    def to_lrm_job(self) -> LrmJob:
        """Return the job in the words of the plugin contract."""
        occupying = self.state in OCCUPYING or self.state is LrmJobState.ENDED
        return LrmJob(
            id=self.id,
            name=self.name,
            state=self.state,
            user=self.user,
            processors=self.processors,
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
            layout=((self.node, self.processors),) if occupying and self.node else (),
        )


# -- Slots ---------------------------------------------------------------------------------------------------
# Which waiting job starts where: first come, first served, on the node with most idle processors.


@dataclass(slots=True, kw_only=True)
class Room:
    """Free resources of a node."""

    node: NodeSlots
    processors: int
    memory_mib: int
    devices: list[int]
    jobs: int = 0

    def takes(self, job: JobRecord) -> bool:
        """Return whether a job can start on the node now."""
        return (
            self.processors >= job.threads
            and not (job.exclusive and self.jobs)
            and (self.node.memory_mib is None or self.memory_mib >= job.memory_mib)
            and len(self.devices) >= job.gpus
        )

    def start(self, job: JobRecord) -> JobRecord:
        """Return a job as started on the node."""
        taken = self.node.processors if job.exclusive else job.threads
        placed = replace(job, node=self.node.name, taken=taken, devices=tuple(self.devices[: job.gpus]))
        self.take(placed)
        return placed

    def take(self, job: JobRecord) -> None:
        """Subtract a job's resources."""
        self.processors -= job.processors
        self.memory_mib -= job.memory_mib
        self.devices = [device for device in self.devices if device not in job.devices]
        self.jobs += 1


def rooms(nodes: Sequence[NodeSlots], jobs: Iterable[JobRecord]) -> dict[str, Room]:
    """Return what jobs leave of each node. The GPUs of all nodes are numbered through."""
    found: dict[str, Room] = {}
    first = 0
    for node in nodes:
        devices = list(range(first, first + node.gpus))
        found[node.name] = Room(node=node, processors=node.processors, memory_mib=node.memory_mib or 0, devices=devices)
        first += node.gpus
    for job in jobs:
        if job.state in OCCUPYING and job.node in found:
            found[job.node].take(job)
    return found


def fits_ever(nodes: Sequence[NodeSlots], job: JobRecord) -> bool:
    """Return whether a job could start on an empty cluster."""
    return any(room.takes(job) for room in rooms(nodes, ()).values())


def next_starts(nodes: Sequence[NodeSlots], jobs: Iterable[JobRecord]) -> list[JobRecord]:
    """Return the queued jobs that can start now, each with its part of its node.

    ``jobs`` are in order of submission. A job for which a node was chosen waits for that node, and lets others pass.
    Another one that waits for room keeps those behind it waiting, or it might wait for ever.
    """
    jobs = list(jobs)
    left = rooms(nodes, jobs)
    starts: list[JobRecord] = []
    blocked = False
    for job in jobs:
        if job.state is not LrmJobState.QUEUED or (blocked and not job.node):
            continue
        if not any(room.processors > 0 for room in left.values()):
            break
        able = [room for name, room in left.items() if job.node in {"", name} and room.takes(job)]
        if able:
            starts.append(max(able, key=lambda room: room.processors).start(job))
        elif not job.node:
            blocked = fits_ever(nodes, job)
    return starts


def free_processors(jobs: Iterable[JobRecord], here: Collection[int]) -> list[int]:
    """Return the processors of this host, of those that we may use, to which no job is bound."""
    bound = {number for job in jobs if job.state in OCCUPYING for number in job.bound_to}
    return sorted(set(here) - bound)


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
        records = [decode(raw).record(JobRecord) for (raw,) in rows]
        return sorted(records, key=lambda record: (record.number, record.index))

    def next_number(self) -> int:
        """Return a submission number that was never returned before."""
        query = "UPDATE counter SET last = last + 1 RETURNING last"
        with contextlib.closing(self._database.execute(query)) as cursor:
            return int(cursor.fetchall()[0][0])

    def save(self, records: Iterable[JobRecord]) -> None:
        """Write these records, all or none."""
        rows = [(record.id, record.number, encode(record)) for record in records]
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany("INSERT OR REPLACE INTO job VALUES (?, ?, ?)", rows)
        self._database.execute("COMMIT")

    def forget(self, ids: Iterable[LrmJobId]) -> None:
        """Delete the records of these jobs."""
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany("DELETE FROM job WHERE id = ?", [(id_,) for id_ in ids])
        self._database.execute("COMMIT")

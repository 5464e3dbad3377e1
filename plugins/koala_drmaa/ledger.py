# SPDX-License-Identifier: Apache-2.0
"""The helper's record of its submissions, because DRMAA cannot find a job by its name.

The intent (the key) is on disk before the jobs go to the LRM, their ids right after. What a batch has fewer ids than
jobs is *unknown*: these may be in the LRM. Several helpers may use one ledger, one after another or at the same time;
each operation holds a lock, and each line is complete or ignored.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

KEEP_SECONDS = 24 * 3600.0
"""How long batches are kept after their last job has ended."""

KEEP_UNKNOWN_SECONDS = 14 * 24 * 3600.0
"""How long batches of unknown outcome are kept: longer than an LRM will keep a job waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """What is known of a job's end."""

    at: float
    """Time at which we saw that it had ended."""
    failed: bool = False
    exit_code: int | None = None
    signal: int | None = None
    aborted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerBatch:
    """One submission."""

    key: str
    count: int
    submitted_at: float
    ids: tuple[str, ...] = ()
    ends: Mapping[str, JobEnd]

    def live(self) -> tuple[str, ...]:
        """Ids of jobs whose end has not been seen."""
        return tuple(id_ for id_ in self.ids if id_ not in self.ends)

    def forgettable(self, now: float) -> bool:
        """Tell whether nobody can want to know of this batch any more."""
        if len(self.ids) < self.count:
            return now - self.submitted_at > KEEP_UNKNOWN_SECONDS
        return not self.live() and all(now - end.at > KEEP_SECONDS for end in self.ends.values())


def parse_ledger(text: str) -> dict[str, LedgerBatch]:
    """Return batches by key, in the order of their submission.

    Lines that cannot be read (torn by a crash) are skipped.
    """
    batches: dict[str, LedgerBatch] = {}
    for line in text.splitlines():
        try:
            _apply(batches, json.loads(line))
        except (ValueError, KeyError, TypeError):
            continue
    return batches


def _apply(batches: dict[str, LedgerBatch], record: Mapping[str, object]) -> None:
    key = str(record["key"])
    match record["what"]:
        case "intent":
            batches[key] = LedgerBatch(
                key=key, count=int(str(record["count"])), submitted_at=float(str(record["at"])), ends={}
            )
        case "ids":
            ids = record["ids"]
            if isinstance(ids, list):
                batches[key] = replace(batches[key], ids=tuple(str(id_) for id_ in ids))
        case "job":
            batches[key] = replace(batches[key], ids=(*batches[key].ids, str(record["id"])))
        case "cut":
            batches[key] = replace(batches[key], count=len(batches[key].ids))
        case "abandoned" if key in batches and batches[key].ids:
            batches[key] = replace(batches[key], count=len(batches[key].ids))
        case "refused" | "abandoned":
            batches.pop(key, None)
        case "end":
            end = JobEnd(
                at=float(str(record["at"])),
                failed=bool(record.get("failed")),
                exit_code=_number(record.get("exit_code")),
                signal=_number(record.get("signal")),
                aborted=bool(record.get("aborted")),
            )
            batches[key] = replace(batches[key], ends={**batches[key].ends, str(record["id"]): end})
        case _:
            return


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def intent_record(key: str, count: int, now: float) -> dict[str, object]:
    """Record: a bulk of this name is about to be submitted."""
    return {"what": "intent", "key": key, "count": count, "at": now}


def ids_record(key: str, ids: Iterable[str]) -> dict[str, object]:
    """Record: the LRM took the bulk and gave these ids."""
    return {"what": "ids", "key": key, "ids": list(ids)}


def job_record(key: str, id_: str) -> dict[str, object]:
    """Record: the LRM took the next of jobs that are submitted one by one."""
    return {"what": "job", "key": key, "id": id_}


def cut_record(key: str) -> dict[str, object]:
    """Record: the LRM refused one of several jobs; there are no more of them than have ids."""
    return {"what": "cut", "key": key}


def refused_record(key: str) -> dict[str, object]:
    """Record: the LRM refused the bulk; nothing of it exists."""
    return {"what": "refused", "key": key}


def abandoned_record(key: str) -> dict[str, object]:
    """Record: nobody wants to hear of this batch of unknown outcome any more."""
    return {"what": "abandoned", "key": key}


def end_record(key: str, id_: str, end: JobEnd) -> dict[str, object]:
    """Record: this job has ended."""
    return {
        "what": "end",
        "key": key,
        "id": id_,
        "at": end.at,
        "failed": end.failed,
        "exit_code": end.exit_code,
        "signal": end.signal,
        "aborted": end.aborted,
    }


def batch_records(batch: LedgerBatch) -> list[dict[str, object]]:
    """Return the records that say all about a batch."""
    records = [intent_record(batch.key, batch.count, batch.submitted_at)]
    if batch.ids:
        records.append(ids_record(batch.key, batch.ids))
    return records + [end_record(batch.key, id_, end) for id_, end in batch.ends.items()]


class Ledger:
    """The ledger file. Every method is one locked step; :meth:`append` returns when the records are on disk."""

    def __init__(self, path: Path) -> None:
        """``path`` need not exist; its directory must."""
        self.path = path
        self._lock_path = path.with_name(path.name + ".lock")

    def read(self) -> dict[str, LedgerBatch]:
        """Return all batches by key."""
        with self._locked():
            return self._read()

    def append(self, records: Iterable[Mapping[str, object]]) -> None:
        """Add records and return when they are on disk."""
        with self._locked():
            text = self._lines(records)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "r+b") as file:
                size = file.seek(0, os.SEEK_END)
                if size and _last_byte(file.fileno(), size) != b"\n":
                    text = b"\n" + text
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if not size:
                self._sync_directory()

    def compact(self, now: float) -> None:
        """Leave out what nobody can want to know any more."""
        with self._locked():
            kept = [batch for batch in self._read().values() if not batch.forgettable(now)]
            new = self.path.with_name(self.path.name + ".new")
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.writelines(self._lines(batch_records(batch)) for batch in kept)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            self._sync_directory()

    def _read(self) -> dict[str, LedgerBatch]:
        try:
            return parse_ledger(self.path.read_text(encoding="utf-8", errors="replace"))
        except FileNotFoundError:
            return {}

    @staticmethod
    def _lines(records: Iterable[Mapping[str, object]]) -> bytes:
        return b"".join(json.dumps(dict(record)).encode() + b"\n" for record in records)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _sync_directory(self) -> None:
        descriptor = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _last_byte(descriptor: int, size: int) -> bytes:
    return os.pread(descriptor, 1, size - 1)

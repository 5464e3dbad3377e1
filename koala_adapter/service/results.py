# SPDX-License-Identifier: Apache-2.0
"""Output files of ranks: the store that receives them, and the ledger of what became of each.

The files are in ``jobs/ID/COMPONENT/RANK/`` of the state directory. ``jobs/ID/files.jsonl`` has a line for each rank
with its agent's final report: files that arrived, were refused, are still awaited, or are gone.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from anyio import to_thread
from pydantic import ValidationError

from koala_adapter.config.tomlfile import show_size
from koala_adapter.errors import ProtocolError
from koala_adapter.host.regularfile import paths_below, paths_matching
from koala_adapter.report.values import FilesReport
from koala_adapter.vjm.channel import FileAck, FilePiece, TaskFiles
from koala_adapter.wire.messages import adapter_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from koala_adapter.model import PlaceholderId
    from koala_adapter.scheduler.actions import Rank
    from koala_adapter.scheduler.records import JobRecord


# -- Store of arriving files ---------------------------------------------------------------------------------
# The store is bounded; a file is complete or absent, and readable by the user alone.
#
# Names come from the network and are opened directory by directory without following links. The part of a file that
# has arrived is in ``RANK.partial/NUMBER`` beside the rank's directory until the file is complete. The size of that
# part is the only state, so a piece sent again after a lost connection or a restart of the service is recognized.
#
# With its last piece comes the digest of the file. What is on the disk is read and compared with it, in a thread,
# before the file gets its name. One that differs is asked for once more; then it is refused.

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(slots=True)
class _Account:
    """Bytes granted to the files of one rank."""

    granted: dict[int, int] = field(default_factory=dict)
    """By the numbers of its files."""
    settled: int = 0
    """Of files whose numbers are forgotten."""
    differed: set[int] = field(default_factory=set)
    """Numbers of files that came with another content once."""
    checking: threading.Lock = field(default_factory=threading.Lock)
    """Held while a file is read: after a lost connection its last piece comes again."""

    @property
    def total(self) -> int:
        return self.settled + sum(self.granted.values())


class ResultStore:
    """Writes files of ranks below ``JOB/COMPONENT/RANK`` and keeps to the bounds."""

    def __init__(self, *, per_rank: int, per_job: int) -> None:
        """The bounds are in bytes."""
        self._per_rank = per_rank
        self._per_job = per_job
        self._accounts: dict[Path, dict[Path, _Account]] = {}
        self._totals: dict[Path, int] = {}
        """Sums over the accounts of each job: of thousands of ranks, none is looked at for the file of another."""

    def take(self, directory: Path, piece: FilePiece) -> FileAck:
        """Write a piece of a file below ``directory``; return the size so far, or why it is refused.

        Raises ProtocolError for what no agent says, and when a part of the file is missing.
        """
        parts = _parts(piece)
        try:
            with _opened(directory) as place:
                if _is_there(place, directory.name, parts, piece.size):
                    return _answer(piece, piece.size)
                if refusal := self._refusal(directory, piece):
                    return _answer(piece, 0, refusal)
                return _answer(piece, _append(place, directory.name, parts, piece))
        except OSError as error:
            return _answer(piece, 0, f"cannot be written to {directory}: {error.strerror or error}")

    def check(self, directory: Path, piece: FilePiece) -> FileAck:
        """Compare the digest of a file that is complete, and put it in its place; may take long."""
        parts, account = _parts(piece), self._account(directory)
        try:
            with account.checking, _opened(directory) as place:
                if _is_there(place, directory.name, parts, piece.size) or _verify(place, directory.name, parts, piece):
                    return _answer(piece, piece.size)
        except FileNotFoundError:  # the one that was compared before this one is gone
            return replace(_answer(piece, 0), again=True)
        except OSError as error:
            return _answer(piece, 0, f"cannot be written to {directory}: {error.strerror or error}")
        if piece.number in account.differed:
            return _answer(piece, 0, "it came twice with another content than its node has sent")
        account.differed.add(piece.number)
        return replace(_answer(piece, 0), again=True)

    def settle(self, directory: Path) -> None:
        """Close a rank's account: no more files come."""
        account = self._account(directory)
        account.settled, account.granted, account.differed = account.total, {}, set()
        partial = directory.with_name(f"{directory.name}.partial")
        with suppress(OSError):
            for left in list(partial.iterdir()):
                left.unlink()
            partial.rmdir()

    def forget(self, job_directory: Path) -> None:
        """Nothing more comes from any rank of a job."""
        self._accounts.pop(job_directory, None)
        self._totals.pop(job_directory, None)

    def _refusal(self, directory: Path, piece: FilePiece) -> str:
        """Return why a file is refused; empty when it is accepted, and its bytes are granted."""
        account = self._account(directory)
        if piece.number in account.granted:
            return "" if account.granted[piece.number] == piece.size else "its size was another one before"
        job = self._totals[directory.parents[1]]
        for sum_so_far, most, whose in ((account.total, self._per_rank, "rank"), (job, self._per_job, "job")):
            if sum_so_far + piece.size > most:
                others = f", and {show_size(sum_so_far)} of other files are there" if sum_so_far else ""
                return f"it has {show_size(piece.size)}{others}: a {whose} may leave {show_size(most)}"
        account.granted[piece.number] = piece.size
        self._totals[directory.parents[1]] += piece.size
        return ""

    def _account(self, directory: Path) -> _Account:
        job = directory.parents[1]
        if job not in self._accounts:  # after a restart of ours, what is there already counts
            ranks = (path for path in paths_matching(job, "*/*") if path.name.isdecimal() and path.is_dir())
            self._accounts[job] = {path: _Account(settled=_size(path)) for path in ranks}
            self._totals[job] = sum(one.total for one in self._accounts[job].values())
        return self._accounts[job].setdefault(directory, _Account())


def _answer(piece: FilePiece, offset: int, refusal: str = "") -> FileAck:
    return FileAck(task=piece.task, number=piece.number, offset=offset, refusal=refusal[:2000])


def _parts(piece: FilePiece) -> list[bytes]:
    parts = piece.path.split(b"/")
    if b"\0" in piece.path or any(part in {b"", b".", b".."} for part in parts):
        raise ProtocolError("the path of an output file is not one below a directory")
    if piece.offset + len(piece.data) > piece.size:
        raise ProtocolError("a piece of an output file is beyond its end")
    return parts


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    """Open the parent directory of a rank's, creating it if needed."""
    for path in reversed(directory.parents[:3]):
        path.mkdir(mode=0o700, exist_ok=True)
    place = os.open(directory.parent, _DIRECTORY)
    try:
        yield place
    finally:
        os.close(place)


@contextmanager
def _below(place: int, parts: list[bytes], *, make: bool) -> Iterator[int]:
    """Open a directory below another one, following no link."""
    inner = os.dup(place)
    try:
        for part in parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=inner)
            deeper = os.open(part, _DIRECTORY, dir_fd=inner)
            os.close(inner)
            inner = deeper
        yield inner
    finally:
        os.close(inner)


def _is_there(place: int, rank: str, parts: list[bytes], size: int) -> bool:
    try:
        with _below(place, [rank.encode(), *parts[:-1]], make=False) as inner:
            status = os.stat(parts[-1], dir_fd=inner, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == size


def _append(place: int, rank: str, parts: list[bytes], piece: FilePiece) -> int:
    """Write a piece, move a complete file without a digest to its place, and return its size so far."""
    with _below(place, [_partial(rank)], make=True) as partial:
        descriptor = os.open(str(piece.number), _FILE, 0o600, dir_fd=partial)
        try:
            size = _write(descriptor, piece)
            if size >= piece.size and piece.offset + len(piece.data) < piece.size:
                return piece.size - 1  # of all that came the digest was not compared: it comes with the last piece
            if size >= piece.size and piece.digest is None:
                _move(place, partial, descriptor, [rank.encode(), *parts], piece)
        finally:
            os.close(descriptor)
    return size


def _verify(place: int, rank: str, parts: list[bytes], piece: FilePiece) -> bool:
    """Move a complete file to its place if it has the digest that it should have, else remove it."""
    with _below(place, [_partial(rank)], make=False) as partial:
        descriptor = os.open(str(piece.number), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=partial)
        with os.fdopen(descriptor, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != piece.digest:
                os.unlink(str(piece.number), dir_fd=partial)
                return False
            _move(place, partial, file.fileno(), [rank.encode(), *parts], piece)
    return True


def _move(place: int, partial: int, descriptor: int, parts: list[bytes], piece: FilePiece) -> None:
    os.fchmod(descriptor, 0o600 | piece.mode & stat.S_IXUSR)
    with _below(place, parts[:-1], make=True) as inner:
        os.rename(str(piece.number), parts[-1], src_dir_fd=partial, dst_dir_fd=inner)


def _partial(rank: str) -> bytes:
    return f"{rank}.partial".encode()


def _write(descriptor: int, piece: FilePiece) -> int:
    status = os.fstat(descriptor)
    size = status.st_size
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(None, "what is there is not a plain file of our own")
    if piece.offset > size:
        raise ProtocolError(f"bytes {size} to {piece.offset} of an output file are missing")
    data = memoryview(piece.data)[size - piece.offset :]
    while data:
        written = os.pwrite(descriptor, data, size)
        size += written
        data = data[written:]
    return size


def _size(directory: Path) -> int:
    """Return the bytes of all files below a directory."""
    found = (path.lstat() for path in paths_below(directory))
    return sum(status.st_size for status in found if stat.S_ISREG(status.st_mode))


# -- Ledger and report of files ------------------------------------------------------------------------------

LEDGER_NAME = "files.jsonl"
NAMED = 20
"""Most files, or ranks, of each sort that a report names."""
UNKNOWN = "its job is not known any more"
STALLED = 30.0
"""Seconds without a piece of a file after which an agent is not waited for any longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFiles:
    """Report on the output files of one rank, as stored in the ledger."""

    rank: str
    """``COMPONENT/RANK``."""
    files: TaskFiles


class Results:
    """Receives output files of all jobs and keeps reports on them."""

    def __init__(
        self,
        rank_directory: Callable[[PlaceholderId, str], Path | None],
        store: ResultStore,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``rank_directory`` gives the directory for the files of a task; None: the task is not that agent's."""
        self._rank_directory = rank_directory
        self._store = store
        self._clock = clock
        self._ledgers: dict[Path, dict[str, TaskFiles]] = {}
        self._latest: dict[PlaceholderId, float] = {}
        self._opened_at = clock()

    def take(self, placeholder: PlaceholderId, piece: FilePiece) -> FileAck:
        """Store a piece of a file, or refuse the file. Raises ProtocolError for an invalid message."""
        directory = self._rank_directory(placeholder, piece.task)
        if directory is None:
            return _answer(piece, 0, UNKNOWN)
        self._latest[placeholder] = self._clock()
        return self._store.take(directory, piece)

    async def check(self, placeholder: PlaceholderId, piece: FilePiece) -> FileAck:
        """Compare the digest of a file that is complete."""
        directory = self._rank_directory(placeholder, piece.task)
        if directory is None:
            return _answer(piece, 0, UNKNOWN)
        self._latest[placeholder] = math.inf  # it is no standstill, however long it takes
        try:
            return await to_thread.run_sync(self._store.check, directory, piece)
        finally:
            self._latest[placeholder] = self._clock()

    def conclude(self, placeholder: PlaceholderId, files: TaskFiles) -> None:
        """Store the final report on a rank's files. Raises OSError."""
        directory = self._rank_directory(placeholder, files.task)
        if directory is None:
            return
        self._store.settle(directory)
        job, rank = directory.parents[1], f"{directory.parent.name}/{directory.name}"
        ledger = self._ledger(job)
        if rank not in ledger:
            _note(job, RankFiles(rank=rank, files=files))
            ledger[rank] = files
        self._latest.pop(placeholder, None)

    def concluded(self, job_directory: Path) -> Mapping[str, TaskFiles]:
        """Return the reports so far, by ``COMPONENT/RANK``."""
        return self._ledgers.get(job_directory) or read_ledger(job_directory)

    def under_way(self, placeholder: PlaceholderId, task: str) -> bool:
        """Return whether output files of a task are arriving, or may when its agent is back."""
        directory = self._rank_directory(placeholder, task)
        if directory is None or f"{directory.parent.name}/{directory.name}" in self._ledger(directory.parents[1]):
            return False
        return self._clock() - self._latest.get(placeholder, self._opened_at) < STALLED

    def forget(self, job_directory: Path) -> None:
        """Nothing more comes from any rank of a job."""
        self._store.forget(job_directory)
        self._ledgers.pop(job_directory, None)

    def _ledger(self, job_directory: Path) -> dict[str, TaskFiles]:
        if job_directory not in self._ledgers:
            self._ledgers[job_directory] = read_ledger(job_directory)
        return self._ledgers[job_directory]


def read_ledger(job_directory: Path) -> dict[str, TaskFiles]:
    """Read the reports on a job's output files, by ``COMPONENT/RANK``; unreadable ones are skipped."""
    found: dict[str, TaskFiles] = {}
    with suppress(OSError), (job_directory / LEDGER_NAME).open("rb") as lines:
        for line in lines:
            with suppress(ValidationError):
                one = adapter_of(RankFiles).validate_json(line)
                found[one.rank] = one.files
    return found


def _note(job_directory: Path, one: RankFiles) -> None:
    for path in reversed((job_directory, *job_directory.parents[:1])):
        path.mkdir(mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(job_directory / LEDGER_NAME, flags, 0o600)
    with os.fdopen(descriptor, "ab") as file:
        # Begins on a new line, too, whatever became of the one before when the disk was full.
        file.write(b"\n" + adapter_of(RankFiles).dump_json(one) + b"\n")


def _name(rank: Rank) -> str:
    return f"{rank.component}/{rank.component_rank}"


def files_report(record: JobRecord, said: Mapping[str, TaskFiles]) -> FilesReport:
    """Return the report on a job's output files from those of its ranks."""
    wanting = {component.name for component in record.job.components if component.output_files}
    ranks = [rank for rank in record.ranks if rank.component in wanting and rank.rank in record.started]
    names = [_name(rank) for rank in ranks]
    said = {name: said[name] for name in map(_name, record.ranks) if name in said}
    awaited = [name for name in names if name not in said]
    refusals = (f"{rank}: {one.path}: {one.reason}" for rank, files in said.items() for one in files.omissions)
    left_names = (f"{rank}: {name}" for rank, files in said.items() for name in files.left_names)
    return FilesReport(
        arrived=sum(files.arrived for files in said.values()),
        size=sum(files.size for files in said.values()),
        refused=sum(files.omitted for files in said.values()),
        refusals=tuple(islice(refusals, NAMED)),
        left=sum(files.left for files in said.values()),
        left_names=tuple(islice(left_names, NAMED)),
        awaited=len(awaited),
        awaited_ranks=tuple(awaited[:NAMED]),
    )

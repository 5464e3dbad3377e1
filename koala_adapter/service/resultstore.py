# SPDX-License-Identifier: Apache-2.0
"""The output files of ranks as they come in: bounded, complete or not there, readable by the user alone.

Names come from the network and are taken from directory to directory without following any link. What has arrived of a
file is in ``RANK.partial/NUMBER`` beside the rank's directory until it is whole; its size there is the whole state, so
that what is sent again after a lost connection, or after a restart of ours, is recognized.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from koala_adapter.config.formatting import show_size
from koala_adapter.errors import ProtocolError
from koala_adapter.vjm.channel import FileAck

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from koala_adapter.vjm.channel import FilePiece

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(slots=True)
class _Account:
    """Bytes of one rank: what has been granted to its files."""

    granted: dict[int, int] = field(default_factory=dict)
    """By the numbers of its files."""
    settled: int = 0
    """Of files whose numbers are forgotten."""

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

    def take(self, directory: Path, piece: FilePiece) -> FileAck:
        """Add a piece to its file below ``directory``, that of the rank; answer what is there, or why it is refused.

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

    def settle(self, directory: Path) -> None:
        """All of a rank's files are in, or refused: nothing more comes."""
        account = self._account(directory)
        account.settled, account.granted = account.total, {}
        partial = directory.with_name(f"{directory.name}.partial")
        with suppress(OSError):
            for left in list(partial.iterdir()):
                left.unlink()
            partial.rmdir()

    def forget(self, job_directory: Path) -> None:
        """Nothing more comes from any rank of a job."""
        self._accounts.pop(job_directory, None)

    def _refusal(self, directory: Path, piece: FilePiece) -> str:
        """Return why a file is not wanted; nothing, and grant it its bytes, when it is."""
        account = self._account(directory)
        if piece.number in account.granted:
            return "" if account.granted[piece.number] == piece.size else "its size was another one before"
        job = sum(one.total for one in self._accounts[directory.parents[1]].values())
        for sum_so_far, most, whose in ((account.total, self._per_rank, "rank"), (job, self._per_job, "job")):
            if sum_so_far + piece.size > most:
                others = f", and {show_size(sum_so_far)} of other files are there" if sum_so_far else ""
                return f"it has {show_size(piece.size)}{others}: a {whose} may leave {show_size(most)}"
        account.granted[piece.number] = piece.size
        return ""

    def _account(self, directory: Path) -> _Account:
        job = directory.parents[1]
        if job not in self._accounts:  # after a restart of ours, what is there already counts
            ranks = (path for path in job.glob("*/*") if path.name.isdecimal() and path.is_dir())
            self._accounts[job] = {path: _Account(settled=_size(path)) for path in ranks}
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
    """Open the directory around that of a rank; it is made when it is not there."""
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
    """Write a piece, put the file where it belongs once it is whole, and return how much of it there is."""
    number = str(piece.number)
    with _below(place, [f"{rank}.partial".encode()], make=True) as partial:
        descriptor = os.open(number, _FILE, 0o600, dir_fd=partial)
        try:
            size = _write(descriptor, piece)
            if size >= piece.size:
                os.fchmod(descriptor, 0o600 | piece.mode & stat.S_IXUSR)
                with _below(place, [rank.encode(), *parts[:-1]], make=True) as inner:
                    os.rename(number, parts[-1], src_dir_fd=partial, dst_dir_fd=inner)
        finally:
            os.close(descriptor)
    return size


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
    found = (path.lstat() for path in directory.rglob("*"))
    return sum(status.st_size for status in found if stat.S_ISREG(status.st_mode))

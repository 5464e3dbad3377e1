# SPDX-License-Identifier: Apache-2.0
"""Files of the ranks' output: each byte once, in order, readable by the user alone.

The size of a file is the whole state: what agents send again after a lost connection, or after a restart of ours, is
recognized by its offset. Files are opened for each piece, since thousands of ranks would not fit into the descriptors.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from koala_adapter.errors import ProtocolError

if TYPE_CHECKING:
    from pathlib import Path

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class OutputStore:
    """Writes pieces of streams to files of mode 0600 in directories of mode 0700."""

    def append(self, path: Path, offset: int, data: bytes) -> int:
        """Add ``data``, which begins ``offset`` bytes after the start of the stream, and return the new size.

        What the file has already is left out. Raises ProtocolError when something between is missing, and OSError when
        the file cannot be written (no space, or not a plain file of ours).
        """
        descriptor = self._open(path)
        try:
            size = os.fstat(descriptor).st_size
            if offset > size:
                raise ProtocolError(f"{path}: bytes {size} to {offset} of the stream are missing")
            return _write(descriptor, size, data[size - offset :])
        finally:
            os.close(descriptor)

    def skip(self, path: Path, offset: int) -> int:
        """Make the file at least ``offset`` bytes long and return its size: NUL bytes stand for what is lost.

        That is what any program sees whose output file is emptied by somebody while it writes on.
        """
        descriptor = self._open(path)
        try:
            size = os.fstat(descriptor).st_size
            if size < offset:
                os.ftruncate(descriptor, offset)
            return max(size, offset)
        finally:
            os.close(descriptor)

    def _open(self, path: Path) -> int:
        try:
            descriptor = os.open(path, _FLAGS, 0o600)
        except FileNotFoundError:
            _make_directories(path.parent)
            descriptor = os.open(path, _FLAGS, 0o600)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            os.close(descriptor)
            raise PermissionError(f"{path} is not a plain file of our own")
        return descriptor


def _write(descriptor: int, size: int, data: bytes) -> int:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, size)
        size += written
        view = view[written:]
    return size


def _make_directories(directory: Path) -> None:
    """Like mkdir -p, but every directory that is made has mode 0700 (``Path.mkdir`` gives it to the last one only)."""
    missing = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for new in reversed(missing):
        new.mkdir(mode=0o700, exist_ok=True)

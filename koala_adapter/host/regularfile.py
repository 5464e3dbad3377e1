# SPDX-License-Identifier: Apache-2.0
"""Reading files whose names come from users: a FIFO, a device or an endless file must not stop the process."""

from __future__ import annotations

import errno
import glob
import os
import stat
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def open_regular(path: str) -> int:
    """Return a descriptor of a regular file. Raises OSError, with ``filename``, for any other file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file", path)


def read_regular(path: str, most: int) -> tuple[bytes, int]:
    """Return the content of a regular file of at most ``most`` bytes, and its permission bits.

    Raises OSError, with ``filename``, for any other file.
    """
    descriptor = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most // 1024**2} MiB, or had less when it was checked", path)
    return content, stat.S_IMODE(status.st_mode)


def paths_matching(directory: Path, pattern: str) -> list[Path]:
    """Return what matches a pattern below a directory, which another process may change meanwhile.

    ``Path.glob`` of Python 3.11 raises FileNotFoundError where a directory that it has seen is removed before it is
    read.
    """
    return [directory / name for name in glob.iglob(pattern, root_dir=directory)]  # noqa: PTH207


def paths_below(directory: Path) -> Iterator[Path]:
    """Yield all paths below a directory, which another process may change meanwhile; links are not followed.

    ``Path.rglob`` of Python 3.11 raises FileNotFoundError as ``Path.glob`` does.
    """
    for above, directories, files in os.walk(directory):
        yield from (Path(above, name) for name in (*directories, *files))


MOST_FILES = 10_000
"""Files below one directory."""


@dataclass(frozen=True, slots=True)
class FileBelow:
    """A file below a directory."""

    path: str
    below: str
    """Path relative to the directory."""
    size: int


def files_below(directory: str) -> list[FileBelow]:
    """Return the regular files below a directory, by name; links to files count as these.

    Raises OSError, with ``filename``, for whatever is neither that nor a directory, and for too many files.
    """
    found: list[FileBelow] = []
    open_ones = [""]
    while open_ones:
        above = open_ones.pop()
        with os.scandir(Path(directory, above)) as entries:
            for entry in entries:
                below = f"{above}/{entry.name}".lstrip("/")
                if entry.is_dir(follow_symlinks=False):
                    open_ones.append(below)
                    continue
                status = entry.stat()
                if below.encode("utf-8", "replace") != os.fsencode(below):
                    raise OSError(errno.EILSEQ, "its name is not UTF-8", ascii(entry.path))
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(errno.EINVAL, "it is neither a regular file, nor a link to one", entry.path)
                found.append(FileBelow(path=str(Path(directory, below)), below=below, size=status.st_size))
        if len(found) > MOST_FILES:
            raise OSError(errno.EFBIG, f"it has more than {MOST_FILES} files: pack them into one", directory)
    return sorted(found, key=attrgetter("below"))

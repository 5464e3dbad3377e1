# SPDX-License-Identifier: Apache-2.0
"""The directory of a test system, owned by the process that made it, so that what a killed test left can be removed.

pytest's own temporary directories will not do: they are closed to other users, whose jobs must enter these.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.real.systems.processes import find_processes, kill_processes

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "koala-system-"

SETTLING_SECONDS = 60.0
"""Age below which a directory without an owner may be one whose maker has not yet locked it."""


def _lock(path: Path) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _clear(path: Path) -> None:
    """End every process that uses the directory, then delete it."""
    kill_processes(lambda: find_processes(lambda process: process.uses(path)))
    shutil.rmtree(path, ignore_errors=True)


def _abandoned(*, older_than: float) -> Iterator[SystemDirectory]:
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            status = path.lstat()
            if status.st_uid == os.getuid() and time.time() - status.st_mtime >= older_than:
                descriptor = _lock(path)
                if descriptor is not None:
                    yield SystemDirectory(path, descriptor)


def remove_abandoned(*, older_than: float = SETTLING_SECONDS) -> None:
    """End and delete the systems whose owners have ended without doing so, but not those younger than some seconds."""
    for directory in _abandoned(older_than=older_than):
        directory.remove()


class SystemDirectory:
    """A directory that all users may enter; it and its processes go with `remove`, or when a later test finds them."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Take over a directory that is locked already; use `create` instead."""
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def create(cls, name: str) -> Self:
        """Make a new directory, after removing systems that nobody owns any more."""
        remove_abandoned()
        path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{name}-"))
        path.chmod(0o755)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return cls(path, descriptor)

    def remove(self) -> None:
        """End all processes of the system and delete the directory; harmless when done twice."""
        if self._descriptor >= 0:
            _clear(self.path)
            os.close(self._descriptor)
            self._descriptor = -1

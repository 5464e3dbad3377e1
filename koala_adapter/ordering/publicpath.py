# SPDX-License-Identifier: Apache-2.0
"""A Unix socket that every user of the host may connect to, where no other user can put one in its place."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from koala_adapter.errors import ConfigurationError, ServiceRunningError
from koala_adapter.host.privatedirectory import user_name, weakness
from koala_adapter.net.unixsocket import reachable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BACKLOG = 256
"""Who has connected and is not yet taken in; others wait in the kernel."""
EVERYBODY = 0o666
NOBODY = frozenset({errno.ECONNREFUSED, errno.ENOENT})
"""What connecting ends with where nobody listens any more."""


class PublicPath:
    """Where such a socket is."""

    def __init__(self, path: Path) -> None:
        """Nothing is made or looked at yet."""
        self._path = path

    @contextmanager
    def listening(self) -> Iterator[socket.socket]:
        """Listen while the context lasts, without blocking. Raises ConfigurationError, ServiceRunningError."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            try:
                made = self._bind(listener)
            except OSError as error:
                raise self._unusable(error.strerror or str(error)) from error
            try:
                yield listener
            finally:
                self._remove(made)

    def _bind(self, listener: socket.socket) -> int:
        """Begin to listen; return the number of the socket's inode. Raises OSError."""
        self._check()
        with reachable(self._path) as name:
            self._clear(name)
            listener.bind(name)
        self._path.chmod(EVERYBODY)
        listener.listen(BACKLOG)
        listener.settimeout(0)
        return self._path.lstat().st_ino

    def _check(self) -> None:
        """Refuse a directory in which another user could put something else in its place. Raises OSError."""
        directory = self._path.parent
        found = weakness(self._path)
        if found:
            raise self._unusable(found)
        status = directory.stat()
        if status.st_uid != os.geteuid():
            raise self._unusable(f"{directory} belongs to {user_name(status.st_uid)}, not to you")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            mode = stat.S_IMODE(status.st_mode)
            raise self._unusable(f"others can write to {directory} (mode {mode:04o})")

    def _clear(self, name: str) -> None:
        """Remove the socket that a killed process has left. Raises OSError."""
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self._path.lstat().st_mode):
                raise self._unusable("there is a file of that name that is no socket")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
                other.settimeout(0)
                if other.connect_ex(name) not in NOBODY:
                    raise ServiceRunningError(
                        f"somebody answers at {self._path} already", hint="give each cluster a socket of its own"
                    )
            self._path.unlink()

    def _remove(self, made: int) -> None:
        """Remove what we made, unless it is another's by now."""
        with suppress(OSError):
            if self._path.lstat().st_ino == made:
                self._path.unlink()

    def _unusable(self, why: str) -> ConfigurationError:
        hint = f"give a path in a directory that only {user_name(os.geteuid())} can write to and others can enter"
        return ConfigurationError(
            f"cannot listen at {self._path}: {why}", hint=f"{hint}, such as one made by `install -d -m 0755 /run/koala`"
        )

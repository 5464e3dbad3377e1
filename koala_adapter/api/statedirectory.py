# SPDX-License-Identifier: Apache-2.0
"""The state directory of a service: private to its user, owned by one process at a time, and where its socket is."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from koala_adapter.errors import ConfigurationError, ServiceRunningError
from koala_adapter.host.privatedirectory import make_private_directory, user_name, weakness
from koala_adapter.net.unixsocket import checked_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JOURNAL_NAME = "journal.sqlite"
LOCK_NAME = "service.lock"
LOG_NAME = "service.log"
SOCKET_NAME = "koala.sock"
LEFT_BY_THE_KILLED = 5.0
"""Seconds for which a directory is waited for whose owner is dead."""
_OWNER = re.compile(r"\(pid (\d{1,9})\)")


def check_directory(directory: Path) -> None:
    """Check that a state directory, if it is there, is this user's, and that no other user can change that.

    Raises ConfigurationError.
    """
    try:
        found = weakness(directory)
        if found:
            raise _unusable(directory, found)
        status = directory.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unusable(directory, error.strerror or str(error)) from error
    if not stat.S_ISDIR(status.st_mode):
        raise _unusable(directory, "it is no directory")
    if status.st_uid != os.geteuid():
        raise _unusable(directory, f"it belongs to {user_name(status.st_uid)}, not to you")


def prepare_directory(directory: Path) -> None:
    """Make the state directory private. Raises ConfigurationError."""
    check_directory(directory)
    try:
        make_private_directory(directory)
    except OSError as error:
        raise _unusable(directory, error.strerror or str(error)) from error


def _unusable(directory: Path, why: str) -> ConfigurationError:
    hint = "give a private directory of your own with --state or $KOALA_STATE"
    return ConfigurationError(f"cannot use the state directory {directory}: {why}", hint=hint)


@contextmanager
def ownership(
    directory: Path,
    role: str = "koala serve",
    *,
    way_out: str = "use it, stop it with `koala serve --stop`",
    inherited: int | None = None,
) -> Iterator[int]:
    """Own a state directory; the kernel gives it free when the last process that has the descriptor ends.

    ``role``: what others are told of the owner, ``way_out``: what they may do beside taking another directory,
    ``inherited``: the descriptor with which another process owned it and started this one. Yields the descriptor.
    Raises ServiceRunningError when another process owns it.
    """
    prepare_directory(directory)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(directory / LOCK_NAME, flags, 0o600) if inherited is None else inherited
        fcntl.fcntl(descriptor, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    except OSError as error:
        raise _unusable(directory, error.strerror or str(error)) from error
    try:
        _lock(descriptor, directory, way_out)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{role} (pid {os.getpid()})\n".encode(), 0)
        except OSError as error:
            raise _unusable(directory, f"{LOCK_NAME}: {error.strerror}") from error
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: Path, way_out: str) -> None:
    """Lock the file of a state directory; wait for what an owner that was killed had just begun to start.

    A new process has the descriptor until it runs its program, and nobody tells when that is.
    """
    until = time.monotonic() + LEFT_BY_THE_KILLED
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            if _runs(owner) or time.monotonic() >= until:
                raise ServiceRunningError(
                    f"{owner or 'a koala service'} already owns {directory}",
                    hint=f"{way_out}, or give another --state directory",
                ) from None
            time.sleep(0.02)
        else:
            return


def _runs(owner: str) -> bool:
    """Tell whether the process that says it owns a directory may still be there."""
    said = _OWNER.search(owner)
    if said is None:
        return True
    try:
        os.kill(int(said[1]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True


def wait_until_unowned(directory: Path) -> None:
    """Wait until no process owns a state directory."""
    descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def socket_path(directory: Path) -> Path:
    """Return the path of the socket in a state directory. Raises ConfigurationError when the kernel cannot take it."""
    return checked_path(directory / SOCKET_NAME)

# SPDX-License-Identifier: Apache-2.0
"""Directories for secrets: no other user may be able to replace any part of the path.

A user who can write to a directory can replace what is in it by a link or a directory; in a sticky directory such as
/tmp, what is not there yet. So, as in ssh (StrictModes, sshd_config(5)), every directory on the way must belong to root
or to this user and be writable for no others; where it is sticky, the entry that is used must belong to root or to this
user. Links are followed one by one under the same rule.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import pwd
import shutil
import stat
import tempfile
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_LINKS = 40
"""As many as the kernel follows, path_resolution(7)."""


def weakness(path: Path) -> str:
    """Return which part of a path another user could replace; empty when none, or when the path does not exist.

    Whose the directory at the end is, and its mode, are left to the caller. Raises OSError.
    """
    whole = path.absolute()
    place, ahead = whole.parents[-1], deque(whole.parts[1:])
    links = 0
    while ahead:
        part = ahead.popleft()
        if part == "..":
            place = place.parent
            continue
        found = _problem_of_directory(place, entry=place / part)
        if found:
            return found
        try:
            status = (place / part).lstat()
        except FileNotFoundError:
            return ""
        if not stat.S_ISLNK(status.st_mode):
            place /= part
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = (place / part).readlink()
        place = place.parents[-1] if target.is_absolute() and place.parents else place
        ahead.extendleft(reversed(target.parts[1:] if target.is_absolute() else target.parts))
    return ""


def make_directory(path: Path) -> None:
    """Make a directory, and those above it that are not there, with mode 0700; one that is there keeps its mode.

    Raises OSError; PermissionError whose ``strerror`` says what another user could replace on the way to it.
    """
    _require_strong(path)
    for directory in (*reversed(path.absolute().parents), path):
        if not directory.is_dir():
            with suppress(FileExistsError):
                directory.mkdir(mode=0o700)
    # Again: in a sticky directory somebody else may have been faster.
    _require_strong(path)


def make_private_directory(path: Path) -> None:
    """Make a directory of mode 0700, or give that mode to an existing one. Raises OSError."""
    make_directory(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"it belongs to {user_name(status.st_uid)}, not to you", str(path))
        if stat.S_IMODE(status.st_mode) != stat.S_IRWXU:
            os.fchmod(descriptor, stat.S_IRWXU)
    finally:
        os.close(descriptor)


@contextmanager
def transient_directory(parent: Path) -> Iterator[Path]:
    """Make a private directory in ``parent`` for a block, which is removed at its end.

    One that a killed process could not remove is removed by the next call with the same ``parent``. Raises OSError as
    above.
    """
    make_private_directory(parent)
    with _locked(parent, fcntl.LOCK_EX):
        for left in parent.iterdir():
            with suppress(OSError), _locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB):  # who uses it has it locked
                shutil.rmtree(left)
        directory = Path(tempfile.mkdtemp(dir=parent))
        stack = ExitStack()
        stack.enter_context(_locked(directory, fcntl.LOCK_EX))
    with stack:
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _locked(directory: Path, how: int) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def user_name(user: int) -> str:
    """Return the login name of a user id; ``user NUMBER`` when it has none."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _require_strong(path: Path) -> None:
    found = weakness(path)
    if found:
        raise PermissionError(errno.EPERM, found, str(path))


def _problem_of_directory(directory: Path, *, entry: Path) -> str:
    """Return which other user could replace entries of a directory; empty when none."""
    status = directory.stat()
    if status.st_uid not in {0, os.geteuid()}:
        return f"{directory} belongs to {user_name(status.st_uid)}, who can replace what is in it"
    writers = _other_writers(status)
    if not writers:
        return ""
    if not status.st_mode & stat.S_ISVTX:
        mode = f"mode {stat.S_IMODE(status.st_mode):04o}"
        return f"{writers} can write to {directory} ({mode}) and so replace what is in it"
    with suppress(FileNotFoundError):
        made = entry.lstat()
        if made.st_uid not in {0, os.geteuid()} and stat.S_ISLNK(made.st_mode):
            return f"{entry} is a symbolic link of {user_name(made.st_uid)}, who can point it anywhere"
    return ""


def _other_writers(status: os.stat_result) -> str:
    if status.st_mode & stat.S_IWOTH:
        return "everybody"
    if not status.st_mode & stat.S_IWGRP or status.st_gid == 0:
        return ""
    try:
        group = grp.getgrgid(status.st_gid)
    except KeyError:
        return f"group {status.st_gid}"
    ours = user_name(os.geteuid())
    # A group of the user's own, which many systems make for each user and let write by default (umask 002).
    private = group.gr_name == ours and not set(group.gr_mem) - {ours, "root"}
    return "" if private else f"group {group.gr_name}"

# SPDX-License-Identifier: Apache-2.0
"""Unix sockets of ours: paths that the kernel takes, and who is at the other end."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

from koala_adapter.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONGEST_SOCKET_PATH = 107
"""Bytes of sun_path less the closing zero, unix(7)."""


def checked_path(path: Path) -> Path:
    """Return the path of a socket in a state directory. Raises ConfigurationError when the kernel cannot take it."""
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
        raise ConfigurationError(
            f"the path of the socket is too long for a Unix socket: {path}",
            hint="choose a shorter state directory with --state or $KOALA_STATE",
        )
    return path


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """Give a name of a socket by which the kernel takes it, however long its path is, while the context lasts.

    A long path is named by a descriptor of its directory (proc(5), /proc/self/fd). Raises OSError when the directory is
    not there.
    """
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        yield os.fspath(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def peer_user(connection: socket.socket) -> int:
    """Return the user id of the peer of a Unix socket (SO_PEERCRED, unix(7)). Raises OSError."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return int(user)


def same_user(connection: socket.socket) -> bool:
    """Tell whether the peer of a Unix socket has our user id."""
    return peer_user(connection) == os.geteuid()

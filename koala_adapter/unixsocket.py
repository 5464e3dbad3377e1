# SPDX-License-Identifier: Apache-2.0
"""What our Unix sockets have in common: paths the kernel takes, and nobody in but the same user."""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from anyio.abc import SocketStream

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


def same_user(stream: SocketStream) -> bool:
    """Tell whether the peer of a Unix socket has our user id (SO_PEERCRED, unix(7))."""
    raw: socket.socket = stream.extra(anyio.abc.SocketAttribute.raw_socket)
    credentials = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return bool(user == os.geteuid())

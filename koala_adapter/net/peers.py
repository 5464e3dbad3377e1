# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a Unix socket of ours: nobody gets in but the same user."""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from anyio.abc import SocketStream


def same_user(stream: SocketStream) -> bool:
    """Tell whether the peer of a Unix socket has our user id (SO_PEERCRED, unix(7))."""
    raw: socket.socket = stream.extra(anyio.abc.SocketAttribute.raw_socket)
    credentials = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return bool(user == os.geteuid())

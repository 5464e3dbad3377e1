# SPDX-License-Identifier: Apache-2.0
"""Addresses, ports and Unix sockets of this machine, with the standard library only.

In order: loopback addresses, choosing a free TCP port, and Unix sockets: paths that the kernel accepts, and the user at
the other end.
"""

from __future__ import annotations

import ipaddress
import os
import random
import socket
import struct
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

from koala_adapter.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# -- Loopback addresses --------------------------------------------------------------------------------------


def is_loopback(address: str) -> bool:
    """Tell whether only this machine can connect to an address."""
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return address == "localhost"


# -- Choosing a TCP port -------------------------------------------------------------------------------------

LASTING_PORTS = range(20_000, 32_768)
"""For who must be found at the same port after a restart: below the range from which Linux serves outgoing connections
(ip_local_port_range, ip(7)), so that nobody gets it by chance meanwhile."""
UNLIKELY_PORTS = range(10_000, 20_000)
"""Below the ports that Linux gives to outgoing connections and to who asks for any (ip_local_port_range, ip(7)), and
those of control centers: one of these may be somebody else's before whoever needs it comes to take it."""


def lasting_ports() -> list[int]:
    """Return ports to be tried, in this order, by who must be found at the same one after a restart."""
    return random.SystemRandom().sample(LASTING_PORTS, 20)


def free_port() -> int:
    """Return a TCP port of this machine that nobody uses at this moment, nor will by chance soon."""
    for port in random.SystemRandom().sample(UNLIKELY_PORTS, 20):
        with suppress(OSError):
            return _tried(port)
    return _tried(0)


def _tried(port: int) -> int:
    """Return a port at which nobody listens; 0: any. Raises OSError."""
    with closing(socket.create_server(("127.0.0.1", port))) as listener:
        return int(listener.getsockname()[1])


# -- Unix sockets: paths that the kernel accepts, and the user of the peer -----------------------------------

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

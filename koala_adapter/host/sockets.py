# SPDX-License-Identifier: Apache-2.0
"""Addresses, ports and Unix sockets of this machine, with the standard library only.

In order: loopback addresses, choosing a free TCP port, the user of a TCP connection from this machine, and Unix
sockets: paths that the kernel accepts, and the user at the other end.
"""

from __future__ import annotations

import ipaddress
import os
import random
import socket
import struct
import sys
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from koala_adapter.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator


# -- Loopback addresses --------------------------------------------------------------------------------------


def is_loopback(address: str) -> bool:
    """Tell whether only this machine can connect to an address."""
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return address == "localhost"


# -- Choosing a TCP port -------------------------------------------------------------------------------------

LASTING_PORTS = range(20_000, 32_768)
"""For servers that must keep their port over a restart: below the range from which Linux serves outgoing connections
(ip_local_port_range, ip(7)), so that no other program gets it by chance meanwhile."""
UNLIKELY_PORTS = range(10_000, 20_000)
"""For ports that are chosen now and bound later: below those that Linux gives to outgoing connections and to programs
that ask for any port (ip_local_port_range, ip(7)), and below those of control centers."""


def lasting_ports() -> list[int]:
    """Return candidate ports in order, for a server that must get the same port after a restart."""
    return random.SystemRandom().sample(LASTING_PORTS, 20)


def free_port() -> int:
    """Return a TCP port of this machine that is unused and unlikely to be taken soon."""
    for port in random.SystemRandom().sample(UNLIKELY_PORTS, 20):
        with suppress(OSError):
            return _tried(port)
    return _tried(0)


def _tried(port: int) -> int:
    """Bind and release a port (0: any) and return it. Raises OSError."""
    with closing(socket.create_server(("127.0.0.1", port))) as listener:
        return int(listener.getsockname()[1])


# -- The user of a TCP connection from this machine ----------------------------------------------------------

TCP_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""Sockets of this network namespace, proc(5); one of IPv6 may have an IPv4 address (ipv6(7))."""


def local_tcp_user(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the id of the user who owns the client's socket of a local TCP connection.

    None: the socket is not on this machine, or is closed. The kernel lists a socket that its owner has
    closed as root's, with inode 0; such an entry tells nothing.
    """
    wanted = {f"{one} {two}" for one, two in zip(_table_forms(*client), _table_forms(*server), strict=False)}
    for table in TCP_TABLES:
        with suppress(OSError), table.open(encoding="ascii", errors="replace") as rows:
            for row in rows:
                if any(one in row for one in wanted):
                    _, _, _, _, _, _, _, user, _, inode, *_ = row.split()
                    return int(user) if inode != "0" else None
    return None


def _table_forms(host: str, port: int) -> tuple[str, ...]:
    """Return an address and port as /proc/net/tcp and tcp6 write them."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    plain = mapped or address
    if isinstance(plain, ipaddress.IPv6Address):
        return (f"{_table_words(plain.packed)}:{port:04X}",)
    long = b"\0" * 10 + b"\xff\xff" + plain.packed
    return f"{_table_words(plain.packed)}:{port:04X}", f"{_table_words(long)}:{port:04X}"


def _table_words(packed: bytes) -> str:
    words = (packed[start : start + 4] for start in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


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
    """Yield a path for a socket that is short enough for the kernel, however long the real one is.

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

# SPDX-License-Identifier: Apache-2.0
"""TCP sockets of this node, as /proc shows them: who listens where, and who is at the other end of a connection."""

import errno
import os
import selectors
import socket
import struct

from koala_adapter.vjm.agent.processes import read_bytes

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple


LISTEN = "0A"
LOCALHOST = ("0100007F", "0" * 24 + "01000000")
MAPPED = "0000000000000000FFFF0000"  # before the address of an IPv4 connection on an IPv6 socket
RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: closing sends a reset
ANY = ("00000000", "0" * 32, MAPPED + "00000000")


def tcp_sockets() -> "Iterator[Tuple[str, str, int, str, int, int]]":
    """Yield state, local address and port, remote end, user and inode of all sockets (proc(5)).

    Addresses are in hexadecimal, those of IPv4 always as such. The inode is 0 for a socket that no process has, because
    it is closed or not accepted yet; the user says nothing then.
    """
    for path in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in read_bytes(path).decode("ascii", "replace").splitlines()[1:]:
            fields = line.split()
            local, _, port = fields[1].partition(":")
            if local.startswith(MAPPED):
                local = local[len(MAPPED) :]
            yield fields[3], local, int(port, 16), fields[2], int(fields[7]), int(fields[9])


def in_hexadecimal(address: "Tuple[Any, ...]") -> str:
    """Return an address and port as the kernel shows them."""
    family, words = (socket.AF_INET6, "=4I") if ":" in address[0] else (socket.AF_INET, "=I")
    numbers = struct.unpack(words, socket.inet_pton(family, address[0].partition("%")[0]))
    return "{}:{:04X}".format("".join(map("{:08X}".format, numbers)), address[1])


def process_at(connection: socket.socket) -> "Optional[Tuple[int, int]]":
    """Return user and inode of a process' socket at the other end of a connection on this node; None: it has gone."""
    try:
        theirs, ours = in_hexadecimal(connection.getpeername()), in_hexadecimal(connection.getsockname())
    except OSError:  # a reset has ended the connection
        return None
    for _, local, port, remote, user, inode in tcp_sockets():
        if "{}:{:04X}".format(local, port) == theirs and remote.endswith(ours):
            return (user, inode) if inode else None
    return None


def sockets_of(processes: "List[int]") -> "Set[int]":
    """Return the inodes of the sockets that processes have open."""
    found = set()
    for pid in processes:
        try:
            names = os.listdir("/proc/{}/fd".format(pid))
        except OSError:
            continue
        for name in names:
            try:
                target = os.readlink("/proc/{}/fd/{}".format(pid, name))
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(int(target[8:-1]))
    return found


def owners_of(inodes: "Set[int]") -> "Dict[int, int]":
    """Return processes of this node that have sockets open, by the inodes of these."""
    owners: "Dict[int, int]" = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc") if inodes else ())):
        owners.update(dict.fromkeys(inodes & sockets_of([pid]), pid))
        if len(owners) == len(inodes):
            break
    return owners


def readable_address(local: str) -> str:
    """Return the address at which this node connects to a listening address in hexadecimal."""
    if local in ANY:
        return "::1" if local == "0" * 32 else "127.0.0.1"
    if len(local) > 8:  # noqa: PLR2004 - IPv6 in hexadecimal
        words = struct.unpack("=4I", struct.pack(">4I", *(int(local[at : at + 8], 16) for at in range(0, 32, 8))))
        return socket.inet_ntop(socket.AF_INET6, struct.pack(">4I", *words))
    return socket.inet_ntoa(struct.pack("=I", int(local, 16)))


def connecting(address: str, port: int) -> socket.socket:
    """Return a socket that is being connected to a numerical address. Raises OSError."""
    numeric = socket.AI_NUMERICHOST
    family, _, _, _, place = socket.getaddrinfo(address, port, 0, socket.SOCK_STREAM, 0, numeric)[0]
    return connecting_to(family, place)


def connecting_to(family: int, place: "Tuple[Any, ...]") -> socket.socket:
    """Return a socket that is being connected to an address of a family. Raises OSError."""
    connection = socket.socket(family, socket.SOCK_STREAM)
    connection.setblocking(False)  # noqa: FBT003 - the library's own way
    begin_to_connect(connection, place)
    return connection


def begin_to_connect(connection: socket.socket, place: "Tuple[Any, ...]") -> None:
    """Connect a socket to an address, without waiting until it is connected. Raises OSError, and closes it then."""
    error = connection.connect_ex(place)
    if error not in (0, errno.EINPROGRESS):
        connection.close()
        raise OSError(error, os.strerror(error))


def reset(connection: socket.socket) -> None:
    """Have a connection end with a reset when it is closed."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    except OSError:
        pass


def is_connected(connection: socket.socket) -> bool:
    """Tell whether a connection was made, and has not been reset."""
    try:
        connection.getpeername()
    except OSError:
        return False
    return True


def refuse(connection: socket.socket) -> None:
    """End a connection with a reset."""
    reset(connection)
    connection.close()


class Watched:
    """A socket whose readiness is told to the loop's selector."""

    def __init__(
        self, selector: selectors.BaseSelector, connection: socket.socket, act: "Callable[[int], None]"
    ) -> None:
        self._selector = selector
        self._socket = connection
        self._act = act
        self._interest = 0

    def watch(self, interest: int) -> None:
        """Have ``act`` called when the socket is ready for the selector events in ``interest``; 0: never."""
        if interest == self._interest:
            return
        if self._interest:
            self._selector.unregister(self._socket)
        if interest:
            self._selector.register(self._socket, interest, self._act)
        self._interest = interest

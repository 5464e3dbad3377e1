# SPDX-License-Identifier: Apache-2.0
"""Attempts of processes to connect to an address of this node, which are answered once it is known whose they are.

A listener that accepts can learn whose a connection is only while the process has it open (proc(5)): one that sends
something and ends at once has gone by then. So these listeners accept nothing. The kernel drops what comes to them, and
a process waits in connect(2), where /proc/net/tcp shows it with its user. The answer is a connection that is made in
the other direction, from the address and port of the listener, which TCP joins with that of the process ("simultaneous
open", RFC 9293, section 3.5). For the process it is the connection that it has asked for.
"""

import errno
import os
import socket

from koala_adapter.vjm.agent.node import clock
from koala_adapter.vjm.agent.processes import environment_of, read_bytes
from koala_adapter.vjm.agent.sockets import (
    begin_to_connect,
    in_hexadecimal,
    is_connected,
    owners_of,
    readable_address,
    refuse,
    tcp_sockets,
)

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Optional, Set, Tuple


PAUSE, SHORT_PAUSE = 0.05, 0.005  # seconds between two looks, and while connections are being made
BUSY = 1.0  # seconds after an attempt in which more of them are expected
OTHERS = 0.25  # seconds after which any agent of the node may answer a process that no task has started
ABANDONED = 20.0  # seconds after which any agent may answer a process of a task whose own agent has not
OF_TASKS = b"KOALA_STDOUT="  # in the environment of each process of a task
SYN_SENT = "02"
ENDED = ("04", "05", "06")  # FIN_WAIT1, FIN_WAIT2 and TIME_WAIT: of one that its process has closed
IP_MINTTL = 21  # of <linux/in.h>: packets with a lower time to live are dropped
LONGEST_TTL = 255
DEFAULT_TTL = "/proc/sys/net/ipv4/ip_default_ttl"
COUNTERS = "/proc/self/net/netstat"
DROPPED = b"TCPMinTTLDrop"


def dropping_listener(address: str, port: int) -> socket.socket:
    """Return a socket that keeps attempts to connect to an address and port waiting. Raises OSError.

    Others of the same user may listen there, too.
    """
    if read_bytes(DEFAULT_TTL).strip() == b"%d" % LONGEST_TTL:
        raise OSError(errno.EOPNOTSUPP, "net.ipv4.ip_default_ttl is 255; relayed connections need 254 or less")
    listener = bound(address, port)
    try:
        listener.setsockopt(socket.IPPROTO_IP, IP_MINTTL, LONGEST_TTL)
        listener.listen(0)
    except OSError:
        listener.close()
        raise
    return listener


def bound(address: str, port: int) -> socket.socket:
    """Return a socket with an address that others of the same user have as well. Raises OSError."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setblocking(False)  # noqa: FBT003 - the library's own way
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((address, port))
    except OSError:
        made.close()
        raise
    return made


class Attempt:
    """A process of this user, or of root, that waits for its connection to a listener."""

    def __init__(self, place: "Tuple[str, int]", end: "Tuple[str, int]", process: "Tuple[int, int]") -> None:
        """``place``: of the listener. ``end``: of the process. ``process``: user and inode of its socket."""
        self.place = place
        self.process = process
        self.inode = process[1]
        self.waits = 0.0  # seconds since it was first seen
        self._end = end

    @property
    def ends(self) -> "Tuple[str, str]":
        """End of the process and of the listener, in hexadecimal."""
        return in_hexadecimal(self._end), in_hexadecimal(self.place)

    def connect(self) -> socket.socket:
        """Return a connection to its end, whosever that is by now. Raises OSError, also if another agent has one."""
        connection = bound(*self.place)
        begin_to_connect(connection, self._end)
        return connection


class Attempts:
    """Finds attempts to connect.

    Sockets are looked at when the kernel, which counts what it drops, has dropped something.
    """

    def __init__(self) -> None:
        self._dropped: "Optional[bytes]" = None
        self._since: "Dict[int, float]" = {}  # when those that wait were first seen, by inode
        self._busy = 0.0  # until when more are expected
        self._began = clock()  # when the latest look did

    @property
    def pause(self) -> float:
        """Seconds until the next look, once all is done about what the latest one has found."""
        now = clock()
        # Many sockets or processes of a node make a look and its answers long: at most half of a processor is used.
        return max(SHORT_PAUSE if now < self._busy else PAUSE, now - self._began)

    def look(self, places: "Iterable[Tuple[str, int]]") -> "List[Attempt]":
        """Return the attempts of this user and of root to connect to one of the addresses and ports."""
        now = self._began = clock()
        dropped = count_of(DROPPED)
        if dropped is not None and dropped == self._dropped and not self._since:
            return []
        self._dropped = dropped
        wanted = {in_hexadecimal(place): place for place in places}
        found = []
        for state, local, port, remote, user, inode in tcp_sockets():
            place = wanted.get(remote[-13:]) if state == SYN_SENT and user in (os.geteuid(), 0) else None
            if place is not None:
                found.append(Attempt(place, (readable_address(local), port), (user, inode)))
        self._since = {one.inode: self._since.get(one.inode, now) for one in found}
        if found:
            self._busy = now + BUSY
        for one in found:
            one.waits = now - self._since[one.inode]
        return found


def left_over(attempts: "Iterable[Attempt]") -> "Set[int]":
    """Return the inodes of attempts that any agent, or koala's service, may answer.

    They are of processes that no task has started, or of a task whose own agent has not answered in time.
    """
    waits = {one.inode: one.waits for one in attempts if one.waits >= OTHERS}
    owners = owners_of({inode for inode, seconds in waits.items() if seconds < ABANDONED})
    return set(waits) - {inode for inode, pid in owners.items() if OF_TASKS in environment_of(pid)}


def answered(attempts: "Iterable[Attempt]") -> "List[Tuple[Attempt, socket.socket]]":
    """Return attempts with their connections, without those that were given up or are answered by another agent.

    A port that its process has given up may be another user's by then, whose socket has no inode before it is accepted.
    So the socket at the other end must be that of the process, or one that was closed since it was connected. All are
    connected before sockets are looked at, once for all: that takes long on a node with many sockets.
    """
    made = {}
    for attempt in attempts:
        try:
            made[attempt.ends] = attempt, attempt.connect()
        except OSError:
            continue
    found = []
    for state, local, port, remote, user, inode in tcp_sockets() if made else ():
        ends = "{}:{:04X}".format(local, port), remote[-13:]
        if ends in made:
            attempt, connection = made[ends]
            if (user, inode) == attempt.process or (state in ENDED and is_connected(connection)):
                found.append(made.pop(ends))
    for _, connection in made.values():
        refuse(connection)
    return found


def count_of(name: bytes) -> "Optional[bytes]":
    """Return a counter of the node's TCP, as the kernel writes it; None: it has no such counter."""
    lines = read_bytes(COUNTERS).splitlines()
    for names, numbers in zip(lines[::2], lines[1::2]):
        known = dict(zip(names.split(), numbers.split()))
        if name in known:
            return known[name]
    return None

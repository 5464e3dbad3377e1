# SPDX-License-Identifier: Apache-2.0
"""Relayed connections on the node: listeners for peers that the processes of a job cannot reach by themselves.

In order: the two sides of a relayed connection, one such connection, and all of them.
A peer has an address of 127.0.0.0/8, at which an agent listens; only processes of the same user are answered there. A
connection goes on to the peer's own address where that can be reached, else by a TLS connection of its own to the
control center, which joins it with one of the peer's agent. There, bytes are in frames: four bytes with the length, and
an empty frame for the end of a direction. A TLS connection that ends without that frame stands for a reset.
"""

import errno
import json
import os
import selectors
import socket
import ssl
import struct

from koala_adapter.vjm.agent.attempts import Attempts, answered, dropping_listener, left_over
from koala_adapter.vjm.agent.connection import Channel, require_certificate
from koala_adapter.vjm.agent.node import Settings, Timers, clock
from koala_adapter.vjm.agent.processes import descendants, members
from koala_adapter.vjm.agent.sockets import (
    LISTEN,
    LOCALHOST,
    Watched,
    connecting,
    connecting_to,
    in_hexadecimal,
    is_connected,
    process_at,
    readable_address,
    refuse,
    reset,
    sockets_of,
    tcp_sockets,
)

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Set, Tuple


# -- The two sides of a relayed connection -------------------------------------------------------------------

PIECE = 32 * 1024
ROOM = 64 * 1024  # bytes that wait for one side, beyond which nothing more is read from the other one
LENGTH = struct.Struct(">I")
LONGEST_FRAME = 64 * 1024
WAIT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Plain:
    """The side of a process: bytes as they are."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.waiting = bytearray()
        self.finished = False  # nothing more comes from it
        self.closing = False  # nothing more comes for it
        self._shut = False

    @property
    def done(self) -> bool:
        """Whether both directions have ended."""
        return self.finished and self.closing and not self.waiting

    def read(self) -> "Optional[bytes]":
        """Return what has come, nothing if nothing has; None: its direction has ended. Raises OSError."""
        try:
            return self.socket.recv(PIECE) or None
        except WAIT:
            return b""

    def put(self, data: "Optional[bytes]") -> None:
        """Queue bytes for it, or the end of them."""
        if data is None:
            self.closing = True
        else:
            self.waiting += data

    def flush(self) -> bool:
        """Write what it takes; tell whether that was anything. Raises OSError."""
        sent = 0
        try:
            while self.waiting:
                size = self.socket.send(bytes(self.waiting[:PIECE]))
                del self.waiting[:size]
                sent += size
        except WAIT:
            return sent > 0
        if self.closing and not self._shut:
            self._shut = True
            self._shut_down()
        return sent > 0

    def _shut_down(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)


class Framed(Plain):
    """The side of the control center: bytes in frames."""

    def __init__(self, connection: ssl.SSLSocket, come: bytes) -> None:
        """``come``: what has come of it already."""
        Plain.__init__(self, connection)
        self._come = bytearray(come)
        self._left = 0  # bytes of the frame that is coming

    def read(self) -> "Optional[bytes]":
        """Return what has come; None: the frame that ends its direction. Raises OSError."""
        if len(self._come) < (1 if self._left else LENGTH.size):
            try:
                data = self.socket.recv(PIECE)
            except WAIT:
                return b""
            if not data:
                raise OSError(errno.ECONNRESET, "the relayed connection was reset")
            self._come += data
        if not self._left:
            if len(self._come) < LENGTH.size:
                return b""
            (self._left,) = LENGTH.unpack_from(self._come)
            del self._come[: LENGTH.size]
            if self._left == 0:
                return None
            if self._left > LONGEST_FRAME:
                raise OSError(errno.EPROTO, "a frame beyond all measure")
        data = bytes(self._come[: self._left])
        del self._come[: self._left]
        self._left -= len(data)
        return data

    def put(self, data: "Optional[bytes]") -> None:
        """Queue a frame."""
        self.closing = self.closing or data is None
        self.waiting += LENGTH.pack(len(data or b"")) + (data or b"")

    def _shut_down(self) -> None:
        """Do nothing: the empty frame has said it."""


# -- One relayed connection ----------------------------------------------------------------------------------

ROUNDS = 16  # pieces that are carried at once; other things are looked after in between
OPENING = 45.0  # seconds for the control center to join a connection
LONGEST_ANSWER = 4096


class Dialling:
    """A TLS connection to the control center that is being made for one relayed connection."""

    def __init__(
        self, relay: "Relay", first: "Dict[str, Any]", joined: "Callable[[Framed], None]", failed: "Callable[[], None]"
    ) -> None:
        """``first``: what is said first. ``joined`` is called once, or ``failed``."""
        self._relay = relay
        self._first = json.dumps(first).encode() + b"\n"
        self._joined = joined
        self._failed = failed
        self._answer = b""
        self._step: "Callable[[], None]" = self._connect
        self._over = False
        peer = relay.channel.peer
        if peer is None:
            raise OSError(errno.ENOTCONN, "the control center is out of reach")
        self._socket = connecting_to(*peer)
        self._watched = Watched(relay.selector, self._socket, self._ready)
        relay.timers.after(OPENING, self.close)
        self._watched.watch(selectors.EVENT_WRITE)

    def close(self) -> None:
        """Abandon the connection, unless it has ended."""
        if not self._over:
            self._over = True
            self._watched.watch(0)
            self._socket.close()
            self._failed()

    def _ready(self, _mask: int) -> None:
        try:
            self._step()
        except (ssl.SSLWantReadError, BlockingIOError):
            self._watched.watch(selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            self._watched.watch(selectors.EVENT_WRITE)
        except (OSError, ValueError):
            self.close()

    def _connect(self) -> None:
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        self._watched.watch(0)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = self._relay.channel.context.wrap_socket(self._socket, do_handshake_on_connect=False)
        self._watched = Watched(self._relay.selector, self._socket, self._ready)
        self._step = self._shake_hands
        self._step()

    def _shake_hands(self) -> None:
        assert isinstance(self._socket, ssl.SSLSocket)  # noqa: S101 - for the types
        self._socket.do_handshake()
        require_certificate(self._socket, self._relay.settings.fingerprint)
        self._step = self._say
        self._step()

    def _say(self) -> None:
        while self._first:
            self._first = self._first[self._socket.send(self._first) :]
        self._step = self._hear
        self._step()

    def _hear(self) -> None:
        assert isinstance(self._socket, ssl.SSLSocket)  # noqa: S101 - for the types
        while b"\n" not in self._answer:
            data = self._socket.recv(LONGEST_ANSWER)
            self._answer += data
            if not data or len(self._answer) > LONGEST_ANSWER + PIECE:
                raise OSError(errno.ECONNREFUSED, "refused")
        line, _, rest = self._answer.partition(b"\n")
        if json.loads(line.decode()).get("kind") != "joined":
            raise OSError(errno.EPROTO, "no answer")
        self._over = True
        self._watched.watch(0)
        self._joined(Framed(self._socket, rest))


class Carrying:
    """Carries bytes between two sides, until both directions have ended or one of them breaks."""

    def __init__(self, relay: "Relay", one: Plain, other: Plain, over: "Callable[[], None]") -> None:
        """``one``: the side of a process of this node."""
        self._sides = (one, other)
        self._timers = relay.timers
        self._over = over
        self._closed = False
        self._watched = [Watched(relay.selector, side.socket, self._ready) for side in self._sides]
        self._ready()

    @property
    def passed_on(self) -> bool:
        """Whether the process has sent its last byte, and all of them are on their way."""
        one, other = self._sides
        return self._closed or (one.finished and not other.waiting)

    def close(self, *, broken: bool = True) -> None:
        """Close the connection; a ``broken`` one ends with a reset for processes."""
        if self._closed:
            return
        self._closed = True
        for side, watched in zip(self._sides, self._watched):
            watched.watch(0)
            if broken and type(side) is Plain:
                reset(side.socket)
            side.socket.close()
        self._over()

    def _ready(self, _mask: int = 0) -> None:
        one, other = self._sides
        if self._closed:
            return
        try:
            for _ in range(ROUNDS):
                moved = [move(one, other), move(other, one)]
                if not any(moved):
                    break
            else:  # more may have come, of which TLS alone knows
                self._timers.after(0.0, self._ready)
        except OSError:
            self.close()
            return
        if one.done and other.done:
            self.close(broken=False)
            return
        for side, target, watched in ((one, other, self._watched[0]), (other, one, self._watched[1])):
            reads = not side.finished and len(target.waiting) < ROOM
            watched.watch(selectors.EVENT_READ * reads | selectors.EVENT_WRITE * bool(side.waiting))


def move(source: Plain, target: Plain) -> bool:
    """Carry a piece from one side to the other, as far as there is room; tell whether anything was moved."""
    moved = target.flush()
    if not source.finished and len(target.waiting) < ROOM:
        data = source.read()
        if data is None:
            source.finished = True
        if data is None or data:
            target.put(data)
            target.flush()
            moved = True
    return moved


# -- All relayed connections of an agent ---------------------------------------------------------------------

LOOK = 0.25  # seconds between two looks at which ports the processes listen
PASSING_ON = 30.0  # seconds after a task in which what its processes have sent is still passed on
MOST_PORTS = 16  # of one task
MOST_LISTENERS = 1024
MOST_CONNECTIONS = 128


class Listened:
    """A port of a peer's address at which this agent is to listen."""

    def __init__(self, forward: "Dict[str, Any]", port: int) -> None:
        self.job = str(forward["job"])
        self.peer = int(forward["peer"])
        self.address = str(forward["address"])
        self.direct = str(forward["direct"])
        self.port = port
        self.listener: "Optional[socket.socket]" = None


class RelayedTask:
    """A task whose processes are reached by peers, or reach them."""

    def __init__(self, *, told: bool) -> None:
        """``told``: the control center is told at which ports its processes listen."""
        self.told = told
        self.processes: "Optional[Tuple[int, bytes]]" = None  # session and mark, once it has started


class Held:
    """A connection of a process of this node, while it is joined with a peer's or will be."""

    def __init__(self, job: str, process: socket.socket, close: "Callable[[], None]", tunnel: str = "") -> None:
        """``process``: the side of the process. ``tunnel``: its name, if the control center has asked for it."""
        self.job = job
        self.tunnel = tunnel
        self.process = process
        self.close = close
        self.carrying: "Optional[Carrying]" = None  # once it is joined

    @property
    def left_behind(self) -> bool:
        """Whether its process has gone, and bytes that this had sent are not passed on yet."""
        if self.carrying is not None and self.carrying.passed_on:
            return False
        return is_connected(self.process) and process_at(self.process) is None


class Relay:
    """Listens for peers of the tasks of an agent, and tells at which ports the processes of these listen."""

    def __init__(
        self,
        settings: Settings,
        selector: selectors.BaseSelector,
        timers: Timers,
        channel: Channel,
        session: str,
    ) -> None:
        self.settings = settings
        self.selector = selector
        self.timers = timers
        self.channel = channel
        self._proof = {
            "batch": settings.batch, "index": settings.index, "token": settings.token, "session": session,
        }  # fmt: skip
        self._own = ""  # address of this node on its way to the control center
        self._tasks: "Dict[str, RelayedTask]" = {}
        self._until: "Dict[str, float]" = {}  # by task that is over: until when its end may be put off
        self._told: "Dict[str, Dict[int, str]]" = {}  # by task: ports at which it listens, with their addresses
        self._looked: "Dict[int, Optional[str]]" = {}  # inodes of listening sockets, and the tasks whose they are
        self._listened: "Dict[Tuple[str, int, int], Listened]" = {}  # by job, peer and port
        self._connections: "Dict[int, Held]" = {}
        self._waiting: "Dict[int, Listened]" = {}  # what those are for that wait for the control center
        self._numbers = 0
        self._looking = False
        self._attempts = Attempts()
        self._seeking = False

    @property
    def tasks(self) -> "List[str]":
        """Tasks for which something is done."""
        return list(self._tasks)

    def expect(self, task: str, forwards: "List[Dict[str, Any]]", *, told: bool) -> None:
        """Listen for a task that is about to start, and tell its ports if that is wanted."""
        self._tasks[task] = RelayedTask(told=told)
        for message in forwards:
            self.forward(message)
        if not self._looking:
            self._looking = True
            self.timers.after(LOOK, self._look_again)

    def started(self, task: str, session: int, mark: bytes) -> None:
        """Take note of the processes of a task, unless they are known."""
        known = self._tasks[task]
        if known.processes is None:
            known.processes = session, mark
            if known.told:
                self._told[task] = {}

    def end(self, task: str) -> None:
        """Forget a task that is over, and with the last one of its job listen for that no more.

        Its connections go on: they end by themselves when all that was sent is passed on.
        """
        del self._tasks[task]
        self._told.pop(task, None)
        now, job = clock(), job_of(task)
        self._until = {one: until for one, until in self._until.items() if until > now}
        self._until[task] = now + PASSING_ON
        self.timers.after(PASSING_ON, lambda: self._close_left_behind(job))
        if self._is_running(job):
            return
        for key in [key for key in self._listened if key[0] == job]:
            self._stop_listening(key)

    def passing_on(self, *tasks: str) -> bool:
        """Tell whether bytes that processes sent before their end, of tasks or of all that are over, go on their way.

        After a while that counts no more.
        """
        now = clock()
        jobs = {job_of(one) for one in tasks or self._until if self._until.get(one, now) > now}
        return any(held.job in jobs and held.left_behind for held in self._connections.values())

    def finish(self) -> None:
        """End all connections: with a reset those whose processes go on, which must not take it for a good end."""
        for held in list(self._connections.values()):
            if held.carrying is None or not held.carrying.passed_on:
                held.close()

    def _close_left_behind(self, job: str) -> None:
        """Give up what was not passed on in time, unless it may be of a task that runs."""
        if not self._is_running(job):
            for held in [held for held in self._connections.values() if held.job == job and held.left_behind]:
                held.close()

    def _is_running(self, job: str) -> bool:
        return any(job_of(one) == job for one in self._tasks)

    def forward(self, message: "Dict[str, Any]") -> None:
        """Listen for a peer as the control center says, and at no other ports of it."""
        if self.channel.open:
            self._own = self.channel.own_address()
        job, peer, ports = str(message["job"]), int(message["peer"]), [int(port) for port in message["ports"]]
        for key in [key for key in self._listened if key[:2] == (job, peer) and key[2] not in ports]:
            self._stop_listening(key)
        for port in ports:
            known = self._listened.get((job, peer, port))
            if known is not None and (known.address, known.direct) == (message["address"], message["direct"]):
                continue
            if known is not None:
                self._stop_listening((job, peer, port))
            if len(self._listened) < MOST_LISTENERS:
                self._listened[job, peer, port] = Listened(message, port)
        fault = self._listen()
        self.channel.send({"kind": "forwarded", "job": job, "number": message["number"], "fault": fault[:2000]})

    def tell_again(self) -> None:
        """Tell the control center, which may have forgotten it, at which ports the tasks listen; ask what waited."""
        for message in self._listening():
            self.channel.send(message)
        waiting, self._waiting = self._waiting, {}
        for number, wanted in waiting.items():
            held = self._connections.pop(number, None)
            if held is not None:
                self._serve(wanted, held.process)

    def look(self) -> None:
        """Find out at which ports the processes of tasks listen, and tell what is new."""
        if not self._told or not self.channel.open:
            return
        self._own = self.channel.own_address()
        listening = {
            inode: (local, port)
            for state, local, port, _, user, inode in tcp_sockets()
            if state == LISTEN and user == os.geteuid() and self._is_reached(local)
        }
        self._find_tasks(set(listening))
        found: "Dict[str, Dict[int, str]]" = {task: {} for task in self._told}
        for inode, (local, port) in listening.items():
            task = self._looked[inode]
            if task in found and len(found[task]) < MOST_PORTS:
                found[task][port] = readable_address(local)
        for task, ports in found.items():
            news = set(ports) != set(self._told[task])
            self._told[task] = ports
            if news:
                self.channel.send({"kind": "listening", "task": task, "ports": sorted(ports)})

    def _is_reached(self, local: str) -> bool:
        """Tell whether others expect a rank at a listening address: processes keep 127.0.0.1 to their own node."""
        return local not in LOCALHOST or ("." in self._own and local == in_hexadecimal((self._own, 0))[:8])

    def _find_tasks(self, inodes: "Set[int]") -> None:
        """Find out whose the sockets are of which that is not known, and forget those that are gone."""
        self._looked = {inode: task for inode, task in self._looked.items() if inode in inodes}
        unknown = inodes - set(self._looked)
        if unknown:
            self._looked.update(dict.fromkeys(unknown))
            for task, known in self._tasks.items():
                if known.told and known.processes is not None:
                    self._looked.update(dict.fromkeys(unknown & sockets_of(members(*known.processes)), task))

    def _look_again(self) -> None:
        if not self._tasks:
            self._looking = False
            return
        self.look()
        self._listen()
        self.timers.after(LOOK, self._look_again)

    def _listening(self) -> "List[Dict[str, Any]]":
        return [{"kind": "listening", "task": task, "ports": sorted(ports)} for task, ports in self._told.items()]

    # Listening for peers

    def _listen(self) -> str:
        """Listen where that is wanted and not done yet; return why it cannot be done somewhere."""
        fault = ""
        for wanted in self._listened.values():
            if wanted.listener is not None:
                continue
            try:
                wanted.listener = dropping_listener(wanted.address, wanted.port)
            except OSError as error:
                # On the peer's own node its port is taken by the peer itself, which is reached by that.
                if error.errno != errno.EADDRINUSE or wanted.direct != self._own:
                    fault = "{}:{} on {}: {}".format(wanted.address, wanted.port, socket.gethostname(), error.strerror)
        if not self._seeking:
            self._seeking = True
            self._seek()
        return fault

    def _stop_listening(self, key: "Tuple[str, int, int]") -> None:
        wanted = self._listened.pop(key)
        if wanted.listener is not None:
            wanted.listener.close()

    def _seek(self) -> None:
        """Answer processes of tasks that wait for a connection, and after a while those that no agent has answered."""
        places = {(one.address, one.port): one for one in self._listened.values() if one.listener is not None}
        if not places:
            self._seeking = False
            return
        attempts = self._attempts.look(places)
        wanted: "Set[int]" = set()
        for known in self._tasks.values() if attempts else ():
            if known.processes is not None:
                wanted |= sockets_of(members(*known.processes))
        others = [one for one in attempts if one.inode not in wanted]
        if others:  # some of a task may have left its session and cleared their environment
            wanted |= sockets_of(descendants(os.getpid())) | left_over(others)
        connections = answered(one for one in attempts if one.inode in wanted)
        self.timers.after(self._attempts.pause, self._seek)
        for attempt, connection in connections:
            self._serve(places[attempt.place], connection)

    def _serve(self, wanted: Listened, connection: socket.socket) -> None:
        """Join a connection of a process with one to a peer; it is reset when that cannot be."""
        if len(self._connections) >= MOST_CONNECTIONS:
            refuse(connection)
            return
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if wanted.direct:
                self._carry(wanted.job, Plain(connection), connected_to(wanted.direct, wanted.port))
            elif not self.channel.open:
                self._wait(wanted, connection)
            else:
                self._ask(wanted, connection)
        except OSError:
            refuse(connection)

    def _wait(self, wanted: Listened, connection: socket.socket) -> None:
        """Keep a connection until the control center is in contact again, for no longer than joining it may take."""
        number = self._next_number()

        def give_up() -> None:
            if self._connections.pop(number, None) is not None:
                refuse(connection)

        self._connections[number] = Held(wanted.job, connection, give_up)
        self._waiting[number] = wanted
        self.timers.after(OPENING, give_up)

    def _ask(self, wanted: Listened, connection: socket.socket) -> None:
        """Have the control center join a connection with one to the peer."""
        self.look()  # the peer may learn through this connection at which port the process listens
        first = {
            "kind": "tunnel-asked", "job": wanted.job, "peer": wanted.peer, "port": wanted.port,
            "listening": self._listening(),
        }  # fmt: skip
        self._dial(wanted.job, first, connection)

    def _dial(self, job: str, first: "Dict[str, Any]", connection: socket.socket, tunnel: str = "") -> None:
        """Join a connection of a process with one to the control center that begins with a message.

        ``tunnel``: what the control center calls it, when that has asked for it.
        """
        number = self._next_number()

        def joined(framed: Framed) -> None:
            del self._connections[number]
            self._carry(job, Plain(connection), framed, tunnel)

        def failed() -> None:
            del self._connections[number]
            refuse(connection)

        dialling = Dialling(self, dict(self._proof, **first), joined, failed)
        self._connections[number] = Held(job, connection, dialling.close, tunnel)

    def _carry(self, job: str, one: Plain, other: Plain, tunnel: str = "") -> None:
        """Carry bytes between a connection of a process, ``one``, and one to its peer."""
        number = self._next_number()
        # Closed like that until it is known how it is ended.
        held = self._connections[number] = Held(job, one.socket, one.socket.close, tunnel)
        carrying = Carrying(self, one, other, lambda: self._forget(number))
        held.carrying, held.close = carrying, carrying.close

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _forget(self, number: int) -> None:
        self._connections.pop(number, None)

    # What the control center says

    def tunnel(self, message: "Dict[str, Any]") -> None:
        """Connect to a port of a task for a peer, and dial to the control center for it.

        When this has come into contact again, it may say once more what had arrived.
        """
        if any(held.tunnel == message["tunnel"] for held in self._connections.values()):
            return
        first = {"kind": "tunnel-taken", "tunnel": message["tunnel"]}
        address = self._told.get(message["task"], {}).get(int(message["port"]))
        try:
            if address is None or len(self._connections) >= MOST_CONNECTIONS:
                self._decline(first)
                return
            connection = connected_to(address, int(message["port"])).socket
        except OSError:
            return
        try:
            self._dial(job_of(message["task"]), first, connection, message["tunnel"])
        except OSError:
            connection.close()

    def _decline(self, first: "Dict[str, Any]") -> None:
        """Dial for a peer, and reset its connection at once: it would wait. Raises OSError."""
        Dialling(self, dict(self._proof, **first), lambda framed: framed.socket.close(), lambda: None)


def job_of(task: str) -> str:
    """Return the job of a task."""
    return task.partition(":")[0]


def connected_to(address: str, port: int) -> Plain:
    """Return the side of a connection that is being made. Raises OSError."""
    connection = connecting(address, port)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Plain(connection)

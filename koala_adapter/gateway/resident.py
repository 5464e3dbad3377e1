# SPDX-License-Identifier: Apache-2.0
"""The process of the gateway, which outlives its connections, and the front that ssh starts for each of them.

A front hands the pipes of its connection to the gateway of the same user, state directory and host by a private Unix
socket, starts one where there is none, and lives as long as the connection. A gateway serves the newest connection.
Between two of them it keeps its port, and agents that connect; what commands and files came to is not kept: koala looks
for submissions by their name. It ends when it has been needed by nothing for a while, when it has had no connection for
the lease of its site, and when it is told to. Python 3.6 or newer.
"""

import array
import errno
import hashlib
import json
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import time

from koala_adapter.gateway.agents import Agents, Watch
from koala_adapter.gateway.files import Files, make_directory, require_strong
from koala_adapter.gateway.program import SILENCE, Command, Connection
from koala_adapter.gateway.streams import ViolationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

IDLE = 300.0
"""Seconds without a connection and without an agent after which a gateway ends."""
LEFTOVER = 60.0
"""Seconds for commands that ran when their connection was lost: one that submits is better not killed."""
LOOK = 25.0
"""Seconds between two looks at what is over."""
PATIENCE = 10.0
"""Seconds for the other process to say something at the Unix socket."""
TRIES = 4
MOST_FRONTS = 8
"""Fronts at once that have not said all yet."""
LONGEST_WORD = 1024 * 1024
"""Bytes that a front says: the environment is in it."""
LONGEST_PATH = 99
"""Bytes of the path of the socket: unix(7) takes 107, and its first name is longer."""
TAKEN, REPLACED = b"taken\n", b"replaced\n"
"""Answers to a front: it is served, or the gateway is of another version and ends now."""
HOST_LENGTH, TITLE_LENGTH = 6, 10
"""Of the name of the socket."""
PIPES = struct.Struct("2i")
PEER = struct.Struct("iII")


# -- Where front and gateway meet ----------------------------------------------------------------------------------


def directories(base: str) -> "Iterator[str]":
    """Return where the socket may be: in the user's directory for koala, else where paths are short."""
    yield os.path.join(os.path.expanduser(base), "gateway")
    if os.environ.get("XDG_RUNTIME_DIR"):
        yield os.path.join(os.environ["XDG_RUNTIME_DIR"], "koala")
    yield "/tmp/koala-{}".format(os.geteuid())  # noqa: S108 - its owner and mode are checked


def meeting_path(directory: str, title: str) -> str:
    """Return the path of the socket for the gateway of a user, host and state directory. Raises OSError.

    Login nodes of one site may share the directory: the name begins with one for this host.
    """
    path = os.path.join(directory, short_name(socket.gethostname(), HOST_LENGTH) + short_name(title, TITLE_LENGTH))
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
    return path


def short_name(text: str, length: int) -> str:
    """Return the first ``length`` hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:length]


def remove_deserted(directory: str) -> None:
    """Remove sockets of gateways of this host that were killed: nothing listens there. Raises OSError."""
    host = short_name(socket.gethostname(), HOST_LENGTH)
    for name in os.listdir(directory):
        if name.startswith(host) and len(name) == HOST_LENGTH + TITLE_LENGTH:
            tried = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            tried.settimeout(0)
            try:
                tried.connect(os.path.join(directory, name))
            except ConnectionRefusedError:
                os.unlink(os.path.join(directory, name))
            except OSError:
                pass  # one is there
            finally:
                tried.close()


def make_private(directory: str) -> None:
    """Make a directory that is to pass `require_private`. Raises OSError."""
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        make_directory({"path": directory})


def require_private(directory: str) -> None:
    """Raise PermissionError where others can use a directory or put another one in its place."""
    require_strong(directory)
    found = os.lstat(directory)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "others can use it", directory)


def is_own(peer: socket.socket) -> bool:
    """Tell whether the process at the other end is of this user."""
    _, user, _ = PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return bool(user == os.geteuid())


class Place:
    """The socket at which fronts find a gateway."""

    def __init__(self, path: str) -> None:
        """Listen there, in the place of what was there before. Raises OSError."""
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        first = "{}.{}".format(path, os.getpid())
        mask = os.umask(0o077)
        try:
            self.listener.bind(first)
            self.listener.listen(MOST_FRONTS)
            found = os.stat(first)
            os.rename(first, path)
        except OSError:
            self.listener.close()
            try:
                os.unlink(first)
            except OSError:
                pass  # it could not be made
            raise
        finally:
            os.umask(mask)
        self._file = found.st_dev, found.st_ino

    def keep(self) -> "Dict[str, Any]":
        """Have the socket look used, for those who tidy up. Raises FileNotFoundError where it is not ours any more."""
        found = os.stat(self.path)
        if (found.st_dev, found.st_ino) != self._file:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
        os.utime(self.path)
        return {}

    def remove(self) -> None:
        """Remove the socket, and its directory if nothing else is in it."""
        try:
            self.keep()
            os.unlink(self.path)
            os.rmdir(os.path.dirname(self.path))
        except OSError:
            pass  # those of another gateway are there
        self.listener.close()


# -- The front -----------------------------------------------------------------------------------------------------


def main(given: str) -> None:
    """Have standard input and output served. ``given``: what koala says beforehand, as JSON; see link.py."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    told = json.loads(given)
    alone = ""
    if told["stays"]:
        try:
            gateway = joined(told)
        except OSError as error:
            alone = "{}: {}".format(error.filename or told["base"], error.strerror or error)
        else:
            wait_beside(gateway)
            return
    reason = Gateway(None, told, alone).serve()
    sys.stderr.write("koala gateway: {}\n".format(reason))


def joined(told: "Dict[str, Any]") -> socket.socket:
    """Hand our pipes to a gateway, started now if there is none, and return the connection to it. Raises OSError."""
    fault = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for start in (False, True):
        for number, directory in enumerate(directories(told["base"])):
            try:
                if start:
                    make_private(directory)
                require_private(directory)
                remove_deserted(directory)
                path = meeting_path(directory, told["title"])
                return joined_at(path, told, start=start)
            except OSError as error:
                if start and not number:
                    fault = error  # that of the first place is what can be mended
    raise fault


def joined_at(path: str, told: "Dict[str, Any]", *, start: bool) -> socket.socket:
    """Hand our pipes to the gateway at a path. Raises OSError."""
    for _ in range(TRIES):
        gateway = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        gateway.settimeout(PATIENCE)
        try:
            gateway.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            gateway.close()
            if not start:
                raise
            start_gateway(path, told)
            continue
        try:
            if not is_own(gateway):
                raise PermissionError(errno.EPERM, "a process of another user listens there", path)
            if hand_over(gateway, told):
                return gateway
        except socket.timeout:
            os.unlink(path)  # it is stopped or hung: another one takes its place
        except (BrokenPipeError, ConnectionResetError):
            pass  # it was ending
        gateway.close()
    raise OSError(errno.EBUSY, "no gateway answers", path)


def hand_over(gateway: socket.socket, told: "Dict[str, Any]") -> bool:
    """Hand our pipes and environment to a gateway, and tell whether it serves them. Raises OSError."""
    word = {"version": told["version"], "lease": told["lease"], "variables": dict(os.environ)}
    content = json.dumps(word).encode("ascii") + b"\n"
    pipes = array.array("i", [0, 1])
    sent = gateway.sendmsg([content[:4096]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, pipes)])
    gateway.sendall(content[sent:])
    answer = b""
    while not answer.endswith(b"\n"):
        piece = gateway.recv(1)
        if not piece:
            return False
        answer += piece
    if answer == TAKEN:
        return True
    while gateway.recv(4096):
        pass  # until it has ended
    return False


def start_gateway(path: str, told: "Dict[str, Any]") -> None:
    """Start the gateway in a session of its own, without a terminal, detached from this process. Raises OSError."""
    place = Place(path)
    child = os.fork()
    if child:
        place.listener.close()
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if not os.fork():
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nothing, descriptor)
            for name in os.listdir("/proc/self/fd"):
                if int(name) > 2 and int(name) != place.listener.fileno():  # noqa: PLR2004 - standard error
                    try:
                        os.close(int(name))
                    except OSError:
                        pass  # that of the listing
            os.chdir("/")
            Gateway(place, told, "").serve()
    finally:
        os._exit(0)


def wait_beside(gateway: socket.socket) -> None:
    """Wait until a gateway has done with our pipes, and say why."""
    for descriptor in (0, 1):
        os.close(descriptor)
    gateway.settimeout(None)
    reason = b""
    try:
        while len(reason) < LONGEST_WORD:
            piece = gateway.recv(4096)
            if not piece:
                break
            reason += piece
    except OSError:
        pass
    sys.stderr.write("koala gateway: {}\n".format(reason.decode("utf-8", "replace") or "it has ended"))


# -- The gateway ---------------------------------------------------------------------------------------------------


class Front:
    """A front at the socket of a gateway, as far as it has said what it wants."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.word = bytearray()
        self.pipes: "List[int]" = []

    def close(self, reason: str = "") -> None:
        """End the front process, with a reason for its standard error."""
        try:
            self.peer.send(reason.encode("utf-8", "replace"))
        except OSError:
            pass
        self.peer.close()
        for descriptor in self.pipes:
            os.close(descriptor)
        self.pipes = []


class Gateway:
    """One gateway: the port for agents, and one connection at a time."""

    def __init__(self, place: "Optional[Place]", told: "Dict[str, Any]", alone: str) -> None:
        """``place``: where fronts come; None: standard input and output are its only connection.

        ``alone``: why it does not stay although it was to.
        """
        self._place = place
        self._version = told["version"]
        self._lease = float(told["lease"])
        self._watch = Watch()
        self._files = Files()
        self._agents = Agents(self._watch)
        self._wake, self._woken = os.pipe()
        self._fronts: "List[Front]" = []
        self._front: "Optional[Front]" = None
        """That of the connection."""
        self._connection: "Optional[Connection]" = None
        self._left: "List[Tuple[float, Command]]" = []
        """Commands of lost connections, with the time at which they are killed."""
        self._lost = self._needed = self._looked = time.monotonic()
        self._displaced = False
        self.reason = ""
        if place is None:
            self._connection = Connection(self._watch, self._files, self._agents, (0, 1), alone)

    def serve(self) -> str:
        """Serve until there is a reason to end, and return that."""
        for descriptor in (self._wake, self._woken):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self._told_to_end)
        signal.set_wakeup_fd(self._woken)
        self._watch.set(self._files.readable, selectors.EVENT_READ, self._files.finish)
        self._watch.set(self._wake, selectors.EVENT_READ, self._reap)
        if self._place is not None:
            self._place.listener.setblocking(False)  # noqa: FBT003 - the library's own way
            self._watch.set(self._place.listener, selectors.EVENT_READ, self._accept)
        try:
            while not self.reason:
                self._turn()
        except Exception as error:  # noqa: BLE001 - a defect: koala hears of it, and the next gateway begins anew
            self.reason = "it failed: {!r}".format(error)
        finally:
            self._end()
        return self.reason

    def _turn(self) -> None:
        """Wait for the next events of sockets and pipes, and handle them."""
        try:
            if self._connection is not None:
                self._connection.flush()
            self._watch.wait(min(LOOK, max(0.1, self._lease / 3)))
        except (ViolationError, OSError) as error:
            if self._connection is None:
                raise
            self._connection.reason = str(error)
        now, connection = time.monotonic(), self._connection
        if connection is not None:
            if now - connection.heard > SILENCE:
                connection.reason = "nothing was heard for {:g} seconds".format(SILENCE)
            if connection.ends_all:
                self.reason = connection.reason = "koala has nothing more to do here"
            if connection.reason:
                self._lose(connection.reason)
        self._see_need(now)

    def _see_need(self, now: float) -> None:
        """End what is over, also this gateway."""
        if now - self._looked > LOOK:
            self._looked = now
            if self._place is not None:
                self._files.ask(self._place.keep, self._see_place)
        while self._left and now > self._left[0][0]:
            self._left.pop(0)[1].kill()
        if self._connection is not None:
            self._needed = self._lost = now
        elif self._agents.waiting:
            self._needed = now
        if now - self._lost > self._lease:
            self.reason = "it had no connection for the lease of {:g} seconds".format(self._lease)
        elif now - self._needed > IDLE or (self._displaced and self._connection is None):
            self.reason = "nothing needs it"

    def _see_place(self, found: "Dict[str, Any]") -> None:
        if "errno" in found:
            self._displaced = found["errno"] == errno.ENOENT

    def _told_to_end(self, number: int, _frame: object) -> None:
        self.reason = "signal {}".format(number)

    def _reap(self, _mask: int) -> None:
        os.read(self._wake, 4096)
        if self._connection is not None:
            self._connection.reap()
        for one in list(self._left):
            if one[1].process.poll() is not None:
                one[1].close()
                self._left.remove(one)

    # -- fronts --

    def _accept(self, _mask: int) -> None:
        if self._place is None:
            return
        try:
            peer, _ = self._place.listener.accept()
        except OSError:
            return
        if not is_own(peer):
            peer.close()
            return
        if len(self._fronts) >= MOST_FRONTS:
            self._dismiss(self._fronts[0], "it said too little")
        peer.setblocking(False)  # noqa: FBT003 - the library's own way
        front = Front(peer)
        self._fronts.append(front)
        self._watch.set(peer, selectors.EVENT_READ, lambda _mask: self._hear(front))

    def _dismiss(self, front: Front, reason: str) -> None:
        self._watch.stop(front.peer)
        if front in self._fronts:
            self._fronts.remove(front)
        front.close(reason)

    def _hear(self, front: Front) -> None:
        """Take in what a front says until that is all."""
        try:
            data, attached, _, _ = front.peer.recvmsg(65536, socket.CMSG_SPACE(PIPES.size))
        except BlockingIOError:
            return
        except OSError:
            data, attached = b"", []
        for _, _, descriptors in attached:
            front.pipes += array.array("i", descriptors[: len(descriptors) // 4 * 4])
        front.word += data
        if data and not data.endswith(b"\n") and len(front.word) < LONGEST_WORD:
            return
        try:
            word = json.loads(front.word.decode("ascii"))
            version, lease, variables = word["version"], float(word["lease"]), dict(word["variables"])
            _, _ = front.pipes
        except (ValueError, LookupError, TypeError):
            self._dismiss(front, "what it said makes no sense")
            return
        try:
            front.peer.send(TAKEN if version == self._version else REPLACED)
        except OSError:
            self._dismiss(front, "")
            return
        if version != self._version:
            self.reason = "a gateway of another version takes its place"
            return
        self._lose("another connection has taken over")
        self._take_over(front, lease, variables)

    def _take_over(self, front: Front, lease: float, variables: "Dict[str, str]") -> None:
        """Serve a connection from now on, with the environment of its login."""
        os.environ.clear()
        os.environ.update(variables)
        self._lease = lease
        self._fronts.remove(front)
        self._front = front
        (inward, outward), front.pipes = front.pipes, []
        connection = Connection(self._watch, self._files, self._agents, (inward, outward), "")
        self._connection = connection
        self._watch.set(front.peer, selectors.EVENT_READ, lambda _mask: self._front_gone(connection))

    @staticmethod
    def _front_gone(connection: Connection) -> None:
        connection.reason = "its front has ended"

    def _lose(self, reason: str) -> None:
        """Close the connection; without a place for another one, end."""
        if self._connection is None:
            return
        left, self._connection = self._connection.close(), None
        deadline = time.monotonic() + LEFTOVER
        self._left += [(deadline, command) for command in left]
        if self._front is not None:
            self._dismiss(self._front, reason)
            self._front = None
        if self._place is None:
            self.reason = self.reason or reason

    def _end(self) -> None:
        """Leave nothing here."""
        self._lose(self.reason)
        for _, command in self._left:
            command.kill()
        self._agents.close_port()
        if self._place is not None:
            self._place.remove()
        for front in list(self._fronts):
            self._dismiss(front, "")

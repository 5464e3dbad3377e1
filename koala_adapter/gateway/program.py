# SPDX-License-Identifier: Apache-2.0
"""The gateway itself: one thread that serves its two pipes, one beside it for files, and the commands that it runs.

It ends when its standard input ends, when the other side breaks the rules, and after a time without a word. Nothing is
left then but the files that it was told to write. Python 3.6 or newer.
"""

import errno
import grp
import os
import pwd
import queue
import resource
import selectors
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time

from koala_adapter.gateway.streams import (
    DATA,
    END,
    GRANT,
    HELLO,
    OPEN,
    PIECE,
    RESET,
    Event,
    Streams,
    ViolationError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Callable, Dict, List, Optional, Tuple, Union

    Source = Union[int, socket.socket]

SILENCE = 75.0
"""Seconds without a word from the other side after which the gateway ends: its connection is dead."""
MUCH = 256 * 1024
"""Bytes that wait for the connection, beyond which nothing more is read from commands and agents."""
MOST_INPUT = 256 * 1024 * 1024
"""Bytes of the standard input of a command, or of a file to be written."""
MOST_AGENTS = 4096
"""Connections of agents at once, or half of the descriptors where those are fewer: commands need some, too."""
MOST_LINKS = 40
"""As many as the kernel follows, path_resolution(7)."""
FULL_PAUSE = 0.1
"""Seconds without accepting when there are no more descriptors."""
LEAST_CREDIT = 2
"""Bytes of the shortest piece: a mark and one byte of output."""
ROOM = 1024 * 1024
"""Credit for a command's input and a file's content."""
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


# -- The user here, and the environment of commands --------------------------------------------------------------


def user_entry() -> "Tuple[str, str, str]":
    """Return login name, home and shell of this user."""
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:  # a user of a directory that does not answer now
        return os.environ.get("USER", str(os.geteuid())), os.environ.get("HOME", "/"), "/bin/sh"
    return entry.pw_name, entry.pw_dir, entry.pw_shell or "/bin/sh"


def facts(_request: "Dict[str, Any]") -> "Dict[str, Any]":
    """Return what the other side is told of this host."""
    user, home, _ = user_entry()
    return {
        "name": socket.gethostname(),
        "user": user,
        "uid": os.geteuid(),
        "home": home,
        "variables": dict(os.environ),
        "python": sys.version.split()[0],
    }


def built_environment(added: "Dict[str, str]") -> "Dict[str, str]":
    """Return the environment of a command: small and built, as on the host of koala itself."""
    user, home, shell = user_entry()
    environment = {name: value for name, value in os.environ.items() if name in {"LANG", "LANGUAGE", "TZ"}}
    environment.update({"PATH": os.environ.get("PATH", DEFAULT_PATH), "HOME": home, "SHELL": shell})
    environment.update({"USER": user, "LOGNAME": user, "LC_ALL": "C.UTF-8"})
    environment.update(added)
    if not environment["LC_ALL"]:
        del environment["LC_ALL"]
    return environment


# -- Files -------------------------------------------------------------------------------------------------------
# Each function takes a request and returns a result; it may raise OSError.


def programs(request: "Dict[str, Any]") -> "Dict[str, Any]":
    """Return where programs are."""
    path = request["directory"] or os.environ.get("PATH", DEFAULT_PATH)
    found = ((name, shutil.which(name, path=path)) for name in request["names"])
    return {name: place for name, place in found if place}


def resolved(request: "Dict[str, Any]") -> "Dict[str, Any]":
    """Return a path with all links followed; empty where there is nothing."""
    path = os.path.realpath(request["path"])
    return {"path": path if os.path.exists(path) else ""}


def list_directory(request: "Dict[str, Any]") -> "Dict[str, Any]":
    """Return the names in a directory."""
    return {"names": os.listdir(absolute(request))}


def absolute(request: "Dict[str, Any]") -> str:
    """Return a path: one that is not absolute is in the user's directory for koala here."""
    base = os.path.expanduser(str(request.get("base", "~/.koala")))
    return os.path.join(base, str(request["path"]))


def make_directory(request: "Dict[str, Any]") -> "Dict[str, Any]":
    """Make a directory with mode 0700, unless another user could replace a part of its path."""
    path = os.path.abspath(absolute(request))
    require_strong(path)
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for path in reversed(missing):
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass  # another gateway of ours was faster
    require_strong(path)
    return {"path": path, "mode": stat.S_IMODE(os.stat(path).st_mode)}


def require_strong(path: str) -> None:
    """Raise PermissionError where another user could put something else in the place of a part of a path.

    As ssh does (StrictModes, sshd_config(5)): each directory on the way belongs to root or to this user, and no others
    can write to it; in a sticky one, what is used belongs to this user. Links are followed one by one under this rule.
    """
    place, ahead, links = "/", os.path.abspath(path).split("/"), 0
    while True:
        found = os.lstat(place)
        if found.st_uid not in (0, os.geteuid()):
            raise PermissionError(errno.EPERM, "{} belongs to another user".format(place), path)
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(place)
            place, ahead = "/" if target.startswith("/") else os.path.dirname(place), target.split("/") + ahead
            continue
        ahead = ahead[next((number for number, part in enumerate(ahead) if part not in ("", ".")), len(ahead)) :]
        if ahead and ahead[0] == "..":
            place, ahead = os.path.dirname(place), ahead[1:]
            continue
        entry = os.path.join(place, ahead[0]) if ahead else ""
        exists = bool(entry) and os.path.lexists(entry)
        writable = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not is_own_group(found.st_gid))
        if writable and not (found.st_mode & stat.S_ISVTX and exists):
            raise PermissionError(errno.EPERM, "others can write to {}".format(place), path)
        if not exists:
            return
        place, ahead = entry, ahead[1:]


def is_own_group(number: int) -> bool:
    """Tell whether a group is root's, or this user's own, as many systems make one for each user."""
    if number == 0:
        return True
    try:
        group = grp.getgrgid(number)
    except KeyError:
        return False
    user = user_entry()[0]
    return group.gr_name == user and not set(group.gr_mem) - {user, "root"}


def write_private(request: "Dict[str, Any]", content: "IO[bytes]") -> "Dict[str, Any]":
    """Write a new file that only this user can read, in place of one that is there."""
    path = absolute(request)
    remove(request)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        shutil.copyfileobj(content, file)
        file.flush()
        os.fsync(file.fileno())
    return {}


def remove(request: "Dict[str, Any]") -> "Dict[str, Any]":
    """Remove a file; no error when it is gone."""
    try:
        os.unlink(absolute(request))
    except FileNotFoundError:
        pass
    return {}


SIMPLE: "Dict[str, Callable[[Dict[str, Any]], Dict[str, Any]]]" = {
    "facts": facts,
    "programs": programs,
    "resolved": resolved,
    "list_directory": list_directory,
    "make_directory": make_directory,
    "remove": remove,
}


def failure(error: OSError) -> "Dict[str, Any]":
    """Return the result that tells of an error."""
    return {"errno": error.errno or errno.EIO, "error": error.strerror or str(error), "path": str(error.filename or "")}


def unnamed_file() -> "IO[bytes]":
    """Return an empty file that is gone when it is closed."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("koala"), "w+b")
    return tempfile.TemporaryFile()


class Files:
    """A thread for what may wait for a file system: a hung server of files must hold up no command and no agent."""

    def __init__(self) -> None:
        self._waiting: "queue.Queue[Tuple[int, Callable[[], Dict[str, Any]]]]" = queue.Queue()
        self._done: "queue.Queue[Tuple[int, Dict[str, Any]]]" = queue.Queue()
        self.readable, self._signal = os.pipe()
        threading.Thread(target=self._work, daemon=True).start()

    def ask(self, number: int, work: "Callable[[], Dict[str, Any]]") -> None:
        """Have something done for a stream."""
        self._waiting.put((number, work))

    def done(self) -> "List[Tuple[int, Dict[str, Any]]]":
        """Return streams with their results."""
        os.read(self.readable, 4096)
        found = []
        while not self._done.empty():
            found.append(self._done.get())
        return found

    def _work(self) -> None:
        while True:
            number, work = self._waiting.get()
            try:
                result = work()
            except OSError as error:
                result = failure(error)
            except (LookupError, TypeError, ValueError) as error:
                result = failure(OSError(errno.EINVAL, "bad request: {}".format(error)))
            self._done.put((number, result))
            os.write(self._signal, b"!")


# -- What streams stand for --------------------------------------------------------------------------------------


class Command:
    """A stream of a command: its input comes first, as a whole, then it is started and its output goes back.

    One whose connection broke meanwhile would else take the first half of a job script for all of it.
    """

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.open: "Dict[int, Tuple[bytes, IO[bytes]]]" = {}
        """Output that has not ended, by descriptor, with the byte that marks its pieces."""
        for mark, output in ((b"1", process.stdout), (b"2", process.stderr)):
            if output is not None:
                os.set_blocking(output.fileno(), False)
                self.open[output.fileno()] = (mark, output)


class Agent:
    """A stream of an agent's connection, whose bytes are relayed as they are."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.waiting = bytearray()  # for the agent
        self.ended = False  # nothing more comes for the agent
        self.finished = False  # nothing more comes from the agent


class Gateway:
    """Serves one connection."""

    def __init__(self, inward: int, outward: int) -> None:
        """``inward``, ``outward``: descriptors of the connection."""
        self._inward = inward
        self._outward = outward
        self._streams = Streams(gateway=True)
        self._selector = selectors.DefaultSelector()
        self._interest: "Dict[int, Tuple[Source, int]]" = {}
        self._work: "Dict[int, Union[Command, Agent]]" = {}
        self._content: "Dict[int, IO[bytes]]" = {}
        self._requests: "Dict[int, Dict[str, Any]]" = {}
        self._paused: "List[Callable[[], None]]" = []
        self._files = Files()
        self._wake, self._woken = os.pipe()
        self._listener: "Optional[socket.socket]" = None
        self._most_agents = min(MOST_AGENTS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._heard = time.monotonic()
        self.reason = ""

    def serve(self) -> None:
        """Serve until the connection ends; then end all commands."""
        for descriptor in (self._inward, self._outward, self._wake, self._woken):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self._told_to_end)
        signal.set_wakeup_fd(self._woken)
        self._watch(self._inward, selectors.EVENT_READ, self._receive)
        self._watch(self._files.readable, selectors.EVENT_READ, self._finish_files)
        self._watch(self._wake, selectors.EVENT_READ, self._reap)
        self._streams.outgoing += HELLO
        try:
            while not self.reason:
                self._flush()
                for key, mask in self._selector.select(SILENCE / 3):
                    # What an earlier one of these has closed may be another descriptor of the same number by now.
                    now = self._selector.get_map().get(key.fd)
                    if now is not None and now.data is key.data:
                        key.data(mask)
                if time.monotonic() - self._heard > SILENCE:
                    self.reason = "nothing was heard for {:g} seconds".format(SILENCE)
        except (ViolationError, OSError) as error:
            self.reason = str(error)
        finally:
            for work in self._work.values():
                if isinstance(work, Command):
                    self._kill(work)

    # -- the connection --

    def _watch(self, source: "Source", interest: int, act: "Callable[[int], None]") -> None:
        """Have ``act`` called when a source is ready for what is of interest; 0: for nothing."""
        number = source if isinstance(source, int) else source.fileno()
        known = self._interest.pop(number, None)
        if interest:
            self._interest[number] = (source, interest)
            if known is None:
                self._selector.register(source, interest, act)
            elif known[1] != interest:
                self._selector.modify(source, interest, act)
        elif known is not None:
            self._selector.unregister(source)

    def _told_to_end(self, number: int, _frame: object) -> None:
        self.reason = "signal {}".format(number)

    def _receive(self, _mask: int) -> None:
        data = os.read(self._inward, 256 * 1024)
        if not data:
            self.reason = "the connection has ended"
            return
        self._heard = time.monotonic()
        for event in self._streams.receive(data):
            self._take(event)

    def _flush(self, _mask: int = 0) -> None:
        outgoing = self._streams.outgoing
        try:
            while outgoing:
                del outgoing[: os.write(self._outward, bytes(outgoing[:65536]))]
        except BlockingIOError:
            pass
        self._watch(self._outward, selectors.EVENT_WRITE if outgoing else 0, self._flush)
        if len(outgoing) < MUCH and self._paused:
            paused, self._paused = self._paused, []
            for go_on in paused:
                go_on()

    def _take(self, event: Event) -> None:
        number, work = event.stream, self._work.get(event.stream)
        if event.kind == OPEN:
            self._begin(number, event.content)
        elif event.kind == RESET:
            self._abandon(number)
        elif isinstance(work, Agent):
            work.waiting += event.data
            work.ended = work.ended or event.kind == END
            self._to_agent(number, work)
        elif event.kind == DATA and number in self._content:
            self._keep(number, event.data)
        elif event.kind == END:
            self._complete(number)
        elif event.kind == GRANT and work is not None:
            self._follow_command(number, work)

    def _begin(self, number: int, request: "Dict[str, Any]") -> None:
        what = request.get("do")
        self._requests[number] = request
        if what in ("run", "write"):
            self._content[number] = unnamed_file()
            self._streams.grant(number, ROOM)
        elif what not in {"listen", "ping"} and what not in SIMPLE:
            self._end(number, failure(OSError(errno.EINVAL, "this gateway cannot {!r}".format(what))))

    def _keep(self, number: int, data: bytes) -> None:
        """Keep a piece of the input of a command or the content of a file."""
        content = self._content[number]
        try:
            content.write(data)
        except OSError as error:
            self._end(number, failure(error))
            return
        if content.tell() > MOST_INPUT:
            self._end(number, failure(OSError(errno.EFBIG, "more than {} bytes".format(MOST_INPUT))))
        else:
            self._streams.grant(number, len(data))

    def _complete(self, number: int) -> None:
        """Do what a stream asks for: all of it is here."""
        request = self._requests.pop(number, None)
        if request is None:
            return
        what = request["do"]
        content = self._content.pop(number, None)
        if content is not None:
            content.seek(0)
        if what == "run" and content is not None:
            self._start(number, request, content)
        elif what == "write" and content is not None:
            whole = content
            self._files.ask(number, lambda: write_private(request, whole))
        elif what == "listen":
            self._listen(number, request)
        elif what == "ping":
            self._end(number, {})
        else:
            self._files.ask(number, lambda: SIMPLE[what](request))

    def _finish_files(self, _mask: int) -> None:
        for number, result in self._files.done():
            self._end(number, result)

    def _end(self, number: int, result: "Dict[str, Any]") -> None:
        self._requests.pop(number, None)
        content = self._content.pop(number, None)
        if content is not None:
            content.close()
        try:
            self._streams.end(number, result)
        except ValueError as error:
            self._streams.end(number, failure(OSError(errno.EFBIG, str(error))))

    def _abandon(self, number: int) -> None:
        """Give up what a stream stands for."""
        self._requests.pop(number, None)
        content = self._content.pop(number, None)
        if content is not None:
            content.close()
        work = self._work.pop(number, None)
        if isinstance(work, Command):
            self._kill(work)
        elif isinstance(work, Agent):
            self._watch(work.connection, 0, self._flush)
            work.connection.close()

    def _may_read(self, number: int, go_on: "Callable[[], None]") -> bool:
        """Tell whether more can be read for a stream now; where the connection is full, go on later."""
        if self._streams.credit(number) < LEAST_CREDIT:
            return False  # a grant goes on with it
        if len(self._streams.outgoing) >= MUCH:
            self._paused.append(go_on)
            return False
        return True

    # -- commands --

    def _start(self, number: int, request: "Dict[str, Any]", content: "IO[bytes]") -> None:
        try:
            process = subprocess.Popen(
                [str(word) for word in request["argv"]],
                stdin=content,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=built_environment(request.get("environment", {})),
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            self._end(number, failure(error))
            return
        except (LookupError, TypeError, ValueError) as error:
            self._end(number, failure(OSError(errno.EINVAL, "bad request: {}".format(error))))
            return
        finally:
            content.close()
        work = Command(process)
        self._work[number] = work
        self._follow_command(number, work)

    def _follow_command(self, number: int, work: Command) -> None:
        """Read what a command prints as far as it can be sent."""
        read = self._may_read(number, lambda: self._follow_command(number, work))
        for descriptor in work.open:
            self._watch(
                descriptor,
                selectors.EVENT_READ if read else 0,
                lambda _mask, descriptor=descriptor: self._read_command(number, work, descriptor),  # type: ignore[misc]
            )

    def _read_command(self, number: int, work: Command, descriptor: int) -> None:
        # One byte of each piece says which output it is.
        mark, output = work.open[descriptor]
        try:
            data = os.read(descriptor, min(PIECE, self._streams.credit(number)) - 1)
        except BlockingIOError:
            return
        if data:
            self._streams.send(number, mark + data)
        else:
            self._watch(descriptor, 0, self._flush)
            output.close()
            del work.open[descriptor]
            self._conclude(number, work)
        self._follow_command(number, work)

    def _reap(self, _mask: int) -> None:
        os.read(self._wake, 4096)
        for number, work in list(self._work.items()):
            if isinstance(work, Command):
                self._conclude(number, work)

    def _conclude(self, number: int, work: Command) -> None:
        """Tell how a command ended, when it has and all that it printed has been sent."""
        if not work.open and number in self._work and work.process.poll() is not None:
            del self._work[number]
            self._end(number, {"status": work.process.returncode})

    def _kill(self, work: Command) -> None:
        try:
            os.killpg(work.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        for descriptor, (_, output) in work.open.items():
            self._watch(descriptor, 0, self._flush)
            output.close()
        work.open.clear()
        work.process.wait()

    # -- agents --

    def _listen(self, number: int, request: "Dict[str, Any]") -> None:
        """Listen for agents, once; the result says where."""
        if self._listener is None:
            address = str(request.get("address", ""))
            try:
                found = socket.getaddrinfo(
                    address or None, int(request.get("port", 0)), 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE
                )[0]
                listener = socket.socket(found[0], found[1], found[2])
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(found[4])
                listener.listen(1024)
                listener.setblocking(False)  # noqa: FBT003 - the library's own way
            except OSError as error:
                self._end(number, failure(error))
                return
            self._listener = listener
            self._watch(listener, selectors.EVENT_READ, self._accept)
        self._end(number, {"port": self._listener.getsockname()[1]})

    def _accept(self, _mask: int) -> None:
        if self._listener is None:
            return
        try:
            connection, peer = self._listener.accept()
        except OSError as error:
            if error.errno in {errno.EMFILE, errno.ENFILE}:
                time.sleep(FULL_PAUSE)  # else it would be told of at once again
            return
        if sum(isinstance(work, Agent) for work in self._work.values()) >= self._most_agents:
            connection.close()
            return
        connection.setblocking(False)  # noqa: FBT003 - likewise
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = self._streams.open({"do": "agent", "peer": str(peer[0])})
        work = Agent(connection)
        self._work[number] = work
        self._follow_agent(number, work)

    def _follow_agent(self, number: int, work: Agent) -> None:
        if self._work.get(number) is not work:
            return
        interest = selectors.EVENT_WRITE if work.waiting else 0
        if not work.finished and self._may_read(number, lambda: self._follow_agent(number, work)):
            interest |= selectors.EVENT_READ
        self._watch(work.connection, interest, lambda mask: self._serve_agent(number, work, mask))

    def _serve_agent(self, number: int, work: Agent, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                self._to_agent(number, work)
            if mask & selectors.EVENT_READ and self._work.get(number) is work:
                data = work.connection.recv(min(PIECE, self._streams.credit(number)))
                if data:
                    self._streams.send(number, data)
                else:
                    work.finished = True
                    self._streams.end(number)
        except BlockingIOError:
            pass
        except OSError as error:
            self._streams.reset(number, str(error))
            self._abandon(number)
            return
        self._follow_agent(number, work)
        self._end_agent(number, work)

    def _to_agent(self, number: int, work: Agent) -> None:
        try:
            while work.waiting:
                sent = work.connection.send(bytes(work.waiting[:65536]))
                del work.waiting[:sent]
                self._streams.grant(number, sent)
            if work.ended:
                work.connection.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError as error:
            self._streams.reset(number, str(error))
            self._abandon(number)
            return
        self._follow_agent(number, work)
        self._end_agent(number, work)

    def _end_agent(self, number: int, work: Agent) -> None:
        """Forget a connection that has ended in both directions."""
        if work.ended and work.finished and not work.waiting and self._work.get(number) is work:
            self._abandon(number)


def main() -> None:
    """Serve standard input and output."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gateway = Gateway(0, 1)
    gateway.serve()
    sys.stderr.write("koala gateway: {}\n".format(gateway.reason))

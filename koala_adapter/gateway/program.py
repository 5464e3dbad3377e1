# SPDX-License-Identifier: Apache-2.0
"""The gateway itself: one thread that serves its two pipes, one beside it for files, and the commands that it runs.

It ends when its standard input ends, when the other side breaks the rules, and after a time without a word. Nothing is
left then but the files that it was told to write. Python 3.6 or newer.
"""

import errno
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import time

from koala_adapter.gateway.files import DEFAULT_PATH, SIMPLE, Files, failure, unnamed_file, user_entry, write_private
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
FULL_PAUSE = 0.1
"""Seconds without accepting when there are no more descriptors."""
LEAST_CREDIT = 2
"""Bytes of the shortest piece: a mark and one byte of output."""
ROOM = 1024 * 1024
"""Credit for a command's input and a file's content."""


# -- Environment of commands -------------------------------------------------------------------------------------


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

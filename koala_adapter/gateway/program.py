# SPDX-License-Identifier: Apache-2.0
"""What the gateway does for one connection: commands that it runs, files, and the connections of agents.

A connection is lost when it ends, when the other side breaks the rules, and after a time without a word. The agents
that it served are then disconnected: they connect again by themselves and repeat what was not acknowledged, as they
must when the control center is started anew. So no frame is ever sent twice, and no byte of an agent is kept here.
Python 3.6 or newer.
"""

import errno
import fcntl
import json
import os
import selectors
import signal
import socket
import subprocess
import time

from koala_adapter.gateway.agents import Agent, Agents, Watch
from koala_adapter.gateway.cache import CACHE, Arrival
from koala_adapter.gateway.direct import MOST_PASSAGES, Passage, digest_of
from koala_adapter.gateway.files import (
    DEFAULT_PATH,
    SIMPLE,
    Files,
    facts,
    failure,
    unnamed_file,
    user_entry,
    write_private,
)
from koala_adapter.gateway.streams import DATA, END, GRANT, HELLO, LEAST_CREDIT, OPEN, PIECE, RESET, Event, Streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Callable, Dict, List, Optional, Tuple, Union

SILENCE = 75.0
"""Seconds without a word from the other side after which a connection is dead."""
MUCH = 256 * 1024
"""Bytes that wait for the connection, beyond which nothing more is read from commands and agents."""
MOST_INPUT = 256 * 1024 * 1024
"""Bytes of the standard input of a command, or of a file to be written."""
ROOM = 1024 * 1024
"""By how much the window of a command's input, and of a file's content, is wider from the beginning."""
SPARE = 16 * 1024 * 1024
"""Bytes by which all windows together may be wider. A thousand agents that take nothing then cost less than 40 MiB."""
PIPE_SIZE = 1024 * 1024
"""Bytes that the pipes of a connection may hold, where the system allows it."""
SET_PIPE_SIZE = 1031
"""F_SETPIPE_SZ of fcntl(2), which Python has a name for since 3.10."""


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

    One whose connection broke meanwhile would else take the first half of a job script for all of it. One that is
    ``live`` is started at once, and gets its input as it comes.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", inlet: "Optional[int]" = None) -> None:
        self.process = process
        self.inlet = inlet  # of one that is live: where its input goes, until that has ended
        self.waiting = bytearray()  # for its input
        self.ended = False  # no more input comes
        self.open: "Dict[int, Tuple[bytes, IO[bytes]]]" = {}
        """Output that has not ended, by descriptor, with the byte that marks its pieces."""
        for mark, output in ((b"1", process.stdout), (b"2", process.stderr)):
            if output is not None:
                os.set_blocking(output.fileno(), False)
                self.open[output.fileno()] = (mark, output)

    def close(self) -> None:
        """Close its input, and what is read of its output."""
        self.close_input()
        for _, output in self.open.values():
            output.close()
        self.open.clear()

    def close_input(self) -> None:
        """Close its input, if that is open."""
        if self.inlet is not None:
            os.close(self.inlet)
            self.inlet = None

    def kill(self) -> None:
        """Kill the process and all processes that it has started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.close()


class Connection:
    """Serves the streams of one connection, until it has a reason to end."""

    def __init__(self, watch: Watch, files: Files, agents: Agents, pipes: "Tuple[int, int]", alone: str) -> None:
        """``pipes``: descriptors of the connection, in and out.

        ``alone``: why the gateway ends with this connection; empty where it does not, or was not asked to stay.
        """
        self._watch = watch
        self._files = files
        self._agents = agents
        self._inward, self._outward = pipes
        self._alone = alone
        self._streams = Streams(gateway=True, spare=SPARE)
        self._work: "Dict[int, Union[Command, Agent]]" = {}
        self._killed: "List[Command]" = []
        """Commands that may wait for a file system before they end."""
        self._content: "Dict[int, IO[bytes]]" = {}
        self._arrivals: "Dict[int, Arrival]" = {}
        self._passages: "Dict[int, Passage]" = {}
        self._requests: "Dict[int, Dict[str, Any]]" = {}
        self._paused: "List[Callable[[], None]]" = []
        self.heard = time.monotonic()
        self.reason = ""
        """Why it is over; empty while it is not."""
        self.ends_all = False
        """Whether koala has nothing more to do here, and the gateway has to end."""
        for descriptor in pipes:
            os.set_blocking(descriptor, False)
            try:
                fcntl.fcntl(descriptor, SET_PIPE_SIZE, PIPE_SIZE)
            except OSError:
                pass  # it is a socket, or the user has too many pipes
        self._watch.set(self._inward, selectors.EVENT_READ, self._receive)
        self._streams.outgoing += HELLO

    def close(self) -> "List[Command]":
        """Close all that it has, and return the commands that still run."""
        self.reason = self.reason or "it was closed"
        self._agents.serve(None)
        for descriptor in {self._inward, self._outward}:
            self._watch.stop(descriptor)
            os.close(descriptor)
        for number in [*self._content, *self._arrivals]:
            self._drop_request(number)
        for passage in self._passages.values():
            passage.stop()
        left = self._killed
        for work in self._work.values():
            if isinstance(work, Command):
                self._stop_watching(work)
                work.close_input()
                left.append(work)
            else:
                self._agents.drop(work)
        self._work.clear()
        return left

    # -- the connection --

    def _receive(self, _mask: int) -> None:
        data = os.read(self._inward, 256 * 1024)
        if not data:
            self.reason = "the connection has ended"
            return
        self.heard = time.monotonic()
        for event in self._streams.receive(data):
            self._take(event)

    def flush(self, _mask: int = 0) -> None:
        """Send what can be sent now."""
        outgoing = self._streams.outgoing
        try:
            while outgoing:
                with memoryview(outgoing) as left:
                    written = os.write(self._outward, left)
                del outgoing[:written]
        except BlockingIOError:
            pass
        self._watch.set(self._outward, selectors.EVENT_WRITE if outgoing else 0, self.flush)
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
            self._serve_agent(number, work, selectors.EVENT_WRITE)
        elif work is not None and event.kind in (DATA, END):
            work.waiting += event.data
            work.ended = work.ended or event.kind == END
            self._feed(number, work)
        elif event.kind == DATA and number in self._content:
            self._keep(number, event.data)
        elif event.kind == DATA and number in self._arrivals:
            self._arrive(number, event.data)
        elif event.kind == END:
            self._complete(number)
        elif event.kind == GRANT and work is not None:
            self._follow_command(number, work)

    def _begin(self, number: int, request: "Dict[str, Any]") -> None:
        what = request.get("do")
        if what == "run" and request.get("live"):
            inward, inlet = os.pipe()
            os.set_blocking(inlet, False)
            self._start(number, request, os.fdopen(inward, "rb"), inlet)
            return
        self._requests[number] = request
        if what in ("run", "write"):
            self._content[number] = unnamed_file()
            self._streams.widen(number, ROOM)
        elif what == "put":
            self._arrivals[number] = arrival = Arrival(request)
            self._files.ask(arrival.begin, lambda result: self._begun(number, result), transfer=True)
        elif what not in {"end", "listen", "ping", "pass", "digest"} and what not in SIMPLE and what not in CACHE:
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

    # -- a content for the cache --

    def _begun(self, number: int, result: "Dict[str, Any]") -> None:
        if number not in self._arrivals:
            return
        if "errno" in result:
            self._end(number, result)
        else:
            self._streams.widen(number, ROOM)

    def _arrive(self, number: int, data: bytes) -> None:
        """Have a piece written by a thread, with the pieces that arrive meanwhile."""
        arrival = self._arrivals[number]
        arrival.take(data)
        if not arrival.writing:
            self._write_arrival(number, arrival)

    def _write_arrival(self, number: int, arrival: Arrival) -> None:
        arrival.writing = arrival.waiting
        if arrival.writing:
            self._files.ask(arrival.write, lambda result: self._written(number, result), transfer=True)

    def _written(self, number: int, result: "Dict[str, Any]") -> None:
        if number not in self._arrivals:
            return
        if "errno" in result:
            self._end(number, result)
        else:
            self._streams.grant(number, result["written"])
            self._write_arrival(number, self._arrivals[number])

    # -- a content from or to another site --

    def _pass(self, number: int, request: "Dict[str, Any]") -> None:
        """Begin a transfer; what is to be known before its end goes as output."""
        if len(self._passages) >= MOST_PASSAGES:
            self._end(number, failure(OSError(errno.EAGAIN, "there are {} transfers already".format(MOST_PASSAGES))))
            return

        def told(content: "Dict[str, Any]") -> None:
            data = b"1" + json.dumps(content).encode("ascii") + b"\n"
            if self._streams.credit(number) >= len(data):
                self._streams.send(number, data)

        passage = Passage(request, lambda content: self._files.post(told, content))
        self._passages[number] = passage
        self._files.ask_apart(passage.run, lambda result: self._passed(number, result))

    def _passed(self, number: int, result: "Dict[str, Any]") -> None:
        del self._passages[number]
        self._end(number, result)

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
            self._files.ask(lambda: write_private(request, whole), lambda result: self._end(number, result))
        elif what in ("listen", "pass"):
            (self._listen if what == "listen" else self._pass)(number, request)
        elif what == "ping":
            self._end(number, {})
        elif what == "put":
            self._files.ask(self._arrivals[number].end, lambda result: self._end(number, result), transfer=True)
        elif what == "end":
            self.ends_all = True
        elif what == "facts":
            self._files.ask(lambda: dict(facts(request), alone=self._alone), lambda result: self._end(number, result))
        else:
            work = SIMPLE.get(what) or CACHE.get(what) or digest_of
            ask = self._files.ask_apart if work is digest_of else self._files.ask
            ask(lambda: work(request), lambda result: self._end(number, result))

    def _end(self, number: int, result: "Dict[str, Any]") -> None:
        self._drop_request(number)
        try:
            self._streams.end(number, result)
        except ValueError as error:
            self._streams.end(number, failure(OSError(errno.EFBIG, str(error))))

    def _drop_request(self, number: int) -> None:
        """Forget a request, and close what has come for it."""
        self._requests.pop(number, None)
        content = self._content.pop(number, None)
        if content is not None:
            content.close()
        arrival = self._arrivals.pop(number, None)
        if arrival is not None:
            self._files.ask(arrival.close, lambda _result: None, transfer=True)

    def _abandon(self, number: int) -> None:
        """Give up what a stream stands for."""
        self._drop_request(number)
        if number in self._passages:
            self._passages[number].stop()
        work = self._work.pop(number, None)
        if isinstance(work, Command):
            self._stop_watching(work)
            work.kill()
            self._killed.append(work)
        elif isinstance(work, Agent):
            self._agents.drop(work)

    def _may_read(self, number: int, go_on: "Callable[[], None]") -> bool:
        """Tell whether more can be read for a stream now; where the connection is full, go on later."""
        if self._streams.credit(number) < LEAST_CREDIT:
            return False  # a grant goes on with it
        if len(self._streams.outgoing) >= MUCH:
            self._paused.append(go_on)
            return False
        return True

    # -- commands --

    def _start(
        self, number: int, request: "Dict[str, Any]", content: "IO[bytes]", inlet: "Optional[int]" = None
    ) -> None:
        work = None
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
            work = Command(process, inlet)
        except OSError as error:
            self._end(number, failure(error))
            return
        except (LookupError, TypeError, ValueError) as error:
            self._end(number, failure(OSError(errno.EINVAL, "bad request: {}".format(error))))
            return
        finally:
            content.close()
            if work is None and inlet is not None:
                os.close(inlet)
        self._work[number] = work
        self._follow_command(number, work)

    def _feed(self, number: int, work: Command) -> None:
        """Write input of a live command as far as it takes it."""
        if work.inlet is None:
            return
        self._watch.stop(work.inlet)
        try:
            while work.waiting:
                written = os.write(work.inlet, bytes(work.waiting[:65536]))
                del work.waiting[:written]
                self._streams.grant(number, written)
            if work.ended:
                work.close_input()
        except BlockingIOError:
            self._watch.set(work.inlet, selectors.EVENT_WRITE, lambda _mask: self._feed(number, work))
        except OSError:  # it reads no more
            work.close_input()

    def _stop_watching(self, work: Command) -> None:
        for descriptor in work.open:
            self._watch.stop(descriptor)
        if work.inlet is not None:
            self._watch.stop(work.inlet)

    def _follow_command(self, number: int, work: Command) -> None:
        """Read what a command prints as far as it can be sent."""
        read = self._may_read(number, lambda: self._follow_command(number, work))
        for descriptor in work.open:
            self._watch.set(
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
            self._watch.stop(descriptor)
            output.close()
            del work.open[descriptor]
            self._conclude(number, work)
        self._follow_command(number, work)

    def reap(self) -> None:
        """Send the exit statuses of the commands that have ended since the last call."""
        self._killed = [work for work in self._killed if work.process.poll() is None]
        for number, work in list(self._work.items()):
            if isinstance(work, Command):
                self._conclude(number, work)

    def _conclude(self, number: int, work: Command) -> None:
        """Tell how a command ended, when it has and all that it printed has been sent."""
        if not work.open and number in self._work and work.process.poll() is not None:
            del self._work[number]
            self._stop_watching(work)
            work.close_input()
            self._end(number, {"status": work.process.returncode})

    # -- agents --

    def _listen(self, number: int, request: "Dict[str, Any]") -> None:
        """Listen for agents, and serve those that have come; the result says where."""
        try:
            port = self._agents.listen(str(request.get("address", "")), request["ports"])
        except OSError as error:
            self._end(number, failure(error))
        else:
            self._end(number, {"port": port})
            self._agents.serve(self._begin_agent)

    def _begin_agent(self, agent: Agent) -> None:
        number = self._streams.open({"do": "agent", "peer": agent.peer})
        self._work[number] = agent
        self._streams.send(number, bytes(agent.said))
        self._follow_agent(number, agent)

    def _follow_agent(self, number: int, work: Agent) -> None:
        if self._work.get(number) is not work:
            return
        interest = selectors.EVENT_WRITE if work.waiting else 0
        if not work.finished and self._may_read(number, lambda: self._follow_agent(number, work)):
            interest |= selectors.EVENT_READ
        self._watch.set(work.connection, interest, lambda mask: self._serve_agent(number, work, mask))

    def _serve_agent(self, number: int, work: Agent, mask: int) -> None:
        """Relay what an agent takes and has said, as its connection is ready for."""
        try:
            if mask & selectors.EVENT_WRITE:
                self._send_waiting(number, work)
            if mask & selectors.EVENT_READ:
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
        if work.ended and work.finished and not work.waiting and self._work.get(number) is work:
            self._abandon(number)  # it has ended in both directions

    def _send_waiting(self, number: int, work: Agent) -> None:
        try:
            while work.waiting:
                sent = work.connection.send(bytes(work.waiting[:65536]))
                del work.waiting[:sent]
                self._streams.grant(number, sent)
            if work.ended:
                work.connection.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass

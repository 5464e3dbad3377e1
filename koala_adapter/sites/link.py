# SPDX-License-Identifier: Apache-2.0
"""One connection to the gateway of a site: ssh is started, the gateway is sent to it, and streams go both ways."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import resource
import shlex
import signal
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import anyio

from koala_adapter import gateway
from koala_adapter.errors import LoginNeededError, LrmUnavailableError, LrmUnreachableError
from koala_adapter.gateway.streams import (
    DATA,
    END,
    GRANT,
    OPEN,
    PIECE,
    RESET,
    WINDOW,
    Event,
    Streams,
    ViolationError,
    after_hello,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import Process, SocketStream, TaskGroup

# -- What is run -----------------------------------------------------------------------------------------------------

FIRST_LINE = b"""import os, sys
text = b""
while len(text) < %d:
    piece = os.read(0, %d - len(text))
    if not piece:
        sys.exit(1)
    text += piece
exec(compile(text, "koala gateway", "exec"), {"__name__": "koala_gateway", "GIVEN": %a})"""
"""Reads the gateway, and no byte of what follows it."""

READ_FIRST_LINE = 'import os,sys;exec(b"".join(iter(lambda:os.read(0,1)or sys.exit(1),b"\\n")))'
"""On one line and without a quote of the shell, because the user's shell at the site may be any."""

_OWN_IMPORT = re.compile(r"^from koala_adapter\.gateway\.\w+ import (?:\([^)]*\)|[^\n]*)\n", re.MULTILINE)


@cache
def gateway_file() -> bytes:
    """Return the text of the gateway as one file."""
    names = ("streams.py", "files.py", "cache.py", "direct.py", "agents.py", "program.py", "resident.py")
    texts = [(resources.files(gateway) / name).read_text(encoding="utf-8") for name in names]
    return _OWN_IMPORT.sub("", "\n".join([*texts, "main(GIVEN)\n"])).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """How a gateway outlives its connection."""

    title: str
    """Names user, host and state directory: the next connection with the same title takes over."""
    base: str
    """The user's directory there, for koala."""
    lease: float
    """Seconds without a connection after which it ends."""


def first_words(stay: Stay | None = None) -> bytes:
    """Return what the site's Python is sent before the first frame. ``stay``: None: it ends with its connection."""
    text = gateway_file()
    given: dict[str, Any] = {"stays": stay is not None, "version": hashlib.sha256(text).hexdigest(), "lease": 0}
    if stay is not None:
        given |= asdict(stay)
    line = FIRST_LINE % (len(text), len(text), json.dumps(given))
    return b"exec(%a)\n" % line.decode() + text


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteAddress:
    """How a site is reached."""

    name: str
    ssh: str
    """What ssh is given for the host."""
    options: tuple[str, ...] = ()
    """Of ssh, before the host."""
    program: str = "ssh"
    python: str = "python3"
    directory: str = "~/.koala"
    """Private directory of the user there, for koala."""
    listen: str = ""
    """Address of the login node for agents; empty: all, and agents look for it by its name."""
    ports: tuple[int, int] = (0, 0)
    """First and last port at which its gateway may listen; 0 and 0: any free one."""
    lease: float = 3600.0
    """Seconds without a connection for which a gateway that stays, and agents, wait."""


NOTHING_LENT = ("-o", "ForwardAgent=no", "-o", "ForwardX11=no")
"""Without these, a login node could use the user's ssh agent and display for as long as the service runs, where
~/.ssh/config forwards them to it. ssh takes the first value that it is given: options of the site decide."""
ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3")


def ssh_command(site: SiteAddress, title: str, control: Path | None = None) -> tuple[str, ...]:
    """Return the command line of ssh. ``title``: shown by ``ps`` at the site behind the gateway's command.

    ``control``: socket of a login that is used where there is one, see `login_command`.
    """
    remote = shlex.join([site.python, "-I", "-S", "-c", READ_FIRST_LINE, "koala-gateway", title])
    master = ("-S", str(control)) if control is not None and control.exists() else ()
    options = (*site.options, *NOTHING_LENT, *master, "-T", "-o", "BatchMode=yes", *ALIVE)
    return (site.program, *options, "--", site.ssh, remote)


def login_command(destination: str, options: Sequence[str], control: Path, program: str = "ssh") -> tuple[str, ...]:
    """Return the command line of ssh that logs in in a terminal, and keeps the login for later connections."""
    kept = ("-S", str(control), "-o", "ControlMaster=auto", "-o", "ControlPersist=yes")
    return (program, *options, *NOTHING_LENT, *kept, *ALIVE, "--", destination, "true")


def logout_command(destination: str, options: Sequence[str], control: Path, program: str = "ssh") -> tuple[str, ...]:
    """Return the command line of ssh that ends such a login."""
    return (program, *options, "-S", str(control), "-O", "exit", "--", destination)


# -- One connection --------------------------------------------------------------------------------------------------

CONNECT_SECONDS = 45.0
"""Seconds for ssh to log in and for the gateway to say that it is ready."""
PING_INTERVAL = 20.0
"""Seconds between two signs of life to the gateway, which ends without them."""
PING_PATIENCE = 60.0
"""Seconds without an answer to one after which the connection counts as dead."""
MUCH = 256 * 1024
"""Bytes that wait for ssh, beyond which nothing more is read from the control center."""
OUTPUT_AHEAD = 4 * 1024 * 1024
"""By how much the window of what a command prints is wider from the beginning."""
SPARE = 64 * 1024 * 1024
"""Bytes by which all windows together may be wider."""
PIPE_SIZE = 1024 * 1024
"""Bytes that the pipes of ssh may hold, where the system allows it."""
READ_SIZE = 256 * 1024
"""Bytes that are read of ssh at once."""
MOST_OUTPUT = 256 * 1024 * 1024
"""Bytes of what a command prints, and as many of what it complains: one that prints more is given up."""
MOST_UNREAD = 1024 * 1024
"""Bytes that wait for ssh, beyond which nothing more is taken in: each frame may need an answer."""
MOST_AGENTS = 4096
"""Connections of agents at once, or fewer where this process may open fewer files: further ones are refused."""
FILES_OF_RELAY = 2
"""Descriptors of this process for each: ours, and that of the control center."""
SILENCE = 10.0
"""Seconds for an agent to say something: the gateway opens a stream for one that has."""
COMPLAINTS_KEPT = 64 * 1024
"""Bytes of what a command complains that is asked while it runs."""
COMPLAINT_SECONDS = 1.0
"""Seconds for ssh to say why it ends."""
LONGEST_NOISE = 64 * 1024
"""Bytes that a login may print before the gateway is ready."""
ENDING, ENDING_KILLED = 2.0, 10.0
"""Seconds for ssh to end when it is told to, and when it is killed."""
ASKING = b"koala "
"""How a program begins that asks for another port than the control center's. An agent begins with TLS."""
LONGEST_ASKING = 16
_ASKING_FOR = re.compile(ASKING + rb"([0-9]{1,5})\n")
CLOSED = "the connection was closed"


class Call:
    """A request of ours that the gateway has not answered yet."""

    def __init__(self, heard: Callable[[bytes], None] | None = None, *, live: bool = False) -> None:
        """``heard``: called with the output as it comes, which is then not kept.

        ``live``: it is of a command that is asked while it runs, and may run for as long as the connection.
        """
        self.heard, self.live = heard, live
        self.output = {b"1": bytearray(), b"2": bytearray()}
        self.result: dict[str, Any] | None = None
        self.lost = ""
        self.changed = anyio.Event()

    def change(self) -> None:
        """Wake what waits for news."""
        self.changed.set()
        self.changed = anyio.Event()


class _Relay:
    """The connection of an agent at the site, as far as it goes to the control center."""

    def __init__(self) -> None:
        self.sender, self.pieces = anyio.create_memory_object_stream[bytes](WINDOW)
        self.granted = anyio.Event()
        self.scope = anyio.CancelScope()


class _Pipe:
    """Our end of a pipe of ssh, or none."""

    def __init__(self, descriptor: int = -1) -> None:
        self._descriptor = descriptor
        if descriptor >= 0:
            os.set_blocking(descriptor, False)
            with suppress(OSError):  # the user has too many pipes
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_SIZE)

    async def read(self) -> bytes:
        """Return what comes next. Raises EndOfStream, ClosedResourceError."""
        await anyio.wait_readable(self._opened())
        data = os.read(self._opened(), READ_SIZE)
        if not data:
            raise anyio.EndOfStream
        return data

    async def write(self, outgoing: bytearray) -> None:
        """Write the beginning of what is to be sent, and take it away there, or wait until that can be done.

        Raises EndOfStream, ClosedResourceError.
        """
        try:
            with memoryview(outgoing) as left:
                written = os.write(self._opened(), left)
        except BlockingIOError:
            await anyio.wait_writable(self._opened())
        except OSError:
            raise anyio.EndOfStream from None
        else:
            del outgoing[:written]

    def _opened(self) -> int:
        if self._descriptor < 0:
            raise anyio.ClosedResourceError
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor; tasks that wait for it get ClosedResourceError."""
        if self._descriptor >= 0:
            anyio.notify_closing(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


class Link:
    """A connection to a gateway: made by :meth:`connect`, served by :meth:`serve` until it is lost."""

    def __init__(
        self, site: str, argv: Sequence[str], ports: Collection[int] = (), *, stay: Stay | None = None
    ) -> None:
        """``site``: its name, for messages. ``ports``: of this host, to which programs at the site may connect.

        ``stay``: None: the gateway ends with this connection.
        """
        self.site = site
        self._ports = ports
        self._stay = stay
        self.center: tuple[str, int] | None = None
        """Where the connections of agents go; None: they are refused."""
        self._argv = argv
        self._streams = Streams(gateway=False, spare=SPARE)
        self._calls: dict[int, Call] = {}
        self._relays: dict[int, _Relay] = {}
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_agents = min(MOST_AGENTS, max(1, soft // (2 * FILES_OF_RELAY)))
        self._to_send = anyio.Event()
        self._sent = anyio.Event()
        self._said = bytearray()
        self._rest = b""
        """What has come of the gateway already when it was found ready."""
        self._process: Process | None = None
        self._stdin, self._stdout = _Pipe(), _Pipe()
        self._lost = ""

    async def connect(self) -> None:
        """Start ssh and wait for the gateway. Raises LrmUnreachableError with what to do."""
        try:
            await self._start()
        except OSError as error:
            message = f"site {self.site}: cannot run {self._argv[0]}: {error.strerror or error}"
            raise LrmUnreachableError(message, hint="install OpenSSH's client") from error
        try:
            with anyio.fail_after(CONNECT_SECONDS):
                self._rest = await self._greet()
        except TimeoutError:
            raise await self._refused(f"no answer within {CONNECT_SECONDS:g} s") from None
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            raise await self._refused("") from None

    async def _start(self) -> None:
        """Start ssh. Raises OSError."""
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
        self._stdin, self._stdout = _Pipe(ours_out), _Pipe(ours_in)
        try:
            with anyio.CancelScope(shield=True):  # one that is not known here would not be ended
                self._process = await anyio.open_process(
                    list(self._argv), stdin=theirs_in, stdout=theirs_out, stderr=subprocess.PIPE, start_new_session=True
                )
        finally:
            os.close(theirs_in)
            os.close(theirs_out)

    async def _greet(self) -> bytes:
        words = bytearray(first_words(self._stay))
        while words:
            await self._stdin.write(words)
        noise = b""
        while True:
            noise += await self._stdout.read()
            rest, said = after_hello(noise)
            if rest is not None:
                return rest
            self._said[:] = said[-2000:]
            if len(noise) > LONGEST_NOISE:
                raise await self._refused(f"a login there prints more than {LONGEST_NOISE // 1024} KiB")

    async def _refused(self, why: str) -> LrmUnreachableError:
        with anyio.move_on_after(COMPLAINT_SECONDS):
            await self._hear_complaints()
        lines = bytes(self._said).decode("utf-8", "replace").strip().splitlines()
        told = " / ".join(line.strip() for line in lines[-3:] if line.strip())
        message = f"site {self.site} is away: {'; '.join(filter(None, (why, told))) or CLOSED}"
        if "permission denied" in told.lower():
            by_hand = _by_hand(self._argv)
            hint = f"log in with `koala login {self.site}`, or have `{by_hand}` log in by a key or an agent"
            return LoginNeededError(message, hint=hint)
        return LrmUnreachableError(message, hint=_remedy(told, self._argv))

    async def _last_words(self) -> str:
        return (await self._refused("")).message.partition(" is away: ")[2]

    async def _hear_complaints(self) -> None:
        """Keep the end of what ssh says."""
        if self._process is None or self._process.stderr is None:
            return
        # Another task may read it already: RuntimeError.
        with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, RuntimeError):
            while True:
                self._said += await self._process.stderr.receive()
                del self._said[:-2000]

    async def serve(self) -> str:
        """Serve the connection until it is lost, and return why."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._hear_complaints)
                tasks.start_soon(self._send_all)
                tasks.start_soon(self._ping)
                tasks.start_soon(self._receive_all, tasks)
        except* (ViolationError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError) as group:
            fault = next((str(error) for error in group.exceptions if isinstance(error, ViolationError)), "")
            self._lost = self._lost or fault or await self._last_words()
        finally:
            await self.close(self._lost or CLOSED)
        return self._lost

    async def close(self, why: str) -> None:
        """End the connection, and with it all that was asked for."""
        self._lost = self._lost or why
        for call in self._calls.values():
            call.lost = self._lost
            call.change()
        self._sent.set()  # what still waits to send something sees that it is lost
        for relay in self._relays.values():
            relay.scope.cancel()
        self._stdin.close()
        self._stdout.close()
        process = self._process
        if process is not None:
            with anyio.CancelScope(shield=True):
                for number, patience in ((signal.SIGTERM, ENDING), (signal.SIGKILL, ENDING_KILLED)):
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, number)
                    with anyio.move_on_after(patience):
                        # For asyncio, one whose output was not read to its end has not ended.
                        async with anyio.create_task_group() as tasks:
                            tasks.start_soon(self._hear_complaints)
                            await process.wait()
                            tasks.cancel_scope.cancel()
                        # One that did not end would be waited for without bound.
                        await process.aclose()
                        return

    async def _send_all(self) -> None:
        outgoing = self._streams.outgoing
        while True:
            while outgoing:
                await self._stdin.write(outgoing)
                self._sent.set()
                self._sent = anyio.Event()
            await self._to_send.wait()
            self._to_send = anyio.Event()

    async def _receive_all(self, tasks: TaskGroup) -> None:
        data = self._rest
        while True:
            for event in self._streams.receive(data):
                self._take(event, tasks)
            self._to_send.set()
            while len(self._streams.outgoing) > MOST_UNREAD:
                await self._sent.wait()
            data = await self._stdout.read()

    async def _ping(self) -> None:
        while True:
            await anyio.sleep(PING_INTERVAL)
            with anyio.move_on_after(PING_PATIENCE) as scope:
                await self.ask({"do": "ping"})
            if scope.cancelled_caught:
                self._lost = f"it did not answer for {PING_PATIENCE:g} s"
                raise anyio.EndOfStream

    def _take(self, event: Event, tasks: TaskGroup) -> None:
        number = event.stream
        if event.kind == OPEN:
            if self.center is None or event.content.get("do") != "agent":
                self._streams.reset(number, "not wanted")
                return
            if len(self._relays) >= self._most_agents:
                self._streams.reset(number, "there are too many")
                return
            self._relays[number] = relay = _Relay()
            tasks.start_soon(self._relay, number, relay, self.center)
        elif number in self._relays:
            self._take_of_agent(event, self._relays[number])
        elif number in self._calls:
            self._take_answer(event, self._calls[number])

    def _take_answer(self, event: Event, call: Call) -> None:
        if event.kind == DATA:
            if call.heard is not None:
                call.heard(event.data[1:])
            elif (output := call.output.get(event.data[:1])) is not None:
                output += event.data[1:]
                if call.live:
                    del call.output[b"2"][:-COMPLAINTS_KEPT]
                if len(output) > MOST_OUTPUT:
                    call.lost = f"more than {MOST_OUTPUT} bytes were printed"
            self._streams.grant(event.stream, len(event.data))
        elif event.kind == END:
            call.result = event.content
        elif event.kind == RESET:
            call.lost = str(event.content.get("reason", "given up"))
        call.change()

    def _take_of_agent(self, event: Event, relay: _Relay) -> None:
        if event.kind == DATA:
            try:
                relay.sender.send_nowait(event.data)
            except anyio.WouldBlock:  # no agent says so much in such small pieces
                relay.scope.cancel()
        elif event.kind == END:
            relay.sender.close()
        elif event.kind == RESET:
            relay.scope.cancel()
        elif event.kind == GRANT:
            relay.granted.set()

    # -- requests --

    @property
    def quiet(self) -> bool:
        """Whether no answer is awaited, and nothing waits to be sent."""
        return all(call.live for call in self._calls.values()) and not self._streams.outgoing

    async def ask(
        self,
        request: Mapping[str, Any],
        content: bytes | AsyncIterable[bytes] = b"",
        heard: Callable[[bytes], None] | None = None,
    ) -> tuple[dict[str, Any], bytes, bytes]:
        """Make a request of the gateway and return its result, and what a command printed as output and as error.

        ``content`` may come in pieces, which are asked for as there is room. ``heard`` is called with
        output as it comes, which is then not in the result. Raises OSError for an error at the site,
        LrmUnavailableError when the connection is lost before the answer.
        """
        if self._lost:
            raise LrmUnreachableError(f"site {self.site} is away: {self._lost}")
        try:
            number = self._streams.open(dict(request))
        except ValueError as error:
            raise OSError(errno.EMSGSIZE, str(error)) from error
        self._calls[number] = call = Call(heard)
        if request["do"] == "run":
            self._streams.widen(number, OUTPUT_AHEAD)
        try:
            if isinstance(content, bytes):
                await self._send_content(number, call, content)
            else:
                async for piece in content:
                    await self._send_content(number, call, piece)
                    if call.result is not None or call.lost:
                        break
            self._streams.end(number)
            self._to_send.set()
            while call.result is None and not call.lost:
                await call.changed.wait()
        finally:
            self.give_up(number, call)
        if call.result is None:
            raise LrmUnavailableError(f"the connection to site {self.site} was lost: {call.lost}")
        if "errno" in call.result:
            found = call.result
            number = found["errno"] if isinstance(found["errno"], int) else errno.EIO
            raise OSError(number, str(found.get("error")), str(found.get("path")) or None)
        return call.result, bytes(call.output[b"1"]), bytes(call.output[b"2"])

    def start(self, request: Mapping[str, Any]) -> tuple[int, Call]:
        """Have the gateway start a command that is asked while it runs. Raises LrmUnreachableError."""
        if self._lost:
            raise LrmUnreachableError(f"site {self.site} is away: {self._lost}")
        number = self._streams.open({**request, "do": "run", "live": True})
        self._calls[number] = call = Call(live=True)
        self._to_send.set()
        return number, call

    async def send_to(self, number: int, call: Call, data: bytes) -> None:
        """Send input to a command that runs."""
        await self._send_content(number, call, data)
        self._to_send.set()

    def end_input(self, number: int) -> None:
        """Send a command that runs nothing more."""
        self._streams.end(number)
        self._to_send.set()

    def give_up(self, number: int, call: Call) -> None:
        """Forget a request, and end what it asks for if that goes on."""
        self._calls.pop(number, None)
        if call.result is None and not self._lost:
            self._streams.reset(number, "not wanted any more")
            self._to_send.set()

    async def _send_content(self, number: int, call: Call, content: bytes) -> None:
        left = memoryview(content)
        while left and call.result is None and not call.lost:
            size = min(self._streams.credit(number), len(left), PIECE)
            if not size or len(self._streams.outgoing) > MUCH:
                self._to_send.set()
                await (call.changed.wait() if not size else self._sent.wait())
                continue
            self._streams.send(number, left[:size])
            left = left[size:]

    def tell(self, request: Mapping[str, Any]) -> None:
        """Make a request whose answer is not waited for."""
        self._streams.end(self._streams.open(dict(request)))
        self._to_send.set()

    # -- agents --

    async def _relay(self, number: int, relay: _Relay, center: tuple[str, int]) -> None:
        """Relay the bytes of one agent to the control center and back, until both directions have ended.

        A program that asks for another port is relayed to that, where it may.
        """
        host, port = center
        try:
            with relay.scope:
                with anyio.fail_after(SILENCE):
                    first = await relay.pieces.receive()
                    while may_ask(first):
                        first += await relay.pieces.receive()
                if asked := _ASKING_FOR.match(first):
                    port = int(asked[1])
                    if port not in self._ports:
                        return
                async with await anyio.connect_tcp(host, port) as stream, anyio.create_task_group() as both:
                    await stream.send(first[asked.end() :] if asked else first)
                    self._streams.grant(number, len(first))
                    both.start_soon(self._to_center, number, relay, stream)
                    await self._from_center(number, relay, stream)
        except* (OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            self._relays.pop(number, None)
            relay.sender.close()
            relay.pieces.close()
            self._streams.reset(number, "it has ended")
            self._to_send.set()

    async def _to_center(self, number: int, relay: _Relay, stream: SocketStream) -> None:
        async for piece in relay.pieces:
            await stream.send(piece)
            self._streams.grant(number, len(piece))
            self._to_send.set()
        await stream.send_eof()

    async def _from_center(self, number: int, relay: _Relay, stream: SocketStream) -> None:
        while True:
            while not (credit := self._streams.credit(number)):
                relay.granted = anyio.Event()
                await relay.granted.wait()
            while len(self._streams.outgoing) > MUCH:
                await self._sent.wait()
            try:
                piece = await stream.receive(min(PIECE, credit))
            except anyio.EndOfStream:
                self._streams.end(number)
                self._to_send.set()
                return
            self._streams.send(number, piece)
            self._to_send.set()


def may_ask(first: bytes) -> bool:
    """Tell whether what a program says first could yet become the name of a port: it may come in pieces."""
    return first[: len(ASKING)] == ASKING[: len(first)] and b"\n" not in first and len(first) < LONGEST_ASKING


def _by_hand(argv: Sequence[str]) -> str:
    """Return the command with which a person connects as koala does: its options are those of the site alone."""
    options = argv[: argv.index(NOTHING_LENT[1]) - 1] if NOTHING_LENT[1] in argv else argv[:1]
    return shlex.join((*options, argv[-2]))


def _remedy(told: str, argv: Sequence[str]) -> str:
    """Return what to do about a connection that could not be made, by what ssh and the login said."""
    by_hand = _by_hand(argv)
    low = told.lower()
    if "host key verification failed" in low or "host identification has changed" in low:
        return f"verify the host key of the site, then connect once by hand: {by_hand}"
    if "not found" in low or "no such file" in low or "syntaxerror" in low:
        return "give the path of a Python 3.6 or newer there as `python` of the site (`koala init --python`)"
    if "could not resolve" in low or "timed out" in low or "refused" in low or "unreachable" in low:
        return f"see whether `{by_hand}` connects"
    return f"see what `{by_hand} true` prints"

# SPDX-License-Identifier: Apache-2.0
"""A site that is reached by ssh, as the host of a batch system: one connection, made again when it is lost.

The connection is made with the first request. While it is away, requests fail at once; it is tried again with growing
pauses. What was asked for when it was lost has an unknown outcome, as after a time-out.
"""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import structlog

from koala_adapter.errors import LoginNeededError, LrmUnavailableError, LrmUnreachableError
from koala_adapter.host.containment import report_defect
from koala_adapter.lrm.lrmhost import HostFacts, HostProcess, LrmHost, Measurement
from koala_adapter.sites.link import Call, Link, SiteAddress, Stay, ssh_command

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Mapping, Sequence
    from pathlib import Path

FIRST_PAUSE = 2.0
"""Seconds before a connection that was lost is made again; doubled with each failure."""
LONGEST_PAUSE = 60.0
PORT_PATIENCE = 120.0
"""Seconds for which the port is waited for at which agents look for the gateway, before another one is taken."""
PORT_PAUSE = 5.0
LAST_REQUESTS = 3.0
"""Seconds at the end for requests whose answers nobody waits for, such as the removal of files."""
PINGS = 5
"""Round trips of which the quickest counts."""
FIRST_SIZE, LARGEST_SIZE = 256 * 1024, 4 * 1024 * 1024
"""Bytes of the first and the largest of the transfers of a measurement, each four times the one before."""
ENOUGH_SECONDS = 0.25
"""Seconds of a transfer after which no larger one is made."""
TRIPS = 2
"""Round trips of such a transfer: until the gateway lets more be sent than at first, and until its answer."""

log = structlog.get_logger()


class Conversation(HostProcess):
    """A command at a site that is written to and read from while it runs."""

    pid = None

    def __init__(self, link: Link, number: int, call: Call) -> None:
        self._link, self._number, self._call = link, number, call

    @property
    def running(self) -> bool:
        return self._call.result is None and not self._call.lost

    async def send(self, data: bytes) -> None:
        if not self.running:
            raise anyio.BrokenResourceError
        await self._link.send_to(self._number, self._call, data)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        output = self._call.output[b"1"]
        while not output:
            if not self.running:
                raise anyio.EndOfStream
            await self._call.changed.wait()
        data = bytes(output[:max_bytes])
        del output[:max_bytes]
        return data

    async def end_input(self) -> None:
        self._link.end_input(self._number)

    async def ended(self) -> None:
        while self.running:
            await self._call.changed.wait()

    async def kill(self) -> None:
        self._link.give_up(self._number, self._call)

    def complaints(self) -> bytes:
        failed = str((self._call.result or {}).get("error") or self._call.lost)
        return bytes(self._call.output[b"2"]) or failed.encode()


class RemoteSite(LrmHost):
    """The login node of a site."""

    here = False

    def __init__(
        self, address: SiteAddress, *, title: str = "", port_file: Path | None = None, control: Path | None = None
    ) -> None:
        """``title``: of the gateway in the list of processes there.

        ``port_file``: keeps the port of the gateway over restarts of ours; None: the gateway ends with its connection.
        ``control``: socket of a login in a terminal, which is used while there is one.
        """
        self.name = address.name
        self._command = partial(ssh_command, address, title or address.name, control)
        self._base = address.directory
        self._listen = address.listen
        self.ports = address.ports
        self._center: tuple[str, int] | None = None
        self._ports: set[int] = set()
        self._link: Link | None = None
        self._facts: HostFacts | None = None
        self._port_file = port_file
        self._stay = None
        if port_file is not None:
            self._stay = Stay(title=title or address.name, base=address.directory, lease=address.lease)
        self._alone = ""
        self._port = 0
        if port_file is not None:
            with suppress(OSError, ValueError):
                port = int(port_file.read_text(encoding="ascii"))
                first, last = address.ports
                self._port = port if not last or first <= port <= last else 0
        self._trouble: LrmUnreachableError | None = None
        self._task: asyncio.Task[None] | None = None
        self._kept = anyio.CancelScope()
        """What is shielded within it is not cut off, as it would be where the task is cancelled."""
        self._ends = False
        """It is closed on purpose."""
        self._tried = anyio.Event()
        """Set when the connection that is being made is there, or has failed."""
        self._to_remove: set[str] = set()

    # -- the connection ----------------------------------------------------------------------------------------------

    @property
    def trouble(self) -> str:
        return "" if self._trouble is None else self._trouble.message

    def relay_agents_to(self, host: str, port: int) -> None:
        """Have the connections of agents at the site go to a control center of this host."""
        self._center = (host, port)
        if self._link is not None:
            self._link.center = self._center

    def relay_to(self, port: int) -> None:
        self._ports.add(port)

    @property
    def door(self) -> tuple[str, int]:
        """Address and port of the login node by which agents reach us. Raises LrmUnreachableError."""
        if self._link is None or self._facts is None or not self._port:
            raise self._trouble or LrmUnreachableError(f"site {self.name} is not connected yet")
        return self._listen or self._facts.name, self._port

    async def _connected(self) -> Link:
        """Return the connection, made now if none was tried. Raises LrmUnreachableError."""
        if self._task is None:
            self._kept, self._ends = anyio.CancelScope(), False
            self._task = asyncio.get_running_loop().create_task(self._keep_until_closed())
        if self._link is None and self._trouble is None:
            await self._tried.wait()
        if self._link is None:
            raise self._trouble or LrmUnreachableError(f"site {self.name} is not connected")
        return self._link

    async def _keep_until_closed(self) -> None:
        with self._kept:
            await self._keep()

    async def _keep(self) -> None:
        """Keep a connection until cancelled."""
        pause = FIRST_PAUSE
        while True:
            link = Link(self.name, self._command(), self._ports, stay=self._stay)
            since = anyio.current_time()
            try:
                await link.connect()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._begin, link)
                    reason = await link.serve()
                    tasks.cancel_scope.cancel()
                self._lose(LrmUnreachableError(f"site {self.name} is away: {reason}"))
            except LrmUnreachableError as error:
                self._lose(error)
            except Exception as error:  # noqa: BLE001 - a defect must not end all connections to come
                report_defect("the connection to a site", error, site=self.name)
                self._lose(LrmUnreachableError(f"site {self.name} is away: koala failed: {error!r}"))
            finally:
                await link.close("koala ends")
            if anyio.current_time() - since > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            await anyio.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)

    def _lose(self, error: LrmUnreachableError) -> None:
        if isinstance(error, LoginNeededError) and self._stay is not None:
            # A service says it where messages stand without their hints.
            again = f"{error.message}; log in again with `koala login {self.name}`"
            error = LoginNeededError(again, hint=error.hint)
        if not self._ends and (self._trouble is None or self._trouble.message != error.message):
            log.warning("site is away", site=self.name, reason=str(error))
        self._link, self._trouble = None, error
        self._tried.set()

    async def _begin(self, link: Link) -> None:
        """Learn of the host, and have the gateway listen; then requests go over the connection."""
        try:
            found, _, _ = await link.ask({"do": "facts"})
            before = self._facts
            with self._understood():
                self._facts = _facts(found)
            if before is not None and before.name != self._facts.name and not self._listen:
                why = "earlier agents look for the first: give a name of one login node as `ssh`"
                log.warning(
                    "site is another host now", site=self.name, before=before.name, now=self._facts.name, why=why
                )
            alone, self._alone = self._alone, str(found.get("alone") or "")
            if self._alone and self._alone != alone:
                log.warning("the gateway of a site ends with its connection", site=self.name, reason=self._alone)
            if self._center is not None:
                link.center = self._center
                await self._listen_for_agents(link)
        except (LrmUnavailableError, OSError, LookupError) as error:
            no_address = isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL and self._facts
            why = f"{no_address.name} has no address {self._listen}: another login node?" if no_address else str(error)
            await link.close(f"it cannot be used: {why}")
            return
        for path in self._to_remove:
            link.tell({"do": "remove", "path": path, "base": self._base})
        self._to_remove.clear()
        log.info("site is connected", site=self.name, host=self._facts.name, user=self._facts.user)
        self._link, self._trouble = link, None
        self._tried.set()

    async def _listen_for_agents(self, link: Link) -> None:
        """Have the gateway listen, on the port at which earlier agents look for it, if that becomes free in time."""
        until = anyio.current_time() + PORT_PATIENCE
        port = self._port
        while True:
            try:
                ports = (port, port) if port else self.ports
                found, _, _ = await link.ask({"do": "listen", "address": self._listen, "ports": ports})
            except OSError as error:
                if error.errno != errno.EADDRINUSE or not port:
                    raise
            else:
                break
            if anyio.current_time() > until:
                log.warning("another port is taken for agents", site=self.name, port=port)
                port = 0
            else:
                await anyio.sleep(PORT_PAUSE)
        with self._understood():
            self._port = _whole(found["port"], 0xFFFF)
        if self._port_file is not None:
            self._port_file.write_text(str(self._port), encoding="ascii")

    async def close(self, *, in_use: bool = False) -> None:
        """Finish the requests that were sent without waiting, then close the connection.

        Also end the gateway, unless it is ``in_use`` by agents.
        """
        if self._link is not None:
            with anyio.move_on_after(LAST_REQUESTS), suppress(LrmUnavailableError, OSError):
                await self._link.ask({"do": "resolved", "path": "/"})  # files are done in order
                if not in_use:
                    self._ends = True
                    await self._link.ask({"do": "end"})
        if self._task is not None:
            self._kept.cancel()
            with anyio.CancelScope(shield=True), suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    # -- the network --------------------------------------------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        return self._link is not None and self._link.quiet

    async def measure(self, *, bandwidth: bool = True) -> Measurement:
        """Measure round trips, then move more and more until it takes long enough to tell the bandwidth."""
        link = await self._connected()
        latency = min([await _seconds(link.ask({"do": "ping"})) for _ in range(PINGS)])
        if not bandwidth:
            return Measurement(size=0, seconds=0.0, latency=latency)
        size = FIRST_SIZE
        while True:
            # A command that reads nothing is started when all of its input has arrived.
            request = {"do": "run", "argv": ["true"], "environment": {}}
            took = await _seconds(link.ask(request, os.urandom(size)))
            moving = max(took - TRIPS * latency, took / 4)
            if moving >= ENOUGH_SECONDS or size >= LARGEST_SIZE:
                return Measurement(size=size, seconds=moving, latency=latency)
            size *= 4

    # -- the host ----------------------------------------------------------------------------------------------------

    @property
    def user(self) -> str:
        return "" if self._facts is None else self._facts.user

    async def facts(self) -> HostFacts:
        await self._connected()
        if self._facts is None:
            raise LrmUnreachableError(f"site {self.name} is not connected")
        return self._facts

    async def ask(
        self,
        request: Mapping[str, Any],
        content: bytes | AsyncIterable[bytes] = b"",
        heard: Callable[[bytes], None] | None = None,
    ) -> Mapping[str, Any]:
        """Make a request of the gateway, with a path in the user's directory there unless it is absolute."""
        link = await self._connected()
        found, _, _ = await link.ask({**request, "base": self._base}, content, heard)
        return found

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Raise LrmUnavailableError when an answer lacks what it must have: the gateway may be any program."""
        try:
            yield
        except (LookupError, TypeError, ValueError) as error:
            raise LrmUnavailableError(f"site {self.name} gave an answer that cannot be used: {error}") from error

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", environment: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, bytes]:
        link = await self._connected()
        request = {"do": "run", "argv": list(argv), "environment": dict(environment or {})}
        found, output, complaint = await link.ask(request, stdin)
        with self._understood():
            return _whole(found["status"]), output, complaint

    async def start(self, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> HostProcess:  # noqa: ARG002 - a site has no log here
        link = await self._connected()
        return Conversation(link, *link.start({"argv": list(argv), "environment": dict(environment)}))

    async def programs(self, names: Sequence[str], directory: str = "") -> Mapping[str, str]:
        found = await self.ask({"do": "programs", "names": list(names), "directory": directory})
        return {name: str(found[name]) for name in names if name in found}

    async def resolved(self, path: str) -> str:
        found = await self.ask({"do": "resolved", "path": path})
        with self._understood():
            return str(found["path"])

    async def read(self, path: str) -> bytes:
        status, output, complaint = await self.run(("cat", "--", path))
        if status:
            raise OSError(errno.ENOENT, complaint.decode("utf-8", "replace").strip(), path)
        return output

    async def list_directory(self, path: str) -> Sequence[str]:
        found = await self.ask({"do": "list_directory", "path": path})
        with self._understood():
            return [str(name) for name in found["names"]]

    async def make_directory(self, path: str) -> tuple[str, int]:
        found = await self.ask({"do": "make_directory", "path": path})
        with self._understood():
            return str(found["path"]), _whole(found["mode"])

    async def write_private(self, path: str, content: bytes) -> None:
        await self.ask({"do": "write", "path": path}, content)

    def remove_soon(self, path: str) -> None:
        if self._link is None:
            self._to_remove.add(path)
        else:
            self._link.tell({"do": "remove", "path": path, "base": self._base})


async def _seconds(work: Awaitable[object]) -> float:
    """Return how long something takes."""
    began = anyio.current_time()
    await work
    return anyio.current_time() - began


def _whole(value: object, most: int = 2**31) -> int:
    """Return a whole number of an answer. Raises ValueError."""
    if not isinstance(value, int) or not -most <= value <= most:
        raise ValueError(f"{value!r} is no number of a good size")
    return value


def _facts(found: Mapping[str, Any]) -> HostFacts:
    """Return what an answer tells of a host. Raises LookupError, TypeError and ValueError."""
    return HostFacts(
        name=_name(found["name"]),
        user=_name(found["user"]),
        uid=_whole(found["uid"], 2**32),
        home=str(found["home"]),
        variables={str(name): str(value) for name, value in dict(found["variables"]).items()},
        python=_name(found["python"]),
        interpreter=_name(found["interpreter"]),
    )


def _name(value: object) -> str:
    """Return a name of an answer, without control characters. Raises ValueError."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"{value!r} is no name")
    return value

# SPDX-License-Identifier: Apache-2.0
"""Clients of a local cluster's daemon, here and at another site: they ask it, and start it when it does not run."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import sys
import zipfile
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio.abc import SocketAttribute

import koala_adapter
from koala_adapter.errors import LrmUnavailableError, ProtocolError
from koala_adapter.host.privatedirectory import make_private_directory
from koala_adapter.host.sockets import peer_user
from koala_adapter.host.unixstream import Received
from koala_local.jobs import (
    LAYOUT_NAME,
    LOG_NAME,
    LONGEST_MESSAGE,
    UNHEARD,
    Fields,
    Layout,
    decode,
    encode,
    raise_failure,
    short_path,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import SocketStream

    from koala_adapter.lrm.commands import CommandRunner
    from koala_local.jobs import Message


START_SECONDS = 60.0
"""Bound on the time in which a new daemon must answer; it takes about 0.2 s, and more where a machine is busy."""


class NoDaemonError(LrmUnavailableError):
    """No daemon listens: the request was not sent, so it can be sent again without harm."""


class Daemon(ABC):
    """One cluster's daemon as its plugin sees it. Holds no connection: each request makes its own."""

    def __init__(self, layout: Layout, commands: CommandRunner, *, seconds: float) -> None:
        """``seconds``: the time within which the daemon must answer."""
        self._layout = layout
        self._commands = commands
        self._seconds = seconds

    @abstractmethod
    async def prepare(self) -> None:
        """Make its directory and write down what it must know. Raises LrmUnavailableError."""

    @abstractmethod
    async def _exchange(self, request: bytes) -> Fields:
        """Return the answer to a request. Raises LrmUnavailableError, as NoDaemonError if it was not sent."""

    @abstractmethod
    async def _start(self) -> None:
        """Start the daemon, and return when it answers. Raises LrmUnavailableError."""

    async def ask(self, operation: str, fields: Message | None = None, *, urgent: bool = False) -> Fields:
        """Send one request, to a new daemon when none runs, and return the answer.

        Raises the LrmError that the daemon answers with, and LrmUnavailableError when it does not answer.
        """
        await self._commands.admit(urgent=urgent)
        request = encode({"operation": operation, **(fields or {})})
        with self._commands.timed(operation):
            try:
                answer = await self._exchange(request)
            except NoDaemonError:
                await self._start()
                answer = await self._exchange(request)
            raise_failure(answer)
        return answer


class DaemonClient(Daemon):
    """The daemon of a cluster on this host."""

    def __init__(self, directory: Path, layout: Layout, commands: CommandRunner, *, seconds: float) -> None:
        """``directory``: where it keeps all that it knows."""
        super().__init__(layout, commands, seconds=seconds)
        self._directory = directory

    async def prepare(self) -> None:
        try:
            make_private_directory(self._directory)
            new = self._directory / f"{LAYOUT_NAME}.{os.getpid()}"
            new.write_bytes(encode(self._layout))
            new.replace(self._directory / LAYOUT_NAME)
        except OSError as error:
            hint = "give the state directory to the user who runs koala"
            raise LrmUnavailableError(f"cannot use {self._directory}: {error.strerror}", hint=hint) from error

    async def _exchange(self, request: bytes) -> Fields:
        try:
            with anyio.fail_after(self._seconds):
                async with self._connection() as stream:
                    await stream.send(request)
                    await stream.send_eof()
                    return decode(await _receive_all(Received(stream)))
        except TimeoutError:
            message = f"the daemon of {self._directory} did not answer within {self._seconds:g} s"
            raise LrmUnavailableError(message, hint="it is asked again later") from None
        except (OSError, anyio.BrokenResourceError, ProtocolError) as error:
            message = f"the daemon of {self._directory} does not answer: {error}"
            raise LrmUnavailableError(message, hint=f"see {self._directory / LOG_NAME}") from error

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[SocketStream]:
        try:
            descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                stream = await anyio.connect_unix(short_path(descriptor))
            finally:
                os.close(descriptor)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NoDaemonError(f"no daemon runs for {self._directory}") from error
        async with stream:
            connection = stream.extra_attributes[SocketAttribute.raw_socket]()
            if peer_user(connection) not in {0, os.geteuid()}:
                raise PermissionError("the daemon's socket belongs to another user")
            yield stream

    async def _start(self) -> None:
        await self.prepare()
        roots = dict.fromkeys(str(Path(file or "").parent.parent) for file in (__file__, koala_adapter.__file__))
        # -P: nothing is imported from the current directory.
        argv = [sys.executable, "-P", "-m", "koala_local.daemon", str(self._directory)]
        done = await self._commands.run(argv, environment={"PYTHONPATH": os.pathsep.join(roots)}, timeout=START_SECONDS)
        if done.returncode != 0:
            message = f"the daemon of {self._directory} does not start: {done.complaint}"
            raise LrmUnavailableError(message, hint=f"see {self._directory / LOG_NAME}")


async def _receive_all(stream: Received) -> bytes:
    raw = bytearray()
    while True:
        try:
            raw += await stream.receive(1 << 20)
        except anyio.EndOfStream:
            return bytes(raw)
        if len(raw) > LONGEST_MESSAGE:
            raise ProtocolError("the answer is too long")


# -- At another site -----------------------------------------------------------------------------------------
# Its program is sent there, and each request is a short command.

TRAVELS = {
    "koala_adapter": ("__init__.py", "errors.py", "model.py", "outcome.py", "slots.py"),
    "koala_adapter.host": ("__init__.py", "sockets.py"),
    "koala_local": ("__init__.py", "cluster.py", "daemon.py", "jobs.py", "processes.py"),
}
"""What the daemon is made of, by package."""
MAIN = "import sys\nfrom koala_local.daemon import main\nsys.exit(main(sys.argv[1:]))\n"
OLDEST_PYTHON = (3, 11)


@cache
def program() -> bytes:
    """Return the daemon as one file that Python runs."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for package, names in TRAVELS.items():
            for name in names:
                text = (resources.files(package) / name).read_text(encoding="utf-8")
                # Always the same date: the same program has the same digest.
                archive.writestr(zipfile.ZipInfo(f"{package.replace('.', '/')}/{name}"), text)
        archive.writestr(zipfile.ZipInfo("__main__.py"), MAIN)
    return file.getvalue()


class DaemonElsewhere(Daemon):
    """One cluster's daemon at a site. It goes on when the connection is lost, and is found again by its directory."""

    def __init__(self, state_directory: Path, layout: Layout, commands: CommandRunner, *, seconds: float) -> None:
        """``state_directory``: of the cluster here, which tells it from all others at the site."""
        super().__init__(layout, commands, seconds=seconds)
        owner = f"{socket.gethostname()}:{state_directory}"
        self._name = f"local/{hashlib.sha256(owner.encode()).hexdigest()[:16]}"
        self._command: tuple[str, ...] = ()
        self._directory = ""

    async def prepare(self) -> None:
        """Make its directory there, with the program and what it must know. Raises LrmUnavailableError."""
        host = self._commands.host
        facts = await host.facts()
        if tuple(map(int, facts.python.split(".")[:2])) < OLDEST_PYTHON:
            message = f"plugin local needs Python 3.11 or newer at the site, found {facts.python}"
            raise LrmUnavailableError(message, hint="give the path of one as `python` of the site")
        try:
            self._directory, _ = await host.make_directory(self._name)
            archive = f"{self._directory}/daemon-{hashlib.sha256(program()).hexdigest()[:16]}.pyz"
            if not await host.resolved(archive):
                await host.write_private(archive, program())
            await host.write_private(f"{self._directory}/{LAYOUT_NAME}", encode(self._layout))
        except OSError as error:
            message = f"cannot use {self._directory or self._name} at the site: {error.strerror}"
            raise LrmUnavailableError(message, hint="`koala check` tries the directory of the site") from error
        self._command = (facts.interpreter, "-I", "-S", archive)

    async def _exchange(self, request: bytes) -> Fields:
        if not self._command:
            await self.prepare()
        try:
            with anyio.fail_after(self._seconds):
                argv = (*self._command, self._directory, "ask")
                status, answer, complaint = await self._commands.host.run(argv, stdin=request)
        except TimeoutError:
            message = f"the daemon at the site did not answer within {self._seconds:g} s"
            raise LrmUnavailableError(message, hint="it is asked again later") from None
        except OSError as error:
            raise LrmUnavailableError(f"the daemon at the site cannot be asked: {error}") from error
        if status == UNHEARD:
            raise NoDaemonError(f"no daemon runs in {self._directory} at the site")
        try:
            if status == 0:
                return decode(answer)
        except ProtocolError as error:
            raise LrmUnavailableError(f"the daemon at the site does not answer: {error.message}") from error
        said = complaint.decode("utf-8", "replace").strip().splitlines()[-1:]
        message = f"the daemon at the site cannot be asked: {''.join(said) or f'status {status}'}"
        raise LrmUnavailableError(message, hint=f"see {self._directory}/{LOG_NAME} there")

    async def _start(self) -> None:
        await self.prepare()
        done = await self._commands.run((*self._command, self._directory), timeout=START_SECONDS)
        if done.returncode != 0:
            message = f"the daemon at the site does not start: {done.complaint}"
            raise LrmUnavailableError(message, hint=f"see {self._directory}/{LOG_NAME} there")

# SPDX-License-Identifier: Apache-2.0
"""The daemon of a local cluster at another site: its program is sent there, and each request is a short command."""

from __future__ import annotations

import hashlib
import io
import socket
import zipfile
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import LrmUnavailableError, ProtocolError
from koala_local.client import START_SECONDS, Daemon, NoDaemonError
from koala_local.jobs import LAYOUT_NAME, LOG_NAME, UNHEARD, Fields, decode, encode

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.lrm.commands import CommandRunner
    from koala_local.jobs import Layout

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
            await host.write_private(f"{self._directory}/{LAYOUT_NAME}", encode(self._layout.to_json()))
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

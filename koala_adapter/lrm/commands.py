# SPDX-License-Identifier: Apache-2.0
"""Running an LRM's commands: list of arguments in, bytes out, bounded in time and in rate, environment built anew.

Shared by all command-driven plugins, so that none can forget a time-out or leak our environment into a batch system.
"""

from __future__ import annotations

import getpass
import os
import pwd
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import LrmError, LrmUnavailableError, LrmUnreachableError
from koala_adapter.plugin.sharedwindow import SharedWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import ByteReceiveStream

DEFAULT_TIMEOUT = 30.0
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What a command printed. Never decide on ``returncode`` alone: LRM commands return 0 on refusals, too."""

    argv: tuple[str, ...]
    returncode: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Standard output, decoded without ever failing, into text that can be written as JSON and kept."""
        return self.stdout.decode("utf-8", "backslashreplace")

    @property
    def complaint(self) -> str:
        """Last lines of standard error (or of standard output when that is empty), for an error message."""
        raw = self.stderr if self.stderr.strip() else self.stdout
        lines = raw.decode("utf-8", "replace").strip().splitlines()
        return " / ".join(line.strip() for line in lines[-3:] if line.strip())


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a small environment built from the password file, not inherited: no SLURM_*, SGE_* or PMI_* leaks."""
    entry = pwd.getpwuid(os.geteuid())
    environment = {
        "PATH": os.environ.get("PATH", DEFAULT_PATH),
        "HOME": entry.pw_dir,
        "USER": entry.pw_name,
        "LOGNAME": entry.pw_name,
        "SHELL": entry.pw_shell or "/bin/sh",
        "LC_ALL": "C.UTF-8",
        "TZ": os.environ.get("TZ", ""),
    }
    if not environment["TZ"]:
        del environment["TZ"]
    environment.update(extra or {})
    return environment


def login_name() -> str:
    """Return the login name of the effective user; its number as text when the password file has no entry."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return getpass.getuser()


@dataclass(slots=True, eq=False)
class _Request:
    """A request that is being made."""

    name: str
    begun: float
    """By time.monotonic()."""
    failure: str = ""
    """How it failed: ``status``, ``timeout`` or ``absent``."""


def _unobserved(_name: str, _seconds: float, _failure: str) -> None:
    """Nobody wants to know."""


class CommandRunner:
    """Runs the commands of one cluster within its stated bound of requests per minute."""

    def __init__(
        self, *, per_minute: int = 60, environment: Mapping[str, str] | None = None, shared: Path | None = None
    ) -> None:
        """``environment`` is added to the built one for every command (``SLURM_CONF``, ``SGE_ROOT`` ...).

        ``shared``: file by which all processes that ask this cluster keep within the bound together.
        """
        self.window = SharedWindow(per_minute, shared)
        self.put_off = 0.0
        """Seconds for which requests have waited for the bound, all in all."""
        self._environment = dict(environment or {})
        self.patience: float | None = None
        """Seconds that a request may take at most, whatever whoever makes it allows; None: as long as that."""
        self.unanswered = 0
        """Requests that were given up because there was no answer in time."""
        self._under_way: list[_Request] = []
        self.observer: Callable[[str, float, str], None] = _unobserved
        """Told of each request: program or name, seconds, and how it failed (empty: it did not)."""

    async def admit(self, *, urgent: bool = False) -> None:
        """Wait until one more request to the LRM is within the bound, and count it.

        For requests that are no commands (DRMAA calls); ``run`` does it by itself.
        """
        while (wait := self.window.take(urgent=urgent)) > 0:
            begun = anyio.current_time()
            try:
                await anyio.sleep(wait)
            finally:
                self.put_off += anyio.current_time() - begun

    def bounded(self, timeout: float) -> float:
        """Return how long a request may take that is given so many seconds; ``run`` does it by itself."""
        return timeout if self.patience is None else min(timeout, self.patience)

    @contextmanager
    def timed(self, name: str) -> Iterator[_Request]:
        """Have the observer told of a request by its name; ``run`` does it by itself."""
        request = _Request(name, time.monotonic())
        self._under_way.append(request)
        try:
            yield request
        except LrmUnreachableError:
            request.failure = "absent"
            raise
        except LrmUnavailableError:
            request.failure = "timeout"
            raise
        except LrmError:
            request.failure = "status"
            raise
        finally:
            self._under_way.remove(request)
            self.observer(name, time.monotonic() - request.begun, request.failure)

    @property
    def awaited(self) -> tuple[str, float] | None:
        """The request that has been under way for the longest time, with its seconds; None: none is."""
        if not self._under_way:
            return None
        first = self._under_way[0]
        return first.name, time.monotonic() - first.begun

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        urgent: bool = False,
    ) -> CommandResult:
        """Run one command and return what it printed, whatever its exit status.

        Raises LrmUnreachableError when the program cannot be started, and LrmUnavailableError when it does not end
        within ``timeout`` seconds, or :attr:`patience` (it is killed then, and what it did is unknown).
        """
        await self.admit(urgent=urgent)
        with self.timed(argv[0]) as request:
            result = await self._run(argv, stdin, environment, self.bounded(timeout))
            request.failure = "status" if result.returncode else ""
        return result

    async def _run(
        self, argv: Sequence[str], stdin: bytes, environment: Mapping[str, str] | None, timeout: float
    ) -> CommandResult:
        built = child_environment({**self._environment, **(environment or {})})
        try:
            with anyio.fail_after(timeout):
                returncode, stdout, stderr = await _communicate(argv, stdin, built)
        except TimeoutError:
            self.unanswered += 1
            message = f"{argv[0]} did not answer within {timeout:g} s"
            raise LrmUnavailableError(message, hint="the LRM is overloaded or hangs; it is asked again later") from None
        except OSError as error:
            message = f"cannot run {argv[0]}: {error.strerror or error}"
            raise LrmUnreachableError(
                message, hint="install the LRM's client commands or give their directory"
            ) from error
        return CommandResult(argv=tuple(argv), returncode=returncode, stdout=stdout, stderr=stderr)


@contextmanager
def _in_memory(data: bytes) -> Iterator[int]:
    """Have a child read ``data`` from a file that has no name.

    Not from a pipe: if we were killed while a command reads, it would take the beginning for all of it, and submit the
    first half of a job script.
    """
    descriptor = os.memfd_create("stdin")
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


async def _communicate(argv: Sequence[str], stdin: bytes, environment: Mapping[str, str]) -> tuple[int, bytes, bytes]:
    """Run a command in a session of its own; when the wait is cancelled, kill it with everything it started."""
    with _in_memory(stdin) as source:
        process = await anyio.open_process(
            list(argv), stdin=source, env=environment, start_new_session=True, stderr=subprocess.PIPE
        )
    output: dict[str, bytes] = {}

    async def read(name: str, stream: ByteReceiveStream | None) -> None:
        output[name] = b"".join([chunk async for chunk in stream]) if stream is not None else b""

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, "stdout", process.stdout)
            tasks.start_soon(read, "stderr", process.stderr)
        await process.wait()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        with anyio.CancelScope(shield=True):
            await process.aclose()
    return process.returncode or 0, output["stdout"], output["stderr"]

# SPDX-License-Identifier: Apache-2.0
"""Hosting a service: one owner per state directory, in the foreground, inside ``koala run``, or in the background."""

from __future__ import annotations

import fcntl
import os
import select
import stat
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from koala_adapter.api.server import Server, listening
from koala_adapter.errors import ConfigurationError, ServiceRunningError, ServiceUnavailableError
from koala_adapter.host.privatedirectory import make_private_directory, user_name, weakness
from koala_adapter.scheduler.policies import OWN, Policies
from koala_adapter.service.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from anyio.abc import TaskStatus

    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.host.clock import HostClocks
    from koala_adapter.plugin import PluginDefinition

LOCK_NAME = "service.lock"
LOG_NAME = "service.log"
READY = b"ready\n"
IDLE_LIMIT = 1800
"""Seconds without an unfinished job after which a service that a command started in the background ends."""


def check_directory(directory: Path) -> None:
    """Check that a state directory, if it is there, is this user's, and that no other user can change that.

    Raises ConfigurationError.
    """
    try:
        found = weakness(directory)
        if found:
            raise _unusable(directory, found)
        status = directory.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unusable(directory, error.strerror or str(error)) from error
    if not stat.S_ISDIR(status.st_mode):
        raise _unusable(directory, "it is no directory")
    if status.st_uid != os.geteuid():
        raise _unusable(directory, f"it belongs to {user_name(status.st_uid)}, not to you")


def prepare_directory(directory: Path) -> None:
    """Make the state directory private. Raises ConfigurationError."""
    check_directory(directory)
    try:
        make_private_directory(directory)
    except OSError as error:
        raise _unusable(directory, error.strerror or str(error)) from error


def _unusable(directory: Path, why: str) -> ConfigurationError:
    hint = "give a private directory of your own with --state or $KOALA_STATE"
    return ConfigurationError(f"cannot use the state directory {directory}: {why}", hint=hint)


@contextmanager
def ownership(
    directory: Path,
    role: str = "koala serve",
    *,
    way_out: str = "use it, stop it with `koala serve --stop`",
    inherited: int | None = None,
) -> Iterator[int]:
    """Own a state directory; the kernel gives it free when the last process that has the descriptor ends.

    ``role``: what others are told of the owner, ``way_out``: what they may do beside taking another directory,
    ``inherited``: the descriptor with which another process owned it and started this one. Yields the descriptor.
    Raises ServiceRunningError when another process owns it.
    """
    prepare_directory(directory)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(directory / LOCK_NAME, flags, 0o600) if inherited is None else inherited
        fcntl.fcntl(descriptor, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    except OSError as error:
        raise _unusable(directory, error.strerror or str(error)) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "a koala service"
            raise ServiceRunningError(
                f"{owner} already owns {directory}",
                hint=f"{way_out}, or give another --state directory",
            ) from None
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{role} (pid {os.getpid()})\n".encode(), 0)
        except OSError as error:
            raise _unusable(directory, f"{LOCK_NAME}: {error.strerror}") from error
        yield descriptor
    finally:
        os.close(descriptor)


def wait_until_unowned(directory: Path) -> None:
    """Wait until no process owns a state directory."""
    descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


async def host(
    site: SiteConfig,
    plugins: Mapping[str, PluginDefinition],
    directory: Path,
    *,
    idle_limit: float | None = None,
    clocks: HostClocks | None = None,
    policies: Policies = OWN,
    task_status: TaskStatus[Server] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Run a service with its socket until a client stops it or the task is cancelled. The caller owns the directory.

    ``idle_limit``: it also ends when nothing has been unfinished for so many seconds; None: never. ``clocks``: None:
    those of this machine. ``policies``: those that the scheduler may use.
    """
    # Before anything that takes time: who comes meanwhile waits for the answer, instead of finding nobody.
    async with listening(directory) as listener:
        service = Service(site, plugins, directory, clocks=clocks, policies=policies)
        server = Server(service)
        async with anyio.create_task_group() as tasks:
            await tasks.start(service.run)
            tasks.start_soon(server.serve, listener)
            if idle_limit is not None:
                tasks.start_soon(_stop_when_idle, server, service, idle_limit)
            task_status.started(server)
            await server.stop_wanted.wait()
            tasks.cancel_scope.cancel()


async def _stop_when_idle(server: Server, service: Service, limit: float) -> None:
    idle_since: float | None = None
    while not server.stop_wanted.is_set():
        changed = service.changed
        idle_since = None if service.busy else idle_since or anyio.current_time()
        left = None if idle_since is None else idle_since + limit - anyio.current_time()
        if left is not None and left <= 0:
            server.stop_wanted.set()
            return
        with anyio.move_on_after(left):
            await changed.wait()


def start_in_background(site_file: Path, directory: Path, *, timeout: float = 120.0) -> int:
    """Start ``koala serve`` as a process of its own, return its pid once it answers.

    Raises ServiceRunningError when another process owns the directory, and ServiceUnavailableError with the end of what
    it wrote to its log when it does not come up.
    """
    with ownership(directory, "koala serve, about to start") as lock:
        reader, writer = os.pipe()
        log = os.open(directory / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        earlier = os.fstat(log).st_size
        command = [sys.executable, "-m", "koala_adapter.cli", "--site", str(site_file), "--state", str(directory)]
        command += ["serve", "--ready-descriptor", str(writer), "--lock-descriptor", str(lock)]
        try:
            process = subprocess.Popen(
                [*command, "--end-when-idle", str(IDLE_LIMIT)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(writer, lock),
                start_new_session=True,
                cwd="/",
            )
        finally:
            os.close(writer)
            os.close(log)
    with os.fdopen(reader, "rb") as ready:
        if _read_within(ready.fileno(), timeout) == READY:
            return process.pid
    process.terminate()
    with (directory / LOG_NAME).open("rb") as file:
        file.seek(earlier)
        lines = file.read().decode(errors="replace").strip().splitlines()
    said = "".join(f"\n  {line}" for line in lines[-5:]) or " and said nothing"
    raise ServiceUnavailableError(f"the service did not come up{said}", hint=f"see {directory / LOG_NAME}")


def _read_within(descriptor: int, timeout: float) -> bytes:
    readable, _, _ = select.select([descriptor], [], [], timeout)
    return os.read(descriptor, len(READY)) if readable else b""

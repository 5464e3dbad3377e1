# SPDX-License-Identifier: Apache-2.0
"""The daemon of one local cluster: its side of the socket, and its life as a process.

It does for its jobs what slurmctld and slurmd do together. ``python -m koala_local.daemon DIRECTORY`` returns when the
daemon answers; the daemon itself goes on in a session of its own, until it has had neither jobs nor requests for long
enough. Everything that it knows is in the directory, so it may be killed and started again at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import sys
import time
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from koala_adapter import __version__
from koala_adapter.errors import LrmError, LrmRejectedError, ProtocolError
from koala_adapter.host.sockets import peer_user
from koala_local.cluster import LocalCluster, Request
from koala_local.jobs import (
    LAYOUT_NAME,
    LOG_NAME,
    LONGEST_MESSAGE,
    SOCKET_NAME,
    UNHEARD,
    Fields,
    JobStore,
    Layout,
    NodeUse,
    decode,
    encode,
    failure,
    short_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from koala_local.jobs import Message


# -- Daemon's side of the socket -----------------------------------------------------------------------------
# One request per connection, from processes of the same user only.

READ_SECONDS = 30.0
"""Seconds that a client may take for its request or for reading the answer."""


class Server:
    """Answers requests to a cluster."""

    def __init__(self, cluster: LocalCluster, *, asked: Callable[[], None]) -> None:
        """``asked`` is called for each request, so that the daemon knows that it is still needed."""
        self._cluster = cluster
        self._asked = asked

    async def start(self, listening: socket.socket) -> asyncio.Server:
        """Serve on a bound socket."""
        return await asyncio.start_unix_server(self._serve, sock=listening, backlog=128)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._asked()
        try:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(READ_SECONDS):
                    if peer_user(writer.get_extra_info("socket")) not in {0, os.geteuid()}:
                        return
                    raw = await _read_all(reader)
                    writer.write(encode(self.answer(raw)))
                    await writer.drain()
        finally:
            writer.close()

    def answer(self, raw: bytes) -> Message:
        """Do what one request asks and return the answer."""
        try:
            fields = decode(raw)
            operation = OPERATIONS.get(fields.text("operation"))
            if operation is None:
                raise LrmRejectedError(f"this daemon ({__version__}) cannot {fields.text('operation')!r}")
            return operation(self._cluster, fields)
        except ProtocolError as error:
            return failure(LrmRejectedError(f"request not understood: {error.message}"))
        except LrmError as error:
            return failure(error)


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    raw = bytearray()
    while piece := await reader.read(1 << 20):
        raw += piece
        if len(raw) > LONGEST_MESSAGE:
            raise TimeoutError
    return bytes(raw)


def _configure(cluster: LocalCluster, fields: Fields) -> Message:
    cluster.configure(fields.object("layout").record(Layout))
    return {"version": __version__, "pid": os.getpid()}


def _version(_cluster: LocalCluster, _fields: Fields) -> Message:
    return {"version": __version__, "pid": os.getpid()}


def _nodes(cluster: LocalCluster, _fields: Fields) -> Message:
    return {
        "nodes": [
            NodeUse(
                name=name,
                processors=room.node.processors,
                used=room.node.processors - room.processors,
                memory_mib=room.node.memory_mib,
                memory_used_mib=(room.node.memory_mib or 0) - room.memory_mib,
                gpus=room.node.gpus,
                gpus_used=room.node.gpus - len(room.devices),
            )
            for name, room in cluster.rooms().items()
        ]
    }


def _jobs(cluster: LocalCluster, fields: Fields) -> Message:
    return {"jobs": cluster.jobs(fields.text("prefix"))}


def _submit(cluster: LocalCluster, fields: Fields) -> Message:
    return {"ids": cluster.submit(fields.record(Request))}


Operation: TypeAlias = "Callable[[LocalCluster, Fields], Message]"


def _change(change: Callable[..., None], *arguments: Callable[[Fields], object]) -> Operation:
    """Return the operation that calls a method of the cluster with arguments parsed from the request."""

    def operation(cluster: LocalCluster, fields: Fields) -> Message:
        change(cluster, *(read(fields) for read in arguments))
        return {}

    return operation


_ID, _IDS, _NODES = methodcaller("text", "id"), methodcaller("texts", "ids"), methodcaller("texts", "nodes")

OPERATIONS: Mapping[str, Operation] = {
    "configure": _configure,
    "version": _version,
    "nodes": _nodes,
    "jobs": _jobs,
    "submit": _submit,
    "cancel": _change(LocalCluster.cancel, _IDS),
    "hold": _change(LocalCluster.hold, _IDS),
    "release": _change(LocalCluster.release, _IDS),
    "start_on": _change(LocalCluster.start_on, _ID, _NODES),
    "suspend": _change(LocalCluster.suspend, _IDS),
    "resume": _change(LocalCluster.resume, _IDS),
    "requeue": _change(LocalCluster.requeue, _IDS),
    "signal": _change(LocalCluster.signal, _IDS, methodcaller("integer", "signal")),
    "modify": _change(LocalCluster.modify, _ID, methodcaller("integer", "walltime")),
}


# -- The process ---------------------------------------------------------------------------------------------

PID_NAME = "pid"
LARGEST_LOG = 1 << 20
LONGEST_WAIT = 45
"""Seconds that a new daemon waits for an old one to end."""
FIRST_REQUEST = 60.0
"""Seconds that a new daemon waits for its first request, however short its idle time is."""

log = logging.getLogger("koala_local")


class IdleClock:
    """Ends the daemon when it had neither jobs nor requests for long enough."""

    def __init__(self, cluster: LocalCluster, stop: asyncio.Event) -> None:
        """The clock runs from now."""
        self._cluster = cluster
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._last = time.monotonic()
        self._asked = False
        self._look()

    def asked(self) -> None:
        """Restart the idle time at a request; its length may have changed."""
        self._last = time.monotonic()
        self._asked = True
        self._next.cancel()
        self._look()

    def _look(self) -> None:
        if self._cluster.busy:
            self._last = time.monotonic()
        idle = time.monotonic() - self._last
        limit = self._cluster.layout.idle_seconds
        if not self._asked:
            limit = max(limit, FIRST_REQUEST)
        if idle >= limit:
            log.info("no jobs and no requests for %d s: the end", limit)
            self._stop.set()
        else:
            self._next = self._loop.call_later(limit - idle, self._look)


async def serve(directory: Path, ready: int) -> None:
    """Run the daemon; write to the descriptor ``ready`` when it answers."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    layout = decode((directory / LAYOUT_NAME).read_bytes()).record(Layout)
    loop = asyncio.get_running_loop()
    store = JobStore(directory)
    cluster = LocalCluster(layout, store, directory, loop)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    clock = IdleClock(cluster, stop)
    server = await Server(cluster, asked=clock.asked).start(_listen(directory, descriptor))
    (directory / PID_NAME).write_text(f"{os.getpid()}\n", encoding="ascii")
    log.info("daemon %d serves %s", os.getpid(), directory)
    with contextlib.suppress(BrokenPipeError):
        os.write(ready, b"ready")
    os.close(ready)
    await stop.wait()
    # First the name: whoever comes now starts a new daemon, which waits for our lock.
    for name in (SOCKET_NAME, PID_NAME):
        (directory / name).unlink(missing_ok=True)
    server.close()
    await asyncio.sleep(0)
    cluster.close()
    store.close()


def _listen(directory: Path, descriptor: int) -> socket.socket:
    (directory / SOCKET_NAME).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(short_path(descriptor))
    (directory / SOCKET_NAME).chmod(0o600)
    return listening


def _detach(directory: Path, starting: int) -> int | None:
    """Fork; return in the child the descriptor to report readiness on, in the parent None when it has done so.

    ``starting`` is the lock of those who start a daemon: it stays with the parent. Raises SystemExit in the parent when
    the child ended before it was ready.
    """
    ready_read, ready_write = os.pipe()
    if os.fork() != 0:
        os.close(ready_write)
        if not os.read(ready_read, 5):
            raise SystemExit(f"the daemon did not start; see {directory / LOG_NAME}")
        return None
    os.close(ready_read)
    os.close(starting)
    os.setsid()
    return ready_write


def _redirect(directory: Path) -> None:
    """Connect the standard streams to nothing and to the log."""
    path = directory / LOG_NAME
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    if path.exists() and path.stat().st_size > LARGEST_LOG:
        flags |= os.O_TRUNC
    output = os.open(path, flags, 0o600)
    empty = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((empty, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")


def _take_lock(directory: Path, name: str) -> int:
    """Wait for a lock of the directory, which lasts as long as the descriptor or the process.

    A process that waits longer than LONGEST_WAIT is ended by SIGALRM, or it could take over much later, when its
    client has gone.
    """
    lock = os.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    signal.alarm(LONGEST_WAIT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    signal.alarm(0)
    return lock


def _somebody_listens(directory: Path) -> bool:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(short_path(descriptor))
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    finally:
        os.close(descriptor)
    return True


def ask(directory: Path) -> int:
    """Pass a request from standard input to the daemon of a directory, and its answer to standard output.

    Return 3 if no daemon has heard it.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(short_path(descriptor))
        except (FileNotFoundError, ConnectionRefusedError):
            return UNHEARD
        if peer_user(connection) not in {0, os.geteuid()}:
            sys.stderr.write(f"the daemon's socket in {directory} belongs to another user\n")
            return 1
        connection.sendall(sys.stdin.buffer.read())
        connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(1 << 20):
            sys.stdout.buffer.write(piece)
    return 0


def main(arguments: Sequence[str]) -> int:
    """Start the daemon of a directory, unless one is there already; with ``ask`` behind it, ask that one."""
    directory = Path(arguments[0])
    if arguments[1:] == ["ask"]:
        return ask(directory)
    status = directory.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        sys.stderr.write(f"{directory} must belong to you and be closed to others (chmod 700)\n")
        return 1
    os.umask(0o077)
    starting = _take_lock(directory, "start.lock")
    if _somebody_listens(directory):
        return 0
    ready = _detach(directory, starting)
    if ready is None:
        return 0
    _redirect(directory)
    _take_lock(directory, "lock")
    try:
        asyncio.run(serve(directory, ready))
    except Exception:
        log.exception("the daemon fails")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

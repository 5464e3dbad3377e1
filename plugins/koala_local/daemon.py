# SPDX-License-Identifier: Apache-2.0
"""The daemon of one local cluster: owns its jobs as slurmctld and slurmd together would, until nobody needs it.

``python -m koala_local.daemon DIRECTORY`` returns when the daemon answers; the daemon itself goes on in a session of
its own. Everything that it knows is in the directory, so it may be killed and started again at any moment.
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
from pathlib import Path
from typing import TYPE_CHECKING

from koala_local.cluster import LocalCluster
from koala_local.layout import Layout
from koala_local.protocol import SOCKET_NAME, decode, short_path
from koala_local.server import Server
from koala_local.store import JobStore

if TYPE_CHECKING:
    from collections.abc import Sequence

LAYOUT_NAME = "layout.json"
PID_NAME = "pid"
LOG_NAME = "daemon.log"
LARGEST_LOG = 1 << 20
LONGEST_WAIT = 45
"""Seconds that a new daemon waits for an old one to end."""
FIRST_REQUEST = 60.0
"""Seconds that a new daemon waits at least for whoever started it to ask something, however short its idle time is."""

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
        """Note a request; the idle time may be another one since the last."""
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
    layout = Layout.from_json(decode((directory / LAYOUT_NAME).read_bytes()))
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
    """Wait until nobody else holds a lock of the directory; it goes when the descriptor or the process goes.

    A process that waits longer than LONGEST_WAIT is ended by SIGALRM, or one that nobody waits for any more could take
    over much later.
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


def main(arguments: Sequence[str]) -> int:
    """Start the daemon of the directory that is the only argument, unless one is there already."""
    directory = Path(arguments[0])
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

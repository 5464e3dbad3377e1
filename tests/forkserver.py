# SPDX-License-Identifier: Apache-2.0
"""Processes of ``koala`` that are forked from one which has imported it: a new interpreter takes 0.6 s for that.

Each is a process of its own in every other way: with its own environment, directory, session and output, and with the
same main program; it can be stopped and killed. Run as a program, this module is the process from which they come; it
ends with the process that started it.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import gc
import importlib
import json
import os
import random
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple, TextIO, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

IMPORTED = ("koala", "serve", "schedule", "wiki")
"""Modules of ``koala_adapter.cli``; with them comes what they need."""
LARGEST = 200_000
"""Bytes of an order."""
KEPT = 3
"""Descriptor as which a process finds the one that it is to keep."""
HIGH, END = 200, 1024
"""Descriptors among which nothing is in the way, and beyond all of them."""


class Order(TypedDict):
    """What a process is to be."""

    arguments: list[str]
    environment: dict[str, str]
    directory: str


class Forked:
    """One such process, as ``subprocess.Popen`` would have it."""

    def __init__(self, argv: Sequence[str], status: int) -> None:
        """Wait until it has begun; ``status`` is where its id, and later its exit code, are told."""
        self.args = list(argv)
        self.returncode: int | None = None
        self.stdout: TextIO | None = None
        self.stderr: TextIO | None = None
        self._status = status
        self._said = b""
        self._hear(None)
        if not self._said:
            os.close(status)
            raise ChildProcessError("the process from which others are forked has ended")
        self.pid = int(self._said.split(b"\n")[0])

    def poll(self) -> int | None:
        """Return the exit code, if it has ended; that of a signal is negative."""
        while self.returncode is None and self._hear(0.0):
            pass
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code as soon as it has ended. Raises subprocess.TimeoutExpired after so many seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            if not self._hear(None if until is None else max(0.0, until - time.monotonic())):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def send_signal(self, how: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, how)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return what else it says until nobody can say more, once it has ended.

        Raises subprocess.TimeoutExpired after so many seconds; what was read until then is lost.
        """
        until = None if timeout is None else time.monotonic() + timeout
        said: dict[int, bytes] = {}
        with selectors.DefaultSelector() as selector:
            for stream in (self.stdout, self.stderr):
                if stream is not None and not stream.closed:
                    selector.register(stream.fileno(), selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(None if until is None else max(0.0, until - time.monotonic()))
                if not ready:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                for key, _ in ready:
                    data = os.read(key.fd, LARGEST)
                    said[key.fd] = said.get(key.fd, b"") + data
                    if not data:
                        selector.unregister(key.fd)
        self.wait(None if until is None else max(0.0, until - time.monotonic()))
        return _rest(self.stdout, said), _rest(self.stderr, said)

    def _hear(self, timeout: float | None) -> bool:
        """Take in what is told within so many seconds; return whether there was something."""
        if not select.select([self._status], [], [], timeout)[0]:
            return False
        data = os.read(self._status, 100)
        self._said += data
        lines = self._said.split(b"\n")
        if len(lines) > 2 or not data:  # without a word of the end, nobody is left who could know it
            self.returncode = int(lines[1]) if len(lines) > 2 else -signal.SIGKILL
            os.close(self._status)
        return True


def _rest(stream: TextIO | None, said: Mapping[int, bytes]) -> str:
    """Close a stream, and return what it brought."""
    if stream is None or stream.closed:
        return ""
    text = said[stream.fileno()].decode()
    stream.close()
    return text


class Source(NamedTuple):
    """The process from which others come."""

    process: subprocess.Popen[bytes]
    orders: socket.socket

    def end(self) -> None:
        """Let it end."""
        self.orders.close()
        self.process.wait()


@functools.cache
def source() -> Source:
    """Start it, once in each process that runs tests."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forkserver", str(its.fileno())],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
            start_new_session=True,
        )
    made = Source(process, ours)
    atexit.register(made.end)
    return made


def start(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: Path,
    output: int,
    errors: int,
    keep: int | None = None,
) -> Forked:
    """Start ``koala`` with arguments; it finds the descriptor ``keep``, if any, as KEPT."""
    order = Order(arguments=[*arguments], environment={**environment}, directory=str(directory))
    told, telling = os.pipe()
    try:
        text = json.dumps(order).encode()
        socket.send_fds(source().orders, [text], [telling, output, errors, *([] if keep is None else [keep])])
    finally:
        os.close(telling)
    return Forked(arguments, told)


def start_heard(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: Path,
    output: int | None = None,
    keep: int | None = None,
) -> Forked:
    """As ``start``, but what it says can be read; ``output``: where its standard output goes instead."""
    (out, its_out), (err, its_err) = os.pipe(), os.pipe()
    try:
        process = start(
            arguments,
            environment=environment,
            directory=directory,
            output=its_out if output is None else output,
            errors=its_err,
            keep=keep,
        )
    except BaseException:
        os.close(out)
        os.close(err)
        raise
    finally:
        os.close(its_out)
        os.close(its_err)
    process.stderr = os.fdopen(err)
    if output is None:
        process.stdout = os.fdopen(out)
    else:
        os.close(out)
    return process


# -- the process itself ------------------------------------------------------------------------------------------------


def serve(orders: socket.socket) -> list[str] | None:
    """Fork a process for each order; return in each of these with its arguments, and with None when nobody asks."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(orders, LARGEST, 4)
        if not data:
            return None
        if os.fork() == 0:
            orders.detach()
            return become(json.loads(data), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def become(order: Order, descriptors: Sequence[int]) -> list[str]:
    """Return as the process that was ordered; another one waits for its end and tells it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status, *rest = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, HIGH) for one in descriptors]
    pid = os.fork()
    if pid:
        os.closerange(0, HIGH)
        os.closerange(status + 1, END)
        os.write(status, b"%d\n" % pid)
        _, how = os.waitpid(pid, 0)
        os.write(status, b"%d\n" % os.waitstatus_to_exitcode(how))
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for place, one in enumerate([nothing, *rest]):
        os.dup2(one, place)
    os.closerange(1 + len(rest), END)
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    random.seed()
    return order["arguments"]


def main() -> None:
    """Import what all need, and serve; what was forked goes on as ``koala``."""
    for name in IMPORTED:
        importlib.import_module(f"koala_adapter.cli.{name}")
    plugins = importlib.import_module("koala_adapter.lrm")
    plugins.load_plugins()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody need ask how those ended that wait
    arguments = serve(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        sys.argv = ["koala", *arguments]
        importlib.import_module("koala_adapter.cli").main()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""No benchmark waits for ever, and nothing that it has started outlives it, however it ends.

All that a benchmark starts has its temporary directories in one that is made here, and so names that in its command
line or environment. A process beside the benchmark waits until that has ended, also by SIGKILL, and ends what is left.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

LIMIT = 2 * 3600
"""Seconds that a benchmark may take."""
PATIENCE = 60.0
"""Seconds within which what is left of a benchmark has ended; a process may begin others before it is ended."""
ROOT = Path("/tmp")  # noqa: S108 - its directories are private
"""Paths of Unix sockets are short: those below a long temporary directory would not do."""


def begin(limit: int = LIMIT) -> None:
    """Have this process end after ``limit`` seconds or by SIGTERM with its clean-up, and all that it starts with it."""
    directory = tempfile.mkdtemp(prefix="kb-", dir=ROOT)
    with subprocess.Popen(
        [sys.executable, __file__, str(os.getpid()), directory],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as watcher:
        if watcher.stdout is None or not watcher.stdout.readline():
            raise SystemExit("what ends the processes of the benchmark has not started")
        watcher.returncode = 0  # it is not waited for: it ends after this process
    tempfile.tempdir = os.environ["TMPDIR"] = directory
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(limit)


def _end(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _give_up(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit("the benchmark has taken longer than it may")


def watch(pid: int, directory: Path) -> None:
    """Wait until a process has ended; then end all that names the directory, and remove that."""
    descriptor = os.pidfd_open(pid)
    print("watching", flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    select.select([descriptor], [], [])
    until = time.monotonic() + PATIENCE
    while (left := naming(directory)) and time.monotonic() < until:
        for one in left:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.1)
    shutil.rmtree(directory, ignore_errors=True)


def naming(directory: Path) -> list[int]:
    """Return the other processes of this user that have a directory in their command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if os.fsencode(directory) in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


if __name__ == "__main__":
    watch(int(sys.argv[1]), Path(sys.argv[2]))

# SPDX-License-Identifier: Apache-2.0
"""The window that processes share: the bound holds for all of them together, and a bad file stops nobody."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from koala_adapter.lrm.rate import (
    LOCKED_AT_MOST,
    LOCKED_PAUSE,
    SUFFIX,
    UNUSED_AFTER,
    SharedWindow,
    prepare_directory,
    window_path,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ASKER = """
import json, sys, time
from pathlib import Path
from koala_adapter.lrm.rate import SharedWindow

window = SharedWindow(int(sys.argv[2]), Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
end = time.monotonic() + 2
while time.monotonic() < end and window.total < 1000:
    wait = window.take()
    if 0 < wait < 1:
        time.sleep(wait)
    elif wait:
        break
print(json.dumps([window.total, window.largest]), flush=True)
"""


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        """Some time after the boot."""
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the present time."""
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the file of a batch system in a private directory."""
    prepare_directory(tmp_path / "requests", now=0.0)
    return window_path(tmp_path / "requests", "slurm", "{}")


@pytest.fixture
def locked(path: Path) -> Iterator[None]:
    """Keep the file locked, as a process that was stopped would."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)


def test_processes_together_keep_within_the_bound(path: Path) -> None:
    """Three processes that ask as fast as they may send as many requests as one would, and all know of it."""
    command = [sys.executable, "-c", ASKER, str(path), "100"]
    pipe = subprocess.PIPE
    askers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(3)]
    for asker in askers:
        assert asker.stdout is not None
        assert asker.stdout.readline() == "ready\n"
    told = [json.loads(asker.communicate("go\n")[0]) for asker in askers]
    assert sum(total for total, _ in told) == 80
    assert max(largest for _, largest in told) == 80


def test_another_process_leaves_the_urgent_share(path: Path) -> None:
    """What one has used up, another has to wait for, until the minute is over; a cancel goes."""
    clock = Clock()
    one, other = SharedWindow(10, path, clock=clock), SharedWindow(10, path, clock=clock)
    assert [one.take() for _ in range(8)] == [0.0] * 8
    clock.now += 20
    assert other.take() == 40.0
    assert other.take(urgent=True) == 0.0
    clock.now += 40
    assert other.take() == 0.0
    assert (one.total, other.total) == (8, 2)
    assert (one.largest, other.largest) == (8, 9)


def test_each_keeps_its_own_bound(path: Path) -> None:
    """Where two have been given different bounds, each counts all requests against its own."""
    clock = Clock()
    modest, generous = SharedWindow(5, path, clock=clock), SharedWindow(100, path, clock=clock)
    assert [generous.take() for _ in range(10)] == [0.0] * 10
    assert modest.take() == 60.0
    assert generous.take() == 0.0


@pytest.mark.parametrize("content", [b"", b"odd", b"\xff" * 64, b"\0" * 8000])
def test_a_damaged_file_is_mended(path: Path, content: bytes) -> None:
    """What is not the time of a request within the last minute counts for nothing and is gone after the next."""
    path.write_bytes(content)
    clock = Clock()
    assert SharedWindow(2, path, clock=clock).take() == 0.0
    assert path.stat().st_size == 8
    assert SharedWindow(2, path, clock=clock).take() == 60.0


def test_a_file_that_cannot_be_used_leaves_the_bound_of_the_process(tmp_path: Path) -> None:
    """Without the file a process counts by itself."""
    window = SharedWindow(5, tmp_path / "missing" / "file", clock=Clock())
    assert [window.take() for _ in range(4)] == [0.0] * 4
    assert window.take() == 60.0


@pytest.mark.usefixtures("locked")
def test_a_stopped_process_does_not_stop_the_others(path: Path) -> None:
    """Who does not get the lock tries again, and after some seconds goes on by itself."""
    clock = Clock()
    window = SharedWindow(5, path, clock=clock)
    assert window.take() == LOCKED_PAUSE
    clock.now += LOCKED_AT_MOST
    assert [window.take() for _ in range(4)] == [0.0] * 4
    assert window.take() == 60.0


def test_files_out_of_use_are_removed(path: Path) -> None:
    """The file of a batch system that nobody has asked for a day goes, others stay."""
    SharedWindow(5, path).take()
    old = path.with_name(f"old{SUFFIX}")
    SharedWindow(5, old).take()
    now = path.stat().st_mtime
    os.utime(old, (now - UNUSED_AFTER, now - UNUSED_AFTER))
    prepare_directory(path.parent, now=now + 1)
    assert list(path.parent.iterdir()) == [path]


def test_a_file_removed_meanwhile_is_made_anew(path: Path) -> None:
    """A window goes on in a new file when somebody has removed the old one."""
    window = SharedWindow(5, path)
    window.take()
    path.unlink()
    assert window.take() == 0.0
    assert path.stat().st_mode & 0o777 == 0o600


def test_each_batch_system_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Whatever identifies it, in whichever words."""
    paths = {window_path(tmp_path, *words) for words in (("a", "b"), ("ab",), ("a", "c"), ("a", "b"))}
    assert len(paths) == 3

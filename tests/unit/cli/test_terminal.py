# SPDX-License-Identifier: Apache-2.0
"""A terminal that goes away is one hangup, and nothing that is written to it afterwards fails."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from koala_adapter.cli.terminal import TerminalWriter, hangup_once


def test_what_is_written_after_the_end_of_the_terminal_goes_nowhere() -> None:
    """The first failure is told, once; every byte counts as written."""
    told: list[str] = []
    master, slave = os.openpty()
    writer = TerminalWriter(slave, hang_up=lambda: told.append("hangup"))
    assert writer.write(b"seen") == 4
    assert os.read(master, 100) == b"seen"
    os.close(master)
    assert told == []
    assert (writer.write(b"unseen"), writer.write(b"nor this")) == (6, 8)
    assert told == ["hangup"]
    os.close(slave)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_other_troubles_of_writing_are_raised() -> None:
    """Only the end of a terminal is a hangup."""
    descriptor = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match="No space left"):
        TerminalWriter(descriptor).write(b"x")
    os.close(descriptor)


def test_a_hangup_that_comes_twice_counts_once() -> None:
    """The kernel, a shell and a failed write tell of the same one."""
    heard: list[int] = []
    handler = hangup_once(lambda number, _frame: heard.append(number))
    handler(signal.SIGHUP, None)
    handler(signal.SIGHUP, None)
    assert heard == [signal.SIGHUP]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_descriptors_are_opened(tmp_path: Path, closed: str) -> None:
    """No file that a command opens gets the number of a standard descriptor, and printing fails nobody."""
    program = (
        "import os, sys\n"
        "from koala_adapter.cli.terminal import open_standard_descriptors\n"
        "open_standard_descriptors()\n"
        "opened = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n"
        "print('out'); print('err', file=sys.stderr); assert sys.stdin is not None; sys.stdout.flush()\n"
        "os.write(opened, b'2 < %d' % opened)\n"
        "assert opened > 2\n"
    )
    command = shlex.join([sys.executable, "-c", program, str(tmp_path / "opened")])
    subprocess.run(["sh", "-c", f"exec {command} {closed}"], check=True)
    assert (tmp_path / "opened").read_text().startswith("2 < ")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_command_works_with_a_closed_descriptor(tmp_path: Path, closed: str) -> None:
    """It ends as it does otherwise."""
    command = shlex.join([sys.executable, "-m", "koala_adapter.cli", "--state", str(tmp_path), "docs", "jobfile"])
    done = subprocess.run(["sh", "-c", f"exec {command} {closed}"], check=False, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")

# SPDX-License-Identifier: Apache-2.0
"""A terminal that goes away is one hangup, and nothing that is written to it afterwards fails."""

from __future__ import annotations

import os
import signal
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

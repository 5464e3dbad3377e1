# SPDX-License-Identifier: Apache-2.0
"""``koala top`` on a terminal, beside a live service."""

from __future__ import annotations

import os
import select

import pytest

from tests.local_koala import LIVENESS, Gate, Koala, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def read_until(terminal: int, wanted: str) -> str:
    """Return what comes on a terminal up to a text that must come."""
    seen = b""
    while wanted.encode() not in seen:
        assert select.select([terminal], [], [], LIVENESS)[0], seen
        seen += os.read(terminal, 65_536)
    return seen.decode(errors="replace")


def test_keys_explain_and_cancel_a_job(koala: Koala) -> None:
    """The job is shown; e says why, c and y cancel it, q ends and leaves the terminal as it was."""
    koala.serve()
    gate = Gate(koala.directory / "gate")
    job_id = koala.inside("submit", koala.job(gate.wait, name="watched")).stdout.split()[1]
    eventually(lambda: koala.state_of(job_id) == "running")
    process, terminal = koala.start_on_terminal("top", "--interval", "0.2")
    try:
        assert "alpha" in read_until(terminal, "watched")
        os.write(terminal, b"e")
        read_until(terminal, "has been running for")
        os.write(terminal, b"c")
        read_until(terminal, f"cancel job {job_id}?")
        os.write(terminal, b"n")
        os.write(terminal, b"c")
        read_until(terminal, f"cancel job {job_id}?")
        os.write(terminal, b"y")
        read_until(terminal, "cancelled")
        eventually(lambda: koala.state_of(job_id) == "cancelled")
        os.write(terminal, b"q")
        read_until(terminal, "\x1b[?1049l")
        assert process.wait(LIVENESS) == 0
    finally:
        os.close(terminal)


def test_it_needs_a_terminal_or_shows_itself_once(koala: Koala) -> None:
    """Without a service it says how to have one."""
    assert "koala serve" in koala.inside("top", "--once", check=246).stderr
    koala.serve()
    refused = koala.run("top", check=245)
    assert "--once" in refused.stderr
    shown = koala.run("top", "--once").stdout
    assert "alpha" in shown
    assert "no jobs" in shown

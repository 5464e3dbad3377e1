# SPDX-License-Identifier: Apache-2.0
"""A service in a real process, and the command that has started it."""

from __future__ import annotations

import os
import shlex
import subprocess

import pytest

from tests.local_koala import LIVENESS, Koala

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_a_service_outlives_the_command_that_waits_for_it(koala: Koala) -> None:
    """Who started it may be killed before it is up: it serves all the same, and ends when it is told to."""
    reader, writer = os.pipe()
    os.close(reader)
    process = koala.start_anew("serve", "--ready-descriptor", str(writer), pass_fds=(writer,))
    os.close(writer)
    assert koala.client.wait_until_running(LIVENESS)
    koala.run("serve", "--stop")
    _, said = process.communicate(timeout=LIVENESS)
    assert process.returncode == 0, said
    assert "defect" not in said


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors_make_no_second_owner(koala: Koala, closed: str) -> None:
    """The service that a command with closed descriptors starts owns the directory, and its log is a log."""
    command = shlex.join(koala.command("submit", koala.job("true")))
    done = subprocess.run(
        ["sh", "-c", f"exec {command} {closed}"],
        env=koala.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIVENESS,
    )
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    refused = koala.run("serve", check=246)
    assert "already owns" in refused.stderr
    koala.run("serve", "--stop")

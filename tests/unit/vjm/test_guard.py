# SPDX-License-Identifier: Apache-2.0
"""The process that ends what a killed agent leaves, and leaves alone what an agent has ended itself."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

AGENT = """
import os, sys
from koala_adapter.vjm.agent.place import claim_directory
from koala_adapter.vjm.agent.place import Guard

directory, session, dismissed = sys.argv[1:]
guard = Guard("b")
guard.start(directory, claim_directory(directory))
guard.watch(int(session))
if dismissed == "True":
    guard.dismiss()
os._exit(0)
"""


@pytest.mark.parametrize("dismissed", [False, True])
def test_what_is_left_is_ended_unless_the_agent_has_seen_to_it(tmp_path: Path, *, dismissed: bool) -> None:
    """Looking through all processes of a node takes longer than all else that a guard does."""
    directory = tmp_path / "koala"
    (directory / "1").mkdir(parents=True)
    lock = os.open(directory, os.O_RDONLY)
    environment = {"KOALA_STDOUT": f"{directory}/1/out"}
    with subprocess.Popen(["/bin/sleep", "900"], env=environment, start_new_session=True) as task:
        subprocess.run([sys.executable, "-c", AGENT, str(directory), str(task.pid), str(dismissed)], check=True)
        fcntl.flock(lock, fcntl.LOCK_EX)  # given up by the end of the guard
        os.close(lock)
        if dismissed:
            assert task.poll() is None
            task.kill()
    assert task.returncode == -9
    assert directory.exists() is dismissed

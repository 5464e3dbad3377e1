# SPDX-License-Identifier: Apache-2.0
"""Who owns a state directory while another process still has the descriptor of its lock."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from koala_adapter.api import statedirectory
from koala_adapter.api.statedirectory import LOCK_NAME, ownership, prepare_directory
from koala_adapter.errors import ServiceRunningError

if TYPE_CHECKING:
    from pathlib import Path


def locked(directory: Path, owner: int) -> int:
    """Lock a state directory in the name of a process; return the descriptor."""
    prepare_directory(directory)
    descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.pwrite(descriptor, f"koala serve (pid {owner})\n".encode(), 0)
    return descriptor


def dead() -> int:
    """Return the number of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def test_what_a_killed_owner_had_begun_to_start_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the descriptor of the lock until it runs its program."""
    descriptor = locked(tmp_path / "state", dead())
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        os.close(descriptor)

    monkeypatch.setattr("koala_adapter.api.statedirectory.time.sleep", sleep)
    with ownership(tmp_path / "state"):
        assert len(waited) == 1
        assert (tmp_path / "state" / LOCK_NAME).read_text() == f"koala serve (pid {os.getpid()})\n"


@pytest.mark.parametrize("alive", [True, False])
def test_who_goes_on_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, alive: bool) -> None:
    """An owner that runs is not waited for, and what a dead one has left behind not for ever."""
    owner = os.getpid() if alive else dead()
    descriptor = locked(tmp_path / "state", owner)
    waited: list[float] = []
    monkeypatch.setattr("koala_adapter.api.statedirectory.time.sleep", waited.append)
    monkeypatch.setattr(statedirectory, "LEFT_BY_THE_KILLED", 0.01)
    said = rf"koala serve \(pid {owner}\) already owns"
    with pytest.raises(ServiceRunningError, match=said), ownership(tmp_path / "state"):
        pass
    assert not (alive and waited)
    os.close(descriptor)


def test_an_inherited_number_that_is_another_file_is_not_believed(tmp_path: Path) -> None:
    """The file is neither changed nor locked, and the directory is owned all the same."""
    other = tmp_path / "service.log"
    other.write_text("what was logged")
    descriptor = os.open(other, os.O_RDWR)
    directory = tmp_path / "state"
    try:
        with (
            ownership(directory, inherited=descriptor),
            pytest.raises(ServiceRunningError),
            ownership(directory),
        ):
            raise AssertionError("not reached")
    finally:
        os.close(descriptor)
    assert other.read_text() == "what was logged"


def test_the_lock_is_never_a_standard_descriptor(tmp_path: Path) -> None:
    """A service that inherits it would have its output there."""
    program = (
        "import os, sys; from pathlib import Path; from koala_adapter.api.statedirectory import ownership\n"
        "os.close(0); os.close(1)\n"
        "with ownership(Path(sys.argv[1])) as lock: assert lock > 2, lock\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "state")], check=True)

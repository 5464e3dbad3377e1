# SPDX-License-Identifier: Apache-2.0
"""The example whose processes compute in step: its result is the same for whatever sizes it has had."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.application.shipping import FILE_NAME, library_file
from tests.unit.application.koala_end import LIVENESS, KoalaEnd

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAT = Path(__file__).parents[3] / "examples" / "malleable" / "heat.py"
ALONE = "5f83ab43ad8d9cd9b089adb07aa56d3b91cbab1546aec59fbf907cd93e648f8f"
"""The result of a hundred steps."""


class Rod:
    """Processes of the example, ended with the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / FILE_NAME).write_text(library_file(), encoding="utf-8")
        (directory / "authkey").write_bytes(b"of this test")
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, seconds: float, **environment: str) -> subprocess.Popen[str]:
        """Start a process."""
        known = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.directory), **environment}
        process = subprocess.Popen(
            [sys.executable, str(HEAT), "100", str(seconds)],
            stdout=subprocess.PIPE, env=known, cwd=self.directory, text=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def join(self, koala: KoalaEnd, rank: int) -> subprocess.Popen[str]:
        """Start a process under koala."""
        return self.start(0.02, KOALA_APP_SOCKET=str(koala.path(rank)), KOALA_RANK=str(rank))


@pytest.fixture
def rod(tmp_path: Path) -> Iterator[Rod]:
    """Give what starts the example."""
    with ExitStack() as stack:
        rod = Rod(tmp_path)
        yield rod
        for process in rod.processes:
            stack.enter_context(process)
            process.kill()


def test_alone_it_computes_what_it_should(rod: Rod) -> None:
    """Outside koala the program is a rigid one of one process."""
    assert rod.start(0).communicate(timeout=LIVENESS)[0].splitlines() == ["sizes 1", f"result {ALONE}"]


def test_growing_and_shrinking_changes_no_bit_of_the_result(rod: Rod) -> None:
    """From 2 to 4 processes, to 2 others, and to 3: the state moves with them."""
    with KoalaEnd(rod.directory, 2) as koala:
        koala.coordinator.address = "127.0.0.1"
        processes = {rank: rod.join(koala, rank) for rank in range(4)}
        koala.begin([0, 1, 2, 3])
        koala.begin([0, 3])
        processes[4] = rod.join(koala, 4)
        koala.begin([0, 3, 4])
        koala.wait(lambda: koala.coordinator.finished == 3)
        assert [processes[rank].communicate(timeout=LIVENESS)[0] for rank in (1, 2, 3, 4)] == [""] * 4
        assert processes[0].communicate(timeout=LIVENESS)[0].splitlines() == ["sizes 2 4 2 3", f"result {ALONE}"]
        assert [process.returncode for process in processes.values()] == [0] * 5
        assert koala.coordinator.errors == []

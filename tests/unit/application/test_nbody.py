# SPDX-License-Identifier: Apache-2.0
"""The n-body programs over real sockets, with koala's library and with their own: the same to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from koala_adapter.application.shipping import FILE_NAME, library_file
from tests.nbody import ALONE, BODIES, EXAMPLES, STEPS, sizes_and_digest
from tests.unit.application.koala_end import LIVENESS, KoalaEnd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIBRARIES = pytest.mark.parametrize("library", ["koala_app", "byhand"])


class Programs:
    """Processes of an example, ended with the test."""

    def __init__(self, directory: Path, library: str) -> None:
        self.directory = directory
        (directory / FILE_NAME).write_text(library_file(), encoding="utf-8")
        (directory / "authkey").write_bytes(b"of this test")
        self.library = library
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, name: str, *more: str, **environment: str) -> subprocess.Popen[str]:
        """Start a process."""
        known = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.directory), "NBODY_LIBRARY": self.library}
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / name), str(BODIES), str(STEPS), *more],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=known | environment, cwd=self.directory, text=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def join(self, koala: KoalaEnd, rank: int, name: str, *more: str, **environment: str) -> subprocess.Popen[str]:
        """Start a process under koala."""
        own = {"KOALA_APP_SOCKET": str(koala.path(rank)), "KOALA_RANK": str(rank)}
        return self.start(name, "0.02", *more, **own, **environment)


@pytest.fixture
def programs(tmp_path: Path, library: str) -> Iterator[Programs]:
    """Give what starts an example."""
    with ExitStack() as stack:
        programs = Programs(tmp_path, library)
        yield programs
        for process in programs.processes:
            stack.enter_context(process)
            process.kill()


@LIBRARIES
def test_alone_it_computes_what_it_should(programs: Programs) -> None:
    """Outside koala the program is a rigid one of one process."""
    said, complaints = programs.start("evolving.py", "0").communicate(timeout=LIVENESS)
    assert sizes_and_digest(said) == ([1], ALONE), complaints


@LIBRARIES
def test_growing_and_shrinking_changes_no_bit_of_the_result(programs: Programs) -> None:
    """From 2 to 4 processes, to 2 others, and to 3: the bodies move with them."""
    with KoalaEnd(programs.directory, 2) as koala:
        koala.coordinator.address = "127.0.0.1"
        processes = {rank: programs.join(koala, rank, "malleable.py") for rank in range(4)}
        koala.begin([0, 1, 2, 3])
        koala.begin([0, 3])
        processes[4] = programs.join(koala, 4, "malleable.py")
        koala.begin([0, 3, 4])
        koala.wait(lambda: koala.coordinator.finished == 3)
        for rank in (1, 2, 3, 4):
            assert processes[rank].communicate(timeout=LIVENESS) == ("", "")
        said, complaints = processes[0].communicate(timeout=LIVENESS)
        assert sizes_and_digest(said) == ([2, 4, 2, 3], ALONE), complaints
        assert [process.returncode for process in processes.values()] == [0] * 5
        assert koala.coordinator.errors == []


@LIBRARIES
def test_it_decides_about_offers_as_it_is_told(programs: Programs) -> None:
    """A program of 2 that wants powers of two: it takes 2 of 3, declines 1, and gives up 1 or nothing at all."""
    with KoalaEnd(programs.directory, 2, maximum=8) as koala:
        koala.coordinator.address = "127.0.0.1"
        for rank in range(2):
            programs.join(koala, rank, "malleable.py", NBODY_SIZES="power-of-two")
        koala.wait(lambda: koala.coordinator.phase == "idle")
        declined = koala.first_event(koala.offer(1, "grow"))
        assert (declined.kind, declined.state) == ("ended", "rejected")
        countered = koala.first_event(koala.offer(3, "grow", minimum=1, maximum=3))
        assert countered.kind == "offer"
        assert countered.template is not None
        assert countered.template.quantity("CPU") == 2

# SPDX-License-Identifier: Apache-2.0
"""The calls of the library, in Python and in C, over real sockets: the same program in both, and the same answers."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.application.libraryfile import FILE_NAME, library_file
from koala_adapter.negotiation import applicationside as nt
from tests.unit.application.koala_end import Driver, KoalaEnd

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(kw_only=True)
class Stage:
    """What starts programs."""

    command: list[str]
    directory: Path
    drivers: list[Driver] = field(default_factory=list)

    def start(self, **environment: str) -> Driver:
        """Start a program with these variables alone."""
        driver = Driver(self.command, {"PATH": os.environ["PATH"], **environment})
        self.drivers.append(driver)
        return driver

    def process(self, koala: KoalaEnd, rank: int, *, sizes: str = "any") -> Driver:
        """Start a process of the program, which begins to join."""
        driver = self.start(KOALA_APP_SOCKET=str(koala.path(rank)), KOALA_RANK=str(rank), KOALA_SIZE="77")
        driver.tell(f"join {sizes} node{rank}:{4000 + rank}")
        return driver

    def joined(self, koala: KoalaEnd, *, sizes: str = "any") -> list[Driver]:
        """Start the first processes, and let them join."""
        drivers = [self.process(koala, rank, sizes=sizes) for rank in koala.coordinator.first]
        assert [one.hear() for one in drivers] == ["joined"] * len(drivers)
        return drivers


@pytest.fixture(scope="module")
def python_command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Give the command of the driver in Python, with the file as it travels."""
    directory = tmp_path_factory.mktemp("library")
    (directory / FILE_NAME).write_text(library_file(), encoding="utf-8")
    return [sys.executable, "-W", "error", str(Path(__file__).with_name("driver.py")), str(directory)]


@pytest.fixture(params=["python"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """Give what starts programs in either language, and ends them."""
    stage = Stage(command=request.getfixturevalue(f"{request.param}_command"), directory=tmp_path)
    yield stage
    for driver in stage.drivers:
        driver.kill()


def test_outside_koala_all_calls_work(stage: Stage) -> None:
    """Without koala the program is alone, or what it was started as, and nothing ever changes."""
    alone = stage.start()
    assert alone.call("join any x") == "joined"
    assert alone.call("state") == "rank 0 size 1 reached 0 contacts x nothing"
    assert alone.call("point") == "nothing"
    assert alone.call("points 1000") == "reached 1001"
    assert alone.call("done") == "done rank 0 size 1"
    assert alone.call("request 3") == "granted 0 the program does not run as an adaptive job of koala"
    assert alone.call("give_back 3") == "granted 0 the program does not run as an adaptive job of koala"
    assert alone.call("leave") == "left"
    assert alone.end() == ""
    second = stage.start(PMI_RANK="1", PMI_SIZE="3")
    assert second.call("join any y") == "joined"
    assert second.call("state") == "rank 1 size 3 reached 0 contacts  y  nothing"
    assert second.end() == ""


def test_a_program_grows_and_shrinks(stage: Stage) -> None:
    """Newcomers enter at the point of the others with their count; leavers go; everybody knows everybody."""
    with KoalaEnd(stage.directory, 2) as koala:
        first, second = stage.joined(koala)
        assert first.call("state") == "rank 0 size 2 reached 0 contacts node0:4000 node1:4001 nothing"
        assert second.call("state") == "rank 1 size 2 reached 0 contacts node0:4000 node1:4001 nothing"
        assert first.call("points 10") == second.call("points 10") == "reached 10"
        third = stage.process(koala, 2)
        koala.begin([0, 1, 2], "processors are free")
        koala.wait(lambda: koala.said(0, "armed") and koala.said(1, "armed"))
        assert koala.coordinator.at == 11
        told = "change 1 at 11 old 0,1 members 0,1,2 leaving - joining 2"
        first.tell("point")
        second.tell("point")
        assert first.hear() == f"{told} rank 0 old_rank 0 size 3 reason processors are free"
        assert second.hear() == f"{told} rank 1 old_rank 1 size 3 reason processors are free"
        assert third.hear() == "joined"
        entered = f"{told} rank 2 old_rank -1 size 3 reason processors are free"
        contacts = "node0:4000 node1:4001 node2:4002"
        assert third.call("state") == f"rank 2 size 3 reached 11 contacts {contacts} {entered}"
        for one in (first, second, third):
            one.tell("done")
        assert [one.hear() for one in (first, second, third)] == [f"done rank {rank} size 3" for rank in range(3)]
        assert third.call("state") == f"rank 2 size 3 reached 11 contacts {contacts} nothing"
        koala.begin([0, 2])
        for one in (first, second, third):
            one.tell("until")
        assert second.hear().endswith("old 0,1,2 members 0,2 leaving 1 joining - rank -1 old_rank 1 size 2 reason ")
        assert first.hear().endswith("leaving 1 joining - rank 0 old_rank 0 size 2 reason ")
        assert third.hear().endswith("leaving 1 joining - rank 1 old_rank 2 size 2 reason ")
        for one in (first, second, third):
            one.tell("done")
        assert [one.hear()[5:] for one in (first, second, third)] == ["rank 0 size 2", "rank -1 size 2", "rank 1 size 2"]
        assert second.call("leave") == "left"
        koala.wait(lambda: koala.said(1, "leaving"))
        assert [one.end() for one in (first, second, third)] == ["", "", ""]
        assert koala.coordinator.errors == []

# SPDX-License-Identifier: Apache-2.0
"""Faults in changes of size, over real sockets, in C and Python: all processes see the same changes.

What messages in any order lead to is in tests/unit/runners. The program here is one that computes in step. At each
change every process tells its count of points, the members before and after in their order, who joins and who leaves;
all must tell the same, whatever failed meanwhile.
"""

from __future__ import annotations

import random

import pytest

from tests.unit.application.koala_end import Driver, KoalaEnd
from tests.unit.application.test_calls import Stage, c_command, c_threads_command, python_command, stage

__all__ = ["c_command", "c_threads_command", "python_command", "stage"]

CHANGES = 5
MOST_FAULTS = 5
"""In each half of a change."""
PAUSE = 0.05
"""Seconds in which the next note is waited for between two faults, so that they hit different moments."""
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 12))]


class Schedule:
    """A program whose connections break, and whose koala is killed, at moments drawn from a seed."""

    def __init__(self, stage: Stage, koala: KoalaEnd, seed: int) -> None:
        self._stage = stage
        self._koala = koala
        self._chance = random.Random(seed)
        self._drivers: dict[int, Driver] = dict(enumerate(stage.joined(koala)))
        self._next = len(self._drivers)
        self._last = 0, 0
        """Number and point of the last change."""

    def change(self, number: int) -> None:
        """Bring the program to other members, with faults, and compare what its processes say of it."""
        koala, chance = self._koala, self._chance
        old = list(koala.coordinator.members)
        staying = old[: chance.randint(1, len(old))]
        joining = [self._next + one for one in range(chance.randint(0 if staying != old else 1, 2))]
        self._next += len(joining)
        late = chance.random() < 0.5
        if late:
            koala.begin([*staying, *joining])
        for rank in chance.sample(joining, len(joining)):
            self._drivers[rank] = self._stage.process(koala, rank)
        if not late:
            koala.begin([*staying, *joining])
        for rank in old:
            self._drivers[rank].tell("until")
        self._fail()
        said = {rank: self._drivers[rank].hear() for rank in old}
        for rank in joining:
            assert self._drivers[rank].hear() == "joined"
            said[rank] = self._drivers[rank].call("state").partition(f"node{rank}:")[2].partition(" change ")[2]
            said[rank] = f"change {said[rank]}"
        expected = (
            f"old {listed(old)} members {listed([*staying, *joining])} "
            f"leaving {listed(old[len(staying) :])} joining {listed(joining)}"
        )
        _, adaptation, _, at, *_ = said[old[0]].split()
        same = {rank: text.partition(" rank ")[0] for rank, text in said.items()}
        assert set(same.values()) == {f"change {adaptation} at {at} {expected}"}, same
        assert int(adaptation) > self._last[0]
        assert int(at) > self._last[1]
        self._last = int(adaptation), int(at)
        for rank in said:
            self._drivers[rank].tell("done")
        self._fail()
        members = [*staying, *joining]
        for rank in said:
            position = members.index(rank) if rank in members else -1
            assert self._drivers[rank].hear() == f"done rank {position} size {len(members)}"
        for rank in old[len(staying) :]:
            assert self._drivers[rank].call("leave") == "left"
            assert self._drivers.pop(rank).end() == ""
        koala.wait(lambda: koala.coordinator.finished == number)

    def _fail(self) -> None:
        for _ in range(self._chance.randint(0, MOST_FAULTS)):
            with self._koala.lock:
                heard = len(self._koala.notes)
                self._koala.lock.wait_for(lambda seen=heard: len(self._koala.notes) > seen, PAUSE)  # type: ignore[misc]
                if self._chance.random() < 0.5:
                    self._kill()
            if self._chance.random() < 0.5:
                self._cut()

    def _kill(self) -> None:
        """Have koala forget all that is not written down; agents see that it is away before they see it again."""
        for rank in list(self._koala.peers):
            self._koala.note(rank, "away")
        self._koala.say(self._koala.coordinator.forget())

    def _cut(self) -> None:
        with self._koala.lock:
            ranks = sorted(self._koala.peers)
        if ranks:
            self._koala.cut(self._chance.choice(ranks))


def listed(ranks: list[int]) -> str:
    return ",".join(map(str, ranks)) or "-"


@pytest.mark.parametrize("seed", SEEDS)
def test_all_processes_see_the_same_changes(stage: Stage, seed: int) -> None:
    """The same step, the same members in the same order, in each change, whatever is lost between."""
    with KoalaEnd(stage.directory, 2) as koala:
        schedule = Schedule(stage, koala, seed)
        for number in range(1, CHANGES + 1):
            schedule.change(number)
        assert koala.coordinator.errors == []

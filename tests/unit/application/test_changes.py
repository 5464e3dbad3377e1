# SPDX-License-Identifier: Apache-2.0
"""Changes of size in a program: any schedule of them, and faults in between."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.application.notes import Note, note_payload, parse_note
from koala_adapter.application.process import Process
from tests.examples import examples
from tests.unit.application.koala_end import Coordinator, Driver, KoalaEnd, Said
from tests.unit.application.test_calls import Stage, c_command, c_threads_command, python_command, stage

# -- Schedules of many processes and a coordinator: whatever is late or dead, all adapt at the same point.
# What is lost with connections and with the service is in tests/unit/runners, where koala's own coordinator is.


FAIR_ROUNDS = 4000
"""In these everybody gets a turn and nothing fails. A point that was passed often lies some hundred points ahead."""


@dataclass(kw_only=True)
class Program:
    """One process: its state, and where its program is."""

    rank: int
    process: Process
    to_koala: deque[bytes] = field(default_factory=deque)
    from_koala: deque[bytes] = field(default_factory=deque)
    in_call: str = ""
    """join, point (counted, not looked yet), standing, done; empty: it computes."""
    adapted: list[tuple[int, int]] = field(default_factory=list)
    """Change and the point at which it was made."""
    passed: int = 0
    """Points at which nothing was to be done."""
    over: bool = False

    def turn(self) -> None:
        process = self.process
        if self.in_call == "join":
            if process.state != "new":
                self.in_call = ""
        elif self.in_call == "point":
            self._look()
        elif self.in_call == "standing":
            if process.state != "waiting":
                self.in_call = ""
                self.passed += process.change is None
        elif self.in_call == "done":
            if process.state != "done":
                self.in_call = ""
        elif process.state == "left":
            self.to_koala.extend(process.leave())
            self.over = True
        elif process.change is not None:
            self.adapted.append((process.change.number, process.reached))
            self.to_koala.extend(process.finish())
            self.in_call = "done"
        else:
            process.reached += 1
            self.in_call = "point"

    def _look(self) -> None:
        if self.process.attention:
            self.to_koala.extend(self.process.stand())
            self.in_call = "standing"
        else:
            self.in_call = ""
            self.passed += 1


class World:
    """A coordinator and its processes."""

    def __init__(self, size: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.coordinator = Coordinator(first=list(range(size)))
        self.programs: dict[int, Program] = {}
        self.next_rank = size
        for rank in range(size):
            self.start(rank)

    def start(self, rank: int) -> None:
        program = Program(rank=rank, process=Process(rank, f"node{rank}:1", "any", rank), in_call="join")
        program.to_koala.extend(program.process.connected())
        self.programs[rank] = program

    def say(self, said: Said) -> None:
        for rank, payload in said:
            if rank in self.programs and not self.programs[rank].over:
                self.programs[rank].from_koala.append(payload)

    def deliver(self, program: Program, *, to_koala: bool) -> None:
        """Deliver one message of one direction."""
        if to_koala and program.to_koala:
            self.say(self.coordinator.heard(program.rank, parse_note(program.to_koala.popleft())))
        elif not to_koala and program.from_koala and not program.over:
            program.to_koala.extend(program.process.heard(parse_note(program.from_koala.popleft())))

    def begin(self) -> None:
        if self.coordinator.phase != "idle":
            return
        members = self.coordinator.members
        staying = members[: self.chance.randint(1, len(members))]
        joining = list(range(self.next_rank, self.next_rank + self.chance.randint(0, 3)))
        self.next_rank += len(joining)
        for rank in joining:
            self.start(rank)
        if joining or staying != members:
            self.say(self.coordinator.begin([*staying, *joining]))

    def die(self, program: Program) -> None:
        program.over = True
        program.to_koala.clear()
        program.from_koala.clear()
        self.say(self.coordinator.died(program.rank))

    def alive(self) -> list[Program]:
        return [one for one in self.programs.values() if not one.over]

    def step(self, what: str) -> None:
        program = self.chance.choice(self.alive())
        match what:
            case "turn":
                program.turn()
            case "hear":
                self.deliver(program, to_koala=False)
            case "say":
                self.deliver(program, to_koala=True)
            case "stalled":  # one process alone runs on, all others do not get a turn
                for _ in range(5):
                    program.turn()
            case "begin":
                self.begin()
            case "die":
                self.die(program)
            case _:
                pass

    def settle(self) -> None:
        """Let everybody go on in fair turns, until the change under way is over and all have passed points."""
        goal = {one.rank: one.passed + 3 for one in self.alive()}
        for _ in range(FAIR_ROUNDS):
            for program in self.alive():
                self.deliver(program, to_koala=True)
                self.deliver(program, to_koala=False)
                program.turn()
            if self.coordinator.phase == "idle" and all(
                one.passed >= goal[one.rank] for one in self.alive() if one.rank in self.coordinator.members
            ):
                return
        states = {one.rank: (one.in_call, one.process.state) for one in self.alive()}
        raise AssertionError(f"somebody waits for ever: {self.coordinator.phase}, {states}")


ORDINARY = ["turn"] * 8 + ["hear", "say"] * 6 + ["begin", "stalled"]


def check_points(world: World) -> None:
    """Check that each change was made at one point by all, and that nobody missed or repeated one."""
    at = defaultdict(set)
    for program in world.programs.values():
        for number, point in program.adapted:
            at[number].add(point)
        numbers = [number for number, _ in program.adapted]
        assert numbers == sorted(set(numbers))
    assert all(len(points) == 1 for points in at.values()), dict(at)
    assert world.coordinator.errors == []


@examples(30)
@given(st.integers(1, 5), st.integers(0, 10**9), st.lists(st.sampled_from(ORDINARY), min_size=50, max_size=250))
def test_all_adapt_at_the_same_point(size: int, seed: int, steps: list[str]) -> None:
    """In whatever order messages arrive and processes compute, each change is made by all at one point."""
    world = World(size, seed)
    for what in steps:
        world.step(what)
    world.settle()
    check_points(world)


@examples(30)
@given(st.integers(1, 4), st.integers(0, 10**9), st.lists(st.sampled_from(ORDINARY), min_size=20, max_size=200))
def test_one_that_dies_leaves_nobody_waiting(size: int, seed: int, steps: list[str]) -> None:
    """A newcomer that dies before the change gives it up; a member that dies ends the program."""
    world = World(size, seed)
    for what in steps:
        world.step(what)
    world.die(world.chance.choice(world.alive()))
    if not world.coordinator.failed and world.alive():
        world.settle()
        check_points(world)


def test_a_point_that_is_passed_at_that_moment_is_passed_or_waited_at() -> None:
    """A process that has counted but not looked is passed or armed, and never both."""
    for order in range(2):
        process = Process(0, "", "any", 1)
        process.heard(parse_note(note_payload("welcome", rank=0, size=1, members="0@a@n@")))
        process.reached += 1
        if order:
            assert not process.attention
        answer = process.heard(Note("stop", {"change": "1", "at": str(1 + order)}))
        assert parse_note(answer[0]).verb == ("armed" if order else "passed")
        assert process.attention == bool(order)


# -- Schedules of faults for the library over real sockets, in C and Python: all processes see the same changes.
# The program is one that computes in step. At each change every process tells its count of points, the members before
# and after in their order, who joins and who leaves; all must tell the same, whatever failed meanwhile.


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
        self._last = 0

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
        at = int(said[old[0]].split()[3])
        same = {rank: text.partition(" rank ")[0] for rank, text in said.items()}
        assert set(same.values()) == {f"change {number} at {at} {expected}"}, same
        assert at > self._last
        self._last = at
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

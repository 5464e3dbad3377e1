# SPDX-License-Identifier: Apache-2.0
"""All processes change at the same point, one change at a time, and nobody waits for ever, whatever is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from koala_adapter.errors import ProtocolError
from koala_adapter.model import JobId
from koala_adapter.runners.coordinator import LAST_WORDS, Coordinator
from koala_adapter.runners.notes import LARGEST_NUMBER, Membership, Note, Place, WantedChange, note
from koala_adapter.scheduler.events import ChangeGivenUp
from tests.examples import examples
from tests.unit.runners.program import DONE_PATIENCE, PATIENCE, World

_ANY = st.integers(0, 11)
_RARE: SearchStrategy[tuple[str, int]] = st.one_of(
    st.tuples(st.sampled_from(["grow", "shrink", "keep_promise"]), st.integers(1, 3)),
    st.tuples(st.sampled_from(["lose_contact", "break_connection", "newcomer_dies"]), _ANY),
    st.tuples(st.sampled_from(["restart_service", "withdraw", "promise"]), st.just(0)),
    st.tuples(st.just("wait"), st.integers(1, 90)),
)
_OFTEN = st.tuples(st.sampled_from(["hear", "tell", "go_on"]), _ANY)
_TURNS = st.tuples(st.just("turn"), st.integers(1, 6))
_SCHEDULES = st.lists(st.one_of(_OFTEN, _TURNS, _TURNS, _RARE), max_size=60)


def carry_out(world: World, what: str, number: int) -> None:
    if what in {"grow", "shrink", "keep_promise"}:
        if len(world.alive()) < 10:
            getattr(world, what)(number)
    elif what in {"restart_service", "withdraw", "promise"}:
        getattr(world, what)()
    elif what == "wait":
        world.wait(number)
    elif what == "turn":
        world.take_turns(number)
    elif world.alive():
        getattr(world, what)(world.alive()[number % len(world.alive())])


def check_same(world: World) -> None:
    """Hold that whoever took part in a change did so at the same point and with the same members afterwards."""
    by_number: dict[int, set[tuple[int, tuple[int, ...]]]] = {}
    for one in world.processes.values():
        numbers = [number for number, _, _ in one.adapted]
        assert numbers == sorted(set(numbers)), "a change was carried out twice"
        for number, at, members in one.adapted:
            by_number.setdefault(number, set()).add((at, members))
    assert all(len(one) == 1 for one in by_number.values()), by_number
    assert len(by_number) == len(world.made)


@examples(75)
@given(size=st.integers(1, 4), schedule=_SCHEDULES)
def test_all_change_at_the_same_point_and_nobody_waits_for_ever(size: int, schedule: list[tuple[str, int]]) -> None:
    """Delays, losses of the relay, newcomers that die or come late, restarts of the service, withdrawn changes."""
    world = World(size)
    for what, number in schedule:
        carry_out(world, what, number)
    world.settle()
    check_same(world)
    assert not world.complaints
    assert set(world.members) == set(world.alive())
    for rank in world.members:
        assert tuple(one.rank for one in world.processes[rank].process.members) == world.members


def test_a_process_that_never_reaches_the_point() -> None:
    """The change is given up after the patience with the reason, the others go on, and the next one can be made."""
    world = World(3)
    world.settle()
    world.grow(1)
    world.take_turns(30, lambda rank: rank != 1)
    world.wait(PATIENCE + 1)
    assert world.given_up == [f"process 1 has not reached an adaptation point within {PATIENCE:g} s"]
    world.settle()
    told = [world.processes[rank].process.complaints for rank in world.members]  # its own standard error
    assert told == [[], [f"{world.given_up[0]}: all go on as they are, and the size stays"], []]
    assert list(world.members) == [0, 1, 2]
    world.shrink(1)
    world.settle()
    assert list(world.members) == [0, 1]


def in_the_middle_of_a_change() -> World:
    """Return a program of which process 1 has the change, and all others are done."""
    world = World(3)
    world.settle()
    world.grow(1)
    world.take_turns(30, lambda rank: rank != 1 or world.processes[rank].process.state != "changing")
    assert [one.process.state for one in world.processes.values()] == ["done", "changing", "done", "done"]
    return world


def test_a_process_that_never_calls_done() -> None:
    """People are told at each process whom all wait for, and the process is taken as lost soon after."""
    world = in_the_middle_of_a_change()
    at = world.processes[1].process.at
    world.wait(DONE_PATIENCE + 1)
    why = f"process 1 has not called done() within 600 s of the change at point {at}"
    for rank in world.alive():
        world.tell(rank)
        assert world.processes[rank].process.complaints == [f"{why}; its part of the data is lost, and the job ends"]
    assert world.overdue == []
    assert world.coordinator.next_deadline() is not None
    world.wait(LAST_WORDS + 1)
    assert [(one.rank, one.end.detail) for one in world.overdue] == [(1, why)]
    assert world.coordinator.next_deadline() is None


def test_done_in_the_last_moment() -> None:
    world = in_the_middle_of_a_change()
    world.wait(DONE_PATIENCE + 1)
    world.settle()
    world.wait(DONE_PATIENCE)
    assert world.overdue == []
    assert list(world.members) == [0, 1, 2, 3]


def test_a_change_in_line_has_all_of_its_time() -> None:
    """However long the one before it takes: its time begins when that one is over."""
    world = in_the_middle_of_a_change()
    world.grow(1)
    world.wait(DONE_PATIENCE - 1)
    world.go_on(1)
    world.hear(1)
    assert world.made == [1]
    world.wait(PATIENCE - 1)
    assert world.given_up == []
    world.wait(1)
    assert world.given_up == [f"the new process 4 has not joined within {PATIENCE:g} s"]


def test_time_without_an_agent_does_not_count() -> None:
    """How long an agent may be away is for its lease to say; then the process has all of its time again."""
    world = in_the_middle_of_a_change()
    world.coordinator.lost(1)
    world.wait(10 * DONE_PATIENCE)
    assert world.overdue == []
    world.coordinator.back(1, world.now)
    world.wait(DONE_PATIENCE - 1)
    assert not world.processes[0].down
    world.wait(2)
    world.wait(LAST_WORDS)
    (overdue,) = world.overdue
    assert overdue.rank == 1


def test_a_service_that_begins_anew_waits_anew() -> None:
    """It has nothing but the records, by which the change is under way."""
    world = in_the_middle_of_a_change()
    world.wait(DONE_PATIENCE - 1)
    world.restart_service()
    for rank in world.alive():
        world.tell(rank)
        world.hear(rank)
    world.wait(DONE_PATIENCE - 1)
    world.wait(1 + LAST_WORDS)
    assert world.overdue == []
    world.wait(LAST_WORDS)
    assert [one.rank for one in world.overdue] == [1]


def test_the_next_change_comes_before_the_end_of_the_last() -> None:
    """A process whose connection broke hears of it again; that it does not follow is nobody's fault."""
    world = World(2)
    world.settle()
    world.grow(1)
    while world.processes[1].process.state != "done" or world.wanted:
        for rank in world.alive():
            world.hear(rank)
            if rank != 1 or world.processes[1].process.state != "done":
                world.tell(rank)
            world.go_on(rank)
    world.break_connection(1)
    world.shrink(1)
    world.tell(1)
    assert not world.complaints
    world.settle()
    assert list(world.members) == [0, 1]


def test_a_member_that_is_about_to_exit() -> None:
    world = World(2)
    world.settle()
    world.grow(1)
    world.coordinator.heard(1, note("leaving"), world.now)
    world.follow()
    world.settle()
    assert world.given_up == ["process 1 is about to exit"]


def test_points_that_come_faster_than_messages() -> None:
    """The point is put further away each time that it was passed."""
    world = World(2)
    world.settle()
    world.grow(1)
    for _ in range(60):
        for rank in world.alive():
            for _ in range(50):
                world.go_on(rank)
            world.tell(rank)
            world.hear(rank)
    world.settle()
    assert list(world.members) == [0, 1, 2]


@pytest.mark.parametrize("what", ["lose_contact", "restart_service", "newcomer_dies"])
def test_something_happens_after_each_single_step(what: str) -> None:
    """Two become three, three become two, with a fault at every moment of it: all that could happen happens once."""
    for moment in range(150):
        world = World(2)
        world.settle()
        world.grow(1)
        steps = _in_single_steps(world, moment)
        carry_out(world, what, moment % 3)
        if not world.wanted and len(world.members) > 1:
            world.shrink(1)
        world.settle()
        check_same(world)
        assert not world.complaints, moment
        if steps < moment:
            return


def _in_single_steps(world: World, most: int) -> int:
    """Let so many things happen, one after the other; return how many there were."""
    count = 0
    while count < most and (world.wanted or count == 0):
        for rank in world.alive():
            for step in (world.tell, world.hear, world.go_on):
                if count < most:
                    count += 1
                    step(rank)
        if not world.wanted and len(world.members) > 2:
            world.shrink(1)
    return count


def joining() -> Coordinator:
    """Return the coordinator of one process that is asked how far it is, as a second one joins."""
    places = {rank: Place(rank=rank, cluster="a", address="n1") for rank in (0, 1)}
    coordinator = Coordinator(JobId("1"), PATIENCE)
    coordinator.update(Membership(members=(0,), places={0: places[0]}), 0.0)
    coordinator.heard(0, hello(), 1.0)
    wanted = (WantedChange(number=5, joining=(1,)),)
    coordinator.update(Membership(members=(0,), places=places, wanted=wanted), 2.0)
    coordinator.heard(1, hello(), 3.0)
    coordinator.take_tells()
    return coordinator


def hello() -> Note:
    return note("hello", version=1, state="new", change=0, at=0, reached=0)


def points(coordinator: Coordinator) -> list[int]:
    """Return the points at which processes are told to stop."""
    return [one.note.number("at") for one in coordinator.take_tells() if one.note.verb == "stop"]


def test_a_newcomer_that_says_that_it_has_passed_the_point() -> None:
    """It may not, also while all members are out of contact; what it counts is no point, and the change goes on."""
    coordinator = joining()
    coordinator.heard(1, note("reached", change=1, point=1000), 4.0)
    coordinator.heard(0, note("reached", change=1, point=3), 4.0)
    assert points(coordinator) == [4]
    coordinator.lost(0)
    with pytest.raises(ProtocolError, match="said by members"):
        coordinator.heard(1, note("passed", change=1, reached=99), 5.0)
    coordinator.heard(0, note("hello", version=1, state="running", change=0, at=0, reached=3), 6.0)
    assert points(coordinator) == [4]


@pytest.mark.parametrize("passes", [False, True])
def test_a_count_beyond_what_can_be_told_gives_the_change_up(passes: bool) -> None:  # noqa: FBT001 - drawn
    coordinator = joining()
    first = 3 if passes else LARGEST_NUMBER
    coordinator.heard(0, note("reached", change=1, point=first), 4.0)
    if passes:
        coordinator.heard(0, note("passed", change=1, reached=LARGEST_NUMBER - 1), 5.0)
    assert all(at <= LARGEST_NUMBER for at in points(coordinator))
    (given_up,) = coordinator.take_reports()
    assert isinstance(given_up, ChangeGivenUp)
    assert "adaptation points" in given_up.reason

# SPDX-License-Identifier: Apache-2.0
"""Tasks for launchers: the book of tasks, parameters of sweeps, estimates."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from koala_adapter.errors import ConfigurationError
from koala_adapter.model import Sweep, SweepAxis
from koala_adapter.tasks.sweep import (
    MOST_LOSSES,
    WINDOW,
    Assignment,
    Book,
    Entry,
    Expansion,
    Pace,
    count_tasks,
    filled,
    lines_of,
    list_axis,
    range_axis,
)

# -- The book of a sweep: each task is done exactly once, whatever is lost, doubled, or begun anew.


class Life(RuleBasedStateMachine):
    """A sweep whose launchers and service are killed, and whose messages come late, twice, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book(0)
        self.written: list[tuple[int, Entry]] = []
        self.at_work: list[Assignment] = []
        """Launchers that are at a task, or still tell of one; some of them nobody waits for."""

    @initialize(total=st.integers(1, 12), repeats=st.integers(0, 3))
    def begin(self, total: int, repeats: int) -> None:
        """Submit it."""
        self.book = Book(total, repeats)

    def write(self, task: int, entry: Entry | None) -> None:
        if entry is not None:
            self.written.append((task, entry))
            self.book.note(task, entry)

    @rule()
    def pull(self) -> None:
        """A launcher asks for a task."""
        given = self.book.take()
        if given is not None:
            self.at_work.append(given)

    @precondition(lambda self: self.at_work)
    @rule(data=st.data(), again=st.booleans())
    def succeed(self, data: st.DataObject, *, again: bool) -> None:
        """A launcher tells that a task is done, perhaps twice."""
        told = data.draw(st.sampled_from(self.at_work))
        self.write(told.task, self.book.entry_of_success(told.task))
        if not again:
            self.at_work.remove(told)

    @precondition(lambda self: self.at_work)
    @rule(data=st.data(), again=st.booleans())
    def fail(self, data: st.DataObject, *, again: bool) -> None:
        """A launcher tells that a task failed, perhaps twice."""
        told = data.draw(st.sampled_from(self.at_work))
        self.write(told.task, self.book.entry_of_failure(told))
        if not again:
            self.at_work.remove(told)

    @precondition(lambda self: self.at_work)
    @rule(data=st.data(), heard=st.booleans(), blamed=st.booleans())
    def lose(self, data: st.DataObject, *, heard: bool, blamed: bool) -> None:
        """The connection of a launcher ends; it may be heard of again."""
        lost = data.draw(st.sampled_from(self.at_work))
        entry = self.book.entry_of_loss(lost) if blamed else None
        self.write(lost.task, entry)
        if entry is None:
            self.book.given_back(lost)
        if not heard:
            self.at_work.remove(lost)

    @rule()
    def restart(self) -> None:
        """The service is killed; the next one has what is written."""
        self.book = Book(self.book.total, self.book.repeats)
        self.book.restored(self.written)

    @precondition(lambda self: self.book.failed)
    @rule()
    def resume(self) -> None:
        """The sweep is gone on with by another job."""
        self.write(0, Entry.RESUMED)

    @invariant()
    def every_task_is_counted_once(self) -> None:
        """Nothing is done twice by what is written, and the counts are those of it."""
        done = [task for task, entry in self.written if entry is Entry.DONE]
        assert len(done) == len(set(done)) == self.book.done
        assert self.book.done + len(self.book.failed) + self.book.left == self.book.total
        assert 0 <= self.book.out <= self.book.left
        assert self.book.over == (self.book.left == 0)

    def teardown(self) -> None:
        """From wherever it is, good launchers bring it to its end."""
        for lost in self.at_work:
            self.book.given_back(lost)
        while (given := self.book.take()) is not None:
            self.write(given.task, self.book.entry_of_success(given.task))
        assert self.book.over
        assert self.book.out == 0


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.integers(0, 4))
def test_a_task_that_fails_is_repeated_so_often(repeats: int) -> None:
    book = Book(1, repeats)
    found = []
    while (given_out := book.take()) is not None:
        entry = book.entry_of_failure(given_out)
        assert entry is not None
        book.note(0, entry)
        found.append(entry)
    assert found == [Entry.REPEATED] * repeats + [Entry.FAILED]
    assert (book.over, list(book.failed)) == (True, [0])


def test_a_task_that_ends_its_launchers_fails() -> None:
    """Or all of them would be lost, one after the other."""
    book = Book(1, repeats=0)
    for _ in range(MOST_LOSSES):
        out = book.take()
        assert out is not None
        entry = book.entry_of_loss(out)
        assert entry is not None
        book.note(0, entry)
    assert book.over
    assert list(book.failed) == [0]


def test_a_late_failure_is_not_that_of_who_has_it_now() -> None:
    """Somebody else has begun the task anew; a late success is one."""
    book = Book(1, repeats=0)
    first = book.take()
    assert first is not None
    book.given_back(first)
    second = book.take()
    assert second is not None
    assert book.entry_of_failure(first) is None
    assert book.entry_of_success(first.task) is Entry.DONE
    book.note(0, Entry.DONE)
    assert book.entry_of_failure(second) is None
    assert book.entry_of_success(second.task) is None
    assert book.over


def test_after_a_restart_fresh_tasks_come_first() -> None:
    """What may still be at work somewhere is handed out last; no number is left out."""
    book = Book(6)
    book.restored([(0, Entry.DONE), (3, Entry.DONE), (1, Entry.REPEATED)])
    order = []
    while (out := book.take()) is not None:
        order.append(out.task)
    assert order == [1, 4, 5, 2]


# -- The estimate of a sweep's end.


def test_nobody_can_tell_yet() -> None:
    pace = Pace()
    assert pace.left(tasks=10, launchers=4) is None
    pace.note(2.0)
    assert pace.left(tasks=10, launchers=0) is None
    assert pace.left(tasks=0, launchers=0) == 0.0


def test_tasks_are_shared() -> None:
    """By as many launchers as there are, but a task takes as long as a task takes."""
    pace = Pace()
    for _ in range(4):
        pace.note(3.0)
    assert pace.left(tasks=40, launchers=4) == 30.0
    assert pace.left(tasks=2, launchers=100) == 3.0


def test_what_is_long_ago_counts_no_more() -> None:
    """Later tasks may take longer."""
    pace = Pace()
    for seconds in (1.0, 9.0):
        for _ in range(WINDOW):
            pace.note(seconds)
    assert pace.left(tasks=10, launchers=10) == 9.0


# -- Parameters of sweeps: values as people write them, and the tasks that they make.


def values(text: str) -> list[str]:
    axis = range_axis("a", text)
    assert axis is not None
    tasks = Expansion(Sweep(axes=(axis,)), {})
    return [tasks.row(task)["a"] for task in range(len(tasks))]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1..3", ["1", "2", "3"]),
        ("3..1", ["3", "2", "1"]),
        ("0..10..5", ["0", "5", "10"]),
        ("0..1..0.25", ["0.00", "0.25", "0.50", "0.75", "1.00"]),
        ("-2..2..3", ["-2", "1"]),
        ("7..7", ["7"]),
        ("0.1..0.3..0.1", ["0.1", "0.2", "0.3"]),
    ],
)
def test_ranges(text: str, found: list[str]) -> None:
    """Both ends are values, and decimal fractions are exact."""
    assert values(text) == found


@pytest.mark.parametrize("text", ["1..3..0", "1..3..-1", "3..1..1"])
def test_a_range_without_end_is_refused(text: str) -> None:
    """Its step must lead from first to last."""
    with pytest.raises(ValueError, match="step leads"):
        range_axis("a", text)


@pytest.mark.parametrize("text", ["x", "1", "1..", "a..b", "1...3", ""])
def test_what_is_no_range(text: str) -> None:
    """It is something else, for others to refuse."""
    assert range_axis("a", text) is None


AXES = st.lists(st.lists(st.text("xyz", max_size=2), min_size=1, max_size=4), min_size=1, max_size=4)


@given(AXES)
def test_every_combination_is_a_task_once(lists: list[list[str]]) -> None:
    axes = tuple(list_axis(f"p{number}", one) for number, one in enumerate(lists))
    tasks = Expansion(Sweep(axes=axes), {})
    assert len(tasks) == count_tasks(axes, together=False)
    assert [tuple(tasks.row(task).values()) for task in range(len(tasks))] == list(product(*lists))


@given(st.integers(1, 5), st.integers(1, 4))
def test_values_taken_together(count: int, axes: int) -> None:
    made = tuple(list_axis(f"p{axis}", [f"{axis}-{one}" for one in range(count)]) for axis in range(axes))
    tasks = Expansion(Sweep(axes=made, together=True), {})
    found = [list(tasks.row(task).values()) for task in range(len(tasks))]
    assert found == [[f"{axis}-{one}" for axis in range(axes)] for one in range(count)]


def test_a_table_is_one_parameter() -> None:
    """Its columns stay together, beside others."""
    table = SweepAxis(names=("a", "b"), count=2, rows=(("1", "x"), ("2", "y")))
    tasks = Expansion(Sweep(axes=(table, list_axis("c", ["p", "q"]))), {})
    assert [tasks.row(one) for one in range(len(tasks))] == [
        {"a": "1", "b": "x", "c": "p"},
        {"a": "1", "b": "x", "c": "q"},
        {"a": "2", "b": "y", "c": "p"},
        {"a": "2", "b": "y", "c": "q"},
    ]


def test_lines_of_a_file() -> None:
    lines = lines_of(b"one\n\ntwo words\n")
    axis = SweepAxis(names=("name",), count=2, file="/f")
    assert Expansion(Sweep(axes=(axis,)), {"/f": lines}).row(1) == {"name": "two words"}
    with pytest.raises(ConfigurationError, match="has 1 lines, and had 2"):
        Expansion(Sweep(axes=(axis,)), {"/f": ["one"]})


@pytest.mark.parametrize(
    ("content", "values"),
    [
        ("\ufeffone\ntwo", ["one", "two"]),
        ("one\r\ntwo\r\n", ["one", "two"]),
        ("a\u0085b\nc\u2028d\ne\x0cf\ng\x1ch", ["a\u0085b", "c\u2028d", "e\x0cf", "g\x1ch"]),
        ("a\rb", ["a\rb"]),
    ],
)
def test_lines_end_at_line_feeds_alone(content: str, values: list[str]) -> None:
    """A byte-order mark is not part of the first value, and no other character cuts a value in two."""
    assert lines_of(content.encode()) == values


def test_only_parameters_give_way() -> None:
    row = {"a": "{b}", "b": "2"}
    assert list(filled(["awk", "{print $1} {a}{b} {c}", "{b}"], row)) == ["awk", "{print $1} {b}2 {c}", "2"]

# SPDX-License-Identifier: Apache-2.0
"""The book of a sweep: each task is done exactly once, whatever is lost, doubled, or begun anew."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from koala_adapter.tasks.sweep import MOST_LOSSES, Assignment, Book, Entry


class Life(RuleBasedStateMachine):
    """A sweep whose launchers and service are killed, and whose messages come late, twice, or not at all."""

    def __init__(self) -> None:
        """Begin with nothing at work."""
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
        """Write an entry down, then note it, as the service does."""
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
    """Then it has failed, and the sweep is over without it."""
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

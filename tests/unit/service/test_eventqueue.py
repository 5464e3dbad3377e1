# SPDX-License-Identifier: Apache-2.0
"""Events in order, each on disk before it takes effect; a journal that cannot be written stops that, and loses nothing.

The journal is a real one; a limit on its number of pages makes it full, with SQLite's own words.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.errors import JournalBlockedError, JournalError
from koala_adapter.host.clock import ServiceClock
from koala_adapter.model import ClusterName, EndReason, JobId
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.outcome import JobOutcome, JobState
from koala_adapter.service import eventqueue
from koala_adapter.service.eventqueue import EventQueue
from koala_adapter.service.journal import Journal
from tests.unit.service.clocks import SteppedClocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

FINISHED = act.JobFinished(
    job_id=JobId("1"), outcome=JobOutcome(state=JobState.COMPLETED, reason=EndReason.EXITED, exit_code=0)
)


class Queued:
    """A queue on a journal that can be made full, and what became of the events."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.handled: list[float] = []
        self.done: list[str] = []
        self.settled = 0
        self.queue = EventQueue(journal, handle=self._handle, act_on=self._act, settled=self._settle)

    def _handle(self, event: ev.Event, number: int) -> list[act.Action]:
        assert number
        self.handled.append(event.time)
        return [FINISHED] if event.time > 100 else []

    def _act(self, action: act.Action) -> None:
        assert isinstance(action, act.JobFinished)
        self.journal.archive(action.job_id, 1.0, "x" * 9000)
        self.done.append(action.job_id)

    def _settle(self) -> None:
        self.settled += 1

    def fill(self) -> None:
        """Make the journal full: it grows no more."""
        pages = self.journal._database.execute("PRAGMA page_count").fetchone()[0]
        self.journal._database.execute(f"PRAGMA max_page_count={pages}")
        filler = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
        full = False
        for number in range(1000):
            try:
                self.journal._database.execute(filler, (f"filler{number}", "x" * 400))
            except sqlite3.OperationalError as error:
                full = "full" in str(error)
                break
        assert full

    def make_room(self) -> None:
        """Let it grow again."""
        self.journal._database.execute("PRAGMA max_page_count=1000000")


@pytest.fixture
def queued(tmp_path: Path) -> Iterator[Queued]:
    """Return a queue on an empty journal."""
    with Journal(tmp_path / "journal.sqlite") as journal:
        yield Queued(journal)


def at(time: float) -> ev.Event:
    """Return a large event."""
    return ev.ClusterUnavailable(time=time, cluster=ClusterName("a"), reason="x" * 5000)


def journaled(path: Path) -> int:
    """Return how many events are on disk."""
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute("SELECT count(*) FROM events").fetchone()[0])


async def test_a_full_journal_stops_everything_until_there_is_room(
    queued: Queued, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has happened is kept in order; what users want is refused; then all goes on."""
    monkeypatch.setattr(eventqueue, "FIRST_PAUSE", 0.01)
    queue, resumed = queued.queue, anyio.Event()
    queue.post(at(1.0))
    queued.fill()
    for time in (2.0, 3.0):
        queue.post(at(time))
    with pytest.raises(JournalBlockedError, match=r"cannot be written.*full"):
        queue.enter(at(9.0))
    queue.post(at(4.0))
    assert queued.handled == [1.0]
    assert journaled(queued.journal.path) == 1
    assert "full" in queue.trouble
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.keep_trying, resumed.set)
        await anyio.sleep(0.1)
        assert queued.handled == [1.0]
        queued.make_room()
        with anyio.fail_after(10):
            await resumed.wait()
        tasks.cancel_scope.cancel()
    assert queued.handled == [1.0, 2.0, 3.0, 4.0]
    assert queue.trouble == ""
    queue.enter(at(10.0))
    assert journaled(queued.journal.path) == 5


async def test_what_a_user_wants_is_forgotten_when_it_cannot_be_journaled(queued: Queued) -> None:
    """Who was told that it was refused must not find it done later."""
    queued.fill()
    with pytest.raises(JournalBlockedError):
        queued.queue.enter(at(1.0))
    queued.make_room()
    queued.queue._try_again()
    assert queued.handled == []
    assert journaled(queued.journal.path) == 0


async def test_an_action_that_needs_the_journal_is_done_again(queued: Queued) -> None:
    """The event has happened; what follows from it is not forgotten, and nothing overtakes it."""
    queued.queue.post(at(1.0))
    archive = queued.journal.archive

    def full(job_id: str, finished_at: float, body: str) -> None:
        raise JournalBlockedError(f"full: {job_id}, {finished_at}, {body}")

    queued.journal.archive = full  # type: ignore[method-assign]
    queued.queue.post(at(101.0))
    queued.queue.post(at(2.0))
    assert (queued.handled, queued.done) == ([1.0, 101.0], [])
    queued.journal.archive = archive  # type: ignore[method-assign]
    queued.queue._try_again()
    assert (queued.handled, queued.done) == ([1.0, 101.0, 2.0], ["1"])
    assert queued.settled == 4


async def test_a_damaged_journal_is_no_reason_to_wait(queued: Queued) -> None:
    """Only what may pass is waited for."""
    queued.journal._database.execute("DROP TABLE events")
    with pytest.raises(JournalError) as failed:
        queued.queue.post(at(1.0))
    assert not isinstance(failed.value, JournalBlockedError)


def test_the_clock_is_in_the_journal(queued: Queued) -> None:
    """A journal without it, or with one that a later version wrote, is read all the same."""
    journal, clocks = queued.journal, SteppedClocks().clocks
    assert journal.clock_reading() is None
    reading = ServiceClock(clocks).reading()
    journal.note_clock(reading)
    assert journal.clock_reading() == reading
    journal.set_value("clock", '{"another": "form"}')
    assert journal.clock_reading() is None

# SPDX-License-Identifier: Apache-2.0
"""The loop that feeds events to the scheduler, and what it numbers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from koala_adapter.driver.loop import POSTPONEMENT, SNAPSHOT_INTERVAL, EventLoop
from koala_adapter.driver.store import MOST_FAILURES, rebuilt
from koala_adapter.errors import DefectError, JobRefusedError, JournalBlockedError, JournalError, RecoveryError
from koala_adapter.host.clock import ServiceClock
from koala_adapter.model import BatchKey, ClusterName, JobId
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from koala_adapter.scheduler.records import BatchRecord
from koala_adapter.service.journal import Journal
from tests.unit.driver.standins import Defects, RecordingEffector, RecordingOwner
from tests.unit.scheduler.scheduler_site import STATE, component, job
from tests.unit.service.standins import SteppedClocks

# -- Events in order, each on disk before it takes effect; a journal that cannot be written stops it and loses nothing.
# The journal is a real one; a limit on its number of pages makes it full, with SQLite's own words. A defect of the
# scheduler costs the event that shows it, and nothing that it left half changed goes on.


A = ClusterName("a")


class Looped:
    """A loop on a journal that can be made full, and what became of the events."""

    def __init__(self, journal: Journal, *, snapshot_interval: int = SNAPSHOT_INTERVAL) -> None:
        self.journal = journal
        self._snapshot_interval = snapshot_interval
        self.defects = Defects()
        self.effector, self.owner = RecordingEffector(), RecordingOwner()
        self.restart()

    def restart(self) -> None:
        """Begin again with what the journal holds, as a new process does."""
        scheduler = rebuilt(self.journal, self.defects.make)
        self.loop = EventLoop(
            scheduler,
            self.journal,
            self.effector,
            self.owner,
            make=self.defects.make,
            snapshot_interval=self._snapshot_interval,
            since_snapshot=self.journal.events_since_snapshot(),
        )

    @property
    def handled(self) -> list[float]:
        return [event.time for event in self.owner.events]

    @property
    def stored(self) -> bytes:
        return STATE.dump_json(self.loop.scheduler.state)

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
        self.journal._database.execute("PRAGMA max_page_count=1000000")


@pytest.fixture
def looped(tmp_path: Path) -> Iterator[Looped]:
    with Journal(tmp_path / "journal.sqlite") as journal:
        yield Looped(journal)


@pytest.fixture
def often(tmp_path: Path) -> Iterator[Looped]:
    """Return a loop on an empty journal that takes a snapshot at every fourth event."""
    with Journal(tmp_path / "journal.sqlite") as journal:
        yield Looped(journal, snapshot_interval=4)


def at(time: float) -> ev.Event:
    """Return a large event."""
    return ev.ClusterUnavailable(time=time, cluster=A, reason="x" * 5000)


def refused(time: float) -> ev.Event:
    """Return the submission of a job that is refused at once."""
    return ev.JobSubmitted(time=time, job=job("1", 2, placement="nowhere"))


def journaled(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute("SELECT count(*) FROM events").fetchone()[0])


def test_a_full_journal_stops_everything_until_there_is_room(looped: Looped) -> None:
    """What has happened is kept in order; what users want is refused; then all goes on."""
    loop = looped.loop
    loop.post(at(1.0))
    looped.fill()
    for time in (2.0, 3.0):
        loop.post(at(time))
    with pytest.raises(JournalBlockedError, match=r"cannot be written.*full"):
        loop.enter(at(9.0))
    loop.post(at(4.0))
    assert looped.handled == [1.0]
    assert journaled(looped.journal.path) == 1
    assert "full" in loop.trouble
    loop.try_again()
    assert looped.handled == [1.0]
    looped.make_room()
    loop.try_again()
    assert looped.handled == [1.0, 2.0, 3.0, 4.0], "what a user was refused is not done later"
    assert (loop.trouble, looped.owner.halted_often) == ("", 1)
    loop.enter(at(10.0))
    assert journaled(looped.journal.path) == 5


def test_an_action_that_needs_the_journal_is_done_again(looped: Looped) -> None:
    """The event has happened; what follows from it is not forgotten, and nothing overtakes it."""
    loop, effector = looped.loop, looped.effector
    loop.post(at(1.0))
    effector.error = JournalBlockedError("full")
    loop.post(refused(101.0))
    loop.post(at(102.0))
    assert (looped.handled, effector.done) == ([1.0, 101.0], [])
    effector.error = None
    loop.try_again()
    assert looped.handled == [1.0, 101.0, 102.0]
    assert [type(action) for action in effector.done] == [act.FinishJob]
    assert looped.owner.settled_often == 4


def test_a_damaged_journal_is_no_reason_to_wait(looped: Looped) -> None:
    looped.journal._database.execute("DROP TABLE events")
    with pytest.raises(JournalError) as failed:
        looped.loop.post(at(1.0))
    assert not isinstance(failed.value, JournalBlockedError)


def test_the_clock_is_in_the_journal(looped: Looped) -> None:
    """A journal without it, or with one that a later version wrote, is read all the same."""
    journal, clocks = looped.journal, SteppedClocks().clocks
    assert journal.clock_reading() is None
    reading = ServiceClock(clocks).reading()
    journal.note_clock(reading)
    assert journal.clock_reading() == reading
    journal.set_value("clock", '{"another": "form"}')
    assert journal.clock_reading() is None


def working(looped: Looped) -> None:
    """Configure a cluster and submit a job to it."""
    parameters = ClusterParameters(name=A)
    looped.loop.post(ev.Configured(time=1000.0, parameters=Parameters(), clusters=(parameters,)))
    looped.loop.post(ev.ClusterPolled(time=1000.0, cluster=A, processors=4, idle=4, ours=0))
    looped.loop.enter(ev.JobSubmitted(time=1001.0, job=job("1", component("x", 2, cluster="a"))))


# ---- snapshots ------------------------------------------------------------------------------------------------------


def in_snapshot(often: Looped) -> None:
    """Come to the point at which a snapshot has begun, and its first group is written."""
    working(often)
    assert not often.loop.in_snapshot
    often.loop.post(ev.ClusterPolled(time=1002.0, cluster=A, processors=5, idle=5, ours=0))
    assert (often.owner.snapshots_begun, often.loop.in_snapshot) == (1, True)
    assert often.loop.write_snapshot_group()


def test_events_wait_until_a_snapshot_is_complete(often: Looped) -> None:
    """They are taken in afterwards, in their order; meanwhile the state is what the snapshot says."""
    in_snapshot(often)
    before, handled = often.stored, often.handled
    often.loop.post(ev.ClusterPolled(time=1003.0, cluster=A, processors=6, idle=6, ours=0))
    often.loop.post(at(1004.0))
    groups = 0
    while often.loop.write_snapshot_group():
        groups += 1
        assert (often.stored, often.handled) == (before, handled)
    assert groups > 1
    assert often.handled == [*handled, 1003.0, 1004.0]
    assert often.loop.scheduler.state.clusters[A].processors == 6
    state, events = often.journal.recover()
    assert state is not None
    assert STATE.dump_json(state) == before
    assert [number for number, _ in events] == [5, 6]
    after = often.stored
    often.restart()
    assert often.stored == after


def test_actions_do_not_wait_for_a_snapshot(often: Looped) -> None:
    often.loop.post(at(1.0))
    often.loop.post(at(2.0))
    often.loop.post(at(3.0))
    often.loop.post(refused(101.0))
    assert often.loop.in_snapshot
    assert [type(action) for action in often.effector.done] == [act.FinishJob]


def test_what_a_user_wants_does_not_overtake(often: Looped) -> None:
    in_snapshot(often)
    often.loop.post(at(1003.0))
    often.loop.enter(at(1004.0))
    assert often.handled[-2:] == [1003.0, 1004.0]
    assert not often.loop.in_snapshot


def test_a_kill_within_a_snapshot_costs_nothing_but_what_waited(often: Looped) -> None:
    """What waited had not happened yet for anybody, as if it had come after the kill."""
    in_snapshot(often)
    before = often.stored
    often.loop.post(at(1003.0))
    often.restart()
    assert often.stored == before


def test_a_journal_that_is_full_within_a_snapshot(often: Looped) -> None:
    """The snapshot is given up; events go on to wait, for the journal now, and the next snapshot comes in its time."""
    in_snapshot(often)
    handled = often.handled
    often.loop.post(at(1003.0))
    often.fill()
    while often.loop.write_snapshot_group():
        pass
    assert "full" in often.loop.trouble
    assert often.handled == handled
    often.make_room()
    often.loop.try_again()
    assert often.handled == [*handled, 1003.0]
    for time in (1004.0, 1005.0, 1006.0):
        often.loop.post(at(time))
    assert (often.owner.snapshots_begun, often.loop.in_snapshot) == (2, True)
    often.loop.enter(at(1007.0))
    after = often.stored
    often.restart()
    assert often.stored == after
    assert journaled(often.journal.path) == 1


# ---- defects --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_event_on_which_the_scheduler_fails_is_set_aside(looped: Looped, where: str) -> None:
    """The state is that of the journal without it, now and in the next process; others go on; the operator is told."""
    working(looped)
    before, poll = looped.stored, ev.ClusterPolled(time=1002.0, cluster=A, processors=9, idle=9, ours=0)
    setattr(looped.defects, where, lambda event: event == poll)
    done = len(looped.effector.done)
    looped.loop.post(poll)
    assert looped.stored == before
    assert (len(looped.effector.done), looped.owner.rebuilt_often) == (done, 1)
    (noted,) = looped.journal.events_set_aside()
    assert (noted.number, noted.event_type, noted.time) == (4, "ClusterPolled", 1002.0)
    assert noted.summary.endswith(f"InjectedError: {where} ClusterPolled")
    assert "standins.py" in noted.failure
    assert '"processors":9' in noted.event
    looped.loop.post(ev.ClusterPolled(time=1003.0, cluster=A, processors=7, idle=7, ours=0))
    assert looped.loop.scheduler.state.clusters[A].processors == 7
    after = looped.stored
    looped.restart()
    assert looped.stored == after
    with Journal(looped.journal.path, read_only=True) as reader:
        assert [one.number for one in reader.events_set_aside()] == [4]
        assert STATE.dump_json(rebuilt(reader, Scheduler).state) == after


def test_all_that_is_set_aside_is_told(looped: Looped) -> None:
    """Also what was taken in once, and fails when the state is built again: then that is not the state it was."""
    working(looped)
    looped.loop.post(at(1002.0))
    looped.defects.before = lambda event: event.time in {1002.0, 1003.0}
    looped.loop.post(at(1003.0))
    assert [event.time for event in looped.owner.set_aside] == [1003.0, 1002.0]


def test_who_asked_for_it_is_told(looped: Looped) -> None:
    working(looped)
    looped.defects.after = lambda event: isinstance(event, ev.JobSubmitted) and event.job.id == "2"
    with pytest.raises(DefectError, match="set it aside: nothing was changed"):
        looped.loop.enter(ev.JobSubmitted(time=1002.0, job=job("2", 2)))
    assert list(looped.loop.scheduler.state.jobs) == ["1"]
    with pytest.raises(JobRefusedError, match="exists already"):
        looped.loop.enter(ev.JobSubmitted(time=1003.0, job=job("1", 2)))
    looped.loop.post(ev.JobSubmitted(time=1003.0, job=job("1", 2)))
    assert [one.number for one in looped.journal.events_set_aside()] == [4]
    looped.restart()
    assert looped.loop.scheduler.state.jobs[JobId("1")].state is JobState.CLAIMING


def test_a_timer_on_which_the_scheduler_fails_is_tried_later(looped: Looped) -> None:
    """It would fail at once again, and every other event with it."""
    working(looped)
    looped.loop.enter(ev.JobSubmitted(time=1001.0, job=job("2", component("x", 4, cluster="a"))))
    due = looped.loop.scheduler.next_wakeup
    assert due is not None
    looped.defects.before = lambda event: isinstance(event, ev.TimeReached)
    looped.loop.post(ev.TimeReached(time=due))
    put_off = looped.loop.scheduler.next_wakeup
    assert put_off is not None
    assert due < put_off <= due + POSTPONEMENT
    looped.loop.post(ev.ClusterPolled(time=due, cluster=A, processors=7, idle=7, ours=0))
    assert looped.loop.scheduler.state.clusters[A].processors == 7
    assert [one.event_type for one in looped.journal.events_set_aside()] == ["TimeReached"]


def test_a_kill_before_it_is_noted_changes_nothing(looped: Looped) -> None:
    """The event is in the journal already: the next process fails on it, and sets it aside, too."""
    working(looped)
    before, poll = looped.stored, ev.ClusterPolled(time=1002.0, cluster=A, processors=9, idle=9, ours=0)
    looped.journal.append(poll)
    looped.defects.after = lambda event: event == poll
    looped.restart()
    assert looped.stored == before
    assert [one.number for one in looped.journal.events_set_aside()] == [4]


def test_a_defect_while_the_journal_is_full(looped: Looped) -> None:
    working(looped)
    before = looped.stored
    looped.defects.after = lambda event: event.time == 1002.0
    set_aside = looped.journal.set_aside

    def full(number: int, event: ev.Event, failure: str) -> None:
        raise JournalBlockedError(f"full: {number} {event} {failure}")

    looped.journal.set_aside = full  # type: ignore[method-assign]
    looped.loop.post(at(1002.0))
    looped.loop.post(at(1003.0))
    assert looped.handled[-1] == 1001.0
    assert "full" in looped.loop.trouble
    looped.journal.set_aside = set_aside  # type: ignore[method-assign]
    looped.defects.before = lambda event: event.time == 1003.0
    looped.loop.try_again()
    assert looped.stored == before
    assert [one.time for one in looped.journal.events_set_aside()] == [1002.0, 1003.0]


def test_a_state_that_cannot_be_built_again_stops_everything(looped: Looped) -> None:
    """Nothing more is decided or accepted; all that was journaled stays for a version that can read it."""
    for number in range(MOST_FAILURES + 2):
        looped.loop.post(at(1000.0 + number))
    looped.defects.before = lambda _: True
    looped.loop.post(at(2000.0))
    assert isinstance(looped.owner.failure, RecoveryError)
    assert looped.loop.stopped
    with pytest.raises(JournalBlockedError):
        looped.loop.enter(at(2001.0))
    looped.loop.post(at(2002.0))
    looped.loop.try_again()
    assert looped.loop.trouble
    assert journaled(looped.journal.path) == MOST_FAILURES + 3
    with pytest.raises(RecoveryError, match="nothing was lost"):
        looped.restart()
    assert len(looped.journal.events_set_aside()) == 1
    looped.defects.before = lambda _: False
    looped.restart()
    assert looped.loop.scheduler.state.now == 1000.0 + MOST_FAILURES + 1


# ---- the end --------------------------------------------------------------------------------------------------------


def test_services_that_live_shortly_do_not_replay_for_ever_what_was_before_them(often: Looped) -> None:
    """Each handles less than there is between two snapshots; one of them leaves one all the same, and loses nothing."""
    for time in range(1, 10):
        often.restart()
        often.loop.post(at(float(time)))
        before = often.stored
        often.loop.conclude()
        often.restart()
        assert often.stored == before
        assert journaled(often.journal.path) < often.loop._snapshot_interval


def test_an_end_writes_no_snapshot_of_little(looped: Looped) -> None:
    looped.loop.post(at(1.0))
    looped.loop.conclude()
    assert journaled(looped.journal.path) == 1


def test_an_end_while_the_journal_is_full(often: Looped) -> None:
    often.loop.post(at(1.0))
    often.fill()
    often.loop.post(at(2.0))
    often.loop.conclude()
    often.make_room()
    often.restart()
    assert journaled(often.journal.path) == 1


# -- No name of a submission is used twice, whatever is left out of a replay: what has one was asked for in the world.
# The journal is a real one. The defect is that of another version: it shows when the journal is replayed.


@pytest.fixture
def named(looped: Looped) -> Looped:
    """Return a loop on an empty journal of an instance with a name."""
    looped.journal.set_value("instance", "t")
    looped.restart()
    return looped


def work(looped: Looped) -> None:
    """Configure a cluster of nine processors, and submit jobs 1 and 2 to it, of two and of three."""
    parameters = Parameters(instance="t")
    looped.loop.post(ev.Configured(time=1000.0, parameters=parameters, clusters=(ClusterParameters(name=A),)))
    looped.loop.post(ev.ClusterPolled(time=1000.0, cluster=A, processors=9, idle=9, ours=0))
    submit(looped, 1)
    submit(looped, 2)


def submit(looped: Looped, number: int) -> None:
    """Submit the job of this number, which has one processor more than that."""
    one = job(str(number), component("x", number + 1, cluster="a"))
    looped.loop.enter(ev.JobSubmitted(time=1000.0 + number, job=one))


def asked_for(looped: Looped) -> list[tuple[BatchKey, int]]:
    """Return all submissions that were asked for, in all lives: name and size."""
    return [(one.batch, one.count) for one in looped.effector.done if isinstance(one, act.SubmitPlaceholders)]


def known(looped: Looped) -> dict[BatchKey, tuple[JobId, int]]:
    """Return the submissions that the scheduler knows, with their jobs and sizes."""
    return {key: (one.job_id, one.count) for key, one in looped.loop.scheduler.state.batches.items()}


def upgrade(looped: Looped) -> None:
    """Restart with a version that fails on the submission of job 1."""
    looped.defects.before = lambda event: isinstance(event, ev.JobSubmitted) and event.job.id == "1"
    looped.restart()
    assert [one.event_type for one in looped.journal.events_set_aside()] == ["JobSubmitted"]


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_name_that_was_used_is_not_used_again(named: Looped, *, snapshot: bool) -> None:
    """Also when the only ones who used it are left out, and after the snapshot that forgets them."""
    work(named)
    named.loop.post(ev.CancelRequested(time=1003.0, job_id=JobId("2")))
    named.defects.before = lambda event: isinstance(event, ev.JobSubmitted) and event.job.id in {"1", "2"}
    named.restart()
    assert known(named) == {}
    if snapshot:
        number = named.journal.append(ev.ClusterPolled(time=1004.0, cluster=A, processors=9, idle=9, ours=0))
        list(named.journal.snapshot_in_groups(named.loop.scheduler.state, number))
        named.restart()
    submit(named, 3)
    assert asked_for(named)[2:] == [("koala-t-3", 4)]
    named.restart()
    assert known(named) == {"koala-t-3": ("3", 4)}


def test_a_submission_that_only_a_replay_makes_has_a_name_of_its_own(named: Looped) -> None:
    """Where one is left out another finds room earlier: it was never asked for under any name that was used."""
    work(named)
    submit(named, 5)  # finds no room: 2 + 3 + 6 is more than 9
    assert len(asked_for(named)) == 2
    submit(named, 3)
    assert asked_for(named)[2:] == [("koala-t-3", 4)]
    upgrade(named)
    assert known(named) == {"koala-t-2": ("2", 3), "koala-t-4": ("5", 6)}
    named.restart()
    assert known(named) == {"koala-t-2": ("2", 3), "koala-t-4": ("5", 6)}


def test_what_is_not_noted_is_not_asked_for(named: Looped) -> None:
    work(named)
    note_batch = named.journal.note_batch

    def full(batch: BatchRecord) -> None:
        raise JournalBlockedError(f"full: {batch}")

    named.journal.note_batch = full  # type: ignore[method-assign]
    submit(named, 3)
    assert len(asked_for(named)) == 2
    named.journal.note_batch = note_batch  # type: ignore[method-assign]
    named.loop.try_again()
    assert asked_for(named)[2:] == [("koala-t-3", 4)]
    assert [one.key for one in named.journal.batches()] == ["koala-t-1", "koala-t-2", "koala-t-3"]

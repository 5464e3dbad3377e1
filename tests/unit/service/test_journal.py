# SPDX-License-Identifier: Apache-2.0
"""The journal and its snapshots: what was appended is there after a kill at any moment, and recovery gives it back."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.api.closedjournal import closed_journal
from koala_adapter.driver.store import rebuilt
from koala_adapter.errors import JournalError
from koala_adapter.model import BatchKey, ClusterName, EndReason, HoldOwner, LrmJobId, PlaceholderId, TaskEnd
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import events as ev
from koala_adapter.service import journal as snapshots
from koala_adapter.service.journal import ROWS_DROPPED, Journal
from tests.examples import examples
from tests.unit.scheduler import test_malleability_state
from tests.unit.scheduler.scheduler_site import STATE, Site, component, job
from tests.unit.scheduler.test_state import eventful
from tests.unit.service.standins import take_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.api.offline import JournalView
    from koala_adapter.scheduler.events import Event


KEY = BatchKey("koala-k-1")
PLACEHOLDER = PlaceholderId(batch=KEY, index=1)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal.sqlite") as made:
        yield made


def lived() -> Site:
    site = Site({"a": 4, "b": 4})
    site.submit(job("1", component("x", 2, cluster="a"), component("y", 2)))
    site.run("1")
    site.submit(job("2", component("x", 4, cluster="a")))
    site.rank_ends("1", 0, TaskEnd(reason=EndReason.SIGNALLED, signal=9, detail="größer"))
    site.end_ending()
    return site


def recovered(journal: Journal) -> Scheduler:
    return rebuilt(journal, Scheduler)


def test_replay_gives_the_state_that_was(journal: Journal) -> None:
    """Byte for byte, from the events alone."""
    site = lived()
    for event in site.events:
        journal.append(event)
    assert STATE.dump_json(recovered(journal).state) == STATE.dump_json(site.state)


@pytest.mark.parametrize("at", [0, 5, 12, -1])
def test_a_snapshot_and_the_events_after_it_give_the_same(journal: Journal, at: int) -> None:
    """Wherever the snapshot was taken; what it makes superfluous is gone."""
    site, scheduler = lived(), Scheduler()
    for event in site.events[:at]:
        number = journal.append(event)
        scheduler.handle(event)
    if at:
        take_snapshot(journal, scheduler.state, number)
        assert list(journal.recover()[1]) == []
    for event in site.events[at:] if at else site.events:
        journal.append(event)
    assert STATE.dump_json(recovered(journal).state) == STATE.dump_json(site.state)


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_ends = st.builds(
    TaskEnd,
    reason=st.sampled_from(EndReason),
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    detail=_texts,
)
_events: st.SearchStrategy[Event] = st.one_of(
    st.builds(ev.TimeReached, time=st.floats(0, 1e12)),
    st.builds(ev.BatchRejected, time=st.floats(0, 1e12), batch=st.just(KEY), reason=_texts),
    st.builds(
        ev.PlaceholderHeld,
        time=st.floats(0, 1e12),
        placeholder=st.just(PLACEHOLDER),
        host=_texts,
        address=_texts,
        ends_at=st.none() | st.floats(0, 1e12),
    ),
    st.builds(
        ev.HoldsSeen,
        time=st.floats(0, 1e12),
        cluster=_texts,
        holds=st.lists(
            st.builds(
                ev.Hold, placeholder=st.just(PLACEHOLDER), holder=st.none() | st.sampled_from(HoldOwner), reason=_texts
            ),
            max_size=2,
        ).map(tuple),
    ),
    st.builds(ev.RankEnded, time=st.floats(0, 1e12), job_id=_texts, rank=st.none() | st.integers(0, 9), end=_ends),
)


@given(st.lists(_events, max_size=5))
@examples(40)
def test_events_come_back_as_they_were(events: list[Event]) -> None:
    with TemporaryDirectory() as directory, Journal(Path(directory) / "journal.sqlite") as journal:
        for event in events:
            journal.append(event)
        assert [event for _, event in journal.recover()[1]] == events


def test_numbers_of_jobs_are_never_given_twice(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(path) as first:
        numbers = [first.next_job_number(), first.next_job_number()]
    with Journal(path) as second:
        assert [*numbers, second.next_job_number()] == [1, 2, 3]


def test_a_killed_process_loses_nothing_that_it_appended(tmp_path: Path) -> None:
    """SIGKILL right after the append, without close or sync: the event is there."""
    path = tmp_path / "journal.sqlite"
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from koala_adapter.service.journal import Journal\n"
        "from koala_adapter.scheduler.events import TimeReached\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "for number in range(100): journal.append(TimeReached(time=float(number)))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], env={"PYTHONPATH": os.pathsep.join(sys.path)}, check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    with Journal(path) as journal:
        assert [event.time for _, event in journal.recover()[1]] == [float(number) for number in range(100)]


def test_a_failed_snapshot_does_not_hold_up_what_follows(journal: Journal, tmp_path: Path) -> None:
    """The snapshot is all or nothing, and events appended after it are on disk at once, not in an open transaction."""
    site = lived()
    number = [journal.append(event) for event in site.events][-1]
    with closing(sqlite3.connect(journal.path, isolation_level=None)) as other:
        other.execute("CREATE TRIGGER full BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    with pytest.raises(JournalError, match="disk full"):
        take_snapshot(journal, site.state, number)
    journal.append(ev.TimeReached(time=5000.0))
    with closing(sqlite3.connect(journal.path)) as other:
        assert other.execute("SELECT count(*) FROM events").fetchone() == (len(site.events) + 1,)
        assert other.execute("SELECT count(*) FROM snapshots").fetchone() == (0,)


def test_secrets_are_kept_as_digests_and_forgotten(journal: Journal) -> None:
    """Who reads the file cannot speak as an agent; of a submission that is over nothing is kept."""
    journal.set_token(KEY, "the-token-itself")
    journal.bind(PLACEHOLDER, "digest-of-a-session")
    assert journal.batches_with_secrets() == [KEY]
    assert journal.bound_session(PLACEHOLDER) == "digest-of-a-session"
    assert (
        b"the-token-itself" not in journal.path.read_bytes() + (journal.path.parent / "journal.sqlite-wal").read_bytes()
    )
    assert journal.token_hash(KEY) not in {None, "the-token-itself"}
    journal.forget_batch(KEY)
    assert (journal.batches_with_secrets(), journal.token_hash(KEY), journal.bound_session(PLACEHOLDER)) == (
        [],
        None,
        None,
    )


def test_a_placeholder_is_bound_once(journal: Journal) -> None:
    journal.bind(PLACEHOLDER, "first")
    with pytest.raises(JournalError):
        journal.bind(PLACEHOLDER, "second")
    assert journal.bound_session(PLACEHOLDER) == "first"


def test_the_file_is_private(journal: Journal) -> None:
    """The database and what SQLite puts beside it are readable by their owner alone."""
    journal.append(ev.TimeReached(time=1.0))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in journal.path.parent.iterdir()}
    assert modes
    assert set(modes.values()) == {0o600}, modes


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("version", ["1", "2", "99"])
def test_another_version_is_refused_with_a_way_out(tmp_path: Path, version: str, *, read_only: bool) -> None:
    """Nothing is read, let alone changed, that another version wrote; its tables may be other ones."""
    path = tmp_path / "journal.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        other.execute("INSERT INTO meta VALUES ('schema', ?)", (version,))
    with pytest.raises(JournalError, match=f"another version of koala .its schema is {version},") as refused:
        Journal(path, read_only=read_only)
    assert "end its jobs with the version that wrote it" in refused.value.hint
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall() == [("meta",)]


def test_reports_of_another_version_are_not_told(journal: Journal) -> None:
    journal.leave_closing_note([])
    journal.finished.keep("1", 1.0, "{}")

    def whole() -> JournalView:
        raise AssertionError

    assert closed_journal(journal.path, whole) is not None
    journal.set_value("schema", "2")
    assert closed_journal(journal.path, whole) is None


@pytest.mark.parametrize("body", ["{", '{"time": "soon"}'])
def test_an_unreadable_event_is_named(journal: Journal, body: str) -> None:
    """Recovery does not skip what it cannot read: the state would be another one."""
    journal.append(ev.TimeReached(time=1.0))
    with closing(sqlite3.connect(journal.path, isolation_level=None)) as other:
        other.execute("INSERT INTO events (type, body) VALUES ('TimeReached', ?)", (body,))
    with pytest.raises(JournalError, match=r"event 2 \(TimeReached\)"):
        list(journal.recover()[1])


def test_no_database_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(JournalError, match=str(path)):
        Journal(path)
    assert path.read_bytes().startswith(b"this is no database")


def test_reports_of_finished_jobs_are_found_newest_first(journal: Journal) -> None:
    for number in range(5):
        journal.finished.keep(str(number), float(number), f"report {number}")
    journal.finished.keep("0", 9.0, "report 0 again")
    assert journal.finished.latest(3) == ["report 0 again", "report 4", "report 3"]
    assert (journal.finished.report("0"), journal.finished.report("7")) == ("report 0 again", None)


def test_a_reader_sees_one_moment(journal: Journal) -> None:
    """Who reads while the owner writes sees neither half of anything, nor holds up the owner."""
    journal.append(ev.ClusterUnavailable(time=1.0, cluster=ClusterName("a"), reason="gone"))
    with Journal(journal.path, read_only=True) as reader:
        before = list(reader.recover()[1])
        journal.append(ev.BatchSubmitted(time=2.0, batch=KEY, lrm_ids=(LrmJobId("1"),)))
        assert list(reader.recover()[1]) == before
    assert len(list(journal.recover()[1])) == 2


def test_an_open_connection_is_told_of() -> None:
    with pytest.warns(ResourceWarning, match="unclosed database"):
        _leave_open()


def _leave_open() -> None:
    sqlite3.connect(":memory:")
    gc.collect()


@pytest.mark.parametrize("content", [b"no database" * 100, None])
def test_a_journal_that_cannot_be_used_is_closed(tmp_path: Path, content: bytes | None) -> None:
    """A file that is no journal, and one of another version, leave no connection open; a warning would fail this."""
    path = tmp_path / "journal.sqlite"
    if content is not None:
        path.write_bytes(content)
    else:
        with Journal(path) as journal:
            journal.set_value("schema", "one of the future")
    with pytest.raises(JournalError):
        Journal(path)
    gc.collect()


# Snapshots in groups of records: the same state comes back, whenever writing was broken off.


@pytest.fixture
def small_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    monkeypatch.setattr(snapshots, "GROUP", 3)
    with Journal(tmp_path / "journal.sqlite") as opened:
        yield opened


def rows_in(small_groups: Journal) -> int:
    with closing(sqlite3.connect(small_groups.path)) as other:
        return int(other.execute("SELECT count(*) FROM snapshot_rows").fetchone()[0])


@pytest.mark.parametrize("malleable", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_state_comes_back(small_groups: Journal, seed: int, *, malleable: bool) -> None:
    state = (test_malleability_state.eventful(seed)[0] if malleable else eventful(seed)).state
    take_snapshot(small_groups, state, 7)
    found, events = small_groups.recover()
    assert found is not None
    assert found == state
    assert STATE.dump_json(found) == STATE.dump_json(state)
    assert list(events) == []
    assert rows_in(small_groups) > 1


def test_a_later_snapshot_replaces_the_earlier_one(small_groups: Journal) -> None:
    site = Site({"a": 4})
    site.submit(job("1", 2))
    take_snapshot(small_groups, site.state, 1)
    before = rows_in(small_groups)
    for placeholder in site.claimed("1"):
        site.ended(placeholder.id)
    for _ in range(2):
        take_snapshot(small_groups, site.state, 2)
    assert rows_in(small_groups) < before
    assert small_groups.recover()[0] == site.state


def test_a_snapshot_that_is_broken_off_never_was(small_groups: Journal) -> None:
    """Killed after any group, the one before it and the events are still there; what was begun goes with the next."""
    site = Site({"a": 40})
    take_snapshot(small_groups, site.state, small_groups.append(site.events[0]))
    early = STATE.dump_json(site.state)
    number = 0
    for id_ in map(str, range(5)):
        site.submit(job(id_, 2))
        number = small_groups.append(site.events[-1])
    groups = len(list(snapshots.rows(site.state)))
    assert groups > 4
    for written in range(1, groups + 1):
        writing = small_groups.snapshot_in_groups(site.state, number)
        for _ in range(written):
            next(writing)
        del writing
        with Journal(small_groups.path, read_only=True) as reader:
            found, events = reader.recover()
            assert found is not None
            assert STATE.dump_json(found) == early
            assert len(list(events)) == 5
    take_snapshot(small_groups, site.state, number)
    assert rows_in(small_groups) == groups
    assert small_groups.recover()[0] == site.state


def test_no_step_of_a_snapshot_does_much(small_groups: Journal) -> None:
    site = Site({"a": 400})
    site.submit(job("1", 50))
    take_snapshot(small_groups, site.state, 1)
    broken_off = small_groups.snapshot_in_groups(site.state, 2)
    for _ in range(15):
        next(broken_off)
    del broken_off
    kept = rows_in(small_groups) - 15
    assert kept > ROWS_DROPPED
    steps = [
        rows_in(small_groups),
        *(rows_in(small_groups) for _ in small_groups.snapshot_in_groups(site.state, 3)),
        rows_in(small_groups),
    ]
    changes = [after - before for before, after in pairwise(steps)]
    assert set(changes) <= {1, 0, *range(-ROWS_DROPPED, 0)}
    assert (sum(max(0, one) for one in changes), rows_in(small_groups)) == (kept, kept)


def test_others_may_write_between_two_groups(small_groups: Journal) -> None:
    site = Site({"a": 4})
    site.submit(job("1", 4))
    writing = small_groups.snapshot_in_groups(site.state, 1)
    next(writing)
    small_groups.set_value("meanwhile", "written")
    small_groups.append(ev.ClusterUnavailable(time=site.now, cluster=ClusterName("a"), reason="gone"))
    del writing
    with Journal(small_groups.path, read_only=True) as reader:
        assert reader.value("meanwhile") == "written"
        assert len(list(reader.recover()[1])) == 1


def test_an_unreadable_row_is_named(small_groups: Journal) -> None:
    take_snapshot(small_groups, Site({"a": 4}).state, 3)
    with closing(sqlite3.connect(small_groups.path, isolation_level=None)) as other:
        other.execute("UPDATE snapshot_rows SET body = '[{}]'")
    with pytest.raises(JournalError, match="snapshot 3 cannot be read"):
        small_groups.recover()

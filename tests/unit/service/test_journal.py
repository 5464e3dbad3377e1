# SPDX-License-Identifier: Apache-2.0
"""The journal, its snapshots and negotiations in it: all is there after a kill, and recovery gives it back."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.api.closedjournal import closed_journal
from koala_adapter.api.negotiations import job_negotiations, negotiation_reports
from koala_adapter.api.offline import JournalView
from koala_adapter.driver.store import rebuilt
from koala_adapter.errors import JournalBlockedError, JournalError, NegotiationError
from koala_adapter.model import BatchKey, ClusterName, EndReason, HoldOwner, JobId, LrmJobId, PlaceholderId, TaskEnd
from koala_adapter.negotiation import (
    Resource,
    Template,
    accepted,
    build,
    committed,
    consumed,
    countered,
    rejected,
    withdrawn,
)
from koala_adapter.negotiation.templates import APPLICATION, CPU, GROW, NT_EXPIRED, RMS, SHRINK, VOLUNTARY, ended
from koala_adapter.report.sitevalues import NegotiationReport
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.events import Event
from koala_adapter.scheduler.records import State
from koala_adapter.service import journal as snapshots
from koala_adapter.service import records as negotiationstore
from koala_adapter.service.journal import ROWS_DROPPED, Journal
from koala_adapter.service.records import KeptNegotiation, Message
from koala_adapter.service.sizes.kept import NegotiationKeeper, read
from tests.examples import examples
from tests.unit.scheduler import test_malleability_state
from tests.unit.scheduler.malleable_site import AdaptiveSite
from tests.unit.scheduler.scheduler_site import STATE, Site, component, job
from tests.unit.scheduler.test_state import eventful
from tests.unit.service.standins import take_snapshot

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


@pytest.mark.parametrize("at", [0, 5, 12, -1])
def test_a_snapshot_and_the_events_after_it_give_the_same(journal: Journal, at: int) -> None:
    """Byte for byte, wherever the snapshot was taken, or without one (0); what it makes superfluous is gone."""
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
@examples(20)
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


def test_a_journal_that_is_just_being_made_is_not_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    path.touch(mode=0o600)
    with pytest.raises(JournalError, match="the journal is just being made"):
        Journal(path, read_only=True)


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
    before = path.read_bytes()
    with pytest.raises(JournalError, match=str(path)):
        Journal(path)
    gc.collect()
    assert path.read_bytes() == before


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


# What is said in negotiations is kept in the journal, once, under a number; and what it came to is told.

JOB = JobId("1")
KOALA = RMS


def offer(quantity: int, agreement_id: str = "0-1", *, direction: str = GROW) -> Template:
    return Template(
        agreement_id=agreement_id,
        initiator=APPLICATION,
        source="node",
        dest="koala",
        direction=direction,
        obligation=VOLUNTARY,
        resources=(Resource(type=CPU, quantity=quantity),),
    )


def said(journal: Journal, *messages: tuple[str, Template], site: AdaptiveSite | None = None) -> None:
    """Keep messages, one a second."""
    state, now = State() if site is None else site.state, iter(range(100))
    core = SimpleNamespace(negotiations=journal.negotiations, state=state, now=lambda: float(next(now)))
    keeper = NegotiationKeeper(core)  # type: ignore[arg-type]
    for sender, template in messages:
        keeper.keep(JOB, 0, sender, template, build(template).decode())


def reports(journal: Journal, **which: object) -> list[NegotiationReport]:
    wanted = {"job_id": "", "number": 0, "limit": 10, "wall_offset": 1000.0} | which
    return negotiation_reports(journal.negotiations, State(), **wanted)  # type: ignore[arg-type]


def rounds() -> list[tuple[str, Template]]:
    """Return a negotiation in which 14 are asked for and 6 allocated."""
    wish = offer(14)
    counter = countered(wish, {next(iter(wish.quantities())): 6}, reason="no more is free")
    agreed = accepted(counter)
    return [
        (APPLICATION, wish),
        (KOALA, counter),
        (APPLICATION, agreed),
        (KOALA, committed(agreed)),
        (KOALA, consumed(agreed)),
    ]


def test_who_said_what_when_and_what_came_of_it(journal: Journal) -> None:
    """In the order in which it was said, with the time of day and the templates as they were written."""
    said(journal, *rounds())
    (one,) = reports(journal)
    assert (one.number, one.job_id, one.initiator, one.agreement_id) == (1, "1", "application", "0-1")
    assert [(message.at, message.sender, message.processors) for message in one.messages] == [
        (1000.0, "application", 14),
        (1001.0, "koala", 6),
        (1002.0, "application", 6),
        (1003.0, "koala", 6),
        (1004.0, "koala", 6),
    ]
    assert (one.asked, one.standing, one.state, one.reason) == (14, 6, "done", "no more is free")
    assert one.summary == "it asked for 14 more; 6 processors were allocated (no more is free)"
    assert one.messages[1].template == build(rounds()[1][1]).decode()


@pytest.mark.parametrize(
    ("ending", "by", "state", "words"),
    [
        (rejected(offer(3), "not now"), KOALA, "rejected", "koala rejected it (not now)"),
        (withdrawn(offer(3), "lost"), KOALA, "withdrawn", "koala withdrew it (lost)"),
        (ended(offer(3), NT_EXPIRED, "no answer in time"), APPLICATION, "expired", "it expired (no answer in time)"),
    ],
)
def test_why_it_ended(journal: Journal, ending: Template, by: str, state: str, words: str) -> None:
    said(journal, (APPLICATION, offer(3)), (by, ending), (APPLICATION, accepted(offer(3))))
    (one,) = reports(journal)
    assert (one.state, one.summary) == (state, f"it asked for 3 more; {words}")
    assert len(one.messages) == 3


def test_a_negotiation_whose_job_has_ended(journal: Journal) -> None:
    """It is over without having been settled."""
    said(journal, (APPLICATION, offer(2, direction=SHRINK)))
    (one,) = reports(journal)
    assert (one.state, one.summary) == ("over", "it wanted to give back 2; the job ended before it was settled")


def test_what_is_said_again_is_kept_once(journal: Journal) -> None:
    said(journal, *rounds(), *rounds(), (APPLICATION, offer(1, "0-2")))
    assert [(one.number, len(one.messages)) for one in reports(journal)] == [(1, 5), (2, 1)]


def test_which_are_shown(journal: Journal) -> None:
    said(journal, *((APPLICATION, offer(1, f"0-{number}")) for number in range(1, 5)))
    assert [one.number for one in reports(journal, limit=2)] == [3, 4]
    assert [one.agreement_id for one in reports(journal, number=2)] == ["0-2"]
    assert len(reports(journal, job_id="1")) == 4
    assert reports(journal, job_id="2") == []
    with pytest.raises(NegotiationError, match="no negotiation 9"):
        reports(journal, number=9)


def test_only_so_many_are_kept(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(negotiationstore, "MOST_KEPT", 3)
    said(journal, *((APPLICATION, offer(1, f"0-{number}")) for number in range(1, 6)))
    assert [(one.number, len(one.messages)) for one in reports(journal)] == [(3, 1), (4, 1), (5, 1)]


def test_the_explanation_of_a_job(journal: Journal) -> None:
    site = AdaptiveSite({"a": 9})
    site.begin(most=9)
    said(journal, (APPLICATION, offer(1, "0-0")), *rounds(), site=site)
    record = site.record("1")
    told = job_negotiations(journal.negotiations, record, 12.0)
    assert told.endswith(
        "Negotiation 2: it asked for 14 more; 6 processors were allocated (no more is free) (7 s ago)."
    )
    assert "Negotiation 1: it asked for 1 more; there is no answer yet (12 s ago)." in told
    (one, _) = journal.negotiations.latest(limit=2)
    assert one.component == "m"
    misses = read.cache_info().misses
    assert job_negotiations(journal.negotiations, record, 12.0) == told
    assert read.cache_info().misses == misses  # of what nobody has said anything in meanwhile, nothing is parsed again


def test_a_journal_that_cannot_be_written_for_a_while(journal: Journal) -> None:
    """What was said meanwhile is written when it can be."""

    class Blocked:
        def __init__(self) -> None:
            self.blocked = True

        def keep(self, kept: KeptNegotiation, message: Message) -> None:
            if self.blocked:
                raise JournalBlockedError("no space")
            journal.negotiations.keep(kept, message)

    store = Blocked()
    core = SimpleNamespace(negotiations=store, state=State(), now=lambda: 5.0)
    keeper = NegotiationKeeper(core)  # type: ignore[arg-type]
    keeper.keep(JOB, 0, APPLICATION, offer(1), build(offer(1)).decode())
    assert reports(journal) == []
    store.blocked = False
    refusal = rejected(offer(1), "no")
    keeper.keep(JOB, 0, KOALA, refusal, build(refusal).decode())
    assert [message.sender for message in reports(journal)[0].messages] == ["application", "koala"]

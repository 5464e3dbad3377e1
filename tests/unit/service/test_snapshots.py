# SPDX-License-Identifier: Apache-2.0
"""Snapshots in groups of records: the same state comes back, whenever writing was broken off."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import JournalError
from koala_adapter.model import ClusterName
from koala_adapter.scheduler import events as ev
from koala_adapter.service import journal as snapshots
from koala_adapter.service.journal import ROWS_DROPPED, Journal
from tests.unit.scheduler import test_malleability_state
from tests.unit.scheduler.scheduler_site import STATE, Site, job
from tests.unit.scheduler.test_state import eventful
from tests.unit.service.taking_snapshots import take_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    monkeypatch.setattr(snapshots, "GROUP", 3)
    with Journal(tmp_path / "journal.sqlite") as opened:
        yield opened


def rows_in(journal: Journal) -> int:
    with closing(sqlite3.connect(journal.path)) as other:
        return int(other.execute("SELECT count(*) FROM snapshot_rows").fetchone()[0])


@pytest.mark.parametrize("malleable", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_state_comes_back(journal: Journal, seed: int, *, malleable: bool) -> None:
    state = (test_malleability_state.eventful(seed)[0] if malleable else eventful(seed)).state
    take_snapshot(journal, state, 7)
    found, events = journal.recover()
    assert found is not None
    assert found == state
    assert STATE.dump_json(found) == STATE.dump_json(state)
    assert list(events) == []
    assert rows_in(journal) > 1


def test_a_later_snapshot_replaces_the_earlier_one(journal: Journal) -> None:
    site = Site({"a": 4})
    site.submit(job("1", 2))
    take_snapshot(journal, site.state, 1)
    before = rows_in(journal)
    for placeholder in site.claimed("1"):
        site.ended(placeholder.id)
    for _ in range(2):
        take_snapshot(journal, site.state, 2)
    assert rows_in(journal) < before
    assert journal.recover()[0] == site.state


def test_a_snapshot_that_is_broken_off_never_was(journal: Journal) -> None:
    """Killed after any group, the one before it and the events are still there; what was begun goes with the next."""
    site = Site({"a": 40})
    take_snapshot(journal, site.state, journal.append(site.events[0]))
    early = STATE.dump_json(site.state)
    number = 0
    for id_ in map(str, range(5)):
        site.submit(job(id_, 2))
        number = journal.append(site.events[-1])
    groups = len(list(snapshots.rows(site.state)))
    assert groups > 4
    for written in range(1, groups + 1):
        writing = journal.snapshot_in_groups(site.state, number)
        for _ in range(written):
            next(writing)
        del writing
        with Journal(journal.path, read_only=True) as reader:
            found, events = reader.recover()
            assert found is not None
            assert STATE.dump_json(found) == early
            assert len(list(events)) == 5
    take_snapshot(journal, site.state, number)
    assert rows_in(journal) == groups
    assert journal.recover()[0] == site.state


def test_no_step_of_a_snapshot_does_much(journal: Journal) -> None:
    site = Site({"a": 400})
    site.submit(job("1", 50))
    take_snapshot(journal, site.state, 1)
    broken_off = journal.snapshot_in_groups(site.state, 2)
    for _ in range(15):
        next(broken_off)
    del broken_off
    kept = rows_in(journal) - 15
    assert kept > ROWS_DROPPED
    steps = [rows_in(journal), *(rows_in(journal) for _ in journal.snapshot_in_groups(site.state, 3)), rows_in(journal)]
    changes = [after - before for before, after in pairwise(steps)]
    assert set(changes) <= {1, 0, *range(-ROWS_DROPPED, 0)}
    assert (sum(max(0, one) for one in changes), rows_in(journal)) == (kept, kept)


def test_others_may_write_between_two_groups(journal: Journal) -> None:
    site = Site({"a": 4})
    site.submit(job("1", 4))
    writing = journal.snapshot_in_groups(site.state, 1)
    next(writing)
    journal.set_value("meanwhile", "written")
    journal.append(ev.ClusterUnavailable(time=site.now, cluster=ClusterName("a"), reason="gone"))
    del writing
    with Journal(journal.path, read_only=True) as reader:
        assert reader.value("meanwhile") == "written"
        assert len(list(reader.recover()[1])) == 1


def test_an_unreadable_row_is_named(journal: Journal) -> None:
    take_snapshot(journal, Site({"a": 4}).state, 3)
    with closing(sqlite3.connect(journal.path, isolation_level=None)) as other:
        other.execute("UPDATE snapshot_rows SET body = '[{}]'")
    with pytest.raises(JournalError, match="snapshot 3 cannot be read"):
        journal.recover()

# SPDX-License-Identifier: Apache-2.0
"""The ledger by which batches are found again after a crash, although DRMAA cannot find a job by its name."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from koala_adapter.lrm.drmaa.ledger import (
    KEEP_SECONDS,
    KEEP_UNKNOWN_SECONDS,
    TIDIED_EVERY,
    JobEnd,
    Ledger,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = 1_000_000.0


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Give an empty ledger."""
    with closing(Ledger(tmp_path / "ledger.sqlite")) as one:
        yield one


def test_intent_without_ids_is_a_batch(ledger: Ledger) -> None:
    """What was about to be submitted is known, with its count and without ids."""
    ledger.intend("k1", 3, NOW)
    batch = ledger.batches()["k1"]
    assert (batch.count, batch.ids, batch.submitted_at) == (3, (), NOW)


def test_ids_and_ends(ledger: Ledger, tmp_path: Path) -> None:
    """A batch has its ids in order, and those whose end is recorded are no longer live; the next helper sees it."""
    end = JobEnd(at=NOW + 5, failed=True, exit_code=None, signal=9, aborted=True)
    ledger.intend("k1", 2, NOW)
    ledger.add("k1", ["7.1", "7.2"])
    ledger.end({"7.1": end})
    with closing(Ledger(tmp_path / "ledger.sqlite")) as another:
        batch = another.batches()["k1"]
    assert (batch.ids, batch.live(), batch.ends["7.1"]) == (("7.1", "7.2"), ("7.2",), end)


def test_what_was_refused_is_gone(ledger: Ledger) -> None:
    """A batch of which nothing is in the LRM is not listed."""
    ledger.intend("k1", 1, NOW)
    ledger.intend("k2", 1, NOW)
    ledger.settle(["k1", "never was"])
    assert set(ledger.batches()) == {"k2"}


def test_jobs_one_by_one(ledger: Ledger) -> None:
    """Each id is known as soon as it is; of the others nothing is, until it is said that there are no more."""
    ledger.intend("k1", 3, NOW)
    ledger.add("k1", ["7"])
    ledger.add("k1", ["8"])
    ledger.tidy(NOW + 2 * KEEP_SECONDS)
    assert (ledger.batches()["k1"].ids, ledger.batches()["k1"].count) == (("7", "8"), 3)
    ledger.settle(["k1"])
    assert (ledger.batches()["k1"].ids, ledger.batches()["k1"].count) == (("7", "8"), 2)


def test_only_what_is_asked_for(ledger: Ledger) -> None:
    """A prefix leaves out the rest; a character that means something to SQL means nothing here."""
    for key in ("a%b-1", "a%b-2", "axb-3", "b"):
        ledger.intend(key, 1, NOW)
    assert list(ledger.batches("a%b")) == ["a%b-1", "a%b-2"]


def test_ledger_is_private(ledger: Ledger, tmp_path: Path) -> None:
    """Other users cannot read the ledger."""
    ledger.intend("k1", 1, NOW)
    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}


def test_only_what_is_over_is_forgotten(ledger: Ledger) -> None:
    """Batches over for a day, and unknown ones of two weeks ago, go; live, recent and other unknown ones stay."""
    old, end = NOW - KEEP_UNKNOWN_SECONDS - 1, JobEnd(at=NOW - KEEP_SECONDS - 1)
    for key, count, at, ids, ends in (
        ("over", 1, old, ["1.1"], {"1.1": end}),
        ("half", 2, old, ["2.1", "2.2"], {"2.1": end}),
        ("lost", 1, old, [], {}),
        ("unknown", 1, NOW - 60, [], {}),
        ("recent", 1, old, ["3.1"], {"3.1": JobEnd(at=NOW - 5, exit_code=4)}),
    ):
        ledger.intend(key, count, at)
        ledger.add(key, ids)
        ledger.end(ends)
    before = ledger.batches()
    ledger.tidy(NOW)
    after = ledger.batches()
    assert set(after) == {"half", "unknown", "recent"}
    assert after == {key: before[key] for key in after}


def test_two_writers(tmp_path: Path, ledger: Ledger) -> None:
    """Two helpers on one ledger lose nothing of each other, not even while one of them tidies it."""

    def write(name: str) -> None:
        with closing(Ledger(tmp_path / "ledger.sqlite")) as mine:
            for number in range(20):
                mine.intend(f"{name}{number}", 1, NOW)
                mine.add(f"{name}{number}", [f"{name}.{number}"])
                mine.tidy(NOW + number * TIDIED_EVERY)

    threads = [threading.Thread(target=write, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {len(batch.ids) for batch in ledger.batches().values()} == {1}
    assert len(ledger.batches()) == 40


def test_a_ledger_that_stays_open_does_not_grow_for_ever(ledger: Ledger) -> None:
    """What is over for a day is left out within the hour, however long the helper lives."""
    ledger.tidy(NOW)
    for number in range(20):
        ledger.intend(f"k{number}", 1, NOW)
        ledger.add(f"k{number}", [str(number)])
        ledger.end({str(number): JobEnd(at=NOW)})
    ledger.tidy(NOW + TIDIED_EVERY - 1)
    assert len(ledger.batches()) == 20
    ledger.tidy(NOW + KEEP_SECONDS + 1)
    assert ledger.batches() == {}


@pytest.mark.parametrize("id_", ["7.1", "'; DROP TABLE jobs; --", "\udcff".encode("utf-8", "surrogateescape").hex()])
def test_any_id(ledger: Ledger, id_: str) -> None:
    """Ids are taken as they are."""
    ledger.intend("k", 1, NOW)
    ledger.add("k", [id_])
    assert ledger.batches()["k"].ids == (id_,)

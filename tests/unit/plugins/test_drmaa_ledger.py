# SPDX-License-Identifier: Apache-2.0
"""The ledger by which batches are found again after a crash, although DRMAA cannot find a job by its name."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.lrm.drmaa.helper import (
    COMPACTED_EVERY,
    KEEP_SECONDS,
    KEEP_UNKNOWN_SECONDS,
    JobEnd,
    Ledger,
    abandoned_record,
    cut_record,
    end_record,
    ids_record,
    intent_record,
    job_record,
    parse_ledger,
    refused_record,
)

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_000_000.0


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Give an empty ledger."""
    return Ledger(tmp_path / "ledger.jsonl")


def test_intent_without_ids_is_a_batch(ledger: Ledger) -> None:
    """What was about to be submitted is known, with its count and without ids."""
    ledger.append([intent_record("k1", 3, NOW)])
    batch = ledger.read()["k1"]
    assert (batch.count, batch.ids, batch.submitted_at) == (3, (), NOW)


def test_ids_and_ends(ledger: Ledger) -> None:
    """A batch has its ids in order, and those whose end is recorded are no longer live."""
    end = JobEnd(at=NOW + 5, failed=True, exit_code=None, signal=9, aborted=True)
    ledger.append([intent_record("k1", 2, NOW)])
    ledger.append([ids_record("k1", ["7.1", "7.2"])])
    ledger.append([end_record("k1", "7.1", end)])
    batch = Ledger(ledger.path).read()["k1"]
    assert (batch.ids, batch.live(), batch.ends["7.1"]) == (("7.1", "7.2"), ("7.2",), end)


@pytest.mark.parametrize("record", [refused_record("k1"), abandoned_record("k1")])
def test_refused_and_abandoned_batches_are_gone(ledger: Ledger, record: dict[str, object]) -> None:
    """A batch that the LRM refused, or that nobody wants to hear of, is not listed."""
    ledger.append([intent_record("k1", 1, NOW), intent_record("k2", 1, NOW), record])
    assert set(ledger.read()) == {"k2"}


def test_jobs_one_by_one(ledger: Ledger) -> None:
    """Each id is known as soon as it is; of the others nothing is, until it is said that there are no more."""
    ledger.append([intent_record("k1", 3, NOW), job_record("k1", "7"), job_record("k1", "8")])
    assert (ledger.read()["k1"].ids, ledger.read()["k1"].count) == (("7", "8"), 3)
    ledger.compact(NOW + 2 * KEEP_SECONDS)
    assert ledger.read()["k1"].ids == ("7", "8")
    ledger.append([cut_record("k1")])
    assert (ledger.read()["k1"].ids, ledger.read()["k1"].count) == (("7", "8"), 2)


def test_abandoning_forgets_only_what_is_unknown(ledger: Ledger) -> None:
    """Jobs of a batch that have ids are listed further on."""
    ledger.append([intent_record("k1", 3, NOW), job_record("k1", "7"), abandoned_record("k1")])
    assert (ledger.read()["k1"].ids, ledger.read()["k1"].count) == (("7",), 1)


def test_torn_line_hides_nothing(ledger: Ledger) -> None:
    """A last line that a crash tore is ignored, and what is written after it is read."""
    ledger.append([intent_record("k1", 1, NOW)])
    with ledger.path.open("ab") as file:
        file.write(b'{"what": "ids", "key": "k1", "ids": ["7.')
    ledger.append([intent_record("k2", 1, NOW)])
    batches = ledger.read()
    assert set(batches) == {"k1", "k2"}
    assert batches["k1"].ids == ()


def test_ledger_is_private(ledger: Ledger) -> None:
    """Nobody else can read the ledger."""
    ledger.append([intent_record("k1", 1, NOW)])
    ledger.compact(NOW)
    assert {path.stat().st_mode & 0o077 for path in ledger.path.parent.iterdir()} == {0}


def test_compaction_forgets_only_what_is_over(ledger: Ledger) -> None:
    """Batches over for a day, and unknown ones of two weeks ago, go; live, recent and other unknown ones stay."""
    old, end = NOW - KEEP_UNKNOWN_SECONDS - 1, JobEnd(at=NOW - KEEP_SECONDS - 1)
    ledger.append(
        [
            intent_record("over", 1, old),
            ids_record("over", ["1.1"]),
            end_record("over", "1.1", end),
            intent_record("half", 2, old),
            ids_record("half", ["2.1", "2.2"]),
            end_record("half", "2.1", end),
            intent_record("lost", 1, old),
            intent_record("unknown", 1, NOW - 60),
            intent_record("recent", 1, old),
            ids_record("recent", ["3.1"]),
            end_record("recent", "3.1", JobEnd(at=NOW - 5, exit_code=4)),
        ]
    )
    before = ledger.read()
    ledger.compact(NOW)
    after = ledger.read()
    assert set(after) == {"half", "unknown", "recent"}
    assert after == {key: before[key] for key in after}


def test_two_writers(ledger: Ledger) -> None:
    """Two helpers on one ledger lose no line of each other, not even while one of them compacts it."""

    def write(name: str) -> None:
        mine = Ledger(ledger.path)
        for number in range(20):
            mine.append([intent_record(f"{name}{number}", 1, NOW)])
            if number % 5 == 0:
                mine.compact(NOW)

    threads = [threading.Thread(target=write, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ledger.read()) == 40


@given(st.lists(st.text(max_size=30) | st.binary(max_size=30).map(repr), max_size=10))
def test_any_text(lines: list[str]) -> None:
    """Lines that are no records, or records of another shape, are skipped; the good one among them is read."""
    good = json.dumps(intent_record("k1", 1, NOW))
    odd = [json.dumps({"what": "ids", "key": "nobody", "ids": []}), "[]", "1", '{"what": "intent", "key": "x"}']
    assert "k1" in parse_ledger("\n".join([*(line.replace("\n", " ") for line in lines), *odd, good]))


def test_a_ledger_that_stays_open_does_not_grow_for_ever(ledger: Ledger) -> None:
    """What is over for a day is left out within the hour, however long the helper lives."""
    ledger.compact_if_due(NOW)
    for number in range(20):
        key = f"k{number}"
        ledger.append([intent_record(key, 1, NOW), ids_record(key, [str(number)])])
        ledger.append([end_record(key, str(number), JobEnd(at=NOW))])
    ledger.compact_if_due(NOW + COMPACTED_EVERY - 1)
    assert len(ledger.read()) == 20
    ledger.compact_if_due(NOW + KEEP_SECONDS + 1)
    assert ledger.read() == {}
    assert ledger.path.stat().st_size == 0

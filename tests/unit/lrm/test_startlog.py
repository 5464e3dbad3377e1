# SPDX-License-Identifier: Apache-2.0
"""The record of starts that are under way: durable, and that of version 0.1 is read."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import JournalError
from koala_adapter.host.clock import ClockReading
from koala_adapter.lrm.starts import OriginalRequest, Pin, StartLog
from koala_adapter.model import LrmJobId
from tests.sqlite_watch import closed_later

if TYPE_CHECKING:
    from pathlib import Path

WISHES = {
    "processors": 4, "requested_nodes": ["n1"], "nodes_wanted": 1, "nodes_least": 1, "nodes_most": None,
    "tasks_per_node": None,
}  # fmt: skip
ROW = {
    "job_id": "17", "submitted_at": 1.5, "nodes": [["n1", 4]], "wishes": WISHES, "at": 2.0, "failures": 1,
    "not_before": 30.0, "failure": "it did not start within 30 s", "started": False,
}  # fmt: skip
"""As version 0.1 writes it."""


def test_the_log_survives_its_process(tmp_path: Path) -> None:
    """What was stored is there, what was dropped is not, and a damaged file is refused."""
    log = closed_later(StartLog(tmp_path / "starts.sqlite"))
    wishes = OriginalRequest(processors=4, requested_nodes=("n1",), nodes_wanted=1)
    pins = {
        LrmJobId(number): Pin(job_id=LrmJobId(number), submitted_at=1.5, nodes=(("n1", 4),), wishes=wishes, at=2.0)
        for number in ("1", "2")
    }
    log.store(pins)
    del pins[LrmJobId("1")]
    log.store(pins)
    log.close()
    again = closed_later(StartLog(tmp_path / "starts.sqlite"))
    assert again.pins == (pins[LrmJobId("2")],)
    again.close()
    (tmp_path / "bad").write_bytes(b"no database" * 100)
    with pytest.raises(JournalError, match="cannot be used"):
        StartLog(tmp_path / "bad")


def test_starts_come_singly(tmp_path: Path) -> None:
    """Another process finds them all."""
    log = closed_later(StartLog(tmp_path / "starts.sqlite"))
    for number in ("1", "2"):
        wishes = OriginalRequest(processors=1)
        log.note(Pin(job_id=LrmJobId(number), submitted_at=None, nodes=(("n1", 1),), wishes=wishes, at=1.0))
    again = closed_later(StartLog(tmp_path / "starts.sqlite"))
    assert [pin.job_id for pin in again.pins] == [pin.job_id for pin in log.pins] == ["1", "2"]
    again.close()
    log.close()
    with pytest.raises(JournalError, match="cannot be written"):
        log.store({})


def test_the_record_of_version_0_1_is_read(tmp_path: Path) -> None:
    """Its starts and its clock are taken up where they were."""
    database = closed_later(sqlite3.connect(tmp_path / "starts.sqlite", isolation_level=None))
    database.execute("CREATE TABLE pins (job TEXT PRIMARY KEY, body TEXT NOT NULL)")
    database.execute("CREATE TABLE clock (only INTEGER PRIMARY KEY, body TEXT NOT NULL)")
    database.execute("INSERT INTO pins VALUES ('17', ?)", (json.dumps(ROW),))
    clock = {"time": 10.0, "time_of_day": 20.0, "since_boot": 5.0, "boot": "b"}
    database.execute("INSERT INTO clock VALUES (1, ?)", (json.dumps(clock),))
    database.close()
    log = closed_later(StartLog(tmp_path / "starts.sqlite"))
    (pin,) = log.pins
    assert (pin.nodes, pin.wishes.requested_nodes) == ((("n1", 4),), ("n1",))
    assert (pin.failures, pin.not_before) == (1, 30.0)
    assert log.clock == ClockReading(time=10.0, time_of_day=20.0, since_boot=5.0, boot="b")
    log.close()

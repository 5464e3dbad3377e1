# SPDX-License-Identifier: Apache-2.0
"""The record of starts that are under way is durable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import JournalError
from koala_adapter.lrm.starts import OriginalRequest, Pin, StartLog
from koala_adapter.model import LrmJobId
from tests.sqlite_watch import closed_later

if TYPE_CHECKING:
    from pathlib import Path


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

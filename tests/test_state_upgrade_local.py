# SPDX-License-Identifier: Apache-2.0
"""A state directory of an earlier version is taken over as it is: its jobs, their output, and where it had got to."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.api.statedirectory import prepare_directory
from tests.local_koala import Koala

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

RECORDED = json.loads(Path(__file__).with_name("statedirectory-0.1.json").read_text(encoding="utf-8"))


@pytest.fixture
def koala(tmp_path: Path) -> Iterator[Koala]:
    """Give a site whose state directory is the recorded one."""
    one = Koala(tmp_path)
    prepare_directory(one.state)
    with closing(sqlite3.connect(one.state / "journal.sqlite")) as database:
        database.executescript("\n".join(RECORDED["journal"]))
    (one.state / "journal.sqlite").chmod(0o600)
    for name, text in RECORDED["files"].items():
        (one.state / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        (one.state / name).write_text(text, encoding="utf-8")
    try:
        yield one
    finally:
        one.close()


def test_what_it_holds_is_told_without_a_service(koala: Koala) -> None:
    """How its jobs ended, what they wrote and why; pictures of them can be drawn from the same reports."""
    jobs = koala.json("status")
    assert [(job["id"], job["name"], job["state"]) for job in jobs] == [
        ("1", "recorded", "completed"),
        ("2", "later", "cancelled"),
    ]
    assert "cancelled by the user" in koala.inside("explain", "2").stdout
    assert sorted(koala.run("logs", "1").stdout.splitlines()) == [
        "left/0: hello from 0",
        "left/1: hello from 1",
        "right/0: hello from 2",
    ]


def test_a_service_goes_on_with_it(koala: Koala) -> None:
    """The next job gets the next number; what there was is still there, and nothing is left over in the clusters."""
    koala.serve()
    koala.run("run", koala.job("echo new", name="new"))
    assert [(job["id"], job["state"]) for job in koala.json("status")] == [
        ("1", "completed"),
        ("2", "cancelled"),
        ("3", "completed"),
    ]
    assert koala.json("reap", "--all")["found"] == []

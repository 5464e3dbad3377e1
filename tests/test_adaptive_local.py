# SPDX-License-Identifier: Apache-2.0
"""Programs whose processes change together, on local clusters, with the application library as it travels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.local_koala import Koala, eventually
from tests.stepsum import expected_result, write_stepsum

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def koala(tmp_path: Path) -> Iterator[Koala]:
    """Give a site of two local clusters of four processors, and end all of it afterwards."""
    one = Koala(tmp_path)
    try:
        yield one
    finally:
        one.close()


def size(koala: Koala, job: str = "1") -> int:
    """Return how many processors a job has."""
    return sum(one["processors"] for one in koala.json("status", job)["components"])


def outcome(koala: Koala, job: str = "1") -> dict[str, Any]:
    """Return how a job ended, once it has."""
    eventually(lambda: koala.json("status", job)["outcome"] is not None)
    found: dict[str, Any] = koala.json("status", job)["outcome"]
    return found


def printed(koala: Koala, job: str = "1") -> list[str]:
    """Return what the process of rank 0 printed."""
    return (koala.state / "jobs" / job / "sum" / "0.out").read_text().splitlines()


def test_processes_come_and_go_and_the_result_is_the_same(koala: Koala) -> None:
    """It grows to all that is idle on two clusters, makes room for a rigid job, and computes what it would alone."""
    koala.serve()
    koala.run("submit", write_stepsum(koala.directory, steps=300))
    eventually(lambda: size(koala) == 6)
    koala.run("submit", koala.job("sleep 3", name="rigid", processors=3))
    assert outcome(koala, "2")["exit_code"] == 0
    assert outcome(koala)["exit_code"] == 0, koala.run("explain", "1").stdout
    sizes, result = printed(koala)[-2:]
    assert result == expected_result(300)
    assert {"1", "2", "6"} <= set(sizes.split()[1:]), sizes
    eventually(lambda: koala.placeholders() == [])

# SPDX-License-Identifier: Apache-2.0
"""The policies of one cluster on a workload of realistic size: EASY beside a bare loop written by itself."""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks.plain_easy import plain_easy
from koala_adapter.queueing.maui import FirstFit
from koala_adapter.simulation.models import lublin
from koala_adapter.simulation.replay import Policy, Site, replay

JOBS = lublin(2000, seed=5, processors=128)
SITE = Site(name="machine", processors=128)


@pytest.fixture(scope="module")
def bare() -> list[float]:
    """The starts of the bare loop of the benchmark."""
    return plain_easy(JOBS.submits, JOBS.runs, JOBS.sizes, JOBS.estimates, SITE.processors)


@pytest.mark.parametrize("name", ["easy", "firstfit"])
def test_easy_is_what_the_bare_loop_does(name: str, bare: list[float]) -> None:
    """EASY and FIRSTFIT of depth 1 start each of two thousand jobs when the loop does, and many of them had to wait."""
    assert list(replay(JOBS, Policy(name=name), [SITE]).starts) == bare
    assert sum(start > submit for start, submit in zip(bare, JOBS.submits, strict=True)) > len(JOBS) / 10


def test_the_general_firstfit_is_easy_as_well(bare: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """The code for any depth, which the factory does not use for depth 1, gives the same starts."""
    monkeypatch.setattr("koala_adapter.simulation.replay.make_cluster_scheduler", lambda _, size, **__: FirstFit(size))
    assert list(replay(JOBS, Policy(name="firstfit"), [SITE]).starts) == bare


def test_fcfs_is_the_last_to_finish() -> None:
    """Without overtaking starts are in the order of arrival, and jobs wait longer on average than with backfill."""
    starts = {name: list(replay(JOBS, Policy(name=name), [SITE]).starts) for name in ("fcfs", "easy", "conservative")}
    assert all(before <= after for before, after in pairwise(starts["fcfs"]))
    assert sum(starts["fcfs"]) > sum(starts["conservative"])
    assert sum(starts["fcfs"]) > sum(starts["easy"])

# SPDX-License-Identifier: Apache-2.0
"""Small workloads for the tests of the simulator, given by hand or by hypothesis."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies as st

from koala_adapter.simulation.workload import Workload

PROCESSORS = 8
TRACES = Path(__file__).parents[4] / "shared" / "traces"
"""Where the traces of the Parallel Workloads Archive are on the machines on which we develop."""

Row = tuple[float, int, float, float]
"""Submission, processors, run time, estimate."""


def make(*jobs: tuple[float, ...], processors: int = PROCESSORS) -> Workload:
    """Return a workload of (submission, processors, run time[, estimate]) in order of submission."""
    return Workload(
        name="by hand",
        processors=processors,
        ids=range(1, len(jobs) + 1),
        submits=[row[0] for row in jobs],
        runs=[row[2] for row in jobs],
        sizes=[int(row[1]) for row in jobs],
        estimates=[row[-1] for row in jobs],
        users=[-1] * len(jobs),
        rows=range(len(jobs)),
    )


def _row(gap: int, size: int, run: int, extra: int) -> tuple[int, int, int, int]:
    return gap, size, run, run + extra


def _added_up(rows: list[tuple[int, int, int, int]]) -> Workload:
    time, jobs = 0, []
    for gap, size, run, estimate in rows:
        time += gap
        jobs.append((time, size, run, estimate))
    return make(*jobs)


any_workload = st.lists(
    st.builds(
        _row,
        st.sampled_from([0, 0, 0, 1, 3, 10]),
        st.integers(1, PROCESSORS),
        st.integers(1, 20),
        st.sampled_from([0, 0, 1, 5, 30]),
    ),
    min_size=1,
    max_size=40,
).map(_added_up)
"""Jobs that often come at once and often do not fit."""


def archive(name: str) -> Path:
    """Return a trace of the archive, or skip the test where it is not."""
    path = TRACES / f"{name}.swf.gz"
    if not path.exists():
        pytest.skip(f"{path} is not on this machine")
    return path

# SPDX-License-Identifier: Apache-2.0
"""What a journal tells of a workload is what the simulator says of it, where the world answers at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from koala_adapter.model import JobKind, RunnerName
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.simulation.multicluster import Settings, simulate
from koala_adapter.simulation.platform import DAS3
from koala_experiments.liveruns import JournalRecord, live_job, name_of
from koala_experiments.malleable import WM_HIGH, WMR_HIGH, koala_workload
from tests.unit.simulation.test_multicluster_live import LiveWorld

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.simulation.applications import SimulatedJob
    from koala_experiments.malleable import KoalaWorkload


def named(journal: list[ev.Event], jobs: dict[str, SimulatedJob]) -> list[ev.Event]:
    """Return a journal in which jobs have the names under which live ones are submitted."""
    return [
        replace(one, job=replace(one.job, name=name_of(jobs[one.job.id]))) if isinstance(one, ev.JobSubmitted) else one
        for one in journal
    ]


@pytest.mark.parametrize("workload", [WM_HIGH, WMR_HIGH], ids=["Wm-high", "Wmr-high"])
def test_the_journal_tells_what_the_simulator_says(workload: KoalaWorkload) -> None:
    """Start, end, mean and largest size of each of 40 jobs; and how many messages there were."""
    jobs = koala_workload(workload, 0, jobs=40, poisson=True)
    world = LiveWorld(DAS3, jobs, Approach.PWA, "fpsma")
    world.run()
    record = JournalRecord({name_of(one): one for one in jobs})
    record.read(named(world.service.journal, {str(one.number): one for one in jobs}))
    found = record.outcome(1.0)
    expected = simulate(DAS3, jobs, Settings(approach=Approach.PWA, malleability="fpsma"))
    assert record.failed == []
    assert found.unfinished == 0
    assert found.grow_messages + found.shrink_messages == pytest.approx(
        expected.grow_messages + expected.shrink_messages, rel=0.1
    )
    simulated = {one.job.number: one for one in expected.jobs}
    assert len(found.jobs) == 40
    for one in found.jobs:
        other = simulated[one.job.number]
        assert one.started_at == pytest.approx(other.started_at)
        assert one.ended_at == pytest.approx(other.ended_at)
        assert one.maximum_processors == other.maximum_processors
        assert one.average_processors == pytest.approx(other.average_processors)
        assert (one.grown, one.shrunk) == (other.grown, other.shrunk)
        assert one.clusters == other.clusters


def test_times_go_by_the_pace() -> None:
    """A journal of a tenth of the time, at ten seconds per second, tells the same."""
    jobs = koala_workload(WM_HIGH, 0, jobs=5)
    world = LiveWorld(DAS3, jobs, Approach.PWA, "fpsma")
    world.run()
    journal = named(world.service.journal, {str(one.number): one for one in jobs})
    outcomes = []
    for events, pace in ((journal, 1.0), ([replace(one, time=one.time / 10.0) for one in journal], 10.0)):
        record = JournalRecord({name_of(one): one for one in jobs})
        record.read(events)
        outcomes.append([(one.job.number, round(one.ended_at, 3)) for one in record.outcome(pace).jobs])
    assert outcomes[0] == outcomes[1]
    assert record.sizes(10.0)[0][0] == (0.0, 2)


def test_a_live_job_is_what_was_simulated(tmp_path: Path) -> None:
    """FT becomes workers that take powers of two; a rigid job keeps its two processes."""
    jobs = koala_workload(WMR_HIGH, 0, jobs=20)
    for one in jobs:
        made = live_job(one, address="127.0.0.1", port=1, files=[tmp_path / "worker.py"], user="me")
        (worker,) = made.components
        if one.malleable:
            assert (made.kind, made.runner) == (JobKind.MALLEABLE, RunnerName.WORKERS)
            assert (worker.minimum, worker.maximum) == (2, one.application.maximum)
            assert worker.sizes == ("power-of-two" if one.application.name == "FT" else "any")
        else:
            assert (made.kind, made.runner, worker.minimum, worker.maximum) == (JobKind.RIGID, RunnerName.RANKS, 2, 2)

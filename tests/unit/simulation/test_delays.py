# SPDX-License-Identifier: Apache-2.0
"""The delays of a live system in the simulator on counts, worked out by hand."""

from __future__ import annotations

import pytest

from koala_adapter.scheduler.parameters import Approach
from koala_adapter.simulation.applications import Application, Interpolated, JobResult, SimulatedJob
from koala_adapter.simulation.multicluster import Settings, simulate
from koala_adapter.simulation.platform import ClusterModel, Failures, Platform

PLATFORM = Platform(name="one", clusters=(ClusterModel(name="c", nodes=4),))


def job(number: int, at: float, size: int, seconds: float, *, least: int | None = None) -> SimulatedJob:
    """Return a job whose execution time does not depend on its size; malleable when it may have ``least``."""
    curve = Interpolated(((1, seconds), (4, seconds)))
    application = Application(name="flat", speed_up=curve, minimum=least or size, maximum=size)
    malleable = least is not None
    return SimulatedJob(number=number, submitted_at=at, application=application, initial=size, malleable=malleable)


def results(jobs: list[SimulatedJob], **delays: float) -> dict[int, JobResult]:
    """Return what becomes of jobs under PWA with FPSMA."""
    settings = Settings(approach=Approach.PWA, malleability="fpsma", **delays)  # type: ignore[arg-type]
    return {one.job.number: one for one in simulate(PLATFORM, jobs, settings).jobs}


def test_a_job_holds_its_processors_longer_than_it_computes() -> None:
    """Held after 3 s; then 2 s until it computes, 100 s of work, and 1 s until its end is known."""
    found = results([job(0, 0.0, 2, 100.0)], placeholder_delay=3.0, start_delay=2.0, end_delay=1.0)[0]
    assert (found.started_at, found.ended_at) == (3.0, 106.0)


def test_processors_of_an_ended_job_come_free_later() -> None:
    """The next job is placed 5 s after the end, and neither before nor on processors that are not idle yet."""
    found = results([job(0, 0.0, 4, 100.0), job(1, 10.0, 3, 50.0)], release_delay=5.0)
    assert found[0].ended_at == 100.0
    assert (found[1].started_at, found[1].ended_at) == (105.0, 155.0)


def test_processors_that_are_given_up_come_free_later() -> None:
    """Shrunk at 10 s for a job that waits, which starts at 15 s; nobody is asked again meanwhile."""
    found = results([job(0, 0.0, 4, 100.0, least=1), job(1, 10.0, 2, 50.0)], release_delay=5.0)
    assert found[1].started_at == 15.0
    assert found[0].shrunk == 1
    assert found[0].average_processors < 4.0


def test_without_delays_nothing_is_late() -> None:
    """The job that waits starts at the instant at which the other shrinks."""
    found = results([job(0, 0.0, 4, 100.0, least=1), job(1, 10.0, 2, 50.0)])
    assert found[1].started_at == 10.0


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("processors_per_node", [1, 2])
def test_a_node_fails_whose_processors_are_not_known_to_be_idle(seed: int, processors_per_node: int) -> None:
    """What is left of a job that was ended with its node cannot be ended again; all jobs end, in what there is."""
    nodes = 4 // processors_per_node
    cluster = ClusterModel(name="c", nodes=nodes, processors_per_node=processors_per_node)
    failing = Failures(mean_time_between=300.0 * nodes, mean_repair=20.0)
    workload = [job(number, 10.0 * number, 1 + number % 4, 60.0) for number in range(40)]
    outcome = simulate(
        Platform(name="one", clusters=(cluster,), failures=failing),
        workload,
        Settings(approach=Approach.PWA, malleability="fpsma", release_delay=5.0, seed=seed),
    )
    assert len(outcome.jobs) == 40
    assert sum(one.restarts for one in outcome.jobs) > 0
    assert all(0 <= managed + local <= 4 for _, managed, local in outcome.used)

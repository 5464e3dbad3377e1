# SPDX-License-Identifier: Apache-2.0
"""The simulated world behind the real scheduler: batch systems in strict order, one service, failures, determinism."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from koala_adapter.model import ClusterName, Component, EndReason, Job, JobId, JobKind
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from koala_adapter.simulation.placeholders import (
    BatchSystem,
    Delays,
    QueuedJob,
    Rigid,
    SimulatedService,
    local_job,
    run_to_end,
)
from koala_adapter.simulation.world import Engine
from koala_experiments import placement, vjm

if TYPE_CHECKING:
    from koala_adapter.report.page import Result
    from koala_experiments.framework import Experiment

A, B = ClusterName("a"), ClusterName("b")


def occupying(user: str, processors: int, system: BatchSystem, seconds: float, log: list[str]) -> QueuedJob:
    """Return a job that notes in the log when it starts and why it ends."""
    job = local_job(user, processors, seconds, system)
    start = job.on_start

    def started(one: QueuedJob) -> None:
        log.append(f"{user} starts at {system.engine.now:.0f}")
        start(one)

    job.on_start = started
    job.on_end = lambda _, reason: log.append(f"{user} {reason.value} at {system.engine.now:.0f}")
    return job


def test_nothing_passes_the_head_of_the_queue() -> None:
    """Of 4 processors, 2 stay idle while a job of 3 waits, although a job of 1 behind it would fit."""
    engine, log = Engine(), list[str]()
    system = BatchSystem(engine, A, 4)
    for user, processors in (("first", 2), ("large", 3), ("small", 1)):
        system.submit(occupying(user, processors, system, 10.0, log))
    engine.run(until=5.0)
    assert (log, system.idle) == (["first starts at 0"], 2)
    engine.run()
    assert log[1:4] == ["first exited at 10", "large starts at 10", "small starts at 10"]


def test_users_with_priority_go_first() -> None:
    """Among those who wait, the favoured user's job starts first; nobody is stopped for it."""
    engine, log = Engine(), list[str]()
    system = BatchSystem(engine, A, 2, priorities={"boss": 1})
    for user in ("one", "two", "boss"):
        system.submit(occupying(user, 2, system, 10.0, log))
    engine.run()
    assert [line for line in log if "starts" in line] == ["boss starts at 0", "one starts at 10", "two starts at 20"]


def test_walltime_ends_a_job_and_a_failed_node_takes_it() -> None:
    """A job is ended at its walltime; a processor that fails takes its job along and comes back empty."""
    engine, ends = Engine(), list[EndReason]()
    system = BatchSystem(engine, A, 2)
    for walltime in (50.0, 500.0):
        system.submit(QueuedJob("u", 1, walltime, lambda _: None, lambda _, reason: ends.append(reason)))
    engine.run(until=60.0)
    assert ends == [EndReason.WALLTIME]
    system.node_fails(1)
    engine.after(100.0, lambda: system.node_returns(1))
    assert (ends[1:], system.idle) == ([EndReason.NODE_LOST], 1)
    engine.run(until=200.0)
    assert system.idle == 2


def test_cancelled_job_leaves_the_queue() -> None:
    """A job that is cancelled while it waits holds up nobody."""
    engine, log = Engine(), list[str]()
    system = BatchSystem(engine, A, 2)
    jobs = [occupying(user, 2, system, 10.0, log) for user in ("one", "two", "three")]
    for job in jobs:
        system.submit(job)
    engine.run(until=1.0)
    system.cancel(jobs[1])
    engine.run()
    assert "three starts at 10" in log


def job(name: str, *sizes: int, clusters: tuple[str, ...] = (), at: float = 0.0) -> Job:
    """Return a job of rigid components, bound to clusters when these are given."""
    return Job(
        id=JobId(name),
        name=name,
        kind=JobKind.RIGID,
        components=tuple(
            Component(
                name=f"c{number}",
                command=("program",),
                minimum=size,
                maximum=size,
                cluster=ClusterName(clusters[number]) if clusters else None,
            )
            for number, size in enumerate(sizes)
        ),
        walltime=600,
        user="user",
        submitted_at=at,
    )


def world(seed: int = 0, *, delays: Delays | None = None, run: float = 100.0) -> tuple[Engine, SimulatedService]:
    """Return two clusters of 4 processors and a service that has seen them."""
    engine = Engine()
    systems = [BatchSystem(engine, A, 4), BatchSystem(engine, B, 4)]
    service = SimulatedService(
        engine,
        systems,
        Parameters(placeholder_life=300.0),
        [ClusterParameters(name=A), ClusterParameters(name=B)],
        program_of=lambda _: Rigid(run),
        seed=seed,
        delays=delays,
    )
    engine.run(until=1.0)
    return engine, service


def test_job_runs_as_live() -> None:
    """Submitted, held after the agents' delays, launched, ended; nothing is left in the batch systems."""
    engine, service = world(delays=Delays(submit=1.0, agent=(2.0, 2.0), message=0.5))
    service.submit(job("1", 3, 3, at=1.0))
    assert run_to_end(engine, [service], until=1000.0)
    found = service.jobs[JobId("1")]
    assert (found.co_allocation, found.holding, found.clusters) == (3.0, 0.0, {A: 3, B: 3})
    assert found.outcome is not None
    assert found.outcome.state is JobState.COMPLETED
    assert found.ended_at == pytest.approx(1.0 + 3.0 + 0.5 + 100.0 + 0.5)
    assert all(system.idle == 4 for system in service.systems.values())
    assert service.held_seconds == pytest.approx(6 * (2.0 + 0.5 + 100.0 + 0.5 + 0.5), abs=6 * 0.6)


def test_local_users_make_placeholders_wait() -> None:
    """What is held on one cluster is idle until the other delivers."""
    engine, service = world()
    system = service.systems[B]
    system.submit(local_job("local", 4, 50.0, system))
    service.submit(job("1", 2, 2, clusters=("a", "b"), at=1.0))
    assert run_to_end(engine, [service], until=2000.0)
    holding = service.jobs[JobId("1")].holding
    assert holding is not None
    assert 45.0 <= holding <= 55.0


def test_journal_replays_to_the_same_state() -> None:
    """The events that the world made are all that the scheduler knows of it."""
    engine, service = world(seed=3)
    for number in range(6):
        service.submit(job(str(number), 3, 2, at=engine.now))
        engine.run(until=engine.now + 40.0)
    run_to_end(engine, [service], until=10_000.0)
    again = Scheduler()
    for event in service.journal:
        again.handle(event)
    assert again.state == service.state


def test_same_seed_same_journal() -> None:
    """The same seed gives the same events at the same times, another one others."""

    def events(seed: int) -> list[str]:
        engine, service = world(seed)
        for number in range(4):
            service.submit(job(str(number), 3, 2, at=engine.now))
        run_to_end(engine, [service], until=10_000.0)
        return [str(event) for event in service.journal]

    assert events(1) == events(1)
    assert events(1) != events(2)


@pytest.mark.parametrize("seed", range(10))
def test_jobs_survive_failing_nodes_and_silent_agents(seed: int) -> None:
    """With processors that fail and agents that are never heard of, every job ends and nothing is left behind."""
    engine, service = world(seed, delays=Delays(silent_share=0.1))
    for number in range(8):
        service.submit(job(str(number), 2, 1, at=engine.now))
        for system in service.systems.values():
            engine.after(30.0 * number, partial(system.node_fails, number % 4))
            engine.after(30.0 * number + 200.0, partial(system.node_returns, number % 4))
    assert run_to_end(engine, [service], until=200_000.0)
    states = {one.outcome.state for one in service.jobs.values() if one.outcome is not None}
    assert states <= {JobState.COMPLETED, JobState.LOST}
    assert all(system.idle == 4 for system in service.systems.values())


def quick(experiment: Experiment, seeds: int, **settings: str) -> Result:
    """Run an experiment small."""
    return experiment.run(experiment.options(seeds=seeds, settings=settings))


def test_deadlock_experiment_finds_what_the_paper_says() -> None:
    """All three claims hold: a deadlock without virtual jobs, none with them, and that by their bounded life."""
    result = quick(vjm.DEADLOCK_EXPERIMENT, 3)
    assert [finding.holds for finding in result.findings] == [True, True, True]
    timeline = next(figure for figure in result.figures if figure.name == "timeline-virtual")
    for series in timeline.series:
        assert all(begin < end for begin, end in zip(series.x, series.high, strict=True))
    waits, runs = ([one for one in timeline.series if word in one.label] for word in ("waits", "runs"))
    assert len(waits) == len(runs) == 2
    assert all(len(series.x) == 6 for series in runs)
    bars = sorted(
        (node, begin, end) for one in timeline.series for node, begin, end in zip(one.y, one.x, one.high, strict=True)
    )
    for (node, _, end), (following, begin, _) in pairwise(bars):
        assert node != following or begin >= end - 1e-9, "two on one node"


def test_other_experiments_run_small() -> None:
    """Each compares all its variants on the same jobs, and gives every claim a verdict or says that it cannot."""
    selection = quick(vjm.SELECTION_EXPERIMENT, 2, jobs="8")
    assert len(selection.tables[0].rows) == 6
    policies = quick(placement.EXPERIMENT, 2, jobs="10")
    assert [row[0] for row in policies.tables[0].rows] == list(placement.POLICIES)
    for finding in (*selection.findings, *policies.findings):
        assert finding.holds is not None or "cannot tell" in finding.outcome

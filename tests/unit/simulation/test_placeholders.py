# SPDX-License-Identifier: Apache-2.0
"""The scheduler itself on simulated batch systems, and the simulator that counts beside it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf

import pytest

from koala_adapter.model import ClusterName, Component, EndReason, InputFile, Job, JobId, JobKind
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler.claiming import plannedstart
from koala_adapter.scheduler.parameters import Approach, ClusterParameters, Parameters
from koala_adapter.simulation.applications import Application, Interpolated, SimulatedJob
from koala_adapter.simulation.multicluster import Multicluster, Settings
from koala_adapter.simulation.placeholders import (
    BatchSystem,
    Delays,
    QueuedJob,
    Rigid,
    SimulatedService,
    local_job,
    run_to_end,
)
from koala_adapter.simulation.platform import DAS3, ClusterModel, Platform
from koala_adapter.simulation.world import Engine
from koala_adapter.sizes import AnySize
from koala_experiments import vjm
from koala_experiments.malleable import INITIAL, WM, WM_HIGH, WMR_HIGH, KoalaWorkload, koala_workload
from tests.unit.scheduler.scheduler_site import recount

# -- The simulated world behind the real scheduler: batch systems in strict order, one service, failures, determinism.


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
    engine, log = Engine(), list[str]()
    system = BatchSystem(engine, A, 2, priorities={"boss": 1})
    for user in ("one", "two", "boss"):
        system.submit(occupying(user, 2, system, 10.0, log))
    engine.run()
    assert [line for line in log if "starts" in line] == ["boss starts at 0", "one starts at 10", "two starts at 20"]


def test_walltime_ends_a_job_and_a_failed_node_takes_it() -> None:
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
    assert (found.co_allocation, found.clusters) == (3.0, {A: 3, B: 3})
    assert service.state.jobs[JobId("1")].held_before_launch == 0.0
    assert found.outcome is not None
    assert found.outcome.state is JobState.COMPLETED
    assert found.ended_at == pytest.approx(1.0 + 3.0 + 0.5 + 100.0 + 0.5)
    assert all(system.idle == 4 for system in service.systems.values())
    assert service.held_seconds == pytest.approx(6 * (2.0 + 0.5 + 100.0 + 0.5 + 0.5), abs=6 * 0.6)


@pytest.mark.parametrize("late", [1.0, 1.5])
def test_processors_do_not_idle_while_files_travel(late: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 MiB at 1 MiB/s to one of two clusters: held idle for seconds, where it was for minutes without the claimer.

    ``late``: how much longer than foreseen they travel.
    """
    launched: list[float] = []

    def held_idle() -> float:
        engine = Engine()
        service = SimulatedService(
            engine,
            [BatchSystem(engine, A, 4), BatchSystem(engine, B, 4)],
            Parameters(placeholder_life=3000.0),
            [ClusterParameters(name=A, stages=True, bandwidth=1.0), ClusterParameters(name=B)],
            program_of=lambda _: Rigid(100.0),
            delays=Delays(transfer=late),
        )
        engine.run(until=1.0)
        one = job("1", 3, 3, at=1.0)
        genome = InputFile(source="/data/genome", target="genome", size=300 * 1024 * 1024)
        far, near = one.components
        service.submit(replace(one, components=(replace(far, input_files=(genome,)), near)))
        assert run_to_end(engine, [service], until=5000.0)
        found = service.jobs[JobId("1")]
        assert found.outcome is not None
        assert found.outcome.state is JobState.COMPLETED
        assert found.launched_at is not None
        launched.append(found.launched_at - 1.0)
        return service.state.jobs[JobId("1")].held_before_launch

    with_claimer = held_idle()
    monkeypatch.setattr(plannedstart, "MARGIN", inf)  # everything is submitted at once
    at_once = held_idle()
    assert launched[0] == pytest.approx(300.0 * late, abs=1.0)
    assert with_claimer < 6 * (15.0 + 300.0 * (late - 1.0)) + 1.0
    assert at_once > with_claimer + 6 * 200.0


def test_local_users_make_placeholders_wait() -> None:
    engine, service = world()
    system = service.systems[B]
    system.submit(local_job("local", 4, 50.0, system))
    service.submit(job("1", 2, 2, clusters=("a", "b"), at=1.0))
    assert run_to_end(engine, [service], until=2000.0)
    assert 2 * 45.0 <= service.state.jobs[JobId("1")].held_before_launch <= 2 * 55.0, "two on the other cluster"


def test_journal_replays_to_the_same_state() -> None:
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


def test_deadlock_experiment_finds_what_the_paper_says() -> None:
    """All three claims hold: a deadlock without virtual jobs, none with them, and that by their bounded life."""
    result = vjm.DEADLOCK_EXPERIMENT.run(vjm.DEADLOCK_EXPERIMENT.options(seeds=3))
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


# -- The real scheduler and the count-level simulator on the same malleable workload: the same starts, sizes and ends.
# The real :class:`Scheduler` is driven here on simulated batch systems that answer at once, placeholder by placeholder;
# the simulator knows only counts. Each works out the execution of applications by itself.


LONG = 10_000_000
"""Seconds of walltime: never reached."""
History = dict[str, list[tuple[float, str, int]]]
"""Of each job: when it had how many processors where; 0 at its end. Only what lasts beyond the instant."""


AT_ONCE = Delays(submit=0.0, agent=(0.0, 0.0), message=0.0, release=0.0, poll=1e9)
"""Clusters, agents and applications answer at once, and clusters are looked at in the beginning alone."""


class LiveWorld:
    """The real scheduler on simulated batch systems, with the sizes of the jobs noted after every instant."""

    def __init__(self, platform: Platform, workload: list[SimulatedJob], approach: Approach, policy: str) -> None:
        """Nothing has been submitted yet."""
        self.jobs = {JobId(str(one.number)): one for one in workload}
        self.engine = Engine()
        self.history: History = {}
        self.service = SimulatedService(
            self.engine,
            [BatchSystem(self.engine, one.cluster, one.processors) for one in platform.clusters],
            Parameters(approach=approach, malleability_policy=policy, maximum_tries=10**9, reuse=False),
            [ClusterParameters(name=one.cluster, threshold=one.threshold) for one in platform.clusters],
            program_of=lambda record: self.jobs[record.job.id].application,
            delays=AT_ONCE,
        )
        for one in workload:
            self.engine.at(one.submitted_at, partial(self.service.submit, live_job(one)))

    def run(self) -> History:
        """Let everything happen; return what became of the jobs."""
        steps = 0
        while len(self.service.jobs) < len(self.jobs) or self.service.unfinished:
            self.engine.step()
            steps += 1
            assert steps < 20_000, f"no end of what happens at {self.engine.now}"
            if self.engine.next_time != self.engine.now:
                steps = 0
                recount(self.service.state)
                self._note()
        self._note()
        return self.history

    def _note(self) -> None:
        for id_ in self.service.jobs:
            record = self.service.state.jobs[id_]
            size = record.claims[0].processors if record.state in {JobState.LAUNCHING, JobState.RUNNING} else 0
            note(self.history, id_, self.engine.now, str(record.claims[0].cluster), size)


def note(history: History, id_: str, now: float, cluster: str, size: int) -> None:
    """Enter the size of a job if it has changed; nothing before its start."""
    steps = history.get(id_)
    if steps is None:
        if size:
            history[id_] = [(now, cluster, size)]
    elif steps[-1][2] != size:
        steps.append((now, cluster, size))


def live_job(one: SimulatedJob) -> Job:
    """Return a job of a workload as a user would have submitted it."""
    low, high = (one.application.minimum, one.application.maximum) if one.malleable else (one.initial, one.initial)
    component = Component(name="job", command=("program",), minimum=low, maximum=high, initial=one.initial)
    return Job(
        id=JobId(str(one.number)),
        name="job",
        kind=JobKind.MALLEABLE if one.malleable else JobKind.RIGID,
        components=(component,),
        walltime=LONG,
        user="alice",
        submitted_at=one.submitted_at,
    )


class Counted(Multicluster):
    """The simulator, with the sizes of the jobs noted after every instant."""

    history: History

    def instant(self, now: float) -> None:
        """Let an instant happen, then look at the world."""
        super().instant(now)
        for run in list(self.runs.values()):
            ((cluster, size),) = run.held.items()
            note(self.history, str(run.job.number), now, str(cluster.name), size)


def counted(platform: Platform, workload: list[SimulatedJob], approach: Approach, policy: str) -> History:
    """Return what becomes of the jobs in the simulator."""
    world = Counted(platform, workload, Settings(approach=approach, malleability=policy))
    world.history = {}
    for one in world.run().jobs:
        world.history[str(one.job.number)].append((one.ended_at, one.clusters[0], 0))
    return world.history


def rounded(history: History) -> History:
    """Return a history with times to the microsecond."""
    return {id_: [(round(at, 6), cluster, size) for at, cluster, size in steps] for id_, steps in history.items()}


def both(
    workload: KoalaWorkload, approach: str, policy: str, *, platform: Platform = DAS3, seed: int = 0
) -> tuple[History, History]:
    """Return the histories of the real scheduler and of the simulator.

    Submissions are a Poisson process, so that no end coincides with a submission but for the digits of its time.
    """
    jobs = koala_workload(workload, seed, jobs=50, poisson=True)
    live = LiveWorld(platform, jobs, Approach(approach), policy).run()
    return rounded(live), rounded(counted(platform, jobs, Approach(approach), policy))


EXACT = [
    *[(workload, policy) for workload in (WM, WM_HIGH, WMR_HIGH) for policy in ("fpsma", "folding")],
    *[(workload, policy) for workload in (WM, WMR_HIGH) for policy in ("egs", "egs-repeated")],
]


@pytest.mark.parametrize(
    ("workload", "policy", "approach"),
    [
        # By day each policy under both approaches, each approach on half of the workloads.
        pytest.param(
            *one,
            approach,
            id=f"{one[0].name}-{one[1]}-{approach}",
            marks=[pytest.mark.nightly] * ((pair // 2 + turn) % 2),
        )
        for pair, one in enumerate(EXACT)
        for turn, approach in enumerate(("pra", "pwa"))
    ],
)
def test_the_same_starts_sizes_and_ends(workload: KoalaWorkload, policy: str, approach: str) -> None:
    """FT and GADGET-2 on DAS-3: every job starts on the same cluster, changes and ends at the same microsecond."""
    live, simulated = both(workload, approach, policy)
    assert len(live) == 50
    assert sum(max(size for _, _, size in steps) > INITIAL for steps in live.values()) >= 20, "jobs grow"
    assert simulated == live


@pytest.mark.parametrize("approach", ["none", "pra", "pwa"])
def test_the_same_where_little_is_left_by_thresholds(approach: str) -> None:
    """With thresholds that leave 12 processors, jobs queue, are shrunk for, and wait for each other, all alike."""
    clusters = tuple(one.model_copy(update={"threshold": one.nodes - 6}) for one in DAS3.clusters[:2])
    platform = DAS3.model_copy(update={"clusters": clusters})
    live, simulated = both(WM_HIGH, approach, "fpsma", platform=platform, seed=1)
    assert simulated == live
    jobs = koala_workload(WM_HIGH, 1, jobs=50, poisson=True)
    waits = [live[str(one.number)][0][0] - one.submitted_at for one in jobs]
    assert sum(wait > 1.0 for wait in waits) > 10, "jobs wait"


@pytest.mark.parametrize("approach", ["pra", "pwa"])
@pytest.mark.parametrize("processors", [14, 21, 24])
def test_equipartition_comes_to_rest(processors: int, approach: str) -> None:
    clusters = (DAS3.clusters[0].model_copy(update={"nodes": processors}),)
    platform = DAS3.model_copy(update={"clusters": clusters})
    jobs = koala_workload(WM_HIGH, 0, jobs=12, poisson=True)
    live = LiveWorld(platform, jobs, Approach(approach), "equipartition").run()
    assert all(steps[-1][2] == 0 for steps in live.values()), "all jobs end"
    assert max(size for steps in live.values() for _, _, size in steps) > INITIAL, "jobs grow"


@pytest.mark.parametrize("approach", ["pra", "pwa"])
def test_what_an_egs_round_leaves_over_goes_another_way(approach: str) -> None:
    """EGS under high load: alike until an instant at which several jobs of a cluster change, and alike on the whole.

    The real scheduler leaves an application alone that is taking processors in. So what a round of EGS leaves over
    (declined by FT, or beyond a maximum) goes to whoever is through first, and of several jobs that start at one
    instant the first to run is offered all. On counts, where all is done at once, it is shared equally.
    """
    live, simulated = both(WM_HIGH, approach, "egs-repeated")
    differing = {step for id_ in live for step in set(live[id_]) ^ set(simulated[id_])}
    first = min(at for at, _, _ in differing)
    clusters = {cluster for at, cluster, _ in differing if at == first}
    for history in (live, simulated):
        changing = [id_ for id_, steps in history.items() if any(s[0] == first and s[1] in clusters for s in steps)]
        assert len(changing) > 1
    spent = [sum(steps[-1][0] - steps[0][0] for steps in history.values()) for history in (live, simulated)]
    assert spent[1] == pytest.approx(spent[0], rel=0.05)


CURVE = Interpolated(((1, 110.0), (16, 50.0)))
"""Seconds of execution by number of processors."""


class Reluctant(AnySize):
    """Gives processors up, but never so many that fewer than a number are left, whatever its minimum is."""

    def __init__(self, least: int) -> None:
        """Keep ``least``."""
        self._least = least

    def release(self, size: int, requested: int, minimum: int) -> int:
        """See :meth:`AcceptanceRule.release`."""
        return max(0, min(super().release(size, requested, minimum), size - self._least))


def reluctant(number: int, least: int, *, size: int) -> SimulatedJob:
    """Return a malleable job that starts with ``size`` processors and keeps at least some of them."""
    application = Application(
        name=f"keeps {least}", speed_up=CURVE, minimum=2, maximum=size, acceptance=Reluctant(least)
    )
    return SimulatedJob(number=number, submitted_at=0.0, application=application, initial=size, malleable=True)


def late(number: int, processors: int) -> SimulatedJob:
    """Return a rigid job that is submitted when the others run."""
    application = Application(name="rigid", speed_up=CURVE, minimum=processors, maximum=processors)
    return SimulatedJob(number=number, submitted_at=10.0, application=application, initial=processors)


def both_of(jobs: list[SimulatedJob], policy: str, *processors: int) -> History:
    """Return what becomes of jobs under PWA in both, which is the same, on clusters of these sizes."""
    models = tuple(ClusterModel(name=f"c{number}", nodes=nodes) for number, nodes in enumerate(processors))
    platform = Platform(name="small", clusters=models)
    live = rounded(LiveWorld(platform, jobs, Approach.PWA, policy).run())
    assert rounded(counted(platform, jobs, Approach.PWA, policy)) == live
    return live


@pytest.mark.parametrize("policy", ["fpsma", "egs", "egs-repeated"])
def test_what_was_given_for_the_head_in_vain_is_not_given_back(policy: str) -> None:
    """Of 10 processors 4 are given up where 8 are needed: they stay free for the head, and nobody grows and shrinks."""
    steps = both_of([reluctant(0, 6, size=10), late(1, 8)], policy, 10)
    assert [size for _, _, size in steps["0"]] == [10, 6, 0]
    assert steps["1"][0][0] == steps["0"][-1][0], "the late one starts when the other ends"


def test_room_is_made_where_a_second_cluster_gives_it() -> None:
    steps = both_of([reluctant(0, 10, size=10), reluctant(1, 2, size=8), late(2, 4)], "fpsma", 10, 8)
    assert [size for _, _, size in steps["0"]] == [10, 0]
    assert steps["2"][0] == (10.0, "c1", 4)


def test_shrinking_goes_on_as_long_as_it_helps() -> None:
    """A round of EGS asks all for equal shares; what those at their minimum do not give is asked in another step."""
    jobs = [reluctant(0, 2, size=2), reluctant(1, 2, size=8), late(2, 4)]
    steps = both_of(jobs, "egs", 10)
    assert steps["2"][0] == (10.0, "c0", 4)

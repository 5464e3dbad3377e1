# SPDX-License-Identifier: Apache-2.0
"""The real scheduler and the count-level simulator on the same malleable workload: the same starts, sizes and ends.

The real :class:`Scheduler` is driven here on simulated batch systems that answer at once, placeholder by placeholder;
the simulator knows only counts. Each works out the execution of applications by itself.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from koala_adapter.model import Component, Job, JobId, JobKind
from koala_adapter.outcome import JobState
from koala_adapter.scheduler.parameters import Approach, ClusterParameters, Parameters
from koala_adapter.simulation.applications import Application, Interpolated, SimulatedJob
from koala_adapter.simulation.multicluster import Multicluster, Settings
from koala_adapter.simulation.placeholders import BatchSystem, Delays, SimulatedService
from koala_adapter.simulation.platform import DAS3, ClusterModel, Platform
from koala_adapter.simulation.world import Engine
from koala_adapter.sizes import AnySize
from koala_experiments.malleable import INITIAL, WM, WM_HIGH, WMR_HIGH, koala_workload
from tests.unit.scheduler.scheduler_site import recount

if TYPE_CHECKING:
    from koala_experiments.malleable import KoalaWorkload

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


@pytest.mark.parametrize("approach", ["pra", "pwa"])
@pytest.mark.parametrize(("workload", "policy"), EXACT, ids=[f"{one.name}-{policy}" for one, policy in EXACT])
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
    """Where an application declines its equal part, the others are not asked again and again at the same instant."""
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
    """The job with most to give gives nothing; the one on the other cluster makes room at the same instant."""
    steps = both_of([reluctant(0, 10, size=10), reluctant(1, 2, size=8), late(2, 4)], "fpsma", 10, 8)
    assert [size for _, _, size in steps["0"]] == [10, 0]
    assert steps["2"][0] == (10.0, "c1", 4)


def test_shrinking_goes_on_as_long_as_it_helps() -> None:
    """A round of EGS asks all for equal shares; what those at their minimum do not give is asked in another step."""
    jobs = [reluctant(0, 2, size=2), reluctant(1, 2, size=8), late(2, 4)]
    steps = both_of(jobs, "egs", 10)
    assert steps["2"][0] == (10.0, "c0", 4)

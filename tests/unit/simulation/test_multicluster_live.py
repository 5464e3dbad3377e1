# SPDX-License-Identifier: Apache-2.0
"""The real scheduler and the count-level simulator on the same malleable workload: the same starts, sizes and ends.

The real :class:`Scheduler` is driven here in virtual time with a world that answers at once, placeholder by
placeholder; the simulator knows only counts. Execution is worked out on this side by
:class:`ApplicationRun`, on the other by the simulator's own accounts.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING

import pytest

from koala_adapter.model import (
    Component,
    EndReason,
    Job,
    JobId,
    JobKind,
    LrmJobId,
    PlaceholderId,
    TaskEnd,
)
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.parameters import Approach, ClusterParameters, Parameters
from koala_adapter.simulation.applications import Application, Interpolated, SimulatedJob
from koala_adapter.simulation.multicluster import Multicluster, Settings
from koala_adapter.simulation.platform import DAS3, ClusterModel, Platform
from koala_adapter.sizes import AnySize
from koala_experiments.malleable import INITIAL, WM, WM_HIGH, WMR_HIGH, koala_workload
from tests.unit.scheduler.scheduler_site import recount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.scheduler.actions import Action
    from koala_experiments.malleable import KoalaWorkload

WELL = TaskEnd(reason=EndReason.EXITED, exit_code=0)
LONG = 10_000_000
"""Seconds of walltime: never reached."""
ORDER: dict[type[ev.Event], int] = {ev.RankEnded: 0, ev.PlaceholderEnded: 0, ev.RankStarted: 2}
"""Which events of an instant go first: what frees processors; and last: what lets a job or a change be through.

In the simulator an instant has no inside. Real events come one by one, in an order of which the scheduler cannot know
how long it will go on; this is the order that comes nearest.
"""
History = dict[str, list[tuple[float, str, int]]]
"""Of each job: when it had how many processors where; 0 at its end. Only what lasts beyond the instant."""


class ApplicationRun:
    """One run of an application: the share of its work that is done is the integral of 1 / execution time."""

    def __init__(self, times: Sequence[float], size: int, now: float) -> None:
        """Start on ``size`` processors; ``times`` is what :meth:`Application.times` returns."""
        self._times = times
        self.size = size
        self._done = 0.0
        self._since = now

    def resize(self, size: int, now: float) -> None:
        """Go on with another number of processors."""
        self._done += (now - self._since) / self._times[self.size]
        self._since, self.size = now, size

    @property
    def ends_at(self) -> float:
        """When the work will be done, if the size stays as it is."""
        return self._since + (1.0 - self._done) * self._times[self.size]


class LiveWorld:
    """The real scheduler with clusters, agents and applications that answer at once."""

    def __init__(self, platform: Platform, workload: list[SimulatedJob], approach: Approach, policy: str) -> None:
        """Nothing has been submitted yet."""
        self.now = 0.0
        self.jobs = {str(one.number): one for one in workload}
        self.progress: dict[str, ApplicationRun] = {}
        self.history: History = {}
        self.ahead = deque(workload)
        self.scheduler = Scheduler()
        self.coming: list[tuple[int, int, ev.Event]] = []
        self.posted = 0
        parameters = Parameters(approach=approach, malleability_policy=policy, maximum_tries=10**9, reuse=False)
        clusters = tuple(ClusterParameters(name=one.cluster, threshold=one.threshold) for one in platform.clusters)
        self.post(ev.Configured(time=0.0, parameters=parameters, clusters=clusters))
        for one in platform.clusters:
            size = one.processors
            self.post(ev.ClusterPolled(time=0.0, cluster=one.cluster, processors=size, idle=size, ours=0))

    def run(self) -> History:
        """Let everything happen; return what became of the jobs."""
        while self.ahead or self.progress:
            ends = {id_: one.ends_at for id_, one in self.progress.items()}
            wakeup = self.scheduler.next_wakeup
            times = [*ends.values(), *([self.ahead[0].submitted_at] if self.ahead else [])]
            self.now = min([*times, *([wakeup] if wakeup is not None else [])])
            for id_ in [id_ for id_, at in ends.items() if at <= self.now]:
                del self.progress[id_]
                for rank in self.scheduler.job(id_).ranks:
                    self.enter(ev.RankEnded(time=self.now, job_id=JobId(id_), rank=rank.rank, end=WELL))
            while self.ahead and self.ahead[0].submitted_at <= self.now:
                self.enter(ev.JobSubmitted(time=self.now, job=live_job(self.ahead.popleft())))
            if wakeup is not None and wakeup <= self.now:
                self.enter(ev.TimeReached(time=self.now))
            self.settle()
            self._note()
        return self.history

    def post(self, event: ev.Event) -> None:
        """Give the scheduler an event, and all that follows from it at this instant."""
        self.enter(event)
        self.settle()

    def enter(self, event: ev.Event) -> None:
        """Have an event happen at this instant: after those that go before it, and those of its kind that are there."""
        self.posted += 1
        heapq.heappush(self.coming, (ORDER.get(type(event), 1), self.posted, event))

    def settle(self) -> None:
        """Let all events of this instant happen, with all that follows from them."""
        before = self.posted
        while self.coming:
            assert self.posted - before < 20_000, f"no end of what happens at {self.now}"
            for action in self.scheduler.handle(heapq.heappop(self.coming)[2]):
                for event in self._done(action):
                    self.enter(event)
        recount(self.scheduler.state)

    def _done(self, action: Action) -> list[ev.Event]:
        """Return what comes of an action at once."""
        now = self.now
        match action:
            case act.SubmitPlaceholders():
                return self._submitted(action)
            case act.EndPlaceholders():
                ended = action.placeholders
                return [ev.PlaceholderEnded(time=now, placeholder=one, reason=EndReason.EXITED) for one in ended]
            case act.LaunchJob() | act.TakeProcessors():
                return self._taken(action)
            case act.OfferProcessors():
                accepted = self.jobs[action.job_id].application.answer(self.size(action.job_id), action.processors)
                return [ev.OfferAnswered(time=now, job_id=action.job_id, number=action.number, accepted=accepted)]
            case act.RequestProcessors():
                return self._released(action)
        return []

    def _submitted(self, action: act.SubmitPlaceholders) -> list[ev.Event]:
        ids = [PlaceholderId(batch=action.batch, index=number) for number in range(1, action.count + 1)]
        known = ev.BatchSubmitted(time=self.now, batch=action.batch, lrm_ids=tuple(LrmJobId(str(id_)) for id_ in ids))
        held = [
            ev.PlaceholderHeld(time=self.now, placeholder=id_, host=str(id_), address="", ends_at=None) for id_ in ids
        ]
        return [known, *held]

    def _taken(self, action: act.LaunchJob | act.TakeProcessors) -> list[ev.Event]:
        id_, count = action.job_id, len(action.ranks)
        if isinstance(action, act.LaunchJob):
            self.progress[id_] = ApplicationRun(self.jobs[id_].application.times(), count, self.now)
        else:
            self.progress[id_].resize(self.progress[id_].size + count, self.now)
        return [ev.RankStarted(time=self.now, job_id=id_, rank=rank.rank) for rank in action.ranks]

    def _released(self, action: act.RequestProcessors) -> list[ev.Event]:
        id_ = action.job_id
        accepted = -self.jobs[id_].application.answer(self.size(id_), -action.processors)
        given = tuple(self.scheduler.job(id_).claims[0].placeholders[-accepted:]) if accepted else ()
        self.progress[id_].resize(self.progress[id_].size - accepted, self.now)
        answered = ev.OfferAnswered(time=self.now, job_id=id_, number=action.number, accepted=accepted)
        return [answered, ev.ProcessorsReleased(time=self.now, job_id=id_, placeholders=given)]

    def size(self, id_: str) -> int:
        """Return the processors of a job's only component."""
        return self.scheduler.job(id_).claims[0].processors

    def _note(self) -> None:
        for id_ in self.jobs:
            if id_ in self.scheduler.state.jobs:
                claim = self.scheduler.job(id_).claims[0]
                note(self.history, id_, self.now, str(claim.cluster), self.size(id_) if id_ in self.progress else 0)


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

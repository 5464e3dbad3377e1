# SPDX-License-Identifier: Apache-2.0
"""Two malleable jobs and a rigid one, live and simulated: their sizes over time, to be compared.

Nothing of it goes by the clock: the next job is submitted when the earlier ones have reached their sizes, and a job has
work until it is told that there is no more. The simulator is led through the same steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial

from koala_adapter.report.values import JobReport
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.simulation.applications import Application, Interpolated, SimulatedJob
from koala_adapter.simulation.countedclusters import Run
from koala_adapter.simulation.multicluster import Multicluster, Settings
from koala_adapter.simulation.platform import ClusterModel, Platform
from koala_experiments.bags import Bag
from koala_experiments.framework import LiveOutcome, LiveRun
from koala_experiments.live import platform_of, with_delays
from koala_experiments.liveruns import RunningService, carried_out
from tests.local_koala import eventually

PROCESSORS = 8
MALLEABLE_FIRST, MALLEABLE_SECOND, RIGID = range(3)
UNIT = 0.25
"""Seconds that a worker takes for a unit of work."""
MOMENT = 0.01
LONG = 1e6
"""Seconds that a simulated job would take, were it not ended before."""


class Do(Enum):
    """What is done in a step."""

    SUBMIT = auto()
    END = auto()


@dataclass(frozen=True)
class Step:
    """Something is done with a job; then a job is waited for to have so many processors: 0, it has ended."""

    what: Do
    job: int
    awaited: int
    size: int | None
    """None: it waits; whoever may be asked for room was asked with its submission."""


STEPS = {
    Approach.PRA: (
        Step(Do.SUBMIT, MALLEABLE_FIRST, MALLEABLE_FIRST, 4),
        Step(Do.SUBMIT, MALLEABLE_SECOND, MALLEABLE_SECOND, 4),
        Step(Do.SUBMIT, RIGID, RIGID, None),
        Step(Do.END, MALLEABLE_FIRST, RIGID, 2),
        Step(Do.END, RIGID, RIGID, 0),
        Step(Do.END, MALLEABLE_SECOND, MALLEABLE_SECOND, 0),
    ),
    Approach.PWA: (
        Step(Do.SUBMIT, MALLEABLE_FIRST, MALLEABLE_FIRST, 4),
        Step(Do.SUBMIT, MALLEABLE_SECOND, MALLEABLE_SECOND, 4),
        Step(Do.SUBMIT, RIGID, RIGID, 2),
        Step(Do.END, RIGID, MALLEABLE_SECOND, 4),
        Step(Do.END, MALLEABLE_FIRST, MALLEABLE_FIRST, 0),
        Step(Do.END, MALLEABLE_SECOND, MALLEABLE_SECOND, 0),
    ),
}
ORDER = {
    Approach.PRA: [(0, 2), (0, 4), (1, 2), (1, 4), (0, 0), (2, 2), (2, 0), (1, 0)],
    Approach.PWA: [(0, 2), (0, 4), (1, 2), (1, 4), (1, 2), (2, 2), (2, 0), (1, 4), (0, 0), (1, 0)],
}
"""What FPSMA makes of them, job and size: under PRA the rigid job waits for the first to end; under PWA the second,
which started last, gives two processors up for it, and has them back when it has ended."""


def workload() -> list[SimulatedJob]:

    def job(number: int, *, malleable: bool) -> SimulatedJob:
        curve = Interpolated(((2, LONG), (4, LONG)))
        application = Application(name="steady", speed_up=curve, minimum=2, maximum=4)
        return SimulatedJob(number=number, submitted_at=0.0, application=application, initial=2, malleable=malleable)

    return [job(MALLEABLE_FIRST, malleable=True), job(MALLEABLE_SECOND, malleable=True), job(RIGID, malleable=False)]


class BagUntilTold(Bag):
    """There is work in it until it is told that there is none."""

    def __init__(self) -> None:
        """Begin with a unit."""
        super().__init__((UNIT, UNIT), UNIT, at=1)
        self.told = False

    @property
    def empty(self) -> bool:
        """See Bag."""
        return self.told and super().empty

    def take(self, worker: int) -> float | None:
        """See Bag."""
        self.left = 0.0 if self.told else 1.0
        return super().take(worker)


class LiveSteps:
    """Leads a live run through the steps."""

    def __init__(self, steps: Sequence[Step]) -> None:
        """Begin with nothing submitted."""
        self._steps = steps
        self._bags: dict[int, BagUntilTold] = {}
        self._ids: dict[int, str] = {}

    def __call__(self, running: RunningService) -> None:
        """Take the steps; return when all jobs have ended."""
        for step in self._steps:
            if step.what is Do.SUBMIT:
                bag = self._bags[step.job] = BagUntilTold()
                self._ids[step.job] = running.submit(running.run.jobs[step.job], bag)
            else:
                self._bags[step.job].told = True
            eventually(lambda one=step: self._reached(running, one) and _all_seen(running))  # type: ignore[misc]
        running.follow(lambda _ended: None, until=None)

    def _reached(self, running: RunningService, step: Step) -> bool:
        report = running.session.client.job(self._ids[step.awaited])
        if step.size == 0:
            return report.over
        if step.size is None:
            return report.queue_position is not None
        return report.launched_at is not None and _settled_size(running.run.jobs[step.awaited], report) == step.size


def _all_seen(running: RunningService) -> bool:
    """Tell whether the last polls have counted all our placeholders: another sees some as processors of others.

    Then the scheduler would make more room than is needed.
    """
    return all(
        (one.processors or 0) - (one.idle or 0) - (one.others or 0) == one.placeholders
        for one in running.session.client.clusters()
    )


def _settled_size(job: SimulatedJob, report: JobReport) -> int:
    """Return the processors with which it began, or that its last change has led to.

    A change counts when it is over: until then it is not the turn of the job to change again.
    """
    return report.size_changes[-1].after if report.size_changes else job.initial


@dataclass(frozen=True)
class Change:
    """A job has another size."""

    at: float
    job: int
    size: int


def changes(sizes: Mapping[int, Sequence[tuple[float, int]]]) -> list[Change]:
    """Return all changes in the order of their times.

    Processors may become idle one by one, and the workers of a job that ends do so: steps in one direction are one
    change. A job has ended with the first of them, whose processors others may have at once.
    """
    found = []
    for job, steps in sizes.items():
        kept: list[tuple[float, int]] = []
        for at, size in steps:
            if len(kept) > 1 and (kept[-2][1] < kept[-1][1] < size or kept[-2][1] > kept[-1][1] > size):
                kept[-1] = (kept[-1][0] if size == 0 else at, size)
            else:
                kept.append((at, size))
        found += [Change(at, job, size) for at, size in kept]
    return sorted(found, key=lambda one: one.at)


def live(approach: Approach) -> LiveOutcome:
    """Run them live, on a local cluster: others tell of the end of a placeholder later, so that more room is made."""
    cluster = ClusterModel(name="alpha", nodes=PROCESSORS)
    wanted = LiveRun(approach=approach, malleability="fpsma", jobs=workload(), clusters=(cluster,), pace=1.0)
    return carried_out(wanted, LiveSteps(STEPS[approach]))


class SimulatedSteps(Multicluster):
    """The simulator, led through the steps, with the sizes of the jobs noted after every instant."""

    def __init__(self, platform: Platform, settings: Settings, steps: Sequence[Step]) -> None:
        """Begin with nothing submitted."""
        super().__init__(platform, (), settings, on_end=lambda result: self._note(result.job.number, 0))
        self.sizes: dict[int, list[tuple[float, int]]] = {}
        self._jobs = workload()
        self._ahead = list(steps)
        self._step: Step | None = None
        self._next()

    def instant(self, now: float) -> None:
        """Let an instant happen, then look at the world."""
        super().instant(now)
        for run in self.runs.values():
            self._note(run.job.number, run.total, run.started_at)
        if self._step is not None and self._reached(self._step):
            self._next()

    def _note(self, job: int, size: int, since: float = 0.0) -> None:
        steps = self.sizes.setdefault(job, [])
        if not steps or steps[-1][1] != size:
            steps.append((max(self.engine.now, since), size))

    def _next(self) -> None:
        """Take the next step, a moment after what it waited for."""
        self._step = self._ahead.pop(0) if self._ahead else None
        match self._step:
            case Step(what=Do.SUBMIT, job=job):
                self._arriving = replace(self._jobs[job], submitted_at=self.engine.now + MOMENT)
            case Step(job=job):
                self.engine.after(MOMENT, partial(self._end_now, self.runs[job]))

    def _end_now(self, run: Run) -> None:
        heapq.heappush(self._ends, (self.engine.now, run.job.number, run.version, run))

    def _reached(self, step: Step) -> bool:
        run = self.runs.get(step.awaited)
        if step.size == 0:
            return run is None and step.awaited in self.sizes
        if step.size is None:
            return run is None and bool(self.waiting)
        return run is not None and run.size == run.total == step.size and self._computing(run)

    def _computing(self, run: Run) -> bool:
        return not run.standing and not any(part.pending for part in run.parts)


def simulated(approach: Approach, outcome: LiveOutcome) -> dict[int, list[tuple[float, int]]]:
    """Return what the simulator says, with the clusters and delays of a live run."""
    settings = with_delays(Settings(approach=approach, malleability="fpsma"), outcome)
    world = SimulatedSteps(platform_of(outcome), settings, STEPS[approach])
    assert world.run().unfinished == 0
    return world.sizes


def expect_the_same(approach: Approach, outcome: LiveOutcome) -> None:
    """Compare a live run with the policy's word and with the simulator."""
    assert sum(one.processors for one in outcome.clusters) == PROCESSORS, "others are on the cluster"
    for sizes in (simulated(approach, outcome), outcome.sizes):
        assert [(one.job, one.size) for one in changes(sizes)] == ORDER[approach], sizes

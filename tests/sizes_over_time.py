# SPDX-License-Identifier: Apache-2.0
"""Two malleable jobs and a rigid one, live and simulated: their sizes over time, to be compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.cli.liveruns import run_live
from koala_adapter.scheduler.malleable.approaches import Approach
from koala_adapter.simulation.application_models import Application, Interpolated
from koala_adapter.simulation.live_runs import LiveRun, platform_of, with_delays
from koala_adapter.simulation.multicluster import Multicluster, Settings
from koala_adapter.simulation.platform import ClusterModel
from koala_adapter.simulation.simulated_jobs import SimulatedJob

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.simulation.live_runs import LiveOutcome

PROCESSORS = 8
MALLEABLE_FIRST, MALLEABLE_SECOND, RIGID = range(3)
SIZES = {
    Approach.PRA: {MALLEABLE_FIRST: [2, 4, 0], MALLEABLE_SECOND: [2, 4, 0], RIGID: [2, 0]},
    Approach.PWA: {MALLEABLE_FIRST: [2, 4, 0], MALLEABLE_SECOND: [2, 4, 2, 4, 0], RIGID: [2, 0]},
}
"""What FPSMA makes of them: under PRA the rigid job waits for the first to end; under PWA the second, which started
last, gives two processors up for it, and has them back when it has ended."""
ORDER = {
    Approach.PRA: [(0, 2), (0, 4), (1, 2), (1, 4), (0, 0), (2, 2), (2, 0), (1, 0)],
    Approach.PWA: [(0, 2), (0, 4), (1, 2), (1, 4), (1, 2), (2, 2), (2, 0), (1, 4), (0, 0), (1, 0)],
}
"""The same, in the order in which it happens: job and size."""


def workload() -> list[SimulatedJob]:
    """Return the jobs; on 4, 4 and 2 processors they take 24, 38 and 6 seconds."""

    def job(number: int, at: float, seconds: float, *, malleable: bool) -> SimulatedJob:
        factor = 1.5 if malleable else 1.0
        curve = Interpolated(((2, factor * seconds), (4, factor * seconds / 1.5)))
        application = Application(name="steady", speed_up=curve, minimum=2, maximum=4)
        return SimulatedJob(number=number, submitted_at=at, application=application, initial=2, malleable=malleable)

    return [
        job(MALLEABLE_FIRST, 0.0, 24.0, malleable=True),
        job(MALLEABLE_SECOND, 4.0, 38.0, malleable=True),
        job(RIGID, 12.0, 6.0, malleable=False),
    ]


@dataclass(frozen=True)
class Change:
    """A job has another size."""

    at: float
    job: int
    size: int


def changes(sizes: Mapping[int, Sequence[tuple[float, int]]]) -> list[Change]:
    """Return all changes in the order of their times.

    The workers of a job that ends do so one by one, within the length of a unit: that is one change.
    """
    found = []
    for job, steps in sizes.items():
        kept = list(steps)
        while len(kept) > 1 and kept[-1][1] == 0 and kept[-2][1] < SIZES_THAT_LAST[job]:
            del kept[-2]
        found += [Change(at, job, size) for at, size in kept]
    return sorted(found, key=lambda one: one.at)


SIZES_THAT_LAST = {MALLEABLE_FIRST: 4, MALLEABLE_SECOND: 4, RIGID: 2}
"""The size of each with which it ends."""


def live(approach: Approach, pace: float, *, site: str = "") -> LiveOutcome:
    """Run them live, on a local cluster or those of a site."""
    cluster = ClusterModel(name="alpha", nodes=PROCESSORS)
    wanted = LiveRun(
        approach=approach, malleability="fpsma", jobs=workload(), clusters=(cluster,), pace=pace, site=site
    )
    return run_live(wanted, lambda _ended: None)


class Noted(Multicluster):
    """The simulator, with the sizes of the jobs noted after every instant."""

    sizes: dict[int, list[tuple[float, int]]]

    def _instant(self, now: float) -> None:
        super()._instant(now)
        for run in self._live.values():
            steps = self.sizes.setdefault(run.job.number, [])
            if not steps or steps[-1][1] != run.total:
                steps.append((max(now, run.started_at), run.total))


def simulated(approach: Approach, outcome: LiveOutcome) -> dict[int, list[tuple[float, int]]]:
    """Return what the simulator says, with the clusters and delays of a live run."""
    settings = with_delays(Settings(approach=approach, malleability="fpsma"), outcome)
    world = Noted(platform_of(outcome), workload(), settings)
    world.sizes = {}
    for one in world.run().jobs:
        world.sizes[one.job.number].append((one.ended_at, 0))
    return world.sizes


def sizes_of(found: Sequence[Change]) -> dict[int, list[int]]:
    """Return the sizes of each job, one after the other."""
    by_job: dict[int, list[int]] = {}
    for one in found:
        by_job.setdefault(one.job, []).append(one.size)
    return by_job


def bound(outcome: LiveOutcome, pace: float) -> float:
    """Return the seconds of the workload by which a change may come earlier or later than simulated.

    Two seconds, and five times what placeholders and processes took on average in that run: on a busy machine no delay
    is like another.
    """
    return 2.0 * pace + 5.0 * (outcome.held_after + outcome.computes_after + outcome.free_after)


def expect_the_same(approach: Approach, outcome: LiveOutcome, pace: float) -> None:
    """Compare a live run with the policy's word and with the simulator."""
    found, expected = changes(outcome.sizes), changes(simulated(approach, outcome))
    assert sizes_of(found) == sizes_of(expected) == SIZES[approach]
    assert [(one.job, one.size) for one in found] == [(one.job, one.size) for one in expected] == ORDER[approach]
    late = {(one.job, one.size): (one.at, two.at) for one, two in zip(found, expected, strict=True)}
    assert all(abs(one - two) <= bound(outcome, pace) for one, two in late.values()), late

# SPDX-License-Identifier: Apache-2.0
"""One run of a KOALA workload on DAS-3, and what is kept of it: the numbers behind figures 7 and 8 (TR-0092)."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from koala_adapter.errors import SimulationError
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.malleable.approaches import Approach
from koala_adapter.simulation.application_models import ReconfigurationCost
from koala_adapter.simulation.koala_workloads import JOBS, WORKLOADS, koala_workload
from koala_adapter.simulation.multicluster import Settings, simulate
from koala_adapter.simulation.platform import DAS3

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.simulation.simulated_jobs import Outcome

RIGID = "rigid"
"""Stands for a malleability policy where all jobs are rigid: what malleability is compared with."""
BINS = 120
"""Parts into which the time axis of the timelines is divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a run costs and who else is there."""

    name: str = "as set"
    background: float = 0.0
    """Share of each cluster that local users ask for."""
    threshold: int = 0
    """Processors of each cluster that are left to local users."""
    delay: float = 0.0
    """Seconds until placeholders are held."""
    cost: float = 0.0
    """Seconds for which a job stands still when its size changes."""
    poll: float = 0.0
    """Seconds between two looks at local users; 0: they are seen at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is to be run."""

    approach: Approach
    malleability: str
    """Name of a policy, or `RIGID`."""
    workload: str
    seed: int
    conditions: Conditions = field(default_factory=Conditions)
    detailed: bool = False
    """Whether the values of all jobs and the timelines are wanted."""
    policies: Policies = OWN
    """Those that there are."""

    @property
    def combination(self) -> str:
        """Policy and workload, as the legends of the figures have it."""
        return f"{self.malleability}/{self.workload}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is kept of a run. Times in seconds; means over all jobs unless said."""

    case: Case
    average_processors: float
    maximum_processors: float
    execution: float
    malleable_execution: float
    """Of the malleable jobs alone."""
    wait: float
    response: float
    used: float
    """Mean processors of managed jobs while jobs were submitted."""
    makespan: float
    messages: int
    jobs: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By the name of a property above: one value for each job. Only of detailed runs."""
    used_over_time: Sequence[float] = ()
    """Mean processors of managed jobs in each part of the time axis."""
    messages_over_time: Sequence[float] = ()
    """Messages sent until the end of each part."""


def time_axis(workload: str) -> list[float]:
    """Return the ends of the parts of the time axis, in seconds: to a tenth of the time after the last submission."""
    return axis_to(JOBS * WORKLOADS[workload].interarrival * 1.1)


def axis_to(last: float) -> list[float]:
    """Return the ends of equal parts of a time axis that ends at ``last``, in seconds."""
    return [last * (part + 1) / BINS for part in range(BINS)]


def run_case(case: Case) -> Record:
    """Run a case."""
    where = case.conditions
    rigid = case.malleability == RIGID
    cost = ReconfigurationCost(fixed=where.cost)
    jobs = koala_workload(WORKLOADS[case.workload], case.seed, cost=cost, malleable=not rigid)
    clusters = tuple(one.model_copy(update={"threshold": where.threshold}) for one in DAS3.clusters)
    platform = DAS3.model_copy(update={"clusters": clusters}).with_background(where.background)
    settings = Settings(
        approach=Approach.NONE if rigid else case.approach,
        malleability="fpsma" if rigid else case.malleability,
        poll_interval=where.poll,
        placeholder_delay=where.delay,
        seed=case.seed,
        policies=case.policies,
    )
    outcome = simulate(platform, jobs, settings)
    if len(outcome.jobs) < len(jobs):
        message = f"{len(jobs) - len(outcome.jobs)} jobs of {case.combination} can never run under these conditions"
        raise SimulationError(message, hint="set a lower threshold")
    return record_of(case, outcome, jobs[-1].submitted_at, time_axis(case.workload))


def record_of(case: Case, outcome: Outcome, last_submission: float, axis: Sequence[float]) -> Record:
    """Return what is kept of an outcome, of a simulation or a live run; ``axis``: of the timelines."""
    results = sorted(outcome.jobs, key=lambda one: one.job.number)
    malleable = [one.execution for one in results if one.job.malleable]
    columns = {
        "average_processors": [one.average_processors for one in results],
        "maximum_processors": [float(one.maximum_processors) for one in results],
        "execution": [one.execution for one in results],
        "response": [one.response for one in results],
    }
    return Record(
        case=case,
        **{name: fmean(column) for name, column in columns.items()},
        malleable_execution=fmean(malleable) if malleable else fmean(columns["execution"]),
        wait=fmean(one.wait for one in results),
        used=mean_used(outcome.used, 0.0, last_submission),
        makespan=outcome.ended_at,
        messages=outcome.grow_messages + outcome.shrink_messages,
        jobs=columns if case.detailed else {},
        used_over_time=used_over_time(outcome.used, axis) if case.detailed else (),
        messages_over_time=_messages_over_time(outcome, axis) if case.detailed else (),
    )


def mean_used(used: Sequence[tuple[float, int, int]], begin: float, end: float) -> float:
    """Return the mean of managed processors between two times."""
    area = 0.0
    for index, (since, managed, _) in enumerate(used):
        until = used[index + 1][0] if index + 1 < len(used) else end
        area += managed * max(0.0, min(until, end) - max(since, begin))
    return area / (end - begin)


def used_over_time(used: Sequence[tuple[float, int, int]], axis: Sequence[float]) -> list[float]:
    """Return the mean of managed processors in each part of a time axis that begins at 0."""
    means = []
    index, begin = 0, 0.0
    for end in axis:
        area, at = 0.0, begin
        while index < len(used) and used[index][0] <= end:
            area += (used[index - 1][1] if index else 0) * (used[index][0] - at)
            at = used[index][0]
            index += 1
        area += (used[index - 1][1] if index else 0) * (end - at)
        means.append(area / (end - begin))
        begin = end
    return means


def _messages_over_time(outcome: Outcome, axis: Sequence[float]) -> list[float]:
    sums, total, index = [], 0, 0
    for end in axis:
        while index < len(outcome.messages) and outcome.messages[index][0] <= end:
            total += outcome.messages[index][1] + outcome.messages[index][2]
            index += 1
        sums.append(float(total))
    return sums

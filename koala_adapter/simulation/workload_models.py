# SPDX-License-Identifier: Apache-2.0
"""Workload models by name, for use in place of a trace file: ``model:lublin``.

Besides the model of Lublin and Feitelson there are stand-ins for two traces that cannot be had here, of the clusters
fs3 and fs4 of the Dutch research grid DAS-2 in 2003. What is published of them is met: the number of jobs, their mean
run time, and the share of jobs below 1000 s (Gergel, Kustikova and Senin 2011); 64 processors and one year (Parallel
Workloads Archive). The rest is assumed: run times are uniform on a logarithmic scale on either side of 1000 s, sizes
and the daily cycle are those of Lublin and Feitelson, estimates are the run times.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from math import exp, log
from typing import TYPE_CHECKING

from koala_adapter.errors import SimulationError
from koala_adapter.simulation import lublin
from koala_adapter.simulation.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX = "model:"
JOBS = 10_000
"""Jobs of a model that has no number of its own, when nobody says how many."""
YEAR = 365 * 86_400
BOUNDARY = 1000.0
"""Seconds; what is published is the share of jobs below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigures:
    """What is known of a trace that cannot be had."""

    jobs: int
    processors: int
    mean_run: float
    """Seconds."""
    short: float
    """Share of jobs with a run time below `BOUNDARY`, from 0 to 1."""
    duration: float = YEAR
    """Seconds."""

    def longest_run(self) -> float:
        """Return the longest run (seconds) that gives the mean, with run times as this module assumes them."""
        below = (BOUNDARY - 1) / log(BOUNDARY)
        above = (self.mean_run - self.short * below) / (1 - self.short)
        low, high = BOUNDARY + 1e-6, BOUNDARY * exp(20)
        while high / low > 1 + 1e-12:
            middle = (low * high) ** 0.5
            if (middle - BOUNDARY) / log(middle / BOUNDARY) < above:
                low = middle
            else:
                high = middle
        return low

    def run_time(self, longest: float, chance: random.Random) -> int:
        """Return the run time of a job, whole seconds, at least 1."""
        if chance.random() < self.short:
            return min(int(BOUNDARY) - 1, max(1, round(exp(chance.uniform(0, log(BOUNDARY))))))
        return max(int(BOUNDARY), round(exp(chance.uniform(log(BOUNDARY), log(longest)))))


DAS2_FS3 = PublishedFigures(jobs=66_112, processors=64, mean_run=716, short=0.974)
DAS2_FS4 = PublishedFigures(jobs=32_953, processors=64, mean_run=2819, short=0.752)


def fitted(name: str, figures: PublishedFigures, jobs: int | None, seed: int) -> Workload:
    """Return a workload that has the published figures of a trace; fewer jobs span as much less time."""
    jobs = figures.jobs if jobs is None else jobs
    times = _submissions(jobs, figures.duration * jobs / figures.jobs, seed)
    chance = random.Random(seed)
    longest = figures.longest_run()
    runs = [figures.run_time(longest, chance) for _ in range(jobs)]
    return Workload(
        name=name,
        processors=figures.processors,
        ids=range(1, jobs + 1),
        submits=times,
        runs=runs,
        sizes=[lublin.size(lublin.ALL_JOBS, figures.processors, chance) for _ in range(jobs)],
        estimates=runs,
        users=[-1] * jobs,
        rows=range(jobs),
    )


def _submissions(jobs: int, duration: float, seed: int) -> list[int]:
    """Return so many submissions that end after that time, with the gaps and the daily cycle of Lublin's model."""
    stretch, times = 1.0, [0.0]
    for _ in range(2):  # the second time with the same gaps, stretched so that they add up
        stretch *= duration / times[-1] if times[-1] else 1.0
        arrivals = lublin.Arrivals(lublin.ALL_JOBS, random.Random(seed), stretch=stretch)
        times = [arrivals.next() for _ in range(jobs)]
    return [int(time) for time in times]


def _lublin(jobs: int | None, seed: int, processors: int | None) -> Workload:
    size = lublin.PROCESSORS if processors is None else processors
    return lublin.lublin(JOBS if jobs is None else jobs, seed, processors=size)


def _lublin_types(jobs: int | None, seed: int, processors: int | None) -> Workload:
    size = lublin.PROCESSORS if processors is None else processors
    kinds = (lublin.BATCH, lublin.INTERACTIVE)
    work = lublin.lublin(JOBS if jobs is None else jobs, seed, processors=size, kinds=kinds)
    return replace(work, name="lublin-types")


def _fs3(jobs: int | None, seed: int, _processors: int | None) -> Workload:
    return fitted("das2-fs3", DAS2_FS3, jobs, seed)


def _fs4(jobs: int | None, seed: int, _processors: int | None) -> Workload:
    return fitted("das2-fs4", DAS2_FS4, jobs, seed)


MODELS: Mapping[str, Callable[[int | None, int, int | None], Workload]] = {
    "das2-fs3": _fs3,
    "das2-fs4": _fs4,
    "lublin": _lublin,
    "lublin-types": _lublin_types,
}
"""From jobs, seed and processors of the machine to a workload; for None the model has a value of its own."""


def make_model(name: str, *, jobs: int | None = None, seed: int = 0, processors: int | None = None) -> Workload:
    """Return the workload of a model, named with or without `PREFIX`. Raises SimulationError for an unknown one."""
    short = name.removeprefix(PREFIX)
    if short not in MODELS:
        known = ", ".join(PREFIX + model for model in MODELS)
        raise SimulationError(f"there is no workload model {short}", hint=f"there is {known}")
    if jobs is not None and not 0 < jobs <= lublin.MOST_JOBS:
        raise SimulationError(f"a model cannot make {jobs} jobs", hint=f"allowed are 1 to {lublin.MOST_JOBS}")
    return MODELS[short](jobs, seed, processors)

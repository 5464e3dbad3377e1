# SPDX-License-Identifier: Apache-2.0
"""Workload models that take the place of a trace: Lublin and Feitelson's, and two stand-ins.

First the model of Lublin and Feitelson, then all models by name, such as ``model:lublin``. Jobs are rigid, and no model
has estimates of its own: the estimate is the run time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import accumulate
from math import exp, lgamma, log, log2
from typing import TYPE_CHECKING

from koala_adapter.errors import SimulationError
from koala_adapter.simulation.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Sequence


# -- Model of Lublin and Feitelson ---------------------------------------------------------------------------
# U. Lublin and D. G. Feitelson: The workload on parallel supercomputers: modeling the characteristics of rigid jobs.
# Journal of Parallel and Distributed Computing 63 (2003). Parameters as published:
#
# - size: 1 with a certain probability; else 2 to a power that is uniform in two stages, rounded for a part of the jobs;
# - run time: e to a value of one of two gamma distributions; larger jobs tend to the longer one;
# - submissions: the gaps are e to a value of a gamma distribution, stretched at hours at which few jobs come.
#
# There are parameters for all jobs alike, and for batch and interactive jobs apart.

PROCESSORS = 128
"""Of the machine that the published sizes are for."""
LONGEST_RUN = 12
"""Natural logarithm of the seconds that no job exceeds: two days."""
LONGEST_GAP = 13
"""Natural logarithm of the seconds that no gap between submissions exceeds before it is stretched: five days."""
PARTS = 48
"""Parts of a day, half an hour each."""
PART = 1800
"""Seconds of one."""
DAY_BEGINS = 11
"""The part of the day, 05:30, from which the daily cycle is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters of Lublin's model for one kind of jobs (batch or interactive). Names as in the paper."""

    serial: float
    """Probability of size 1."""
    power2: float
    """Probability of a size that is rounded to a power of two."""
    ulow: float
    """Binary logarithm of the smallest parallel size."""
    umed: float
    """Binary logarithm of the size at which the first stage ends, below the largest: negative."""
    uhi: float
    """Binary logarithm of the largest size, below that of the machine: 0 or negative."""
    uprob: float
    """Probability of the first stage."""
    a1: float
    b1: float
    a2: float
    b2: float
    pa: float
    pb: float
    """Of the run time: two gamma distributions; the first one has probability pa * size + pb."""
    aarr: float
    barr: float
    """Of the gaps between submissions in the rush hours: a gamma distribution."""
    anum: float
    bnum: float
    """Of the submissions over the day: a gamma distribution over its parts."""
    arar: float
    """Ratio of `aarr` at all hours to that in the rush hours."""


ALL_JOBS = Parameters(
    serial=0.244, power2=0.576, ulow=0.8, umed=-2.5, uhi=0, uprob=0.86,
    a1=4.2, b1=0.94, a2=312, b2=0.03, pa=-0.0054, pb=0.78,
    aarr=10.2303, barr=0.4871, anum=8.1737, bnum=3.9631, arar=1.0225,
)  # fmt: skip
BATCH = Parameters(
    serial=0.2927, power2=0.6686, ulow=1.2, umed=-2, uhi=0, uprob=0.875,
    a1=6.57, b1=0.823, a2=639.1, b2=0.0156, pa=-0.003, pb=0.6986,
    aarr=6.0415, barr=0.8531, anum=6.1271, bnum=5.2740, arar=1.0519,
)  # fmt: skip
INTERACTIVE = Parameters(
    serial=0.1541, power2=0.625, ulow=1, umed=-4, uhi=-1.5, uprob=0.705,
    a1=3.8351, b1=0.6605, a2=7.073, b2=0.6856, pa=-0.0118, pb=0.9156,
    aarr=6.5510, barr=0.6621, anum=8.9186, bnum=3.6680, arar=0.9797,
)  # fmt: skip
MOST_JOBS = 10_000_000


def gamma_cdf(x: float, shape: float, scale: float) -> float:
    """Return the probability that a gamma variate does not exceed x, by the series of the incomplete gamma function."""
    if x <= 0:
        return 0.0
    z = x / scale
    term = total = 1 / shape
    step = 0
    while term > total * 1e-16:
        step += 1
        term *= z / (shape + step)
        total += term
    return min(1.0, total * exp(shape * log(z) - z - lgamma(shape)))


def daily_cycle(parameters: Parameters) -> list[float]:
    """Return how many times as many jobs as on average come in each part of a day, from midnight on."""
    weights = [0.0] * PARTS
    for part in range(DAY_BEGINS, DAY_BEGINS + PARTS):
        above = gamma_cdf(part + 0.5, parameters.anum, parameters.bnum)
        weights[(part - 1) % PARTS] = above - gamma_cdf(part - 0.5, parameters.anum, parameters.bnum)
    mean = sum(weights) / PARTS
    return [weight / mean for weight in weights]


class Arrivals:
    """Submission times of one kind of jobs, from midnight on."""

    def __init__(self, parameters: Parameters, chance: random.Random, *, stretch: float = 1.0) -> None:
        """Submit jobs with the published gaps, times ``stretch``; the daily cycle stays as it is."""
        self._stretch = stretch
        self._shape, self._scale = parameters.aarr * parameters.arar, parameters.barr
        self._chance = chance
        self._weights = daily_cycle(parameters)
        self._before = list(accumulate(self._weights, initial=0.0))
        self._points = 0.0
        """What has been drawn of the gaps so far, in parts of a day with an average number of jobs."""

    def next(self) -> float:
        """Return the next submission, in seconds since the first midnight."""
        gap = LONGEST_GAP + 1.0
        while gap > LONGEST_GAP:
            gap = self._chance.gammavariate(self._shape, self._scale)
        self._points += self._stretch * exp(gap) / PART
        days, points = divmod(self._points, self._before[-1])
        part = next((part for part in range(PARTS - 1, 0, -1) if self._before[part] <= points), 0)
        inside = (points - self._before[part]) / self._weights[part]
        return (days * PARTS + part + inside) * PART


def size(parameters: Parameters, processors: int, chance: random.Random) -> int:
    """Return the size of a job on a machine of so many processors."""
    kind = chance.random()
    if kind <= parameters.serial:
        return 1
    top = log2(processors) + parameters.uhi
    middle = max(parameters.ulow, log2(processors) + parameters.umed)
    if chance.random() <= parameters.uprob:
        power = chance.uniform(parameters.ulow, middle)
    else:
        power = chance.uniform(middle, max(middle, top))
    if kind <= parameters.serial + parameters.power2:
        power = int(power + 0.5)
    return max(1, min(processors, int(2**power + 0.5)))


def run_time(parameters: Parameters, processors: int, chance: random.Random) -> int:
    """Return the run time of a job of so many processors, whole seconds, at least 1."""
    share = min(1.0, max(0.0, parameters.pa * processors + parameters.pb))
    value = LONGEST_RUN + 1.0
    while value > LONGEST_RUN:
        if chance.random() <= share:
            value = chance.gammavariate(parameters.a1, parameters.b1)
        else:
            value = chance.gammavariate(parameters.a2, parameters.b2)
    return int(exp(value))


def lublin(
    jobs: int, seed: int, *, processors: int = PROCESSORS, kinds: Sequence[Parameters] = (ALL_JOBS,)
) -> Workload:
    """Return a workload of ``jobs`` jobs by Lublin's model for a machine of ``processors`` processors.

    The published sizes belong to a machine of 128 processors; for another the limits of the two stages move with the
    binary logarithm of its size, as the authors advise.
    """
    chance = random.Random(seed)
    arrivals = [Arrivals(kind, chance) for kind in kinds]
    coming = [source.next() for source in arrivals]
    submits, runs, sizes = [], [], []
    for _ in range(jobs):
        place = min(range(len(kinds)), key=coming.__getitem__)
        submits.append(int(coming[place]))
        coming[place] = arrivals[place].next()
        sizes.append(size(kinds[place], processors, chance))
        runs.append(run_time(kinds[place], sizes[-1], chance))
    return _workload("lublin", processors, submits, runs, sizes)


def _workload(
    name: str, processors: int, submits: Sequence[float], runs: Sequence[int], sizes: Sequence[int]
) -> Workload:
    return Workload(
        name=name,
        processors=processors,
        ids=range(1, len(runs) + 1),
        submits=submits,
        runs=runs,
        sizes=sizes,
        estimates=runs,
        users=[-1] * len(runs),
        rows=range(len(runs)),
    )


# -- Models by name ------------------------------------------------------------------------------------------
# Beside the model of Lublin and Feitelson there are stand-ins for two traces that are not available here, of the
# clusters fs3 and fs4 of the Dutch research grid DAS-2 in 2003. What is published of them is met: the number of jobs,
# their mean run time, and the share of jobs below 1000 s (Gergel, Kustikova and Senin 2011); 64 processors and one year
# (Parallel Workloads Archive). The rest is assumed: run times are uniform on a logarithmic scale on either side of
# 1000 s, sizes and the daily cycle are those of Lublin and Feitelson.

PREFIX = "model:"
JOBS = 10_000
"""Jobs of a model that has no number of its own, unless a number is given."""
YEAR = 365 * 86_400
BOUNDARY = 1000.0
"""Seconds; what is published is the share of jobs below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigures:
    """Published statistics of a trace that is not available, such as its mean run time."""

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
    """Return a workload with the published statistics of a trace; with fewer jobs it spans proportionally less time."""
    jobs = figures.jobs if jobs is None else jobs
    times = _submissions(jobs, figures.duration * jobs / figures.jobs, seed)
    chance = random.Random(seed)
    longest = figures.longest_run()
    runs = [figures.run_time(longest, chance) for _ in range(jobs)]
    sizes = [size(ALL_JOBS, figures.processors, chance) for _ in range(jobs)]
    return _workload(name, figures.processors, times, runs, sizes)


def _submissions(jobs: int, duration: float, seed: int) -> list[int]:
    """Return ``count`` submission times, the last at that time, with the gaps and daily cycle of Lublin's model."""
    stretch, times = 1.0, [0.0]
    for _ in range(2):  # the second time with the same gaps, stretched so that they add up
        stretch *= duration / times[-1] if times[-1] else 1.0
        arrivals = Arrivals(ALL_JOBS, random.Random(seed), stretch=stretch)
        times = [arrivals.next() for _ in range(jobs)]
    return [int(time) for time in times]


FITTED = {"das2-fs3": DAS2_FS3, "das2-fs4": DAS2_FS4}
KINDS = {"lublin": (ALL_JOBS,), "lublin-types": (BATCH, INTERACTIVE)}
MODELS = (*FITTED, *KINDS)
"""Names of all models."""


def make_model(name: str, *, jobs: int | None = None, seed: int = 0, processors: int | None = None) -> Workload:
    """Return the workload of a model of `MODELS`, named with or without `PREFIX`.

    ``processors``: of the machine, where the model has no number of its own. Raises SimulationError for a number of
    jobs that is none.
    """
    short = name.removeprefix(PREFIX)
    if jobs is not None and not 0 < jobs <= MOST_JOBS:
        raise SimulationError(f"a model cannot make {jobs} jobs", hint=f"allowed are 1 to {MOST_JOBS}")
    if short in FITTED:
        return fitted(short, FITTED[short], jobs, seed)
    many, machine = JOBS if jobs is None else jobs, PROCESSORS if processors is None else processors
    return replace(lublin(many, seed, processors=machine, kinds=KINDS[short]), name=short)

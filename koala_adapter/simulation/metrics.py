# SPDX-License-Identifier: Apache-2.0
"""Measures of a schedule, for each job and in total.

Wait is start minus submission, response is end minus submission, slowdown is response over run, and bounded slowdown
takes runs below 10 s for 10 s and is never below 1 (Feitelson and Rudolph 1998). Utilization is the share of the
processors that jobs hold between the first submission and the last end; that time is the makespan.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import ceil, fsum, inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from koala_adapter.simulation.replay import Replay

BOUND = 10
"""Seconds below which a run counts as this long in the bounded slowdown."""
PERCENTILES = (50, 90, 95, 99, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMetrics:
    """The jobs that were started, one column for each measure; all columns have the same length. Times in seconds."""

    indices: Sequence[int]
    """Where each job stands in its workload."""
    sizes: Sequence[int]
    submits: Sequence[float]
    starts: Sequence[float]
    ends: Sequence[float]
    runs: Sequence[float]
    waits: Sequence[float]
    responses: Sequence[float]
    slowdowns: Sequence[float]
    bounded_slowdowns: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A schedule in a few numbers. Times in seconds."""

    jobs: int
    mean_wait: float
    mean_run: float
    mean_response: float
    mean_slowdown: float
    mean_bounded_slowdown: float
    makespan: float
    utilization: float
    """From 0 to 1."""
    percentiles: Mapping[str, Mapping[str, float]]
    """Of ``wait``, ``slowdown`` and ``bounded_slowdown``: the value that so many percent of the jobs do not exceed."""
    largest_queue: int
    """Most jobs that waited at a time."""
    mean_queue: float
    """Jobs that waited on average, over the makespan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """A step function of time: a value that changes at instants."""

    times: Sequence[float]
    """Seconds, increasing."""
    values: Sequence[float]
    """From each time on, until the next."""

    def mean(self, begin: float, end: float) -> float:
        """Return the mean over a time; before the first instant the value is 0."""
        return self.binned(begin, end, 1)[0]

    def binned(self, begin: float, end: float, bins: int) -> list[float]:
        """Return the mean over each of so many parts of equal length of a time; zeros when it is empty."""
        width = (end - begin) / bins
        if width <= 0:
            return [0.0] * bins
        edges = [begin + width * number for number in range(bins)] + [end]
        return [area / width for area in self.areas(edges)]

    def areas(self, edges: Sequence[float]) -> list[float]:
        """Return the integral between each two neighbours of ``edges``, which increase."""
        sums = [0.0] * (len(edges) - 1)
        if not self.times:
            return sums
        place = 0
        for time, value, until in zip(self.times, self.values, [*self.times[1:], inf], strict=True):
            low, high = max(time, edges[0]), min(until, edges[-1])
            while low < high:
                while edges[place + 1] <= low:
                    place += 1
                edge = min(high, edges[place + 1])
                sums[place] += value * (edge - low)
                low = edge
        return sums


def job_metrics(replay: Replay) -> JobMetrics:
    """Return the measures of each job that was started."""
    workload = replay.workload
    indices: Sequence[int] = range(len(workload))
    if any(start < submit for start, submit in zip(replay.starts, workload.submits, strict=True)):
        indices = [index for index in indices if replay.starts[index] >= workload.submits[index]]
    submits = [workload.submits[index] for index in indices]
    starts = [replay.starts[index] for index in indices]
    runs = [replay.runs[index] for index in indices]
    waits = [start - submit for start, submit in zip(starts, submits, strict=True)]
    responses = [wait + run for wait, run in zip(waits, runs, strict=True)]
    return JobMetrics(
        indices=indices,
        sizes=[workload.sizes[index] for index in indices],
        submits=submits,
        starts=starts,
        ends=[start + run for start, run in zip(starts, runs, strict=True)],
        runs=runs,
        waits=waits,
        responses=responses,
        slowdowns=[response / run for response, run in zip(responses, runs, strict=True)],
        bounded_slowdowns=[max(1.0, response / max(BOUND, run)) for response, run in zip(responses, runs, strict=True)],
    )


def summarized(metrics: JobMetrics, processors: int) -> Summary:
    """Return the summary of a schedule on ``processors`` processors; zeros when there is no job."""
    begin, end = min(metrics.submits, default=0), max(metrics.ends, default=0)
    makespan = end - begin
    work = fsum(size * run for size, run in zip(metrics.sizes, metrics.runs, strict=True))
    queue = queue_length(metrics)
    return Summary(
        jobs=len(metrics.waits),
        mean_wait=mean(metrics.waits),
        mean_run=mean(metrics.runs),
        mean_response=mean(metrics.responses),
        mean_slowdown=mean(metrics.slowdowns),
        mean_bounded_slowdown=mean(metrics.bounded_slowdowns),
        makespan=makespan,
        utilization=work / (processors * makespan) if makespan > 0 else 0.0,
        percentiles={
            "wait": percentiles(metrics.waits),
            "slowdown": percentiles(metrics.slowdowns),
            "bounded_slowdown": percentiles(metrics.bounded_slowdowns),
        },
        largest_queue=int(max(queue.values, default=0)),
        mean_queue=queue.mean(begin, end),
    )


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean, summed without loss; 0 of nothing."""
    return fsum(values) / len(values) if values else 0.0


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return the nearest-rank percentiles of `PERCENTILES` by name (``p90``)."""
    ordered = sorted(values)
    return {f"p{rank}": ordered[ceil(rank / 100 * len(ordered)) - 1] if ordered else 0.0 for rank in PERCENTILES}


def steps(changes: Iterable[tuple[float, float]]) -> Steps:
    """Return the running sum of changes, each at a time; one value for each time at which something changes."""
    totals: dict[float, float] = {}
    for time, change in changes:
        totals[time] = totals.get(time, 0) + change
    times = sorted(time for time, change in totals.items() if change)
    return Steps(times=times, values=list(accumulate(totals[time] for time in times)))


def used_processors(metrics: JobMetrics) -> Steps:
    """Return how many processors jobs hold, over time."""
    begun = zip(metrics.starts, metrics.sizes, strict=True)
    ended = ((end, -size) for end, size in zip(metrics.ends, metrics.sizes, strict=True))
    return steps([*begun, *ended])


def queue_length(metrics: JobMetrics) -> Steps:
    """Return how many jobs wait, over time; jobs that start at once never do."""
    return steps([*((time, 1) for time in metrics.submits), *((time, -1) for time in metrics.starts)])


def cumulative(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the distinct values in increasing order, and for each the percentage of all that do not exceed it."""
    ordered = sorted(values)
    places = [
        place for place in range(len(ordered)) if place + 1 == len(ordered) or ordered[place + 1] > ordered[place]
    ]
    return [ordered[place] for place in places], [100 * (place + 1) / len(ordered) for place in places]

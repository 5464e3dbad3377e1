# SPDX-License-Identifier: Apache-2.0
"""Metrics of koala: the list of all metrics, and counting them in one process.

In order: the metrics by the command that exports them (docs/metrics.md is made from this list), the meter that counts,
what every process counts. Labels have few values: names of clusters, states, programs and verbs; never jobs or users.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from koala_adapter import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


# -- The list of all metrics ---------------------------------------------------------------------------------

QUICK = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds of times that an answer takes, seconds."""
LONG = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0)
"""Bounds of times that something waits, seconds."""


class Kind(StrEnum):
    """Type of a metric, as OpenMetrics names it."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric family."""

    name: str
    """As OpenMetrics has it: a counter's samples end in ``_total`` besides."""
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, without the infinite one."""


def _gauge(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name=f"koala_{name}", kind=Kind.GAUGE, help=meaning, labels=labels)


def _counter(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name=f"koala_{name}", kind=Kind.COUNTER, help=meaning, labels=labels)


def _histogram(name: str, meaning: str, *labels: str, bounds: tuple[float, ...]) -> Metric:
    return Metric(name=f"koala_{name}", kind=Kind.HISTOGRAM, help=meaning, labels=labels, bounds=bounds)


# ---- every process that asks a batch system -------------------------------------------------------------------------

VERSION = _gauge("info", "Always 1: which koala this is, and what it does (serve, schedule, wiki).", "version", "role")
STARTED_AT = _gauge("start_time_seconds", "When this process began, in seconds since 1970.")
REQUESTS = _counter("lrm_requests", "Requests that this process has sent to the batch system.", "cluster")
REQUESTS_LAST_MINUTE = _gauge(
    "lrm_requests_last_minute", "Requests in the last 60 seconds, those of koala's other processes included.", "cluster"
)
REQUESTS_BOUND = _gauge("lrm_requests_per_minute_bound", "Most requests that may be sent in 60 seconds.", "cluster")
COMMAND_SECONDS = _histogram(
    "lrm_command_seconds", "Time that each command of the batch system took.", "cluster", "command", bounds=QUICK
)
COMMAND_ERRORS = _counter(
    "lrm_command_errors",
    "Commands that ended with another status than 0 (status), took too long (timeout), or could not be run (absent).",
    "cluster",
    "command",
    "reason",
)

# ---- koala serve ---------------------------------------------------------------------------------------------------

CLUSTER_UP = _gauge("cluster_up", "1 while the batch system answers.", "cluster")
CLUSTER_PROCESSORS = _gauge("cluster_processors", "Processors of the cluster as polled last.", "cluster")
CLUSTER_IDLE = _gauge("cluster_idle_processors", "Idle processors of the cluster as polled last.", "cluster")
CLUSTER_FAILURES = _counter("cluster_failures", "How often the batch system was found not to answer.", "cluster")
PLACEHOLDERS = _gauge("placeholders", "Placeholders that have not ended.", "cluster", "state")
PLACEHOLDER_WAITING = _histogram(
    "placeholder_waiting_seconds",
    "Time of each placeholder from its submission until its agent reported.",
    "cluster",
    bounds=LONG,
)
CLAIMING = _histogram(
    "claiming_seconds",
    "Time of each component from the submission of its placeholders until it held all of them.",
    "cluster",
    bounds=LONG,
)
JOBS = _gauge("jobs", "Jobs that have not ended.", "state")
JOB_WAITING = _histogram("job_waiting_seconds", "Time of each job from submission until its launch.", bounds=LONG)
JOB_STARTS = _counter("job_starts", "Jobs that were launched.")
JOB_ENDS = _counter("job_ends", "Jobs that have ended.", "outcome")
PROCESSOR_SECONDS_HELD = _counter("processor_seconds_held", "Processor seconds that jobs held until their ends.")
PROCESSOR_SECONDS_USED = _counter("processor_seconds_used", "Processor time of ranks, counted when each has ended.")
BYTES_READ = _counter("bytes_read", "Bytes that ranks read by all calls, counted likewise.")
BYTES_WRITTEN = _counter("bytes_written", "Bytes that ranks wrote, likewise.")
SIZE_CHANGES = _counter("size_changes", "Changes of the size of running jobs.", "cluster", "direction")
SIZE_CHANGE_PROCESSORS = _counter(
    "size_change_processors", "Processors that running jobs took in or gave back.", "cluster", "direction"
)
JOURNAL_BLOCKED = _gauge("journal_blocked", "1 while the journal cannot be written and so nothing is decided.")
DEFECTS = _counter("defects", "Events on which the scheduler itself failed and which were set aside.")

# ---- koala schedule ------------------------------------------------------------------------------------------------

QUEUE_JOBS = _gauge("queue_jobs", "Jobs of the batch system, of all users.", "cluster", "state")
QUEUE_PROCESSORS = _gauge("queue_processors", "Processors that the scheduler of this queue may use.", "cluster")
QUEUE_FREE = _gauge("queue_free_processors", "Those of them that are free.", "cluster")
QUEUE_EVENTS = _counter(
    "queue_events", 'What happened to jobs in the queue; kind="start" is a decision.', "cluster", "kind"
)
SHADOW_JOBS = _gauge(
    "shadow_jobs", "Jobs that this policy would have started earlier, later, or at the same time.", "cluster", "start"
)
SHADOW_WAIT = _gauge(
    "shadow_mean_wait_seconds", "Mean wait with this policy (koala) and as it is (lrm).", "cluster", "scheduler"
)
SHADOW_GAIN = _gauge("shadow_gain_seconds", "By how much the mean wait would be shorter with this policy.", "cluster")

# ---- koala wiki serve ----------------------------------------------------------------------------------------------

WIKI_SECONDS = _histogram("wiki_request_seconds", "Time in which each request was answered.", "verb", bounds=QUICK)
WIKI_REFUSALS = _counter("wiki_refusals", "Requests that were refused or could not be read.", "verb")

COMMON = (
    VERSION,
    STARTED_AT,
    REQUESTS,
    REQUESTS_LAST_MINUTE,
    REQUESTS_BOUND,
    COMMAND_SECONDS,
    COMMAND_ERRORS,
)
SERVE = (
    CLUSTER_UP,
    CLUSTER_PROCESSORS,
    CLUSTER_IDLE,
    CLUSTER_FAILURES,
    PLACEHOLDERS,
    PLACEHOLDER_WAITING,
    CLAIMING,
    JOBS,
    JOB_WAITING,
    JOB_STARTS,
    JOB_ENDS,
    PROCESSOR_SECONDS_HELD,
    PROCESSOR_SECONDS_USED,
    BYTES_READ,
    BYTES_WRITTEN,
    SIZE_CHANGES,
    SIZE_CHANGE_PROCESSORS,
    JOURNAL_BLOCKED,
    DEFECTS,
)
SCHEDULE = (QUEUE_JOBS, QUEUE_PROCESSORS, QUEUE_FREE, QUEUE_EVENTS, SHADOW_JOBS, SHADOW_WAIT, SHADOW_GAIN)
WIKI = (WIKI_SECONDS, WIKI_REFUSALS)
ALL = (*COMMON, *SERVE, *SCHEDULE, *WIKI)


# -- The meter of one process --------------------------------------------------------------------------------
# Counting is cheap between readings, and the number of series is bounded whatever is counted.

MOST_SERIES = 1000
"""Sets of label values that one metric may have; what comes beyond counts together."""
OTHER = "other"
"""Value of each label of what comes beyond."""


@dataclass(slots=True)
class Distribution:
    """Numbers of values in a histogram's buckets, and their sum."""

    counts: list[int]
    """By bucket, the infinite one last; not cumulative."""
    total: float = 0.0


@dataclass(slots=True)
class Series:
    """Values of a metric by the values of its labels."""

    numbers: dict[tuple[str, ...], float] = field(default_factory=dict)
    """Of a gauge or a counter."""
    distributions: dict[tuple[str, ...], Distribution] = field(default_factory=dict)
    """Of a histogram."""


class Meter:
    """Metrics of one process. Gauges are set when metrics are read, see :meth:`read_with`."""

    def __init__(self) -> None:
        """Create a meter without counts."""
        self._series: dict[Metric, Series] = {}
        self._sources: list[Callable[[Meter], None]] = []

    def read_with(self, source: Callable[[Meter], None]) -> None:
        """Register ``source`` to set gauges before metrics are read."""
        self._sources.append(source)

    def add(self, metric: Metric, *labels: str, amount: float = 1.0) -> None:
        """Increase a counter. ``labels``: values in the order of the metric's labels."""
        numbers = self._of(metric, Kind.COUNTER).numbers
        key = _bounded(numbers, labels)
        numbers[key] = numbers.get(key, 0.0) + amount

    def set(self, metric: Metric, *labels: str, value: float) -> None:
        """Set a gauge, or a counter that is counted elsewhere."""
        numbers = self._of(metric, Kind.COUNTER if metric.kind is Kind.COUNTER else Kind.GAUGE).numbers
        numbers[_bounded(numbers, labels)] = value

    def observe(self, metric: Metric, *labels: str, seconds: float) -> None:
        """Add a duration to a histogram; a negative one, after a change of the clock, counts as 0."""
        distributions = self._of(metric, Kind.HISTOGRAM).distributions
        key = _bounded(distributions, labels)
        found = distributions.setdefault(key, Distribution([0] * (len(metric.bounds) + 1)))
        value = max(0.0, seconds)
        found.counts[bisect_left(metric.bounds, value)] += 1
        found.total += value

    def read(self) -> Mapping[Metric, Series]:
        """Return everything as it is now. Gauges that no source sets any more are gone."""
        for metric, series in self._series.items():
            if metric.kind is Kind.GAUGE:
                series.numbers.clear()
        for source in self._sources:
            source(self)
        return self._series

    def _of(self, metric: Metric, kind: Kind) -> Series:
        if metric.kind is not kind:
            raise TypeError(f"{metric.name} is a {metric.kind}, not a {kind}")
        found = self._series.get(metric)
        if found is None:
            found = self._series[metric] = Series()
        return found


def _bounded(known: Mapping[tuple[str, ...], object], labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return the labels, or "other" labels when a metric has too many."""
    return labels if labels in known or len(known) < MOST_SERIES else (OTHER,) * len(labels)


# -- What every process counts -------------------------------------------------------------------------------


def process_meter(role: str) -> Meter:
    """Return a meter with metrics of this process, which begins now. ``role``: the command."""
    meter = Meter()
    began = time.time()

    def who(meter: Meter) -> None:
        meter.set(VERSION, __version__, role, value=1.0)
        meter.set(STARTED_AT, value=began)

    meter.read_with(who)
    return meter

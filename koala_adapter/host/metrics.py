# SPDX-License-Identifier: Apache-2.0
"""Every metric that koala tells, by who tells it: names, meanings, labels. docs/metrics.md is made from this.

Labels have few values: names of clusters, states, programs and verbs; never jobs or users.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

QUICK = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds of times that an answer takes, seconds."""
LONG = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0)
"""Bounds of times that something waits, seconds."""


class Kind(StrEnum):
    """What a metric is, in the words of OpenMetrics."""

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

    @property
    def samples(self) -> tuple[str, ...]:
        """Names under which Prometheus stores it."""
        match self.kind:
            case Kind.GAUGE:
                return (self.name,)
            case Kind.COUNTER:
                return (f"{self.name}_total",)
            case Kind.HISTOGRAM:
                return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))


def _gauge(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name=f"koala_{name}", kind=Kind.GAUGE, help=meaning, labels=labels)


def _counter(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name=f"koala_{name}", kind=Kind.COUNTER, help=meaning, labels=labels)


def _histogram(name: str, meaning: str, *labels: str, bounds: tuple[float, ...]) -> Metric:
    return Metric(name=f"koala_{name}", kind=Kind.HISTOGRAM, help=meaning, labels=labels, bounds=bounds)


# ---- whoever asks a batch system -----------------------------------------------------------------------------------

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
SIZE_CHANGES = _counter("size_changes", "Changes of the size of running jobs.", "cluster", "direction")
SIZE_CHANGE_PROCESSORS = _counter(
    "size_change_processors", "Processors that running jobs took in or gave back.", "cluster", "direction"
)
JOURNAL_BLOCKED = _gauge("journal_blocked", "1 while the journal cannot be written and so nothing is decided.")
DEFECTS = _counter("defects", "Events on which the scheduler itself failed and which were set aside.")

# ---- koala schedule ------------------------------------------------------------------------------------------------

QUEUE_JOBS = _gauge("queue_jobs", "Jobs of the batch system, whoever's.", "cluster", "state")
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
    SIZE_CHANGES,
    SIZE_CHANGE_PROCESSORS,
    JOURNAL_BLOCKED,
    DEFECTS,
)
SCHEDULE = (QUEUE_JOBS, QUEUE_PROCESSORS, QUEUE_FREE, QUEUE_EVENTS, SHADOW_JOBS, SHADOW_WAIT, SHADOW_GAIN)
WIKI = (WIKI_SECONDS, WIKI_REFUSALS)
ALL = (*COMMON, *SERVE, *SCHEDULE, *WIKI)

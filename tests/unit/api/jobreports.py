# SPDX-License-Identifier: Apache-2.0
"""Reports of jobs and clusters, for tests of those who read them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from koala_adapter.api.statedirectory import JOURNAL_NAME, prepare_directory
from koala_adapter.outcome import JobState
from koala_adapter.report.sitevalues import ClusterReport
from koala_adapter.report.values import ComponentReport, JobReport
from koala_adapter.service.journal import Journal

_WAITING = JobReport(
    id="1",
    name="job",
    kind="rigid",
    state=JobState.CLAIMING,
    user="me",
    priority=0,
    walltime=60,
    submitted_at=0.0,
    launched_at=None,
    finished_at=None,
    reported_at=0.0,
    queue_position=None,
    tries=0,
    hand_backs=0,
    components=(),
    outcome=None,
    explanation="",
    placeholders_left=0,
    output_directory="",
)

_COMPONENT = ComponentReport(
    name="worker",
    command=("x",),
    cluster="alpha",
    processors=1,
    held=0,
    queued=0,
    lrm_ids=(),
    hosts=(),
    first_rank=None,
    waited=None,
)
_CLUSTER = ClusterReport(
    name="alpha",
    plugin="local",
    lrm="local",
    closed=None,
    processors=16,
    idle=4,
    others=2,
    threshold=0,
    placeholders=10,
    placeholders_queued=0,
    available=4,
    polled_at=0.0,
    requests=100,
    largest_requests_per_minute=40,
    requests_per_minute=60,
    requests_last_minute=12,
)


def job_report(**changes: Any) -> JobReport:  # noqa: ANN401 - whatever fields there are
    return replace(_WAITING, **changes)


def component_report(**changes: Any) -> ComponentReport:  # noqa: ANN401 - whatever fields there are
    return replace(_COMPONENT, **changes)


def cluster_report(**changes: Any) -> ClusterReport:  # noqa: ANN401 - whatever fields there are
    return replace(_CLUSTER, **changes)


def keep_reports(directory: Path, reports: Iterable[JobReport]) -> None:
    """Leave a state directory as a service does that has ended after these jobs."""
    prepare_directory(directory)
    with Journal(directory / JOURNAL_NAME) as journal:
        journal.instance()
        for report in reports:
            journal.finished.keep(report.id, report.finished_at or 0.0, report.to_json())
        journal.leave_closing_note([])

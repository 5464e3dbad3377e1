# SPDX-License-Identifier: Apache-2.0
"""Reports of jobs, for tests of those who read them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from koala_adapter.outcome import JobState
from koala_adapter.report.values import JobReport

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


def job_report(**changes: Any) -> JobReport:  # noqa: ANN401 - whatever fields there are
    return replace(_WAITING, **changes)

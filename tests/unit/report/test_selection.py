# SPDX-License-Identifier: Apache-2.0
"""Which jobs a listing has."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from koala_adapter.api import protocol
from koala_adapter.outcome import EndReason, JobOutcome, JobState
from koala_adapter.report.selection import JobSelection, latest_of
from koala_adapter.report.values import ComponentReport, JobReport
from tests.unit.api.jobreports import job_report

PART = ComponentReport(
    name="main",
    command=("./simulate", "--Steps", "9"),
    cluster="alpha",
    processors=4,
    held=0,
    queued=0,
    lrm_ids=("4711",),
    hosts=("node7",),
    first_rank=0,
    waited=None,
)
OUTCOME = JobOutcome(state=JobState.LOST, reason=EndReason.NODE_LOST, exit_code=242, detail="node7 went away")
ENDED = job_report(
    id="12",
    name="train-3",
    state=JobState.LOST,
    submitted_at=100.0,
    finished_at=200.0,
    components=(PART,),
    outcome=OUTCOME,
    explanation="It is over.",
)
WAITS = job_report(id="13", name="evaluate", state=JobState.WAITING, user="other", submitted_at=150.0)


def chosen(**conditions: Any) -> list[str]:  # noqa: ANN401 - conditions of many types
    selection = JobSelection(**conditions)
    return [job.id for job in (ENDED, WAITS) if selection.takes(asdict(job))]


@pytest.mark.parametrize(
    ("conditions", "ids"),
    [
        ({}, ["12", "13"]),
        ({"since": 200.0}, ["12", "13"]),
        ({"since": 200.1}, ["13"]),
        ({"until": 150.0}, ["12", "13"]),
        ({"until": 149.9}, ["12"]),
        ({"until": 99.0}, []),
        ({"user": "other"}, ["13"]),
        ({"name": "train-*"}, ["12"]),
        ({"name": "Train-*"}, []),
        ({"name": "[a-f]*"}, ["13"]),
        ({"states": (JobState.WAITING, JobState.RUNNING)}, ["13"]),
        ({"cluster": "alpha"}, ["12"]),
        ({"failed": True}, ["12"]),
        ({"failed": True, "user": "other"}, []),
        ({"word": "NODE7 WENT"}, ["12"]),
        ({"word": "--steps 9"}, ["12"]),
        ({"word": "4711"}, ["12"]),
        ({"word": "Evaluate"}, ["13"]),
        ({"word": "components"}, []),
    ],
)
def test_all_conditions_must_hold(conditions: dict[str, Any], ids: list[str]) -> None:
    assert chosen(**conditions) == ids


def kept(*jobs: JobReport) -> list[str]:
    return [job.to_json() for job in jobs]


def test_the_latest_are_shown_in_order_of_submission() -> None:
    """Jobs that still are there come first into the choice, and a kept report of one of them does not count."""
    others = [job_report(id=str(number), finished_at=float(number)) for number in (9, 8, 7)]
    stale = job_report(id="13", name="stale", finished_at=10.0)
    found = latest_of([asdict(WAITS)], kept(stale, *others), JobSelection(), 3)
    assert [one["id"] for one in found] == ["8", "9", "13"]
    assert found[-1]["name"] == "evaluate"


def test_what_is_read_of_the_archive_ends_with_the_listing() -> None:
    """Of 100,000 reports no more are read than a listing of three needs."""
    read = 0

    def reports() -> Any:  # noqa: ANN401 - an iterator
        nonlocal read
        for text in kept(*(job_report(id=str(number), finished_at=1.0) for number in range(9, 0, -1))):
            read += 1
            yield text

    found = latest_of([], reports(), JobSelection(name="job"), 3)
    assert ([one["id"] for one in found], read) == (["7", "8", "9"], 3)


def test_the_selection_survives_the_wire() -> None:
    selection = JobSelection(since=1.0, states=(JobState.LOST,), word="ü")
    request = protocol.Request(operation="jobs", selection=selection)
    assert protocol.decode_request(protocol.encode(request)) == request
    assert "selection" not in json.loads(protocol.encode(protocol.Request(operation="jobs")))

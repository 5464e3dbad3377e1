# SPDX-License-Identifier: Apache-2.0
"""A job as a notebook shows it, and as it is shown elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koala_adapter.errors import JobNotFoundError
from koala_adapter.model import EndReason
from koala_adapter.outcome import JobOutcome, JobState
from koala_adapter.python.jobs import mimebundle, show_reports, text_of
from koala_adapter.report.values import ComponentReport
from tests.unit.api.jobreports import job_report

COMPONENT = ComponentReport(
    name="left",
    command=("true",),
    cluster="alpha",
    processors=8,
    held=3,
    queued=5,
    lrm_ids=(),
    hosts=("n1", "n2", "n3", "n4", "n5"),
    first_rank=0,
    waited=1.0,
)
WAITING = job_report(id="7", name="<pi>", components=(COMPONENT,), explanation="It waits for 5 & holds 3.")
LOST = JobOutcome(state=JobState.LOST, reason=EndReason.LOST, exit_code=242, detail="n1 went down")
ENDED = replace(WAITING, state=JobState.LOST, outcome=LOST, launched_at=1.0)


def test_a_job_is_a_table_in_a_notebook() -> None:
    """With what it holds, why it waits, and nothing of it taken for markup."""
    shown = mimebundle(WAITING)
    assert shown["text/plain"] == "job 7 claiming: left 3 of 8 on alpha"
    html = shown["text/html"]
    assert "&lt;pi&gt;" in html
    assert '<progress max="8" value="3"></progress> 3 of 8' in html
    assert "n1, n2, n3, n4 …" in html
    assert "It waits for 5 &amp; holds 3." in html
    assert "n1 went down" in mimebundle(ENDED)["text/html"]


def test_each_change_is_a_line_without_a_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, once, so that what the program prints stays its own."""
    assert show_reports([WAITING, WAITING, ENDED]) is ENDED
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "job 7 claiming: left 3 of 8 on alpha",
        "  It waits for 5 & holds 3.",
        "job 7 lost",
    ]


def test_a_job_that_has_lost_workers_does_not_look_whole() -> None:
    """What it holds while it runs is shown, and what it held when it has ended."""
    running = replace(WAITING, state=JobState.RUNNING, launched_at=1.0)
    assert 'value="3"></progress> 3 of 8' in mimebundle(running)["text/html"]
    assert 'value="8"></progress> 8 of 8' in mimebundle(replace(running, finished_at=2.0))["text/html"]


def test_output_of_a_component_that_is_not_there() -> None:
    """It is refused wherever output is asked for, in programs with and without an event loop."""
    with pytest.raises(JobNotFoundError, match="has no component 'no-such'; it has: left"):
        text_of(WAITING, "no-such")

# SPDX-License-Identifier: Apache-2.0
"""What is told of scenarios of negotiation: whether they went as published, who had what when, and how fast."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import pytest

from koala_adapter.errors import ServiceUnavailableError, SimulationError
from koala_adapter.model import EndReason, JobKind
from koala_adapter.outcome import JobOutcome, JobState
from koala_experiments.framework import (
    COUNTERED,
    DECLINING,
    MALLEABLE,
    SCENARIOS,
    Pace,
    Played,
    Said,
    Scenario,
    load_experiment,
)
from koala_experiments.negotiation import as_published, findings, timeline
from koala_experiments.stage import Places, Stage, application, played, rigid, steps_done
from tests.unit.api.jobreports import job_report

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.api.client import Client
    from koala_adapter.report.values import JobReport


def said(at: float, sender: str, status: str, processors: int) -> Said:
    """Return a message."""
    return Said(
        negotiation=1, at=at, sender=sender, status=f"NT_{status}", processors=processors, reason="", template="<NT/>"
    )


def output(*lines: tuple[object, ...]) -> bytes:
    """Return what the program prints."""
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


COMPUTED = output(
    (1001.0, "begins", 0, 2),
    (1001.5, "step", 1, 2),
    (1002.0, "step", 2, 2),
    (1002.1, "asks", 14, 6, "no more is free"),
    (1004.0, "step", 3, 2),
    (1004.5, "resized", 3, 8),
    (1005.0, "step", 4, 8),
    (1005.125, "step", 5, 8),
    (1005.25, "step", 6, 8),
)
DIALOGUE = (
    said(2.1, "application", "NEGOTIATION", 14),
    said(2.2, "koala", "NEGOTIATION", 6),
    said(2.3, "application", "ACCEPTED", 6),
    said(2.4, "koala", "COMMITTED", 6),
    said(4.6, "koala", "CONSUMED", 6),
)


def countered(scenario: Scenario = COUNTERED) -> Played:
    """Return the second scenario as it went."""
    return played(scenario, COMPUTED, begin=1000.0, end=1006.0, beside=[], messages=DIALOGUE)


def test_what_the_program_has_printed() -> None:
    """Sizes from when it computes on them, and steps per second without the step of the change."""
    one = countered()
    assert one.sizes == [(1.0, 2), (4.5, 8), (6.0, 0)]
    assert one.course == [2, 8]
    assert one.rate(2) == pytest.approx(1 / 1.25)
    assert one.rate(8) == pytest.approx(8.0)
    assert one.rate(4) is None
    assert steps_done(COMPUTED) == 6
    assert steps_done(COMPUTED[:-2]) == 5, "a line that is not whole does not count"


def test_a_scenario_goes_as_published() -> None:
    """Sizes and messages are the paper's, in their order."""
    one = countered()
    assert as_published(one)
    assert not as_published(replace(one, messages=DIALOGUE[:1]))
    assert not as_published(replace(one, sizes=[(1.0, 2), (6.0, 0)]))
    declining = replace(one, scenario=DECLINING)
    assert not as_published(declining)


def test_processors_that_come_free_one_after_the_other() -> None:
    """The offer of a part of them is no part of the scenario; nor would be another end of it."""
    whole = [("koala", "NEGOTIATION", 4), ("application", "ACCEPTED", 4), ("koala", "COMMITTED", 4)]
    messages = [replace(said(2.0, *one), negotiation=2) for one in whole]
    part = [said(1.0, "koala", "NEGOTIATION", 1), said(1.1, "application", "REJECTED", 0)]
    one = replace(countered(MALLEABLE), sizes=[(1.0, 4), (4.5, 8), (6.0, 0)], messages=[*part, *messages])
    assert as_published(one)
    assert not as_published(replace(one, messages=part))
    declined = [replace(said(3.0, *two), negotiation=3) for two in (whole[0], ("application", "REJECTED", 0))]
    assert not as_published(replace(one, messages=[*declined, *messages])), "all of them were declined"


def test_findings_need_all_rates() -> None:
    """Where an application was never seen on one of its sizes, nobody can tell whether it got faster."""
    told = findings([countered()])
    assert [one.holds for one in told] == [True, False]  # eight processors were ten times as fast as two
    assert "application negotiation 14; koala negotiation 6" in told[0].outcome
    slow = findings([replace(countered(), steps=[(1.5, 2)])])
    assert slow[-1].holds is None


def test_who_had_which_processor_when() -> None:
    """No processor is drawn twice at a time."""
    one = replace(countered(), beside=[(1, 0.5, 2.0)])
    figure = timeline(one)
    own, coming, others = figure.series
    assert list(zip(own.y, own.x, own.high, strict=True))[:2] == [(0, 1.0, 6.0), (1, 1.0, 6.0)]
    assert [(y, x, high) for y, x, high in zip(coming.y, coming.x, coming.high, strict=True)] == [
        (row, 2.4, 4.5) for row in range(2, 8)
    ]
    assert list(others.y) == [2]
    bars = [(y, x, h) for series in figure.series for y, x, h in zip(series.y, series.x, series.high, strict=True)]
    for row in range(8):
        spans = sorted((since, until) for y, since, until in bars if y == row)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_jobs_of_a_scenario(scenario: Scenario) -> None:
    """Eight processors are enough for all of it; the application is told what it is to do on its command line."""
    job = application(scenario, Pace(), user="u", anywhere=False)
    (component,) = job.components
    assert job.kind is JobKind.MALLEABLE
    assert component.minimum + sum(scenario.beside) <= 8
    assert component.command[2:] == (
        "30",
        "0.8",
        scenario.sizes,
        str(scenario.wish),
        str(scenario.goal),
        str(scenario.initial * 125),
    )
    assert rigid(3, 5.0, user="u", cluster="a").components[0].maximum == 3


def test_the_experiment_needs_somebody_to_play() -> None:
    """Only the command line can run real jobs."""
    chosen = load_experiment("negotiation")
    with pytest.raises(SimulationError, match="runs real jobs"):
        chosen.run(chosen.options())


def test_the_experiment_plays_all_scenarios() -> None:
    """In order, at the pace that is set."""
    chosen = load_experiment("negotiation")
    asked: list[tuple[str, int, str]] = []

    def play(scenario: Scenario, pace: Pace, site: str) -> Played:
        asked.append((scenario.name, pace.steps, site))
        return countered(scenario)

    result = chosen.run(chosen.options(settings={"steps": "12", "site": "x"}, negotiate=play))
    assert asked == [(one.name, 12, "x") for one in SCENARIOS]
    assert [one.name for one in result.listings] == [f"templates-{one.name}" for one in SCENARIOS]
    assert result.listings[0].text.startswith("2.100 s, application says:\n<NT/>")
    assert len(result.tables[0].rows) == 4 * len(DIALOGUE)


class Refusing:
    """In the place of a service that takes one job only; those that it is told to cancel are over at once."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self._taken: list[str] = []

    def submit(self, _job: object) -> str:
        """Take the first job."""
        if self._taken:
            raise ServiceUnavailableError("it has gone")
        self._taken.append("1")
        return "1"

    def cancel(self, job_id: str) -> None:
        """Take note."""
        self.cancelled.append(job_id)

    def job(self, job_id: str) -> JobReport:
        """Return the report of a job."""
        ended = JobOutcome(state=JobState.CANCELLED, reason=EndReason.CANCELLED, exit_code=243)
        return job_report(id=job_id, state=JobState.CANCELLED, outcome=ended)


def test_a_scenario_that_cannot_be_set_up_leaves_no_job(tmp_path: Path) -> None:
    """What was submitted before a submission fails is cancelled: on a site's clusters it would run for an hour."""
    client = Refusing()
    stage = Stage(cast("Client", client), tmp_path, Places(home="a", other="a"))
    scenario = next(one for one in SCENARIOS if len(one.beside) > 1)
    with pytest.raises(ServiceUnavailableError):
        stage.play(scenario, Pace(steps=6, work=0.1))
    assert client.cancelled == ["1"]

# SPDX-License-Identifier: Apache-2.0
"""The experiments koala-pra and koala-pwa: what is worked out of a run, the six figures, and refused settings."""

from __future__ import annotations

import pytest

from koala_adapter.errors import SimulationError
from koala_adapter.scheduler.parameters import Approach
from koala_experiments.framework import load_experiment
from koala_experiments.malleable import RIGID, Case, Conditions, conditions_of, mean_used, run_case, used_over_time

USED = [(0.0, 2, 0), (10.0, 6, 0), (15.0, 0, 0)]
"""2 processors for 10 s, then 6 for 5 s."""


def test_used_processors_are_averaged_over_time() -> None:
    """20 processor-seconds in the first 10 s, 30 in the next 10, nothing after; half of all in the middle."""
    assert used_over_time(USED, [10.0, 20.0, 30.0]) == [2.0, 3.0, 0.0]
    assert used_over_time(USED, [5.0, 12.5]) == [2.0, 25.0 / 7.5]
    assert mean_used(USED, 0.0, 20.0) == 2.5
    assert mean_used(USED, 5.0, 15.0) == 4.0


def test_a_record_of_rigid_jobs_is_known_beforehand() -> None:
    """Half FT (120 s) and half GADGET-2 (600 s) on 2 processors: 360 s on average, no messages, nobody waits."""
    record = run_case(Case(approach=Approach.PWA, malleability=RIGID, workload="W'm", seed=1))
    assert (record.average_processors, record.maximum_processors, record.messages) == (2.0, 2.0, 0)
    assert record.execution == pytest.approx(360.0)
    assert record.wait == pytest.approx(0.0)
    assert record.jobs == {}


def test_a_detailed_record_has_every_job_and_the_whole_time() -> None:
    """300 values of each kind; the timelines end with nothing used and with all messages."""
    case = Case(approach=Approach.PRA, malleability="egs", workload="Wm", seed=1, detailed=True)
    record = run_case(case)
    assert {len(values) for values in record.jobs.values()} == {300}
    assert record.used_over_time[-1] == 0.0
    assert record.messages_over_time[-1] == record.messages > 0


def test_the_experiment_gives_the_six_parts_of_the_figure() -> None:
    """Parts a to f, each with the four combinations, distributions up to 100 %; five claims are judged."""
    experiment = load_experiment("koala-pwa")
    result = experiment.run(experiment.options(seeds=1))
    assert [figure.name for figure in result.figures] == [f"figure-8{part}" for part in "abcdef"]
    for figure in result.figures:
        labels = [series.label for series in figure.series]
        assert labels == ["FPSMA/W'm", "FPSMA/W'mr", "EGS/W'm", "EGS/W'mr"]
        assert all(len(series.x) == len(series.y) for series in figure.series)
    for figure in result.figures[:4]:
        assert all(list(series.y) == sorted(series.y) and series.y[-1] == 100.0 for series in figure.series)
    assert len(result.findings) == 5
    assert all(finding.holds is not None for finding in result.findings)
    policies, conditions = result.tables
    assert len(policies.rows) == 12
    assert len(conditions.rows) == 20


def test_settings_become_conditions() -> None:
    """Each setting arrives where it belongs."""
    experiment = load_experiment("koala-pra")
    given = {"background": "0.5", "threshold": "4", "delay": "10", "cost": "5", "poll": "15"}
    found = conditions_of(experiment.options(settings=given))
    assert found == Conditions(background=0.5, threshold=4, delay=10.0, cost=5.0, poll=15.0)


@pytest.mark.parametrize(("name", "value"), [("background", "1.5"), ("cost", "-1"), ("poll", "soon"), ("delay", "nan")])
def test_settings_out_of_bounds_are_refused(name: str, value: str) -> None:
    """The refusal names the setting, what was found and what is allowed."""
    experiment = load_experiment("koala-pra")
    with pytest.raises(SimulationError, match=rf"setting {name}: found {value}, allowed is a number from 0 to"):
        conditions_of(experiment.options(settings={name: value}))

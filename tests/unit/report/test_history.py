# SPDX-License-Identifier: Apache-2.0
"""What reports of jobs tell of placeholders, and what is drawn of it."""

from __future__ import annotations

from typing import Any

import pytest

from koala_adapter.outcome import JobState
from koala_adapter.report.history import MOST_ROWS, Occupation, Period, history, lanes, occupations, within
from koala_adapter.report.values import ComponentReport, JobReport, SizeChangeReport
from tests.unit.api.jobreports import job_report


def component(name: str, cluster: str | None, processors: int, waited: float | None = 5.0) -> ComponentReport:
    return ComponentReport(
        name=name,
        command=("x",),
        cluster=cluster,
        processors=processors,
        held=0,
        queued=0 if waited is None else processors,
        lrm_ids=(),
        hosts=(),
        first_rank=0,
        waited=waited,
    )


def change(at: float, cluster: str, before: int, after: int, waited: float = 0.0) -> SizeChangeReport:
    return SizeChangeReport(at=at, component="w", cluster=cluster, before=before, after=after, reason="", waited=waited)


def ran(number: int, *components: ComponentReport, changes: tuple[SizeChangeReport, ...] = ()) -> JobReport:
    """Return the report of a job submitted at 80 that ran from 100 to 200."""
    return job_report(
        id=str(number),
        state=JobState.COMPLETED,
        submitted_at=80.0,
        launched_at=100.0,
        finished_at=200.0,
        reported_at=300.0,
        components=components,
        size_changes=changes,
    )


def times(found: list[Occupation]) -> list[tuple[str, float, float, float]]:
    return [(one.cluster, one.asked_at, one.begun_at, one.ended_at) for one in found]


def test_a_rigid_job_waits_and_is_used_on_each_cluster() -> None:
    """From when its placeholders were asked for; before it was submitted nothing can have been."""
    found = occupations([ran(1, component("x", "a", 2, 5.0), component("y", "b", 1, 50.0))])
    assert times(found) == [("b", 80.0, 100.0, 200.0), ("a", 95.0, 100.0, 200.0), ("a", 95.0, 100.0, 200.0)]
    assert (found[0].waited, found[0].used) == (20.0, 100.0)


def test_a_malleable_job_grows_and_shrinks() -> None:
    """Who came last goes first; what it grew by was waited for, too."""
    changes = (change(120.0, "a", 1, 3, waited=7.0), change(150.0, "a", 3, 2))
    found = occupations([ran(1, component("w", "a", 2), changes=changes)])
    assert times(found) == [("a", 95.0, 100.0, 200.0), ("a", 113.0, 120.0, 150.0), ("a", 113.0, 120.0, 200.0)]


def test_clusters_that_a_job_has_left_are_not_forgotten() -> None:
    """Though its latest report has no component there: whether it began there or came later."""
    changes = (change(120.0, "b", 0, 2), change(150.0, "b", 2, 0), change(160.0, "c", 1, 0))
    found = occupations([ran(1, component("w", "a", 1), changes=changes)])
    assert times(found) == [
        ("a", 95.0, 100.0, 200.0),
        ("c", 100.0, 100.0, 160.0),
        ("b", 120.0, 120.0, 150.0),
        ("b", 120.0, 120.0, 150.0),
    ]


def test_who_waits_has_only_waited() -> None:
    """Until now; a component without a cluster has nothing."""
    waiting = job_report(
        submitted_at=10.0, reported_at=50.0, components=(component("x", "a", 2), component("y", None, 1))
    )
    assert times(occupations([waiting])) == [("a", 45.0, 50.0, 50.0)] * 2


def test_what_is_over_is_left_out_and_the_rest_cut_off() -> None:
    found = occupations([ran(1, component("x", "a", 1))])
    assert times(within(found, 150.0)) == [("a", 150.0, 150.0, 200.0)]
    assert within(found, 200.0) == []


def test_no_two_share_a_row_at_a_time() -> None:
    """And rows are used again."""
    found = occupations([ran(1, component("x", "a", 2)), ran(2, component("x", "a", 1))])
    assert sorted(lanes(found)) == [0, 1, 2]
    later = Occupation(job_id="3", component="x", cluster="a", asked_at=200.0, begun_at=210.0, ended_at=220.0)
    assert lanes([*found, later])[-1] == 0


def figure(name: str, *reports: JobReport) -> Any:  # noqa: ANN401 - of the simulator
    return next(one for one in history(reports, since=None, now=300.0).figures if one.name == name)


def test_the_chart_has_a_bar_for_each_time() -> None:
    """One for the wait, one for the use, in the row of the placeholder, below the name of its cluster."""
    chart = figure("placeholders", ran(1, component("x", "a", 1), component("y", "b", 2)))
    assert list(chart.categories) == ["a", "b", ""]
    bars = {one.label: sorted(zip(one.y, one.x, one.high, strict=True)) for one in chart.series}
    assert bars == {
        "waits": [(row, 0.0, 5.0) for row in (0.0, 1.0, 2.0)],
        "job 1": [(row, 5.0, 105.0) for row in (0.0, 1.0, 2.0)],
    }
    assert (chart.x_label, chart.x_range) == ("seconds since 1970-01-01 00:01:35", (0.0, 105.0))


def test_processors_in_use_are_counted() -> None:
    steps = figure("in-use", ran(1, component("x", "a", 2)), ran(2, component("x", "a", 1)))
    (series,) = steps.series
    assert list(zip(series.x, series.y, strict=True)) == [(0.0, 0.0), (5.0, 3.0), (105.0, 0.0)]


def test_many_jobs_and_placeholders_still_make_a_picture() -> None:
    """Jobs beyond the first have one colour; placeholders of a component that cannot be told apart are one bar."""
    chart = figure("placeholders", *(ran(number, component("x", "a", 100)) for number in range(1, 31)))
    assert len(chart.categories) == 30 <= MOST_ROWS
    assert [one.label for one in chart.series] == [
        "waits",
        *(f"job {n}" for n in (1, 10, 11, 12, 13, 14)),
        "other jobs",
    ]


def test_nothing_is_no_picture() -> None:
    result = history([], since=0.0, now=10.0)
    assert (list(result.figures), [table.rows for table in result.tables]) == ([], [[], []])


def test_tables_sum_up() -> None:
    """Processor hours by cluster and by job."""
    clusters, jobs = history([ran(7, component("x", "a", 36))], since=None, now=300.0).tables
    assert clusters.rows == [("a", 36, 5.0, 5.0, 1.0)]
    assert jobs.rows == [("7", "job", "completed", 36, 20.0, 100.0, 1.0, None)]


@pytest.mark.parametrize(
    ("length", "unit"), [(10.0, "seconds"), (600.0, "minutes"), (86_400.0, "hours"), (864_000.0, "days")]
)
def test_the_axis_has_a_unit_that_one_can_read(length: float, unit: str) -> None:
    """By the length of the time."""
    assert Period(begin=0.0, end=length).unit[1] == unit


def test_who_had_left_before_the_end_is_not_counted_until_it() -> None:
    """Though the report tells what a job had when it had most, where nothing was left of it."""
    changes = (change(120.0, "a", 1, 2), change(150.0, "a", 2, 1), change(160.0, "a", 1, 0))
    found = occupations([ran(1, component("w", "a", 2), changes=changes)])
    assert times(found) == [("a", 95.0, 100.0, 160.0), ("a", 120.0, 120.0, 150.0)]

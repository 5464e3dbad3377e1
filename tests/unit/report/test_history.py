# SPDX-License-Identifier: Apache-2.0
"""When jobs waited for processors and used them, as their reports tell."""

from __future__ import annotations

from datetime import UTC

from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.outcome import JobState
from koala_adapter.report.history import Occupation, awaited, cluster_table, job_table, lanes, occupations, used
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
    """Return cluster and times of each placeholder."""
    return [(one.cluster, one.asked_at, one.begun_at, one.ended_at) for one in found for _ in range(one.processors)]


def test_a_rigid_job_waits_and_is_used_on_each_cluster() -> None:
    """From when its placeholders were asked for; before it was submitted nothing can have been."""
    found = occupations([ran(1, component("x", "a", 2, 5.0), component("y", "b", 1, 50.0))])
    assert times(found) == [("b", 80.0, 100.0, 200.0), ("a", 95.0, 100.0, 200.0), ("a", 95.0, 100.0, 200.0)]
    assert (found[0].waited, found[1].used) == (20.0, 200.0)


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
    reports = [ran(1, component("x", "a", 1))]
    assert times(occupations(reports, 150.0)) == [("a", 150.0, 150.0, 200.0)]
    assert occupations(reports, 200.0) == []


SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20), st.integers(1, 5)), min_size=1, max_size=20)


@given(SPANS)
def test_no_two_share_a_row_at_a_time(spans: list[tuple[int, int, int]]) -> None:
    """All processors of each are drawn, and no more rows are taken than processors are used at a time."""
    found = [
        Occupation(
            job_id=str(number), component="x", cluster="a", processors=count, asked_at=0.0, begun_at=float(begin),
            ended_at=float(begin + length),
        )
        for number, (begin, length, count) in enumerate(spans)
    ]  # fmt: skip
    cells = [
        (row, at)
        for one, first, count in lanes(found)
        for row in range(first, first + count)
        for at in range(int(one.begun_at), int(one.ended_at))
    ]
    assert len(set(cells)) == len(cells) == sum(length * count for _, length, count in spans)
    assert max(row for row, _ in cells) + 1 == max(level for _, level in used(found))


def test_processors_are_counted_over_time() -> None:
    """Those in use, and those that are waited for."""
    found = occupations([ran(1, component("x", "a", 2)), ran(2, component("x", "a", 1))])
    assert used(found) == [(100.0, 3), (200.0, 0)]
    assert awaited(found) == [(95.0, 3), (100.0, 0)]


def test_tables_sum_up() -> None:
    """Processor hours by cluster and by job."""
    reports = [ran(7, component("x", "a", 36))]
    found = occupations(reports)
    assert cluster_table(found).rows == [("a", 36, 5.0, 5.0, 1.0)]
    assert job_table(reports, found, UTC).rows == [
        (
            *("7", "job", "completed", 36, 20.0, 100.0, 1.0, None, None, None),
            *("1970-01-01 00:01:20", "1970-01-01 00:01:40", "1970-01-01 00:03:20", ""),
        )
    ]


def test_who_had_left_before_the_end_is_not_counted_until_it() -> None:
    """Though the report tells what a job had when it had most, where nothing was left of it."""
    changes = (change(120.0, "a", 1, 2), change(150.0, "a", 2, 1), change(160.0, "a", 1, 0))
    found = occupations([ran(1, component("w", "a", 2), changes=changes)])
    assert times(found) == [("a", 95.0, 100.0, 160.0), ("a", 120.0, 120.0, 150.0)]

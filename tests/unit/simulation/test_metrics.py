# SPDX-License-Identifier: Apache-2.0
"""Measures of a schedule: by hand, by definition, and by Little's law."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.queueing.backfill import POLICIES
from koala_adapter.simulation import metrics
from koala_adapter.simulation.metrics import Steps, job_metrics, percentiles, summarized
from koala_adapter.simulation.replay import Policy, Site, replay
from tests.unit.simulation.workloads import PROCESSORS, any_workload, make

if TYPE_CHECKING:
    from koala_adapter.simulation.metrics import JobMetrics
    from koala_adapter.simulation.workload import Workload


def measured(work: Workload, policy: str = "easy", processors: int = PROCESSORS) -> JobMetrics:
    """Return the measures of the jobs on one cluster."""
    return job_metrics(replay(work, Policy(name=policy), [Site(name="here", processors=processors)]))


def test_a_schedule_by_hand() -> None:
    """Two jobs one after the other on all processors, and a gap: every total is known."""
    jobs = measured(make((0, 4, 20), (5, 4, 5), (40, 2, 20), processors=4), "fcfs", 4)
    assert jobs.waits == [0, 15, 0]
    assert jobs.ends == [20, 25, 60]
    assert jobs.slowdowns == [1, 4, 1]
    assert jobs.bounded_slowdowns == [1, 2, 1]
    total = summarized(jobs, 4)
    assert (total.jobs, total.mean_wait, total.mean_run, total.mean_response) == (3, 5, 15, 20)
    assert total.mean_slowdown == 2
    assert total.mean_bounded_slowdown == pytest.approx(4 / 3)
    assert total.makespan == 60
    assert total.utilization == pytest.approx((80 + 20 + 40) / 240)
    assert total.largest_queue == 1
    assert total.mean_queue == pytest.approx(15 / 60)
    assert total.percentiles["wait"] == {"p50": 0, "p90": 15, "p95": 15, "p99": 15, "p100": 15}


def test_the_bounded_slowdown_is_never_below_one() -> None:
    """A job of 2 s that waits 1 s is short enough not to count as slowed down."""
    assert measured(make((0, 4, 1), (0, 4, 2), processors=4), "fcfs", 4).bounded_slowdowns == [1, 1]


def test_the_makespan_begins_with_the_first_submission() -> None:
    """A trace that begins late is not idle before."""
    total = summarized(measured(make((1000, 4, 10), processors=4), "easy", 4), 4)
    assert (total.makespan, total.utilization) == (10, 1)


def test_nothing_has_totals_too() -> None:
    """No job at all gives zeros and no error."""
    total = summarized(measured(make()), 4)
    assert (total.jobs, total.mean_wait, total.makespan, total.utilization, total.mean_queue) == (0, 0, 0, 0, 0)
    assert total.percentiles["wait"]["p99"] == 0


@pytest.mark.parametrize("policy", POLICIES)
@given(work=any_workload)
def test_littles_law(policy: str, work: Workload) -> None:
    """Jobs waiting on average are the rate of submissions times the mean wait, under every policy."""
    total = summarized(measured(work, policy), PROCESSORS)
    rate = len(work) / total.makespan
    assert total.mean_queue == pytest.approx(rate * total.mean_wait)


@given(work=any_workload)
def test_identities(work: Workload) -> None:
    """Response is wait plus run for each job and on average; utilization is the mean of what is in use."""
    jobs = measured(work)
    total = summarized(jobs, PROCESSORS)
    assert total.mean_response == pytest.approx(total.mean_wait + total.mean_run)
    assert all(one >= bounded >= 1 for one, bounded in zip(jobs.slowdowns, jobs.bounded_slowdowns, strict=True))
    used = metrics.used_processors(jobs).mean(min(jobs.submits), max(jobs.ends))
    assert total.utilization == pytest.approx(used / PROCESSORS)


@given(values=st.lists(st.integers(0, 1000), min_size=1, max_size=200))
def test_percentiles_by_definition(values: list[int]) -> None:
    """At least so many percent do not exceed it, and fewer do not exceed the next smaller value."""
    for name, value in percentiles(values).items():
        rank = int(name[1:])
        assert value in values
        assert 100 * sum(one <= value for one in values) >= rank * len(values)
        assert 100 * sum(one < value for one in values) < rank * len(values)


def test_means_over_parts_of_a_time() -> None:
    """Each part has the mean of what holds in it, also before the first and after the last change."""
    curve = Steps(times=[1, 3, 6], values=[2, 5, 1])
    assert curve.binned(0, 8, 4) == [1, 3.5, 5, 1]
    assert curve.binned(4, 5, 2) == [5, 5]
    assert curve.mean(0, 6) == pytest.approx(19 / 6)
    assert curve.binned(5, 5, 3) == [0, 0, 0]


@given(
    times=st.lists(st.floats(0, 100), min_size=1, max_size=20, unique=True).map(sorted),
    values=st.lists(st.integers(0, 9), min_size=20, max_size=20),
    bins=st.integers(1, 37),
)
def test_parts_add_up(times: list[float], values: list[int], bins: int) -> None:
    """However finely a time is divided, the means add up to the whole."""
    curve = Steps(times=times, values=values[: len(times)])
    whole = curve.mean(0.3, 97.1)
    assert sum(curve.binned(0.3, 97.1, bins)) / bins == pytest.approx(whole)


def test_changes_add_up_to_steps() -> None:
    """Changes of one instant are one step, or none when they cancel out."""
    assert metrics.steps([(5, 2), (1, 3), (5, -1), (2, 4), (2, -4)]) == Steps(times=[1, 5], values=[3, 4])


def test_the_distribution_counts_equal_values_once() -> None:
    """Each value has the percentage of all that do not exceed it."""
    assert metrics.cumulative([5, 1, 1, 9]) == ([1, 5, 9], [50, 75, 100])

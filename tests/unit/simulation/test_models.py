# SPDX-License-Identifier: Apache-2.0
"""Models of workloads and applications, metrics of runs, and runs beside each other."""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from itertools import pairwise
from math import exp, log
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import SimulationError
from koala_adapter.queueing.backfill import POLICIES
from koala_adapter.simulation import metrics
from koala_adapter.simulation import models as lublin
from koala_adapter.simulation.applications import Application, Interpolated, ft, gadget2
from koala_adapter.simulation.metrics import JobMetrics, Steps, job_metrics, percentiles, summarized
from koala_adapter.simulation.models import (
    ALL_JOBS,
    BATCH,
    DAS2_FS3,
    DAS2_FS4,
    INTERACTIVE,
    MODELS,
    Arrivals,
    PublishedFigures,
    daily_cycle,
    gamma_cdf,
    make_model,
)
from koala_adapter.simulation.parallel import ProgressBoard, in_parallel, watched
from koala_adapter.simulation.replay import Policy, Site, replay
from koala_adapter.simulation.workload import Workload
from koala_experiments.framework import Options
from tests.unit.simulation.parallelwork import count, die, refuse, square
from tests.unit.simulation.workloads import PROCESSORS, any_workload, make

# -- Workload models have the statistics that were published of them, and only their seed changes them.


JOBS = 20_000
HALF_DAY = 43_200
DAY = 86_400


def test_sizes_are_those_of_the_paper() -> None:
    """24.4 % of the jobs are serial, 57.6 % have a size rounded to a power of two, none exceeds the machine."""
    sizes = lublin.lublin(JOBS, 1).sizes
    assert sum(size == 1 for size in sizes) / JOBS == pytest.approx(0.244, abs=0.01)
    power = sum(size > 1 and size & (size - 1) == 0 for size in sizes) / JOBS
    assert 0.576 <= power <= 0.65  # some of the sizes that are not rounded are powers of two by chance
    assert max(sizes) == 128
    # The second stage begins 2.5 binary orders of magnitude below the machine, and has 14 % of the parallel jobs.
    large = sum(size > 2**4.5 for size in sizes) / sum(size > 1 for size in sizes)
    assert large == pytest.approx(0.14, abs=0.03)


@pytest.mark.parametrize("processors", [1, 2, 3, 100, 1000])
def test_sizes_fit_any_machine(processors: int) -> None:
    sizes = lublin.lublin(3000, 1, processors=processors).sizes
    assert (min(sizes), max(sizes)) == (1, processors)


def test_run_times_are_those_of_the_paper() -> None:
    chance = random.Random(5)
    for size in (1, 100):
        share = ALL_JOBS.pa * size + ALL_JOBS.pb
        expected = share * ALL_JOBS.a1 * ALL_JOBS.b1 + (1 - share) * ALL_JOBS.a2 * ALL_JOBS.b2
        runs = [lublin.run_time(ALL_JOBS, size, chance) for _ in range(JOBS)]
        assert fmean(log(run + 0.5) for run in runs) == pytest.approx(expected, rel=0.03)
        assert 1 <= min(runs) <= max(runs) <= exp(12)


def test_gaps_and_the_daily_cycle_are_those_of_the_paper() -> None:
    arrivals = Arrivals(ALL_JOBS, random.Random(3))
    times = [arrivals.next() for _ in range(50_000)]
    assert times == sorted(times)
    shape, scale = ALL_JOBS.aarr * ALL_JOBS.arar, ALL_JOBS.barr
    chance = random.Random(9)
    drawn = [value for value in (chance.gammavariate(shape, scale) for _ in range(200_000)) if value <= 13]
    assert times[-1] / len(times) == pytest.approx(fmean(exp(value) for value in drawn), rel=0.05)
    hours = [0] * 24
    for moment in times:
        hours[int(moment % DAY // 3600)] += 1
    cycle = daily_cycle(ALL_JOBS)
    for hour, jobs in enumerate(hours):
        assert jobs / len(times) == pytest.approx((cycle[2 * hour] + cycle[2 * hour + 1]) / 48, abs=0.01)
    assert max(range(24), key=hours.__getitem__) in range(11, 17)
    assert min(range(24), key=hours.__getitem__) in range(2, 7)


def test_stretched_gaps_keep_the_daily_cycle() -> None:
    arrivals = Arrivals(ALL_JOBS, random.Random(3), stretch=0.5)
    times = [arrivals.next() for _ in range(20_000)]
    assert times[-1] / len(times) == pytest.approx(911 / 2, rel=0.1)
    noon = sum(abs(time % DAY - HALF_DAY) < 4 * 3600 for time in times) / len(times)
    assert noon > 0.5


def test_kinds_are_mixed_by_their_submissions() -> None:
    work = lublin.lublin(JOBS, 2, kinds=(BATCH, INTERACTIVE))
    assert list(work.submits) == sorted(work.submits)
    serial = sum(size == 1 for size in work.sizes) / JOBS
    assert INTERACTIVE.serial < serial < BATCH.serial


@pytest.mark.parametrize(("shape", "scale"), [(1.0, 5.0), (8.1737, 3.9631), (0.5, 2.0)])
def test_the_gamma_distribution_against_samples(shape: float, scale: float) -> None:
    chance = random.Random(11)
    sample = [chance.gammavariate(shape, scale) for _ in range(20_000)]
    for x in (0.5 * shape * scale, shape * scale, 2 * shape * scale):
        share = sum(value <= x for value in sample) / len(sample)
        assert gamma_cdf(x, shape, scale) == pytest.approx(share, abs=0.015)
    assert gamma_cdf(0, shape, scale) == 0
    assert gamma_cdf(1000 * shape * scale, shape, scale) == pytest.approx(1)


@pytest.mark.parametrize(("name", "figures"), [("das2-fs3", DAS2_FS3), ("das2-fs4", DAS2_FS4)])
def test_stand_ins_have_the_published_figures(name: str, figures: PublishedFigures) -> None:
    work = make_model(name, seed=1)
    assert (len(work), work.processors) == (figures.jobs, 64)
    assert fmean(work.runs) == pytest.approx(figures.mean_run, rel=0.06)
    assert sum(run < 1000 for run in work.runs) / len(work) == pytest.approx(figures.short, abs=0.006)
    assert work.submits[-1] == pytest.approx(365 * DAY, rel=0.001)
    assert work.submits == sorted(work.submits)


@given(mean=st.floats(300, 20_000), short=st.floats(0.1, 0.95))
def test_the_longest_run_gives_the_mean(mean: float, short: float) -> None:
    """The two pieces of the distribution have the published mean, wherever one with this shape can."""
    below = 999 / log(1000)
    if (mean - short * below) / (1 - short) <= 1001:
        return
    longest = PublishedFigures(jobs=1, processors=1, mean_run=mean, short=short).longest_run()
    above = (longest - 1000) / log(longest / 1000)
    assert short * below + (1 - short) * above == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_only_the_seed_changes_a_workload(name: str) -> None:
    one, again, other = (make_model(f"model:{name}", jobs=200, seed=seed) for seed in (7, 7, 8))
    assert one == again
    assert one.submits != other.submits
    assert one.runs != other.runs
    assert len(one) == 200
    assert all(run >= 1 for run in one.runs)


def test_a_model_without_jobs_is_refused() -> None:
    with pytest.raises(SimulationError, match="0 jobs"):
        make_model("lublin", jobs=0)


# -- Application models against numbers computed by hand, and progress of a job whose size changes.


@pytest.mark.parametrize(
    ("application", "times"),
    [(ft(), {2: 120.0, 8: 120.0 / 2**0.5, 32: 60.0}), (gadget2(), {2: 600.0, 46: 240.0})],
)
def test_stated_points_of_the_paper(application: Application, times: dict[int, float]) -> None:
    """FT and GADGET-2 take the times that the paper states; half-way, in doublings, is the geometric mean."""
    table = application.times()
    assert len(table) == application.maximum + 1
    for size, seconds in times.items():
        assert table[size] == pytest.approx(seconds)
    assert all(after < before for before, after in pairwise(table))


def test_interpolation_outside_its_points() -> None:
    curve = Interpolated(((2, 100.0), (4, 50.0), (16, 25.0)))
    assert curve.execution_time(1) == pytest.approx(200.0)
    assert curve.execution_time(4) == pytest.approx(50.0)
    assert curve.execution_time(8) == pytest.approx(50.0 / 2**0.5)
    assert curve.execution_time(100) == 25.0


@pytest.mark.parametrize("points", [((2, 100.0),), ((4, 1.0), (2, 2.0)), ((2, 1.0), (2, 2.0)), ((1, 2.0), (2, 0.0))])
def test_points_that_are_no_curve(points: tuple[tuple[int, float], ...]) -> None:
    """One point, points out of order, two times at one size, and no time at all are refused."""
    with pytest.raises(ValueError, match="no curve"):
        Interpolated(points)


def test_ft_takes_powers_of_two() -> None:
    """FT answers an offer with the highest power of two it can reach, and its release leaves one; GADGET-2 any."""
    assert [ft().answer(2, offered) for offered in (1, 2, 5, 6, 100)] == [0, 2, 2, 6, 30]
    assert [ft().answer(8, -requested) for requested in (1, 4, 5, 7)] == [-4, -4, -6, -6]
    assert gadget2().answer(2, 5) == 5
    assert gadget2().answer(40, 10) == 6
    assert gadget2().answer(4, -7) == -2


# -- Measures of a schedule: by hand, by definition, and by Little's law.


def measured(work: Workload, policy: str = "easy", processors: int = PROCESSORS) -> JobMetrics:
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


def test_the_makespan_begins_with_the_first_submission() -> None:
    total = summarized(measured(make((1000, 4, 10), processors=4), "easy", 4), 4)
    assert (total.makespan, total.utilization) == (10, 1)


def test_nothing_has_totals_too() -> None:
    total = summarized(measured(make()), 4)
    assert (total.jobs, total.mean_wait, total.makespan, total.utilization, total.mean_queue) == (0, 0, 0, 0, 0)
    assert total.percentiles["wait"]["p99"] == 0


@pytest.mark.parametrize("policy", POLICIES)
@given(work=any_workload)
def test_littles_law(policy: str, work: Workload) -> None:
    total = summarized(measured(work, policy), PROCESSORS)
    rate = len(work) / total.makespan
    assert total.mean_queue == pytest.approx(rate * total.mean_wait)


@given(work=any_workload)
def test_identities(work: Workload) -> None:
    jobs = measured(work)
    total = summarized(jobs, PROCESSORS)
    assert total.mean_response == pytest.approx(total.mean_wait + total.mean_run)
    assert all(one >= bounded >= 1 for one, bounded in zip(jobs.slowdowns, jobs.bounded_slowdowns, strict=True))
    used = metrics.used_processors(jobs).mean(min(jobs.submits), max(jobs.ends))
    assert total.utilization == pytest.approx(used / PROCESSORS)


@given(values=st.lists(st.integers(0, 1000), min_size=1, max_size=200))
def test_percentiles_by_definition(values: list[int]) -> None:
    for name, value in percentiles(values).items():
        rank = int(name[1:])
        assert value in values
        assert 100 * sum(one <= value for one in values) >= rank * len(values)
        assert 100 * sum(one < value for one in values) < rank * len(values)


def test_means_over_parts_of_a_time() -> None:
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
    curve = Steps(times=times, values=values[: len(times)])
    whole = curve.mean(0.3, 97.1)
    assert sum(curve.binned(0.3, 97.1, bins)) / bins == pytest.approx(whole)


def test_changes_add_up_to_steps() -> None:
    assert metrics.steps([(5, 2), (1, 3), (5, -1), (2, 4), (2, -4)]) == Steps(times=[1, 5], values=[3, 4])


def test_the_distribution_counts_equal_values_once() -> None:
    assert metrics.cumulative([5, 1, 1, 9]) == ([1, 5, 9], [50, 75, 100])


# -- Simulations on several processes: the same results as on one, and no process left behind.


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_order_of_the_items(processes: int) -> None:
    told: list[tuple[int, int]] = []
    options = Options(processes=processes, progress=lambda done, total, _what: told.append((done, total)))
    assert options.map(square, range(6)) == [0, 1, 4, 9, 16, 25]
    assert told == [(done, 6) for done in range(7)]


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_in_a_process_arrives_whole(processes: int) -> None:
    with pytest.raises(SimulationError, match="not 1") as caught:
        list(in_parallel(refuse, [0, 1, 2], processes))
    assert caught.value.hint == "another"
    assert multiprocessing.active_children() == []


def test_a_process_that_dies_is_told_of() -> None:
    with pytest.raises(SimulationError, match="ended before its time"):
        list(in_parallel(die, [3, 4], 2))
    assert multiprocessing.active_children() == []


def test_an_abandoned_run_leaves_no_process() -> None:
    runs = in_parallel(square, range(50), 2)
    next(runs)
    runs.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 20
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("processes", [1, 2])
def test_runs_tell_how_far_they_are(processes: int) -> None:
    seen: list[list[tuple[int, int]]] = []
    results = dict(watched(count, [40, 90], processes, lambda board: seen.append(board.progress)))
    assert results == {0: (40, True), 1: (90, True)}
    assert seen
    assert all(done <= total for board in seen for done, total in board if total)


def test_an_interrupt_returns_what_there_is() -> None:
    interrupted = False

    def interrupt(board: ProgressBoard) -> None:
        nonlocal interrupted
        if not interrupted and min(done for done, _ in board.progress[:2]) > 0:
            interrupted = True
            signal.raise_signal(signal.SIGINT)

    results = dict(watched(count, [60_000, 60_000, 5], 2, interrupt))
    assert interrupted
    assert sorted(results)[:2] == [0, 1]
    assert all(0 < done < 60_000 and not whole for done, whole in (results[0], results[1]))
    assert multiprocessing.active_children() == []

# SPDX-License-Identifier: Apache-2.0
"""Workload models have the statistics that were published of them, and only their seed changes them."""

from __future__ import annotations

import random
from math import exp, log
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import SimulationError
from koala_adapter.simulation import models as lublin
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
    """For a machine that is no power of two, or tiny, sizes stay within it and reach it."""
    sizes = lublin.lublin(3000, 1, processors=processors).sizes
    assert (min(sizes), max(sizes)) == (1, processors)


def test_run_times_are_those_of_the_paper() -> None:
    """For serial jobs the logarithm of the run time has the mean of the two gamma distributions, mixed as stated."""
    chance = random.Random(5)
    for size in (1, 100):
        share = ALL_JOBS.pa * size + ALL_JOBS.pb
        expected = share * ALL_JOBS.a1 * ALL_JOBS.b1 + (1 - share) * ALL_JOBS.a2 * ALL_JOBS.b2
        runs = [lublin.run_time(ALL_JOBS, size, chance) for _ in range(JOBS)]
        assert fmean(log(run + 0.5) for run in runs) == pytest.approx(expected, rel=0.03)
        assert 1 <= min(runs) <= max(runs) <= exp(12)


def test_larger_jobs_run_longer() -> None:
    """The paper's correlation: the share of the longer distribution grows with the size."""
    chance = random.Random(5)
    small, large = ([lublin.run_time(ALL_JOBS, size, chance) for _ in range(5000)] for size in (1, 128))
    assert fmean(large) > 2 * fmean(small)


def test_gaps_and_the_daily_cycle_are_those_of_the_paper() -> None:
    """In the long run the gap is the mean of the distribution's exponential; most jobs come around noon."""
    arrivals = Arrivals(ALL_JOBS, random.Random(3))
    times = [arrivals.next() for _ in range(50_000)]
    assert times == sorted(times)
    shape, scale = ALL_JOBS.aarr * ALL_JOBS.arar, ALL_JOBS.barr
    chance = random.Random(9)
    drawn = [value for value in (chance.gammavariate(shape, scale) for _ in range(200_000)) if value <= 13]
    assert times[-1] / len(times) == pytest.approx(fmean(exp(value) for value in drawn), rel=0.05)
    hours = [0] * 24
    for time in times:
        hours[int(time % DAY // 3600)] += 1
    cycle = daily_cycle(ALL_JOBS)
    for hour, count in enumerate(hours):
        assert count / len(times) == pytest.approx((cycle[2 * hour] + cycle[2 * hour + 1]) / 48, abs=0.01)
    assert max(range(24), key=hours.__getitem__) in range(11, 17)
    assert min(range(24), key=hours.__getitem__) in range(2, 7)


def test_stretched_gaps_keep_the_daily_cycle() -> None:
    """Jobs that come twice as often still come around noon."""
    arrivals = Arrivals(ALL_JOBS, random.Random(3), stretch=0.5)
    times = [arrivals.next() for _ in range(20_000)]
    assert times[-1] / len(times) == pytest.approx(911 / 2, rel=0.1)
    noon = sum(abs(time % DAY - HALF_DAY) < 4 * 3600 for time in times) / len(times)
    assert noon > 0.5


def test_kinds_are_mixed_by_their_submissions() -> None:
    """Batch and interactive jobs together have sizes of both, in order of submission."""
    work = lublin.lublin(JOBS, 2, kinds=(BATCH, INTERACTIVE))
    assert list(work.submits) == sorted(work.submits)
    serial = sum(size == 1 for size in work.sizes) / JOBS
    assert INTERACTIVE.serial < serial < BATCH.serial


@pytest.mark.parametrize(("shape", "scale"), [(1.0, 5.0), (8.1737, 3.9631), (0.5, 2.0)])
def test_the_gamma_distribution_against_samples(shape: float, scale: float) -> None:
    """The distribution function is the share of variates that do not exceed a value."""
    chance = random.Random(11)
    sample = [chance.gammavariate(shape, scale) for _ in range(20_000)]
    for x in (0.5 * shape * scale, shape * scale, 2 * shape * scale):
        share = sum(value <= x for value in sample) / len(sample)
        assert gamma_cdf(x, shape, scale) == pytest.approx(share, abs=0.015)
    assert gamma_cdf(0, shape, scale) == 0
    assert gamma_cdf(1000 * shape * scale, shape, scale) == pytest.approx(1)


@pytest.mark.parametrize(("name", "figures"), [("das2-fs3", DAS2_FS3), ("das2-fs4", DAS2_FS4)])
def test_stand_ins_have_the_published_figures(name: str, figures: PublishedFigures) -> None:
    """Number of jobs, mean run time, share of short jobs and time span are those of the trace."""
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
    """The same seed gives the same jobs, another one others; the number of jobs is what was asked for."""
    one, again, other = (make_model(f"model:{name}", jobs=200, seed=seed) for seed in (7, 7, 8))
    assert one == again
    assert one.submits != other.submits
    assert one.runs != other.runs
    assert len(one) == 200
    assert all(run >= 1 for run in one.runs)


def test_what_is_no_model_is_refused() -> None:
    """An unknown name is answered with those there are, and so is an impossible number of jobs."""
    with pytest.raises(SimulationError, match="model:lublin"):
        make_model("model:lublim")
    with pytest.raises(SimulationError, match="0 jobs"):
        make_model("lublin", jobs=0)

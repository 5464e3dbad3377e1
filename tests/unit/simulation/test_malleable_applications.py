# SPDX-License-Identifier: Apache-2.0
"""Application models against numbers computed by hand, and progress of a job whose size changes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.simulation.application_models import (
    Amdahl,
    Application,
    Downey,
    Interpolated,
    Progress,
    ReconfigurationCost,
    ft,
    gadget2,
)


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
    """Below the first point the first line goes on; above the last more processors change nothing."""
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


def test_amdahl() -> None:
    """A tenth serial: 100 s on one, 55 s on two, 19 s on ten."""
    model = Amdahl(100.0, 0.1)
    assert [model.execution_time(n) for n in (1, 2, 10)] == pytest.approx([100.0, 55.0, 19.0])
    assert model.speed_up(10) == pytest.approx(100.0 / 19.0)


@pytest.mark.parametrize(
    ("average", "sigma", "processors", "speed_up"),
    [
        (10, 0.0, 10, 10.0),
        (10, 0.0, 15, 10.0),
        (10, 0.5, 1, 1.0),
        (10, 0.5, 5, 50 / 11),
        (10, 0.5, 10, 100 / 12.25),
        (10, 0.5, 15, 150 / 16),
        (10, 0.5, 19, 190 / 19),
        (10, 0.5, 50, 10.0),
        (10, 2.0, 1, 1.0),
        (10, 2.0, 10, 300 / 48),
        (10, 2.0, 28, 840 / 84),
        (10, 2.0, 100, 10.0),
    ],
)
def test_downey(average: float, sigma: float, processors: int, speed_up: float) -> None:
    """Both variance models, in every range, by hand."""
    model = Downey(100.0, average, sigma)
    assert model.speed_up(processors) == pytest.approx(speed_up)
    assert model.execution_time(processors) == pytest.approx(100.0 / speed_up)


@given(average=st.floats(1, 100), sigma=st.floats(0, 4), processors=st.integers(1, 300))
def test_downey_is_a_speed_up(average: float, sigma: float, processors: int) -> None:
    """More processors never slow it down, and it is never faster than its average parallelism or its processors."""
    model = Downey(1.0, average, sigma)
    here, more = model.speed_up(processors), model.speed_up(processors + 1)
    assert here <= more * (1 + 1e-9)
    assert here <= min(average, processors) * (1 + 1e-9)


def linear(maximum: int = 8) -> list[float]:
    """Return the times of 80 s of work that is divided evenly."""
    return [float("inf"), *(80.0 / n for n in range(1, maximum + 1))]


def test_progress_while_the_size_changes() -> None:
    """80 processor-seconds: 10 s on 2, then 10 s on 4, then the last 20 on 1."""
    run = Progress(linear(), 2, now=100.0)
    assert run.ends_at == pytest.approx(140.0)
    run.resize(4, 110.0)
    assert run.share_done(110.0) == pytest.approx(0.25)
    assert run.ends_at == pytest.approx(125.0)
    run.resize(1, 120.0)
    assert run.share_done(120.0) == pytest.approx(0.75)
    assert run.ends_at == pytest.approx(140.0)
    assert run.share_done(130.0) == pytest.approx(0.875)


def test_a_change_costs_time() -> None:
    """Nothing is done during the pause of a change; a second change in it adds its own pause."""
    run = Progress(linear(), 2, now=0.0, cost=ReconfigurationCost(fixed=1.0, per_processor=0.5))
    run.resize(4, 10.0)
    assert run.ends_at == pytest.approx(10.0 + 2.0 + 15.0)
    assert run.share_done(11.0) == pytest.approx(0.25)
    run.resize(8, 11.0)
    assert run.ends_at == pytest.approx(10.0 + 2.0 + 3.0 + 7.5)
    run.resize(8, 11.5)
    assert run.ends_at == pytest.approx(22.5)


def test_cost_of_no_change() -> None:
    """Staying as it is costs nothing."""
    assert ReconfigurationCost(fixed=3.0).seconds(0) == 0.0
    assert ReconfigurationCost(fixed=3.0, per_processor=1.0).seconds(-2) == 5.0


def test_ft_takes_powers_of_two() -> None:
    """FT answers an offer with the highest power of two it can reach, and its release leaves one; GADGET-2 any."""
    assert [ft().answer(2, offered) for offered in (1, 2, 5, 6, 100)] == [0, 2, 2, 6, 30]
    assert [ft().answer(8, -requested) for requested in (1, 4, 5, 7)] == [-4, -4, -6, -6]
    assert gadget2().answer(2, 5) == 5
    assert gadget2().answer(40, 10) == 6
    assert gadget2().answer(4, -7) == -2

# SPDX-License-Identifier: Apache-2.0
"""Application models against numbers computed by hand, and progress of a job whose size changes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from koala_adapter.simulation.applications import Application, Interpolated, ReconfigurationCost, ft, gadget2


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

# SPDX-License-Identifier: Apache-2.0
"""The estimate of bandwidth and latency between this host and a site."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.sites.network import (
    FORGOTTEN_AFTER,
    HALF_LIFE,
    HALF_SIZE,
    MEASURED,
    MIB,
    SMALLEST,
    TRANSFER,
    NetworkEstimate,
    differs,
)

NOTHING = NetworkEstimate()
OBSERVATIONS = st.lists(
    st.tuples(
        st.integers(min_value=SMALLEST, max_value=2**40),
        st.floats(min_value=1e-3, max_value=1e6),
        st.floats(min_value=0, max_value=2 * FORGOTTEN_AFTER),
    ),
    min_size=1,
    max_size=30,
)


def moved(mib: float, seconds: float, *, now: float, before: NetworkEstimate = NOTHING) -> NetworkEstimate:
    return before.moved(int(mib * MIB), seconds, now=now, source=TRANSFER)


@given(OBSERVATIONS)
def test_the_bandwidth_is_between_those_that_were_observed(
    observations: list[tuple[int, float, float]],
) -> None:
    estimate, now = NOTHING, 0.0
    recent: list[float] = []
    for size, seconds, pause in observations:
        now += pause
        if pause >= FORGOTTEN_AFTER:
            recent = []
        estimate = estimate.moved(size, seconds, now=now, source=MEASURED)
        recent.append(size / seconds / MIB)
        found = estimate.bandwidth(now)
        assert found is not None
        assert min(recent) * (1 - 1e-9) <= found <= max(recent) * (1 + 1e-9)


@given(st.floats(min_value=0.1, max_value=1e4), st.floats(min_value=0.1, max_value=1e4))
def test_transfers_of_one_kind_are_believed_in_the_end(before: float, after: float) -> None:
    """Whatever was known: when ten times HALF_SIZE was moved at a rate, that is the rate to a hundredth."""
    estimate = moved(HALF_SIZE / MIB, HALF_SIZE / MIB / before, now=0.0)
    for _ in range(20):
        estimate = moved(HALF_SIZE / MIB / 2, HALF_SIZE / MIB / 2 / after, now=0.0, before=estimate)
    seconds = estimate.seconds / estimate.size * MIB
    assert seconds == pytest.approx(1 / after, rel=1e-2, abs=abs(1 / before - 1 / after) * 1e-2)


def test_large_transfers_and_late_ones_count_more() -> None:
    known = moved(300, 30, now=0.0)
    assert known.bandwidth(0.0) == pytest.approx(10)
    small = moved(1, 1, now=1.0, before=known).bandwidth(1.0)
    large = moved(300, 300, now=1.0, before=known).bandwidth(1.0)
    late = moved(1, 1, now=10 * HALF_LIFE, before=known).bandwidth(10 * HALF_LIFE)
    assert small is not None
    assert large is not None
    assert late is not None
    assert 9 < small < 10
    assert large < 2
    assert late < small


def test_what_was_not_observed_for_a_day_is_not_known() -> None:
    known = moved(300, 30, now=0.0).answered(0.04, now=0.0)
    assert known.bandwidth(FORGOTTEN_AFTER - 1) == pytest.approx(10)
    assert known.bandwidth(FORGOTTEN_AFTER) is None
    assert moved(1, 1, now=FORGOTTEN_AFTER, before=known).bandwidth(FORGOTTEN_AFTER) == pytest.approx(1)
    assert known.latency == 0.04


@pytest.mark.parametrize(("size", "seconds"), [(SMALLEST - 1, 1.0), (MIB, 0.0), (MIB, -1.0), (0, 0.0)])
def test_what_tells_nothing_changes_nothing(size: int, seconds: float) -> None:
    assert NOTHING.moved(size, seconds, now=1.0, source=MEASURED) is NOTHING


@pytest.mark.parametrize(
    ("known", "found", "different"),
    [
        (None, None, False),
        (None, 1.0, True),
        (1.0, None, True),
        (10.0, 11.9, False),
        (10.0, 12.1, True),
        (10.0, 8.1, False),
        (10.0, 7.9, True),
    ],
)
def test_the_scheduler_is_told_of_noticeable_changes(
    *, known: float | None, found: float | None, different: bool
) -> None:
    assert differs(known, found) is different

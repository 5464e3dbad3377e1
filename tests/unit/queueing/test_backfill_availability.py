# SPDX-License-Identifier: Apache-2.0
"""The profile of free processors against a plain list of holdings, with blocks so small that they split and vanish."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.queueing import profile as availability
from koala_adapter.queueing.profile import EarliestStarts, Profile
from tests.examples import examples

SIZE = 12
HORIZON = 60

Window: TypeAlias = tuple[int, int, int]

WINDOWS = st.lists(st.tuples(st.integers(0, HORIZON), st.integers(1, 15), st.integers(1, 5)), max_size=40)
"""Start, duration, processors of what is taken."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of at most four breakpoints."""
    monkeypatch.setattr(availability, "BLOCK", 4)


def level(time: float, windows: list[Window]) -> int:
    """Return how many are free at a time, the plain way."""
    return SIZE - sum(processors for start, duration, processors in windows if start <= time < start + duration)


def plain_earliest(processors: int, duration: int, after: int, before: float, windows: list[Window]) -> float:
    """Return the first start second by second; beyond the horizon everything is free."""
    for start in range(after, 3 * HORIZON):
        if start >= before:
            return before
        if all(level(at, windows) >= processors for at in range(start, int(min(start + duration, before)))):
            return start
    return inf


def taken(windows: list[Window]) -> Profile:
    """Return a profile in which these windows are taken."""
    profile = Profile(0, SIZE)
    for start, duration, processors in windows:
        profile.take(start, start + duration, processors)
    return profile


@given(windows=WINDOWS, now=st.integers(0, HORIZON), given_back=st.integers(0, 40))
@examples(40)
def test_levels_are_those_of_a_plain_list(windows: list[Window], now: int, given_back: int) -> None:
    """After taking all, giving some back and forgetting the past, each time has its level and no step is needless."""
    profile = taken(windows)
    for start, duration, processors in windows[:given_back]:
        profile.give(start, start + duration, processors)
    left = windows[given_back:]
    profile.advance(now)
    assert [profile.level(time) for time in range(now, 2 * HORIZON)] == [
        level(t, left) for t in range(now, 2 * HORIZON)
    ]
    steps = list(profile)
    assert steps[0][0] == now
    assert all(before[0] < after[0] for before, after in pairwise(steps))


@given(
    windows=WINDOWS,
    processors=st.integers(1, SIZE),
    duration=st.integers(1, 30),
    after=st.integers(0, HORIZON),
    before=st.one_of(st.just(inf), st.integers(0, 2 * HORIZON)),
)
@examples(40)
def test_earliest_start(windows: list[Window], processors: int, duration: int, after: int, before: float) -> None:
    """The search gives what trying every second gives, and "free since" what going back second by second gives."""
    profile = taken(windows)
    expected = plain_earliest(processors, duration, after, before, windows)
    assert profile.earliest(processors, duration, after=after, before=before)[0] == max(expected, min(before, expected))
    since = after
    while since > 0 and level(since - 1, windows) >= processors:
        since -= 1
    assert profile.since(processors, after) == since


@given(windows=WINDOWS)
@examples(40)
def test_least_until_each_time(windows: list[Window]) -> None:
    steps = taken(windows).least()
    for until in range(1, 2 * HORIZON):
        expected = min(level(at, windows) for at in range(until))
        assert next(least for end, least in steps if until <= end) == expected


@given(ends=st.lists(st.tuples(st.integers(0, HORIZON), st.integers(1, 5)), max_size=20), now=st.integers(0, HORIZON))
@examples(40)
def test_a_profile_of_what_runs(ends: list[tuple[int, int]], now: int) -> None:
    profile = Profile(now, 3, [(end, processors, None) for end, processors in sorted(ends)])
    for time in range(now, HORIZON + 1):
        assert profile.level(time) == 3 + sum(processors for end, processors in ends if max(end, now) <= time)


def test_what_comes_free_is_found_by_jobs_of_any_length() -> None:
    """Gaps of all lengths are remembered; then all from 10 to 50 comes free, and jobs of any length find that."""
    profile = Profile(0, 4)
    starts = EarliestStarts(profile)
    for start, end in ((0, 5), (8, 20), (25, 40), (50, 60)):
        profile.take(start, end, 4)
    assert [starts.find(1, duration) for duration in (3, 5, 10, 11)] == [5, 20, 40, 60]
    profile.give(10, 20, 4)
    profile.give(25, 40, 4)
    starts.freed(10)
    assert [starts.find(1, duration) for duration in (3, 5, 40, 11, 41)] == [5, 10, 10, 10, 60]


@given(
    windows=WINDOWS,
    asked=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 12), st.booleans()), min_size=1, max_size=40),
)
@examples(40)
def test_remembered_searches_give_what_plain_ones_give(
    windows: list[Window], asked: list[tuple[int, int, bool]]
) -> None:
    """Reservations made and improved one after the other are the same with and without the memory of past searches."""
    held: list[Window] = []
    for start, duration, processors in windows:
        if all(level(at, held) >= processors for at in range(start, start + duration)):
            held.append((start, duration, processors))
    profile = taken(held)
    starts = EarliestStarts(profile)
    for processors, duration, improve in asked:
        if not improve:
            found = starts.find(processors, duration)
            assert found == plain_earliest(processors, duration, 0, inf, held)
            profile.take(found, found + duration, processors)
            held.append((int(found), duration, processors))
            continue
        if not held:
            continue
        was, length, wide = held[len(held) // 2]
        without = [*held[: len(held) // 2], *held[len(held) // 2 + 1 :]]
        better = starts.improve(wide, length, was)
        assert better == min(was, plain_earliest(wide, length, 0, inf, without))
        if better < was:
            profile.give(was, was + length, wide)
            profile.take(better, better + length, wide)
            starts.freed(max(was, better + length))
            held = [*without, (int(better), length, wide)]

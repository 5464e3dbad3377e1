# SPDX-License-Identifier: Apache-2.0
"""The safety rails: the stated bound of requests holds in every window, and a failing LRM is left alone."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from koala_adapter.lrm.rate import SHORTEST_PAUSE, URGENT_SHARE, WINDOW, CircuitBreaker, PollPace, RequestWindow

bounds = st.integers(min_value=2, max_value=40)
wishes = st.lists(
    st.tuples(st.floats(min_value=0, max_value=90, allow_nan=False), st.booleans()), min_size=1, max_size=150
)
"""Requests that somebody wants to make: seconds after the one before was sent, and whether it is urgent."""


def send_all(window: RequestWindow, wanted: list[tuple[float, bool]]) -> list[tuple[float, bool]]:
    """Send requests as CommandRunner does, waiting as the window says; return the times at which they went."""
    now, sent = 1000.0, []
    for pause, urgent in wanted:
        now += pause
        while (wait := window.wait(now, urgent=urgent)) > 0:
            now += wait
        window.record(now)
        sent.append((now, urgent))
    return sent


def largest_in_any_window(times: list[float]) -> int:
    """Return the largest number of times within any WINDOW seconds."""
    return max(sum(begin <= time < begin + WINDOW for time in times) for begin in times)


@given(bound=bounds, wanted=wishes)
def test_bound_holds_in_every_window(bound: int, wanted: list[tuple[float, bool]]) -> None:
    """However requests arrive, no 60 seconds see more than the bound, and ``largest`` tells the truth."""
    window = RequestWindow(bound)
    times = [time for time, _ in send_all(window, wanted)]
    assert largest_in_any_window(times) <= bound
    assert window.largest == largest_in_any_window(times)
    assert window.total == len(wanted)


@given(bound=bounds, wanted=wishes)
def test_ordinary_requests_leave_the_urgent_share(bound: int, wanted: list[tuple[float, bool]]) -> None:
    """Ordinary requests alone never use more than their part, so a cancel can go at once."""
    window = RequestWindow(bound)
    times = [time for time, _ in send_all(window, [(pause, False) for pause, _ in wanted])]
    ordinary = max(1, int(bound * (1 - URGENT_SHARE)))
    assert largest_in_any_window(times) <= ordinary
    assert window.wait(times[-1], urgent=True) == 0.0


@given(bound=bounds, wanted=wishes, urgent=st.booleans())
@example(bound=2, wanted=[(1.2870188873075028, False)], urgent=False)
def test_waiting_as_told_is_enough(bound: int, wanted: list[tuple[float, bool]], urgent: bool) -> None:  # noqa: FBT001
    """Who waits as long as he is told may go then, and is never told to wait longer than a window."""
    window = RequestWindow(bound)
    now = send_all(window, wanted)[-1][0]
    wait = window.wait(now, urgent=urgent)
    assert 0.0 <= wait <= WINDOW
    assert window.wait(now + wait + 0.01, urgent=urgent) == 0.0


def test_no_wait_without_need() -> None:
    """The first requests of a window go at once; the one over the part of ordinary ones waits for the oldest."""
    window = RequestWindow(10)
    for _ in range(8):
        assert window.wait(100.0) == 0.0
        window.record(100.0)
    assert window.wait(130.0) == 30.0
    assert window.wait(130.0, urgent=True) == 0.0
    assert window.wait(160.0) == 0.0


def test_a_bound_below_two_is_two() -> None:
    """A bound that leaves no room for an ordinary and an urgent request is raised to two."""
    assert RequestWindow(0).per_minute == 2


@given(failures=st.integers(1, 10), more=st.integers(0, 40))
def test_breaker_opens_and_pauses_grow(failures: int, more: int) -> None:
    """After the given number of failures there are pauses; they never shrink and never exceed the longest."""
    breaker = CircuitBreaker(failures=failures, pause=5, longest_pause=120)
    now, pauses = 0.0, []
    for number in range(failures + more):
        assert breaker.may_ask(now)
        assert breaker.open == (number >= failures)
        breaker.failed(now)
        if breaker.open:
            pause = next(second for second in range(1, 200) if breaker.may_ask(now + second))
            pauses.append(pause)
            assert not breaker.may_ask(now + pause - 1)
            now += pause
    assert pauses == sorted(pauses)
    assert pauses[0] == 5
    assert max(pauses) <= 120


def test_breaker_closes_on_success() -> None:
    """One success and the LRM is asked as before; failures count anew."""
    breaker = CircuitBreaker(failures=2)
    breaker.failed(0)
    breaker.failed(0)
    assert not breaker.may_ask(1)
    breaker.succeeded()
    assert breaker.may_ask(1)
    breaker.failed(1)
    assert not breaker.open


@given(shortest=st.floats(0.05, 40.0))
def test_the_pace_of_polls(shortest: float) -> None:
    """The second poll comes soon; in a window come at most three quarters of all that may, later half of them."""
    pace, now = PollPace(shortest_interval=shortest), 1000.0
    times: list[float] = []
    while now < 1000.0 + 10 * WINDOW and len(times) < 2000:
        times.append(now)
        pace.polled(now)
        now += pace.pause(now)
    bound = WINDOW / shortest
    windows = [sum(begin <= one < begin + WINDOW for one in times) for begin in times[::7]]
    assert max(windows) <= 0.75 * bound + 1
    assert len(times) <= (now - 1000.0) / WINDOW * bound * 0.53 + 2
    assert times[1] - times[0] <= max(SHORTEST_PAUSE, (2 * shortest) ** 2 / WINDOW) + 1e-6

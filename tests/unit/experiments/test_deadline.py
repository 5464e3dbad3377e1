# SPDX-License-Identifier: Apache-2.0
"""Deadline scheduling of calls: the choice of a server, load correction and fallback."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_experiments.bricks import Call, CallScheduler, Deadline, Fallback, Greedy, ServerForecast

CALL = Call(send=100, receive=50, operations=6000, deadline=100)
FAST = ServerForecast("fast", 10, 10, 600, 0)
"""Needs 10 + 5 + 10 = 25 s."""
SLOW = ServerForecast("slow", 10, 10, 100, 0)
"""Needs 10 + 5 + 60 = 75 s."""
LOADED = ServerForecast("loaded", 10, 10, 600, 2)
"""Needs 10 + 5 + 3 x 10 = 45 s."""
SERVERS = (FAST, SLOW, LOADED)


def test_response_time_adds_transfers_and_shared_execution() -> None:
    """Ts = Wsend/Psend + Wrecv/Precv + Ws/Pserv, where jobs that are there take equal parts of the performance."""
    assert [server.response_time(CALL) for server in SERVERS] == [25, 75, 45]


@pytest.mark.parametrize(
    ("opt", "now", "chosen"),
    [
        (1.0, 0, "slow"),  # target 100: 75 is the longest within
        (0.75, 0, "slow"),  # target 75: just in time counts
        (0.7, 0, "loaded"),  # target 70
        (0.5, 20, "fast"),  # target 40
        (0.5, 90, "fast"),  # target 5: nothing is in time, 25 is nearest
        (0.5, 200, "fast"),  # the deadline is over
    ],
)
def test_deadline_takes_the_slowest_that_is_in_time(opt: float, now: float, chosen: str) -> None:
    """The smallest T_target - Ts that is not negative, else the smallest difference."""
    assert CallScheduler(Deadline(opt)).assign(CALL, SERVERS, now).name == chosen


def test_greedy_takes_the_fastest() -> None:
    """Whatever the deadline, and the first of equals."""
    assert CallScheduler(Greedy()).assign(CALL, (SLOW, FAST, LOADED, FAST), 0) is FAST


@pytest.mark.parametrize("opt", [0.0, -0.5, 1.5])
def test_opt_is_a_share(opt: float) -> None:
    """Opt is above 0 and at most 1."""
    with pytest.raises(ValueError, match="opt is"):
        Deadline(opt)


def test_load_correction_counts_what_monitors_do_not_see_yet() -> None:
    """Each assigned and unfinished call adds p_load to the load of its server, and no longer when it is finished."""
    scheduler = CallScheduler(Greedy(), p_load=1.0)
    names = [scheduler.assign(CALL, SERVERS, 0).name for _ in range(4)]
    # fast: 25, then 35, 45, 55 s; loaded: 45 s. The first of equals goes first.
    assert names == ["fast", "fast", "fast", "loaded"]
    assert scheduler.unfinished("fast") == 3
    for _ in range(3):
        scheduler.finished("fast")
    assert scheduler.unfinished("fast") == 0
    assert scheduler.assign(CALL, SERVERS, 0).name == "fast"
    with pytest.raises(KeyError):
        scheduler.finished("slow")


def test_without_correction_all_go_to_one() -> None:
    """The same forecasts give the same server, however many calls were sent there."""
    scheduler = CallScheduler(Greedy())
    assert {scheduler.assign(CALL, SERVERS, 0).name for _ in range(9)} == {"fast"}


def test_fallback_within_its_number() -> None:
    """A call that cannot be in time goes back, until it went back N_max times; one that just can does not."""
    fallback = Fallback(2)
    late = {"time_left": 14.9, "execution": 10.0, "receive": 5.0}
    assert fallback.wanted(**late, fallbacks=0)
    assert fallback.wanted(**late, fallbacks=1)
    assert not fallback.wanted(**late, fallbacks=2)
    assert not fallback.wanted(time_left=15.0, execution=10.0, receive=5.0, fallbacks=0)
    assert not Fallback(0).wanted(**late, fallbacks=0)


POSITIVE = st.floats(0.001, 1e6)


@given(st.lists(POSITIVE, min_size=1, max_size=20), st.floats(-1e6, 1e6), st.sampled_from([0.5, 0.9, 1.0]))
def test_choice_follows_the_definition(estimates: list[float], time_left: float, opt: float) -> None:
    """The choice is what the definition of the paper gives when all servers are compared."""
    target = time_left * opt
    in_time = [(target - one, index) for index, one in enumerate(estimates) if target - one >= 0]
    chosen = estimates[Deadline(opt).choose(estimates, time_left)]
    if in_time:
        assert chosen == estimates[min(in_time)[1]]
    else:
        assert abs(target - chosen) == min(abs(target - one) for one in estimates)

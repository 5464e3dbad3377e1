# SPDX-License-Identifier: Apache-2.0
"""The deadline experiments, with the grids and networks of Bricks."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.simulation.world import Engine
from koala_experiments.bricks import (
    OTHERS,
    Bricks,
    Call,
    CallRecord,
    CallScheduler,
    Domain,
    Grid,
    Network,
    Node,
    OtherTasks,
    Server,
    ServerForecast,
    Transfer,
    Variant,
    choose,
    failure_rate,
    make_calls,
    make_grid,
    mean_cost,
)
from koala_experiments.deadline import simulate
from koala_experiments.framework import Comparison, Measure, estimate
from tests.examples import examples

# -- Deadline scheduling of calls: the choice of a server, load correction and fallback.


NODES = (Node(name="a", domain="one", performance=100.0), Node(name="b", domain="two", performance=400.0))
CALL = Call(client=NODES[0], submitted_at=0, send=100, receive=50, operations=6000, deadline=100)
FAST = ServerForecast("fast", 10, 600, 0)
"""Needs 10 + 5 + 10 = 25 s."""
SLOW = ServerForecast("slow", 10, 100, 0)
"""Needs 10 + 5 + 60 = 75 s."""
LOADED = ServerForecast("loaded", 10, 600, 2)
"""Needs 10 + 5 + 3 x 10 = 45 s."""
SERVERS = (FAST, SLOW, LOADED)


def test_response_time_adds_transfers_and_shared_execution() -> None:
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
    assert CallScheduler(Variant(opt)).assign(CALL, SERVERS, now).name == chosen


def test_greedy_takes_the_fastest() -> None:
    assert CallScheduler(Variant(None)).assign(CALL, (SLOW, FAST, LOADED, FAST), 0) is FAST


def test_load_correction_counts_what_monitors_do_not_see_yet() -> None:
    scheduler = CallScheduler(Variant(None, correction="shared"))
    names = [scheduler.assign(CALL, SERVERS, 0).name for _ in range(4)]
    # fast: 25, then 35, 45, 55 s; loaded: 45 s. The first of equals goes first.
    assert names == ["fast", "fast", "fast", "loaded"]
    assert scheduler.unfinished == {"fast": 3, "loaded": 1}
    scheduler.unfinished["fast"] = 0
    assert scheduler.assign(CALL, SERVERS, 0).name == "fast"


POSITIVE = st.floats(0.001, 1e6)


@given(st.lists(POSITIVE, min_size=1, max_size=20), st.floats(-1e6, 1e6), st.sampled_from([0.5, 0.9, 1.0]))
def test_choice_follows_the_definition(estimates: list[float], time_left: float, opt: float) -> None:
    """The choice is what the definition of the paper gives when all servers are compared."""
    target = time_left * opt
    in_time = [(target - one, index) for index, one in enumerate(estimates) if target - one >= 0]
    chosen = estimates[choose(estimates, time_left, opt)]
    if in_time:
        assert chosen == estimates[min(in_time)[1]]
    else:
        assert abs(target - chosen) == min(abs(target - one) for one in estimates)


# -- The simulated grids of Bricks: servers with queues, monitors that are late, calls from end to end.


NOBODY = OtherTasks(utilization=0)


def make_server(performance: float = 10.0, others: OtherTasks = NOBODY) -> Server:
    """Return a server of 10 Mop/s."""
    return Server("server", performance, others, Random(7))


def test_server_works_in_order_of_arrival() -> None:
    server = make_server()
    assert server.arrive(100, now=0) == 10
    assert server.arrive(50, now=2) == 15
    assert server.arrive(10, now=20) == 21
    assert [server.load(at) for at in (0, 1.9, 2, 9.9, 10, 15, 20, 21)] == [1, 1, 2, 2, 1, 0, 1, 0]


def test_other_tasks_take_their_share() -> None:
    server = make_server(others=OtherTasks(utilization=0.1, mean_seconds=60))
    busy = sum(server.load(float(at)) > 0 for at in range(0, 2_000_000, 10)) / 200_000
    assert busy == pytest.approx(0.1, abs=0.02)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 50)), max_size=30))
def test_server_loses_no_work(jobs: list[tuple[float, float]]) -> None:
    server, now, ends = make_server(performance=1.0), 0.0, [0.0]
    for gap, work in jobs:
        now += gap
        end = server.arrive(work, now)
        assert end == max(now, ends[-1]) + work
        ends.append(end)
    assert ends[-1] <= now + sum(work for _, work in jobs) + 1e-6


def domains(*names: str, local: float = 100.0, uplink: float = 1000.0, latency: float = 0.0) -> tuple[Domain, ...]:
    """Return domains whose transfers pass as many latencies as networks."""
    return tuple(
        Domain(name=name, bandwidth=local, uplink=uplink, latency=latency, uplink_latency=latency) for name in names
    )


GRID = Grid(nodes=NODES, domains=domains("one", "two"))


def planned(at: float, deadline: float) -> Call:
    """Return a call of node a: 10 s to send, 5 s to receive, 100 s on a and 25 s on b."""
    return Call(client=NODES[0], submitted_at=at, send=1000, receive=500, operations=10_000, deadline=deadline)


def run(variant: Variant, *calls: Call) -> list[CallRecord]:
    """Run calls on the grid of two nodes, without others."""
    return Bricks(0, GRID, variant, NOBODY, 60).run(calls)


def test_greedy_call_from_end_to_end() -> None:
    """10 s to send, 25 s on the faster server, 5 s back; the cost is that server's performance."""
    (record,) = run(Variant(None), planned(100, 200))
    assert (record.received_at, record.cost, record.failed) == (140, 400, False)


def test_deadline_call_takes_the_cheap_server() -> None:
    """With 120 s left the slow server is in time (115 s), with 110 s it is not."""
    (cheap,) = run(Variant(1.0), planned(100, 220))
    (dear,) = run(Variant(1.0), planned(100, 210))
    assert (cheap.received_at, cheap.cost) == (215, 100)
    assert (dear.received_at, dear.cost) == (140, 400)


def test_transfers_share_what_monitors_do_not_see() -> None:
    """Two calls at once take 20 s to send; the server does one after the other, and the second is late."""
    first, second = run(Variant(None), planned(1, 100), planned(1, 70))
    assert (first.received_at, second.received_at) == (1 + 20 + 25 + 5, 1 + 20 + 50 + 5)
    assert [first.failed, second.failed] == [False, True]


def test_load_correction_spreads_calls() -> None:
    calls = [planned(1, 1000) for _ in range(5)]
    assert mean_cost(run(Variant(None), *calls)) == 400
    assert mean_cost(run(Variant(None, correction="shared"), *calls)) < 400


def test_fallback_goes_back_and_is_counted() -> None:
    calls = [planned(1, 45) for _ in range(4)]
    records = run(Variant(None, 2), *calls)
    assert len(records) == 4
    assert max(record.fallbacks for record in records) == 2
    assert all(record.fallbacks == 0 for record in run(Variant(None), *calls))


def test_grids_are_as_described() -> None:
    """Ten domains of 5 to 10 nodes, bandwidths and performances in their ranges, the same for a seed."""
    grid = make_grid(3)
    assert grid == make_grid(3)
    assert grid != make_grid(4)
    assert len(grid.domains) == 10
    assert 50 <= len(grid.nodes) <= 100
    assert all(100 <= node.performance <= 500 for node in grid.nodes)
    assert all(500 <= domain.uplink <= 1000 for domain in grid.domains)
    calls = make_calls(3, grid)
    assert len(calls) == pytest.approx(24 * len(grid.nodes), rel=0.1)
    assert [call.submitted_at for call in calls] == sorted(call.submitted_at for call in calls)
    assert all(call.deadline > call.submitted_at for call in calls)


def test_simulation_is_repeatable_and_complete() -> None:
    grid = make_grid(1)
    calls = make_calls(1, grid, duration=3 * 3600)
    once, again = (Bricks(1, grid, Variant(0.8, 1, "own"), OTHERS, 60).run(calls) for _ in range(2))
    assert once == again
    assert len(once) == len(calls)
    assert 0 <= failure_rate(once) <= 1


def test_more_load_fails_more() -> None:
    """What the experiment compares moves in the direction it must."""
    rates = [
        simulate((load, Variant(None)), 0, factor=(1, 3), interval=60, duration=86_400).failure_rate
        for load in ("high", "low")
    ]
    assert rates[0] > rates[1]


def test_estimates() -> None:
    one = estimate([1.0, 2.0, 3.0])
    assert (one.mean, one.repetitions) == (2.0, 3)
    assert one.half_width == pytest.approx(4.303 / 3**0.5)
    assert (one.low, one.high) == (one.mean - one.half_width, one.mean + one.half_width)
    assert estimate([5.0]).half_width == 0
    both = Comparison({"first": [3.0, 5.0], "second": [1.0, 3.0]})
    gain = both.difference(Measure[float]("x", float), "first", "second")
    assert (gain.mean, gain.half_width) == (2.0, 0.0)
    with pytest.raises(ValueError, match="at least one"):
        estimate([])


# -- The simulated network: fair shares worked out by hand, and that no link ever carries more than it can.


class Sent:
    """Transfers of a network, and when each ended."""

    def __init__(self, *domains: Domain) -> None:
        self.engine = Engine()
        self.network = Network(self.engine, domains)
        self.ended_at: dict[Transfer, float] = {}

    def send(self, source: str, target: str, megabits: float) -> Transfer:
        """Start a transfer whose end is noted."""
        transfer = self.network.send(
            source, target, megabits, lambda: self.ended_at.update({transfer: self.engine.now})
        )
        return transfer


def test_one_transfer_has_the_narrowest_link_for_itself() -> None:
    """1000 Mbit over 100 Mbit/s take 10 s, after the latency of each link on the way."""
    sent = Sent(*domains("a", "b", latency=0.5))
    transfer = sent.send("a", "b", 1000.0)
    sent.engine.run()
    assert sent.ended_at[transfer] == pytest.approx(12.0)


def test_concurrent_transfers_share_and_the_rest_speeds_up() -> None:
    """Two transfers of 1000 and 500 Mbit in one domain run at 50 Mbit/s each until the short one ends after 10 s."""
    sent = Sent(*domains("a"))
    long, short = sent.send("a", "a", 1000.0), sent.send("a", "a", 500.0)
    sent.engine.run(until=5.0)
    assert (long.rate, short.rate) == (50.0, 50.0)
    sent.engine.run()
    assert sent.ended_at[short] == pytest.approx(10.0)
    assert sent.ended_at[long] == pytest.approx(15.0)  # 500 Mbit left at 10 s, then 100 Mbit/s


def test_a_later_transfer_takes_its_share_at_once() -> None:
    """What began alone slows down when another comes: 400 Mbit in 4 s, then half speed."""
    sent = Sent(*domains("a"))
    first = sent.send("a", "a", 1000.0)
    sent.engine.run(until=4.0)
    second = sent.send("a", "a", 1000.0)
    sent.engine.run()
    assert sent.ended_at[first] == pytest.approx(16.0)  # 600 Mbit at 50 Mbit/s
    assert sent.ended_at[second] == pytest.approx(20.0)  # 600 Mbit in 12 s, the last 400 at 100 Mbit/s


def test_shares_are_max_min_fair() -> None:
    sent = Sent(*domains("wide"), *domains("narrow", local=20.0))
    out = [sent.send("wide", "narrow", 1000.0) for _ in range(2)]
    inside = sent.send("wide", "wide", 1000.0)
    sent.engine.run(until=1.0)
    assert [one.rate for one in out] == [10.0, 10.0]
    assert inside.rate == 80.0


sends = st.lists(
    st.tuples(st.floats(0, 20), st.sampled_from("abc"), st.sampled_from("abc"), st.floats(0.1, 500)),
    min_size=1,
    max_size=25,
)


@examples(40)
@given(sends)
def test_all_data_arrive_and_no_link_is_overfull(plan: list[tuple[float, str, str, float]]) -> None:
    """Whatever is sent when: each transfer ends no sooner than alone, all bits arrive, and links keep their bounds."""
    sent = Sent(*domains("a", "b", "c", local=50.0, uplink=30.0))
    bandwidth = sent.network.bandwidth
    begun: list[tuple[Transfer, float, float]] = []

    def send(at: float, source: str, target: str, size: float) -> None:
        begun.append((sent.send(source, target, size), at, size))

    for time, source, target, size in plan:
        sent.engine.at(time, partial(send, time, source, target, size))
    while sent.engine.step():
        transfers = sent.network.transfers
        loads = [sum(one.rate for one in transfers if link in one.links) for link in range(len(bandwidth))]
        assert all(load <= most * (1 + 1e-9) for load, most in zip(loads, bandwidth, strict=True))
        # Some link on each path is full.
        assert all(max(loads[link] / bandwidth[link] for link in one.links) >= 1 - 1e-9 for one in transfers)
    assert len(begun) == len(sent.ended_at) == len(plan)
    for transfer, at, size in begun:
        narrowest = min(bandwidth[link] for link in transfer.links)
        assert sent.ended_at[transfer] - at >= size / narrowest * (1 - 1e-9)

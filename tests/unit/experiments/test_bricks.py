# SPDX-License-Identifier: Apache-2.0
"""The simulated grids of Bricks: servers with queues, monitors that are late, calls from end to end."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import SimulationError
from koala_experiments.bricks import (
    BACKBONE,
    Bricks,
    Call,
    CallParameters,
    CallRecord,
    Deadline,
    Domain,
    Greedy,
    Grid,
    GridParameters,
    Link,
    Monitors,
    Node,
    OtherTasks,
    PlannedCall,
    SchedulerParameters,
    Server,
    failure_rate,
    make_calls,
    make_grid,
    mean_cost,
)
from koala_experiments.deadline import EXPERIMENT, Case, Variant, simulate
from koala_experiments.framework import difference, estimate

NOBODY = OtherTasks(utilization=0)


def make_server(performance: float = 10.0, others: OtherTasks = NOBODY) -> Server:
    """Return a server of 10 Mop/s."""
    return Server("server", performance, others, Random(7))


def test_server_works_in_order_of_arrival() -> None:
    """A job starts when the one before it ends; the load is what is there, running and waiting."""
    server = make_server()
    assert server.arrive(100, now=0) == 10
    assert server.arrive(50, now=2) == 15
    assert server.arrive(10, now=20) == 21
    assert [server.load(at) for at in (0, 1.9, 2, 9.9, 10, 15, 20, 21)] == [1, 1, 2, 2, 1, 0, 1, 0]


def test_other_tasks_take_their_share() -> None:
    """Tasks of others keep a server busy for their share of the time."""
    server = make_server(others=OtherTasks(utilization=0.1, mean_seconds=60))
    busy = sum(server.load(float(at)) > 0 for at in range(0, 2_000_000, 10)) / 200_000
    assert busy == pytest.approx(0.1, abs=0.02)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 50)), max_size=30))
def test_server_loses_no_work(jobs: list[tuple[float, float]]) -> None:
    """Nobody overtakes, nobody is faster than alone, and the last ends no later than all of them one after another."""
    server, now, ends = make_server(performance=1.0), 0.0, [0.0]
    for gap, work in jobs:
        now += gap
        end = server.arrive(work, now)
        assert end == max(now, ends[-1]) + work
        ends.append(end)
    assert ends[-1] <= now + sum(work for _, work in jobs) + 1e-6


NODES = (Node(name="a", domain="one", performance=100.0), Node(name="b", domain="two", performance=400.0))
GRID = Grid(
    nodes=NODES,
    domains=tuple(Domain(name=name, bandwidth=100.0, latency=0) for name in (BACKBONE, "one", "two")),
    links=tuple(Link(between=(name, BACKBONE), bandwidth=1000.0, latency=0) for name in ("one", "two")),
)


def planned(at: float, deadline: float, *, number: int = 0) -> PlannedCall:
    """Return a call of node a: 10 s to send, 5 s to receive, 100 s on a and 25 s on b."""
    call = Call(send=1000, receive=500, operations=10_000, deadline=deadline)
    return PlannedCall(number=number, client=NODES[0], submitted_at=at, call=call)


def run(scheduler: SchedulerParameters, *calls: PlannedCall) -> list[CallRecord]:
    """Run calls on the grid of two nodes, without others."""
    return Bricks(0, GRID, scheduler, NOBODY, Monitors(interval=60)).run(calls)


def test_greedy_call_from_end_to_end() -> None:
    """10 s to send, 25 s on the faster server, 5 s back; the cost is that server's performance."""
    (record,) = run(SchedulerParameters(choice=Greedy()), planned(100, 200))
    assert (record.received_at, record.cost, record.failed) == (140, 400, False)


def test_deadline_call_takes_the_cheap_server() -> None:
    """With 120 s left the slow server is in time (115 s), with 110 s it is not."""
    (cheap,) = run(SchedulerParameters(choice=Deadline(1.0)), planned(100, 220))
    (dear,) = run(SchedulerParameters(choice=Deadline(1.0)), planned(100, 210))
    assert (cheap.received_at, cheap.cost) == (215, 100)
    assert (dear.received_at, dear.cost) == (140, 400)


def test_transfers_share_what_monitors_do_not_see() -> None:
    """Two calls at once take 20 s to send; the server does one after the other, and the second is late."""
    first, second = run(SchedulerParameters(choice=Greedy()), planned(1, 100), planned(1, 70, number=1))
    assert (first.received_at, second.received_at) == (1 + 20 + 25 + 5, 1 + 20 + 50 + 5)
    assert [first.failed, second.failed] == [False, True]


def test_load_correction_spreads_calls() -> None:
    """The third of three calls at once goes to the other server when the scheduler counts what it has assigned."""
    calls = [planned(1, 1000, number=number) for number in range(5)]
    assert mean_cost(run(SchedulerParameters(choice=Greedy()), *calls)) == 400
    assert mean_cost(run(SchedulerParameters(choice=Greedy(), p_load=1.0), *calls)) < 400


def test_fallback_goes_back_and_is_counted() -> None:
    """A call that finds its server busy goes back while it may, and ends all the same."""
    calls = [planned(1, 45, number=number) for number in range(4)]
    records = run(SchedulerParameters(choice=Greedy(), maximum_fallbacks=2), *calls)
    assert len(records) == 4
    assert max(record.fallbacks for record in records) == 2
    assert all(record.fallbacks == 0 for record in run(SchedulerParameters(choice=Greedy()), *calls))


def test_grids_are_as_described() -> None:
    """Ten domains of 5 to 10 nodes, bandwidths and performances in their ranges, the same for a seed."""
    parameters = GridParameters()
    grid = make_grid(3, parameters)
    assert grid == make_grid(3, parameters)
    assert grid != make_grid(4, parameters)
    assert len(grid.domains) == 1 + 10
    assert 50 <= len(grid.nodes) <= 100
    assert all(100 <= node.performance <= 500 for node in grid.nodes)
    assert all(500 <= link.bandwidth <= 1000 for link in grid.links)
    calls = make_calls(3, grid, CallParameters())
    assert len(calls) == pytest.approx(24 * len(grid.nodes), rel=0.1)
    assert [call.submitted_at for call in calls] == sorted(call.submitted_at for call in calls)
    assert all(call.call.deadline > call.submitted_at for call in calls)


def test_simulation_is_repeatable_and_complete() -> None:
    """The same case gives the same outcome to the last bit, and every call ends."""
    grid = make_grid(1, GridParameters())
    calls = make_calls(1, grid, CallParameters(duration=3 * 3600))
    scheduler = SchedulerParameters(choice=Deadline(0.8), maximum_fallbacks=1, shared=False, p_load=1.0)
    once, again = (Bricks(1, grid, scheduler, OtherTasks(utilization=0.1), Monitors()).run(calls) for _ in range(2))
    assert once == again
    assert len(once) == len(calls)
    assert 0 <= failure_rate(once) <= 1


def test_more_load_fails_more() -> None:
    """What the experiment compares moves in the direction it must."""
    rates = [simulate(Case(load, 0, Variant(None), (1, 3), 60, 86_400)).failure_rate for load in ("high", "low")]
    assert rates[0] > rates[1]


@pytest.mark.parametrize(
    "settings", [{"deadline-factor": "3-1"}, {"deadline-factor": "x"}, {"monitor-interval": "0"}, {"no-such": "1"}]
)
def test_bad_settings_are_refused(settings: dict[str, str]) -> None:
    """A setting that is none, or has an impossible value, is refused before anything runs."""
    with pytest.raises(SimulationError):
        EXPERIMENT.run(EXPERIMENT.options(settings=settings))


def test_estimates() -> None:
    """A mean with Student's interval; pairs are compared one by one."""
    one = estimate([1.0, 2.0, 3.0])
    assert (one.mean, one.repetitions) == (2.0, 3)
    assert one.half_width == pytest.approx(4.303 / 3**0.5)
    assert (one.low, one.high) == (one.mean - one.half_width, one.mean + one.half_width)
    assert estimate([5.0]).half_width == 0
    assert difference([3.0, 5.0], [1.0, 3.0]).half_width == 0
    with pytest.raises(ValueError, match="at least one"):
        estimate([])

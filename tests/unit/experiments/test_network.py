# SPDX-License-Identifier: Apache-2.0
"""The simulated network: fair shares worked out by hand, routes, and that no link ever carries more than it can."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import SimulationError
from koala_adapter.simulation.world import Engine
from koala_experiments.bricks import Domain, Link, Network
from tests.examples import examples

if TYPE_CHECKING:
    from koala_experiments.bricks import Transfer


def network(engine: Engine, *, lan: float = 100.0, wan: float = 1000.0, latency: float = 0.0) -> Network:
    """Return the domains a, b and c in a row: a - b - c."""
    domains = [Domain(name=name, bandwidth=lan, latency=latency) for name in "abc"]
    links = [Link(between=pair, bandwidth=wan, latency=latency) for pair in (("a", "b"), ("b", "c"))]
    return Network(engine, domains, links)


def test_one_transfer_has_the_narrowest_link_for_itself() -> None:
    """1000 Mbit over 100 Mbit/s take 10 s, after the latency of each link on the way."""
    engine = Engine()
    net = network(engine, latency=0.5)
    transfer = net.send("a", "b", 1000.0)
    assert net.estimate("a", "b", 1000.0) == pytest.approx(11.5)
    engine.run()
    assert transfer.ended_at == pytest.approx(11.5)


def test_concurrent_transfers_share_and_the_rest_speeds_up() -> None:
    """Two transfers of 1000 and 500 Mbit in one domain run at 50 Mbit/s each until the short one ends after 10 s."""
    engine = Engine()
    net = network(engine)
    long, short = net.send("a", "a", 1000.0), net.send("a", "a", 500.0)
    engine.run(until=5.0)
    assert (long.rate, short.rate) == (50.0, 50.0)
    engine.run()
    assert short.ended_at == pytest.approx(10.0)
    assert long.ended_at == pytest.approx(15.0)  # 500 Mbit left at 10 s, then 100 Mbit/s


def test_a_later_transfer_takes_its_share_at_once() -> None:
    """What began alone slows down when another comes: 400 Mbit in 4 s, then half speed."""
    engine = Engine()
    net = network(engine)
    first = net.send("a", "a", 1000.0)
    engine.run(until=4.0)
    second = net.send("a", "a", 1000.0)
    engine.run()
    assert first.ended_at == pytest.approx(16.0)  # 600 Mbit at 50 Mbit/s
    assert second.ended_at == pytest.approx(20.0)  # 600 Mbit in 12 s, the last 400 at 100 Mbit/s


def test_shares_are_max_min_fair() -> None:
    """Who is held up by a narrow link leaves the rest of a wide one to the others."""
    engine = Engine()
    net = Network(
        engine,
        [
            Domain(name="wide", bandwidth=100.0, latency=0.0),
            Domain(name="narrow", bandwidth=20.0, latency=0.0),
        ],
        [Link(between=("wide", "narrow"), bandwidth=1000.0, latency=0.0)],
    )
    out = [net.send("wide", "narrow", 1000.0) for _ in range(2)]
    inside = net.send("wide", "wide", 1000.0)
    engine.run(until=1.0)
    assert [one.rate for one in out] == [10.0, 10.0]
    assert inside.rate == 80.0


def test_routes_have_the_fewest_links() -> None:
    """A row of three domains is crossed by both links; a direct link is preferred as soon as there is one."""
    engine = Engine()
    net = network(engine)
    assert net.route("a", "c") == (0, 3, 4, 2)
    assert net.route("a", "a") == (0,)
    triangle = Network(
        engine,
        [Domain(name=name) for name in "abc"],
        [Link(between=pair) for pair in (("a", "b"), ("b", "c"), ("c", "a"))],
    )
    assert triangle.route("a", "c") == (0, 5, 2)


def test_no_route_is_refused() -> None:
    """Domains that nothing joins cannot exchange data."""
    engine = Engine()
    alone = [Domain(name="a"), Domain(name="b")]
    with pytest.raises(SimulationError, match=r"no route joins .*'a' and 'b'"):
        Network(engine, alone).send("a", "b", 1.0)
    with pytest.raises(SimulationError, match="no domain 'x'"):
        Network(engine, alone).route("a", "x")


def test_nothing_to_send_takes_the_latency() -> None:
    """A transfer without data ends when the first bit would have arrived, and disturbs nobody."""
    engine = Engine()
    net = network(engine, latency=0.25)
    ended: list[Transfer] = []
    transfer = net.send("a", "b", 0.0, ended.append)
    engine.run()
    assert transfer.ended_at == 0.75
    assert ended == [transfer]


sends = st.lists(
    st.tuples(st.floats(0, 20), st.sampled_from("abc"), st.sampled_from("abc"), st.floats(0.1, 500)),
    min_size=1,
    max_size=25,
)


@examples(40)
@given(sends)
def test_all_data_arrive_and_no_link_is_overfull(plan: list[tuple[float, str, str, float]]) -> None:
    """Whatever is sent when: each transfer ends no sooner than alone, all bits arrive, and links keep their bounds."""
    engine = Engine()
    net = network(engine, lan=50.0, wan=30.0)
    done: list[Transfer] = []
    for time, source, target, size in plan:
        engine.at(time, partial(net.send, source, target, size, done.append))
    while engine.step():
        for link, busy in enumerate(net._busy):
            used = sum(transfer.rate for transfer in busy.values())
            assert used <= net._bandwidth[link] * (1 + 1e-9)
            if busy:  # work conserving: some link on each path is full
                for transfer in busy.values():
                    loads = [
                        sum(o.rate for o in net._busy[step].values()) / net._bandwidth[step] for step in transfer.links
                    ]
                    assert max(loads) >= 1 - 1e-9
    assert len(done) == len(plan)
    for transfer in done:
        narrowest = min(net._bandwidth[link] for link in transfer.links)
        assert transfer.ended_at is not None
        assert transfer.ended_at - transfer.started_at >= transfer.megabits / narrowest * (1 - 1e-9)

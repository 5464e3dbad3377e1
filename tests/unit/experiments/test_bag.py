# SPDX-License-Identifier: Apache-2.0
"""Bags of work units: any number of workers takes as long as the curve says, and nothing is lost or done twice."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.simulation.applications import ft, gadget2
from koala_experiments.liveruns import Bag

UNIT = 0.25
PACE = 40.0


def seconds_on(bag: Bag, workers: int) -> float:
    """Return when the last of so many workers, who begin together, is through."""
    ready = [(0.0, worker) for worker in range(workers)]
    for worker in range(workers):
        bag.join(worker)
    last = 0.0
    while ready:
        now, worker = heapq.heappop(ready)
        bag.done(worker, 1.0)
        taken = bag.take(worker)
        if taken is not None:
            heapq.heappush(ready, (now + taken, worker))
            last = max(last, now + taken)
    assert bag.empty
    return last


@pytest.mark.parametrize("workers", [2, 3, 5, 8, 16, 32])
@pytest.mark.parametrize("make", [ft, gadget2], ids=["ft", "gadget2"])
def test_n_workers_take_the_nth_execution_time(make: object, workers: int) -> None:
    """FT and GADGET-2 at a pace of 40: within the length of the small units that are given out last."""
    application = ft() if make is ft else gadget2()
    times = [time / PACE for time in application.times()]
    found = seconds_on(Bag(times, UNIT, at=2), workers)
    assert found == pytest.approx(times[workers], rel=0.05)
    assert found >= times[workers] * 0.999


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["join", "take", "leave", "half", "all"])), max_size=200))
def test_work_is_neither_lost_nor_made(steps: list[tuple[int, str]]) -> None:
    """Whatever workers do, what is left, what is worked on and what is done add up to all there is."""
    bag = Bag([float("inf"), 8.0, 5.0, 4.0], 0.5, at=2)
    taken: dict[int, float] = {}
    done = 0.0
    for worker, step in steps:
        left = bag.left
        if step == "join":
            bag.join(worker)
        elif step == "take" and worker not in taken and bag.take(worker) is not None:
            taken[worker] = left - bag.left
        elif step == "leave":
            bag.leave(worker)
            taken.pop(worker, None)
        elif step in {"half", "all"}:
            part = 0.5 if step == "half" else 1.0
            bag.done(worker, part)
            done += part * taken.pop(worker, 0.0)
        assert bag.left + sum(taken.values()) + done == pytest.approx(bag.units)
    assert bag.empty == (bag.left <= 0 and not taken)


def test_nothing_is_given_out_where_nothing_is_left() -> None:
    """A worker that asks while another has the last unit is told to wait, and may have it when that one leaves."""
    bag = Bag([float("inf"), 0.1], 1.0, at=1)
    bag.join(1)
    bag.join(2)
    assert bag.take(1) is not None
    assert bag.take(2) is None
    assert not bag.empty
    bag.leave(1)
    assert bag.take(2) is not None

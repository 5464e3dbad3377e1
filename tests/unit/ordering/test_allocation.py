# SPDX-License-Identifier: Apache-2.0
"""Nodes for a job: all that it insists on is kept, it fits whenever it can, and what is kept for others stays free."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, permutations, product
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.model import LrmJob, LrmJobId, LrmJobState, Node, NodeState, Queue
from koala_adapter.ordering.allocation import (
    Allocation,
    Misfit,
    NodeRelease,
    NodeRoom,
    allocate,
    guard_for,
    guarded_rooms,
    memory_on,
    pools_of,
    rooms_of,
)
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Sequence


def job(processors: int, **wishes: Any) -> LrmJob:  # noqa: ANN401 - fields of many types
    """Return a waiting job."""
    values = {"id": LrmJobId("1"), "name": "x", "state": LrmJobState.HELD, "user": "u", **wishes}
    return LrmJob(processors=processors, **values)


def room(name: str, processors: int, *, memory: int | None = None, **values: Any) -> NodeRoom:  # noqa: ANN401 - likewise
    """Return a node's room."""
    found = Node(name=name, state=NodeState.UP, processors=8, processors_used=8 - processors, **values)
    return NodeRoom(node=found, processors=processors, memory_mib=memory)


def four(*free: int) -> list[NodeRoom]:
    """Return nodes n1, n2 ... with so many processors free."""
    return [room(f"n{number}", count) for number, count in enumerate(free, start=1)]


def given_to(wanted: LrmJob, rooms: Sequence[NodeRoom]) -> dict[str, int]:
    """Return what a job gets by node. Fails when it gets nothing."""
    found = allocate(wanted, rooms)
    assert isinstance(found, Allocation), found
    assert len(found.entries) == found.processors == wanted.processors
    return dict(found.nodes)


def refused(wanted: LrmJob, rooms: Sequence[NodeRoom]) -> str:
    """Return why a job gets nothing. Fails when it gets something."""
    found = allocate(wanted, rooms)
    assert isinstance(found, Misfit), found
    return found.reason


@pytest.mark.parametrize(
    ("wanted", "free", "expected"),
    [
        (job(3), (8, 3, 5), {"n2": 3}),
        (job(10), (4, 8, 2), {"n2": 8, "n3": 2}),
        (job(12), (8, 8, 8, 5), {"n1": 6, "n2": 6}),
        (job(6, nodes_wanted=2), (8, 8, 8, 8), {"n1": 3, "n2": 3}),
        (job(6, nodes_wanted=2), (4, 2, 1, 0), {"n1": 4, "n2": 2}),
        (job(4, nodes_wanted=2), (8, 2, 4, 2), {"n2": 2, "n4": 2}),
        (job(8, nodes_wanted=2, tasks_per_node=4), (8, 3, 4, 4), {"n3": 4, "n4": 4}),
        (job(4, tasks_per_node=1), (8, 8, 8, 8), {"n1": 1, "n2": 1, "n3": 1, "n4": 1}),
        (job(8, processors_per_task=4), (7, 3, 6, 2), {"n1": 4, "n3": 4}),
        (job(4, requested_nodes=("n1",)), (8, 4), {"n1": 4}),
        (job(6, requested_nodes=("n2", "n1")), (8, 2), {"n1": 5, "n2": 1}),
        (job(4, excluded_nodes=("n1",)), (8, 4), {"n2": 4}),
        (job(2, nodes_wanted=8), (8, 8, 8, 8), {"n1": 1, "n2": 1}),
    ],
    ids=["best filled", "few nodes", "same on each", "even", "as even as can be", "small ones first", "per node",
         "spread", "per task", "named", "both named", "excluded", "never more nodes than tasks"],
)  # fmt: skip
def test_nodes_of_a_job(wanted: LrmJob, free: tuple[int, ...], expected: dict[str, int]) -> None:
    """Each wish is kept, and large rooms stay large."""
    assert given_to(wanted, four(*free)) == expected


@pytest.mark.parametrize(
    ("wanted", "free", "reason"),
    [
        (job(9), (4, 4), "needs 9 processors"),
        (job(4, nodes_wanted=2), (8, 0), "on 2 nodes"),
        (job(4, requested_nodes=("n2",)), (8, 0), "insists on n2"),
        (job(1, requested_nodes=("n1", "n2")), (8, 8), "has 1 task"),
        (job(8, processors_per_task=4), (3, 3, 3), "processors per task have 0"),
        (job(4, features=("gpu",)), (8, 8), "features have 0"),
        (job(4, queue="night"), (8, 8), ""),
    ],
)
def test_why_a_job_gets_none(wanted: LrmJob, free: tuple[int, ...], reason: str) -> None:
    """The reason names what is missing; a node that tells of no queue serves all."""
    if reason:
        assert reason in refused(wanted, four(*free))
    else:
        assert given_to(wanted, four(*free))


def test_queue_features_and_memory_choose_nodes() -> None:
    """Only nodes of its queue, with all its features, and with memory for it."""
    rooms = [
        room("day", 8, queues=("day",), features=("fast",), memory=4000),
        room("night", 8, queues=("night",), features=("fast", "gpu"), memory=4000),
    ]
    assert given_to(job(2, queue="night"), rooms) == {"night": 2}
    assert given_to(job(9, queue="d*,night"), rooms).keys() == {"day", "night"}
    assert given_to(job(2, features=("gpu",)), rooms) == {"night": 2}
    assert given_to(job(4, memory_per_processor_mib=2000), rooms) == {"day": 2, "night": 2}
    assert "memory" in refused(job(5, memory_per_processor_mib=2000), rooms)
    assert "memory" in refused(job(1, memory_per_node_mib=4001), rooms)
    assert memory_on(job(4, memory_per_processor_mib=2000), room("n1", 8).node, 2) == 4000
    assert memory_on(job(4, memory_per_node_mib=500), room("n1", 8).node, 2) == 500


def test_rooms_believe_the_greater_count() -> None:
    """Jobs that the LRM has not counted yet, and those that only it knows, both take their room."""
    nodes = [
        Node(name="n1", state=NodeState.UP, processors=8, processors_used=6, memory_mib=100, memory_used_mib=10),
        Node(name="n2", state=NodeState.UP, processors=8, processors_used=0),
        Node(name="n3", state=NodeState.DRAINING, processors=8, processors_used=0),
    ]
    rooms = rooms_of(nodes, {"n1": 4, "n2": 3}, {"n1": 60})
    assert {name: (one.processors, one.memory_mib) for name, one in rooms.items()} == {"n1": (2, 40), "n2": (5, None)}


JOBS = st.builds(
    job,
    st.integers(1, 12),
    nodes_wanted=st.none() | st.integers(1, 4),
    nodes_least=st.integers(1, 3),
    nodes_most=st.none() | st.integers(3, 5),
    tasks_per_node=st.none() | st.integers(1, 4),
    processors_per_task=st.integers(1, 3),
    requested_nodes=st.lists(st.sampled_from(["n1", "n2", "n3"]), unique=True, max_size=2).map(tuple),
    excluded_nodes=st.sampled_from([(), ("n4",), ("n1",)]),
    memory_per_processor_mib=st.sampled_from([None, 10]),
)
ROOMS = st.lists(st.tuples(st.integers(0, 8), st.sampled_from([None, 30, 80])), min_size=1, max_size=4).map(
    lambda free: [room(f"n{number}", count, memory=memory) for number, (count, memory) in enumerate(free, start=1)]
)


def possible(wanted: LrmJob, rooms: Sequence[NodeRoom]) -> bool:
    """Try all ways to give a job nodes."""
    per_task = wanted.processors_per_task
    per_task = per_task if per_task > 1 and wanted.processors % per_task == 0 else 1
    tasks = max(1, wanted.processors // per_task)
    least, most = wanted.node_bounds
    least = min(tasks, max(least, len(wanted.requested_nodes)))
    most = max(least, min(most or tasks, tasks))
    usable = [one for one in rooms if one.node.name not in wanted.excluded_nodes]
    for size in range(least, min(most, len(usable)) + 1):
        for chosen in combinations(usable, size):
            if not set(wanted.requested_nodes) <= {one.node.name for one in chosen}:
                continue
            limits = [
                min(
                    one.processors // per_task,
                    wanted.tasks_per_node or 99,
                    99
                    if one.memory_mib is None or not wanted.memory_per_processor_mib
                    else one.memory_mib // (wanted.memory_per_processor_mib * per_task),
                )
                for one in chosen
            ]
            if any(sum(counts) == tasks for counts in product(*(range(1, limit + 1) for limit in limits))):
                return True
    return False


@examples(100)
@given(JOBS, ROOMS)
def test_it_fits_exactly_when_it_can(wanted: LrmJob, rooms: list[NodeRoom]) -> None:
    """No node is ever exceeded, the count is right, every wish is kept, and no job is passed over that could fit."""
    found = allocate(wanted, rooms)
    assert isinstance(found, Allocation) == possible(wanted, rooms)
    if not isinstance(found, Allocation):
        return
    by_name = {one.node.name: one for one in rooms}
    counts = Counter(found.entries)
    assert len(found.entries) == wanted.processors
    assert dict(found.nodes) == counts
    for name, count in counts.items():
        assert 0 < count <= by_name[name].processors
        assert memory_on(wanted, by_name[name].node, count) <= (by_name[name].memory_mib or 10**6)
    assert not counts.keys() & set(wanted.excluded_nodes)
    assert set(wanted.requested_nodes) <= counts.keys()


def test_nodes_are_kept_for_a_job_that_fits_in_sum_only() -> None:
    """Whoever ends before its earliest start may use its nodes, whoever ends later may not."""
    rooms = {one.node.name: one for one in four(4, 4, 0)}
    releases = [NodeRelease(at=50.0, node="n3", processors=8), NodeRelease(at=100.0, node="n1", processors=4)]
    guard = guard_for(job(8, nodes_wanted=1), rooms, releases)
    assert guard is not None
    assert (guard.at, guard.spare) == (50.0, {"n3": 0})
    guard = guard_for(job(16, nodes_wanted=2), rooms, releases)
    assert guard is not None
    assert (guard.at, guard.spare) == (100.0, {"n3": 0, "n1": 0})
    assert guarded_rooms(rooms, [guard], 100.0)["n1"].processors == 4
    assert guarded_rooms(rooms, [guard], 100.5)["n1"].processors == 0
    assert guarded_rooms(rooms, [guard], 100.5)["n2"].processors == 4
    assert guard_for(job(16, nodes_wanted=1), rooms, releases) is None


@examples(40)
@given(JOBS, ROOMS, st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 4)), max_size=6))
def test_kept_nodes_are_there_in_time(wanted: LrmJob, rooms: list[NodeRoom], ends: list[tuple[int, int, int]]) -> None:
    """When all that others may still take is taken, the job has its nodes at the kept time, and not before."""
    releases = [NodeRelease(at=float(at), node=f"n{number}", processors=count) for at, number, count in sorted(ends)]
    by_name = {one.node.name: one for one in rooms}
    guard = guard_for(wanted, by_name, releases)
    if guard is None:
        return

    def at(time: float) -> list[NodeRoom]:
        back = Counter[str]()
        for release in releases:
            back[release.node] += release.processors if release.at <= time else 0
        return [one.without(-back[one.node.name], 0) for one in rooms]

    left = []
    for one in at(guard.at):
        taken = guarded_rooms(by_name, [guard], guard.at + 1)[one.node.name].processors
        left.append(one.without(taken if one.node.name in guard.spare else one.processors, 0))
    assert isinstance(allocate(wanted, left), Allocation)
    before = max((release.at for release in releases if release.at < guard.at), default=0.0)
    assert guard.at == 0.0 or isinstance(allocate(wanted, at(before)), Misfit)


@pytest.mark.parametrize(
    ("processors", "least", "most", "free", "expected"),
    [
        (3, 2, 3, (8, 8, 8), {1}),
        (3, 2, 3, (8, 8, 0), {1, 2}),
        (6, 2, 3, (8, 8, 8), {3}),
        (8, 1, 2, (3, 3, 3), None),
        (8, 1, 2, (8, 3, 3), {8}),
        (7, 1, 2, (4, 3, 1), {4, 3}),
        (7, 3, 9, (7, 2, 1), {2, 3, 4, 1, 5}),
        (4, 4, None, (8, 8, 8), None),
    ],
)
def test_a_range_of_nodes_is_kept(
    processors: int, least: int, most: int | None, free: tuple[int, ...], expected: set[int] | None
) -> None:
    """However few nodes would do, a job gets as many as its user allows, or waits with that as its reason."""
    found = allocate(job(processors, nodes_least=least, nodes_most=most), four(*free))
    if expected is None:
        assert isinstance(found, Misfit)
        assert "nodes" in found.reason
        return
    assert isinstance(found, Allocation)
    assert least <= len(found.nodes) <= (most or len(found.nodes))
    assert found.processors == processors
    assert {count for _, count in found.nodes} <= expected


def test_pools_do_not_depend_on_the_order_of_the_listing() -> None:
    """The same nodes and queues have the same numbers, in whatever order the batch system shows them."""
    queues = {name: Queue(name=name, up=True, processors=8) for name in ("a", "b")}
    nodes = [room("a1", 4, queues=("a",)).node, room("b1", 4, queues=("b",)).node, room("b2", 4, queues=("b",)).node]
    numbers = {
        tuple(pools_of(listed, queues).nodes[name] for name in ("a1", "b1", "b2")) for listed in permutations(nodes)
    }
    assert numbers == {(0, 1, 1)}

# SPDX-License-Identifier: Apache-2.0
"""The order of waiting jobs, the nodes they get, and laws that hold for any jobs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.lrm.listing import Listing
from koala_adapter.lrm.startlog import entries_of
from koala_adapter.lrm.starts import Starts
from koala_adapter.model import LrmJob, LrmJobId, LrmJobState, Node, NodeState
from koala_adapter.ordering.allocation import (
    NodeRelease,
    NodeRoom,
    allocate,
    guard_for,
    guarded_rooms,
    memory_on,
    rooms_of,
)
from koala_adapter.ordering.jobs import JobEventKind, Rules
from koala_adapter.ordering.mirror import Mirror
from koala_adapter.ordering.shadow import Shadow
from koala_adapter.queueing.backfill import POLICIES, make_cluster_scheduler
from koala_adapter.queueing.queue import ClusterScheduler, PriorityWeights
from tests.examples import examples
from tests.unit.ordering.ordering_site import Listed, node

# -- Jobs wait in the order of their submission, whatever the order and the listing in which a batch system shows them.


IDS = (
    ("8", "9", "10", "11", "100"),
    ("7", "12_2", "12_3", "12_10", "13"),
    ("7", "12.2", "12.3", "12.10", "13"),
    ("7", "12+0", "12+1", "12+10", "13"),
    ("9.server", "12[2].server", "12[10].server", "13.server", "100.server"),
)
"""Ids of Slurm (arrays, heterogeneous jobs), Grid Engine and others, as each of them counts."""

WEIGHTS = (
    PriorityWeights(),
    PriorityWeights(queue_time=0.0, processors=-10.0),
    PriorityWeights(queue_time=1.0, share=7200.0),
)


def listed(id_: str, submitted_at: float, state: LrmJobState) -> LrmJob:
    """Return a job that needs the whole of a small cluster."""
    site = Listed()
    site.submit(id_, 8, submitted_at=submitted_at, state=state)
    return site.jobs[id_]


@st.composite
def showings(draw: st.DrawFn) -> tuple[list[str], list[list[tuple[str, float]]]]:
    """Return ids in the order due, and the listings taken at one time in which they are shown, each in any order."""
    ids = draw(st.sampled_from(IDS))
    later = draw(st.integers(0, len(ids)))
    jobs = [(id_, 999.0 + (number >= later)) for number, id_ in enumerate(ids)]
    first_in = {id_: draw(st.integers(0, 2)) for id_ in ids}
    listings = [draw(st.permutations([job for job in jobs if first_in[job[0]] <= number])) for number in range(3)]
    return list(ids), [list(listing) for listing in listings]


def scheduler_of(policy: str, weights: PriorityWeights) -> ClusterScheduler:
    return make_cluster_scheduler(policy, 0, weights=weights)


@pytest.mark.parametrize("policy", POLICIES)
@given(shown=showings(), weights=st.sampled_from(WEIGHTS))
def test_any_listing_leads_to_the_same_order(
    policy: str, shown: tuple[Sequence[str], Sequence[Sequence[tuple[str, float]]]], weights: PriorityWeights
) -> None:
    """Any permutation, split over any listings taken at one time: the oldest first, then as the LRM counts."""
    ids, listings = shown
    mirror = Mirror(lambda: scheduler_of(policy, weights), Rules(), Starts())
    shadow = Shadow(lambda: scheduler_of(policy, weights), Rules(shadow=True))
    nodes = (node("n1", 8),)
    shadow.observe(Listing(read_at=990.0, jobs=(), nodes=nodes, queues={}))
    blocker = replace(
        listed("1", 980.0, LrmJobState.RUNNING), started_at=985.0, layout=(("n1", 8),), nodes=("n1",), hold=None
    )
    for listing in listings:
        held = tuple(listed(id_, at, LrmJobState.HELD) for id_, at in listing)
        mirror.observe(Listing(read_at=1000.0, jobs=(*held, blocker), nodes=nodes, queues={}))
        queued = tuple(listed(id_, at, LrmJobState.QUEUED) for id_, at in listing)
        shadow.observe(Listing(read_at=1000.0, jobs=queued, nodes=nodes, queues={}))
    (scheduler,) = mirror.schedulers
    scheduler.schedule(1000.0)
    assert [local.id for local in scheduler.waiting] == list(ids)
    later = listed("1000", 1990.0, LrmJobState.QUEUED)
    shadow.observe(Listing(read_at=2000.0, jobs=(*queued, later), nodes=nodes, queues={}))
    starts = {one.ours: one.job_id for one in shadow.report().first_earlier}
    assert [starts[at] for at in sorted(at for at in starts if at is not None)] == [*ids, later.id]


def test_ids_are_no_more_than_told() -> None:
    jobs = [replace(listed("7", 1.0, LrmJobState.HELD), id=LrmJobId(id_)) for id_ in ("7", "07", "007")]
    orders = set()
    for shown in (jobs, jobs[::-1]):
        mirror = Mirror(lambda: make_cluster_scheduler("fcfs", 0), Rules(), Starts())
        mirror.observe(Listing(read_at=2.0, jobs=tuple(shown), nodes=(node("n1", 8),), queues={}))
        orders.add(tuple(local.id for local in mirror.schedulers[0].waiting))
    assert len(orders) == 1


# -- Laws of the live scheduler on random queues: no node is exceeded, nobody starves, every promise is kept.


NODES, EACH = 4, 8
LONGEST = 4000


def wishes(chance: random.Random, processors: int) -> dict[str, Any]:
    """Return what a job insists on besides, often nothing."""
    some: list[Callable[[], dict[str, Any]]] = [
        dict,
        dict,
        lambda: {"nodes_wanted": chance.randint(max(1, -(-processors // EACH)), min(NODES, processors))},
        lambda: {"requested_nodes": (f"n{chance.randint(1, NODES)}",)},
        lambda: {"tasks_per_node": max(1, -(-processors // NODES))},
    ]
    return chance.choice(some)()


class Life:
    """A batch system whose jobs come, run for less than they may, and end."""

    def __init__(self, policy: str, seed: int, *, jobs: int, choosy: bool) -> None:
        self.chance = random.Random(seed)
        self.site = Listed(policy)
        self.run_times: dict[str, int] = {}
        self.started: dict[str, float] = {}
        for number in range(jobs):
            processors = self.chance.choice([1, 2, 3, 5, 8, 12, 16, 24, 32])
            walltime = self.chance.randint(2, 60)
            job_id = str(number)
            more = wishes(self.chance, processors) if choosy else {}
            submitted_at = self.site.now + number / 1000
            self.site.submit(job_id, processors, walltime, submitted_at=submitted_at, **more)
            self.run_times[job_id] = self.chance.randint(1, walltime)

    def step(self) -> None:
        """Let one second pass: jobs end, others start, and the nodes are counted."""
        ending = [id_ for id_, at in self.started.items() if self.site.now + 1 >= at + self.run_times[id_]]
        for job_id in ending:
            del self.started[job_id]
        self.site.end(*ending)
        for job_id in self.site.step():
            assert job_id not in self.started
            self.started[job_id] = self.site.now
        used = Counter[str]()
        for job in self.site.jobs.values():
            for name, count in job.layout:
                used[name] += count
            assert not job.layout or sum(count for _, count in job.layout) == job.processors
        assert all(count <= EACH for count in used.values()), used

    def run(self) -> None:
        """Go on until all jobs are over."""
        for _ in range(LONGEST):
            if not self.site.jobs:
                return
            self.step()
        raise AssertionError(f"still there after {LONGEST} s: {self.site.jobs}")


@pytest.mark.parametrize("policy", POLICIES)
@examples(3)
@given(st.integers(0, 2**32), st.booleans())
def test_every_queue_runs_to_its_end(policy: str, seed: int, choosy: bool) -> None:  # noqa: FBT001 - drawn
    """On no node are ever more processors held than there are, each job starts once, with what it asked for."""
    life = Life(policy, seed, jobs=25, choosy=choosy)
    life.run()
    starts = [one.job_id for one in life.site.told(JobEventKind.START)]
    assert sorted(starts) == sorted(life.run_times)


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative", "firstfit", "bestfit", "greedy", "metacluster"])
@examples(3)
@given(st.integers(0, 2**32))
def test_every_promise_is_kept(policy: str, seed: int) -> None:
    """A job for which a start was reserved never starts later than that, whoever overtook it."""
    life = Life(policy, seed, jobs=25, choosy=False)
    life.run()
    promised = {one.job_id: one.at for one in life.site.told(JobEventKind.RESERVED)}
    started = {one.job_id: one.time for one in life.site.told(JobEventKind.START)}
    assert promised
    for job_id, at in promised.items():
        # Time passes in steps of one second here.
        assert at is not None
        assert started[job_id] <= at + 1


# -- Nodes for a job: all that it insists on is kept, it fits whenever it can, and what is kept for others stays free.


def job(processors: int, **wishes: Any) -> LrmJob:  # noqa: ANN401 - fields of many types
    values = {"id": LrmJobId("1"), "name": "x", "state": LrmJobState.HELD, "user": "u", **wishes}
    return LrmJob(processors=processors, **values)


def room(name: str, processors: int, *, memory: int | None = None, **values: Any) -> NodeRoom:  # noqa: ANN401 - likewise
    found = Node(name=name, state=NodeState.UP, processors=8, processors_used=8 - processors, **values)
    return NodeRoom(node=found, processors=processors, memory_mib=memory)


def four(*free: int) -> list[NodeRoom]:
    """Return nodes n1, n2 ... with so many processors free."""
    return [room(f"n{number}", count) for number, count in enumerate(free, start=1)]


def given_to(wanted: LrmJob, rooms: Sequence[NodeRoom]) -> dict[str, int]:
    """Return what a job gets by node. Fails when it gets nothing."""
    found = allocate(wanted, rooms)
    assert not isinstance(found, str), found
    assert len(entries_of(found)) == wanted.processors
    return dict(found)


def refused(wanted: LrmJob, rooms: Sequence[NodeRoom]) -> str:
    """Return why a job gets nothing. Fails when it gets something."""
    found = allocate(wanted, rooms)
    assert isinstance(found, str), found
    return found


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
    if reason:
        assert reason in refused(wanted, four(*free))
    else:
        assert given_to(wanted, four(*free))


def test_queue_features_and_memory_choose_nodes() -> None:
    rooms = [
        room("day", 8, queues=("day",), features=("fast",), memory=4000),
        room("night", 8, queues=("night",), features=("fast", "gpu"), memory=4000),
    ]
    assert given_to(job(2, queue="night"), rooms) == {"night": 2}
    assert given_to(job(9, queue="d*,night"), rooms).keys() == {"day", "night"}
    assert given_to(job(2, features=("gpu",)), rooms) == {"night": 2}
    assert given_to(job(2, any_feature=("gpu", "tpu")), rooms) == {"night": 2}
    assert given_to(job(2, possible_nodes=frozenset({"night"})), rooms) == {"night": 2}
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


def tasks_and_nodes(wanted: LrmJob) -> tuple[int, int, int, int]:
    """Return the processors of a task, the number of tasks, and the fewest and most nodes for them."""
    per_task = wanted.processors_per_task
    per_task = per_task if per_task > 1 and wanted.processors % per_task == 0 else 1
    tasks = max(1, wanted.processors // per_task)
    least, most = wanted.node_bounds
    least = min(tasks, max(least, len(wanted.requested_nodes)))
    return per_task, tasks, least, max(least, min(most or tasks, tasks))


def possible(wanted: LrmJob, rooms: Sequence[NodeRoom]) -> bool:
    """Try all ways to give a job nodes."""
    per_task, tasks, least, most = tasks_and_nodes(wanted)
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
    assert isinstance(found, str) != possible(wanted, rooms)
    if isinstance(found, str):
        return
    by_name = {one.node.name: one for one in rooms}
    counts = Counter(entries_of(found))
    assert len(entries_of(found)) == wanted.processors
    assert dict(found) == counts
    _, _, least, most = tasks_and_nodes(wanted)
    assert least <= len(counts) <= most
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
    assert not isinstance(allocate(wanted, left), str)
    before = max((release.at for release in releases if release.at < guard.at), default=0.0)
    assert guard.at == 0.0 or isinstance(allocate(wanted, at(before)), str)

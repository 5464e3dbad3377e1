# SPDX-License-Identifier: Apache-2.0
"""Looking at a batch system, what waits there, and the places and slots of its nodes."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import LrmError, LrmUnavailableError
from koala_adapter.lrm.listing import (
    MOST_TOLD,
    Held,
    Listing,
    Watcher,
    count_slots,
    held_on_nodes,
    processors_wanted,
    read_listing,
    slots_ever,
    slots_idle,
)
from koala_adapter.lrm.rate import CircuitBreaker
from koala_adapter.model import LrmJob, LrmJobId, LrmJobState, Node, NodeGpus, NodeState
from koala_adapter.ordering.allocation import allocate, memory_on, rooms_of
from koala_adapter.service.listings import processors_held
from koala_adapter.slots import Slot
from koala_adapter.wiki.reporting import Host, hosts_of_tasks, offer
from koala_slurm.listing import (
    AllocationRules,
    Unit,
    parse_config,
    parse_nodes,
    parse_units,
    parse_whole,
    without_default_memory,
)
from tests.unit.service.scripted_lrm import ScriptedLrm, node

# Looking at a batch system: one look for all who wait, none older than a change, restraint while it fails.

LONG = 600.0
"""Seconds that no test lasts."""


class Watched:
    """A batch system that answers, or not, and who looks at it."""

    def __init__(self, *, failures: int = 2) -> None:
        """It answers at once."""
        self.asked = 0
        self.error: LrmError | None = None
        self.slow = 0.0
        self.told: list[LrmError | None] = []
        breaker = CircuitBreaker(failures=failures, pause=LONG, longest_pause=LONG)
        self.watcher = Watcher(self._read, breaker=breaker, on_trouble=self.told.append)

    async def _read(self) -> int:
        self.asked += 1
        await anyio.sleep(self.slow)
        if self.error is not None:
            raise self.error
        return self.asked

    async def fails(self, *, now: bool = False) -> str:
        """Return why a fresh look fails."""
        with pytest.raises(LrmError) as caught:
            await self.watcher.fresh(within=0.0, now=now)
        return caught.value.message


async def test_all_who_wait_share_one_look() -> None:
    watched = Watched()
    watched.slow = 0.05
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(lambda: watched.watcher.fresh(within=LONG))
    await watched.watcher.fresh(within=LONG)
    assert (watched.asked, watched.watcher.looks) == (1, 1)


async def test_those_who_ask_during_a_look_for_what_is_now_share_the_next() -> None:
    watched = Watched()
    watched.slow = 0.1
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watched.watcher.look)
        await anyio.sleep(0.02)
        for _ in range(5):
            tasks.start_soon(lambda: watched.watcher.fresh(within=LONG, now=True))
    assert watched.asked == 2


async def test_a_look_begun_before_a_change_does_not_do() -> None:
    watched = Watched()
    await watched.watcher.fresh(within=LONG)
    watched.watcher.invalidate()
    await watched.watcher.fresh(within=LONG)
    await watched.watcher.fresh(within=LONG)
    assert watched.asked == 2


async def test_one_that_fails_again_and_again_is_left_alone() -> None:
    """The reason is still told, and it is told to the owner once; who must know now may ask all the same."""
    watched = Watched()
    watched.error = LrmUnavailableError("slurmctld does not answer")
    reasons = [await watched.fails() for _ in range(5)]
    assert set(reasons) == {"slurmctld does not answer"}
    assert (watched.asked, watched.watcher.resting) == (2, True)
    assert await watched.fails(now=True) == "slurmctld does not answer"
    assert watched.told == [watched.error]
    watched.error = None
    await watched.watcher.fresh(within=0.0, now=True)
    assert (watched.watcher.resting, watched.watcher.failure, watched.told[-1]) == (False, None, None)


async def test_a_look_that_failed_serves_nobody() -> None:
    watched = Watched()
    await watched.watcher.fresh(within=LONG)
    watched.watcher.invalidate()
    watched.error = LrmUnavailableError("not now")
    await watched.fails()
    watched.error = None
    await watched.watcher.fresh(within=LONG)
    assert watched.asked == 3


async def test_a_defect_of_a_plugin_is_no_answer() -> None:
    """It is taken for a batch system that is out of reach."""
    lrm = ScriptedLrm()
    lrm.errors["nodes"] = ValueError("a defect")
    with pytest.raises(LrmUnavailableError, match="its plugin failed: ValueError"):
        await read_listing(lrm, cluster="a", read_at=1.0)


async def test_a_look_outlives_who_asked_for_it() -> None:
    answers, asked = anyio.Event(), 0

    async def read() -> int:
        nonlocal asked
        asked += 1
        await answers.wait()
        if asked == 2:
            raise ValueError("a defect")
        return asked

    watcher = Watcher(read, breaker=CircuitBreaker(), on_trouble=lambda _: None)
    async with anyio.create_task_group() as tasks:
        await tasks.start(watcher.run)
        for _ in range(3):
            with anyio.move_on_after(0.02) as scope:
                await watcher.fresh(within=LONG)
            assert scope.cancelled_caught
        under_way = watcher.under_way
        assert under_way is not None
        answers.set()
        await under_way.over.wait()
        await watcher.fresh(within=LONG)
        assert (asked, watcher.looks, watcher.begun_at) == (1, 1, under_way.begun)
        with pytest.raises(ValueError, match="a defect"):
            await watcher.fresh(within=0.0, now=True)
        await watcher.fresh(within=0.0, now=True)
        assert (asked, watcher.looks) == (3, 2)
        tasks.cancel_scope.cancel()


async def test_a_look_that_is_given_up_is_begun_anew_by_the_next_who_waits() -> None:
    watched = Watched()
    watched.slow = LONG
    with anyio.move_on_after(0.02):
        await watched.watcher.fresh(within=LONG)
    watched.slow = 0.0
    await watched.watcher.fresh(within=LONG)
    assert (watched.asked, watched.watcher.looks) == (2, 1)


# Which jobs of a listing wait for processors of some nodes, and for how many.

NOON = 43_200.0
JOB = LrmJob(id=LrmJobId("1"), name="local", state=LrmJobState.QUEUED, user="bob", processors=3)
NODES = (node("n1", queues=("short", "long")), node("n2", queues=("long",)))


def test_in_the_order_of_the_queue() -> None:
    """Each for itself, so that a large one can be told from many small ones, and not many of a long queue."""
    jobs = [replace(JOB, id=LrmJobId(str(number)), processors=number) for number in (4, 1, 2)]
    assert processors_wanted(jobs, NODES, time_of_day=NOON) == (4, 1, 2)
    assert processors_wanted(jobs * 2000, NODES, time_of_day=NOON)[MOST_TOLD - 1 :] == (4,)


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ({}, True),
        ({"state": LrmJobState.RUNNING}, False),
        ({"state": LrmJobState.STARTING}, False),
        ({"state": LrmJobState.HELD}, False),
        ({"state": LrmJobState.UNKNOWN}, False),
        ({"dependent": True}, False),
        ({"blocked": True}, False),
        ({"eligible_at": NOON + 1}, False),
        ({"eligible_at": NOON}, True),
        ({"queue": "long"}, True),
        ({"queue": "debug"}, False),
        ({"queue": "debug,short"}, True),
        ({"requested_nodes": ("n2",)}, True),
        ({"requested_nodes": ("n9",)}, False),
        ({"excluded_nodes": ("n1",)}, True),
        ({"excluded_nodes": ("n1", "n2")}, False),
        ({"processors": 8}, True),
        ({"processors": 9}, False),
    ],
)
def test_only_what_could_be_started_here(changed: dict[str, object], *, counts: bool) -> None:
    job = replace(JOB, **changed)  # type: ignore[arg-type]
    assert bool(processors_wanted([job], NODES, time_of_day=NOON)) == counts


def test_nodes_that_tell_no_queues_may_serve_any() -> None:
    assert processors_wanted([replace(JOB, queue="debug")], (node("n1"),), time_of_day=NOON) == (3,)


PARTICULAR = (
    replace(node("n1", used=3), features=("ib",), gpus=(NodeGpus(kind="", count=2, used=1),), memory_mib=4000,
            memory_used_mib=3000),
    replace(node("n2", used=4), memory_mib=4000, memory_used_mib=1000),
)  # fmt: skip
OURS = {"n1": Held(processors=1, memory_mib=500, gpus=0), "n2": Held(processors=4, memory_mib=1000, gpus=0)}


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ({}, True),
        ({"features": ("ib",), "processors": 2}, True),
        ({"features": ("ib",)}, False),
        ({"features": ("ib", "avx"), "processors": 1}, False),
        ({"any_feature": ("ib", "avx"), "processors": 2}, True),
        ({"any_feature": ("avx", "sse"), "processors": 2}, False),
        ({"gpus_per_node": 1, "processors": 2}, True),
        ({"gpus_per_node": 1}, False),
        ({"gpus_per_node": 2, "processors": 1}, False),
        ({"memory_per_node_mib": 4000}, True),
        ({"memory_per_node_mib": 4001, "processors": 1}, False),
        ({"memory_per_processor_mib": 1500, "processors": 3}, True),
        ({"memory_per_processor_mib": 1501, "processors": 3}, False),
    ],
)
def test_only_those_that_ours_keep_from_starting(changed: dict[str, object], *, counts: bool) -> None:
    """Where a node lacks a feature, a GPU or memory even without ours, no processor of ours helps."""
    job = replace(JOB, **changed)  # type: ignore[arg-type]
    assert bool(processors_wanted([job], PARTICULAR, time_of_day=NOON, ours=OURS)) == counts


def test_what_is_not_known_of_ours_or_of_nodes_excludes_no_job() -> None:
    """GPUs and memory that may be ours, and features and GPUs that the batch system does not tell."""
    gpu, memory = replace(JOB, processors=1, gpus_per_node=2), replace(JOB, processors=1, memory_per_node_mib=4001)
    unknown = {"n1": Held(processors=1, memory_mib=None, gpus=None)}
    assert processors_wanted([gpu, memory], PARTICULAR, time_of_day=NOON, ours=unknown) == (1, 1)
    silent = [replace(one, untold=("features", "gpus")) for one in PARTICULAR]
    assert processors_wanted([gpu, replace(JOB, features=("x",))], silent, time_of_day=NOON, ours=OURS) == (1, 3)


def test_what_ours_hold() -> None:
    """Of slots that are known, with the memory that the site gives where they say none."""
    running = replace(JOB, state=LrmJobState.RUNNING, nodes=("n1",), processors=2)
    jobs = [running, replace(running, id=LrmJobId("2")), replace(running, id=LrmJobId("3"), nodes=("n2",)), JOB]
    slots = {LrmJobId("1"): Slot(gpus=1, memory_mib=300), LrmJobId("2"): Slot(threads=2)}
    held = held_on_nodes(jobs, slots, memory_mib=100)
    assert held == {
        "n1": Held(processors=4, memory_mib=400, gpus=1),
        "n2": Held(processors=2, memory_mib=None, gpus=None),
    }
    assert held_on_nodes(jobs, slots, memory_mib=None)["n1"].memory_mib is None


# Slots counted on nodes: how many of a shape there are ever, and now.


def slotted(name: str = "n1", *, processors: int = 8, used: int = 0, up: bool = True, **more: object) -> Node:
    return Node(
        name=name,
        state=NodeState.UP if up else NodeState.DOWN,
        processors=processors,
        processors_used=used,
        **more,  # type: ignore[arg-type]  # fields of Node
    )


GPUS = (NodeGpus(kind="a100", count=4, used=1), NodeGpus(kind="v100", count=2))


@pytest.mark.parametrize(
    ("slot", "nodes", "most", "idle"),
    [
        (Slot(threads=4), [slotted(str(n), processors=4, used=2) for n in range(3)], 3, 0),
        (Slot(threads=2), [slotted(str(n), processors=4, used=2) for n in range(3)], 6, 3),
        (Slot(threads=3), [slotted(processors=8, used=1)], 2, 2),
        (Slot(threads=3), [slotted(processors=8, grain=2)], 2, 2),
        (Slot(threads=2), [slotted(processors=8, grain=2)], 4, 4),
        (Slot(threads=2), [slotted(processors=8, grain=2, used=3, counts_grains=False)], 4, 1),
        (Slot(threads=2), [slotted(up=False)], 4, 0),
        (Slot(exclusive=True), [slotted(), slotted("n2", used=1)], 2, 1),
        (Slot(threads=2), [slotted(queues=("q",), whole_queues=("q",))], 1, 1),
        (Slot(memory_mib=3000), [slotted(memory_mib=8000, memory_used_mib=4000)], 2, 1),
        (Slot(memory_mib=3000), [slotted(memory_mib=8000)], 2, 2),
        (Slot(memory_mib=3000), [slotted()], 8, 8),
        (Slot(scratch_mib=500), [slotted(disk_mib=1000)], 2, 2),
        (Slot(gpus=1), [slotted(gpus=GPUS)], 6, 5),
        (Slot(gpus=2, gpu_kind="a100"), [slotted(gpus=GPUS)], 2, 1),
        (Slot(features=("avx",)), [slotted(features=("avx", "ib")), slotted("n2")], 8, 8),
        (Slot(queue="gpu"), [slotted(queues=("gpu",)), slotted("n2", queues=("q",))], 8, 8),
        (Slot(queue="gpu"), [slotted(queues=("gpu",), closed_queues=("gpu",))], 8, 0),
        (Slot(threads=2), [slotted(queue_places=(("q", 3, 1),), queues=("q",))], 3, 1),
    ],
)
def test_slots_of_nodes(slot: Slot, nodes: list[Node], most: int, idle: int) -> None:
    count = count_slots(nodes, slot, queue="q")
    assert (count.most, count.idle) == (most, idle)
    assert count.other_queue == (slot.queue == "gpu")
    assert count.lack == ""


@pytest.mark.parametrize(
    ("slot", "lack"),
    [
        (Slot(threads=16), "no node is large enough: n2, the nearest, does not have 16 processors (it has 12)"),
        (
            Slot(memory_mib=9000),
            "no node is large enough: n2, the nearest, does not have 9000 MiB of memory (it has 4000)",
        ),
        (
            Slot(gpus=1, gpu_kind="h100"),
            "no node is large enough: n2, the nearest, does not have 1 GPU of kind h100 (it has none)",
        ),
        (Slot(features=("avx", "ib")), "no node is large enough: n1, the nearest, does not have feature ib"),
        (Slot(queue="long"), "no node serves queue 'long'"),
    ],
)
def test_what_the_nearest_node_lacks(slot: Slot, lack: str) -> None:
    nodes = [
        slotted(memory_mib=2000, features=("avx",), queues=("q",)),
        slotted("n2", processors=12, memory_mib=4000, queues=("q",)),
    ]
    count = count_slots(nodes, slot, queue=None)
    assert (count.most, count.lack) == (0, lack)


SLOTTED = st.lists(
    st.builds(
        slotted,
        name=st.text("abc", min_size=1, max_size=3),
        processors=st.integers(1, 32),
        used=st.integers(0, 32),
        up=st.booleans(),
        grain=st.sampled_from([1, 2]),
        counts_grains=st.booleans(),
    ),
    max_size=6,
)


@given(nodes=SLOTTED)
def test_plain_slots_are_the_places_of_the_nodes(nodes: list[Node]) -> None:
    """A job of a processor and a slot of one processor are the same."""
    count = count_slots(nodes, Slot(), queue=None)
    assert count.most == sum(one.places(None) for one in nodes)
    assert count.idle == sum(one.places_idle(None) for one in nodes)


@given(nodes=SLOTTED, threads=st.integers(1, 8), more=st.integers(1, 8))
def test_larger_slots_are_no_more(nodes: list[Node], threads: int, more: int) -> None:
    """As many slots as there are fit together, and needing more never makes them more."""
    small, large = (count_slots(nodes, Slot(threads=size), queue=None) for size in (threads, threads + more))
    assert large.most <= small.most
    assert large.idle <= small.idle <= small.most
    assert small.most * threads <= sum(one.processors + one.grain - 1 for one in nodes)


def test_what_is_not_told_is_not_lacking() -> None:
    """A node of which the batch system does not tell GPUs, or features, may have them; jobs are not kept from it."""
    plain = Node(name="n1", state=NodeState.UP, processors=4, processors_used=0)
    wanted = (Slot(gpus=1), Slot(gpus=1, gpu_kind="a100"), Slot(features=("ib",)))
    assert [slots_ever(plain, slot, None) for slot in wanted] == [0, 0, 0]
    silent = replace(plain, untold=("gpus", "gpu_kind", "features"))
    assert [slots_idle(silent, slot, None) for slot in wanted] == [4, 4, 4]
    kinds = replace(plain, gpus=(NodeGpus(kind="", count=2, used=1),), untold=("gpu_kind",))
    assert (slots_ever(kinds, wanted[1], None), slots_idle(kinds, wanted[1], None)) == (2, 1)


# Places for jobs of one processor: nodes whose processors are threads of cores, or are given as a whole.

THREADS = ("n1", "n2")


def threaded_node(name: str = "n1", **changes: object) -> Node:
    """Return a node of eight processors, by default the threads of four cores."""
    values: dict[str, object] = {
        "name": name,
        "state": NodeState.UP,
        "processors": 8,
        "processors_used": 0,
        "queues": ("main", "whole"),
        "grain": 2,
        "whole_queues": ("whole",),
    }
    return Node(**{**values, **changes})  # type: ignore[arg-type]


def job(processors: int, **changes: object) -> LrmJob:
    """Return a waiting job."""
    values: dict[str, object] = {
        "id": LrmJobId("7"),
        "name": "j",
        "state": LrmJobState.QUEUED,
        "user": "ann",
        "processors": processors,
        "queue": "main",
    }
    return LrmJob(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("used", "queue", "places", "idle"),
    [(0, "main", 4, 4), (6, "main", 4, 1), (0, "whole", 1, 1), (2, "whole", 1, 0), (0, None, 4, 4), (8, "main", 4, 0)],
)
def test_places_of_a_node(used: int, queue: str | None, places: int, idle: int) -> None:
    one = threaded_node(processors_used=used)
    assert (one.places(queue), one.places_idle(queue)) == (places, idle)
    listing = Listing(read_at=0.0, jobs=(), nodes=(one, one), queue=queue)
    assert (listing.processors, listing.idle) == (2 * places, 2 * idle)
    closed = replace(one, closed_queues=("main", "whole", ""))
    assert (closed.places_idle(queue), closed.places_idle("other")) == (0, one.places_idle("other"))


def test_threads_that_are_counted_singly_keep_others_from_their_core() -> None:
    """Slurm with CR_CPU counts one thread for a job, and gives the other thread of its core to no other job."""
    assert [threaded_node(processors_used=used, counts_grains=False).places_idle("main") for used in (0, 1, 4, 8)] == [
        4,
        3,
        0,
        0,
    ]


def test_our_jobs_are_a_place_each() -> None:
    running = [job(count, state=LrmJobState.RUNNING) for count in (2, 8)]
    assert processors_held(running) == 2


@pytest.mark.parametrize(
    ("waiting", "queue", "places"),
    [
        (job(3), "main", 2),
        (job(1), "main", 1),
        (job(1, exclusive=True), "main", 4),
        (job(1, queue="whole"), "main", 4),
        (job(9, queue="whole"), "whole", 2),
    ],
)
def test_what_others_wait_for_is_rounded_up(waiting: LrmJob, queue: str, places: int) -> None:
    assert processors_wanted([waiting], [threaded_node(), threaded_node("n2")], time_of_day=0.0, queue=queue) == (
        places,
    )


def start(wanted: LrmJob, used: int = 0) -> tuple[tuple[str, int], ...]:
    """Return where an outside scheduler starts a job on two nodes; nothing when it has no room."""
    found = allocate(wanted, rooms_of([threaded_node(n, processors_used=used) for n in THREADS], {}, {}).values())
    return () if isinstance(found, str) else found


def test_room_for_jobs_from_outside() -> None:
    assert start(job(3)) == (("n1", 3),)
    assert threaded_node().gives(job(3), 3) == 4
    assert start(job(1, exclusive=True)) == (("n1", 1),)
    assert threaded_node().gives(job(1, exclusive=True), 1) == 8
    assert start(job(1, exclusive=True), used=2) == ()
    assert start(job(1), used=7) == ()
    assert start(job(2), used=6) == (("n1", 2),)


def test_a_job_in_a_queue_that_gives_whole_nodes_takes_them() -> None:
    for queue in ("whole", "main,whole"):
        assert threaded_node().gives(job(1, queue=queue), 1) == 8
        assert start(job(1, queue=queue), used=2) == ()
        assert start(job(1, queue=queue)) == (("n1", 1),)


@pytest.mark.parametrize(
    ("wishes", "processors", "held", "most"),
    [
        ({}, 3, 4, 8),
        ({"threads_per_core": 1}, 3, 6, 4),
        ({"threads_per_core": 2}, 3, 4, 8),
        ({"threads_per_core": 1, "processors_per_task": 2}, 2, 4, 4),
        ({"threads_per_core": 1, "processors_per_task": 3}, 3, 6, 3),
        ({"tasks_per_core": 1}, 3, 6, 4),
        ({"tasks_per_core": 2}, 3, 4, 8),
        ({"tasks_per_core": 1, "processors_per_task": 2}, 4, 4, 8),
        ({"tasks_per_core": 1, "processors_per_task": 3}, 3, 4, 6),
    ],
)
def test_jobs_that_leave_threads_of_their_cores_idle(
    wishes: dict[str, object], processors: int, held: int, most: int
) -> None:
    """They take more than they ask for: a node has room for fewer of their processors."""
    wanted = job(processors, **wishes)
    assert threaded_node().gives(wanted, processors) == held
    per_task = wanted.processors_per_task
    fits = [count for count in range(per_task, 9, per_task) if start(job(count, nodes_wanted=1, **wishes))]
    assert max(fits) == most
    assert all(threaded_node().gives(job(count, **wishes), count) <= 8 for count in fits)


@pytest.mark.parametrize(
    ("wishes", "memory"),
    [({}, 2000), ({"threads_per_core": 1}, 1000), ({"tasks_per_core": 1}, 2000)],
)
def test_memory_by_processor_is_had_for_each_thread_of_its_cores(wishes: dict[str, object], memory: int) -> None:
    wanted = job(1, memory_per_processor_mib=1000, **wishes)
    assert memory_on(wanted, threaded_node(), 1) == memory
    assert memory_on(wanted, threaded_node(counts_grains=False), 1) == 1000
    for size in (memory, memory - 1):
        found = allocate(wanted, rooms_of([threaded_node(memory_mib=size)], {}, {}).values())
        assert isinstance(found, str) is (size < memory)


def test_what_waits_is_told_rounded_up_by_wiki() -> None:
    """A peer counts tasks, so that it is told of as many as threads are taken; the job itself gets its own."""
    hosts = [Host.of(name, threaded_node(name)) for name in THREADS]
    assert offer(job(3), hosts).tasks == 4
    assert offer(job(12), hosts).tasks == 12
    two = offer(job(3, nodes_wanted=2), hosts)
    assert (two.tasks, two.nodes, two.tasks_per_node) == (4, 2, 2)
    assert hosts_of_tasks(job(3), ["n1"] * 4) == ("n1",) * 3
    assert offer(job(4, processors_per_task=2), hosts).tasks == 2
    assert offer(job(3, threads_per_core=1), hosts).tasks == 6
    assert offer(job(3, tasks_per_core=1), hosts).tasks == 6
    assert "threads of its cores" in offer(job(4, processors_per_task=2, threads_per_core=1), hosts).obstacle


@pytest.mark.parametrize(
    ("select", "unit", "grain", "whole"),
    [
        ("select/cons_tres\nSelectTypeParameters = CR_CORE", Unit.CORE, 2, ()),
        ("select/cons_tres\nSelectTypeParameters = CR_CORE_MEMORY,CR_ONE_TASK_PER_CORE", Unit.CORE, 2, ()),
        ("select/cons_tres\nSelectTypeParameters = CR_CPU_MEMORY", Unit.CPU, 2, ()),
        ("select/cons_res\nSelectTypeParameters = CR_SOCKET", Unit.SOCKET, 4, ()),
        ("select/linear\nSelectTypeParameters = CR_MEMORY", Unit.NODE, 1, ("main", "")),
    ],
)
def test_what_slurm_gives_to_one_job(select: str, unit: Unit, grain: int, whole: tuple[str, ...]) -> None:
    """Threads, cores, sockets or nodes, by SelectTypeParameters."""
    assert parse_config(f"SelectType = {select}\n").unit is unit
    row = "n1|main*|idle|0/8/0/8|4000|0.1|(null)|0|2|2|up|NO"
    (found,) = parse_nodes(row.replace("|", "\x1f"), AllocationRules(unit=unit))
    assert (found.grain, found.whole_queues, found.closed_queues) == (grain, whole, ())


PARTITIONS = (
    "PartitionName=main State=UP SelectTypeParameters=NONE\n"
    "PartitionName=sockets State=UP SelectTypeParameters=CR_SOCKET_MEMORY\n"
    "PartitionName=cores State=UP SelectTypeParameters=CR_CORE\n"
)


@pytest.mark.parametrize(
    ("unit", "units"),
    [
        (Unit.CORE, {"sockets": Unit.SOCKET}),
        (Unit.SOCKET, {"cores": Unit.CORE}),
        (Unit.CPU, {}),
        (Unit.NODE, {}),
    ],
)
def test_partitions_that_give_something_else(unit: Unit, units: dict[str, Unit]) -> None:
    """Their own setting counts where the whole cluster gives cores or sockets (slurm.conf(5))."""
    assert parse_units(PARTITIONS, unit) == units


def test_places_of_a_node_in_partitions_that_give_different_things() -> None:
    row = "n1|{}|idle|0/8/0/8|4000|0.1|(null)|0|2|2|up|NO".replace("|", "\x1f")
    text = "\n".join(row.format(name) for name in ("main*", "sockets"))
    rules = AllocationRules(unit=Unit.CORE, units={"sockets": Unit.SOCKET})
    (found,) = parse_nodes(text, rules)
    assert [found.places(queue) for queue in ("main", "sockets", None)] == [4, 2, 4]
    assert [found.places_idle(queue) for queue in ("main", "sockets", None)] == [4, 2, 4]
    assert [found.gives(job(1, queue=queue), 1) for queue in ("main", "sockets", "main,sockets")] == [2, 4, 4]
    (found,) = parse_nodes(text.replace("sockets", "sockets*"), rules)
    assert found.places(None) == 2
    rooms = tuple(rooms_of([found], {}, {}).values())
    assert not isinstance(allocate(job(5, queue="sockets"), rooms), str)
    assert Host.of("n1", found).grain == 4


@pytest.mark.parametrize(
    ("available", "sharing", "closed", "whole"),
    [
        ("up", "EXCLUSIVE", (), ("main", "")),
        ("inactive", "NO", ("main", ""), ()),
        ("down", "FORCE:4", ("main", ""), ()),
        ("drain", "NO", ("main", ""), ()),
    ],
)
def test_partitions_that_are_closed_or_give_whole_nodes(
    available: str, sharing: str, closed: tuple[str, ...], whole: tuple[str, ...]
) -> None:
    fields = ("4000", "0.1", "(null)", "0", "1", "4")
    rows = (
        ("n1", "main*", "idle", "0/4/0/4", *fields, available, sharing),
        ("n1", "other", "idle", "0/4/0/4", *fields, "up", "NO"),
    )
    text = "\n".join("\x1f".join(row) for row in rows)
    (found,) = parse_nodes(text)
    assert (found.closed_queues, found.whole_queues) == (closed, whole)
    (found,) = parse_nodes(text, AllocationRules(has_default=False))
    assert "" not in {*found.closed_queues, *found.whole_queues}


def test_partitions_of_whole_nodes_of_which_the_listing_of_nodes_does_not_tell() -> None:
    """From 26.05 on, that of the partitions does."""
    shown = "\n".join(f"PartitionName={name} Exclusive={what} State=UP" for name, what in (("a", "NODE"), ("b", "NO")))
    text = "\n".join(f"n1|{name}|idle|0/4/0/4|4000|0.1|(null)|0|1|4|up|NO".replace("|", "\x1f") for name in ("a*", "b"))
    (found,) = parse_nodes(text, AllocationRules(whole=parse_whole(shown + "\nPartitionName=c State=UP")))
    assert found.whole_queues == ("a", "")
    assert (found.places("a"), found.places("b"), found.gives(job(1, queue="a"), 1)) == (1, 4, 4)


@pytest.mark.parametrize(
    ("config", "partition", "names"),
    [
        ("CR_Core_Memory\nDefMemPerNode = UNLIMITED", "DefMemPerNode=UNLIMITED", ("main",)),
        ("CR_Core_Memory\nDefMemPerNode = UNLIMITED", "DefMemPerCPU=1000", ()),
        ("CR_Core_Memory\nDefMemPerCPU = 2000", "DefMemPerNode=UNLIMITED", ()),
        ("CR_Core\nDefMemPerNode = UNLIMITED", "DefMemPerNode=UNLIMITED", ()),
    ],
)
def test_where_a_placeholder_gets_a_whole_nodes_memory(config: str, partition: str, names: tuple[str, ...]) -> None:
    """Where memory is counted, and neither slurm.conf nor the partition has a default for jobs that ask for none."""
    found = parse_config(f"SelectType = select/cons_tres\nSelectTypeParameters = {config}\n")
    shown = without_default_memory(f"PartitionName=main State=UP {partition} MaxMemPerNode=UNLIMITED\n")
    assert (shown if found.whole_memory else ()) == names

# SPDX-License-Identifier: Apache-2.0
"""Places for jobs of one processor: nodes whose processors are threads of cores, or are given as a whole."""

from __future__ import annotations

import pytest

from koala_adapter.lrm.listing import Listing, processors_wanted
from koala_adapter.model import LrmJob, LrmJobId, LrmJobState, Node, NodeState
from koala_adapter.ordering.allocation import Allocation, allocate, memory_on, rooms_of
from koala_adapter.service.listings import processors_held
from koala_adapter.wiki.reporting import Host, dealt, offer
from koala_slurm.listing import Unit, parse_config, parse_nodes, parse_units, parse_whole, without_default_memory

THREADS = ("n1", "n2")


def node(name: str = "n1", **changes: object) -> Node:
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
    """A placeholder takes a core, or the node."""
    one = node(processors_used=used)
    assert (one.places(queue), one.places_idle(queue)) == (places, idle)
    listing = Listing(read_at=0.0, jobs=(), nodes=(one, one), queue=queue)
    assert (listing.processors, listing.idle) == (2 * places, 2 * idle)


def test_threads_that_are_counted_singly_keep_others_from_their_core() -> None:
    """Slurm with CR_CPU counts one thread for a job, and gives the other thread of its core to no other job."""
    assert [node(processors_used=used, counts_grains=False).places_idle("main") for used in (0, 1, 4, 8)] == [
        4,
        3,
        0,
        0,
    ]


def test_a_closed_queue_has_no_idle_places() -> None:
    """A partition that is down; another one on the same node is open."""
    one = node(closed_queues=("main", ""))
    assert (one.places_idle("main"), one.places_idle(None), one.places_idle("other")) == (0, 0, 4)


def test_our_jobs_are_a_place_each() -> None:
    """Slurm counts both threads, or all processors of the node."""
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
    """It is told in places, as what is idle."""
    assert processors_wanted([waiting], [node(), node("n2")], time_of_day=0.0, queue=queue) == (places,)


def start(wanted: LrmJob, used: int = 0) -> tuple[tuple[str, int], ...]:
    """Return where an outside scheduler starts a job on two nodes; nothing when it has no room."""
    found = allocate(wanted, rooms_of([node(n, processors_used=used) for n in THREADS], {}, {}).values())
    return found.nodes if isinstance(found, Allocation) else ()


def test_room_for_jobs_from_outside() -> None:
    """A job asks for threads and takes cores; one that has its nodes for itself takes only idle ones, as a whole."""
    assert start(job(3)) == (("n1", 3),)
    assert node().gives(job(3), 3) == 4
    assert start(job(1, exclusive=True)) == (("n1", 1),)
    assert node().gives(job(1, exclusive=True), 1) == 8
    assert start(job(1, exclusive=True), used=2) == ()
    assert start(job(1), used=7) == ()
    assert start(job(2), used=6) == (("n1", 2),)


def test_a_job_in_a_queue_that_gives_whole_nodes_takes_them() -> None:
    """As if it had asked for them itself; also where it may run in another queue."""
    for queue in ("whole", "main,whole"):
        assert node().gives(job(1, queue=queue), 1) == 8
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
    assert node().gives(wanted, processors) == held
    per_task = wanted.processors_per_task
    fits = [count for count in range(per_task, 9, per_task) if start(job(count, nodes_wanted=1, **wishes))]
    assert max(fits) == most
    assert all(node().gives(job(count, **wishes), count) <= 8 for count in fits)


@pytest.mark.parametrize(
    ("wishes", "memory"),
    [({}, 2000), ({"threads_per_core": 1}, 1000), ({"tasks_per_core": 1}, 2000)],
)
def test_memory_by_processor_is_had_for_each_thread_of_its_cores(wishes: dict[str, object], memory: int) -> None:
    """But for threads that a job does not use; a node has room for no more of it."""
    wanted = job(1, memory_per_processor_mib=1000, **wishes)
    assert memory_on(wanted, node(), 1) == memory
    assert memory_on(wanted, node(counts_grains=False), 1) == 1000
    for size in (memory, memory - 1):
        found = allocate(wanted, rooms_of([node(memory_mib=size)], {}, {}).values())
        assert isinstance(found, Allocation) is (size >= memory)


def test_what_waits_is_told_rounded_up_by_wiki() -> None:
    """A peer counts tasks, so that it is told of as many as threads are taken; the job itself gets its own."""
    hosts = [Host.of(name, node(name)) for name in THREADS]
    assert offer(job(3), hosts).tasks == 4
    assert offer(job(12), hosts).tasks == 12
    two = offer(job(3, nodes_wanted=2), hosts)
    assert (two.tasks, two.nodes, two.tasks_per_node) == (4, 2, 2)
    assert dealt(job(3), ["n1"] * 4) == ("n1",) * 3
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
    (found,) = parse_nodes("n1|main*|idle|0/8/0/8|4000|0.1|(null)|0|2|2|up|NO".replace("|", "\x1f"), unit=unit)
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
    """Each queue has its own number of them; a job that may run in both is counted with the larger part."""
    row = "n1|{}|idle|0/8/0/8|4000|0.1|(null)|0|2|2|up|NO".replace("|", "\x1f")
    text = "\n".join(row.format(name) for name in ("main*", "sockets"))
    (found,) = parse_nodes(text, unit=Unit.CORE, units={"sockets": Unit.SOCKET})
    assert [found.places(queue) for queue in ("main", "sockets", None)] == [4, 2, 4]
    assert [found.places_idle(queue) for queue in ("main", "sockets", None)] == [4, 2, 4]
    assert [found.gives(job(1, queue=queue), 1) for queue in ("main", "sockets", "main,sockets")] == [2, 4, 4]
    (found,) = parse_nodes(text.replace("sockets", "sockets*"), unit=Unit.CORE, units={"sockets": Unit.SOCKET})
    assert found.places(None) == 2
    rooms = tuple(rooms_of([found], {}, {}).values())
    assert isinstance(allocate(job(5, queue="sockets"), rooms), Allocation)
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
    """The default partition stands for jobs that name none, too; other partitions of a node are not concerned."""
    fields = ("4000", "0.1", "(null)", "0", "1", "4")
    rows = (
        ("n1", "main*", "idle", "0/4/0/4", *fields, available, sharing),
        ("n1", "other", "idle", "0/4/0/4", *fields, "up", "NO"),
    )
    text = "\n".join("\x1f".join(row) for row in rows)
    (found,) = parse_nodes(text)
    assert (found.closed_queues, found.whole_queues) == (closed, whole)
    (found,) = parse_nodes(text, has_default=False)
    assert "" not in {*found.closed_queues, *found.whole_queues}


def test_partitions_of_whole_nodes_of_which_the_listing_of_nodes_does_not_tell() -> None:
    """From 26.05 on, that of the partitions does."""
    shown = "\n".join(f"PartitionName={name} Exclusive={what} State=UP" for name, what in (("a", "NODE"), ("b", "NO")))
    text = "\n".join(f"n1|{name}|idle|0/4/0/4|4000|0.1|(null)|0|1|4|up|NO".replace("|", "\x1f") for name in ("a*", "b"))
    (found,) = parse_nodes(text, whole=parse_whole(shown + "\nPartitionName=c State=UP"))
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

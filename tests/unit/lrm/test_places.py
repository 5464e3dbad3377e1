# SPDX-License-Identifier: Apache-2.0
"""Places for jobs of one processor: nodes whose processors are threads of cores, or are given as a whole."""

from __future__ import annotations

import pytest

from koala_adapter.lrm.listing import Listing, processors_wanted
from koala_adapter.model import LrmJob, LrmJobId, LrmJobState, Node, NodeState
from koala_adapter.ordering.allocation import Allocation, allocate, held_on, rooms_of
from koala_adapter.service.listings import processors_held
from koala_adapter.wiki.reporting import Host, dealt, offer
from koala_slurm.listing import Unit, parse_config, parse_nodes, without_default_memory

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
    assert held_on(job(3), node(), 3) == 4
    assert start(job(1, exclusive=True)) == (("n1", 1),)
    assert held_on(job(1, exclusive=True), node(), 1) == 8
    assert start(job(1, exclusive=True), used=2) == ()
    assert start(job(1), used=7) == ()
    assert start(job(2), used=6) == (("n1", 2),)


def test_what_waits_is_told_rounded_up_by_wiki() -> None:
    """A peer counts tasks, so that it is told of as many as threads are taken; the job itself gets its own."""
    hosts = [Host.of(name, node(name)) for name in THREADS]
    assert offer(job(3), hosts).tasks == 4
    assert offer(job(12), hosts).tasks == 12
    two = offer(job(3, nodes_wanted=2), hosts)
    assert (two.tasks, two.nodes, two.tasks_per_node) == (4, 2, 2)
    assert dealt(job(3), ["n1"] * 4) == ("n1",) * 3
    assert offer(job(4, processors_per_task=2), hosts).tasks == 2


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

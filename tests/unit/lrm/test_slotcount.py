# SPDX-License-Identifier: Apache-2.0
"""Slots counted on nodes: how many of a shape there are ever, and now."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.lrm.slotcount import count_slots, slots_ever, slots_idle
from koala_adapter.model import Node, NodeGpus, NodeState
from koala_adapter.slots import Slot


def node(name: str = "n1", *, processors: int = 8, used: int = 0, up: bool = True, **more: object) -> Node:
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
        (Slot(threads=4), [node(str(n), processors=4, used=2) for n in range(3)], 3, 0),
        (Slot(threads=2), [node(str(n), processors=4, used=2) for n in range(3)], 6, 3),
        (Slot(threads=3), [node(processors=8, used=1)], 2, 2),
        (Slot(threads=3), [node(processors=8, grain=2)], 2, 2),
        (Slot(threads=2), [node(processors=8, grain=2)], 4, 4),
        (Slot(threads=2), [node(processors=8, grain=2, used=3, counts_grains=False)], 4, 1),
        (Slot(threads=2), [node(up=False)], 4, 0),
        (Slot(exclusive=True), [node(), node("n2", used=1)], 2, 1),
        (Slot(threads=2), [node(queues=("q",), whole_queues=("q",))], 1, 1),
        (Slot(memory_mib=3000), [node(memory_mib=8000, memory_used_mib=4000)], 2, 1),
        (Slot(memory_mib=3000), [node(memory_mib=8000)], 2, 2),
        (Slot(memory_mib=3000), [node()], 8, 8),
        (Slot(scratch_mib=500), [node(disk_mib=1000)], 2, 2),
        (Slot(gpus=1), [node(gpus=GPUS)], 6, 5),
        (Slot(gpus=2, gpu_kind="a100"), [node(gpus=GPUS)], 2, 1),
        (Slot(features=("avx",)), [node(features=("avx", "ib")), node("n2")], 8, 8),
        (Slot(queue="gpu"), [node(queues=("gpu",)), node("n2", queues=("q",))], 8, 8),
        (Slot(queue="gpu"), [node(queues=("gpu",), closed_queues=("gpu",))], 8, 0),
        (Slot(threads=2), [node(queue_places=(("q", 3, 1),), queues=("q",))], 3, 1),
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
        node(memory_mib=2000, features=("avx",), queues=("q",)),
        node("n2", processors=12, memory_mib=4000, queues=("q",)),
    ]
    count = count_slots(nodes, slot, queue=None)
    assert (count.most, count.lack) == (0, lack)


NODES = st.lists(
    st.builds(
        node,
        name=st.text("abc", min_size=1, max_size=3),
        processors=st.integers(1, 32),
        used=st.integers(0, 32),
        up=st.booleans(),
        grain=st.sampled_from([1, 2]),
        counts_grains=st.booleans(),
    ),
    max_size=6,
)


@given(nodes=NODES)
def test_plain_slots_are_the_places_of_the_nodes(nodes: list[Node]) -> None:
    """A job of a processor and a slot of one processor are the same."""
    count = count_slots(nodes, Slot(), queue=None)
    assert count.most == sum(one.places(None) for one in nodes)
    assert count.idle == sum(one.places_idle(None) for one in nodes)


@given(nodes=NODES, threads=st.integers(1, 8), more=st.integers(1, 8))
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

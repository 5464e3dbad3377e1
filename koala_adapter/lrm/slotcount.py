# SPDX-License-Identifier: Apache-2.0
"""Counting slots on the nodes of a cluster: how many of a shape they hold ever, and now. These functions are pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import NodeState
from koala_adapter.slots import SlotCount

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from koala_adapter.model import Node, NodeGpus
    from koala_adapter.slots import Slot


def count_slots(nodes: Iterable[Node], slot: Slot, *, queue: str | None) -> SlotCount:
    """Return how many slots of a shape nodes have. ``queue``: that of jobs which name none."""
    wanted = slot.queue or queue
    serving = [node for node in nodes if _serves(node, wanted)]
    holding = [(node, ever) for node in serving if (ever := slots_ever(node, slot, wanted))]
    most = sum(ever for _, ever in holding)
    places = [-(-node.places(wanted) // ever) for node, ever in holding]
    return SlotCount(
        slot=slot,
        most=most,
        idle=sum(slots_idle(node, slot, wanted) for node, _ in holding),
        processors=max(1, min(places, default=slot.threads)),
        other_queue=bool(slot.queue) and queue is not None and slot.queue != queue,
        lack="" if most else _lack(serving, slot, wanted),
    )


def slots_ever(node: Node, slot: Slot, queue: str | None) -> int:
    """Return how many slots a node holds when nothing else runs on it, whatever its state."""
    if any(_lacking(node, slot)):
        return 0
    cores = -(-slot.threads // node.grain_in(queue))
    bounds = [min(node.places(queue), -(-node.processors // node.grain_in(queue)) // cores)]
    if slot.exclusive or (queue or "") in node.whole_queues:
        bounds = [1 if node.processors >= slot.threads and node.places(queue) else 0]
    if slot.memory_mib and node.memory_mib is not None:
        bounds.append(node.memory_mib // slot.memory_mib)
    if slot.scratch_mib and node.disk_mib is not None:
        bounds.append(node.disk_mib // slot.scratch_mib)
    if slot.gpus and "gpus" not in node.untold:
        bounds.append(_gpus(node, slot.gpu_kind) // slot.gpus)
    return max(0, min(bounds))


def slots_idle(node: Node, slot: Slot, queue: str | None) -> int:
    """Return how many slots a new job could get on a node now."""
    if node.state is not NodeState.UP or (queue or "") in node.closed_queues:
        return 0
    if (slot.exclusive or (queue or "") in node.whole_queues) and node.processors_used:
        return 0
    grain = node.grain_in(queue)
    cores = -(-slot.threads // grain)
    if node.counts_grains:
        idle = node.processors_idle // grain
    else:
        idle = min(node.processors_idle, max(0, -(-node.processors // grain) - node.processors_used))
    bounds = [slots_ever(node, slot, queue), idle // cores]
    if slot.exclusive or (queue or "") in node.whole_queues:
        bounds = [slots_ever(node, slot, queue)]
    bounds += [now for name, _, now in node.queue_places if name == (queue or "")]
    if slot.memory_mib and node.memory_mib is not None and node.memory_used_mib is not None:
        bounds.append((node.memory_mib - node.memory_used_mib) // slot.memory_mib)
    if slot.gpus and "gpus" not in node.untold:
        used = sum(one.used for one in _of_kind(node, slot.gpu_kind))
        bounds.append((_gpus(node, slot.gpu_kind) - used) // slot.gpus)
    return max(0, min(bounds))


def _serves(node: Node, queue: str | None) -> bool:
    """Return whether a node takes jobs of a queue or list of queues; unknown queues exclude nothing."""
    return not queue or not node.queues or not set(queue.split(",")).isdisjoint(node.queues)


def _of_kind(node: Node, kind: str) -> tuple[NodeGpus, ...]:
    return tuple(one for one in node.gpus if kind in {"", one.kind} or "gpu_kind" in node.untold)


def _gpus(node: Node, kind: str) -> int:
    return sum(one.count for one in _of_kind(node, kind))


def _lacking(node: Node, slot: Slot) -> Iterator[str]:
    """Yield each need of a slot that a node can never meet, with what the node has."""
    if node.processors < slot.threads:
        yield f"{slot.threads} processors (it has {node.processors})"
    if node.memory_mib is not None and node.memory_mib < slot.memory_mib:
        yield f"{slot.memory_mib} MiB of memory (it has {node.memory_mib})"
    if node.disk_mib is not None and node.disk_mib < slot.scratch_mib:
        yield f"{slot.scratch_mib} MiB of scratch space (it has {node.disk_mib})"
    if "gpus" not in node.untold and _gpus(node, slot.gpu_kind) < slot.gpus:
        there = ", ".join(f"{one.count} {one.kind}".rstrip() for one in node.gpus) or "none"
        kind = f" of kind {slot.gpu_kind}" if slot.gpu_kind else ""
        yield f"{slot.gpus} {'GPU' if slot.gpus == 1 else 'GPUs'}{kind} (it has {there})"
    if "features" not in node.untold:
        yield from (f"feature {word}" for word in slot.features if word not in node.features)


def _lack(nodes: list[Node], slot: Slot, queue: str | None) -> str:
    """Return why no node can hold a slot, for the node that lacks least."""
    if not nodes:
        return f"no node serves queue {queue!r}"
    lacks = [(node, list(_lacking(node, slot))) for node in nodes]
    nearest, lack = min(lacks, key=lambda one: (len(one[1]), -one[0].processors))
    said = ", ".join(lack) or f"room for {slot}"
    return f"no node is large enough: {nearest.name}, the nearest, does not have {said}"

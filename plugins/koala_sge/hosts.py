# SPDX-License-Identifier: Apache-2.0
"""Nodes from ``qhost -xml -q -F slots``. Pure.

What counts are slots, because Grid Engine gives out nothing else: those of queue instances that run batch jobs, and,
where the admin set them, those of the host as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from koala_adapter.model import Node, NodeState
from koala_sge.states import queue_instance_state
from koala_sge.values import mebibytes_of
from koala_sge.xml import number_of, parse_xml

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lxml.etree import _Element

GLOBAL = "global"
"""Pseudo host that holds settings for all."""

BATCH = "B"

_USABILITY = (NodeState.UP, NodeState.DRAINING, NodeState.UNKNOWN, NodeState.DOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInstance:
    """A queue on a host."""

    queue: str
    kind: str
    """Letters: B batch, I interactive, P parallel."""
    slots: int
    slots_used: int
    slots_reserved: int
    letters: str

    @property
    def state(self) -> NodeState:
        """What it can be used for."""
        return queue_instance_state(self.letters)


def parse_nodes(raw: bytes, *, queue: str | None = None, by_queue: bool = False) -> tuple[Node, ...]:
    """Return the nodes that run batch jobs, in ``queue`` if one is given. Raises LrmUnavailableError.

    ``by_queue``: each queue instance is a node, called QUEUE@HOST.
    """
    root = parse_xml(raw, root="qhost", source="qhost")
    hosts = [host for host in root.iterfind("host") if host.get("name") != GLOBAL]
    if not by_queue:
        return tuple(_node(host, instances) for host in hosts if (instances := _instances(host, queue)))
    return tuple(
        replace(_node(host, (instance,)), name=f"{instance.queue}@{host.get('name') or ''}")
        for host in hosts
        for instance in _instances(host, queue)
    )


def _instances(host: _Element, queue: str | None) -> tuple[QueueInstance, ...]:
    return tuple(
        instance
        for instance in map(_instance, host.iterfind("queue"))
        if BATCH in instance.kind and queue in {None, instance.queue}
    )


def _node(host: _Element, instances: Sequence[QueueInstance]) -> Node:
    # A node is as usable as its most usable queue, and then only that one's slots count.
    state = min((instance.state for instance in instances), key=_USABILITY.index)
    usable = [instance for instance in instances if instance.state is state]
    processors, used = _slots(usable, _host_slots(host))
    values = {value.get("name"): (value.text or "").strip() for value in host.iterfind("hostvalue")}
    return Node(
        name=host.get("name") or "",
        state=state,
        processors=processors,
        processors_used=used,
        memory_mib=mebibytes_of(values.get("mem_total", "")),
        load=_load(values.get("load_avg", "")),
        queues=tuple(instance.queue for instance in instances),
        architecture=values.get("arch_string", ""),
        raw_state=",".join(dict.fromkeys(instance.letters for instance in instances if instance.letters)),
    )


def _slots(instances: Sequence[QueueInstance], host_free: int | None) -> tuple[int, int]:
    processors = sum(instance.slots for instance in instances)
    used = sum(instance.slots_used + instance.slots_reserved for instance in instances)
    if host_free is not None:
        # Jobs in other queues take from the host's slots too.
        used = max(used, processors - host_free)
    return processors, min(processors, used)


def _instance(element: _Element) -> QueueInstance:
    values = {value.get("name"): (value.text or "").strip() for value in element.iterfind("queuevalue")}
    return QueueInstance(
        queue=element.get("name") or "",
        kind=values.get("qtype_string", ""),
        slots=number_of(values.get("slots", "")),
        slots_used=number_of(values.get("slots_used", "")),
        slots_reserved=number_of(values.get("slots_resv", "")),
        letters=values.get("state_string", ""),
    )


def _host_slots(host: _Element) -> int | None:
    """Return the slots that the host as a whole has left; None when its admin set no such limit."""
    for value in host.iterfind("resourcevalue"):
        if value.get("name") == "slots" and (value.get("dominance") or "").startswith(("h", "g")):
            return max(0, number_of((value.text or "").strip()))
    return None


def _load(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None

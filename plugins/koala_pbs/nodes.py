# SPDX-License-Identifier: Apache-2.0
"""Nodes from ``pbsnodes -a -v -F json``: the vnodes, because without ``-v`` those of one host are added up. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import Node
from koala_pbs.documents import mapping_of, read_entries, value_of
from koala_pbs.states import EXCLUSIVE, node_state
from koala_pbs.values import mebibytes_of, number_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from koala_pbs.documents import Attributes, Reader


def parse_nodes(text: str, *, queues: Collection[str] = (), read: Reader = read_entries) -> tuple[Node, ...]:
    """Return the vnodes that have processors. Raises ValueError.

    ``queues``: all execution queues. One that has vnodes of its own uses no others, and these serve no other queue.
    """
    entries = read(text, "nodes")
    owned = {name: _queues(attributes) for name, attributes in entries.items()}
    others = _others(owned, queues)
    nodes = (_node(name, attributes, owned[name] or others) for name, attributes in entries.items())
    # The vnode that stands for the host where that is divided into several has none.
    return tuple(node for node in nodes if node.processors)


def _others(owned: Mapping[str, tuple[str, ...]], queues: Collection[str]) -> tuple[str, ...]:
    taken = {name for names in owned.values() for name in names}
    return tuple(name for name in queues if name not in taken) if taken else ()


def _queues(attributes: Attributes) -> tuple[str, ...]:
    queue = value_of(attributes, "queue")
    return (queue,) if queue else ()


def _node(name: str, attributes: Attributes, queues: tuple[str, ...]) -> Node:
    available, assigned = (mapping_of(attributes, f"resources_{word}") for word in ("available", "assigned"))
    word = value_of(attributes, "state")
    processors = number_of(available.get("ncpus", "0"))
    # It has no key for what is not assigned at all.
    used = processors if set(word.split(",")) & EXCLUSIVE else number_of(assigned.get("ncpus", "0"))
    return Node(
        name=name,
        state=node_state(word),
        processors=processors,
        processors_used=used,
        memory_mib=mebibytes_of(available.get("mem", "")) or None,
        queues=queues,
        raw_state=word,
        reason=value_of(attributes, "comment"),
        architecture=available.get("arch", ""),
        memory_used_mib=mebibytes_of(assigned.get("mem", "0kb")),
    )

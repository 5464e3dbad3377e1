# SPDX-License-Identifier: Apache-2.0
"""Pools of nodes: those that the same jobs may use, directly or through other queues. Pure.

Queues that share no node, not even through other queues, are clusters of their own: each has its own order, so that a
job that waits in one reserves nothing in another.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from koala_adapter.model import Node, Queue


@dataclass(frozen=True, slots=True)
class Pools:
    """The nodes of one batch system by pool; pools have numbers from 0."""

    nodes: dict[str, int]
    queues: dict[str, int]
    default: int | None
    """Pool of jobs that name no queue."""

    @property
    def count(self) -> int:
        """Number of pools."""
        return max(self.nodes.values(), default=-1) + 1

    def of_queue(self, queue: str) -> int | None:
        """Return the pool of a job's queue, or list of queues; None when no node serves it."""
        if not queue:
            return self.default
        if not self.queues:
            return 0 if self.nodes else None
        return next((pool for name, pool in self.queues.items() if serves(queue, name)), None)

    def of_nodes(self, nodes: Iterable[tuple[str, int]]) -> int | None:
        """Return the pool of the first of these nodes that is known; None when none is."""
        return next((self.nodes[name] for name, _ in nodes if name in self.nodes), None)


def serves(wanted: str, queue: str) -> bool:
    """Tell whether a queue is one that a job asks for: one name, a list of names, or patterns as in Grid Engine."""
    return any(fnmatchcase(queue, pattern) for pattern in wanted.split(","))


def pools_of(nodes: Iterable[Node], queues: Mapping[str, Queue]) -> Pools:
    """Return which nodes belong together. A node that tells of no queue serves all of them."""
    nodes = list(nodes)
    everywhere = sorted({name for node in nodes for name in node.queues})
    parent = {name: name for name in ["", *everywhere]}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    for node in nodes:
        served = node.queues or everywhere
        for other in served[1:]:
            parent[root(other)] = root(served[0])
    numbers: dict[str, int] = {}
    by_node = {
        node.name: numbers.setdefault(root(node.queues[0] if node.queues else (everywhere or [""])[0]), len(numbers))
        for node in nodes
    }
    by_queue = {name: numbers[root(name)] for name in everywhere}
    defaults = [by_queue[name] for name, queue in queues.items() if queue.default and name in by_queue]
    default = 0 if len(numbers) == 1 else next(iter(defaults), None)
    return Pools(nodes=by_node, queues=by_queue, default=default)

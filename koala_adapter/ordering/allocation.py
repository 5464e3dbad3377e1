# SPDX-License-Identifier: Apache-2.0
"""Which nodes a waiting job gets, and how many processors on each. Pure.

A cluster policy counts processors; here the count becomes nodes, within all that a job may insist on: a number of
nodes, tasks per node, features, memory, nodes it names or refuses, and the nodes of its queue (sbatch(1) -N,
--ntasks-per-node, -C, --mem, -w, -x, -p).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.model import NodeState
from koala_adapter.ordering.pools import serves

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from koala_adapter.model import LrmJob, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """What is left of a node for jobs to come."""

    node: Node
    processors: int
    memory_mib: int | None = None
    """None: not known, and so no limit."""

    def without(self, processors: int, memory_mib: int) -> NodeRoom:
        """Return what is left when a job has taken something."""
        memory = None if self.memory_mib is None else max(0, self.memory_mib - memory_mib)
        return NodeRoom(node=self.node, processors=max(0, self.processors - processors), memory_mib=memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The nodes of one job."""

    nodes: tuple[tuple[str, int], ...]
    """Pairs (node, processors), each node once."""

    @property
    def processors(self) -> int:
        """Processors on all nodes together."""
        return sum(count for _, count in self.nodes)

    @property
    def entries(self) -> tuple[str, ...]:
        """One entry for each processor, equal ones adjacent: what ``start_on`` takes."""
        return tuple(name for name, count in self.nodes for _ in range(count))

    def __str__(self) -> str:
        """``n4:3,n2:3``."""
        return ",".join(f"{name}:{count}" for name, count in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Why a job does not fit on the nodes."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Share:
    """A node that a job may use, and how many of its tasks have room there."""

    name: str
    tasks: int
    processors: int
    """Free ones, of which its tasks may use less."""


def rooms_of(nodes: Iterable[Node], taken: Mapping[str, int], memory_taken: Mapping[str, int]) -> dict[str, NodeRoom]:
    """Return what is left of each node that is up.

    ``taken``: processors that jobs hold or are about to get there, by node, ``memory_taken`` likewise in MiB. Where
    the LRM counts more than we can account for, its count is believed.
    """
    rooms = {}
    for node in nodes:
        if node.state is not NodeState.UP:
            continue
        used = max(node.processors_used, taken.get(node.name, 0))
        memory_used = max(node.memory_used_mib or 0, memory_taken.get(node.name, 0))
        memory = None if node.memory_mib is None else max(0, node.memory_mib - memory_used)
        rooms[node.name] = NodeRoom(node=node, processors=max(0, node.processors - used), memory_mib=memory)
    return rooms


def memory_on(job: LrmJob, processors: int) -> int:
    """Return the memory (MiB) that a job takes on a node where it has so many processors; 0 when it asks for none."""
    if processors <= 0:
        return 0
    return max(job.memory_per_node_mib or 0, (job.memory_per_processor_mib or 0) * processors)


def allocate(job: LrmJob, rooms: Iterable[NodeRoom]) -> Allocation | Misfit:
    """Return nodes for a job, or why there are none. It fits whenever there is any way to fit it.

    Few nodes are taken, and of those that hold the whole job the one it fills best, so that large rooms stay large.
    """
    per_task = _per_task(job)
    tasks = max(1, job.processors // per_task)
    shares = _shares(job, rooms, per_task)
    missing = sorted(set(job.requested_nodes) - {share.name for share in shares})
    if missing:
        return Misfit(reason=f"it insists on {', '.join(missing[:3])}, where it has no room now")
    if len(job.requested_nodes) > tasks:
        return Misfit(reason=f"it insists on {len(job.requested_nodes)} nodes, and has {tasks} tasks")
    if sum(share.tasks for share in shares) < tasks:
        return Misfit(reason=_too_little(job, sum(share.tasks for share in shares) * per_task))
    chosen = _choose(job, shares, tasks)
    if chosen is None:
        return Misfit(
            reason=f"it needs {job.processors} processors on {job.nodes_asked}, and there is no such room now"
        )
    return Allocation(nodes=tuple((name, count * per_task) for name, count in chosen))


def _per_task(job: LrmJob) -> int:
    whole = job.processors_per_task > 1 and job.processors % job.processors_per_task == 0
    return job.processors_per_task if whole else 1


def _shares(job: LrmJob, rooms: Iterable[NodeRoom], per_task: int) -> list[_Share]:
    """Return the nodes that a job may use. A loop over thousands of nodes for each of hundreds of jobs: it is short."""
    wishes = (
        job.features,
        job.any_feature,
        job.possible_nodes is not None,
        job.excluded_nodes,
        job.tasks_per_node,
        job.memory_per_node_mib,
    )
    plain = not any(wishes) and not job.memory_per_processor_mib
    queue = job.queue
    shares = []
    for room in rooms:
        processors = room.processors
        if processors < per_task:
            continue
        if plain and queue in room.node.queues:
            tasks = processors // per_task
        else:
            tasks = 0 if _unusable(job, room.node) else _tasks_in(job, room, per_task)
        if tasks > 0:
            shares.append(_Share(room.node.name, tasks, processors))
    return shares


def _unusable(job: LrmJob, node: Node) -> bool:
    foreign = job.queue not in node.queues and bool(job.queue and node.queues)
    if foreign and any(serves(job.queue, queue) for queue in node.queues):
        foreign = False
    if job.possible_nodes is not None and node.name not in job.possible_nodes:
        return True
    if job.any_feature and not set(job.any_feature) & set(node.features):
        return True
    return foreign or node.name in job.excluded_nodes or not set(job.features) <= set(node.features)


def _tasks_in(job: LrmJob, room: NodeRoom, per_task: int) -> int:
    """Return how many tasks of a job have room on a node."""
    tasks = room.processors // per_task
    if job.tasks_per_node is not None:
        tasks = min(tasks, job.tasks_per_node)
    if room.memory_mib is None:
        return tasks
    if job.memory_per_node_mib is not None and room.memory_mib < job.memory_per_node_mib:
        return 0
    if job.memory_per_processor_mib:
        tasks = min(tasks, room.memory_mib // (job.memory_per_processor_mib * per_task))
    return tasks


def _too_little(job: LrmJob, found: int) -> str:
    wishes = [
        word
        for word, given in (
            ("memory", job.memory_per_node_mib or job.memory_per_processor_mib),
            ("features", job.features or job.any_feature),
            ("tasks per node", job.tasks_per_node),
            ("processors per task", _per_task(job) > 1),
            ("excluded nodes", job.excluded_nodes),
            (f"queue {job.queue}", job.queue),
        )
        if given
    ]
    within = f" with its {' and '.join(wishes)}" if wishes else ""
    return f"it needs {job.processors} processors, and the nodes{within} have {found} for it now"


def _choose(job: LrmJob, shares: Sequence[_Share], tasks: int) -> list[tuple[str, int]] | None:
    named = [share for share in shares if share.name in job.requested_nodes]
    others = [share for share in shares if share.name not in job.requested_nodes]
    least, most = job.node_bounds
    if least == 1 and most is None:
        return _evenly(named, others, tasks) or _spread(named, tasks - len(named), others)
    least = min(max(least, len(named)), tasks)
    most = max(least, min(most or tasks, tasks))
    found = _evenly(named, others, tasks, least=least, most=most) if least < most else None
    for wanted in range(least, min(most, len(shares)) + 1):
        found = found or _on_exactly(wanted, named, others, tasks)
    return found


def _on_exactly(
    wanted: int, named: Sequence[_Share], others: Sequence[_Share], tasks: int
) -> list[tuple[str, int]] | None:
    """Give tasks to so many nodes, as evenly as there is room."""
    even = -(-tasks // wanted)
    more = wanted - len(named)
    fitting = sorted(
        (share for share in others if share.tasks >= even), key=lambda share: (share.tasks, share.processors)
    )
    if all(share.tasks >= even for share in named) and len(fitting) >= more:
        return _dealt([*named, *fitting[:more]], tasks, even)
    largest = sorted(others, key=lambda share: -share.tasks)[:more]
    chosen = [*named, *largest]
    if len(chosen) < wanted or sum(share.tasks for share in chosen) < tasks:
        return None
    return _dealt(chosen, tasks, even)


def _evenly(
    named: Sequence[_Share], others: Sequence[_Share], tasks: int, *, least: int = 1, most: int | None = None
) -> list[tuple[str, int]] | None:
    """Give each node the same number of tasks, where that takes few more nodes than need be.

    Slurm starts a job so with its owner's rights, and with other numbers only for an operator.
    """
    largest = sorted((share.tasks for share in [*named, *others]), reverse=True)
    fewest = next(count for count in range(1, len(largest) + 1) if sum(largest[:count]) >= tasks)
    highest = min(2 * max(fewest, least), len(largest), most or len(largest))
    for number in range(max(fewest, len(named), least), highest + 1):
        each, odd = divmod(tasks, number)
        if odd or any(share.tasks < each for share in named):
            continue
        fitting = sorted(
            (share for share in others if share.tasks >= each), key=lambda share: (share.tasks, share.processors)
        )
        if len(fitting) + len(named) >= number:
            return [(share.name, each) for share in [*named, *fitting][:number]]
    return None


def _spread(named: Sequence[_Share], left: int, others: Sequence[_Share]) -> list[tuple[str, int]]:
    """Deal tasks to the nodes that must be used, and what is left to as few others as possible."""
    chosen = []
    for share in named:
        more = min(share.tasks - 1, left)
        chosen.append((share.name, 1 + more))
        left -= more
    remaining = sorted(others, key=lambda share: (-share.tasks, -share.processors))
    while left > 0:
        exact = [share for share in remaining if share.tasks >= left]
        share = exact[-1] if exact else remaining[0]
        remaining.remove(share)
        chosen.append((share.name, min(share.tasks, left)))
        left -= min(share.tasks, left)
    return chosen


def _dealt(shares: Sequence[_Share], tasks: int, even: int) -> list[tuple[str, int]]:
    """Deal tasks to all of these nodes, at least one to each, as evenly as their room allows."""
    counts = dict.fromkeys((share.name for share in shares), 1)
    left = tasks - len(shares)
    for limit in (even, tasks):
        for share in shares:
            more = max(0, min(share.tasks, limit) - counts[share.name])
            counts[share.name] += min(more, left)
            left -= min(more, left)
    return list(counts.items())

# SPDX-License-Identifier: Apache-2.0
"""Nodes for waiting jobs: pools of nodes, the allocation of a job, and nodes reserved for a job. No I/O.

A cluster policy counts processors; here the count becomes nodes, within all constraints of a job: a number of nodes,
tasks per node, features, memory, nodes it names or excludes, and the nodes of its queue (sbatch(1) -N,
--ntasks-per-node, -C, --mem, -w, -x, -p).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from koala_adapter.model import LrmJob, Node, NodeState, Queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from koala_adapter.lrm.startlog import Layout


# -- Pools: nodes that the same jobs may use -----------------------------------------------------------------
# Two queues are in one pool if they share a node, directly or through other queues. Pools are clusters of their own:
# each has its own order, so that a job waiting in one reserves nothing in another.


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
        """Return the pool of a queue or comma-separated list of queues; None when no node serves it."""
        if not queue:
            return self.default
        if not self.queues:
            return 0 if self.nodes else None
        return next((pool for name, pool in self.queues.items() if serves(queue, name)), None)

    def of_nodes(self, nodes: Iterable[tuple[str, int]]) -> int | None:
        """Return the pool of the first known node; None when none is known."""
        return next((self.nodes[name] for name, _ in nodes if name in self.nodes), None)


def serves(wanted: str, queue: str) -> bool:
    """Return whether a queue is among those that a job asks for, by name, list or Grid Engine pattern."""
    return any(fnmatchcase(queue, pattern) for pattern in wanted.split(","))


def pools_of(nodes: Iterable[Node], queues: Mapping[str, Queue]) -> Pools:
    """Divide nodes into pools that share queues. A node without queues serves all of them."""
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
    roots = {node.name: root(node.queues[0] if node.queues else (everywhere or [""])[0]) for node in nodes}
    # By the names of queues, so that the order in which nodes are listed does not matter.
    least: dict[str, str] = {}
    for name in everywhere:
        least.setdefault(root(name), name)
    ordered = sorted(set(roots.values()), key=lambda one: least.get(one, one))
    numbers = {one: number for number, one in enumerate(ordered)}
    by_node = {name: numbers[one] for name, one in roots.items()}
    by_queue = {name: numbers[root(name)] for name in everywhere}
    defaults = [by_queue[name] for name, queue in queues.items() if queue.default and name in by_queue]
    default = 0 if len(numbers) == 1 else next(iter(defaults), None)
    return Pools(nodes=by_node, queues=by_queue, default=default)


# -- Allocation: which nodes a job gets, and how many processors on each -------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """Free processors and memory of a node."""

    node: Node
    processors: int
    memory_mib: int | None = None
    """None: not known, and so no limit."""

    def without(self, processors: int, memory_mib: int) -> NodeRoom:
        """Return the room after a job has taken some."""
        memory = None if self.memory_mib is None else max(0, self.memory_mib - memory_mib)
        return NodeRoom(node=self.node, processors=max(0, self.processors - processors), memory_mib=memory)


@dataclass(frozen=True, slots=True)
class _Share:
    """A node that a job may use, and how many of its tasks fit there."""

    name: str
    tasks: int
    processors: int
    """Free ones, of which its tasks may use less."""


def rooms_of(nodes: Iterable[Node], taken: Mapping[str, int], memory_taken: Mapping[str, int]) -> dict[str, NodeRoom]:
    """Return the free resources of each node that is up.

    ``taken``: processors that jobs hold or are about to get there, by node; ``memory_taken``: their memory in MiB.
    Where the LRM counts more than we can account for, its count is believed.
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


def memory_on(job: LrmJob, node: Node, processors: int) -> int:
    """Return the memory (MiB) that a job takes on a node with that many of its processors; 0: it asks for none.

    What it asks for by processor it has for each thread of its cores, but for those that it does not use.
    """
    if processors <= 0:
        return 0
    threads = _threads_with_memory(job, node)
    cores = job.cores(processors, node.grain_in(job.queue))
    each = (job.memory_per_processor_mib or 0) * max(processors, cores * threads)
    return max(job.memory_per_node_mib or 0, each)


def _threads_with_memory(job: LrmJob, node: Node) -> int:
    """Return how many threads of each core a job can use with the memory that it asks for by processor."""
    grain = node.grain_in(job.queue)
    return min(job.threads_per_core or grain, grain) if node.counts_grains else 1


def allocate(job: LrmJob, rooms: Iterable[NodeRoom]) -> Layout | str:
    """Return nodes for a job, each once, with its processors there, or the reason why it does not fit.

    A fit is found whenever one exists. Few nodes are taken, and of those that hold the whole job the one it fills best,
    so that large rooms stay large.
    """
    per_task = _per_task(job)
    tasks = max(1, job.processors // per_task)
    shares = _shares(job, rooms, per_task)
    missing = sorted(set(job.requested_nodes) - {share.name for share in shares})
    if missing:
        return f"it insists on {', '.join(missing[:3])}, where it has no room now"
    if len(job.requested_nodes) > tasks:
        return f"it insists on {len(job.requested_nodes)} nodes, and has {tasks} tasks"
    if sum(share.tasks for share in shares) < tasks:
        return _too_little(job, sum(share.tasks for share in shares) * per_task)
    chosen = _choose(job, shares, tasks)
    if chosen is None:
        return f"it needs {job.processors} processors on {job.nodes_asked}, and there is no such room now"
    return tuple((name, count * per_task) for name, count in chosen)


def node_request(job: LrmJob) -> tuple[object, ...]:
    """Return the request of a job as a key: jobs with equal keys fit on the same nodes."""
    return (
        job.processors,
        job.processors_per_task,
        job.queue,
        job.node_bounds,
        job.tasks_per_node,
        job.threads_per_core,
        job.tasks_per_core,
        job.memory_per_processor_mib,
        job.memory_per_node_mib,
        job.features,
        job.any_feature,
        job.possible_nodes,
        job.requested_nodes,
        job.excluded_nodes,
        job.exclusive,
    )


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
        node = room.node
        processors = room.processors
        grain = node.grain_in(queue) if node.queue_grains else node.grain
        if grain > 1:
            processors = job.processors_on(processors // grain, grain)
        whole = job.exclusive or (node.whole_queues and node.gives(job, 1) == node.processors)
        if processors < per_task or (whole and room.processors < node.processors):
            continue
        if plain and queue in node.queues:
            tasks = processors // per_task
        else:
            tasks = 0 if _unusable(job, node) else _tasks_in(job, room, processors // per_task)
        if tasks > 0:
            shares.append(_Share(node.name, tasks, processors))
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


def _tasks_in(job: LrmJob, room: NodeRoom, tasks: int) -> int:
    """Return how many tasks of a job fit on a node."""
    per_task = _per_task(job)
    if job.tasks_per_node is not None:
        tasks = min(tasks, job.tasks_per_node)
    if room.memory_mib is None:
        return tasks
    if job.memory_per_node_mib is not None and room.memory_mib < job.memory_per_node_mib:
        return 0
    if job.memory_per_processor_mib:
        most = room.memory_mib // job.memory_per_processor_mib
        grain = room.node.grain_in(job.queue)
        if grain > 1 and room.node.counts_grains:
            most = job.processors_on(most // _threads_with_memory(job, room.node), grain)
        tasks = min(tasks, most // per_task)
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
    """Distribute tasks over exactly ``wanted`` nodes, as evenly as possible."""
    even = -(-tasks // wanted)
    more = wanted - len(named)
    fitting = sorted(
        (share for share in others if share.tasks >= even), key=lambda share: (share.tasks, share.processors)
    )
    if all(share.tasks >= even for share in named) and len(fitting) >= more:
        return _over_all([*named, *fitting[:more]], tasks, even)
    largest = sorted(others, key=lambda share: -share.tasks)[:more]
    chosen = [*named, *largest]
    if len(chosen) < wanted or sum(share.tasks for share in chosen) < tasks:
        return None
    return _over_all(chosen, tasks, even)


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
    """Distribute tasks over the required nodes, and the rest over as few others as possible."""
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


def _over_all(shares: Sequence[_Share], tasks: int, even: int) -> list[tuple[str, int]]:
    """Distribute tasks over all given nodes, at least one on each, as evenly as possible."""
    counts = dict.fromkeys((share.name for share in shares), 1)
    left = tasks - len(shares)
    for limit in (even, tasks):
        for share in shares:
            more = max(0, min(share.tasks, limit) - counts[share.name])
            counts[share.name] += min(more, left)
            left -= min(more, left)
    return list(counts.items())


# -- Guards: nodes reserved for a job that fits in sum but not on nodes --------------------------------------
# The policies count processors, so they would see nothing left to protect once such a job may start: jobs behind it
# would take each processor that becomes free, and it would wait for ever. So the first time at which its nodes will
# be free, by the walltimes of running jobs, is reserved for it: later jobs may use these nodes only until then.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRelease:
    """Resources that come free on a node when a running job ends, and the latest time of it."""

    at: float
    node: str
    processors: int
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class Guard:
    """Limits on what later jobs may take of nodes kept for a job."""

    at: float
    spare: dict[str, int]
    """Processors, by node of the job, that are over even when it has started."""

    def taken(self, held: Mapping[str, int], ends_at: float) -> None:
        """Subtract the resources of a job that got nodes. ``held``: by node."""
        if ends_at > self.at:
            for name, processors in held.items():
                if name in self.spare:
                    self.spare[name] = max(0, self.spare[name] - processors)


def guard_for(job: LrmJob, rooms: Mapping[str, NodeRoom], releases: Sequence[NodeRelease]) -> Guard | None:
    """Return the limits that protect a job's earliest start; None when it does not fit even on empty nodes.

    ``releases`` in order of time. What has room after some releases has it after more of them, so the first is found
    by halving.
    """
    low, high = 0, len(releases)
    found = allocate(job, _rooms_after(rooms, releases).values())
    if isinstance(found, str):
        return None
    while low < high:
        middle = (low + high) // 2
        tried = allocate(job, _rooms_after(rooms, releases[:middle]).values())
        if isinstance(tried, str):
            low = middle + 1
        else:
            high, found = middle, tried
    at = releases[low - 1].at if low else 0.0
    # Several may end at that moment.
    then = _rooms_after(rooms, [release for release in releases if release.at <= at])
    spare = {name: then[name].processors - then[name].node.gives(job, count) for name, count in found}
    return Guard(at, spare)


def _rooms_after(rooms: Mapping[str, NodeRoom], releases: Iterable[NodeRelease]) -> dict[str, NodeRoom]:
    """Return the rooms after some running jobs have ended."""
    processors: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    for release in releases:
        processors[release.node] += release.processors
        memory[release.node] += release.memory_mib
    after = dict(rooms)
    for name, count in processors.items():
        room = after.get(name)
        if room is not None:
            after[name] = room.without(-count, -memory[name])
    return after


def guarded_rooms(rooms: Mapping[str, NodeRoom], guards: Iterable[Guard], ends_at: float) -> Mapping[str, NodeRoom]:
    """Return the rooms that a job ending at ``end`` may use."""
    allowed: dict[str, NodeRoom] = {}
    for guard in guards:
        for name in guard.spare if ends_at > guard.at else ():
            room = allowed.get(name) or rooms.get(name)
            if room is not None and (limit := guard.spare[name]) < room.processors:
                allowed[name] = room.without(room.processors - limit, 0)
    return {**rooms, **allowed} if allowed else rooms

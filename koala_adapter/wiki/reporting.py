# SPDX-License-Identifier: Apache-2.0
"""How a job's request is told in WIKI, so that a peer that follows the record places it where its user allows. Pure.

Maui, as seen: NODES alone is ignored, with TASKPERNODE it is kept; a HOSTLIST gives each host as many tasks as it is
named; there is no way to exclude a host or to ask for one feature or another. So bounds of the number of nodes become
one number of nodes with equal tasks on each, rounded up where they do not come out even (what is too many is given back
when the job runs); and what only some nodes can take, a list of these. What cannot be told so has its reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from koala_adapter.model import LrmJob, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A node by its name on the wire, without what changes from one moment to the next."""

    wire: str
    name: str
    processors: int
    memory_mib: int | None
    disk_mib: int | None
    features: frozenset[str]
    queues: frozenset[str]

    @classmethod
    def of(cls, wire: str, node: Node) -> Host:
        """Return that of a node."""
        return cls(
            wire=wire,
            name=node.name,
            processors=node.processors,
            memory_mib=node.memory_mib,
            disk_mib=node.disk_mib,
            features=frozenset(node.features),
            queues=frozenset(node.queues),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a record says of where a job may run."""

    tasks: int
    nodes: int | None = None
    tasks_per_node: int | None = None
    host_list: tuple[str, ...] = ()
    obstacle: str = ""
    """Why the job can never start as things are; empty when it can."""

    @property
    def memory_divisor(self) -> int:
        """Tasks on each node, among which the memory of a node is divided."""
        return self.tasks_per_node or self.tasks


def tasks_of(job: LrmJob) -> int:
    """Return the number of tasks of a job, each of ``processors_per_task``."""
    return max(1, job.processors // job.processors_per_task)


def lacks(job: LrmJob, host: Host) -> str:
    """Return what a job wants of its nodes and a host has not; empty when it may run there."""
    queues = {name for name in job.queue.split(",") if name}
    missing = sorted(set(job.features) - host.features)
    other_feature = job.any_feature and not set(job.any_feature) & host.features
    memory, disk = job.memory_per_node_mib or 0, job.disk_per_node_mib or 0
    problems = (
        (queues and host.queues and not queues & host.queues, f"does not serve {job.queue}"),
        (host.name in job.excluded_nodes, "is excluded"),
        (job.possible_nodes is not None and host.name not in job.possible_nodes, "has not free what else it asks for"),
        (missing, f"has not the features {', '.join(missing)}"),
        (other_feature, f"has none of the features {', '.join(job.any_feature)}"),
        (host.memory_mib is not None and host.memory_mib < memory, f"has less than {memory} MiB of memory"),
        ((host.disk_mib or 0) < disk, f"has less than {disk} MiB of disk"),
    )
    return next((text for so, text in problems if so), "")


def offer(job: LrmJob, hosts: Sequence[Host], *, one_node: bool = False) -> Offer:
    """Return how a job is told. ``one_node``: the batch system starts jobs on chosen nodes one node at a time."""
    wanted = tasks_of(job)
    if not hosts:
        return Offer(tasks=wanted)
    usable = [host for host in hosts if not lacks(job, host)]
    missing = set(job.requested_nodes) - {host.name for host in usable}
    if missing:
        why = {host.name: lacks(job, host) for host in hosts}
        name = min(missing)
        return Offer(tasks=wanted, obstacle=f"it must run on {name}, which {why.get(name, 'is not there')}")
    if job.exclusive:
        return _whole_nodes(job, usable, wanted, one_node=one_node)
    slots = {host.wire: _slots(job, host, wanted) for host in usable}
    least, most = job.node_bounds
    if one_node:
        least, most = max(1, least), 1
    bound = least > 1 or most is not None or job.tasks_per_node or job.requested_nodes or job.memory_per_node_mib
    if bound:
        return _on_nodes(job, usable, slots, least, most)
    if sum(slots.values()) < wanted:
        return Offer(tasks=wanted, obstacle=_too_large(job, sum(slots.values())))
    return Offer(tasks=wanted, host_list=_listed(slots, slots) if _needs_list(job, hosts, usable) else ())


def _slots(job: LrmJob, host: Host, wanted: int) -> int:
    """Return how many tasks of a job a host could take."""
    tasks = min(wanted, host.processors // job.processors_per_task, job.tasks_per_node or wanted)
    if job.memory_per_processor_mib and host.memory_mib is not None:
        tasks = min(tasks, host.memory_mib // (job.memory_per_processor_mib * job.processors_per_task))
    return tasks


def _on_nodes(job: LrmJob, usable: Sequence[Host], slots: dict[str, int], least: int, most: int | None) -> Offer:
    """Return the offer of the fewest nodes that a job may have, with equal tasks on each."""
    wanted = tasks_of(job)
    asked = {host.wire for host in usable if host.name in job.requested_nodes}
    first, last = max(least, len(asked)), min(most or wanted, wanted, len(usable))
    for count in range(first, last + 1):
        each = -(-wanted // count)
        fitting = [name for name, number in slots.items() if number >= each]
        if len(fitting) < count or not asked <= set(fitting):
            continue
        names = fitting
        if asked:
            names = [*sorted(asked), *(name for name in fitting if name not in asked)][:count]
        listed = bool(asked) or len(fitting) < len(slots) or _list_for(job)
        chosen = _listed(names, dict.fromkeys(names, each)) if listed else ()
        return Offer(tasks=count * each, nodes=count, tasks_per_node=each, host_list=chosen)
    return Offer(tasks=wanted, obstacle=_too_large(job, sum(slots.values())))


def _whole_nodes(job: LrmJob, usable: Sequence[Host], wanted: int, *, one_node: bool) -> Offer:
    """Return the offer of a job that has its nodes for itself: all processors of nodes of one size."""
    asked = {host.wire for host in usable if host.name in job.requested_nodes}
    least, most = job.node_bounds
    most = 1 if one_node else most
    capacities = {host.wire: (host.processors // job.processors_per_task, _slots(job, host, wanted)) for host in usable}
    # Of hosts of one size, some may have memory for fewer of its tasks.
    sizes = Counter(capacities.values())
    for (size, each), number in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        names = [name for name, capacity in capacities.items() if capacity == (size, each)]
        count = max(least, len(asked), -(-wanted // each)) if each else 0
        if not each or count > number or count > (most or count) or not asked <= set(names):
            continue
        chosen = [*sorted(asked), *(name for name in names if name not in asked)][: count if asked else None]
        listed = bool(asked) or number < len(usable) or _list_for(job)
        hosts = _listed(chosen, dict.fromkeys(chosen, size)) if listed else ()
        return Offer(tasks=count * size, nodes=count, tasks_per_node=size, host_list=hosts)
    obstacle = "it wants nodes for itself, and may use too few of one size"
    return Offer(tasks=wanted, obstacle=obstacle)


def _needs_list(job: LrmJob, hosts: Sequence[Host], usable: Sequence[Host]) -> bool:
    return _list_for(job) or any(
        host not in usable and set(job.features) <= host.features and (not host.queues or job.queue in host.queues)
        for host in hosts
    )


def _list_for(job: LrmJob) -> bool:
    """Tell whether a record can say where a job may run by a list of hosts only."""
    by_name = job.excluded_nodes or job.possible_nodes is not None or "," in job.queue
    return bool(by_name or job.any_feature or job.disk_per_node_mib)


def _listed(names: Iterable[str], slots: dict[str, int]) -> tuple[str, ...]:
    return tuple(name for name in names for _ in range(slots[name]))


def _too_large(job: LrmJob, found: int) -> str:
    return (
        f"it wants {tasks_of(job)} tasks on {job.nodes_asked}, and the nodes on which it may run can take "
        f"{found} of them, or not so many on each"
    )


def dealt(job: LrmJob, hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the hosts of a job's own tasks, of a list that may have more: each host keeps one at least."""
    surplus = len(hosts) - tasks_of(job)
    counts = Counter(hosts)
    for host in reversed(list(counts)):
        less = min(surplus, counts[host] - 1)
        counts[host] -= less
        surplus -= less
    while surplus > 0 and counts:
        host, _ = counts.popitem()
        surplus -= 1
    if job.exclusive:
        counts = _evened(counts)
    return tuple(counts.elements())


def _evened(counts: Counter[str]) -> Counter[str]:
    """Return the same number of tasks, as even as they can be: of whole nodes it does not matter which has more."""
    each, more = divmod(counts.total(), len(counts))
    return Counter({host: each + (number < more) for number, host in enumerate(counts)})

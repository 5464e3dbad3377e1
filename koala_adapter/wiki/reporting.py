# SPDX-License-Identifier: Apache-2.0
"""Nodes and jobs of an LRM as WIKI reports them: names on the wire, requests of jobs, records.

The records use the words that make a scheduler do the right thing. What Maui makes of each word was seen with a real
one. No part of this does I/O.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from koala_adapter.model import WAITING, EndReason, HoldOwner, LrmJob, LrmJobState, Node, NodeState
from koala_adapter.wiki.codec.records import Count, JobRecord, NodeRecord
from koala_adapter.wiki.codec.words import DRAIN_WORD, LONGEST_ID, Dialect, JobWord, NodeWord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


# -- Names on the wire ---------------------------------------------------------------------------------------
# For nodes whose LRM calls them otherwise: no separators, and each name once. ``rack1/n7`` goes by ``rack1_n7``, and
# ``rack1:n7`` beside it by ``rack1_n7-2``.

_FORBIDDEN = re.compile(r"[^A-Za-z0-9._+-]")
LONGEST_NAME = LONGEST_ID - 6
"""Characters that are kept: room for a number is left."""


def wire_name(text: str) -> str:
    """Return a node or queue name with the characters replaced that a message cannot carry."""
    return _FORBIDDEN.sub("_", text)[-LONGEST_NAME:] or "_"


def node_names(nodes: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """Return the wire name of each node. A node keeps its name while the server runs."""
    names = dict(known)
    taken = set(names.values())
    for node in nodes:
        if node in names:
            continue
        number, name = 1, wire_name(node)
        while name in taken:
            number += 1
            name = f"{wire_name(node)}-{number}"
        taken.add(name)
        names[node] = name
    return names


# -- Requests of jobs ----------------------------------------------------------------------------------------
# A job's request is told so that a peer that follows the record places it where its user allows.
#
# Maui, as seen: NODES alone is ignored, with TASKPERNODE it is kept; a HOSTLIST gives each host as many tasks as it is
# named; there is no way to exclude a host or to ask for one feature or another. So bounds of the number of nodes become
# one number of nodes with equal tasks on each, rounded up where they do not come out even (what is too many is given
# back when the job runs); and what only some nodes can take, a list of these. What cannot be told so has its reason.


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Static properties of a node, under its wire name."""

    wire: str
    name: str
    processors: int
    memory_mib: int | None
    disk_mib: int | None
    features: frozenset[str]
    queues: frozenset[str]
    grain: int = 1
    """Processors that a job gets at a time."""

    @classmethod
    def of(cls, wire: str, node: Node) -> Host:
        """Return the static properties of a node; ``wire`` is its wire name."""
        return cls(
            wire=wire,
            name=node.name,
            processors=node.processors,
            memory_mib=node.memory_mib,
            disk_mib=node.disk_mib,
            features=frozenset(node.features),
            queues=frozenset(node.queues),
            grain=max(node.grain, *(grain for _, grain in node.queue_grains)) if node.queue_grains else node.grain,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Number of tasks, nodes and hosts by which a record tells where a job may run."""

    tasks: int
    nodes: int | None = None
    tasks_per_node: int | None = None
    host_list: tuple[str, ...] = ()
    obstacle: str = ""
    """Why the job can never start as things are; empty when it can."""


def tasks_of(job: LrmJob) -> int:
    """Return the number of tasks of a job, each of ``processors_per_task``."""
    return max(1, job.processors // job.processors_per_task)


def lacks(job: LrmJob, host: Host) -> str:
    """Return what a host lacks for a job, as text; empty when the job may run there."""
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
    """Return how a job is described to schedulers. ``one_node``: starts on chosen nodes are limited to one node."""
    wanted = tasks_of(job)
    if not hosts:
        return Offer(tasks=wanted)
    usable = [host for host in hosts if not lacks(job, host)]
    if problem := _problem(job, hosts, usable):
        return Offer(tasks=wanted, obstacle=problem)
    if job.exclusive:
        return _whole_nodes(job, usable, wanted, one_node=one_node)
    wanted = max((_rounded(job, host) for host in usable), default=wanted)
    slots = {host.wire: _slots(job, host, wanted) for host in usable}
    least, most = job.node_bounds
    if one_node:
        least, most = max(1, least), 1
    bound = least > 1 or most is not None or job.tasks_per_node or job.requested_nodes or job.memory_per_node_mib
    if bound:
        return _on_nodes(job, usable, slots, least, most, wanted=wanted)
    if sum(slots.values()) < wanted:
        return Offer(tasks=wanted, obstacle=_too_large(job, sum(slots.values())))
    return Offer(tasks=wanted, host_list=_listed(slots, slots) if _needs_list(job, hosts, usable) else ())


def _problem(job: LrmJob, hosts: Sequence[Host], usable: Sequence[Host]) -> str:
    """Return why a job cannot be described to schedulers; empty when it can."""
    missing = set(job.requested_nodes) - {host.name for host in usable}
    if missing:
        why = {host.name: lacks(job, host) for host in hosts}
        name = min(missing)
        return f"it must run on {name}, which {why.get(name, 'is not there')}"
    if job.processors_per_task > 1 and (job.threads_per_core or job.tasks_per_core):
        return "it leaves threads of its cores idle, and has tasks of several processors"
    return ""


def _slots(job: LrmJob, host: Host, wanted: int) -> int:
    """Return how many tasks of a job fit on a host."""
    tasks = min(wanted, host.processors // job.processors_per_task, job.tasks_per_node or wanted)
    if job.memory_per_processor_mib and host.memory_mib is not None:
        tasks = min(tasks, host.memory_mib // (job.memory_per_processor_mib * job.processors_per_task))
    return tasks


def _rounded(job: LrmJob, host: Host) -> int:
    """Return the number of tasks to report for a job that gets whole cores: one for each thread it will occupy."""
    tasks = tasks_of(job)
    return job.cores(tasks, host.grain) * host.grain if job.processors_per_task == 1 else tasks


def _on_nodes(
    job: LrmJob, usable: Sequence[Host], slots: dict[str, int], least: int, most: int | None, *, wanted: int
) -> Offer:
    """Return the offer that uses the fewest nodes, with equal tasks on each."""
    grain = max((host.grain for host in usable), default=1) if job.processors_per_task == 1 else 1
    asked = {host.wire for host in usable if host.name in job.requested_nodes}
    first, last = max(least, len(asked)), min(most or wanted, wanted, len(usable))
    for count in range(first, last + 1):
        each = -(-wanted // (count * grain)) * grain
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
    """Return the offer of an exclusive job: all processors of nodes of one size."""
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
    """Return whether only a list of hosts can describe where a job may run."""
    by_name = job.excluded_nodes or job.possible_nodes is not None or "," in job.queue
    return bool(by_name or job.any_feature or job.disk_per_node_mib)


def _listed(names: Iterable[str], slots: dict[str, int]) -> tuple[str, ...]:
    return tuple(name for name in names for _ in range(slots[name]))


def _too_large(job: LrmJob, found: int) -> str:
    return (
        f"it wants {tasks_of(job)} tasks on {job.nodes_asked}, and the nodes on which it may run can take "
        f"{found} of them, or not so many on each"
    )


def hosts_of_tasks(job: LrmJob, hosts: Sequence[str]) -> tuple[str, ...]:
    """Return one host for each task of the job, from a task list that may be longer; each host keeps a task."""
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
        counts = _evenly(counts)
    return tuple(counts.elements())


def _evenly(counts: Counter[str]) -> Counter[str]:
    """Return the task list of whole nodes with the tasks distributed evenly."""
    each, more = divmod(counts.total(), len(counts))
    return Counter({host: each + (number < more) for number, host in enumerate(counts)})


# -- Records -------------------------------------------------------------------------------------------------
# A node whose state is not known is Down, because Unknown is scheduled on; a job that is not ours to start is Hold;
# what is over is Completed or Removed, because Cancelled is not understood. The other choices for a word or a missing
# attribute follow in the same way from what Maui makes of it.

MOST_CLASSES = 14
"""Queues that Maui has room for; of a cluster with more none is reported, and neither are the jobs'."""

UNLIMITED = 365 * 24 * 3600
"""Walltime reported for a job without one, as Slurm did: -1 is broken in Maui, 0 is 100 days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportingRules:
    """Settings of how nodes and jobs are reported to schedulers."""

    dialect: Dialect
    user_holds: bool = False
    partitions: Mapping[str, str] = field(default_factory=dict)
    """What is told as the partition of each node, by the node's name: its cluster, where there are several."""
    one_node: bool = False
    """A job is started on one node only, where the batch system itself would divide it."""
    one_by_one: bool = False
    """Elements of a job array are started one after the other, so only one of each is offered."""
    classes: bool = True
    """Queues go out as classes; not when there are too many."""


def is_startable(job: LrmJob, *, user_holds: bool) -> bool:
    """Return whether a job waits for a scheduler: it has the site's hold, or a user hold that counts as one."""
    ours = {HoldOwner.OPERATOR, HoldOwner.USER} if user_holds else {HoldOwner.OPERATOR}
    return job.state is LrmJobState.HELD and job.hold in ours and not job.tied


def node_word(node: Node, used: int, dialect: Dialect) -> NodeWord:
    """Return Maui's word for the state of a node with ``used`` processors in use."""
    if node.state is NodeState.DRAINING:
        return DRAIN_WORD[dialect]
    if node.state is not NodeState.UP:
        return NodeWord.DOWN
    if used >= node.processors:
        return NodeWord.BUSY
    return NodeWord.RUNNING if used else NodeWord.IDLE


def node_record(name: str, node: Node, *, used: int, hidden: int, words: ReportingRules, changed_at: int) -> NodeRecord:
    """Return the record of a node; ``hidden``: processors used by no job that is listed."""
    free = max(0, node.processors - used)
    queues = tuple(Count(wire_name(queue), max(1, node.processors)) for queue in node.queues) if words.classes else ()
    return NodeRecord(
        name=name,
        state=node_word(node, used, words.dialect),
        updated_at=changed_at,
        load=node.load,
        reason=node.reason,
        classes=queues,
        architecture=wire_name(node.architecture) if node.architecture else "",
        operating_system=wire_name(node.operating_system) if node.operating_system else "Linux",
        features=tuple(wire_name(feature) for feature in node.features),
        partition=wire_name(words.partitions[node.name]) if node.name in words.partitions else "",
        memory=node.memory_mib,
        disk=node.disk_mib,
        processors=max(1, node.processors),
        # Maui computes what is free from the jobs it sees, and better so; but not what it cannot see.
        processors_free=free if hidden and node.state is NodeState.UP else None,
    )


def job_word(job: LrmJob, words: ReportingRules) -> JobWord:
    """Return Maui's word for the state of a job."""
    match job.state:
        case LrmJobState.STARTING:
            return JobWord.STARTING
        case LrmJobState.SUSPENDED:
            return JobWord.SUSPENDED
        case LrmJobState.RUNNING | LrmJobState.ENDING:
            return JobWord.RUNNING
        case LrmJobState.ENDED:
            exited = job.end is EndReason.EXITED
            well = exited if words.dialect is Dialect.WIKI2 else exited and job.exit_code == 0
            return JobWord.COMPLETED if well or job.end is None else JobWord.REMOVED
        case LrmJobState.QUEUED | LrmJobState.HELD:
            ours = is_startable(job, user_holds=words.user_holds) and not job.dependent and not job.obstacle
            return JobWord.IDLE if ours else JobWord.HOLD
    return JobWord.UNKNOWN


def why_not_offered(job: LrmJob, *, user_holds: bool) -> str:
    """Return why a waiting job cannot be started whatever nodes are free; empty when it can."""
    if job.obstacle:
        return job.obstacle
    if job.dependent:
        return "it waits for other jobs"
    if is_startable(job, user_holds=user_holds):
        return ""
    if job.state is LrmJobState.QUEUED:
        return "it is not in hold, so the batch system itself starts it"
    return "its user holds it" if job.hold is HoldOwner.USER else "it is held, and not by the site"


def job_record(
    job: LrmJob, *, hosts: Sequence[Host], tasks: Sequence[str], words: ReportingRules, changed_at: int
) -> JobRecord:
    """Return the record of a job. ``tasks``: the wire name of a host for each task.

    Maui does not show COMMENT, but EXEC (``checkjob -v``: Executable): so that says why a job is in hold, else its
    name. An empty EXEC would leave there what was said before.
    """
    told = offer(job, hosts, one_node=words.one_node) if job.state in WAITING else Offer(tasks=tasks_of(job))
    word = JobWord.HOLD if told.obstacle else job_word(job, words)
    reason = (why_not_offered(job, user_holds=words.user_holds) or told.obstacle) if job.state in WAITING else ""
    waits = word in {JobWord.IDLE, JobWord.HOLD}
    over = job.state is LrmJobState.ENDED
    two = words.dialect is Dialect.WIKI2
    started = None if waits else _whole(job.started_at)
    plain_queue = job.queue if job.queue and "," not in job.queue and words.classes else ""
    return JobRecord(
        id=str(job.id),
        state=word,
        exit_code=(job.exit_code or 0) if two and over else None,
        task_list=() if waits or over else tuple(tasks),
        host_list=told.host_list,
        excluded_hosts=_excluded(job, hosts) if waits and two else (),
        eligible_at=_whole(job.eligible_at) if waits else None,
        features=tuple(wire_name(feature) for feature in job.features),
        directory="" if over else job.working_directory,
        executable="" if two else reason or wire_name(job.name or str(job.id)),
        updated_at=changed_at,
        walltime=job.walltime or UNLIMITED,
        tasks=told.tasks,
        nodes=told.nodes,
        tasks_per_node=told.tasks_per_node,
        processors_per_task=job.processors_per_task,
        queued_at=min(_whole(job.submitted_at) or changed_at, started or changed_at),
        started_at=0 if waits else started or changed_at,
        memory_per_task=_memory_per_task(job, told),
        queue=wire_name(plain_queue) if plain_queue else "",
        comment=_comment(job, told, reason, words.dialect),
        completed_at=(_whole(job.ends_at) or changed_at) if over else None,
        account=wire_name(job.account) if job.account else "",
        name=job.name if two else "",
        user=wire_name(job.user) if job.user else "unknown",
        group=wire_name(job.group) if job.group else "",
    )


def _comment(job: LrmJob, told: Offer, reason: str, dialect: Dialect) -> str:
    """Return the comment of a job's record: why it is held, or its user's; in WIKI2 the tasks per node, as in Slurm."""
    if reason:
        return reason
    layout = f"TPN:{told.tasks_per_node}?" if told.tasks_per_node and dialect is Dialect.WIKI2 else ""
    return f"{layout}{job.comment}"


def _excluded(job: LrmJob, hosts: Sequence[Host]) -> tuple[str, ...]:
    return tuple(host.wire for host in hosts if host.name in job.excluded_nodes)


def _memory_per_task(job: LrmJob, told: Offer) -> int | None:
    each = job.memory_per_processor_mib
    if each is not None and job.exclusive and told.nodes and told.tasks_per_node:
        # The job's own tasks are fewer than those told, which stand for whole nodes: their memory is divided among all.
        own = -(-tasks_of(job) // told.nodes)
        return max(1, own * each * job.processors_per_task // told.tasks_per_node)
    if each is not None:
        return each * job.processors_per_task
    # The memory of a node is divided among the tasks on it.
    sharing = told.tasks_per_node or told.tasks
    return -(-job.memory_per_node_mib // sharing) if job.memory_per_node_mib else None


def _whole(moment: float | None) -> int | None:
    return None if moment is None else int(moment)

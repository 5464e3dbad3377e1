# SPDX-License-Identifier: Apache-2.0
"""Nodes and jobs of an LRM as the records that a scheduler reads, in the words that make it do the right thing. Pure.

What Maui makes of each word and each missing attribute was seen with a real one; the choices here follow from that:
a node whose state is not known is Down, because Unknown is scheduled on; a job that is not ours to start is Hold; what
is over is Completed or Removed, because Cancelled is not understood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.model import EndReason, HoldOwner, LrmJobState, NodeState
from koala_adapter.wiki.codec.records import JobRecord, NodeRecord
from koala_adapter.wiki.codec.values import Count
from koala_adapter.wiki.codec.words import DRAIN_WORD, Dialect, JobWord, NodeWord
from koala_adapter.wiki.naming import wire_name
from koala_adapter.wiki.offers import Offer, offer, tasks_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.model import LrmJob, Node
    from koala_adapter.wiki.offers import Host

MOST_CLASSES = 14
"""Queues that Maui has room for; of a cluster with more none is reported, and neither are the jobs'."""

UNLIMITED = 365 * 24 * 3600
"""Walltime reported for a job without one, as Slurm did: -1 is broken in Maui, 0 is 100 days."""

ACTIVE = frozenset({LrmJobState.STARTING, LrmJobState.RUNNING, LrmJobState.SUSPENDED, LrmJobState.ENDING})
WAITING = frozenset({LrmJobState.QUEUED, LrmJobState.HELD})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportingRules:
    """How this server reports."""

    dialect: Dialect
    user_holds: bool = False
    partitioned: bool = False
    one_node: bool = False
    """A job is started on one node only, where the batch system itself would divide it."""
    one_by_one: bool = False
    """Elements of a job array are started one after the other, so only one of each is offered."""
    classes: bool = True
    """Queues go out as classes; not when there are too many."""


def is_startable(job: LrmJob, *, user_holds: bool) -> bool:
    """Tell whether a job waits for us: held by the site, or by its user where that is the same; and free to go."""
    ours = {HoldOwner.OPERATOR, HoldOwner.USER} if user_holds else {HoldOwner.OPERATOR}
    return job.state is LrmJobState.HELD and job.hold in ours and not job.tied


def node_word(node: Node, used: int, dialect: Dialect) -> NodeWord:
    """Return the state of a node of which so many processors are used."""
    if node.state is NodeState.DRAINING:
        return DRAIN_WORD[dialect]
    if node.state is not NodeState.UP:
        return NodeWord.DOWN
    if used >= node.processors:
        return NodeWord.BUSY
    return NodeWord.RUNNING if used else NodeWord.IDLE


def node_record(
    name: str, cluster: str, node: Node, *, used: int, hidden: int, words: ReportingRules, changed_at: int
) -> NodeRecord:
    """Return the record of a node; ``hidden``: processors used by nobody whose job is listed."""
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
        partition=wire_name(cluster) if words.partitioned else "",
        memory=node.memory_mib,
        disk=node.disk_mib,
        processors=max(1, node.processors),
        # Maui computes what is free from the jobs it sees, and better so; but not what it cannot see.
        processors_free=free if hidden and node.state is NodeState.UP else None,
    )


def job_word(job: LrmJob, words: ReportingRules) -> JobWord:
    """Return the state of a job in a word that Maui knows."""
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
    """Return what keeps a waiting job from being started, whatever nodes are free; empty when nothing does."""
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
    """Return the record of a job. ``tasks``: one host for each task, by its name on the wire, as wanted there."""
    told = offer(job, hosts, one_node=words.one_node) if job.state in WAITING else Offer(tasks=tasks_of(job))
    word = JobWord.HOLD if told.obstacle else job_word(job, words)
    reason = (why_not_offered(job, user_holds=words.user_holds) or told.obstacle) if job.state in WAITING else ""
    waits = word in {JobWord.IDLE, JobWord.HOLD}
    over = job.state is LrmJobState.ENDED
    two = words.dialect is Dialect.WIKI2
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
        updated_at=changed_at,
        walltime=job.walltime or UNLIMITED,
        tasks=told.tasks,
        nodes=told.nodes,
        tasks_per_node=told.tasks_per_node,
        processors_per_task=job.processors_per_task,
        queued_at=_whole(job.submitted_at) or changed_at,
        started_at=0 if waits else _whole(job.started_at) or changed_at,
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
    """Return why a job is in hold, else its user's words; WIKI2 has the tasks per node here, as Slurm wrote them."""
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
    return -(-job.memory_per_node_mib // told.memory_divisor) if job.memory_per_node_mib else None


def _whole(moment: float | None) -> int | None:
    return None if moment is None else int(moment)

# SPDX-License-Identifier: Apache-2.0
"""What a WIKI resource manager reports, as our nodes, jobs and queues. Pure.

Idle is all that WIKI has for a job that waits for its outside scheduler, so that is a job held by the site; Hold is one
that the outside scheduler must leave alone.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from koala_adapter.model import EndReason, HoldOwner, LrmJob, LrmJobId, LrmJobState, Node, NodeState, Queue
from koala_adapter.wiki.codec.protocol import Dialect, JobRecord, JobWord, NodeRecord, NodeWord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

QUEUE = "default"
"""Name of the one queue when the resource manager names none."""

UNLIMITED = 8_639_999
"""Seconds from which on Maui takes a walltime for none; Slurm reports a year."""

NODE_STATES: Mapping[str, NodeState] = {
    NodeWord.IDLE: NodeState.UP,
    NodeWord.RUNNING: NodeState.UP,
    NodeWord.BUSY: NodeState.UP,
    NodeWord.DOWN: NodeState.DOWN,
    NodeWord.DRAINED: NodeState.DRAINING,
    NodeWord.DRAIN: NodeState.DRAINING,
    NodeWord.DRAINING: NodeState.DRAINING,
    NodeWord.FLUSH: NodeState.DRAINING,
    NodeWord.RESERVED: NodeState.DRAINING,
}
"""Everything else is UNKNOWN, on which nothing is started."""

JOB_STATES: Mapping[str, LrmJobState] = {
    JobWord.IDLE: LrmJobState.HELD,
    JobWord.HOLD: LrmJobState.HELD,
    JobWord.STARTING: LrmJobState.STARTING,
    JobWord.RUNNING: LrmJobState.RUNNING,
    JobWord.SUSPENDED: LrmJobState.SUSPENDED,
    JobWord.COMPLETED: LrmJobState.ENDED,
    JobWord.REMOVED: LrmJobState.ENDED,
    JobWord.VACATED: LrmJobState.ENDED,
}

HOLDERS: Mapping[str, HoldOwner] = {JobWord.IDLE: HoldOwner.OPERATOR, JobWord.HOLD: HoldOwner.SYSTEM}

OCCUPYING = frozenset({LrmJobState.STARTING, LrmJobState.RUNNING})
"""States of jobs whose processors are not idle; those of a suspended one are free for others."""


def used_processors(jobs: Iterable[JobRecord]) -> Counter[str]:
    """Return how many processors jobs occupy on each node."""
    used: Counter[str] = Counter()
    for job in jobs:
        if JOB_STATES.get(job.state) in OCCUPYING:
            for host in job.task_list:
                used[host] += job.processors_per_task or 1
    return used


def to_node(record: NodeRecord, used: Mapping[str, int]) -> Node:
    """Return a node. ``used``: processors that jobs occupy there, for resource managers that do not tell."""
    processors = record.processors or 1
    occupied = used.get(record.name, 0)
    if record.processors_free is not None:
        occupied = processors - record.processors_free
    elif record.state == NodeWord.BUSY:
        # Also without any job on it, such as while one is being cleaned up.
        occupied = processors
    total, free = record.memory, record.memory_free
    return Node(
        name=record.name,
        state=NODE_STATES.get(record.state, NodeState.UNKNOWN),
        processors=processors,
        processors_used=max(0, min(occupied, processors)),
        memory_mib=total,
        memory_used_mib=max(0, total - free) if total is not None and free is not None else None,
        disk_mib=record.disk,
        load=record.load,
        queues=node_queues(record),
        raw_state=record.state,
        reason=record.reason,
        features=record.features,
        architecture=record.architecture,
        operating_system=record.operating_system,
    )


def node_queues(record: NodeRecord) -> tuple[str, ...]:
    """Return the queues that a node serves: its classes, else its partition, else the one that everything is in."""
    return tuple(item.name for item in record.classes) or ((record.partition,) if record.partition else (QUEUE,))


def to_queues(nodes: Sequence[Node]) -> tuple[Queue, ...]:
    """Return the queues that nodes serve. WIKI tells neither limits nor defaults."""
    names = dict.fromkeys(name for node in nodes for name in node.queues) or {QUEUE: None}
    return tuple(
        Queue(
            name=name,
            up=any(node.state is NodeState.UP for node in nodes if name in node.queues),
            processors=sum(node.processors for node in nodes if name in node.queues),
            default=len(names) == 1,
        )
        for name in names
    )


def to_job(record: JobRecord, dialect: Dialect) -> LrmJob:
    """Return a job."""
    state = JOB_STATES.get(record.state, LrmJobState.UNKNOWN)
    if state is LrmJobState.RUNNING and not record.task_list and record.completed_at:
        state = LrmJobState.ENDING
    each = record.processors_per_task or 1
    active = state in {LrmJobState.STARTING, LrmJobState.RUNNING, LrmJobState.SUSPENDED, LrmJobState.ENDING}
    hosts = Counter(record.task_list if active else ())
    walltime = record.walltime if record.walltime and 0 < record.walltime < UNLIMITED else None
    started = record.started_at or None
    details = comment_parts(record.comment) if dialect is Dialect.WIKI2 else {}
    end, exit_code = _end(record, state, dialect)
    return LrmJob(
        id=LrmJobId(record.id),
        name=record.name,
        state=state,
        user=record.user,
        processors=(record.tasks or 1) * each,
        nodes=tuple(hosts),
        queue=record.queue or ":".join(record.partitions),
        reason=record.rejection,
        end=end,
        exit_code=exit_code,
        submitted_at=_moment(record.queued_at),
        started_at=_moment(started) if active or state is LrmJobState.ENDED else None,
        ends_at=_ends_at(record, state, started, walltime),
        raw_state=record.state,
        walltime=walltime,
        eligible_at=_moment(record.eligible_at),
        dependent="DEPEND" in details,
        hold=HOLDERS.get(record.state),
        layout=tuple((host, count * each) for host, count in hosts.items()),
        processors_per_task=each,
        nodes_wanted=record.nodes if state is LrmJobState.HELD else None,
        tasks_per_node=record.tasks_per_node or _number(details.get("TPN")),
        memory_per_processor_mib=None if record.memory_per_task is None else -(-record.memory_per_task // each),
        memory_per_node_mib=record.memory or None,
        features=record.features,
        requested_nodes=tuple(dict.fromkeys(record.host_list)),
        excluded_nodes=tuple(dict.fromkeys(record.excluded_hosts)),
        group=record.group,
        account=record.account,
        working_directory=record.directory,
        comment=details.get("", record.comment) if details else record.comment,
    )


def comment_parts(comment: str) -> dict[str, str]:
    """Return what sched/wiki2 packs into a comment, ``DEPEND=afterok:5?TPN:4?words``; the user's own words under ""."""
    parts: dict[str, str] = {}
    words = []
    for item in comment.split("?"):
        name, _, value = item.replace("=", ":", 1).partition(":")
        if name in {"DEPEND", "NACCESSPOLICY", "TPN", "JOBFLAGS"}:
            parts[name] = value
        else:
            words.append(item)
    parts[""] = "?".join(words)
    return parts


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None  # noqa: PLR2004


def _moment(seconds: int | None) -> float | None:
    return None if seconds is None else float(seconds)


def _ends_at(record: JobRecord, state: LrmJobState, started: int | None, walltime: int | None) -> float | None:
    if state in {LrmJobState.ENDED, LrmJobState.ENDING}:
        return _moment(record.completed_at)
    if state in OCCUPYING and started is not None and walltime is not None:
        return float(started + walltime + (record.suspended_for or 0))
    return None


def _end(record: JobRecord, state: LrmJobState, dialect: Dialect) -> tuple[EndReason | None, int | None]:
    """Return how a job ended when that is certain: only WIKI2 tells exit codes, and 0 also of a death by a signal."""
    if (
        state is LrmJobState.ENDED
        and record.state == JobWord.COMPLETED
        and dialect is Dialect.WIKI2
        and record.exit_code
    ):
        return EndReason.EXITED, record.exit_code
    return None, None

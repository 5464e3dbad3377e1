# SPDX-License-Identifier: Apache-2.0
"""Whether a STARTJOB may be tried, checked before anything is done; and when a job could start (JOBWILLRUN). Pure.

The account of room is ours: processors that were promised a moment ago are gone, whatever the LRM still shows. Codes
and first words of the refusals are Slurm's, which schedulers know; what follows them is for the administrator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.errors import WikiError
from koala_adapter.model import HoldOwner, LrmJobState, NodeState
from koala_adapter.wiki.codec.replies import StartInfo, not_started
from koala_adapter.wiki.codec.words import Status, WaitReason
from koala_adapter.wiki.inventory import SETBACK
from koala_adapter.wiki.offers import dealt, lacks, offer, tasks_of
from koala_adapter.wiki.recordbuilder import ACTIVE, WAITING, is_startable
from koala_adapter.wiki.tasklists import host_counts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.model import LrmJob
    from koala_adapter.wiki.codec.requests import StartJob, WillRun
    from koala_adapter.wiki.inventory import Inventory
    from koala_adapter.wiki.sources import Place


def refused(job: str, hosts: Sequence[str], reason: WaitReason, why: str) -> WikiError:
    """Return the refusal of a start, with Slurm's words and ours."""
    error = not_started(job, hosts, reason)
    return WikiError(f"{error.message}: {why}" if why else error.message, status=error.status)


def require_job(inventory: Inventory, id_: str) -> LrmJob:
    """Return a job that has not ended. Raises WikiError."""
    job = inventory.job(id_)
    if job is None or job.state is LrmJobState.ENDED:
        raise WikiError("No such job" if job is None else "Job has already finished", status=Status.REFUSED)
    return job


def require_active(inventory: Inventory, id_: str) -> LrmJob:
    """Return a job that runs or is suspended. Raises WikiError."""
    job = require_job(inventory, id_)
    if job.state not in ACTIVE:
        raise WikiError("Job is pending execution", status=Status.REFUSED)
    return job


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A start that may be tried: one place for each processor."""

    taken: tuple[Place, ...]
    """All that was listed; more than the job needs where that does not come out even, or it has nodes for itself."""
    given: tuple[Place, ...]
    """What the job itself is to have."""


def admit_start(inventory: Inventory, request: StartJob, *, now: float) -> Admission:
    """Return the places of a start that may be tried. Raises WikiError with the right code."""
    job = require_job(inventory, request.job)
    if job.state not in WAITING:
        raise WikiError("Job not pending, can't start", status=Status.REFUSED)
    hosts = request.tasks or _choose(inventory, job)
    unknown = [host for host in dict.fromkeys(hosts) if host not in inventory.nodes]
    if unknown:
        raise WikiError(f"Invalid TASKLIST: no node {', '.join(unknown[:5])}", status=Status.REFUSED)
    _require_ours(inventory, job, hosts, now)
    _require_shape(inventory, job, hosts)
    _require_room(inventory, job, hosts)
    return Admission(taken=_places(inventory, job, hosts), given=_places(inventory, job, dealt(job, hosts)))


def _places(inventory: Inventory, job: LrmJob, hosts: Sequence[str]) -> tuple[Place, ...]:
    """Return one place for each processor of these tasks."""
    return tuple(
        inventory.nodes[host].place
        for host, tasks in host_counts(hosts).items()
        for _ in range(tasks * job.processors_per_task)
    )


def _require_ours(inventory: Inventory, job: LrmJob, hosts: Sequence[str], now: float) -> None:
    if job.dependent:
        raise refused(job.id, hosts, WaitReason.DEPENDENCY, "it waits for other jobs")
    if job.eligible_at is not None and job.eligible_at > now:
        raise refused(job.id, hosts, WaitReason.BEGIN_TIME, f"not before {int(job.eligible_at)}")
    if job.obstacle and not job.obstacle.startswith(SETBACK):
        raise refused(job.id, hosts, WaitReason.BAD_CONSTRAINTS, job.obstacle)
    if is_startable(job, user_holds=inventory.words.user_holds):
        return
    if job.state is LrmJobState.HELD:
        if job.tied:
            raise refused(
                job.id, hosts, WaitReason.HELD, "it was queued again, and still has the nodes of an earlier start"
            )
        whose = "its user" if job.hold is HoldOwner.USER else "somebody else" if job.hold else "the batch system"
        raise refused(job.id, hosts, WaitReason.HELD, f"held by {whose}, not by the site")
    raise refused(job.id, hosts, WaitReason.PRIORITY, "it is not held: the batch system itself starts it")


def _require_shape(inventory: Inventory, job: LrmJob, hosts: Sequence[str]) -> None:
    told = offer(job, inventory.offered, one_node=inventory.words.one_node)
    if len(hosts) not in {tasks_of(job), told.tasks}:
        why = f"{len(hosts)} tasks are listed, and it has {tasks_of(job)}"
        raise refused(job.id, hosts, WaitReason.RESOURCES, why)
    counts = host_counts(dealt(job, hosts))
    least, most = job.node_bounds
    if not least <= len(counts) <= (most or len(counts)):
        why = f"{len(counts)} nodes are listed, and it insists on {job.nodes_asked}"
        raise refused(job.id, hosts, WaitReason.BAD_CONSTRAINTS, why)
    if job.tasks_per_node is not None and max(counts.values()) > job.tasks_per_node:
        why = f"it wants at most {job.tasks_per_node} tasks on a node"
        raise refused(job.id, hosts, WaitReason.BAD_CONSTRAINTS, why)
    places = {inventory.nodes[host].place.node: host for host in counts}
    if not set(job.requested_nodes) <= places.keys():
        missing = ", ".join(sorted(set(job.requested_nodes) - places.keys()))
        raise refused(job.id, hosts, WaitReason.BAD_CONSTRAINTS, f"it must run on {missing}")
    offered = {host.wire: host for host in inventory.offered}
    for host in counts:
        lacking = lacks(job, offered[host])
        if lacking:
            raise refused(job.id, hosts, WaitReason.BAD_CONSTRAINTS, f"{host} {lacking}")


def _require_room(inventory: Inventory, job: LrmJob, hosts: Sequence[str]) -> None:
    for host, tasks in host_counts(hosts).items():
        entry = inventory.nodes[host]
        if entry.node.state is NodeState.DRAINING:
            raise refused(job.id, hosts, WaitReason.RESOURCES, f"{host} is draining")
        if entry.node.state is not NodeState.UP:
            raise WikiError(f"TASKLIST includes non-responsive node: {host}", status=Status.REFUSED)
        wanted, free = tasks * job.processors_per_task, entry.node.processors - entry.used
        if wanted > free:
            why = f"{host} has {max(0, free)} free processors, and {wanted} are wanted"
            raise refused(job.id, hosts, WaitReason.RESOURCES, why)


def _choose(inventory: Inventory, job: LrmJob) -> tuple[str, ...]:
    """Return hosts for a start whose TASKLIST is empty: as many tasks as fit, on one node after another."""
    hosts: list[str] = []
    for name, entry in sorted(inventory.nodes.items()):
        usable = entry.node.state is NodeState.UP and set(job.features) <= set(entry.node.features)
        if not usable or entry.place.node in job.excluded_nodes:
            continue
        free = (entry.node.processors - entry.used) // job.processors_per_task
        free = min(free, job.tasks_per_node or free)
        hosts += [name] * max(0, min(free, tasks_of(job) - len(hosts)))
        if len(hosts) == tasks_of(job):
            return tuple(hosts)
    raise refused(job.id, (), WaitReason.RESOURCES, "there is no room for it now")


def estimate_start(inventory: Inventory, request: WillRun, *, now: float) -> StartInfo | None:
    """Return when and where a job could start if nothing else is started before it; None: never on these nodes.

    Jobs end at their walltimes. Raises WikiError.
    """
    job = require_job(inventory, request.job)
    if job.state not in WAITING:
        raise WikiError("Job not pending", status=Status.NO_WILLRUN)
    names = request.nodes or tuple(sorted(inventory.nodes))
    unknown = [name for name in names if name not in inventory.nodes]
    if unknown:
        raise WikiError(f"Invalid NODES value: no node {', '.join(unknown[:5])}", status=Status.NO_WILLRUN)
    earliest = max(now, job.eligible_at or now, float(request.not_before or 0))
    usable = {name: inventory.nodes[name] for name in names if inventory.nodes[name].node.state is NodeState.UP}
    free = {
        name: entry.node.processors - entry.used
        for name, entry in usable.items()
        if set(job.features) <= set(entry.node.features) and entry.place.node not in job.excluded_nodes
    }
    ends = sorted(_releases(inventory, free, request.preempt, now), key=lambda release: release[0])
    while True:
        for moment, name, processors in [release for release in ends if release[0] <= earliest]:
            free[name] += processors
            ends.remove((moment, name, processors))
        hosts = _fitted(free, job)
        if hosts:
            nodes = tuple(dict.fromkeys(hosts))
            start = int(earliest)
            return StartInfo(
                job=str(job.id), tasks=tasks_of(job), start=start, nodes=nodes, preempt=request.preempt, old=request.old
            )
        if not ends:
            return None
        earliest = ends[0][0]


def _releases(
    inventory: Inventory, free: Mapping[str, int], preempted: Sequence[str], now: float
) -> list[tuple[float, str, int]]:
    names = {inventory.nodes[name].place.node: name for name in free}
    found: list[tuple[float, str, int]] = []
    for entry in inventory.jobs.values():
        job = entry.job
        if job.state not in ACTIVE or job.state is LrmJobState.SUSPENDED:
            continue
        end = now if str(job.id) in preempted else job.ends_at
        if end is not None:
            found += [(max(now, end), names[node], count) for node, count in job.layout if node in names]
    return found


def _fitted(free: Mapping[str, int], job: LrmJob) -> tuple[str, ...]:
    hosts: list[str] = []
    for name in sorted(free, key=lambda name: -free[name]):
        tasks = max(0, free[name]) // job.processors_per_task
        tasks = min(tasks, job.tasks_per_node or tasks, tasks_of(job) - len(hosts))
        hosts += [name] * tasks
    return tuple(hosts) if len(hosts) == tasks_of(job) else ()

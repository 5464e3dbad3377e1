# SPDX-License-Identifier: Apache-2.0
"""Listings of a batch system: which jobs are koala's, what was listed, what waits, and shared looks.

In order: which jobs of a listing are placeholders of this service, the listing itself and reading it, waiting jobs that
need processors, slots counted on nodes, and the watcher, which makes one look serve all callers.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
import structlog

from koala_adapter.errors import LrmError, LrmUnavailableError
from koala_adapter.model import OCCUPYING, BatchKey, LrmJobState, NodeGpus, NodeState, PlaceholderId
from koala_adapter.slots import Slot, SlotCount

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping

    from anyio.abc import TaskGroup, TaskStatus

    from koala_adapter.lrm import Lrm
    from koala_adapter.lrm.rate import CircuitBreaker
    from koala_adapter.model import LrmJob, LrmJobId, Node, Queue


# -- Which jobs of a listing are placeholders of this service ------------------------------------------------
# A job's name is public, and any user may give the same name to jobs. So a job is a placeholder of this service when
# its name is one, its user is the one who runs this service, and, once the LRM has told the id of that placeholder, its
# id is that one. A user that the LRM does not tell proves nothing: such a job is believed to be a placeholder only by
# its id; it is never adopted by its name alone, and never cancelled as an orphan. These functions are pure.


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Jobs of a listing divided into our placeholders and others."""

    jobs: Mapping[PlaceholderId, LrmJob]
    """The job of each placeholder that is listed."""
    unaccounted: tuple[LrmJob, ...]
    """Certainly this user's, with names of ours, but of no placeholder that is known."""


def is_users(job: LrmJob, user: str) -> bool:
    """Return whether a job certainly belongs to a user."""
    return bool(user) and job.user == user


def possibly_ours(listing: Iterable[LrmJob], *, user: str, name_prefix: str) -> tuple[LrmJob, ...]:
    """Return the jobs with names of our placeholders that are not certainly another user's."""
    return tuple(job for job in listing if job.name.startswith(name_prefix) and _may_be_users(job, user))


def placeholder_of(job: LrmJob) -> PlaceholderId:
    """Return the identity of the placeholder that a job is by its name; None when it is none."""
    return PlaceholderId(batch=BatchKey(job.name), index=job.array_index or 1)


def attribute(listing: Iterable[LrmJob], known: Mapping[PlaceholderId, LrmJobId | None], *, user: str) -> Attribution:
    """Find known placeholders in a listing. ``known``: their LRM ids; None or empty when not known yet.

    Of several jobs that could be the same placeholder, one that has not ended comes first, then the latest submitted.
    """
    jobs: dict[PlaceholderId, LrmJob] = {}
    unaccounted: list[LrmJob] = []
    for job in listing:
        id_ = placeholder_of(job)
        if id_ not in known:
            if is_users(job, user):
                unaccounted.append(job)
        elif _is_that(job, known[id_], user) and (id_ not in jobs or _rank(jobs[id_]) <= _rank(job)):
            jobs[id_] = job
    return Attribution(jobs=jobs, unaccounted=tuple(unaccounted))


def tells_of(job: LrmJob, placeholder: PlaceholderId, lrm_id: LrmJobId, *, user: str) -> bool:
    """Return whether an accounting record belongs to a placeholder: LRMs reuse ids after years."""
    return job.id == lrm_id and job.name in {placeholder.batch, ""} and _may_be_users(job, user)


def _is_that(job: LrmJob, lrm_id: LrmJobId | None, user: str) -> bool:
    return job.id == lrm_id and _may_be_users(job, user) if lrm_id else is_users(job, user)


def _may_be_users(job: LrmJob, user: str) -> bool:
    return job.user in {user, ""}


def _rank(job: LrmJob) -> tuple[bool, float]:
    return job.state is not LrmJobState.ENDED, job.submitted_at or 0.0


# -- The listing, and reading it -----------------------------------------------------------------------------


log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Jobs and nodes of a batch system at one time."""

    read_at: float
    """When it was asked for, by our own clock, which nobody sets: what came later cannot be in it."""
    jobs: tuple[LrmJob, ...]
    nodes: tuple[Node, ...]
    queues: Mapping[str, Queue] = field(default_factory=dict)
    """By name; empty when it tells of none, or was not asked for them."""
    queue: str | None = None
    """The one that our jobs name, by which places are counted."""
    offset: float = 0.0
    """Seconds to add to a time of our clock for the time of day, in which the batch system writes its own times."""

    @property
    def time_of_day(self) -> float:
        """Time of the request as the batch system's clock shows it."""
        return self.read_at + self.offset

    def moment(self, time_of_day: float) -> float:
        """Convert a time of the batch system to our clock, by the present time of day."""
        return time_of_day - self.offset

    @property
    def processors(self) -> int:
        """Number of one-processor jobs that all nodes take, up or not: their processors or fewer (Node.places)."""
        return sum(node.places(self.queue) for node in self.nodes)

    @property
    def idle(self) -> int:
        """Number of one-processor jobs that could start now: idle processors or fewer (Node.places_idle)."""
        return sum(node.places_idle(self.queue) for node in self.nodes)

    @property
    def largest_idle(self) -> int:
        """Most processors that one job could get on one node now."""
        return max((node.processors_idle for node in self.nodes), default=0)

    @property
    def gpus(self) -> tuple[NodeGpus, ...]:
        """GPUs of all nodes by kind; those of nodes that are not up count as used."""
        found: dict[str, NodeGpus] = {}
        for node in self.nodes:
            for one in node.gpus:
                before = found.get(one.kind, NodeGpus(kind=one.kind, count=0))
                used = one.used if node.state is NodeState.UP else one.count
                found[one.kind] = replace(before, count=before.count + one.count, used=before.used + used)
        return tuple(found.values())

    @property
    def down(self) -> int:
        """Unused processors of nodes that are not up, which no job can get now."""
        return sum(-(-node.processors_out_of_service // node.grain_in(self.queue)) for node in self.nodes)


def is_another(job: LrmJob, submitted_at: float | None) -> bool:
    """Return whether a batch system has reused a former job's number for this job.

    One that was queued again has a new time of submission.
    """
    return not job.requeues and submitted_at != job.submitted_at and None not in {submitted_at, job.submitted_at}


@contextmanager
def answering(cluster: str) -> Iterator[None]:
    """Turn unexpected exceptions of a plugin into LrmUnavailableError: a defect of one must not end the service.

    Raises LrmUnavailableError for whatever is raised in the block and is no LrmError.
    """
    try:
        yield
    except LrmError:
        raise
    except Exception as error:
        log.exception("a plugin failed", cluster=cluster)
        raise LrmUnavailableError(f"its plugin failed: {error!r}", hint="the service's log tells where") from error


async def read_listing(
    lrm: Lrm, *, cluster: str, read_at: float, offset: float = 0.0, name_prefix: str = "", to_schedule: bool = False
) -> Listing:
    """List the jobs whose names begin with a prefix, then the nodes. Raises LrmError.

    ``to_schedule``: all jobs, for a scheduler from outside.

    In this order a job that starts between the two makes us think less is idle, never more.
    """
    with answering(cluster):
        jobs = await (lrm.jobs_to_schedule() if to_schedule else lrm.jobs(name_prefix=name_prefix))
        nodes = await lrm.nodes()
    return Listing(read_at=read_at, jobs=jobs, nodes=nodes, offset=offset)


# -- Waiting jobs that need processors -----------------------------------------------------------------------
# These functions are pure.

MOST_TOLD = 100
"""What waits behind so many others is not for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What our placeholders hold on a node."""

    processors: int = 0
    memory_mib: int | None = 0
    """None: not known."""
    gpus: int | None = 0
    """None: not known."""


def held_on_nodes(jobs: Iterable[LrmJob], slots: Mapping[LrmJobId, Slot], *, memory_mib: int | None) -> dict[str, Held]:
    """Return what our placeholders hold on each node. ``slots``: of each placeholder, where known.

    ``memory_mib``: of those whose slot does not say it; None: not known.
    """
    found: dict[str, Held] = {}
    for job in jobs:
        if job.state in OCCUPYING and len(job.nodes) == 1:
            slot, before = slots.get(job.id), found.get(job.nodes[0], Held())
            found[job.nodes[0]] = Held(
                processors=before.processors + job.processors,
                memory_mib=_sum(before.memory_mib, (slot.memory_mib or memory_mib) if slot else None),
                gpus=_sum(before.gpus, slot.gpus if slot else None),
            )
    return found


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def processors_wanted(
    jobs: Iterable[LrmJob],
    nodes: Collection[Node],
    *,
    time_of_day: float,
    queue: str | None = None,
    ours: Mapping[str, Held] = MappingProxyType({}),
) -> tuple[int, ...]:
    """Return how many places (of one-processor jobs) each waiting job will take, in listing order.

    At most MOST_TOLD. ``queue``: the one by which places are counted. ``ours``: what is ours of nodes, by their names.

    Only of those that could be started on these nodes if enough were idle: not of those in hold, before their begin
    time, behind other jobs, or bound to other nodes. Nor of those that would lack features, memory or GPUs of nodes
    even if nothing of that were ours.
    """
    largest = sum(node.processors for node in nodes)
    wanted = (
        min(_places_taken(job, node, queue) for node in nodes if _may_run_on(job, node))
        for job in jobs
        if _waits_for_processors(job, time_of_day)
        and job.processors <= largest
        and any(_may_run_on(job, node) for node in nodes)
        and (not _is_particular(job) or _may_be_helped(job, nodes, ours))
    )
    return tuple(islice(wanted, MOST_TOLD))


def _waits_for_processors(job: LrmJob, time_of_day: float) -> bool:
    waits = job.state is LrmJobState.QUEUED and not job.dependent and not job.blocked
    return waits and (job.eligible_at is None or job.eligible_at <= time_of_day)


def _places_taken(job: LrmJob, node: Node, queue: str | None) -> int:
    """Return how many places a job takes on nodes like this one."""
    if not node.processors:
        return job.processors
    whole = job.exclusive or job.queue in node.whole_queues
    on_whole = max(job.node_bounds[0], -(-job.processors // node.processors)) * node.processors
    grain = node.grain_in(job.queue)
    taken = on_whole if whole else max(job.processors, job.cores(job.processors, grain) * grain)
    return -(-taken * node.places(queue) // node.processors)


def _may_run_on(job: LrmJob, node: Node) -> bool:
    """Return whether a job may run on a node; unknown properties exclude nothing."""
    queues = [name for name in job.queue.split(",") if name]  # Slurm: the job may run in any of them
    if queues and node.queues and not set(queues) & set(node.queues):
        return False
    if job.requested_nodes and node.name not in job.requested_nodes:
        return False
    return node.name not in job.excluded_nodes


def _is_particular(job: LrmJob) -> bool:
    """Return whether a job needs more than processors of a node."""
    memory = job.memory_per_node_mib or job.memory_per_processor_mib
    return bool(job.features or job.any_feature or memory or job.gpus_per_node)


def _may_be_helped(job: LrmJob, nodes: Collection[Node], ours: Mapping[str, Held]) -> bool:
    """Return whether nodes would have room for a job if our placeholders left; unknown values do not exclude."""
    free = (_free_without(node, ours.get(node.name, Held()), job) for node in nodes if _may_run_on(job, node))
    return sum(free) >= job.processors


def _free_without(node: Node, ours: Held, job: LrmJob) -> int:
    """Return how many processors a job could have on a node without our placeholders, given its other needs."""
    if node.state is not NodeState.UP:
        return 0
    features = set(node.features)
    if "features" not in node.untold and (
        not features.issuperset(job.features) or (job.any_feature and features.isdisjoint(job.any_feature))
    ):
        return 0
    gpus = sum(one.count if ours.gpus is None else one.count - one.used for one in node.gpus) + (ours.gpus or 0)
    if "gpus" not in node.untold and gpus < job.gpus_per_node:
        return 0
    processors = node.processors - node.processors_used + ours.processors
    if node.memory_mib is None or node.memory_used_mib is None or ours.memory_mib is None:
        return processors
    memory = node.memory_mib - node.memory_used_mib + ours.memory_mib
    if memory < (job.memory_per_node_mib or 0):
        return 0
    return min(processors, memory // job.memory_per_processor_mib) if job.memory_per_processor_mib else processors


# -- Slots of nodes: how many of a shape they hold ever, and now ---------------------------------------------
# These functions are pure.


def count_slots(nodes: Iterable[Node], slot: Slot, *, queue: str | None) -> SlotCount:
    """Return how many slots of a shape nodes have. ``queue``: that of jobs which name none."""
    wanted = slot.queue or queue
    serving = [node for node in nodes if _serves(node, wanted)]
    holding = [(node, ever) for node in serving if (ever := slots_ever(node, slot, wanted))]
    most = sum(ever for _, ever in holding)
    places = [-(-node.places(wanted) // ever) for node, ever in holding]
    return SlotCount(
        slot=slot,
        most=most,
        idle=sum(slots_idle(node, slot, wanted) for node, _ in holding),
        processors=max(1, min(places, default=slot.threads)),
        other_queue=bool(slot.queue) and queue is not None and slot.queue != queue,
        lack="" if most else _lack(serving, slot, wanted),
    )


def slots_ever(node: Node, slot: Slot, queue: str | None) -> int:
    """Return how many slots a node holds when nothing else runs on it, whatever its state."""
    if any(_lacking(node, slot)):
        return 0
    cores = -(-slot.threads // node.grain_in(queue))
    bounds = [min(node.places(queue), -(-node.processors // node.grain_in(queue)) // cores)]
    if slot.exclusive or (queue or "") in node.whole_queues:
        bounds = [1 if node.processors >= slot.threads and node.places(queue) else 0]
    if slot.memory_mib and node.memory_mib is not None:
        bounds.append(node.memory_mib // slot.memory_mib)
    if slot.scratch_mib and node.disk_mib is not None:
        bounds.append(node.disk_mib // slot.scratch_mib)
    if slot.gpus and "gpus" not in node.untold:
        bounds.append(_gpus(node, slot.gpu_kind) // slot.gpus)
    return max(0, min(bounds))


def slots_idle(node: Node, slot: Slot, queue: str | None) -> int:
    """Return how many slots a new job could get on a node now."""
    if node.state is not NodeState.UP or (queue or "") in node.closed_queues:
        return 0
    if (slot.exclusive or (queue or "") in node.whole_queues) and node.processors_used:
        return 0
    grain = node.grain_in(queue)
    cores = -(-slot.threads // grain)
    if node.counts_grains:
        idle = node.processors_idle // grain
    else:
        idle = min(node.processors_idle, max(0, -(-node.processors // grain) - node.processors_used))
    bounds = [slots_ever(node, slot, queue), idle // cores]
    if slot.exclusive or (queue or "") in node.whole_queues:
        bounds = [slots_ever(node, slot, queue)]
    bounds += [now for name, _, now in node.queue_places if name == (queue or "")]
    if slot.memory_mib and node.memory_mib is not None and node.memory_used_mib is not None:
        bounds.append((node.memory_mib - node.memory_used_mib) // slot.memory_mib)
    if slot.gpus and "gpus" not in node.untold:
        used = sum(one.used for one in _of_kind(node, slot.gpu_kind))
        bounds.append((_gpus(node, slot.gpu_kind) - used) // slot.gpus)
    return max(0, min(bounds))


def _serves(node: Node, queue: str | None) -> bool:
    """Return whether a node takes jobs of a queue or list of queues; unknown queues exclude nothing."""
    return not queue or not node.queues or not set(queue.split(",")).isdisjoint(node.queues)


def _of_kind(node: Node, kind: str) -> tuple[NodeGpus, ...]:
    return tuple(one for one in node.gpus if kind in {"", one.kind} or "gpu_kind" in node.untold)


def _gpus(node: Node, kind: str) -> int:
    return sum(one.count for one in _of_kind(node, kind))


def _lacking(node: Node, slot: Slot) -> Iterator[str]:
    """Yield each need of a slot that a node can never meet, with what the node has."""
    if node.processors < slot.threads:
        yield f"{slot.threads} processors (it has {node.processors})"
    if node.memory_mib is not None and node.memory_mib < slot.memory_mib:
        yield f"{slot.memory_mib} MiB of memory (it has {node.memory_mib})"
    if node.disk_mib is not None and node.disk_mib < slot.scratch_mib:
        yield f"{slot.scratch_mib} MiB of scratch space (it has {node.disk_mib})"
    if "gpus" not in node.untold and _gpus(node, slot.gpu_kind) < slot.gpus:
        there = ", ".join(f"{one.count} {one.kind}".rstrip() for one in node.gpus) or "none"
        kind = f" of kind {slot.gpu_kind}" if slot.gpu_kind else ""
        yield f"{slot.gpus} {'GPU' if slot.gpus == 1 else 'GPUs'}{kind} (it has {there})"
    if "features" not in node.untold:
        yield from (f"feature {word}" for word in slot.features if word not in node.features)


def _lack(nodes: list[Node], slot: Slot, queue: str | None) -> str:
    """Return why no node can hold a slot, for the node that lacks least."""
    if not nodes:
        return f"no node serves queue {queue!r}"
    lacks = [(node, list(_lacking(node, slot))) for node in nodes]
    nearest, lack = min(lacks, key=lambda one: (len(one[1]), -one[0].processors))
    said = ", ".join(lack) or f"room for {slot}"
    return f"no node is large enough: {nearest.name}, the nearest, does not have {said}"


# -- The watcher: one look for all callers, and fewer while it fails -----------------------------------------

T = TypeVar("T")


@dataclass(eq=False, slots=True, kw_only=True)
class Look(Generic[T]):
    """One reading of a batch system, begun and perhaps finished."""

    begun: float
    over: anyio.Event = field(default_factory=anyio.Event)
    answered: bool = False
    found: T = field(init=False)
    """Set when it was answered."""
    error: Exception | None = None
    """Why it was not; None also when it was given up."""


class Watcher(Generic[T]):
    """Reads a batch system on demand, one reading at a time, shared by all who wait for it.

    While `run` runs, a look that was begun comes to its end, whatever becomes of those who wait for it: who asks with
    little patience, again and again, has it in the end.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[T]],
        *,
        breaker: CircuitBreaker,
        on_trouble: Callable[[LrmError | None], None],
    ) -> None:
        """``read``: reads the batch system; raises LrmError when it does not answer.

        ``on_trouble`` hears when it stops answering (why), and when it answers again (None).
        """
        self._read = read
        self.breaker = breaker
        self._on_trouble = on_trouble
        self._tasks: TaskGroup | None = None
        self.under_way: Look[T] | None = None
        self.begun_at = -inf
        """When the last look that was answered was begun (monotonic); -inf when there was none."""
        self._changed_at = -inf
        """When something was last done to the batch system."""
        self.failure: LrmError | None = None
        """Why the last look was not answered; None when it was."""
        self.looks = 0
        """How many were answered."""

    @property
    def resting(self) -> bool:
        """Return whether the batch system is not asked at present, after repeated failures."""
        return not self.breaker.may_ask(anyio.current_time())

    def invalidate(self) -> None:
        """Require a new reading: the batch system was changed, so one that began before is outdated."""
        self._changed_at = anyio.current_time()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run readings in the background until cancelled, so that they outlive their requests."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                task_status.started()
                await anyio.sleep_forever()
        finally:
            self._tasks = None

    async def look(self) -> T:
        """Read now. Raises LrmError."""
        while True:
            while self.under_way is not None:
                await self.under_way.over.wait()
            look = await self._seen()
            if look.error is not None:
                raise look.error
            if look.answered:
                return look.found

    async def fresh(self, *, within: float, now: bool = False) -> None:
        """Wait for a reading that began within the given seconds and after the last change.

        ``now``: one begun from now on, even while the batch system is left alone. Raises LrmError.
        """
        wanted = anyio.current_time() if now else max(self._changed_at, anyio.current_time() - within)
        while self.begun_at < wanted:
            look = self.under_way
            if look is not None:
                await look.over.wait()
            elif self.resting and not now:
                message = "it is left alone for a while" if self.failure is None else self.failure.message
                raise LrmUnavailableError(message, hint="it has failed again and again, and is asked again later")
            else:
                look = await self._seen()
            if look.error is not None and look.begun >= wanted:
                raise look.error

    async def _seen(self) -> Look[T]:
        """Read, as the only one at a time."""
        look: Look[T] = Look(begun=anyio.current_time())
        self.under_way = look
        if self._tasks is None:
            await self._carry_out(look)
        else:
            self._tasks.start_soon(self._carry_out, look)
            await look.over.wait()
        return look

    async def _carry_out(self, look: Look[T]) -> None:
        try:
            look.found = await self._read()
            look.answered = True
        except Exception as error:  # noqa: BLE001 - whoever asked is told, and nobody else may have to bear it
            look.error = error
        finally:
            self.under_way = None
            look.over.set()
        if isinstance(look.error, LrmError):
            self._failed(look.error)
        elif look.answered:
            self._answered(look.begun)

    def _failed(self, error: LrmError) -> None:
        self.breaker.failed(anyio.current_time())
        known, self.failure = self.failure, error
        if known is None:
            self._on_trouble(error)

    def _answered(self, begun: float) -> None:
        self.breaker.succeeded()
        self.looks += 1
        self.begun_at = begun
        if self.failure is not None:
            self.failure = None
            self._on_trouble(None)

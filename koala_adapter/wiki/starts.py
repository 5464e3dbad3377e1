# SPDX-License-Identifier: Apache-2.0
"""Starts of jobs for a WIKI scheduler: checks, a fresh inventory, STARTJOB and what becomes of it.

First what is checked before anything is done, and when a job could start (JOBWILLRUN), then the inventory that is as
fresh as its readers need it, then the starts themselves.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import (
    LrmError,
    LrmNotFoundError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnsupportedError,
    WikiError,
)
from koala_adapter.lrm.listing import Listing, Look, Watcher, read_listing
from koala_adapter.lrm.rate import CircuitBreaker
from koala_adapter.lrm.startlog import OriginalRequest, Pin
from koala_adapter.lrm.starts import OVER, Failure, Stage, up_for_us
from koala_adapter.model import OCCUPYING, WAITING, HoldOwner, LrmJob, LrmJobId, LrmJobState, NodeState
from koala_adapter.wiki.codec.verbs import StartInfo, StartJob, WillRun, not_started
from koala_adapter.wiki.codec.words import Status, WaitReason
from koala_adapter.wiki.inventory import SETBACK, Inventory, Promise, host_counts
from koala_adapter.wiki.reporting import hosts_of_tasks, is_startable, lacks, offer, tasks_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from anyio.abc import TaskGroup, TaskStatus

    from koala_adapter.wiki.serving import Served


# -- Checks before a start -----------------------------------------------------------------------------------
# Whether a STARTJOB may be tried, and when a job could start (JOBWILLRUN). This part does no I/O.
#
# The account of room is ours: processors that were promised a moment ago are gone, whatever the LRM still shows. Codes
# and first words of the refusals are Slurm's, which schedulers know; what follows them is for the administrator.


def require_job(inventory: Inventory, id_: str) -> LrmJob:
    """Return an unfinished job by its id. Raises WikiError."""
    job = inventory.job(id_)
    if job is None or job.state is LrmJobState.ENDED:
        raise WikiError("No such job" if job is None else "Job has already finished", status=Status.REFUSED)
    return job


def require_active(inventory: Inventory, id_: str) -> LrmJob:
    """Return a running or suspended job by its id. Raises WikiError."""
    job = require_job(inventory, id_)
    if job.state not in OCCUPYING:
        raise WikiError("Job is pending execution", status=Status.REFUSED)
    return job


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Nodes of an admitted start, one name for each processor."""

    taken: tuple[str, ...]
    """All that was listed; more than the job needs where that does not come out even, or it has nodes for itself."""
    given: tuple[str, ...]
    """What the job itself is to have."""


def admit_start(inventory: Inventory, request: StartJob, *, now: float) -> Admission:
    """Check a start and return its nodes. Raises WikiError with the status of the refusal."""
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
    return Admission(taken=_places(inventory, job, hosts), given=_places(inventory, job, hosts_of_tasks(job, hosts)))


def _places(inventory: Inventory, job: LrmJob, hosts: Sequence[str]) -> tuple[str, ...]:
    """Return a node name for each processor of the tasks."""
    return tuple(
        inventory.nodes[host].node.name
        for host, tasks in host_counts(hosts).items()
        for _ in range(tasks * job.processors_per_task)
    )


def _require_ours(inventory: Inventory, job: LrmJob, hosts: Sequence[str], now: float) -> None:
    if job.dependent:
        raise not_started(job.id, hosts, WaitReason.DEPENDENCY, "it waits for other jobs")
    if job.eligible_at is not None and job.eligible_at > now:
        raise not_started(job.id, hosts, WaitReason.BEGIN_TIME, f"not before {int(job.eligible_at)}")
    if job.obstacle and not job.obstacle.startswith(SETBACK):
        raise not_started(job.id, hosts, WaitReason.BAD_CONSTRAINTS, job.obstacle)
    if is_startable(job, user_holds=inventory.words.user_holds):
        return
    if job.state is LrmJobState.HELD:
        if job.tied:
            raise not_started(
                job.id, hosts, WaitReason.HELD, "it was queued again, and still has the nodes of an earlier start"
            )
        whose = "its user" if job.hold is HoldOwner.USER else "somebody else" if job.hold else "the batch system"
        raise not_started(job.id, hosts, WaitReason.HELD, f"held by {whose}, not by the site")
    raise not_started(job.id, hosts, WaitReason.PRIORITY, "it is not held: the batch system itself starts it")


def _require_shape(inventory: Inventory, job: LrmJob, hosts: Sequence[str]) -> None:
    told = offer(job, inventory.offered, one_node=inventory.words.one_node)
    if len(hosts) not in {tasks_of(job), told.tasks}:
        why = f"{len(hosts)} tasks are listed, and it has {tasks_of(job)}"
        raise not_started(job.id, hosts, WaitReason.RESOURCES, why)
    counts = host_counts(hosts_of_tasks(job, hosts))
    least, most = job.node_bounds
    if not least <= len(counts) <= (most or len(counts)):
        why = f"{len(counts)} nodes are listed, and it insists on {job.nodes_asked}"
        raise not_started(job.id, hosts, WaitReason.BAD_CONSTRAINTS, why)
    if job.tasks_per_node is not None and max(counts.values()) > job.tasks_per_node:
        why = f"it wants at most {job.tasks_per_node} tasks on a node"
        raise not_started(job.id, hosts, WaitReason.BAD_CONSTRAINTS, why)
    missing = set(job.requested_nodes) - {inventory.nodes[host].node.name for host in counts}
    if missing:
        raise not_started(job.id, hosts, WaitReason.BAD_CONSTRAINTS, f"it must run on {', '.join(sorted(missing))}")
    offered = {host.wire: host for host in inventory.offered}
    for host in counts:
        # A node that is not listed any more is down, which is found next.
        if host in offered and (lacking := lacks(job, offered[host])):
            raise not_started(job.id, hosts, WaitReason.BAD_CONSTRAINTS, f"{host} {lacking}")


def _require_room(inventory: Inventory, job: LrmJob, hosts: Sequence[str]) -> None:
    for host, tasks in host_counts(hosts).items():
        entry = inventory.nodes[host]
        if entry.node.state is NodeState.DRAINING:
            raise not_started(job.id, hosts, WaitReason.RESOURCES, f"{host} is draining")
        if entry.node.state is not NodeState.UP:
            raise WikiError(f"TASKLIST includes non-responsive node: {host}", status=Status.REFUSED)
        wanted, free = tasks * job.processors_per_task, entry.node.processors - entry.used
        if wanted > free:
            why = f"{host} has {max(0, free)} free processors, and {wanted} are wanted"
            raise not_started(job.id, hosts, WaitReason.RESOURCES, why)


def _choose(inventory: Inventory, job: LrmJob) -> tuple[str, ...]:
    """Choose hosts for a start with an empty TASKLIST: fill one node after another."""
    hosts = _filled(_free(inventory, sorted(inventory.nodes), job), job)
    if not hosts:
        raise not_started(job.id, (), WaitReason.RESOURCES, "there is no room for it now")
    return hosts


def _free(inventory: Inventory, names: Iterable[str], job: LrmJob) -> dict[str, int]:
    """Return the free processors of those of the nodes that are up and that a job may use."""
    entries = ((name, inventory.nodes[name]) for name in names)
    return {
        name: entry.node.processors - entry.used
        for name, entry in entries
        if entry.node.state is NodeState.UP
        and set(job.features) <= set(entry.node.features)
        and entry.node.name not in job.excluded_nodes
    }


def _filled(free: Mapping[str, int], job: LrmJob) -> tuple[str, ...]:
    """Return a host for each task of a job, one node filled after another; empty when there is too little room."""
    hosts: list[str] = []
    for name, processors in free.items():
        tasks = max(0, processors) // job.processors_per_task
        tasks = min(tasks, job.tasks_per_node or tasks, tasks_of(job) - len(hosts))
        hosts += [name] * tasks
    return tuple(hosts) if len(hosts) == tasks_of(job) else ()


def estimate_start(inventory: Inventory, request: WillRun, *, now: float) -> StartInfo | None:
    """Return when and where a job could start if no other job starts before it; None: never on these nodes.

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
    free = _free(inventory, names, job)
    ends = sorted(_releases(inventory, free, request.preempt, now), key=lambda release: release[0])
    while True:
        for moment, name, processors in [release for release in ends if release[0] <= earliest]:
            free[name] += processors
            ends.remove((moment, name, processors))
        largest_first = dict(sorted(free.items(), key=lambda item: -item[1]))
        if hosts := _filled(largest_first, job):
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
    names = {inventory.nodes[name].node.name: name for name in free}
    found: list[tuple[float, str, int]] = []
    for entry in inventory.jobs.values():
        job = entry.job
        if job.state not in OCCUPYING or job.state is LrmJobState.SUSPENDED:
            continue
        end = now if str(job.id) in preempted else job.ends_at
        if end is not None:
            found += [(max(now, end), names[node], count) for node, count in job.layout if node in names]
    return found


# -- Fresh inventory -----------------------------------------------------------------------------------------
# One listing serves all peers that poll, and none is older than our last change.

LONGEST_REST = 15.0
"""Seconds at most that a source which fails again and again is left alone: peers poll about as often."""

log = structlog.get_logger()


class FreshInventory(Watcher[None]):
    """Reads a batch system into an inventory as often as requests need it, with one reading at a time."""

    def __init__(self, served: Served) -> None:
        """``served``: the batch system with its inventory and starts."""
        self._served = served
        self._lrm = served.lrm
        self._inventory = served.inventory
        self._starter = served.starter
        self._options = options = served.options
        self.patience = options.reply_within
        """Seconds for which a poll waits for a reading."""
        breaker = CircuitBreaker(pause=min(options.cache, LONGEST_REST), longest_pause=LONGEST_REST)
        super().__init__(self._learn, breaker=breaker, on_trouble=self._note_trouble)
        self._waited_for: Look[None] | None = None
        """The reading for which a request has waited as long as an answer may take."""

    async def fresh(self, *, within: float | None = None, now: bool = False) -> None:
        """Wait for a reading at most ``within`` seconds old; None: as old as polls allow.

        ``now``: as it is at this moment. All who wait at the same time share one reading. Raises LrmError.
        """
        await super().fresh(within=self._options.cache if within is None else within, now=now)

    async def latest(self) -> None:
        """Wait for a reading that is fresh enough for polls, or until the limit of waiting for the batch system.

        While one reading takes longer than that, what the last one showed will do, within the bound for its age; that
        is waited for once, not for each request. Raises LrmError.
        """
        patience = 0.0 if self._is_waited_for else self.patience
        with anyio.move_on_after(patience) as scope:
            await self.fresh()
        if not scope.cancelled_caught:
            return
        age = anyio.current_time() - self.begun_at
        if age > self._options.oldest:
            raise LrmUnavailableError(f"{self._options.cluster} did not answer in time")
        if not self._is_waited_for:
            self._waited_for = self.under_way
            log.warning(
                "the cluster is slow: peers are told what it showed earlier",
                cluster=self._options.cluster,
                age=round(age, 1),
            )

    @property
    def _is_waited_for(self) -> bool:
        return self._waited_for is not None and self._waited_for is self.under_way

    async def _learn(self) -> None:
        # What was promised meanwhile cannot show in a reading that takes long: by its beginning is judged what is late.
        begun = self._served.steady()
        listing, taken_back = await self._read_and_judge()
        if taken_back:
            with suppress(LrmError):
                begun, (listing, _) = self._served.steady(), await self._read_and_judge()
        if self._inventory.learn(listing, self._served.clock(), steady=begun):
            self._served.note_change()

    def _note_trouble(self, error: LrmError | None) -> None:
        if error is None:
            log.info("cluster answers again", cluster=self._options.cluster)
        else:
            log.warning("cluster does not answer", cluster=self._options.cluster, error=str(error))

    def _note_failure(self, job_id: LrmJobId, failure: Failure) -> None:
        """Record the failed start of a job, with the reason that schedulers see, and keep the job back."""
        if self._inventory.withdraw(job_id):
            setback = self._inventory.set_back(job_id, failure.reason, refused=failure.refused)
            pause = round(setback.until - self._served.steady(), 1)
            log.warning("not started", job=job_id, reason=failure.reason, failures=setback.failures, kept_back=pause)

    async def _read_and_judge(self) -> tuple[Listing, bool]:
        """Read and judge the starts by it; return whether starts were taken back, which needs another reading."""
        read_at = anyio.current_time()
        listing = await read_listing(self._lrm, cluster=self._options.cluster, read_at=read_at, to_schedule=True)
        in_hand = self._starter.starts.in_hand(read_at)
        taken_back, failures = await self._starter.settle(listing.jobs, read_at)
        for job_id, failure in failures.items():
            self._note_failure(job_id, failure)
        queue = self._options.queue
        shown = (node for node in listing.nodes if queue is None or queue in node.queues)
        jobs = tuple(map(self._starter.starts.as_asked, listing.jobs))
        return replace(listing, jobs=jobs, nodes=up_for_us(shown, in_hand)), taken_back


# -- Starts --------------------------------------------------------------------------------------------------
# STARTJOB releases the job, and that is answered; what becomes of it is seen in the background.
#
# From the moment at which a start is admitted its job is reported as starting, and its processors as taken. A peer asks
# for one start after the other, so each answer comes as soon as the batch system has taken the start, and not when the
# job runs, which Slurm looks at once a second. What does not start is held again, and reported with the reason.

PROMISED = 10.0
"""Seconds for which a peer sees what it was told after the last moment at which the start could show."""
FIRST_LOOK, SLOWEST_LOOK = 0.5, 4.0
"""Seconds between two looks at what has become of starts."""
MOMENTS = (0.1, 0.2, 0.4, 0.8)
"""Seconds between the looks at an element of an array that seems not to be held."""
LASTING = frozenset({WaitReason.BAD_CONSTRAINTS.status, WaitReason.DEPENDENCY.status})
"""Refusals that nothing but another request, or another job, can change."""


class JobStarts:
    """The starts of jobs on one batch system."""

    def __init__(self, served: Served, readings: FreshInventory) -> None:
        """``readings`` of what is served."""
        self._served = served
        self._inventory = served.inventory
        self._starter = served.starter
        self._options = served.options
        self._readings = readings
        self._tasks: TaskGroup | None = None
        self._begun = anyio.Event()
        self._resumed: list[Pin] = []
        """Starts of an earlier process of which it is not known yet what has become."""

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Carry out and follow starts until cancelled; then take back those that have not come about."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                task_status.started()
                await self._follow()
        finally:
            self._tasks = None
            await self._starter.leave()

    async def start(self, request: StartJob) -> str:
        """Start a job; return the response once the batch system took it, or is slow. Raises WikiError."""
        job_id, starts = LrmJobId(request.job), self._starter.starts
        if not (starts.is_over(job_id) or starts.is_tied(job_id)):
            raise WikiError("Job not pending, can't start: it is being started", status=Status.REFUSED)
        await self._look_again(request.job)
        try:
            admission = admit_start(self._inventory, request, now=self._served.clock())
        except WikiError as error:
            self._keep_back(request.job, error)
            raise
        tasks = self._tasks
        if tasks is None:
            raise WikiError("the server is about to stop: nothing is started any more", status=Status.REFUSED)
        job = require_job(self._inventory, request.job)
        layout = tuple(host_counts(admission.given).items())
        wishes = OriginalRequest.of(job)
        starts.begin(
            Pin(job_id=job_id, submitted_at=job.submitted_at, nodes=layout, wishes=wishes, at=self._served.steady())
        )
        self._inventory.promise(request.job, Promise(until=inf, nodes=admission.taken))
        self._inventory.report_tasks(request.job, request.tasks)
        self._served.remember()
        refusal = await self._refusal(job_id, tasks)
        if refusal is not None:
            starts.dismiss(job_id)
            self._starter.note_later()
            if self._inventory.withdraw(request.job):
                grave = not isinstance(refusal, LrmUnavailableError)
                self._inventory.set_back(request.job, str(refusal), refused=grave)
            if isinstance(refusal, LrmNotFoundError):
                self._readings.invalidate()
            raise self._not_started(request, refusal)
        return request.response

    async def _look_again(self, id_: str) -> None:
        """Read again a job that seems not to be held, and for a few moments an array element.

        While an element is started, Slurm shows others of its array for a moment as if they were not in hold.
        """
        for pause in MOMENTS:
            known = self._inventory.job(id_)
            if known is None or known.state is not LrmJobState.QUEUED:
                return
            with suppress(LrmError):
                await self._readings.fresh(now=True)
            if known.array_index is None:
                return
            await anyio.sleep(pause)

    async def _refusal(self, job_id: LrmJobId, tasks: TaskGroup) -> LrmError | None:
        """Wait for the outcome of a start; return the refusal, or None when accepted or still unknown.

        It is gone on with in any case.
        """
        answered = anyio.Event()
        refusals: list[LrmError | None] = []

        async def ask() -> None:
            try:
                # Once begun, a start comes to its end whatever becomes of the request for it.
                if await self._starter.put_on_record([job_id]):
                    stage, error = await self._starter.ask(job_id)
                    refusals.append(error if stage is Stage.REFUSED else None)
                elif (attempt := self._starter.starts.attempts.get(job_id)) is not None:
                    refusals.append(attempt.error)
            finally:
                self._inventory.extend(job_id, self._served.steady() + self._options.start_within + PROMISED)
                answered.set()

        tasks.start_soon(ask)
        with anyio.move_on_after(min(self._options.start_reply_within, self._options.reply_within)):
            await answered.wait()
        self._begun.set()
        return refusals[0] if refusals else None

    def _keep_back(self, job: str, refusal: WikiError) -> None:
        """Keep a job back whose start was refused before the batch system was asked, for longer each time."""
        known = self._inventory.job(job)
        if known is None or known.state not in WAITING or refusal.status is None:
            return
        self._inventory.set_back(job, refusal.message, refused=refusal.status in LASTING)

    def _not_started(self, request: StartJob, failure: LrmError) -> WikiError:
        if isinstance(failure, LrmNotFoundError):
            return WikiError(f"No such job: {failure.message}", status=Status.REFUSED)
        if isinstance(failure, LrmUnsupportedError):
            return WikiError(failure.message, status=Status.UNSUPPORTED)
        reason = WaitReason.BAD_CONSTRAINTS if isinstance(failure, LrmRejectedError) else WaitReason.RESOURCES
        return not_started(request.job, request.tasks, reason, str(failure))

    # -- following ---------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Read the batch system while starts are under way, first soon and then at growing intervals."""
        while True:
            await self._begun.wait()
            pause = FIRST_LOOK
            while self._under_way():
                if self._begun.is_set():
                    self._begun, pause = anyio.Event(), FIRST_LOOK
                await anyio.sleep(pause)
                with suppress(LrmError):
                    await self._readings.fresh(within=pause)
                await self._starter.give_back()
                pause = min(SLOWEST_LOOK, 2 * pause)
            if self._begun.is_set():
                self._begun = anyio.Event()

    def _under_way(self) -> bool:
        starts = self._starter.starts
        return any(attempt.stage not in OVER or not starts.is_over(job) for job, attempt in starts.attempts.items())

    # -- after a kill ------------------------------------------------------------------------------------------------

    async def reconcile(self) -> None:
        """Complete the starts that an earlier process left: each job runs or is held again.

        Raises LrmError when the source does not answer.
        """
        starts = self._starter.starts
        interrupted = [pin for pin in starts.pins.values() if pin.job_id not in starts.attempts and not pin.started]
        for pin in interrupted:
            starts.resume(pin, Stage.FAILED)
        self._resumed += interrupted
        if not self._resumed:
            return
        await self._readings.fresh(now=True)
        await self._starter.give_back()
        for pin in self._resumed:
            job = self._inventory.job(pin.job_id)
            state = "gone" if job is None else str(job.state)
            log.warning("an interrupted start", job=pin.job_id, nodes=pin.nodes, found=state)
        if any(starts.is_tied(pin.job_id) for pin in self._resumed):
            raise LrmUnavailableError("jobs whose start was interrupted cannot be put in hold yet")
        self._resumed.clear()

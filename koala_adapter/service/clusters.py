# SPDX-License-Identifier: Apache-2.0
"""One cluster of a service: polls of its LRM, reservations there, and the driver that submits and cancels there.

The poller is the information service (KIS) of a cluster, polled with restraint; all callers share one poll. The
driver owns the poller and reports by events.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil, inf
from types import MappingProxyType
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import (
    JournalBlockedError,
    LrmError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnreachableError,
    LrmUnsupportedError,
)
from koala_adapter.host.containment import contained
from koala_adapter.lrm import Submission
from koala_adapter.lrm.contract import ReservationRequest
from koala_adapter.lrm.listing import (
    Listing,
    Watcher,
    answering,
    count_slots,
    held_on_nodes,
    possibly_ours,
    processors_wanted,
    read_listing,
)
from koala_adapter.lrm.rate import CircuitBreaker, PollPace
from koala_adapter.model import BatchKey, ClusterName, Job, LrmJob, LrmJobId, Node, PlaceholderId
from koala_adapter.outcome import JobState
from koala_adapter.scheduler.events import (
    BatchAbsent,
    BatchRejected,
    BatchSubmitted,
    BatchUncertain,
    ClusterPolled,
    Event,
    PlaceholderEnded,
    ReservationMade,
    ReservationRefused,
    SlotsCounted,
)
from koala_adapter.service.core import Core, Nudge
from koala_adapter.service.listings import ListingJudge, ends_soon, processors_held
from koala_adapter.service.opening import token_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from anyio.abc import TaskStatus

    from koala_adapter.config.sitefile import ClusterConfig
    from koala_adapter.lrm import Lrm
    from koala_adapter.lrm.commands import CommandRunner
    from koala_adapter.scheduler.actions import ReserveProcessors
    from koala_adapter.slots import Slot, SlotCount


# -- Poller: jobs and nodes of a cluster, at intervals -------------------------------------------------------
# The interval varies. While the LRM keeps failing, pauses grow; while no job of ours is unfinished, polls are four
# times less frequent; when a change is expected, or a running job would take processors that become free, they are
# more frequent, at first without pause, but never so frequent that submissions wait long for the request bound.

IDLE_FACTOR = 4
READING_SERVES = 5.0
"""Seconds after a poll for which a new job does without another."""
COUNTED_AFTER_ENDS = 2.0
"""Seconds after the last awaited end of placeholders at which nodes are listed: the service of a command has ended."""
SUBMISSION_LISTED = 2.0
"""Seconds after a submission at which its placeholders are looked for: most that start at once report before."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReading(Listing):
    """One poll of a cluster: nodes, and jobs that may be ours by name and user."""

    counted: bool = True
    """Whether nodes were listed."""
    of_all_users: bool = False
    """Whether the jobs of all users were listed for it."""
    others_waiting: tuple[int, ...] = ()
    """Then: the processors that each waiting job of others asks for, in the order of their queue."""
    all_nodes: tuple[Node, ...] = ()
    """Those of all queues; ``nodes`` are those of ``queue``."""

    def count(self, shapes: Iterable[Slot]) -> tuple[SlotCount, ...]:
        """Return how many slots of each shape there are."""
        return tuple(count_slots(self.all_nodes, shape, queue=self.queue) for shape in shapes)

    @property
    def ours(self) -> int:
        """Processors of our placeholders."""
        return processors_held(self.jobs)


class Poller:
    """Polls one cluster at intervals and passes readings and failures to its owner."""

    def __init__(
        self, core: Core, config: ClusterConfig, lrm: Lrm, owner: ClusterDriver, commands: CommandRunner
    ) -> None:
        """Poll nothing before :meth:`run`."""
        self._core = core
        self._config = config
        self._name: ClusterName = config.cluster_name
        self._lrm = lrm
        self._owner = owner
        self._wanted = Nudge()
        """Set when the time of the next poll changes."""
        self._due = inf
        """When the next poll is due at the latest (monotonic)."""
        self._due_if_waiting = inf
        """When the next poll is due if a job then waits to be placed, or placeholders wait in the queue (monotonic)."""
        self._begun_at = -inf
        """When the latest poll began that lists nodes, too (monotonic)."""
        self._commands = commands
        self._pace = PollPace(config.requests_per_minute)
        self.breaker = CircuitBreaker(pause=config.poll_interval)
        self._watcher = Watcher(self._read, breaker=self.breaker, on_trouble=self._note_trouble)
        self.latest: ClusterReading | None = None

    @property
    def failure(self) -> str | None:
        """Reason of the last failed poll; None when it succeeded."""
        return None if self._watcher.failure is None else self._watcher.failure.message

    def poll_soon(self, *, within: float = 0.0) -> None:
        """Schedule the next poll so many seconds from now at the latest, or else as early as the bounds allow."""
        self._due = min(self._due, anyio.current_time() + within)
        self._wanted.set()

    def refresh(self) -> None:
        """Schedule a poll for a new job, when the latest one has become too old for it."""
        self._due_if_waiting = min(self._due_if_waiting, self._begun_at + READING_SERVES)
        self._wanted.set()

    def submitted(self) -> None:
        """Schedule a poll for new placeholders, unless their agents report before it."""
        self._due_if_waiting = min(self._due_if_waiting, anyio.current_time() + SUBMISSION_LISTED)
        self._wanted.set()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            # Requests for a poll that came before this one begins are met by it.
            self._due = self._due_if_waiting = inf
            before = self._commands.window.total
            restless = await self._poll()
            now = anyio.current_time()
            self._pace.polled(now, self._commands.window.total - before)
            earliest = now + min(self._config.poll_interval, self._pace.pause(now))
            interval = self._config.poll_interval * (1 if self._core.busy else IDLE_FACTOR)
            await self._until_due(earliest, earliest if restless else now + interval)

    async def _until_due(self, earliest: float, latest: float) -> None:
        """Wait until the next poll is due, within two times."""
        while (left := max(earliest, min(latest, self._next_due)) - anyio.current_time()) > 0:
            with anyio.move_on_after(left):
                await self._wanted.wait()

    @property
    def _next_due(self) -> float:
        return self._due_if_waiting if self._due_if_waiting < self._due and self._waits else self._due

    @property
    def _waits(self) -> bool:
        """Whether a job waits to be placed, or placeholders wait in the queue."""
        state = self._core.state
        unplaced = any(record.state is JobState.WAITING for record in state.jobs.values())
        return unplaced or any(one.waiting for one in state.placeholders.on(self._name).values())

    async def _poll(self) -> bool:
        if self._watcher.resting:
            return False
        try:
            reading = await self._watcher.look()
        except LrmError as error:
            self._owner.unavailable(error.message)
            return not self.breaker.open
        if reading.counted:
            self.latest = reading
        with contained("judging a listing", cluster=self._config.name):
            restless = self._owner.examine(reading) or self._core.scheduler.growth_waits(self._name)
            if not (restless or reading.counted):
                self.poll_soon(within=COUNTED_AFTER_ENDS)
            return restless
        return False

    @property
    def _awaits_only_ends(self) -> bool:
        """Whether all jobs are over and placeholders end soon, so that a listing of jobs tells all that is wanted."""
        state, now = self._core.state, self._core.now()
        ours = state.placeholders.on(self._name).values()
        return (
            self.latest is not None
            and self.failure is None
            and bool(ours)
            and all(ends_soon(one, now) for one in ours)
            and all(record.state.final for record in state.jobs.values())
        )

    def _note_trouble(self, error: LrmError | None) -> None:
        if error is None:
            log.info("cluster answers again", cluster=self._config.name)
        else:
            log.warning("cluster does not answer", cluster=self._config.name, error=str(error))

    async def _read(self) -> ClusterReading:
        user = self._core.user if self._commands.host.here else self._commands.host.user
        if self._awaits_only_ends:
            # As the last request of a command it has the priority of a submission: the user waits for it.
            with answering(self._config.name), self._commands.submitting():
                return await read_ends(
                    self._lrm, name_prefix=self._core.name_prefix, user=user, read_at=self._core.now()
                )
        self._begun_at = anyio.current_time()
        others = self._lrm.capabilities.lists_others and self._core.scheduler.shrinks_for_others(self._name)
        return await read_cluster(
            self._config,
            self._lrm,
            name_prefix=self._core.name_prefix,
            user=user,
            read_at=self._core.now(),
            others=others,
            slots=self._core.slots_on(self._name) if others else {},
        )


async def read_ends(lrm: Lrm, *, name_prefix: str, user: str, read_at: float) -> ClusterReading:
    """List a user's jobs with names of ours, without nodes. Raises LrmError."""
    jobs = possibly_ours(await lrm.jobs(name_prefix=name_prefix), user=user, name_prefix=name_prefix)
    return ClusterReading(read_at=read_at, jobs=jobs, nodes=(), counted=False)


async def read_cluster(
    config: ClusterConfig,
    lrm: Lrm,
    *,
    name_prefix: str,
    user: str,
    read_at: float,
    others: bool = False,
    slots: Mapping[LrmJobId, Slot] = MappingProxyType({}),
) -> ClusterReading:
    """List a user's jobs with names of ours, then nodes; ``others``: also what others wait for. Raises LrmError.

    ``slots``: what jobs of ours hold, where that is known.
    """
    prefix = "" if others else name_prefix
    listing = await read_listing(lrm, cluster=config.name, read_at=read_at, name_prefix=prefix)
    queue, nodes = config.queue, listing.nodes
    if queue is not None:
        nodes = tuple(node for node in nodes if not node.queues or queue in node.queues)
        if not nodes:
            raise LrmUnavailableError(f"no node serves queue {queue!r}", hint="check `queue` in the site file")
    with answering(config.name):
        jobs = possibly_ours(listing.jobs, user=user, name_prefix=name_prefix)
        ours = {job.id for job in jobs}
        foreign = (job for job in listing.jobs if job.id not in ours) if others else ()
        held = held_on_nodes(jobs, slots, memory_mib=config.memory_mib)
        waiting = processors_wanted(foreign, nodes, time_of_day=time.time(), queue=queue, ours=held)
    return ClusterReading(
        read_at=read_at,
        nodes=nodes,
        jobs=jobs,
        queue=queue,
        of_all_users=others,
        others_waiting=waiting,
        all_nodes=listing.nodes,
    )


# -- Reservations: asked for, removed, and found again by name after a restart -------------------------------

RESERVATION_PAUSE = 10.0
"""Seconds before a reservation is removed that could not be: a batch system keeps it while a job runs in it."""


class Reservations:
    """What is reserved for us on one cluster."""

    def __init__(self, core: Core, config: ClusterConfig, lrm: Lrm) -> None:
        """Do nothing before :meth:`run`."""
        self._core = core
        self._config = config
        self._lrm = lrm
        self._asked: list[ReserveProcessors] = []
        self._key = f"reserved on {config.name}"
        """Key of the journal under which it is kept that there may be reservations of ours."""
        self._over = bool(core.journal.value(self._key))
        """Reservations with our names may be there that belong to no job: also those of an earlier process."""
        self._ended = False
        """Some of this process are among them."""
        self._more = Nudge()

    def ask(self, action: ReserveProcessors) -> None:
        """Have processors reserved; the answer comes as an event."""
        self._asked.append(action)
        self._more.set()

    def remove_unowned(self) -> None:
        """Have the reservations removed that belong to no job any more."""
        self._over = self._ended = True
        self._more.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            while self._asked:
                action = self._asked.pop(0)
                self._core.loop.post(await self._reserve(action))
            able = self._lrm.capabilities.reserve
            if self._over and able:
                # Whether an earlier process has left some is asked once, and again only while one is in use.
                self._over = self._ended = not await self._remove()
            with anyio.move_on_after(RESERVATION_PAUSE if self._over and able else None):
                await self._more.wait()

    async def conclude(self) -> None:
        """Remove what belongs to no job, at the end of the service; what cannot be is left to the next one."""
        if self._ended and self._lrm.capabilities.reserve:
            await self._remove()

    def _keep(self, kept: str) -> None:
        with suppress(JournalBlockedError):  # then the next process asks, which does no harm
            self._core.journal.set_value(self._key, kept)

    async def _reserve(self, action: ReserveProcessors) -> Event:
        self._keep("yes")
        now, job_id, name = self._core.now(), action.job_id, action.name
        try:
            with answering(self._config.name):
                known = (await self._lrm.reservations()).get(name)
                handle = known or await self._lrm.reserve(
                    ReservationRequest(
                        placeholders=Submission(
                            key=BatchKey(name),
                            count=action.count,
                            script="#!/bin/sh\n",
                            walltime=ceil(action.seconds),
                            queue=action.slot.queue or self._config.queue,
                            memory_mib=action.slot.memory_mib or self._config.memory_mib,
                            slot=action.slot,
                        ),
                        starts_in=max(0.0, action.start_at - now),
                    )
                )
        except LrmError as error:
            self._over = self._ended = True  # it may have been made all the same
            return ReservationRefused(time=self._core.now(), job_id=job_id, name=name, reason=error.message)
        return ReservationMade(time=self._core.now(), job_id=job_id, name=name, handle=handle)

    async def _remove(self) -> bool:
        """Remove the reservations that belong to no job; tell whether none is left."""
        wanted = {one.name for record in self._core.state.jobs.values() for one in record.reservations}
        prefix, done = f"{self._core.name_prefix}r-", True
        try:
            with answering(self._config.name):
                there = await self._lrm.reservations()
        except LrmError as error:
            log.info("reservations cannot be listed", cluster=self._config.name, error=str(error))
            return not self._ended
        for name, handle in there.items():
            if name.startswith(prefix) and name not in wanted:
                try:
                    with answering(self._config.name):
                        await self._lrm.unreserve(handle)
                except LrmError as error:
                    done = False
                    if not isinstance(error, LrmUnavailableError):
                        log.warning("a reservation stays", cluster=self._config.name, name=name, error=str(error))
        if done and not wanted:
            self._keep("")
        return done


# -- Driver: submissions, cancellations and events of a cluster ----------------------------------------------
# Requests of one kind are sent one after the other. Every answer, and every failure to answer, becomes an event.


class ClusterDriver:
    """Service's side of one cluster: polls, submissions, cancellations."""

    def __init__(self, core: Core, config: ClusterConfig, lrm: Lrm, commands: CommandRunner) -> None:
        """``lrm`` is made but not started; :meth:`run` starts it, as often as needed."""
        self.config = config
        self.name: ClusterName = config.cluster_name
        self.lrm = lrm
        self.commands = commands
        self._core = core
        self.judge = ListingJudge(self.name, user=core.user, begun_at=core.now())
        self._to_submit, self._submissions = anyio.create_memory_object_stream[Submission](1_000_000)
        self._to_cancel, self._cancels = anyio.create_memory_object_stream[tuple[LrmJobId, ...]](1_000_000)
        self._to_refine, self._lost = anyio.create_memory_object_stream[tuple[PlaceholderEnded, ...]](1_000_000)
        self.version: str | None = None
        """Name and version of the LRM, once it answered."""
        self._passed_over = False
        self.poller = Poller(core, config, lrm, self, commands)
        self.reservations = Reservations(core, config, lrm)

    def slots_counted(self, job: Job) -> SlotsCounted | None:
        """Count slots for a new job by the latest poll; None: they are known, or there was no poll."""
        known = {count.slot for count in self._core.state.clusters[self.name].slots}
        new = [shape for shape in job.shapes_on(self.name) if shape not in known]
        if not new or self.poller.latest is None:
            return None
        return SlotsCounted(time=self._core.now(), cluster=self.name, slots=self.poller.latest.count(new))

    def look_again(self) -> None:
        """Poll soon if the last reading was dropped because events waited."""
        if self._passed_over:
            self.poller.poll_soon()

    def submit(self, submission: Submission) -> None:
        """Submit placeholders in the background; the outcome is an event."""
        self.judge.under_way.add(submission.key)
        with suppress(anyio.ClosedResourceError):  # the service ends: the next one asks what became of it
            self._to_submit.send_nowait(submission)

    def cancel(self, ids: Iterable[LrmJobId]) -> None:
        """Cancel LRM jobs in the background; polls show their ends."""
        known = tuple(id_ for id_ in ids if id_)
        if known:
            with suppress(anyio.ClosedResourceError):  # the service ends: the next one cancels them
                self._to_cancel.send_nowait(known)

    def forget(self, batch: BatchKey) -> None:
        """Drop what is kept of an ended submission, if it belongs to this cluster."""
        path = token_path(self.config, batch)
        try:
            if path is not None:
                path.unlink(missing_ok=True)
            with answering(self.name):
                self.lrm.forget(batch)
        except (OSError, LrmError) as error:
            log.warning("what a submission needed cannot be removed", cluster=self.name, batch=batch, error=str(error))

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve this cluster until cancelled; ``task_status`` is set after the first attempt to reach the LRM."""
        try:
            await self._start(task_status)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.poller.run)
                tasks.start_soon(self.reservations.run)
                tasks.start_soon(self._submit_all)
                tasks.start_soon(self._cancel_all)
                tasks.start_soon(self._refine_all)
        finally:
            for sender in (self._to_submit, self._to_cancel, self._to_refine):
                sender.close()
            for receiver in (self._submissions, self._cancels, self._lost):
                receiver.close()
            with anyio.CancelScope(shield=True), anyio.move_on_after(5), suppress(LrmError), answering(self.name):
                await self.reservations.conclude()
                await self.lrm.close()

    async def _start(self, task_status: TaskStatus[None]) -> None:
        pause = 1.0
        started = False
        while not started:
            try:
                with answering(self.name):
                    await self.lrm.start()
                    self.version = await self.lrm.version()
                if not self.commands.host.here:
                    self.judge.user = self.commands.host.user
                started = True
            except LrmError as error:
                self.unavailable(error.message)
                log.warning("cluster cannot be started", cluster=self.name, error=str(error))
            task_status.started()
            task_status = anyio.TASK_STATUS_IGNORED
            if not started:
                await anyio.sleep(pause)
                pause = min(60.0, pause * 2)

    # ---- reading --------------------------------------------------------------------------------------------------

    def examine(self, reading: ClusterReading) -> bool:
        """Report the events that follow from a reading; return True while a change is expected."""
        if self._core.holding:
            self._passed_over = True
            return False
        self._passed_over = False
        capabilities = self.lrm.capabilities
        polled = ClusterPolled(
            time=self._core.now(),
            cluster=self.name,
            processors=reading.processors,
            idle=reading.idle,
            ours=reading.ours,
            others_waiting=reading.others_waiting,
            slots=reading.count(self._core.scheduler.shapes_on(self.name)),
        )
        judgement = self.judge.judge(
            self._core.state,
            polled,
            reading.jobs,
            read_at=reading.read_at,
            in_contact=self._core.in_contact,
            tells_holders=capabilities.tells_holders or (capabilities.tells_own_holders and not reading.of_all_users),
            counted=reading.counted,
        )
        for event in judgement.events:
            self._core.loop.post(event)
        if judgement.lost:
            self._to_refine.send_nowait(judgement.lost)
        self.cancel(judgement.cancel_again)
        if judgement.orphans:
            log.warning("cancelling placeholders that nobody owns", cluster=self.name, ids=list(judgement.orphans))
            self.cancel(judgement.orphans)
        return judgement.restless

    def unavailable(self, reason: str) -> None:
        """Report that the cluster did not answer."""
        if self._core.holding:
            return
        event = self.judge.failed(self._core.state, reason, now=self._core.now())
        if event is not None:
            self._core.loop.post(event)

    # ---- writing --------------------------------------------------------------------------------------------------

    async def look_for_obstacle(self) -> None:
        """Check whether a known obstacle to submissions still exists."""
        with suppress(LrmError), answering(self.name):
            if self.lrm.submission_obstacle:
                await self.lrm.look_for_obstacle()

    async def _submit_all(self) -> None:
        async for submission in self._submissions:
            event = await self._submit_one(submission)
            self.judge.under_way.discard(submission.key)
            self._core.loop.post(event)
            if isinstance(event, BatchSubmitted):
                self.poller.submitted()
            else:
                self.poller.poll_soon()

    async def _submit_one(self, submission: Submission) -> Event:
        key = submission.key
        if not self.poller.breaker.may_ask(anyio.current_time()):
            reason = self.poller.failure or "out of reach"
            return BatchAbsent(time=self._core.now(), batch=key, reason=reason)
        try:
            with answering(self.name), self.commands.submitting():
                ids = tuple(await self.lrm.submit(submission))
        except (LrmRejectedError, LrmUnsupportedError) as error:
            return BatchRejected(time=self._core.now(), batch=key, reason=str(error))
        except LrmUnreachableError as error:
            pauses = bool(self.lrm.submission_obstacle)
            if not pauses:
                self.poller.breaker.failed(anyio.current_time())
            return BatchAbsent(time=self._core.now(), batch=key, reason=error.message, pauses=pauses)
        except LrmUnavailableError as error:
            self.poller.breaker.failed(anyio.current_time())
            log.warning("outcome of a submission is unknown", cluster=self.name, batch=key, error=str(error))
            return BatchUncertain(time=self._core.now(), batch=key, reason=error.message)
        except LrmError as error:
            return BatchRejected(time=self._core.now(), batch=key, reason=str(error))
        return BatchSubmitted(time=self._core.now(), batch=key, lrm_ids=ids)

    async def _cancel_all(self) -> None:
        async for ids in self._cancels:
            gathered = list(ids)
            while self._cancels.statistics().current_buffer_used:
                gathered += self._cancels.receive_nowait()
            await self._cancel_now(gathered)

    async def _cancel_now(self, ids: Sequence[LrmJobId]) -> None:
        try:
            with answering(self.name):
                await self.lrm.cancel(tuple(dict.fromkeys(ids)))
        except LrmError as error:
            # The scheduler's own timer asks again, too, until the placeholders are seen gone.
            log.warning("cancelling failed", cluster=self.name, ids=list(ids), error=str(error))
            if isinstance(error, LrmUnavailableError):
                self.judge.not_cancelled.update(ids)
        self.poller.poll_soon()

    async def _refine_all(self) -> None:
        """Ask accounting about ends of placeholders that are no longer listed."""
        async for events in self._lost:
            ends: dict[PlaceholderId, LrmJob] = {}
            with contained("asking for placeholders", cluster=self.name):
                ends = await self._history(events) if self.lrm.capabilities.accounting else {}
            for event in events:
                job = ends.get(event.placeholder)
                if job is not None and job.end is not None:
                    detail = job.reason or event.detail
                    event = replace(event, reason=job.end, detail=detail)  # noqa: PLW2901 - the same, told better
                self._core.loop.post(event)

    async def _history(self, events: Sequence[PlaceholderEnded]) -> dict[PlaceholderId, LrmJob]:
        ids = self.judge.unexplained(self._core.state, events)
        if not ids:
            return {}
        try:
            with answering(self.name):
                told = await self.lrm.history(list(ids.values()))
        except LrmError as error:
            log.info("accounting does not tell", cluster=self.name, error=str(error))
            return {}
        return self.judge.explained(ids, told)

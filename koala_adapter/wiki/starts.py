# SPDX-License-Identifier: Apache-2.0
"""STARTJOB: the job is released and that is answered; what becomes of it is seen in the background.

From the moment at which a start is admitted its job is reported as starting, and its processors as taken. A peer asks
for one start after the other, so each answer comes as soon as the batch system has taken the start, and not when the
job runs, which Slurm looks at once a second. What does not start is held again, and reported with the reason.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.batchsystem.startlog import OriginalRequest, Pin
from koala_adapter.batchsystem.starts import OVER, Stage
from koala_adapter.errors import (
    JournalError,
    LrmError,
    LrmNotFoundError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnsupportedError,
    WikiError,
)
from koala_adapter.model import LrmJobId, LrmJobState
from koala_adapter.wiki.codec.replies import done
from koala_adapter.wiki.codec.words import Status, WaitReason
from koala_adapter.wiki.inventoryentries import Promise
from koala_adapter.wiki.recordbuilder import WAITING
from koala_adapter.wiki.startchecks import admit_start, refused, require_job
from koala_adapter.wiki.tasklists import host_counts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anyio.abc import TaskGroup, TaskStatus

    from koala_adapter.batchsystem.starter import Starter
    from koala_adapter.wiki.codec.requests import StartJob
    from koala_adapter.wiki.freshinventory import FreshInventory
    from koala_adapter.wiki.inventory import Inventory
    from koala_adapter.wiki.options import ServerOptions
    from koala_adapter.wiki.sources import Place

PROMISED = 10.0
"""Seconds for which a peer sees what it was told after the last moment at which the start could show."""
FIRST_LOOK, SLOWEST_LOOK = 0.5, 4.0
"""Seconds between two looks at what has become of starts."""
MOMENTS = (0.1, 0.2, 0.4, 0.8)
"""Seconds between the looks at an element of an array that seems not to be held."""
SHAPE_REASONS = frozenset({WaitReason.BAD_CONSTRAINTS, WaitReason.DEPENDENCY})
"""Refusals that nothing but another request, or another job, can change."""

log = structlog.get_logger()


class JobStarts:
    """The starts of jobs on one source."""

    def __init__(
        self,
        inventory: Inventory,
        readings: FreshInventory,
        starter: Starter,
        *,
        options: ServerOptions,
        clock: Callable[[], float],
        steady: Callable[[], float],
        on_begun: Callable[[], None],
    ) -> None:
        """``clock``: the time of day, seconds since the epoch; ``steady``: a clock that nobody sets.

        ``on_begun`` is called when a job is told to be starting, before the source is asked.
        """
        self._inventory = inventory
        self._readings = readings
        self._starter = starter
        self._options = options
        self._clock = clock
        self._steady = steady
        self._on_begun = on_begun
        self._tasks: TaskGroup | None = None
        self._begun = anyio.Event()
        self._resumed: list[Pin] = []
        """Starts of an earlier process of which it is not known yet what has become."""

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Ask for starts and follow them until cancelled; then take back what does not run."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                task_status.started()
                await self._follow()
        finally:
            self._tasks = None
            await self._starter.leave()

    async def start(self, request: StartJob) -> str:
        """Have a job started and return the answer, once the batch system has taken it. Raises WikiError."""
        if request.job in self._starter.starts.attempts:
            raise WikiError("Job not pending, can't start: it is being started", status=Status.REFUSED)
        await self._look_again(request.job)
        try:
            admission = admit_start(self._inventory, request, now=self._clock())
        except WikiError as error:
            self._set_back(request.job, error)
            raise
        tasks = self._tasks
        if tasks is None:
            raise WikiError("the server is about to stop: nothing is started any more", status=Status.REFUSED)
        pin = self._put_on_record(LrmJobId(request.job), admission.given)
        self._inventory.promise(request.job, Promise(until=inf, places=admission.taken))
        self._inventory.report_tasks(request.job, request.tasks)
        self._on_begun()
        refusal = await self._refusal(pin, tasks)
        if refusal is not None:
            self._starter.put_away(pin.job_id)
            if self._inventory.withdraw(request.job):
                grave = not isinstance(refusal, LrmUnavailableError)
                self._inventory.set_back(request.job, str(refusal), refused=grave)
            if isinstance(refusal, LrmNotFoundError):
                self._readings.invalidate()
            raise self._not_started(request, refusal)
        return done(request.verb, request.job)

    async def _look_again(self, id_: str) -> None:
        """Look again at a job that seems not to be held, and at an element of an array for a few moments.

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

    async def _refusal(self, pin: Pin, tasks: TaskGroup) -> LrmError | None:
        """Return why a start was refused; None when it was taken, or must be answered before that is known.

        It is gone on with in any case.
        """
        answered = anyio.Event()
        refusals: list[LrmError | None] = []

        async def ask() -> None:
            try:
                # Once begun, a start comes to its end whatever becomes of who asked for it.
                stage, error = await self._starter.ask(pin)
                refusals.append(error if stage is Stage.REFUSED else None)
            finally:
                self._inventory.extend(pin.job_id, self._steady() + self._options.start_within + PROMISED)
                answered.set()

        tasks.start_soon(ask)
        with anyio.move_on_after(self._options.reply_within):
            await answered.wait()
        self._begun.set()
        return refusals[0] if refusals else None

    def _put_on_record(self, id_: LrmJobId, places: Sequence[Place]) -> Pin:
        """Put a start on disk before it is asked for. Raises WikiError when that cannot be done."""
        job = require_job(self._inventory, id_)
        layout = tuple(host_counts([place.node for place in places]).items())
        pin = Pin(
            job_id=id_, submitted_at=job.submitted_at, nodes=layout, wishes=OriginalRequest.of(job), at=self._steady()
        )
        self._starter.starts.begin(pin)
        try:
            self._starter.note()
        except JournalError as error:
            self._starter.starts.forget(id_)
            raise WikiError(f"{error.message}: nothing is started off the record", status=Status.REFUSED) from error
        return pin

    def _set_back(self, job: str, refusal: WikiError) -> None:
        """Keep a job back that is refused again and again, before the batch system is even asked."""
        known = self._inventory.job(job)
        if known is None or known.state not in WAITING or refusal.status is None:
            return
        reason = -int(refusal.status) - 910
        self._inventory.set_back(job, refusal.message, refused=reason in SHAPE_REASONS)

    def _not_started(self, request: StartJob, failure: LrmError) -> WikiError:
        if isinstance(failure, LrmNotFoundError):
            return WikiError(f"No such job: {failure.message}", status=Status.REFUSED)
        if isinstance(failure, LrmUnsupportedError):
            return WikiError(failure.message, status=Status.UNSUPPORTED)
        reason = WaitReason.BAD_CONSTRAINTS if isinstance(failure, LrmRejectedError) else WaitReason.RESOURCES
        return refused(request.job, request.tasks, reason, str(failure))

    # -- following ---------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Look while starts are under way, soon after the last one was asked for, and then less and less often."""
        while True:
            await self._begun.wait()
            pause = FIRST_LOOK
            while self._under_way():
                if self._begun.is_set():
                    self._begun, pause = anyio.Event(), FIRST_LOOK
                await anyio.sleep(pause)
                with suppress(LrmError):
                    await self._readings.fresh(within=pause)
                pause = min(SLOWEST_LOOK, 2 * pause)
            if self._begun.is_set():
                self._begun = anyio.Event()

    def _under_way(self) -> bool:
        starts = self._starter.starts
        return any(attempt.stage not in OVER or not starts.is_over(job) for job, attempt in starts.attempts.items())

    # -- after a kill ------------------------------------------------------------------------------------------------

    async def reconcile(self) -> None:
        """Find out what became of the starts that an earlier process was trying: each job runs, or is held again.

        Raises LrmError when the source does not answer.
        """
        starts = self._starter.starts
        interrupted = [pin for pin in starts.pins.values() if pin.job_id not in starts.attempts]
        for pin in interrupted:
            starts.resume(pin, Stage.FAILED)
        self._resumed += interrupted
        if not self._resumed:
            return
        await self._readings.fresh(now=True)
        for pin in self._resumed:
            job = self._inventory.job(pin.job_id)
            if job is not None and job.state in WAITING:
                self._inventory.pinned.add(pin.job_id)
            state = "gone" if job is None else str(job.state)
            log.warning("an interrupted start", job=pin.job_id, nodes=pin.nodes, found=state)
        if any(starts.is_tied(pin.job_id) for pin in self._resumed):
            raise LrmUnavailableError("jobs whose start was interrupted cannot be put in hold yet")
        self._resumed.clear()

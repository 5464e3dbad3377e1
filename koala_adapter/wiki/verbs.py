# SPDX-License-Identifier: Apache-2.0
"""Carries out the requests of a scheduler that change something: checked before, logged always."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmUnsupportedError, WikiError
from koala_adapter.model import LrmJobId, LrmJobState
from koala_adapter.wiki.codec.replies import done
from koala_adapter.wiki.codec.requests import (
    AddTasks,
    CancelJob,
    ModifyJob,
    NotifyJob,
    ReleaseTasks,
    RequeueJob,
    ResumeJob,
    SignalJob,
    StartJob,
    SuspendJob,
)
from koala_adapter.wiki.codec.words import CancelType, Dialect, Status
from koala_adapter.wiki.inventoryentries import Promise
from koala_adapter.wiki.recordbuilder import ACTIVE, WAITING
from koala_adapter.wiki.startchecks import require_active, require_job

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from koala_adapter.wiki.codec.requests import Request
    from koala_adapter.wiki.freshinventory import FreshInventory
    from koala_adapter.wiki.inventory import Inventory
    from koala_adapter.wiki.jobstarts import JobStarts
    from koala_adapter.wiki.options import ServerOptions
    from koala_adapter.wiki.sources import Source

PROMISED = 30.0
"""Seconds that a peer sees what it was told, should the LRM show it later."""
FIRST_LOOK, SLOWEST_LOOK = 0.05, 0.5
"""Seconds between two looks at what a request has done."""
HIGHEST_SIGNAL = 64
LONGEST_LIMIT = 10_000_000
"""Minutes that a TIMELIMIT may be."""

log = structlog.get_logger()


@contextmanager
def refusing() -> Iterator[None]:
    """Turn what an LRM says into the refusal that a scheduler understands."""
    try:
        yield
    except LrmUnsupportedError as error:
        raise WikiError(error.message, status=Status.UNSUPPORTED) from error
    except LrmNotFoundError as error:
        raise WikiError(f"No such job: {error.message}", status=Status.REFUSED) from error
    except LrmError as error:
        raise WikiError(str(error), status=Status.REFUSED) from error


class Verbs:
    """The state-changing requests on one source."""

    def __init__(
        self,
        source: Source,
        inventory: Inventory,
        readings: FreshInventory,
        starts: JobStarts,
        *,
        options: ServerOptions,
        steady: Callable[[], float],
    ) -> None:
        """``steady``: a clock that nobody sets."""
        self._source = source
        self._inventory = inventory
        self._readings = readings
        self._starts = starts
        self._options = options
        self._steady = steady
        self._acts: Mapping[type, Callable[..., Awaitable[str]]] = {
            StartJob: self._start,
            CancelJob: self._cancel,
            SuspendJob: self._suspend,
            ResumeJob: self._resume,
            RequeueJob: self._requeue,
            SignalJob: self._signal,
            ModifyJob: self._modify,
            NotifyJob: self._notify,
            AddTasks: self._add_tasks,
            ReleaseTasks: self._release_tasks,
        }

    async def act(self, request: Request, peer: str) -> str:
        """Carry out a request and return the text of the answer. Raises WikiError with a status."""
        what, job = str(request.verb), getattr(request, "job", "")
        begun = anyio.current_time()
        try:
            text = await self._acts[type(request)](request)
        except WikiError as error:
            log.warning("refused", verb=what, job=job, peer=peer, status=int(error.status or 0), reason=error.message)
            raise
        log.info("done", verb=what, job=job, peer=peer, seconds=round(anyio.current_time() - begun, 3), result=text)
        return text

    async def _start(self, request: StartJob) -> str:
        await self._know(request.job)
        return await self._starts.start(request)

    # -- the others ---------------------------------------------------------------------------------------------------

    async def _cancel(self, request: CancelJob) -> str:
        await self._know(request.job)
        known = self._inventory.job(request.job) is not None
        try:
            job = require_job(self._inventory, request.job).state
        finally:
            if not known and self._options.dialect is Dialect.WIKI:
                # Maui takes it for a job that runs, and would ask for this again and again.
                self._inventory.end_unknown(request.job)
        if request.type is not CancelType.ADMIN and job not in ACTIVE:
            raise WikiError("Job is pending execution: it has no time to run out of", status=Status.REFUSED)
        with refusing():
            await self._source.cancel(LrmJobId(request.job))
        self._inventory.promise(request.job, Promise(until=self._steady() + PROMISED, cancelled=True))
        self._readings.invalidate()
        return done(request.verb, request.job)

    async def _suspend(self, request: SuspendJob) -> str:
        if await self._look(request.job) is LrmJobState.SUSPENDED:
            raise WikiError("Job is already suspended", status=Status.REFUSED)
        return await self._change(request, self._source.suspend, frozenset({LrmJobState.SUSPENDED}))

    async def _resume(self, request: ResumeJob) -> str:
        if await self._look(request.job) is not LrmJobState.SUSPENDED:
            raise WikiError("Job is not suspended", status=Status.REFUSED)
        return await self._change(request, self._source.resume, ACTIVE - {LrmJobState.SUSPENDED})

    async def _requeue(self, request: RequeueJob) -> str:
        await self._look(request.job)
        return await self._change(request, self._source.requeue, WAITING)

    async def _signal(self, request: SignalJob) -> str:
        await self._look(request.job)
        if request.signal > HIGHEST_SIGNAL:
            raise WikiError(f"Invalid signal: there is no {request.signal}", status=Status.REFUSED)
        with refusing():
            await self._source.signal(LrmJobId(request.job), request.signal)
        return done(request.verb, request.job)

    async def _modify(self, request: ModifyJob) -> str:
        await self._look(request.job, active=False)
        changes = dict(request.changes)
        limit = changes.pop("TIMELIMIT", None)
        if changes:
            raise WikiError(f"MODIFYJOB cannot change {', '.join(sorted(changes))} here", status=Status.UNSUPPORTED)
        if limit is None or not limit.isascii() or not limit.isdecimal() or not 0 < int(limit[:9]) <= LONGEST_LIMIT:
            raise WikiError("Invalid TIMELIMIT value: whole minutes are wanted", status=Status.BAD_REQUEST)
        with refusing():
            await self._source.set_walltime(LrmJobId(request.job), 60 * int(limit))
        self._readings.invalidate()
        return done(request.verb, request.job)

    async def _notify(self, request: NotifyJob) -> str:
        await self._look(request.job)
        with refusing():
            await self._source.notify(LrmJobId(request.job), request.message)
        return done(request.verb, request.job)

    async def _add_tasks(self, request: AddTasks) -> str:
        await self._look(request.job)
        unknown = [host for host in request.hosts if host not in self._inventory.nodes]
        if unknown:
            raise WikiError(f"Invalid ARG value: no node {unknown[0]}", status=Status.REFUSED)
        places = [self._inventory.nodes[host].place for host in request.hosts]
        with refusing():
            await self._source.add_tasks(LrmJobId(request.job), places)
        self._readings.invalidate()
        return f"{len(places)} tasks added"

    async def _release_tasks(self, request: ReleaseTasks) -> str:
        await self._look(request.job)
        tasks = self._inventory.jobs[request.job].tasks
        if any(index >= len(tasks) for index in request.tasks):
            raise WikiError(f"Invalid ARG value: tasks are 0 to {len(tasks) - 1}", status=Status.REFUSED)
        places = [self._inventory.nodes[tasks[index]].place for index in dict.fromkeys(request.tasks)]
        with refusing():
            await self._source.release_tasks(LrmJobId(request.job), places)
        self._readings.invalidate()
        return f"{len(places)} tasks removed"

    async def _know(self, job: str) -> None:
        with refusing():
            await self._readings.latest()
            if self._inventory.job(job) is None:
                # It may have come in since.
                await self._readings.fresh(now=True)

    async def _look(self, job: str, *, active: bool = True) -> LrmJobState:
        await self._know(job)
        return (require_active if active else require_job)(self._inventory, job).state

    async def _change(
        self,
        request: SuspendJob | ResumeJob | RequeueJob,
        change: Callable[[LrmJobId], Awaitable[None]],
        seen: frozenset[LrmJobState],
    ) -> str:
        """Have a job's state changed, and return once it shows, or after half of the time that an answer may take."""
        with refusing():
            await change(LrmJobId(request.job))
            self._readings.invalidate()
            with anyio.move_on_after(self._options.reply_within / 2):
                await self._see(request.job, seen)
        return done(request.verb, request.job)

    async def _see(self, job: str, states: frozenset[LrmJobState]) -> None:
        """Return when a job is in one of these states, or over. Raises LrmError."""
        pause = FIRST_LOOK
        while True:
            await self._readings.fresh(now=True)
            found = self._inventory.job(job)
            if found is None or found.state in states or found.state is LrmJobState.ENDED:
                return
            await anyio.sleep(pause)
            pause = min(SLOWEST_LOOK, 2 * pause)

# SPDX-License-Identifier: Apache-2.0
"""A WIKI resource manager: the payload of a request in, the frame of the answer out, or None to close.

First come the requests that change something.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnsupportedError, WikiError
from koala_adapter.host import metrics as metric
from koala_adapter.host.containment import report_defect, report_refused
from koala_adapter.model import OCCUPYING, WAITING, LrmJob, LrmJobId, LrmJobState
from koala_adapter.wiki.codec.frames import (
    LARGEST_SIZE,
    MAUI_LARGEST_SIZE,
    is_signed,
    open_request,
    seal,
    signature_size,
)
from koala_adapter.wiki.codec.records import Prepared, fit_records, join_records
from koala_adapter.wiki.codec.verbs import (
    CancelJob,
    GetJobs,
    GetNodes,
    Initialize,
    JobRequest,
    ModifyJob,
    NotifyJob,
    RequeueJob,
    ResumeJob,
    SignalJob,
    StartJob,
    SuspendJob,
    WillRun,
    build_answer,
    build_initialized,
    build_refusal,
    build_start_info,
    parse_request,
)
from koala_adapter.wiki.codec.words import CancelType, Dialect, HostFormat, Status
from koala_adapter.wiki.inventory import Promise
from koala_adapter.wiki.starts import FreshInventory, JobStarts, estimate_start, require_active, require_job

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from koala_adapter.host.metrics import Meter
    from koala_adapter.wiki.codec.frames import Key
    from koala_adapter.wiki.codec.verbs import Request
    from koala_adapter.wiki.serving import Served


log = structlog.get_logger()


# -- Requests that change something --------------------------------------------------------------------------
# They are checked before, and logged always.

PROMISED = 30.0
"""Seconds that a peer sees what it was told, should the LRM show it later."""
FIRST_LOOK, SLOWEST_LOOK = 0.05, 0.5
"""Seconds between two looks at what a request has done."""
HIGHEST_SIGNAL = 64
LONGEST_LIMIT = 10_000_000
"""Minutes that a TIMELIMIT may be."""


@contextmanager
def refusing() -> Iterator[None]:
    """Convert errors of the batch system in the block to refusals that schedulers understand."""
    try:
        yield
    except LrmUnsupportedError as error:
        raise WikiError(error.message, status=Status.UNSUPPORTED) from error
    except LrmNotFoundError as error:
        raise WikiError(f"No such job: {error.message}", status=Status.REFUSED) from error
    except LrmError as error:
        raise WikiError(str(error), status=Status.REFUSED) from error


class Verbs:
    """The state-changing requests on one batch system."""

    def __init__(self, served: Served, readings: FreshInventory, starts: JobStarts) -> None:
        """``readings`` of what is served, and its starts."""
        self._lrm = served.lrm
        self._inventory = served.inventory
        self._options = served.options
        self._steady = served.steady
        self._readings = readings
        self._starts = starts
        self._acts: Mapping[type, Callable[..., Awaitable[str]]] = {
            StartJob: self._start,
            CancelJob: self._cancel,
            SuspendJob: self._suspend,
            ResumeJob: self._resume,
            RequeueJob: self._requeue,
            SignalJob: self._signal,
            ModifyJob: self._modify,
            NotifyJob: self._notify,
        }

    async def act(self, request: JobRequest, peer: str) -> str:
        """Carry out a request that changes something and return the response text. Raises WikiError with a status."""
        what, job = request.verb, request.job
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
        if request.type is not CancelType.ADMIN and job not in OCCUPYING:
            raise WikiError("Job is pending execution: it has no time to run out of", status=Status.REFUSED)
        with refusing():
            await self._lrm.cancel([LrmJobId(request.job)])
        self._inventory.promise(request.job, Promise(until=self._steady() + PROMISED, cancelled=True))
        self._readings.invalidate()
        return request.response

    async def _suspend(self, request: SuspendJob) -> str:
        if await self._look(request.job) is LrmJobState.SUSPENDED:
            raise WikiError("Job is already suspended", status=Status.REFUSED)
        return await self._change(request, self._lrm.suspend, lambda job: job.state is LrmJobState.SUSPENDED)

    async def _resume(self, request: ResumeJob) -> str:
        if await self._look(request.job) is not LrmJobState.SUSPENDED:
            raise WikiError("Job is not suspended", status=Status.REFUSED)
        return await self._change(
            request, self._lrm.resume, lambda job: job.state in OCCUPYING - {LrmJobState.SUSPENDED}
        )

    async def _requeue(self, request: RequeueJob) -> str:
        await self._look(request.job)
        before = require_active(self._inventory, request.job)

        def is_requeued(job: LrmJob) -> bool:
            # A batch system that cannot hold a running job may have started it again before it is looked at. One that
            # counts the requeue at once, as Slurm does, has yet to end the run.
            again = (job.requeues, job.started_at) != (before.requeues, before.started_at)
            return job.state in WAITING or (again and job.state is not LrmJobState.ENDING)

        return await self._change(request, self._requeue_in_hold, is_requeued)

    async def _requeue_in_hold(self, ids: Sequence[LrmJobId]) -> None:
        """Requeue running jobs as held ones, so that the batch system does not start them again by itself."""
        if self._lrm.capabilities.requeue and self._lrm.capabilities.hold:
            with suppress(LrmRejectedError):
                await self._lrm.hold(ids)
        await self._lrm.requeue(ids)

    async def _signal(self, request: SignalJob) -> str:
        await self._look(request.job)
        if request.signal > HIGHEST_SIGNAL:
            raise WikiError(f"Invalid signal: there is no {request.signal}", status=Status.REFUSED)
        with refusing():
            await self._lrm.signal([LrmJobId(request.job)], request.signal)
        return request.response

    async def _modify(self, request: ModifyJob) -> str:
        await self._look(request.job, active=False)
        changes = dict(request.changes)
        limit = changes.pop("TIMELIMIT", None)
        if changes:
            raise WikiError(f"MODIFYJOB cannot change {', '.join(sorted(changes))} here", status=Status.UNSUPPORTED)
        if limit is None or not limit.isascii() or not limit.isdecimal() or not 0 < int(limit[:9]) <= LONGEST_LIMIT:
            raise WikiError("Invalid TIMELIMIT value: whole minutes are wanted", status=Status.BAD_REQUEST)
        with refusing():
            await self._lrm.modify(LrmJobId(request.job), walltime=60 * int(limit))
        self._readings.invalidate()
        return request.response

    async def _notify(self, request: NotifyJob) -> str:
        await self._look(request.job)
        with refusing():
            await self._lrm.notify(LrmJobId(request.job), request.message)
        return request.response

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
        change: Callable[[Sequence[LrmJobId]], Awaitable[None]],
        is_seen: Callable[[LrmJob], bool],
    ) -> str:
        """Request a change of a job's state; return when it shows, or after half of the time for an answer."""
        with refusing():
            await change([LrmJobId(request.job)])
            self._readings.invalidate()
            with anyio.move_on_after(self._options.reply_within / 2):
                await self._await_change(request.job, is_seen)
        return request.response

    async def _await_change(self, job: str, is_seen: Callable[[LrmJob], bool]) -> None:
        """Wait until a change of a job shows, or the job is over. Raises LrmError."""
        pause = FIRST_LOOK
        while True:
            await self._readings.fresh(now=True)
            found = self._inventory.job(job)
            if found is None or is_seen(found) or found.state is LrmJobState.ENDED:
                return
            await anyio.sleep(pause)
            pause = min(SLOWEST_LOOK, 2 * pause)


# -- The resource manager ------------------------------------------------------------------------------------

MAUI_MOST_JOBS = 4000
"""Jobs that have not ended: Maui has room for 4,096, and forgets an ended one when it is told so."""
NUL = b"\0"
"""Slurm ends its replies with one; it counts and is not signed."""
UNREADABLE = "unreadable"
"""Verb, in metrics, of a request whose own cannot be read."""


class WikiResource:
    """Answers the requests of schedulers on one batch system."""

    def __init__(self, served: Served, key: Key | None, meter: Meter) -> None:
        """``meter``: counts the requests, and the refused ones.

        ``key`` None: requests need no signature, and get none; only for tests of an AUTHTYPE=NONE.
        """
        self.options = served.options
        self._key = key
        self._clock = served.clock
        self._leaves_out = False
        """The last full listing was more than Maui has room for."""
        self._meter = meter
        self.inventory = served.inventory
        self.notifier = served.notifier
        self.readings = FreshInventory(served)
        self.starts = JobStarts(served, self.readings)
        self.verbs = Verbs(served, self.readings, self.starts)

    def is_signed(self, payload: bytes) -> bool:
        """Tell whether a payload is signed with the key; without a key no payload needs a signature."""
        return self._key is None or is_signed(payload, self._key)

    async def answer(self, payload: bytes, peer: str) -> bytes | None:
        """Return the reply frame for a payload; None when the connection is to be closed without one.

        The answer is signed only where the payload is: the key can be computed from one signed message.
        """
        key = self._key if self.is_signed(payload) else None
        try:
            message = await self._message(payload, peer)
        except WikiError as error:
            if error.status is None:
                return None
            message = build_refusal(error)
        except Exception as error:  # noqa: BLE001 - a defect of ours must cost one request, not the server
            report_defect("a request of WIKI", error, peer=peer)
            message = build_answer(Status.FAILURE, "internal error: see the log of koala")
        return seal(message, key=key, timestamp=int(self._clock()), user=self.options.user)

    def refuse_user(self) -> bytes:
        """Return the unsigned refusal for a user of this machine who may not ask."""
        self._meter.add(metric.WIKI_REFUSALS, UNREADABLE)
        error = WikiError("this user may not ask: see --peer-user", status=Status.BAD_REQUEST)
        return seal(build_refusal(error), key=None, timestamp=int(self._clock()), user=self.options.user)

    async def _message(self, payload: bytes, peer: str) -> bytes:
        """Return the message of the answer; time and count the request."""
        verb, begun = UNREADABLE, time.monotonic()
        try:
            request = self._read(payload, peer)
            verb = request.verb
            return await self._answered(request, peer)
        except BaseException:
            self._meter.add(metric.WIKI_REFUSALS, verb)
            raise
        finally:
            self._meter.observe(metric.WIKI_SECONDS, verb, seconds=time.monotonic() - begun)

    def _read(self, payload: bytes, peer: str) -> Request:
        try:
            message = open_request(payload, key=self._key, now=self._clock())
            return parse_request(message, self.options.dialect)
        except WikiError as error:
            status = int(error.status or 0)
            kind = (peer, error.message)
            report_refused("a request was refused", kind=kind, peer=peer, status=status, reason=error.message)
            raise

    async def _answered(self, request: Request, peer: str) -> bytes:
        try:
            with anyio.fail_after(2 * self.options.reply_within):
                return await self._carry_out(request, peer)
        except TimeoutError:
            message = f"{self.options.cluster} did not answer in time"
            raise WikiError(message, status=Status.REFUSED) from None
        except WikiError as error:
            if error.status is not None:
                raise
            # Whoever sent a proper request gets an answer, also when the answer it wants cannot be written.
            log.warning("no proper answer", verb=request.verb, peer=peer, reason=error.message)
            raise WikiError(error.message, status=Status.FAILURE) from error

    async def _carry_out(self, request: Request, peer: str) -> bytes:
        match request:
            case GetNodes():
                await self._refresh()
                return self._list(self.inventory.node_records(request.names, request.since))
            case GetJobs():
                await self._refresh()
                return self._list(self._within_capacity(self.inventory.job_records(request.ids, request.since)))
            case WillRun():
                await self._refresh()
                return build_start_info(estimate_start(self.inventory, request, now=self._clock()))
            case Initialize():
                return self._initialize(request, peer)
            case JobRequest():
                return build_answer(Status.SUCCESS, await self.verbs.act(request, peer))
        raise AssertionError(f"{request.verb} is a request that is read and not answered")

    async def _refresh(self) -> None:
        """Read the batch system if the last reading is too old, within the time in which a poll must be answered."""
        with refusing():
            await self.readings.latest()

    def _list(self, records: list[Prepared]) -> bytes:
        if not self.inventory.ready:
            raise WikiError("Still performing initialization", status=Status.INITIALIZING)
        largest = MAUI_LARGEST_SIZE if self.options.dialect is Dialect.WIKI else LARGEST_SIZE
        limit = largest - signature_size(self.options.user) - len(NUL)
        return join_records(fit_records(records, limit=limit))

    def _within_capacity(self, records: list[Prepared]) -> list[Prepared]:
        """Drop the newest unfinished jobs beyond the number that Maui has room for."""
        most = MAUI_MOST_JOBS if self.options.dialect is Dialect.WIKI else len(records)
        unfinished = sum(not record.finished for record in records)
        left_out = max(0, unfinished - most)
        if left_out and not self._leaves_out:
            log.warning("Maui has no room for all jobs: the newest that wait are not reported", left_out=left_out)
        self._leaves_out = left_out > 0
        if not left_out:
            return records
        places = (index for index, record in enumerate(records) if not record.finished)
        dropped = set(list(places)[most:])
        return [record for index, record in enumerate(records) if index not in dropped]

    def _initialize(self, request: Initialize, peer: str) -> bytes:
        if request.hosts is not None and request.hosts is not self.inventory.hosts:
            self.inventory.set_hosts(request.hosts, self._clock())
        if request.event_port is not None:
            self.notifier.send_to(self.options.event_host or peer, request.event_port)
        hosts = self.inventory.hosts if self.options.dialect is Dialect.WIKI2 else HostFormat.PLAIN
        log.info("done", verb=request.verb, peer=peer, event_port=self.notifier.port, hosts=str(hosts))
        return build_initialized(self.notifier.port, hosts)

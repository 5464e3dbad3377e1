# SPDX-License-Identifier: Apache-2.0
"""A WIKI resource manager: takes the payload of a request and gives the frame of the answer, or None to just close."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.batchsystem.starter import Starter
from koala_adapter.batchsystem.starts import Patience, Starts
from koala_adapter.errors import WikiError
from koala_adapter.model import LrmJobState
from koala_adapter.wiki.codec.frames import LARGEST_SIZE, MAUI_LARGEST_SIZE, open_request, seal, signature_size
from koala_adapter.wiki.codec.listings import fit_records, join_records
from koala_adapter.wiki.codec.replies import build_answer, build_initialized, build_refusal, build_start_info
from koala_adapter.wiki.codec.requestreading import parse_request
from koala_adapter.wiki.codec.requests import GetJobs, GetNodes, Initialize, WillRun
from koala_adapter.wiki.codec.words import Dialect, Event, HostFormat, Status
from koala_adapter.wiki.freshinventory import FreshInventory
from koala_adapter.wiki.inventory import Inventory
from koala_adapter.wiki.jobstarts import JobStarts
from koala_adapter.wiki.notifier import Notifier
from koala_adapter.wiki.recordbuilder import ReportingRules
from koala_adapter.wiki.startchecks import estimate_start
from koala_adapter.wiki.verbs import Verbs, refusing
from koala_adapter.wiki.wikimeter import WikiMeter

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.batchsystem.startlog import StartLog
    from koala_adapter.wiki.codec.checksum import Key
    from koala_adapter.wiki.codec.listings import Prepared
    from koala_adapter.wiki.codec.requests import Request
    from koala_adapter.wiki.options import ServerOptions
    from koala_adapter.wiki.runningjobsfile import RunningJobsFile
    from koala_adapter.wiki.sources import Source

NUL = b"\0"
"""Slurm ends its replies with one; it counts and is not signed."""

log = structlog.get_logger()


class WikiResource:
    """Answers the requests of schedulers on one source."""

    def __init__(
        self,
        source: Source,
        key: Key | None,
        starts: StartLog,
        options: ServerOptions,
        *,
        clock: Callable[[], float],
        steady: Callable[[], float] | None = None,
        memory: RunningJobsFile | None = None,
        meter: WikiMeter | None = None,
    ) -> None:
        """``key`` None: requests need no signature, and get none; only for tests of an AUTHTYPE=NONE.

        ``clock``: the time of day, in which peers and batch systems speak; ``steady``: a clock that nobody sets, by
        which is counted how long something is so; None: ``clock`` serves for both.
        ``memory``: where the running jobs are kept for the next server. ``meter``: counts the requests; None: its own.
        """
        self.options = options
        self._source = source
        self._key = key
        self._clock = clock
        self._meter = meter or WikiMeter()
        words = ReportingRules(
            dialect=options.dialect,
            user_holds=options.user_holds,
            partitioned=source.partitioned,
            one_node=not source.capabilities.pin_several,
            one_by_one=not source.capabilities.pin_elements,
        )
        self.inventory = Inventory(words, retention=options.retention)
        self._memory = memory
        if memory is not None:
            self.inventory.recall(memory.load(), clock())
        self.notifier = Notifier(options, clock=anyio.current_time)
        under_way = Starts(Patience(start=options.start_within), pins=starts.pins)
        starter = Starter(source, under_way, starts, clock=anyio.current_time)
        self.readings = FreshInventory(
            source,
            self.inventory,
            starter,
            options=options,
            clock=clock,
            steady=steady or clock,
            on_change=self._changed,
        )
        self.starts = JobStarts(
            self.inventory,
            self.readings,
            starter,
            options=options,
            clock=clock,
            steady=steady or clock,
            on_begun=self._remember,
        )
        self.verbs = Verbs(source, self.inventory, self.readings, self.starts, options=options, steady=steady or clock)

    def _changed(self) -> None:
        self.notifier.tell(Event.JOBS)
        self._remember()

    def _remember(self) -> None:
        """Keep which jobs run or start, or have ended without anybody being told: the next server tells it."""
        if self._memory is not None:
            self._memory.save(self.inventory.untold())

    async def answer(self, payload: bytes, peer: str) -> bytes | None:
        """Return the frame that answers a payload; None: nothing can be said, the connection is closed."""
        try:
            message = await self._message(payload, peer)
        except WikiError as error:
            if error.status is None:
                return None
            message = build_refusal(error)
        except Exception:
            # A defect of ours must cost one request, not the server.
            log.exception("a defect of koala itself", peer=peer)
            message = build_answer(Status.FAILURE, "internal error: see the log of koala")
        return seal(message, key=self._key, timestamp=int(self._clock()), user=self.options.user)

    async def _message(self, payload: bytes, peer: str) -> bytes:
        with self._meter.request() as asked:
            envelope = open_request(payload, key=self._key, now=self._clock(), skew=self.options.skew)
            request = parse_request(envelope.message, self.options.dialect)
            asked.verb = request.verb
            return await self._answered(request, peer)

    async def _answered(self, request: Request, peer: str) -> bytes:
        try:
            with anyio.fail_after(2 * self.options.reply_within):
                return await self._carry_out(request, peer)
        except TimeoutError:
            message = f"{self._source.name} did not answer in time"
            raise WikiError(message, status=Status.REFUSED) from None
        except WikiError as error:
            if error.status is not None:
                raise
            # Whoever sent a proper request gets an answer, also when the answer it wants cannot be written.
            log.warning("no proper answer", verb=str(request.verb), peer=peer, reason=error.message)
            raise WikiError(error.message, status=Status.FAILURE) from error

    async def _carry_out(self, request: Request, peer: str) -> bytes:
        match request:
            case GetNodes():
                await self._ready()
                return self._list(self.inventory.node_records(request.names, request.since))
            case GetJobs():
                await self._ready()
                return self._list(self.inventory.job_records(request.ids, request.since))
            case WillRun():
                await self._ready()
                return build_start_info(estimate_start(self.inventory, request, now=self._clock()))
            case Initialize():
                return self._initialize(request, peer)
        return build_answer(Status.SUCCESS, await self.verbs.act(request, peer))

    async def _ready(self) -> None:
        """Have a reading that is fresh enough, or the last one, within the time in which a poll must be answered."""
        with refusing():
            await self.readings.latest()

    def _list(self, records: list[Prepared]) -> bytes:
        if not self.inventory.ready:
            raise WikiError("Still performing initialization", status=Status.INITIALIZING)
        largest = MAUI_LARGEST_SIZE if self.options.dialect is Dialect.WIKI else LARGEST_SIZE
        limit = largest - signature_size(self.options.user) - len(NUL)
        return join_records(fit_records(records, limit=limit))

    def _initialize(self, request: Initialize, peer: str) -> bytes:
        if request.hosts is not None and request.hosts is not self.inventory.hosts:
            self.inventory.set_hosts(request.hosts, self._clock())
        if request.event_port is not None:
            self.notifier.send_to(self.options.event_host or peer, request.event_port)
        hosts = self.inventory.hosts if self.options.dialect is Dialect.WIKI2 else HostFormat.PLAIN
        log.info("done", verb=str(request.verb), peer=peer, event_port=self.notifier.port, hosts=str(hosts))
        return build_initialized(self.notifier.port, hosts)

    @property
    def waiting(self) -> int:
        """Jobs that wait for a scheduler: held by the site."""
        return sum(entry.job.state is LrmJobState.HELD for entry in self.inventory.jobs.values())

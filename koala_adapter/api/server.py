# SPDX-License-Identifier: Apache-2.0
"""The service side of the socket: the socket itself, the server, and hosting a service with it.

Only processes of the same user are admitted, proved by the kernel's peer credentials.
"""

from __future__ import annotations

import math
import os
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import anyio
import structlog
from anyio import to_thread
from anyio.abc import SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream

from koala_adapter import api
from koala_adapter import host as this_host
from koala_adapter import service as service_room
from koala_adapter.api import protocol
from koala_adapter.api.reporting import cluster_report, live_report, plan_report, report_to_keep
from koala_adapter.api.statedirectory import require_not_cleaned, socket_path
from koala_adapter.config.jobfile import check_job, job_as_described, job_from_dict
from koala_adapter.driver.loop import SNAPSHOT_INTERVAL
from koala_adapter.errors import (
    JobNotFoundError,
    KoalaError,
    ProtocolError,
    ServiceAbsentError,
    ServiceUnavailableError,
)
from koala_adapter.host.accepting import serve_streams
from koala_adapter.host.containment import report_defect, report_refused
from koala_adapter.host.sockets import same_user
from koala_adapter.host.unixstream import Received
from koala_adapter.lrm.commands import login_name
from koala_adapter.model import Job, JobId
from koala_adapter.report.values import JobReport, as_kept, in_order
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.service.agents import sample_submissions
from koala_adapter.service.service import Service
from koala_adapter.wire.messages import adapter_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from anyio.abc import Listener, SocketStream, TaskStatus

    from koala_adapter.api.protocol import Request
    from koala_adapter.config.locations import SiteFileState
    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.host.accepting import Handle
    from koala_adapter.host.clock import HostClocks
    from koala_adapter.host.metrics import Meter
    from koala_adapter.lrm import PluginDefinition
    from koala_adapter.report.sitevalues import CleanReport
    from koala_adapter.service.leftovers import Cleaning, Seen


# -- The socket in the state directory -----------------------------------------------------------------------
# It is made again when it was removed, for example by a cleaner of old files. Otherwise a running service could be
# neither asked nor stopped, while its lock excludes every other one.

LOOK_AGAIN = 5.0
"""Seconds between two looks at the path of the socket."""

log = structlog.get_logger()


class OwnSocket:
    """Listener on the socket of a state directory, recreated when it is removed."""

    def __init__(self, path: Path, listener: Listener[SocketStream], resources: AsyncExitStack) -> None:
        """``listener``: the first one; ``resources``: closed by the owner, with all listeners."""
        self._path = path
        self._listener = listener
        self._resources = resources

    async def serve(self, handle: Handle, *, look_again: float = LOOK_AGAIN) -> None:
        """Serve connections until cancelled; check the socket's path every ``look_again`` seconds."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve_streams, self._listener, handle)
            while True:
                await anyio.sleep(look_again)
                if self._path.exists():  # also if it is that of another service, in a directory made anew
                    continue
                try:
                    listener = await _new_listener(self._path)
                except OSError as error:
                    log.warning(
                        "the socket was removed and cannot be made anew", path=str(self._path), error=str(error)
                    )
                    continue
                # The one before stays open: conversations by it go on, and who has just connected is answered.
                await self._resources.enter_async_context(listener)
                log.warning("the socket was removed, and is made anew", path=str(self._path))
                tasks.start_soon(serve_streams, listener, handle)


@asynccontextmanager
async def listening(directory: Path) -> AsyncIterator[OwnSocket]:
    """Listen on the socket of a state directory. Raises ConfigurationError."""
    path = socket_path(directory)
    with suppress(FileNotFoundError):
        path.unlink()
    listener = await _new_listener(path)
    try:
        async with AsyncExitStack() as resources:
            await resources.enter_async_context(listener)
            yield OwnSocket(path, listener, resources)
    finally:
        with suppress(FileNotFoundError):
            path.unlink()


async def _new_listener(path: Path) -> Listener[SocketStream]:
    return await anyio.create_unix_listener(path, mode=0o600)


# -- The server ----------------------------------------------------------------------------------------------

WATCH_PAUSE = 0.1
"""Seconds between two replies of a watch at least."""
QUIET_AFTER = 1.1
"""Seconds without a change after which a watch of one job repeats its report; more than LogPrinter waits."""

JOBS_PAUSE = 0.5
"""Seconds between two replies of a watch of all jobs at least."""

CHECKS = 4
"""Jobs that are checked at once: a file system that does not answer takes no more threads than these."""

LOOKING_LIMIT = 1800.0
"""Seconds in which a cleaning must have looked through the state directory."""

UNNUMBERED = JobId("0")
"""Stands for the id of a job that is not taken in, or not yet."""

LOST = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)
"""What a client that has gone raises."""


class Server:
    """Server of requests on a state directory's socket."""

    def __init__(
        self,
        service: Service,
        *,
        site_file: SiteFileState | None = None,
        read_again: Callable[[], object] | None = None,
        reload_failure: str = "",
    ) -> None:
        """Answer for ``service``.

        ``site_file``: which one it has read, if any. ``read_again`` reads it for the next start, and raises
        ConfigurationError where it is not valid; None: the service cannot be made to. ``reload_failure``: why the
        service did not start with a site file that was read again.
        """
        self._service = service
        self._site_file = site_file
        self._read_again = read_again
        self._reload_failure = reload_failure
        self.reload_wanted = False
        """It ends to be started again with the site file as it is now."""
        self.stop_wanted = anyio.Event()
        self._stopping = False
        """A client has asked for the end, and waits until no process owns the state directory."""
        self._ending = False
        self._leaving = False
        self._conversations = 0
        self._ended = anyio.Event()
        self._checks = anyio.CapacityLimiter(CHECKS)
        self._cleaning = anyio.Lock()
        """One cleaning at a time: another one would find what the first is removing."""

    @property
    def meter(self) -> Meter:
        """Metrics of the service."""
        return self._service.meter.meter

    async def serve(self, listener: OwnSocket) -> None:
        """Serve connections, earlier ones included, until cancelled."""
        await listener.serve(self._converse)

    @property
    def unfinished(self) -> list[JobId]:
        """Jobs without outcome, or with placeholders left."""
        return self._service.unfinished

    async def quiet(self, patience: float = 1.0) -> None:
        """Tell those who watch all jobs that this is the end, and wait at most ``patience`` seconds until all leave."""
        self._leaving = True
        self._service.settled()
        with anyio.move_on_after(patience):
            while self._conversations:
                await self._ended.wait()

    async def _converse(self, stream: SocketStream) -> None:
        self._conversations += 1
        try:
            await self._talk(stream)
        finally:
            self._conversations -= 1
            self._ended.set()
            self._ended = anyio.Event()

    async def _talk(self, stream: SocketStream) -> None:
        async with stream:
            if not same_user(stream.extra(SocketAttribute.raw_socket)):
                report_refused("refused a connection of another user")
                return
            buffered = BufferedByteReceiveStream(Received(stream))
            with suppress(*LOST, anyio.IncompleteRead, anyio.DelimiterNotFound):
                while True:
                    line = await buffered.receive_until(b"\n", protocol.LINE_LIMIT)
                    await self._answer(stream, line)

    async def _answer(self, stream: SocketStream, line: bytes) -> None:
        try:
            request = protocol.decode_request(line)
            if request.operation == "watch":
                async for reply in self._watch(request) if request.job_id else self._watch_jobs(request):
                    await stream.send(protocol.encode(reply))
                return
            reply = protocol.Reply(result=await self._result(request))
            await stream.send(protocol.encode(reply))
            if request.operation == "stop" or self._ending or self.reload_wanted:
                self.stop_wanted.set()
        except KoalaError as error:
            await stream.send(protocol.encode(protocol.refusal(error)))
        except LOST:
            raise
        except Exception as error:  # noqa: BLE001 - a defect of ours, or of a plugin, costs this answer
            report_defect("a request", error, request=line[:200])
            await stream.send(protocol.encode(protocol.refusal(KoalaError(f"the service failed: {error!r}"))))

    async def _result(self, request: Request) -> Any:  # noqa: ANN401, C901, PLR0911, PLR0912 - JSON of many shapes, one return for each
        service = self._service
        match request.operation:
            case "check":
                return _json(await self._checked(request))
            case "submit":
                await service.look_for_obstacles()
                await service.take_in_files(self._job(request), request.submission)
                await service.ready()
                if self._ending:
                    raise ServiceAbsentError("the koala service is about to end", hint="try again in a second")
                made = service.submit(lambda id_, now: self._job(request, id_, now), submission=request.submission)
                return {"job_id": made}
            case "cancel":
                await service.ready()
                service.cancel(request.job_id)
                return _json(self._report(request.job_id))
            case "resize":
                await service.ready()
                service.resize(request.job_id, request.component, request.processors)
                return _json(self._report(request.job_id))
            case "job":
                return _json(self._report(request.job_id))
            case "jobs":
                return self._jobs(request)
            case "clusters":
                if request.measure:
                    with anyio.move_on_after(protocol.MEASURING):
                        await service.information.measure_all()
                return [_json(cluster_report(service, driver)) for driver in service.clusters.values()]
            case "plan":
                await service.replicas.learn(self._job(request).input_files)
                job = self._job(request, JobId("plan"), service.now())
                service.tell_of(job)
                return _json(plan_report(service.core.scheduler, job, now=service.now()))
            case "script":
                job = self._job(request, now=service.now())
                driver = service.clusters[service.site.cluster(request.cluster).cluster_name]
                samples = sample_submissions(
                    service.scripts, job, driver.config, driver.lrm, service.journal.instance()
                )
                return list(map(_json, samples))
            case "negotiate":
                return asdict(await service.sizes.made.access(service.core.scheduler.job(request.job_id)))
            case "negotiations":
                return self._negotiations(request)
            case "defects":
                return [*service.sites_away, *service.journal.defects_told(service.now())]
            case "clean":
                return asdict(await self._clean(request))
            case "metrics":
                return this_host.openmetrics(self.meter).decode()
            case "stop-if-idle":
                # Noted at once, so that no job comes in between the answer and the end.
                self._ending = self._ending or not service.core.busy
                return {"stops": self._ending}
            case "reload":
                self._reload()
            case "stop":
                self._stopping, self.reload_wanted = True, False
        site = None if self._site_file is None else asdict(self._site_file)
        told = {"unfinished": len(service.unfinished), "site": site, "reload_failure": self._reload_failure}
        return {"pid": os.getpid(), **told}

    async def _checked(self, request: Request) -> Job:
        """Check a job in a thread, as the file systems of its input files may not answer."""
        if request.described is None:
            raise ProtocolError("the request carries no job")
        check = partial(job_as_described, request.described, user=login_name(), site=self._service.site)
        return await to_thread.run_sync(check, abandon_on_cancel=True, limiter=self._checks)

    def _reload(self) -> None:
        if self._stopping:
            raise ServiceAbsentError("the koala service is about to end", hint="start it anew with `koala serve`")
        if self._read_again is None:
            hint = "it reads the site file of the next command when it has ended"
            raise ServiceUnavailableError(
                "this service is a part of another command, and reads nothing anew", hint=hint
            )
        self._read_again()
        self._reload_failure = ""
        self.reload_wanted = True

    def _negotiations(self, request: Request) -> Any:  # noqa: ANN401 - JSON
        service = self._service
        reports = api.negotiation_reports(
            service.journal.negotiations,
            service.state,
            job_id=request.job_id,
            number=request.number,
            limit=request.limit,
            wall_offset=service.clock.offset,
        )
        return list(map(_json, reports))

    def _job(self, request: Request, job_id: JobId = UNNUMBERED, now: float = 0.0) -> Job:
        if request.job is None:
            raise ProtocolError("the request carries no job")
        job = job_from_dict({**request.job, "id": job_id, "submitted_at": now})
        check_job(job, self._service.site)
        return job

    def _report(self, job_id: str) -> JobReport:
        try:
            return live_report(self._service, self._service.core.scheduler.job(job_id).job.id)
        except JobNotFoundError:
            archived = self._service.journal.finished.report(job_id)
            if archived is None:
                require_not_cleaned(self._service.journal, job_id, self._service.clock.offset)
                raise
            return as_kept(adapter_of(JobReport).validate_json(archived))

    def _reports(self, limit: int) -> list[JobReport]:
        live = [live_report(self._service, job_id) for job_id in list(self._service.state.jobs)[-limit:]]
        known = {report.id for report in live}
        texts = self._service.journal.finished.latest(limit)
        archived = [as_kept(adapter_of(JobReport).validate_json(text)) for text in texts]
        reports = [report for report in archived if report.id not in known] + live
        return sorted(reports, key=in_order)[-limit:]

    def _jobs(self, request: Request) -> Any:  # noqa: ANN401 - JSON
        if request.selection is None:
            return [_json(report) for report in self._reports(request.limit)]
        newest_first = (_json(live_report(self._service, job_id)) for job_id in reversed(self._service.state.jobs))
        return list(islice(filter(request.selection.takes, newest_first), request.limit))

    async def _watch(self, request: Request) -> AsyncIterator[protocol.Reply]:
        """Yield a report at each change, and repeat it after a while without changes.

        By that repetition a client that prints output learns that an unfinished line does not grow for now.
        """
        told_twice = False
        while True:
            changed = self._service.core.changed
            report = self._report(request.job_id)
            yield protocol.Reply(result=_json(report), last=report.over)
            if report.over:
                return
            with anyio.move_on_after(math.inf if told_twice else QUIET_AFTER):
                await changed.wait()
            told_twice = not changed.is_set()
            if not told_twice:
                await anyio.sleep(WATCH_PAUSE)

    async def _watch_jobs(self, request: Request) -> AsyncIterator[protocol.Reply]:
        while True:
            changed = self._service.core.changed
            reports = [_json(report) for report in self._reports(request.limit)]
            yield protocol.Reply(result=reports, last=self._leaving)
            if self._leaving:
                return
            await changed.wait()
            if not self._leaving:
                await anyio.sleep(JOBS_PAUSE)

    async def _clean(self, request: Request) -> CleanReport:
        """Clean in a thread, so that other requests are served meanwhile."""
        service = self._service
        async with self._cleaning:
            await service.ready()
            older, now = request.older, service.now()
            cleaning = service_room.Cleaning(service.directory, service.journal, service.state, older=older, now=now)
            seen = await self._looked(cleaning)
            later: dict[str, str | None] = {}
            for part in cleaning.later():  # there may be many
                later |= part
                await anyio.lowlevel.checkpoint()
            await service.ready()
            # The scheduler may have been made anew meanwhile, with another state.
            cleaning = service_room.Cleaning(service.directory, service.journal, service.state, older=older, now=now)
            chosen = cleaning.choose(seen, later)
            if not request.dry_run:
                cleaning.give_up(chosen, service.forget)
            return await to_thread.run_sync(partial(cleaning.remove, chosen, dry_run=request.dry_run))

    async def _looked(self, cleaning: Cleaning) -> Seen:
        known = cleaning.known()
        try:
            with anyio.fail_after(LOOKING_LIMIT):
                return await to_thread.run_sync(cleaning.look, known, abandon_on_cancel=True)
        except TimeoutError:
            message = f"the state directory could not be looked through within {LOOKING_LIMIT / 60:.0f} minutes"
            raise ServiceUnavailableError(message, hint="see what slows its file system down") from None


def _json(value: object) -> Any:  # noqa: ANN401 - JSON
    return adapter_of(type(value)).dump_python(value, mode="json")


# -- Hosting a service, in the foreground or inside ``koala run`` --------------------------------------------


async def host(  # noqa: PLR0913 - all that a service can be told
    site: SiteConfig,
    plugins: Mapping[str, PluginDefinition],
    directory: Path,
    *,
    idle_limit: float | None = None,
    clocks: HostClocks | None = None,
    policies: Policies = OWN,
    snapshot_interval: int = SNAPSHOT_INTERVAL,
    journal_patience: float | None = None,
    settings_trusted: float = 0.0,
    site_file: SiteFileState | None = None,
    read_again: Callable[[], object] | None = None,
    reload_failure: str = "",
    before_serving: Callable[[Meter], Awaitable[None]] | None = None,
    task_status: TaskStatus[Server] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Run a service with its socket until a client stops it or the task is cancelled. The caller owns the directory.

    ``idle_limit``: it also ends when nothing has been unfinished for so many seconds; None: never. ``clocks``: None:
    those of this machine. ``policies``: those that the scheduler may use. ``snapshot_interval``: events of the journal
    after which a snapshot stands for them. ``journal_patience``, ``settings_trusted``: as of :class:`Service`.
    ``site_file``, ``read_again``, ``reload_failure``: as of :class:`Server`. ``before_serving`` is called with what the
    service counts before the first request is answered; what it raises ends the service.
    """
    # Before anything that takes time: who comes meanwhile waits for the answer, instead of finding nobody.
    async with listening(directory) as listener:
        service = Service(
            site,
            plugins,
            directory,
            make_report=report_to_keep,
            clocks=clocks,
            policies=policies,
            snapshot_interval=snapshot_interval,
            journal_patience=journal_patience,
            settings_trusted=settings_trusted,
        )
        server = Server(service, site_file=site_file, read_again=read_again, reload_failure=reload_failure)
        async with anyio.create_task_group() as tasks:
            await tasks.start(service.run)
            if before_serving is not None:
                await before_serving(server.meter)
            tasks.start_soon(server.serve, listener)
            if idle_limit is not None:
                tasks.start_soon(_stop_when_idle, server, service, idle_limit)
            task_status.started(server)
            await server.stop_wanted.wait()
            await server.quiet()
            tasks.cancel_scope.cancel()


async def _stop_when_idle(server: Server, service: Service, limit: float) -> None:
    idle_since: float | None = None
    while not server.stop_wanted.is_set():
        changed = service.core.changed
        idle_since = None if service.core.busy else idle_since or anyio.current_time()
        left = None if idle_since is None else idle_since + limit - anyio.current_time()
        if left is not None and left <= 0:
            server.stop_wanted.set()
            return
        with anyio.move_on_after(left):
            await changed.wait()

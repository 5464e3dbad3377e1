# SPDX-License-Identifier: Apache-2.0
"""Clients of the service: requests over its Unix socket, and starting or awaiting a service."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from koala_adapter import api, report
from koala_adapter.api import protocol
from koala_adapter.api.protocol import Reply, Request, from_json
from koala_adapter.api.statedirectory import JOURNAL_NAME, LOG_NAME, socket_path, start_in_background
from koala_adapter.config.locations import SiteFileState
from koala_adapter.errors import (
    JobTimeoutError,
    ServiceAbsentError,
    ServiceRunningError,
    ServiceUnavailableError,
)
from koala_adapter.outcome import NOT_SEEN
from koala_adapter.report.values import JobReport, in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from koala_adapter.config.written import DescribedJob
    from koala_adapter.model import Job
    from koala_adapter.report.selection import JobSelection
    from koala_adapter.report.sitevalues import (
        CleanReport,
        ClusterReport,
        NegotiationAccess,
        NegotiationReport,
        PlanReport,
        SampleSubmission,
    )


# -- The client ----------------------------------------------------------------------------------------------

TIMEOUT = 30.0
SLOWEST_COPY = 10 * 1024 * 1024
"""Bytes of input files that the service copies in a second at least, before it answers a submission."""
SHORTEST = 0.001
"""Seconds of a time-out that is over already: 0 would mean something else to a socket."""
LOOK_AGAIN = 0.2
"""Seconds between two attempts to reach a service that is expected."""
MOST_JOBS = 1_000_000
"""Jobs that have not ended, when all of them are asked for."""
AGAIN = 30.0
"""Seconds for which a submission that was not answered is sent again."""


class Client:
    """Client of a state directory's service; each call is a connection of its own."""

    def __init__(self, directory: Path) -> None:
        """``directory``: the state directory of the service."""
        self.directory = directory

    def running(self) -> bool:
        """Return whether a service answers."""
        return self.pid() is not None

    def pid(self, patience: float = TIMEOUT) -> int | None:
        """Return the process id of the service; None when none answers within ``patience`` seconds."""
        found = self._ping(patience).get("pid")
        return None if found is None else int(found)

    def site_in_force(self) -> SiteFileState | None:
        """Return the site file as the service read it; None when none answers, or it does not tell."""
        told = self._ping().get("site")
        return None if told is None else from_json(SiteFileState, told)

    def reload_failure(self) -> str:
        """Return why the service could not use its site file when reloading; empty when it could."""
        return str(self._ping().get("reload_failure", ""))

    def _ping(self, patience: float = TIMEOUT) -> dict[str, Any]:
        """Return what the service tells of itself; empty when none answers within ``patience`` seconds."""
        try:
            return dict(self._ask(protocol.Request(operation="ping"), timeout=patience))
        except ServiceUnavailableError:
            return {}

    def wait_until_running(self, patience: float) -> bool:
        """Wait for a service to answer; return whether one does within ``patience`` seconds."""
        until = time.monotonic() + patience
        # Once it listens, it answers as soon as it has started; what is looked for again and again is its socket.
        while self.pid(max(LOOK_AGAIN, until - time.monotonic())) is None:
            if time.monotonic() > until:
                return False
            time.sleep(LOOK_AGAIN)
        return True

    def wait_until_seen(self, patience: float) -> None:
        """Wait until the service has listed every cluster, or knows why it cannot, at most ``patience`` seconds."""
        until = time.monotonic() + patience
        while time.monotonic() < until and any(report.closed == NOT_SEEN for report in self.clusters()):
            time.sleep(LOOK_AGAIN)

    def check(self, described: DescribedJob) -> Job:
        """Return a job as it was written, checked against the site file of the service, to be submitted.

        Raises ConfigurationError with all that is wrong, and ProtocolError where it cannot be sent.
        """
        from koala_adapter.model import Job

        return from_json(Job, self._ask(protocol.Request(operation="check", described=described)))

    def submit(self, job: Job, *, begin: Callable[[], object] | None = None) -> str:
        """Submit a job and return its id (the one in ``job`` is not used).

        Where the service is killed before it answers, the submission is sent again to the next one, for AGAIN seconds;
        it is answered with the same job. ``begin``: starts a service before each attempt if none runs; without it, none
        is waited for before the first one has answered. Raises ServiceUnavailableError when it is not known whether the
        job was taken, ServiceAbsentError when it certainly was not.
        """
        request, until = protocol.submission(job, new_submission()), time.monotonic() + AGAIN
        lost: ServiceUnavailableError | None = None
        while True:
            if begin is not None:
                begin()
            try:
                return str(self._ask(request, timeout=patience_with(job))["job_id"])
            except ServiceUnavailableError as error:
                if not isinstance(error, ServiceAbsentError):  # it may have taken the job, and then knows this name
                    lost = lost or error
                elif lost is None and begin is None:
                    raise
                if time.monotonic() >= until:
                    raise unanswered(lost) if lost else error from None
            time.sleep(LOOK_AGAIN)

    def cancel(self, job_id: str) -> JobReport:
        """Cancel a job; returns at once with its report."""
        return from_json(JobReport, self._ask(protocol.Request(operation="cancel", job_id=job_id)))

    def resize(self, job_id: str, processors: int, component: str = "") -> JobReport:
        """Set the wanted number of processors of a malleable job's component; return the job's report at once.

        ``component``: empty for the only one that can change. Raises JobNotFoundError and JobRefusedError.
        """
        request = protocol.Request(operation="resize", job_id=job_id, component=component, processors=processors)
        return from_json(JobReport, self._ask(request))

    def job(self, job_id: str) -> JobReport:
        """Return the report of a job. Raises JobNotFoundError."""
        return from_json(JobReport, self._ask(protocol.Request(operation="job", job_id=job_id)))

    def jobs(self, limit: int = 50, selection: JobSelection | None = None) -> list[JobReport]:
        """Return the latest jobs, or those of a selection, in order of submission."""
        found = self._ask(protocol.Request(operation="jobs", limit=limit, selection=selection))
        if selection is None:
            return [from_json(JobReport, one) for one in found]
        # The archive is read here, because that may take long, and the service is to answer others meanwhile.
        return api.with_kept(self.directory / JOURNAL_NAME, found, selection, limit)

    def unfinished(self, selection: JobSelection) -> list[JobReport]:
        """Return the jobs of a selection that have not ended, in order of submission."""
        found = self._ask(protocol.Request(operation="jobs", limit=MOST_JOBS, selection=selection))
        reports = [from_json(JobReport, one) for one in found]
        return sorted((one for one in reports if one.outcome is None), key=in_order)

    def clusters(self, *, measure: bool = False) -> list[ClusterReport]:
        """Return the clusters. ``measure``: the network to their sites, and between these, is measured before."""
        timeout = TIMEOUT + protocol.MEASURING if measure else TIMEOUT
        found = self._ask(protocol.Request(operation="clusters", measure=measure), timeout=timeout)
        return [from_json(report.ClusterReport, one) for one in found]

    def plan(self, job: Job) -> PlanReport:
        """Return where a job would go now."""
        return from_json(report.PlanReport, self._ask(protocol.Request(operation="plan", job=asdict(job))))

    def script(self, job: Job, cluster: str) -> list[SampleSubmission]:
        """Return the exact submissions of a job to a cluster, without sending them."""
        found = self._ask(protocol.Request(operation="script", job=asdict(job), cluster=cluster))
        return [from_json(report.SampleSubmission, one) for one in found]

    def negotiation_access(self, job_id: str) -> NegotiationAccess:
        """Return one-time access for a program to negotiate for a job. Raises JobNotFoundError and JobRefusedError."""
        return from_json(report.NegotiationAccess, self._ask(protocol.Request(operation="negotiate", job_id=job_id)))

    def negotiations(self, *, job_id: str = "", number: int = 0, limit: int = 50) -> list[NegotiationReport]:
        """Return the latest negotiations, oldest first; of one job only, or only the one of a number.

        Raises NegotiationError when there is none of that number.
        """
        request = protocol.Request(operation="negotiations", job_id=job_id, number=number, limit=limit)
        return [from_json(report.NegotiationReport, one) for one in self._ask(request)]

    def defects(self) -> list[str]:
        """Return messages about sites that are away, and about recent events on which koala failed."""
        return [str(one) for one in self._ask(protocol.Request(operation="defects"))]

    def clean(self, older: float, *, dry_run: bool) -> CleanReport:
        """Remove what is left of jobs that ended more than ``older`` seconds ago, or only list it; may take long."""
        request = protocol.Request(operation="clean", older=older, dry_run=dry_run)
        return from_json(report.CleanReport, self._ask(request, timeout=None))

    def metrics(self) -> str:
        """Return the service's metrics as OpenMetrics text."""
        return str(self._ask(protocol.Request(operation="metrics")))

    def reload(self) -> None:
        """Ask the service to read its site file again, which takes effect in a moment.

        Raises ConfigurationError when the file is not valid: the service then goes on as before.
        """
        self._ask(protocol.Request(operation="reload"))

    def stop(self) -> None:
        """Ask the service to end; its jobs go on and are found again by the next one."""
        self._ask(protocol.Request(operation="stop"))

    def stop_if_idle(self) -> bool:
        """Ask the service to end unless it has unfinished jobs; return whether it does."""
        return bool(self._ask(protocol.Request(operation="stop-if-idle"))["stops"])

    def follow(self, job_id: str, *, patience: float, on_lost: Callable[[], None]) -> Generator[JobReport, None, None]:
        """Watch a job; when the service is lost, call ``on_lost`` and wait ``patience`` seconds for another.

        Raises ServiceUnavailableError when none comes.
        """
        while True:
            try:
                yield from self.watch(job_id)
                return
            except ServiceUnavailableError:
                on_lost()
                if not self.wait_until_running(patience):
                    raise

    def watch(self, job_id: str, *, until: float | None = None) -> Generator[JobReport, None, None]:
        """Yield the report of a job now and after each change, until it is over.

        ``until``: the monotonic time at which it raises JobTimeoutError; None: never.
        """
        try:
            for result in self._replies(protocol.Request(operation="watch", job_id=job_id), until=until):
                yield from_json(JobReport, result)
        except TimeoutError as error:
            raise JobTimeoutError(f"job {job_id} is not over yet", hint="it goes on") from error

    def watch_jobs(self, limit: int = 50) -> Iterator[list[JobReport]]:
        """Yield the latest jobs in order of submission now and after each change, until the service ends."""
        for result in self._replies(protocol.Request(operation="watch", limit=limit)):
            yield [from_json(JobReport, one) for one in result]

    def _replies(self, request: Request, *, until: float | None = None) -> Iterator[Any]:
        """Yield the replies to a watch. Raises TimeoutError at the monotonic time ``until``."""
        with self._connect(timeout=None) as connection, connection.makefile("rb") as lines:
            last = False
            line = protocol.encode(request)
            while not last:
                try:
                    if until is not None:
                        connection.settimeout(max(SHORTEST, until - time.monotonic()))
                    connection.sendall(line)
                    reply = self._reply(lines.readline())
                except TimeoutError:
                    raise
                except OSError as error:
                    raise unavailable(self.directory, error) from error
                line, last = b"", reply.last
                yield reply.result

    def _ask(self, request: Request, *, timeout: float | None = TIMEOUT) -> Any:  # noqa: ANN401 - JSON of many shapes
        with self._connect(timeout=timeout) as connection, connection.makefile("rb") as lines:
            try:
                connection.sendall(protocol.encode(request))
                return self._reply(lines.readline()).result
            except OSError as error:
                raise unavailable(self.directory, error) from error

    def _reply(self, line: bytes) -> Reply:
        if not line:
            raise unavailable(self.directory, "it closed the connection")
        reply = protocol.decode_reply(line)
        protocol.raise_refusal(reply)
        return reply

    def _connect(self, timeout: float | None) -> socket.socket:
        path = str(socket_path(self.directory))
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            raise unavailable(self.directory, error) from error
        return connection


def patience_with(job: Job) -> float:
    """Return the seconds within which the service has taken a job and its input files in."""
    size = sum(file.size or 0 for component in job.components for file in component.input_files)
    return TIMEOUT + size / SLOWEST_COPY


def new_submission() -> str:
    """Return a name for a submission, so that it can be repeated safely."""
    return os.urandom(16).hex()


def unanswered(error: ServiceUnavailableError) -> ServiceUnavailableError:
    """Return the error for a submission that was sent and not answered."""
    message = f"it is not known whether the job was submitted: {error.message}"
    return ServiceUnavailableError(message, hint="start the service with `koala serve`, and look with `koala status`")


def unavailable(directory: Path, why: object) -> ServiceUnavailableError:
    """Return the error for a state directory without a running service, with the remedy.

    It is a ServiceAbsentError when ``why`` is that nothing listens there.
    """
    said = getattr(why, "strerror", None) or why
    kind = (
        ServiceAbsentError if isinstance(why, FileNotFoundError | ConnectionRefusedError) else ServiceUnavailableError
    )
    return kind(f"no koala service answers in {directory}: {said}", hint="start one with `koala serve`")


# -- Starting or awaiting a service --------------------------------------------------------------------------
# A caller gets the service that runs, one that another process is starting, or a new one in the background.

COMING_UP = 120.0
"""Seconds to wait for a service that another process is starting."""
OTHER_START = 2.0
"""Seconds between two looks whether that process still runs."""

T = TypeVar("T")


def stand_by(client: Client, site_file: Path) -> int | None:
    """Start a background service and return its pid; None when another one answers.

    Raises ServiceRunningError and ServiceUnavailableError.
    """
    return unless_another_answers(client, lambda: start_in_background(site_file, client.directory))


def unless_another_answers(client: Client, start: Callable[[], T]) -> T | None:
    """Return the result of ``start``; None when another service answers instead.

    Raises ServiceRunningError when another process owns the directory and does not come to answer.
    """
    until = time.monotonic() + COMING_UP
    while True:
        try:
            return start()
        except ServiceRunningError as error:
            # In between the start is tried again: the other one may fail.
            if client.wait_until_running(OTHER_START):
                return None
            if time.monotonic() > until:
                message = f"{error.message}, but has not answered for {COMING_UP:.0f} s"
                hint = f"see what it says there, or in {client.directory / LOG_NAME}; end it and try again"
                raise ServiceRunningError(message, hint=hint) from None

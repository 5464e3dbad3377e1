# SPDX-License-Identifier: Apache-2.0
"""Talking to the service over its Unix socket."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from koala_adapter import requests
from koala_adapter.errors import ServiceUnavailableError
from koala_adapter.jobfile import job_to_dict
from koala_adapter.reports import CLUSTER_REPORT, JOB_REPORT
from koala_adapter.server import socket_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from koala_adapter.model import Job
    from koala_adapter.reports import ClusterReport, JobReport
    from koala_adapter.requests import Reply, Request

TIMEOUT = 30.0


class Client:
    """Asks the service of a state directory; each call is a connection of its own."""

    def __init__(self, directory: Path) -> None:
        """``directory``: the state directory of the service."""
        self.directory = directory

    def running(self) -> bool:
        """Tell whether a service answers."""
        try:
            self._ask(requests.Request(operation="ping"))
        except ServiceUnavailableError:
            return False
        return True

    def submit(self, job: Job) -> str:
        """Submit a job and return its id (the one in ``job`` is not used)."""
        result = self._ask(requests.Request(operation="submit", job=job_to_dict(job)))
        return str(result["job_id"])

    def cancel(self, job_id: str) -> JobReport:
        """Cancel a job; returns at once with its report."""
        return JOB_REPORT.validate_python(self._ask(requests.Request(operation="cancel", job_id=job_id)))

    def job(self, job_id: str) -> JobReport:
        """Return the report of a job. Raises JobNotFoundError."""
        return JOB_REPORT.validate_python(self._ask(requests.Request(operation="job", job_id=job_id)))

    def jobs(self, limit: int = 50) -> list[JobReport]:
        """Return the latest jobs in order of submission."""
        found = self._ask(requests.Request(operation="jobs", limit=limit))
        return [JOB_REPORT.validate_python(one) for one in found]

    def clusters(self) -> list[ClusterReport]:
        """Return the clusters."""
        return [CLUSTER_REPORT.validate_python(one) for one in self._ask(requests.Request(operation="clusters"))]

    def plan(self, job: Job) -> dict[str, Any]:
        """Return where a job would go now."""
        found: dict[str, Any] = self._ask(requests.Request(operation="plan", job=job_to_dict(job)))
        return found

    def script(self, job: Job, cluster: str) -> dict[str, Any]:
        """Return the exact submissions of a job to a cluster, not sent."""
        request = requests.Request(operation="script", job=job_to_dict(job), cluster=cluster)
        found: dict[str, Any] = self._ask(request)
        return found

    def stop(self) -> None:
        """Ask the service to end; its jobs go on and are found again by the next one."""
        self._ask(requests.Request(operation="stop"))

    def watch(self, job_id: str) -> Iterator[JobReport]:
        """Yield the report of a job now and after each change, until it is over."""
        with self._connect(timeout=None) as connection, connection.makefile("rb") as lines:
            connection.sendall(requests.encode(requests.Request(operation="watch", job_id=job_id)))
            while True:
                reply = self._reply(lines.readline())
                yield JOB_REPORT.validate_python(reply.result)
                if reply.last:
                    return

    def _ask(self, request: Request) -> Any:  # noqa: ANN401 - JSON of many shapes
        with self._connect(timeout=TIMEOUT) as connection, connection.makefile("rb") as lines:
            try:
                connection.sendall(requests.encode(request))
                return self._reply(lines.readline()).result
            except OSError as error:
                raise self._unavailable(error) from error

    def _reply(self, line: bytes) -> Reply:
        if not line:
            raise self._unavailable("it closed the connection")
        reply = requests.decode_reply(line)
        requests.raise_refusal(reply)
        return reply

    def _connect(self, timeout: float | None) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout)
        try:
            connection.connect(str(socket_path(self.directory)))
        except OSError as error:
            connection.close()
            raise self._unavailable(error) from error
        return connection

    def _unavailable(self, why: object) -> ServiceUnavailableError:
        said = getattr(why, "strerror", None) or why
        return ServiceUnavailableError(
            f"no koala service answers in {self.directory}: {said}", hint="start one with `koala serve`"
        )

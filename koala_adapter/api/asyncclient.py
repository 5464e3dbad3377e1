# SPDX-License-Identifier: Apache-2.0
"""A client of the service for programs with an event loop (anyio).

It uses no threads, because a program that is shutting down cannot start any.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from koala_adapter.api import protocol
from koala_adapter.api.client import TIMEOUT, patience_with, unavailable
from koala_adapter.api.protocol import Reply, Request, from_json
from koala_adapter.api.statedirectory import socket_path
from koala_adapter.host.unixstream import Received
from koala_adapter.report.values import JobReport

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from anyio.abc import SocketStream

    from koala_adapter.model import Job


class AsyncClient:
    """Asynchronous client of a state directory's service; each call is a connection of its own.

    Each call raises ServiceUnavailableError when no service answers.
    """

    def __init__(self, directory: Path) -> None:
        """``directory``: the state directory of the service."""
        self.directory = directory

    async def submit(self, job: Job, submission: str) -> str:
        """Submit a job once and return its id (the one in ``job`` is not used). Raises JobRefusedError.

        ``submission``: its name, see :func:`koala_adapter.api.client.new_submission`; a job of the same name is not
        taken twice.
        """
        return str((await self._ask(protocol.submission(job, submission), patience_with(job)))["job_id"])

    async def cancel(self, job_id: str) -> JobReport:
        """Cancel a job; returns at once with its report. Raises JobNotFoundError."""
        return from_json(JobReport, await self._ask(protocol.Request(operation="cancel", job_id=job_id)))

    async def resize(self, job_id: str, processors: int, component: str = "") -> JobReport:
        """As :meth:`koala_adapter.api.client.Client.resize`. Raises JobNotFoundError and JobRefusedError."""
        request = protocol.Request(operation="resize", job_id=job_id, component=component, processors=processors)
        return from_json(JobReport, await self._ask(request))

    async def job(self, job_id: str) -> JobReport:
        """Return the report of a job. Raises JobNotFoundError."""
        return from_json(JobReport, await self._ask(protocol.Request(operation="job", job_id=job_id)))

    async def watch(self, job_id: str) -> AsyncGenerator[JobReport, None]:
        """Yield the report of a job now and after each change, until it is over. Raises JobNotFoundError."""
        async with aclosing(self._replies(protocol.Request(operation="watch", job_id=job_id))) as results:
            async for result in results:
                yield from_json(JobReport, result)

    async def watch_jobs(self, limit: int = 50) -> AsyncGenerator[list[JobReport], None]:
        """Yield the latest jobs in order of submission now and after each change, until the service ends."""
        async with aclosing(self._replies(protocol.Request(operation="watch", limit=limit))) as results:
            async for result in results:
                yield [from_json(JobReport, one) for one in result]

    async def _replies(self, request: Request) -> AsyncGenerator[Any, None]:
        """Yield the replies to a watch."""
        async with await self._connected() as stream:
            await self._send(stream, request)
            lines, last = BufferedByteReceiveStream(Received(stream)), False
            while not last:
                reply = await self._reply(lines)
                last = reply.last
                yield reply.result

    async def _ask(self, request: Request, patience: float = TIMEOUT) -> Any:  # noqa: ANN401 - JSON of many shapes
        try:
            with anyio.fail_after(patience):
                async with await self._connected() as stream:
                    await self._send(stream, request)
                    return (await self._reply(BufferedByteReceiveStream(Received(stream)))).result
        except TimeoutError as error:
            raise unavailable(self.directory, "timed out") from error

    async def _connected(self) -> SocketStream:
        try:
            return await anyio.connect_unix(socket_path(self.directory))
        except OSError as error:
            raise unavailable(self.directory, error) from error

    async def _send(self, stream: SocketStream, request: Request) -> None:
        try:
            await stream.send(protocol.encode(request))
        except anyio.BrokenResourceError as error:
            raise unavailable(self.directory, "it closed the connection") from error

    async def _reply(self, lines: BufferedByteReceiveStream) -> Reply:
        try:
            line = await lines.receive_until(b"\n", protocol.LINE_LIMIT)
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError) as error:
            raise unavailable(self.directory, "it closed the connection") from error
        except anyio.DelimiterNotFound as error:
            raise unavailable(self.directory, "its answer is too long") from error
        reply = protocol.decode_reply(line)
        protocol.raise_refusal(reply)
        return reply

# SPDX-License-Identifier: Apache-2.0
"""Talking to the service from an asyncio event loop, without threads: they cannot be had when a program is ending."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from koala_adapter.api import protocol
from koala_adapter.api.client import TIMEOUT, unavailable
from koala_adapter.api.jsonvalues import from_json
from koala_adapter.api.reports import JobReport
from koala_adapter.api.statedirectory import socket_path

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

    from koala_adapter.api.protocol import Reply, Request
    from koala_adapter.model import Job


class AsyncClient:
    """Asks the service of a state directory; each call is a connection of its own.

    Each call raises ServiceUnavailableError when no service answers.
    """

    def __init__(self, directory: Path) -> None:
        """``directory``: the state directory of the service."""
        self.directory = directory

    async def submit(self, job: Job) -> str:
        """Submit a job and return its id (the one in ``job`` is not used). Raises JobRefusedError."""
        result = await self._ask(protocol.Request(operation="submit", job=asdict(job)))
        return str(result["job_id"])

    async def cancel(self, job_id: str) -> JobReport:
        """Cancel a job; returns at once with its report. Raises JobNotFoundError."""
        return from_json(JobReport, await self._ask(protocol.Request(operation="cancel", job_id=job_id)))

    async def resize(self, job_id: str, processors: int, component: str = "") -> JobReport:
        """As :meth:`koala_adapter.api.client.Client.resize`. Raises JobNotFoundError and JobRefusedError."""
        request = protocol.Request(operation="resize", job_id=job_id, component=component, processors=processors)
        return from_json(JobReport, await self._ask(request))

    async def watch(self, job_id: str) -> AsyncGenerator[JobReport, None]:
        """Yield the report of a job now and after each change, until it is over. Raises JobNotFoundError."""
        async with self._connected() as (reader, writer):
            await self._send(writer, protocol.Request(operation="watch", job_id=job_id))
            last = False
            while not last:
                reply = await self._reply(reader)
                last = reply.last
                yield from_json(JobReport, reply.result)

    async def _ask(self, request: Request) -> Any:  # noqa: ANN401 - JSON of many shapes
        try:
            async with asyncio.timeout(TIMEOUT), self._connected() as (reader, writer):
                await self._send(writer, request)
                return (await self._reply(reader)).result
        except TimeoutError as error:
            raise unavailable(self.directory, "timed out") from error

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        path = str(socket_path(self.directory))
        try:
            reader, writer = await asyncio.open_unix_connection(path, limit=protocol.LINE_LIMIT)
        except OSError as error:
            raise unavailable(self.directory, error) from error
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _send(self, writer: asyncio.StreamWriter, request: Request) -> None:
        try:
            writer.write(protocol.encode(request))
            await writer.drain()
        except OSError as error:
            raise unavailable(self.directory, error) from error

    async def _reply(self, reader: asyncio.StreamReader) -> Reply:
        try:
            line = await reader.readline()
        except (OSError, ValueError) as error:  # ValueError: longer than the limit
            raise unavailable(self.directory, error) from error
        if not line:
            raise unavailable(self.directory, "it closed the connection")
        reply = protocol.decode_reply(line)
        protocol.raise_refusal(reply)
        return reply

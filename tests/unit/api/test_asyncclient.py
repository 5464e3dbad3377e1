# SPDX-License-Identifier: Apache-2.0
"""The client for event loops: what a service answers arrives, refusals are raised, and what is wrong is told."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from koala_adapter.api import protocol
from koala_adapter.api.asyncclient import AsyncClient
from koala_adapter.api.statedirectory import SOCKET_NAME
from koala_adapter.errors import JobNotFoundError, ProtocolError, ServiceUnavailableError
from koala_adapter.outcome import JobState
from tests.unit.api.jobreports import job_report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


def report(state: JobState) -> dict[str, object]:
    """Return the report of a job as it is on the wire."""
    found = job_report(id="7", name="dask", kind="malleable", state=state)
    text: dict[str, object] = json.loads(found.to_json())
    return text


@asynccontextmanager
async def service(directory: Path, *lines: bytes) -> AsyncIterator[list[protocol.Request]]:
    """Have a service that answers each connection with these lines, and then closes it; yields what it was asked."""
    asked: list[protocol.Request] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(protocol.decode_request(await reader.readline()))
        writer.writelines(lines)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_unix_server(answer, directory / SOCKET_NAME)
    async with server:
        yield asked


def reply(result: object, *, last: bool = True) -> bytes:
    """Return the line of a reply."""
    return protocol.encode(protocol.Reply(result=result, last=last))


async def test_a_request_arrives_and_its_answer_comes_back(tmp_path: Path) -> None:
    """Everything that was asked is on one line, and the report is that of the service."""
    async with service(tmp_path, reply(report(JobState.RUNNING))) as asked:
        found = await AsyncClient(tmp_path).resize("7", 3, "worker")
    assert (found.id, found.state) == ("7", JobState.RUNNING)
    assert asked == [protocol.Request(operation="resize", job_id="7", component="worker", processors=3)]


async def test_a_watch_yields_every_report_to_the_last(tmp_path: Path) -> None:
    """It ends with the report that says so."""
    states = [JobState.WAITING, JobState.RUNNING, JobState.COMPLETED]
    lines = [reply(report(state), last=state is states[-1]) for state in states]
    async with service(tmp_path, *lines):
        assert [one.state async for one in AsyncClient(tmp_path).watch("7")] == states


async def test_a_watch_that_is_cut_off_says_so(tmp_path: Path) -> None:
    """What came before counts; the service may be asked again."""
    async with service(tmp_path, reply(report(JobState.RUNNING), last=False)):
        watched = AsyncClient(tmp_path).watch("7")
        assert (await anext(watched)).state is JobState.RUNNING
        with pytest.raises(ServiceUnavailableError, match="closed the connection"):
            await anext(watched)


async def test_a_refusal_is_raised_as_what_it_is(tmp_path: Path) -> None:
    """With the words of the service and its way out."""
    refused = protocol.encode(protocol.refusal(JobNotFoundError("there is no job 7", hint="`koala status`")))
    async with service(tmp_path, refused):
        with pytest.raises(JobNotFoundError, match=r"there is no job 7 \(`koala status`\)"):
            await AsyncClient(tmp_path).cancel("7")


@pytest.mark.parametrize("line", [b"no answer\n", b'{"result": 1, "more": 2}\n', b"\n"])
async def test_garbage_is_refused(tmp_path: Path, line: bytes) -> None:
    """It is an error of the protocol, not one of reading."""
    async with service(tmp_path, line):
        with pytest.raises(ProtocolError):
            await AsyncClient(tmp_path).cancel("7")


async def test_no_service_is_said_to_be_none(tmp_path: Path) -> None:
    """The error says where none answers, and how to have one."""
    with pytest.raises(ServiceUnavailableError, match=r"koala serve"):
        await AsyncClient(tmp_path).cancel("7")

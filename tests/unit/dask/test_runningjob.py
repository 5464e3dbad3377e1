# SPDX-License-Identifier: Apache-2.0
"""The workers' job as it is followed: nothing of it is left once it is over, whatever the service does then."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import pytest
from distributed.core import Status

from koala_adapter.api import protocol
from koala_adapter.api.statedirectory import SOCKET_NAME
from koala_adapter.dask.cluster import WorkersJob
from koala_adapter.outcome import JobState
from koala_adapter.python.site import Site
from tests.unit.api.test_asyncclient import report
from tests.unit.scheduler.scheduler_site import job

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from koala_adapter.model import Job

pytestmark = pytest.mark.anyio

LIVENESS = 60.0
OUTCOME = {"state": "completed", "reason": "exited", "exit_code": 0, "detail": "", "warnings": []}


@pytest.fixture
def anyio_backend() -> str:
    """Use asyncio, as Dask does."""
    return "asyncio"


class Owner:
    """Whose job it is; hears what is said of it."""

    def __init__(self) -> None:
        """Nothing has been said."""
        self.over: list[str] = []

    @contextmanager
    def described(self, scheduler: str, size: int) -> Iterator[Job]:
        """See runningjob.Owner."""
        del scheduler
        yield job("0", size)

    def say(self, text: str, *, trouble: bool = False) -> None:
        """See runningjob.Owner."""

    def job_over(self, text: str, *, bad: bool) -> None:
        """See runningjob.Owner."""
        del bad
        self.over.append(text)


@asynccontextmanager
async def service(directory: Path) -> AsyncIterator[asyncio.Event]:
    """Have a service whose job ends at once, while something of it is still left in a batch system.

    Yields what is set when nobody watches it any more.
    """
    left = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = protocol.decode_request(await reader.readline())
        if request.operation == "submit":
            writer.write(protocol.encode(protocol.Reply(result={"job_id": "7"})))
        elif request.operation == "watch":
            ended = {**report(JobState.COMPLETED), "outcome": OUTCOME, "placeholders_left": 1}
            writer.write(protocol.encode(protocol.Reply(result=ended, last=False)))
            await reader.read()  # until the connection is closed
            left.set()
        else:
            writer.write(protocol.encode(protocol.Reply(result={**report(JobState.RUNNING), "pid": 1})))
        writer.close()

    server = await asyncio.start_unix_server(answer, str(directory / SOCKET_NAME))
    async with server:
        yield left


async def test_a_job_that_has_ended_is_watched_no_more(tmp_path: Path) -> None:
    """Dask drops it then, and whatever still waited for news of it would be destroyed with its connection open."""
    owner = Owner()
    one = WorkersJob("tls://127.0.0.1:1", name="job", owner=owner, site=Site(tmp_path / "site", state=tmp_path), size=1)
    async with service(tmp_path) as left:
        await one.start()
        await asyncio.wait_for(left.wait(), LIVENESS)
        assert one.over
        assert one.status is Status.closed
        assert len(owner.over) == 1
        await one.close()

# SPDX-License-Identifier: Apache-2.0
"""A batch system that lists its jobs more slowly than a scheduler waits: it is served all the same."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.lrm.starts import OriginalRequest, Pin, StartLog
from koala_adapter.model import LrmJobId
from koala_adapter.wiki.server import serve
from tests.sqlite_watch import closed_later
from tests.unit.wiki.wiki_source import NOW, Server, SlowSource, job

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

LONG = 1e9
"""Seconds that no test lasts."""
LITTLE = 0.05
"""Seconds for which a request waits for a listing that does not come."""


def slow_server(path: Path, *, oldest: float = LONG, reply_within: float = LONG) -> Server:
    """Return a server whose source has one job that waits, and is silent until it is told to answer."""
    source = SlowSource()
    source.add(job("5", 2))
    server = Server(path, source, cache=LONG, reply_within=reply_within, oldest=oldest, port=0)
    server.resource.readings.patience = LITTLE
    return server


def source_of(server: Server) -> SlowSource:
    """Return the source of a slow server."""
    assert isinstance(server.source, SlowSource)
    return server.source


async def has_answered(server: Server) -> None:
    """Have the source answer, and return when the reading under way is over."""
    source_of(server).answers.set()
    with anyio.fail_after(60):
        await server.resource.readings.fresh()


async def test_the_first_listing_comes_although_nobody_waits_for_it_long_enough(tmp_path: Path) -> None:
    """Polls are refused meanwhile, and share that one listing."""
    async with slow_server(tmp_path).running() as server:
        for _ in range(3):
            refused = await server.ask("GETJOBS ARG=0:ALL")
            assert (refused.status, refused.text) == (-700, "alpha did not answer in time")
        await has_answered(server)
        assert await server.states() == {"5": "Idle"}
        assert server.source.reads == 1


async def test_polls_and_starts_go_by_the_last_listing_while_the_next_is_slow(tmp_path: Path) -> None:
    """One listing is asked for meanwhile; when it comes it counts."""
    async with slow_server(tmp_path).running() as server:
        await has_answered(server)
        source_of(server).answer_later()
        server.resource.readings.invalidate()
        for _ in range(3):
            assert await server.states() == {"5": "Idle"}
        started = await server.ask("STARTJOB ARG=5 TASKLIST=n1:n1")
        assert (started.status, server.source.calls) == (0, [("start", "5 n1:n1")])
        assert await server.states() == {"5": "Starting"}
        assert server.source.reads == 2
        server.source.add(job("6", 2))
        source_of(server).answers.set()
        await server.resource.readings.fresh(now=True)
        assert await server.states() == {"5": "Running", "6": "Idle"}


async def test_a_source_is_waited_for_once_while_it_is_slow(tmp_path: Path) -> None:
    """What is asked afterwards is answered at once, as long as the same listing is awaited."""
    async with slow_server(tmp_path).running() as server:
        await has_answered(server)
        source_of(server).answer_later()
        server.resource.readings.invalidate()
        assert await server.states() == {"5": "Idle"}
        server.resource.readings.patience = LONG
        with anyio.fail_after(60):
            assert await server.states() == {"5": "Idle"}


async def test_what_is_too_old_is_not_told(tmp_path: Path) -> None:
    """The bound is that of the options."""
    async with slow_server(tmp_path, oldest=0.0).running() as server:
        await has_answered(server)
        source_of(server).answer_later()
        server.resource.readings.invalidate()
        refused = await server.ask("GETNODES ARG=0:ALL")
        assert (refused.status, refused.text) == (-700, "alpha did not answer in time")


async def test_a_promise_is_kept_until_a_listing_that_could_show_it(tmp_path: Path) -> None:
    """One that was begun before the start, and comes when the promise has run out, says nothing of it."""
    async with slow_server(tmp_path).running() as server:
        await has_answered(server)
        source_of(server).answer_later()
        server.resource.readings.invalidate()
        assert await server.states() == {"5": "Idle"}
        assert (await server.ask("STARTJOB ARG=5 TASKLIST=n1:n1")).status == 0
        server.now += 1000.0
        reads = server.source.reads
        under_way = server.resource.readings.under_way
        assert under_way is not None
        source_of(server).answers.set()
        await under_way.over.wait()
        assert server.source.reads == reads
        assert server.resource.inventory.jobs["5"].job.state == "starting"


async def test_interrupted_starts_are_set_right_when_it_answers(tmp_path: Path) -> None:
    """The server takes requests before that."""
    starts = closed_later(StartLog(tmp_path / "starts.sqlite"))
    wishes = OriginalRequest(processors=2)
    starts.note(Pin(job_id=LrmJobId("5"), submitted_at=NOW - 60, nodes=(("n1", 2),), wishes=wishes, at=NOW - 1))
    starts.close()
    server = slow_server(tmp_path, reply_within=LITTLE)
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(60):
            assert await tasks.start(partial(serve, server.resource)) > 0
        assert server.source.calls == []
        source_of(server).answers.set()
        with anyio.fail_after(60):
            while "5" not in server.resource.inventory.pinned:  # noqa: ASYNC110 - it is not announced
                await anyio.sleep(0.01)
        assert server.source.calls == [("take back", "5")]
        tasks.cancel_scope.cancel()

# SPDX-License-Identifier: Apache-2.0
"""A WIKI server's account of what is free while several starts are under way, and of what Maui has room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from structlog.testing import capture_logs

from koala_adapter.model import EndReason, LrmJobState
from tests.unit.wiki.wiki_source import NOW, Server, job, running

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.anyio
async def test_a_start_is_not_counted_twice(tmp_path: Path) -> None:
    """Starts that together fill a node all succeed, however much the server reads while they are under way."""
    server = Server(tmp_path, reply_within=60.0, start_within=600.0)
    server.source.add(*(job(str(number), 2) for number in range(1, 5)))
    server.source.slow = 0.02
    statuses: list[int] = []

    async def start(id_: int) -> None:
        await anyio.sleep(0.015 * id_)
        statuses.append((await server.ask(f"STARTJOB ARG={id_} TASKLIST=n3:n3")).status)

    async with server.running(), anyio.create_task_group() as tasks:
        for number in range(1, 5):
            tasks.start_soon(start, number)
    assert statuses == [0, 0, 0, 0]
    assert (await server.ask("STARTJOB ARG=1 TASKLIST=n3")).status < 0


@pytest.mark.anyio
async def test_more_jobs_than_maui_has_room_for(tmp_path: Path) -> None:
    """What has ended and what runs is reported, then the oldest that wait; that others are left out is logged once."""
    server = Server(tmp_path)
    waiting = [job(str(number), submitted_at=NOW - number) for number in range(1, 5001)]
    server.source.add(*waiting, *(running(f"r{number}", {"n1": 1}) for number in range(3)))
    with capture_logs() as logs:
        found = await server.records("GETJOBS ARG=0:ALL")
        assert len(found) == 4000
        del server.source.job_list["r0"]
        server.source.add(job("new", submitted_at=NOW))
        server.now += 5
        found = await server.records("GETJOBS ARG=0:ALL")
    assert list(found)[:3] == ["r0", "r1", "r2"]
    assert found["r0"].startswith("STATE=Completed")
    assert list(found)[3:] == [str(number) for number in range(5000, 5000 - 3998, -1)]
    assert [one["left_out"] for one in logs if "room" in one["event"]] == [1003]


@pytest.mark.anyio
async def test_jobs_are_listed_oldest_first(tmp_path: Path) -> None:
    """Maui starts jobs of equal priority in the order of the listing, so it is not that of the batch system."""
    server = Server(tmp_path)
    server.source.add(*(job(id_, submitted_at=NOW - 60) for id_ in ("12", "11", "9")), job("13", submitted_at=NOW - 90))
    assert list(await server.states()) == ["13", "9", "11", "12"]
    server.source.add(job("13", submitted_at=NOW - 90, comment="changed"))
    server.now += 5
    assert list(await server.states()) == ["13", "9", "11", "12"]


@pytest.mark.anyio
async def test_what_a_batch_system_tells_of_waiting_jobs_only_is_kept(tmp_path: Path) -> None:
    """Grid Engine gives the start of a job that runs as its submission: it was queued before, and has its account."""
    server = Server(tmp_path)
    server.source.add(job("5", submitted_at=NOW - 90, account="bio", group="staff"))
    await server.states()
    server.source.add(running("5", {"n1": 1}, submitted_at=NOW + 30, started_at=NOW + 20))
    server.source.add(running("6", {"n1": 1}, submitted_at=None, started_at=NOW - 20))
    server.now += 60
    found = await server.records("GETJOBS ARG=0:ALL")
    assert f"QUEUETIME={int(NOW) - 90};STARTTIME={int(NOW) + 20};" in found["5"]
    assert {"ACCOUNT=bio", "GNAME=staff"} <= set(found["5"].split(";"))
    assert f"QUEUETIME={int(NOW) - 20};STARTTIME={int(NOW) - 20};" in found["6"]


@pytest.mark.anyio
async def test_maui_shows_why_a_job_is_in_hold(tmp_path: Path) -> None:
    """EXEC, which checkjob prints: the reason of a job in hold, else the job's name, so that no reason stays."""
    server = Server(tmp_path)
    server.source.add(job("5", dependent=True))
    assert "EXEC=it waits for other jobs;" in (await server.records("GETJOBS ARG=0:5"))["5"]
    server.source.add(job("5", name="a job; of mine"))
    server.now += 5
    assert "EXEC=a_job__of_mine;" in (await server.records("GETJOBS ARG=0:5"))["5"]
    ended = job("7", state=LrmJobState.ENDED, end=EndReason.EXITED, exit_code=0, started_at=NOW, ends_at=NOW)
    server.source.add(ended)
    server.now += 5
    assert "EXEC=job;" in (await server.records("GETJOBS ARG=0:7"))["7"]

# SPDX-License-Identifier: Apache-2.0
"""A WIKI server's account of what is free while several starts are under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from tests.unit.wiki.wiki_source import Server, job

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.anyio
async def test_a_start_is_not_counted_twice(tmp_path: Path) -> None:
    """Starts that together fill a node all succeed, however much the server reads while they are under way."""
    server = Server(tmp_path, reply_within=5.0, start_within=60.0)
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

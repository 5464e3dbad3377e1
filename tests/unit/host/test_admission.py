# SPDX-License-Identifier: Apache-2.0
"""The door of the control center: a bound on strangers that keeps nobody out for long."""

from __future__ import annotations

import anyio
import pytest

from koala_adapter.host.accepting import Admission

pytestmark = pytest.mark.anyio


async def stand(admission: Admission, log: list[str], name: str) -> None:
    """Come in and say nothing."""
    with admission.applicant() as scope:
        log.append(f"{name} in")
        await anyio.sleep_forever()
    log.append(f"{name} {'thrown out' if scope.cancelled_caught else 'left'}")


async def test_silent_peers_are_thrown_out_when_their_time_is_up() -> None:
    """Nobody stands in the door for ever."""
    admission = Admission(limit=2, time_limit=0.05, patience=0.01)
    log: list[str] = []
    with anyio.fail_after(60):
        await stand(admission, log, "a")
    assert log == ["a in", "a thrown out"]


async def test_the_oldest_makes_room_when_the_door_is_full() -> None:
    """A newcomer waits for the patience at most, and the one that stood longest goes, long before its time is up."""
    admission = Admission(limit=2, time_limit=1000, patience=0.05)
    log: list[str] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for name in ("a", "b"):
                await admission.room()
                tasks.start_soon(stand, admission, log, name)
                await anyio.wait_all_tasks_blocked()
            await admission.room()
            await anyio.wait_all_tasks_blocked()
            assert log == ["a in", "b in", "a thrown out"]
            tasks.cancel_scope.cancel()


async def test_there_is_room_as_soon_as_somebody_leaves() -> None:
    """Whoever proves itself makes room at once."""
    admission = Admission(limit=1, time_limit=1000, patience=1000)
    proved = anyio.Event()

    async def prove() -> None:
        with admission.applicant():
            await proved.wait()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(prove)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(admission.room)
            await anyio.wait_all_tasks_blocked()
            proved.set()

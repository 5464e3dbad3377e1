# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S101 - these are tests
"""Conformance while the LRM is out of reach: the right error, soon, and everything as before afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.errors import LrmError, LrmUnavailableError
from koala_adapter.model import LrmJobState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from koala_adapter.plugin import CheckResult
    from koala_adapter.testing.trial import LrmUnderTest, Trial


class FailureTests:
    """Tests that stop the LRM and start it again; skipped when the LRM under test offers no way to."""

    @pytest.fixture
    async def stop(self, under_test: LrmUnderTest) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Give the function that stops the LRM; whatever happens in the test, the LRM is started again."""
        stop_lrm, start_lrm = under_test.stop_lrm, under_test.start_lrm
        if stop_lrm is None or start_lrm is None:
            pytest.skip("the LRM under test cannot be stopped and started")
        stopped = False

        async def stop() -> None:
            nonlocal stopped
            stopped = True
            await stop_lrm()

        yield stop
        if stopped:
            await start_lrm()

    async def test_unavailable(self, trial: Trial, stop: Callable[[], Awaitable[None]]) -> None:
        """Without the LRM each operation soon raises LrmUnavailableError, and returns no empty list; ``check`` tells.

        All are asked at the same time, as each may have to wait for a time-out of its own.
        """
        lrm, batch = trial.lrm, trial.prepare()
        operations: dict[str, Callable[[], Awaitable[object]]] = {
            "nodes": lrm.nodes,
            "jobs": lrm.jobs,
            "queues": lrm.queues,
            "submit": lambda: lrm.submit(batch.submission),
            "cancel": lambda: lrm.cancel([trial.under_test.unknown_id]),
        }
        if not lrm.capabilities.submit:
            del operations["submit"]
        complaints: list[CheckResult] = []
        wrong: dict[str, str] = {}

        async def ask(name: str) -> None:
            try:
                wrong[name] = f"returned {await operations[name]()!r}"
            except LrmUnavailableError:
                pass
            except LrmError as error:
                wrong[name] = f"raised {error!r}"

        async def check() -> None:
            complaints.extend(result for result in await lrm.check() if not result.ok)

        await stop()
        with anyio.fail_after(trial.under_test.unavailable_within):
            async with anyio.create_task_group() as group:
                for name in operations:
                    group.start_soon(ask, name)
                group.start_soon(check)
        assert wrong == {}
        assert complaints
        assert all(result.remedy for result in complaints)

    async def test_jobs_survive_unavailability(self, live_trial: Trial, stop: Callable[[], Awaitable[None]]) -> None:
        """A job that runs while the LRM is away runs on, and is found by its name when the LRM is back."""
        batch = await live_trial.submit(count=2)
        await live_trial.wait_running(batch)
        await stop()
        start = live_trial.under_test.start_lrm
        assert start is not None
        await start()
        await live_trial.wait_states(batch, LrmJobState.RUNNING, LrmJobState.RUNNING)
        assert [batch.starts(index) for index in (1, 2)] == [1, 1]
        batch.go()
        await live_trial.wait_ended(batch)

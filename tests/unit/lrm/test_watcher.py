# SPDX-License-Identifier: Apache-2.0
"""Looking at a batch system: one look for all who wait, none older than a change, restraint while it fails."""

from __future__ import annotations

import anyio
import pytest

from koala_adapter.errors import LrmError, LrmUnavailableError
from koala_adapter.lrm.listing import Watcher, read_listing
from koala_adapter.lrm.rate import CircuitBreaker
from tests.unit.service.scripted_lrm import ScriptedLrm

pytestmark = pytest.mark.anyio

LONG = 600.0
"""Seconds that no test lasts."""


class Watched:
    """A batch system that answers, or not, and who looks at it."""

    def __init__(self, *, failures: int = 2) -> None:
        """It answers at once."""
        self.asked = 0
        self.error: LrmError | None = None
        self.slow = 0.0
        self.told: list[LrmError | None] = []
        breaker = CircuitBreaker(failures=failures, pause=LONG, longest_pause=LONG)
        self.watcher = Watcher(self._read, breaker=breaker, on_trouble=self.told.append)

    async def _read(self) -> int:
        self.asked += 1
        await anyio.sleep(self.slow)
        if self.error is not None:
            raise self.error
        return self.asked

    async def fails(self, *, now: bool = False) -> str:
        """Return why a fresh look fails."""
        with pytest.raises(LrmError) as caught:
            await self.watcher.fresh(within=0.0, now=now)
        return caught.value.message


async def test_all_who_wait_share_one_look() -> None:
    """However many ask while it answers slowly; a look that was begun in time serves also those who ask later."""
    watched = Watched()
    watched.slow = 0.05
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(lambda: watched.watcher.fresh(within=LONG))
    await watched.watcher.fresh(within=LONG)
    assert (watched.asked, watched.watcher.looks) == (1, 1)


async def test_those_who_ask_during_a_look_for_what_is_now_share_the_next() -> None:
    """The look that is under way was begun too early for them."""
    watched = Watched()
    watched.slow = 0.1
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watched.watcher.look)
        await anyio.sleep(0.02)
        for _ in range(5):
            tasks.start_soon(lambda: watched.watcher.fresh(within=LONG, now=True))
    assert watched.asked == 2


async def test_a_look_begun_before_a_change_does_not_do() -> None:
    """Whatever its age."""
    watched = Watched()
    await watched.watcher.fresh(within=LONG)
    watched.watcher.invalidate()
    await watched.watcher.fresh(within=LONG)
    await watched.watcher.fresh(within=LONG)
    assert watched.asked == 2


async def test_one_that_fails_again_and_again_is_left_alone() -> None:
    """The reason is still told, and it is told to the owner once; who must know now may ask all the same."""
    watched = Watched()
    watched.error = LrmUnavailableError("slurmctld does not answer")
    reasons = [await watched.fails() for _ in range(5)]
    assert set(reasons) == {"slurmctld does not answer"}
    assert (watched.asked, watched.watcher.resting) == (2, True)
    assert await watched.fails(now=True) == "slurmctld does not answer"
    assert watched.told == [watched.error]
    watched.error = None
    await watched.watcher.fresh(within=0.0, now=True)
    assert (watched.watcher.resting, watched.watcher.failure, watched.told[-1]) == (False, None, None)


async def test_a_look_that_failed_serves_nobody() -> None:
    """Who asks next asks anew."""
    watched = Watched()
    await watched.watcher.fresh(within=LONG)
    watched.watcher.invalidate()
    watched.error = LrmUnavailableError("not now")
    await watched.fails()
    watched.error = None
    await watched.watcher.fresh(within=LONG)
    assert watched.asked == 3


async def test_a_defect_of_a_plugin_is_no_answer() -> None:
    """It is taken for a batch system that is out of reach."""
    lrm = ScriptedLrm()
    lrm.errors["nodes"] = ValueError("a defect")
    with pytest.raises(LrmUnavailableError, match="its plugin failed: ValueError"):
        await read_listing(lrm, cluster="a", read_at=1.0)


async def test_a_look_outlives_who_asked_for_it() -> None:
    """Nobody waits long enough, and it is made once, and serves who asks later; a defect hits only who waits for it."""
    answers, asked = anyio.Event(), 0

    async def read() -> int:
        nonlocal asked
        asked += 1
        await answers.wait()
        if asked == 2:
            raise ValueError("a defect")
        return asked

    watcher = Watcher(read, breaker=CircuitBreaker(), on_trouble=lambda _: None)
    async with anyio.create_task_group() as tasks:
        await tasks.start(watcher.run)
        for _ in range(3):
            with anyio.move_on_after(0.02) as scope:
                await watcher.fresh(within=LONG)
            assert scope.cancelled_caught
        under_way = watcher.under_way
        assert under_way is not None
        answers.set()
        await under_way.over.wait()
        await watcher.fresh(within=LONG)
        assert (asked, watcher.looks, watcher.begun_at) == (1, 1, under_way.begun)
        with pytest.raises(ValueError, match="a defect"):
            await watcher.fresh(within=0.0, now=True)
        await watcher.fresh(within=0.0, now=True)
        assert (asked, watcher.looks) == (3, 2)
        tasks.cancel_scope.cancel()


async def test_a_look_that_is_given_up_is_begun_anew_by_the_next_who_waits() -> None:
    """Without anybody who makes looks outlive their askers."""
    watched = Watched()
    watched.slow = LONG
    with anyio.move_on_after(0.02):
        await watched.watcher.fresh(within=LONG)
    watched.slow = 0.0
    await watched.watcher.fresh(within=LONG)
    assert (watched.asked, watched.watcher.looks) == (2, 1)

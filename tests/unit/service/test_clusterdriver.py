# SPDX-License-Identifier: Apache-2.0
"""The driver of one cluster: every answer of its LRM, and every failure to answer, becomes the right event."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.errors import LrmError, LrmRejectedError, LrmUnavailableError, LrmUnreachableError
from koala_adapter.lrm import Capabilities, Submission
from koala_adapter.lrm.commands import CommandRunner
from koala_adapter.model import BatchKey, EndReason, HoldOwner, LrmJob, LrmJobId, LrmJobState
from koala_adapter.scheduler import events as ev
from koala_adapter.service.agents import leave_token
from koala_adapter.service.clusters import ClusterDriver
from koala_adapter.service.opening import token_path
from tests.unit.scheduler.scheduler_site import A, Site, component, job
from tests.unit.service.scripted_lrm import ScriptedLrm, config
from tests.unit.service.standincore import StandInCore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from koala_adapter.scheduler.events import Event

pytestmark = pytest.mark.anyio

KEY = BatchKey("koala-k-1")
SUBMISSION = Submission(key=KEY, count=2, script="#!/bin/sh\n", walltime=60)


class Driven:
    """A cluster driver whose events a scheduler hears."""

    def __init__(self, *, others_matter: bool = False, **settings: float | str) -> None:
        self.lrm = ScriptedLrm()
        self.site = Site({"a": 4})
        self.site.submit(job("1", component("x", 2, cluster="a")))
        self.core = StandInCore(self.site)
        self.core.shrinks_for_others = others_matter
        self.heard = self.core.posted
        self.driver = ClusterDriver(self.core, config(**settings), self.lrm, CommandRunner())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.driver.run)
            yield
            tasks.cancel_scope.cancel()

    async def until(self, met: Callable[[], bool]) -> None:
        with anyio.fail_after(60):
            while not met():  # noqa: ASYNC110 - it is not announced
                await anyio.sleep(0.01)

    async def heard_of(self, kind: type[Event]) -> Event:
        await self.until(lambda: kind in map(type, self.heard))
        return next(event for event in self.heard if type(event) is kind)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (None, ev.BatchSubmitted),
        (LrmRejectedError("no such account"), ev.BatchRejected),
        (LrmError("something else"), ev.BatchRejected),
        (LrmUnreachableError("connection refused"), ev.BatchAbsent),
        (LrmUnavailableError("no answer"), ev.BatchUncertain),
        (RuntimeError("a defect"), ev.BatchUncertain),
    ],
    ids=["taken", "rejected", "other", "unreachable", "no answer", "defect"],
)
async def test_what_a_submission_comes_to(error: Exception | None, kind: type[Event]) -> None:
    driven = Driven()
    driven.lrm.errors["submit"] = error
    driven.driver.submit(SUBMISSION)
    async with driven.running():
        event = await driven.heard_of(kind)
    if isinstance(event, ev.BatchSubmitted):
        assert event.lrm_ids == ("koala-k-1:1", "koala-k-1:2")
    assert driven.driver.judge.under_way == frozenset()


async def test_submissions_that_all_fail() -> None:
    """The cluster is paused for them, and does not count as out of reach."""
    driven = Driven()
    driven.lrm.errors["submit"] = LrmUnreachableError("the library is wrong")
    driven.lrm.obstacle = "the library is wrong"
    for _ in range(3):
        driven.driver.submit(SUBMISSION)
    async with driven.running():
        event = await driven.heard_of(ev.BatchAbsent)
        await driven.until(lambda: [type(event) for event in driven.heard].count(ev.BatchAbsent) == 3)
        assert isinstance(event, ev.BatchAbsent)
        assert event.pauses
        assert not driven.driver.poller.breaker.open
        await driven.driver.look_for_obstacle()
        assert driven.lrm.obstacle == ""


async def test_what_is_shown_while_events_wait_is_looked_at_anew() -> None:
    """It would be judged by a state that is behind; and nobody waits for the next poll because of that."""
    driven = Driven(poll_interval=600)
    driven.core.is_holding = True
    async with driven.running():
        await driven.until(lambda: driven.driver.poller.latest is not None)
        assert driven.heard == []
        driven.core.is_holding = False
        driven.driver.look_again()
        await driven.heard_of(ev.ClusterPolled)


async def test_nothing_is_sent_to_a_cluster_that_is_out_of_reach() -> None:
    driven = Driven()
    for _ in range(3):
        driven.driver.poller.breaker.failed(anyio.current_time() + 60)
    driven.driver.submit(SUBMISSION)
    async with driven.running():
        await driven.heard_of(ev.BatchAbsent)
    assert driven.lrm.order == []


async def test_a_cancellation_that_was_not_heard_is_repeated() -> None:
    driven = Driven()
    driven.site.take_all()
    driven.site.cancel("1")
    ids = [LrmJobId("koala-k-1:1"), LrmJobId("koala-k-1:2")]
    driven.lrm.all_jobs = tuple(
        LrmJob(id=id_, name=KEY, state=LrmJobState.QUEUED, user="alice", processors=1, array_index=number)
        for number, id_ in enumerate(ids, start=1)
    )
    driven.lrm.errors = dict.fromkeys(("cancel", "jobs"), LrmUnavailableError("gone"))
    driven.driver.cancel([*ids, LrmJobId("koala-k-0:1")])
    async with driven.running():
        await driven.until(lambda: "cancel" in driven.lrm.order)
        driven.lrm.errors = {}
        await driven.until(lambda: bool(driven.lrm.cancelled))
        polls = driven.lrm.polls
        await driven.until(lambda: driven.lrm.polls >= polls + 2)
    assert driven.lrm.cancelled == ids


@pytest.mark.parametrize("accounted", ["mallory", "alice", ""])
async def test_accounting_of_a_stranger_says_nothing_of_ours(accounted: str) -> None:
    """Ids are used again after years: the end of another user's job of our id is not how ours ended."""
    driven = Driven()
    driven.site.take_all()
    driven.site.hold_all("1")
    driven.site.now += 1
    driven.lrm.capabilities = Capabilities(accounting=True)
    driven.lrm.ended = tuple(
        LrmJob(
            id=LrmJobId(f"{KEY}:{index}"), name=KEY, state=LrmJobState.ENDED, user=user, processors=1,
            array_index=index, end=end,
        )
        for user, end in ((accounted, EndReason.MEMORY), ("mallory", EndReason.WALLTIME))
        for index in (1, 2)
    )  # fmt: skip
    async with driven.running():
        await driven.heard_of(ev.PlaceholderEnded)
    (first, *_) = [event for event in driven.heard if isinstance(event, ev.PlaceholderEnded)]
    assert first.reason is (EndReason.LOST if accounted == "mallory" else EndReason.MEMORY)


async def test_suspensions_are_told_once() -> None:
    driven = Driven()
    key = next(iter(driven.site.state.batches))
    driven.site.take_all()
    driven.site.hold_all("1")
    ours = [p.lrm_id or LrmJobId("") for p in driven.site.claimed("1")]

    def listing(state: LrmJobState) -> tuple[LrmJob, ...]:
        return tuple(
            LrmJob(id=id_, name=key, state=state, user="alice", processors=1, array_index=n)
            for n, id_ in enumerate(ours, start=1)
        )

    driven.lrm.all_jobs = listing(LrmJobState.RUNNING)
    async with driven.running():
        for state in (LrmJobState.SUSPENDED, LrmJobState.RUNNING):
            driven.lrm.all_jobs = listing(state)
            polls = driven.lrm.polls
            await driven.until(lambda seen=polls: driven.lrm.polls >= seen + 3)  # type: ignore[misc]
    assert [len(one.placeholders) for one in driven.heard if isinstance(one, ev.SuspensionsSeen)] == [len(ours), 0]


@pytest.mark.parametrize("told", [True, False])
async def test_holds_are_told_once(*, told: bool) -> None:
    driven = Driven()
    driven.lrm.capabilities = Capabilities(tells_holders=told)
    key = next(iter(driven.site.state.batches))
    driven.site.take_all()
    ours = [p.lrm_id for p in driven.site.claimed("1")]

    def listing(state: LrmJobState) -> tuple[LrmJob, ...]:
        held = HoldOwner.OPERATOR if state is LrmJobState.HELD else None
        jobs = [
            LrmJob(id=id_ or LrmJobId(""), name=key, state=state, user="alice", processors=1, array_index=n, hold=held)
            for n, id_ in enumerate(ours, start=1)
        ]
        return (*jobs, replace(jobs[0], id=LrmJobId("stranger"), array_index=9))

    driven.lrm.all_jobs = listing(LrmJobState.HELD)
    async with driven.running():
        event = await driven.heard_of(ev.HoldsSeen)
        polls = driven.lrm.polls
        await driven.until(lambda: driven.lrm.polls >= polls + 2)
        driven.lrm.all_jobs = listing(LrmJobState.QUEUED)
        await driven.until(lambda: sum(isinstance(one, ev.HoldsSeen) for one in driven.heard) > 1)
    assert isinstance(event, ev.HoldsSeen)
    assert [hold.holder for hold in event.holds] == [HoldOwner.OPERATOR if told else None] * 2
    assert [len(one.holds) for one in driven.heard if isinstance(one, ev.HoldsSeen)] == [2, 0]


@pytest.mark.parametrize("capable", [True, False])
async def test_others_that_wait_are_told_of_when_it_matters(*, capable: bool) -> None:
    """Only then are the jobs of all users listed, and only where the plugin can."""
    driven = Driven(others_matter=True)
    driven.lrm.capabilities = Capabilities(tells_holders=False, tells_own_holders=True, lists_others=capable)
    waiting = LrmJob(id=LrmJobId("7"), name="local", state=LrmJobState.QUEUED, user="bob", processors=3)
    driven.lrm.all_jobs = (waiting,)
    async with driven.running():
        first = await driven.heard_of(ev.ClusterPolled)
        if capable:  # told of when it waits at the next look, too, which is not put off
            await driven.until(lambda: len(driven.heard) > 1)
    told = [one.others_waiting for one in driven.heard if isinstance(one, ev.ClusterPolled)]
    assert driven.heard[0] is first
    assert told == ([(), (3,)] if capable else [()])
    assert driven.lrm.prefixes == {"" if capable else "koala-k-"}


async def test_holders_stay_known_while_all_jobs_are_listed() -> None:
    """Grid Engine tells whose holds they are for our own jobs alone."""
    driven = Driven()
    driven.lrm.capabilities = Capabilities(tells_holders=False, tells_own_holders=True)
    key = next(iter(driven.site.state.batches))
    driven.site.take_all()
    driven.lrm.all_jobs = tuple(
        LrmJob(
            id=p.lrm_id or LrmJobId(""), name=key, state=LrmJobState.HELD, user="alice", processors=1, array_index=n,
            hold=HoldOwner.OPERATOR,
        )
        for n, p in enumerate(driven.site.claimed("1"), start=1)
    )  # fmt: skip
    async with driven.running():
        await driven.heard_of(ev.HoldsSeen)
        driven.core.shrinks_for_others = True
        await driven.until(lambda: "" in driven.lrm.prefixes)
        polls = driven.lrm.polls
        await driven.until(lambda: driven.lrm.polls >= polls + 2)
    assert {p.holder for p in driven.site.claimed("1")} == {HoldOwner.OPERATOR}


async def test_a_cluster_that_cannot_be_started_is_told_of_and_tried_again() -> None:
    driven = Driven()
    driven.lrm.errors["start"] = OSError("a defect")
    async with driven.running():
        await driven.heard_of(ev.ClusterUnavailable)
        assert "a defect" in (driven.site.state.clusters[A].unavailable or "")
        driven.lrm.errors = {}
        await driven.until(lambda: driven.site.state.clusters[A].unavailable is None)
    assert driven.driver.version == "scripted 1"


async def test_secrets_of_a_submission_are_dropped_when_it_is_over(tmp_path: Path) -> None:
    """The file with its token, and what the plugin keeps; a plugin that fails at it harms nobody."""
    driven = Driven(token_directory=str(tmp_path))
    path = token_path(driven.driver.config, KEY)
    assert path is not None
    leave_token(path, "secret")
    driven.lrm.errors["forget"] = ValueError("a defect")
    driven.driver.forget(KEY)
    driven.driver.forget(KEY)
    assert driven.lrm.forgotten == [KEY, KEY]
    assert not await anyio.Path(path).exists()
    async with driven.running():
        await driven.until(lambda: driven.lrm.polls > 0)

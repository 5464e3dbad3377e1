# SPDX-License-Identifier: Apache-2.0
"""One cluster of a service: its driver, the poller, what a look tells of others, and the bound on requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from pathlib import Path

import anyio
import pytest

from koala_adapter.config.sitefile import ClusterConfig, load_site
from koala_adapter.errors import LrmError, LrmRejectedError, LrmUnavailableError, LrmUnreachableError
from koala_adapter.lrm import Capabilities, Submission, load_plugins
from koala_adapter.lrm.commands import CommandRunner
from koala_adapter.model import BatchKey, EndReason, HoldOwner, LrmJob, LrmJobId, LrmJobState, Node, NodeState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.events import Event
from koala_adapter.service.agents import leave_token
from koala_adapter.service.clusters import READING_SERVES, ClusterDriver, ClusterReading, Poller
from koala_adapter.service.listings import RESTLESS_FOR, Judgement, ListingJudge, new_holds
from koala_adapter.service.opening import make_lrm, request_window, token_path
from tests.unit.scheduler.scheduler_site import A, Site, component, job
from tests.unit.service.scripted_lrm import ScriptedLrm, config, node
from tests.unit.service.standins import StandInCore

KEY = BatchKey("koala-k-1")
SUBMISSION = Submission(key=KEY, count=2, script="#!/bin/sh\n", walltime=60)


class Driven:
    """A cluster driver whose events a scheduler hears."""

    def __init__(self, **settings: float | str) -> None:
        self.lrm = ScriptedLrm()
        self.site = Site({"a": 4})
        self.site.submit(job("1", component("x", 2, cluster="a")))
        self.core = StandInCore(self.site)
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

    def hold(self) -> None:
        """Have the placeholders of the job held for a second."""
        self.site.take_all()
        self.site.hold_all("1")
        self.site.now += 1

    def lists(self, state: LrmJobState, **more: object) -> None:
        """Have the batch system list the placeholders of the job."""
        self.lrm.all_jobs = tuple(
            LrmJob(
                id=one.lrm_id or LrmJobId(""), name=one.id.batch, state=state, user="alice", processors=1,
                array_index=number, **more,  # type: ignore[arg-type] # fields of several types
            )
            for number, one in enumerate(self.site.claimed("1"), start=1)
        )  # fmt: skip

    async def polls(self, count: int) -> None:
        """Wait for so many further polls."""
        seen = self.lrm.polls
        await self.until(lambda: self.lrm.polls >= seen + count)

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
    assert driven.driver.judge.under_way == set()


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
    driven.lists(LrmJobState.QUEUED)
    ids = [job.id for job in driven.lrm.all_jobs]
    driven.site.cancel("1")
    driven.lrm.errors = dict.fromkeys(("cancel", "jobs"), LrmUnavailableError("gone"))
    driven.driver.cancel([*ids, LrmJobId("koala-k-0:1")])
    async with driven.running():
        await driven.until(lambda: "cancel" in driven.lrm.order)
        driven.lrm.errors = {}
        await driven.until(lambda: bool(driven.lrm.cancelled))
        await driven.polls(2)
    assert driven.lrm.cancelled == ids


async def test_ends_alone_are_looked_for_in_jobs_alone() -> None:
    """When all jobs are over, nodes are not listed before all ends are seen, and then once."""
    driven = Driven()
    driven.hold()
    driven.lists(LrmJobState.RUNNING)
    async with driven.running():
        await driven.polls(2)
        driven.site.cancel("1")
        await driven.polls(1)
        del driven.lrm.order[:]
        await driven.polls(3)
        assert set(driven.lrm.order) == {"jobs"}
        driven.lrm.all_jobs = ()
        await driven.heard_of(ev.PlaceholderEnded)
        await driven.until(lambda: "nodes" in driven.lrm.order)


async def test_nodes_are_listed_again_when_an_end_does_not_come() -> None:
    """A placeholder that its batch system cannot end does not keep the cluster from being counted."""
    driven = Driven()
    driven.hold()
    driven.lists(LrmJobState.RUNNING)
    async with driven.running():
        await driven.polls(2)
        driven.site.cancel("1")
        driven.site.now += RESTLESS_FOR + 1
        await driven.polls(1)
        del driven.lrm.order[:]
        await driven.polls(2)
    assert "nodes" in driven.lrm.order


@pytest.mark.parametrize(
    ("accounted", "error"), [("mallory", None), ("alice", None), ("", None), ("alice", LrmUnavailableError("away"))]
)
async def test_accounting_of_a_stranger_says_nothing_of_ours(accounted: str, error: Exception | None) -> None:
    """Ids are used again after years: the end of another user's job of our id is not how ours ended.

    Nor does anything wait for accounting that does not answer.
    """
    driven = Driven()
    driven.lrm.errors["history"] = error
    driven.hold()
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
    assert first.reason is (EndReason.LOST if accounted == "mallory" or error else EndReason.MEMORY)


async def test_suspensions_are_told_once() -> None:
    driven = Driven()
    driven.site.take_all()
    driven.site.hold_all("1")
    driven.lists(LrmJobState.RUNNING)
    async with driven.running():
        for state in (LrmJobState.SUSPENDED, LrmJobState.RUNNING):
            driven.lists(state)
            await driven.polls(3)
    assert [len(one.placeholders) for one in driven.heard if isinstance(one, ev.SuspensionsSeen)] == [2, 0]


@pytest.mark.parametrize("told", [True, False])
async def test_holds_are_told_once(*, told: bool) -> None:
    driven = Driven()
    driven.lrm.capabilities = Capabilities(tells_holders=told)
    driven.site.take_all()
    driven.lists(LrmJobState.HELD, hold=HoldOwner.OPERATOR)
    driven.lrm.all_jobs += (replace(driven.lrm.all_jobs[0], id=LrmJobId("stranger"), array_index=9),)
    async with driven.running():
        event = await driven.heard_of(ev.HoldsSeen)
        await driven.polls(2)
        driven.lists(LrmJobState.QUEUED)
        await driven.until(lambda: sum(isinstance(one, ev.HoldsSeen) for one in driven.heard) > 1)
    assert isinstance(event, ev.HoldsSeen)
    assert [hold.holder for hold in event.holds] == [HoldOwner.OPERATOR if told else None] * 2
    assert [len(one.holds) for one in driven.heard if isinstance(one, ev.HoldsSeen)] == [2, 0]


def test_placeholders_wait_for_their_reservation() -> None:
    """Whatever a batch system calls that."""
    site = Site({"a": 4})
    site.submit(job("1", component("x", 1, cluster="a")))
    site.take_all()
    (one,) = site.claimed("1")
    site.state.batches[one.id.batch].reserved_until = site.now + 60
    listed = LrmJob(
        id=one.lrm_id or LrmJobId(""), name=one.id.batch, state=LrmJobState.QUEUED, user="alice", processors=1,
        blocked=True, reason="Reservation",
    )  # fmt: skip
    told = new_holds(site.state, one.cluster, [listed], now=site.now, told=True)
    assert told is not None
    assert [(hold.reason, hold.in_hold) for hold in told.holds] == [("for their reservation", False)]


async def test_holders_stay_known_while_all_jobs_are_listed() -> None:
    """Grid Engine tells whose holds they are for our own jobs alone."""
    driven = Driven()
    driven.lrm.capabilities = Capabilities(tells_holders=False, tells_own_holders=True)
    driven.site.take_all()
    driven.lists(LrmJobState.HELD, hold=HoldOwner.OPERATOR)
    async with driven.running():
        await driven.heard_of(ev.HoldsSeen)
        driven.core.others_matter = True
        await driven.until(lambda: "" in driven.lrm.prefixes)
        await driven.polls(2)
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


# The poller: one reading for all who ask, never more often than allowed, and an LRM in trouble is left alone.


class Polled:
    """A poller and what it told its owner."""

    def __init__(
        self,
        *,
        restless: bool = False,
        settings: ClusterConfig | None = None,
        others_matter: bool = False,
        growth_waits: bool = False,
    ) -> None:
        self.lrm = ScriptedLrm()
        self.readings: list[ClusterReading] = []
        self.failures: list[str] = []
        self._restless = restless
        core = StandInCore(Site({}))
        core.others_matter, core.grows = others_matter, growth_waits
        self.poller = Poller(core, settings or config(), self.lrm, self, CommandRunner())  # type: ignore[arg-type]

    def examine(self, reading: ClusterReading) -> bool:
        self.readings.append(reading)
        return self._restless

    def unavailable(self, reason: str) -> None:
        self.failures.append(reason)

    async def run_until(self, polls: int) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.poller.run)
            with anyio.fail_after(60):
                while self.lrm.polls < polls:  # noqa: ASYNC110 - the number is not announced
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()


async def test_a_reading_counts_what_is_there() -> None:
    polled = Polled()
    polled.lrm.all_nodes = (node("n1", used=1), node("n2", state=NodeState.DOWN))
    ours = LrmJob(id=LrmJobId("1"), name="koala-k-1", state=LrmJobState.RUNNING, user="alice", processors=1)
    foreign = LrmJob(id=LrmJobId("2"), name="other", state=LrmJobState.RUNNING, user="bob", processors=3)
    namesake = replace(ours, id=LrmJobId("3"), user="bob")
    polled.lrm.all_jobs = (ours, foreign, namesake)
    await polled.run_until(2)
    reading = polled.readings[0]
    assert (reading.processors, reading.idle, reading.ours, reading.read_at) == (8, 3, 1, 1000.0)
    assert polled.lrm.order[:2] == ["jobs", "nodes"]


@pytest.mark.parametrize(("matters", "capable"), [(True, True), (True, False), (False, True)])
async def test_others_that_wait_are_counted_when_it_matters(*, matters: bool, capable: bool) -> None:
    """Only then are the jobs of all users listed, and only where the plugin can."""
    polled, counted = Polled(settings=config(queue="short"), others_matter=matters), matters and capable
    polled.lrm.capabilities = Capabilities(lists_others=capable)
    polled.lrm.all_nodes = (node("n1", queues=("short",)), node("n2", queues=("long",)))
    ours = LrmJob(id=LrmJobId("1"), name="koala-k-1", state=LrmJobState.QUEUED, user="alice", processors=1)
    own = replace(ours, id=LrmJobId("2"), name="by-hand", processors=2, queue="short")
    namesake = replace(ours, id=LrmJobId("3"), user="bob", processors=3)
    elsewhere = replace(ours, id=LrmJobId("4"), name="x", queue="long", processors=4)
    polled.lrm.all_jobs = (ours, own, namesake, elsewhere)
    await polled.run_until(2)
    reading = polled.readings[0]
    assert reading.others_waiting == ((2, 3) if counted else ())
    assert reading.of_all_users == counted
    assert reading.jobs == (ours,)
    assert polled.lrm.prefixes == {"" if counted else "koala-k-"}


async def test_only_nodes_of_the_queue_count() -> None:
    """A queue that no node serves is an error that names the setting, not a cluster without processors."""
    polled = Polled(settings=config(queue="short"))
    polled.lrm.all_nodes = (node("n1", queues=("short", "long")), node("n2", queues=("long",)), node("n3"))
    await polled.run_until(2)
    assert polled.readings[0].processors == 8, "a node that tells no queues may serve it"
    polled = Polled(settings=config(queue="none"))
    polled.lrm.all_nodes = (node("n1", queues=("short",)),)
    await polled.run_until(2)
    assert (polled.readings, "'none'" in polled.failures[0]) == ([], True)


@pytest.mark.parametrize("error", [LrmUnavailableError("gone"), KeyError("a defect")])
async def test_a_failing_lrm_is_left_alone(error: Exception) -> None:
    """After three failures in a row the pauses grow; a defect of the plugin is a failure like others."""
    polled = Polled(settings=config(poll_interval=60))
    polled.lrm.errors["jobs"] = error
    await polled.run_until(3)
    assert polled.poller.breaker.open
    asked = polled.lrm.polls
    assert not await polled.poller._poll()
    assert polled.lrm.polls == asked, "not asked again before its pause is over"
    assert ("a defect" in polled.failures[0]) == isinstance(error, KeyError)


async def test_an_answer_ends_the_trouble() -> None:
    polled = Polled()
    polled.lrm.errors["nodes"] = LrmUnavailableError("gone")
    await polled.poller._poll()
    assert (polled.poller.failure, polled.poller.latest) == ("gone", None)
    polled.lrm.errors = {}
    await polled.poller._poll()
    assert (polled.poller.failure, polled.poller.latest) == (None, polled.readings[0])


async def test_a_restless_cluster_is_polled_again_at_once() -> None:
    """A job that ends soon after a poll does not wait for the pause of a cluster that is polled for hours."""
    polled = Polled(restless=True, settings=config(poll_interval=60, requests_per_minute=60))
    await polled.run_until(3)


async def test_processors_that_are_waited_for_are_looked_for() -> None:
    """A running job that would grow does not wait for the end of a long pause; a cluster in trouble is left alone."""
    settings = config(poll_interval=60, requests_per_minute=60)
    await Polled(growth_waits=True, settings=settings).run_until(3)
    failing = Polled(growth_waits=True, settings=settings)
    failing.lrm.errors["jobs"] = LrmUnavailableError("gone")
    for _ in range(2):
        assert await failing.poller._poll()
    assert not await failing.poller._poll()


async def test_a_wish_shortens_the_pause() -> None:
    """Between two polls of a long interval, one that is wished for comes at once when the bounds allow it."""
    polled = Polled(settings=config(poll_interval=3600))
    polled.poller.poll_soon()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(polled.poller.run)
        with anyio.fail_after(60):
            while polled.lrm.polls < 3:
                polled.poller.poll_soon()
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()


async def test_a_new_job_needs_no_second_look() -> None:
    """It is placed by a look that has just been made; a look is repeated when that has become too old."""
    site = Site({"a": 4})
    site.submit(job("1", component("x", 2, cluster="a")))
    poller = Polled(settings=config(poll_interval=3600)).poller
    poller._core = StandInCore(site)
    poller.refresh()
    assert poller._next_due == -inf
    await poller._poll()
    poller._due_if_waiting = inf
    poller.refresh()
    assert READING_SERVES - 1 < poller._next_due - anyio.current_time() <= READING_SERVES
    poller._core = StandInCore(Site({}))
    assert poller._next_due == inf


async def test_a_job_that_comes_during_a_look_needs_no_second_one() -> None:
    site = Site({"a": 4})
    site.submit(job("1", component("x", 2, cluster="a")))
    polled = Polled(settings=config(poll_interval=3600))
    polled.poller._core = StandInCore(site)
    asked = polled.lrm.nodes

    async def nodes() -> tuple[Node, ...]:
        polled.poller.refresh()
        return await asked()

    polled.lrm.nodes = nodes  # type: ignore[method-assign]
    await polled.poller._poll()
    assert READING_SERVES - 1 < polled.poller._next_due - anyio.current_time() <= READING_SERVES


# What a judge of listings tells of others: only jobs that wait, and processors that they have, at two looks.


class Looks:
    """A judge of the cluster ``a``, and what it told at its latest look."""

    def __init__(self) -> None:
        self.site = Site({"a": 8})
        self.judge = ListingJudge(A, user="me", begun_at=0.0)

    def look(self, *waiting: int, idle: int = 0, ours: int = 0) -> Judgement:
        self.site.now += 1.0
        now, running = self.site.now, LrmJobState.RUNNING
        polled = ev.ClusterPolled(time=now, cluster=A, processors=8, idle=idle, ours=ours, others_waiting=waiting)
        one = LrmJob(id=LrmJobId("1"), name="koala-k-9", state=running, user="", processors=1)
        return self.judge.judge(self.site.state, polled, [one] * ours, read_at=now, in_contact=lambda _: False)


def told(judgement: Judgement) -> list[tuple[int, ...]]:
    return [one.others_waiting for one in judgement.events if isinstance(one, ev.ClusterPolled)]


def counted(judgement: Judgement) -> list[tuple[int, int]]:
    return [(one.idle, one.ours) for one in judgement.events if isinstance(one, ev.ClusterPolled)]


def test_who_waits_is_told_of_at_the_second_look() -> None:
    """The first one may have listed them just before they were started; so the next one is not put off."""
    looks = Looks()
    first = looks.look(3, 1)
    assert (told(first), first.restless) == ([()], True)
    second = looks.look(3, 1)
    assert (told(second), second.restless) == ([(3, 1)], False)


def test_who_is_started_meanwhile_is_never_told_of() -> None:
    """What waits still, and comes later, keeps the order of its queue."""
    looks = Looks()
    looks.look(1, 1, 1)
    assert told(looks.look(1, 2)) == [(1,)]
    assert told(looks.look(2, 1)) == [(2, 1)]


def test_placeholders_that_start_during_a_look_do_not_seem_to_be_of_others() -> None:
    """As long as ours wait, others have further processors when they have them at two looks."""
    looks = Looks()
    looks.site.submit(job("1", 2))
    looks.look(idle=2, ours=4)
    assert counted(looks.look(idle=0, ours=4)) == [(0, 6)]
    assert counted(looks.look(idle=0, ours=4)) == [(0, 4)]
    assert counted(looks.look(idle=0, ours=6)) == [(0, 6)]


def test_what_others_have_is_told_at_once_where_none_of_ours_waits() -> None:
    """Then nothing of ours can have been started during the look."""
    looks = Looks()
    looks.look(idle=4, ours=4)
    assert counted(looks.look(idle=2, ours=4)) == [(2, 4)]


def test_a_look_after_ours_have_left_is_told_in_any_case() -> None:
    """Also where it shows the same: by it the scheduler decides what the former left open."""
    looks = Looks()
    assert len(told(looks.look(ours=4))) == 1
    assert len(told(looks.look(ours=4))) == 0
    assert len(told(looks.look(ours=2))) == 1
    assert len(told(looks.look(ours=2))) == 1
    assert len(told(looks.look(ours=2))) == 0


# Which requests are counted together: those of one user to one batch system, whatever the state directory.

SITE = """
[[clusters]]
name = "alpha"
plugin = "slurm"
settings = { conf = "/etc/slurm/alpha.conf" }

[[clusters]]
name = "again"
plugin = "slurm"
settings = { conf = "/etc/slurm/alpha.conf", account = "physics" }

[[clusters]]
name = "beta"
plugin = "slurm"
settings = { conf = "/etc/slurm/beta.conf" }

[[clusters]]
name = "here"
plugin = "local"
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture
def clusters(tmp_path: Path) -> dict[str, ClusterConfig]:
    (tmp_path / "site.toml").write_text(SITE)
    return {cluster.name: cluster for cluster in load_site(tmp_path / "site.toml", load_plugins()).clusters}


def window(config: ClusterConfig, directory: Path) -> Path:
    return request_window(config, load_plugins()[config.plugin], directory)


def test_one_batch_system_has_one_window(clusters: dict[str, ClusterConfig], tmp_path: Path, home: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    alpha = window(clusters["alpha"], one)
    assert alpha.is_relative_to(home / ".local/state/koala/requests")
    assert alpha == window(clusters["alpha"], two) == window(clusters["again"], one)
    assert alpha != window(clusters["beta"], one)
    own = window(clusters["here"], one)  # a batch system that is in the state directory
    assert own.is_relative_to(one)
    assert own != window(clusters["here"], two)


def test_without_a_usable_home_the_state_directory_serves(
    clusters: dict[str, ClusterConfig], tmp_path: Path, home: Path
) -> None:
    """Then the processes of one state directory are counted together."""
    (home / ".local").write_text("no directory")
    assert window(clusters["alpha"], tmp_path / "one").parent == tmp_path / "one" / "requests"


def test_those_who_ask_the_same_system_are_counted_together(clusters: dict[str, ClusterConfig], tmp_path: Path) -> None:
    plugins, config = load_plugins(), clusters["alpha"].model_copy(update={"requests_per_minute": 10})
    (_, service), (_, scheduler) = (make_lrm(config, plugins, tmp_path / name) for name in ("one", "two"))
    assert [service.window.take() for _ in range(8)] == [0.0] * 8
    assert scheduler.window.take() > 50

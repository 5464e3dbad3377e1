# SPDX-License-Identifier: Apache-2.0
"""The poller: one reading for all who ask, never more often than allowed, and an LRM in trouble is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.errors import LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm.listing import answering
from koala_adapter.model import LrmJob, LrmJobId, LrmJobState, NodeState
from koala_adapter.service.clusters import ClusterReading, Poller
from tests.unit.scheduler.scheduler_site import Site
from tests.unit.service.scripted_lrm import ScriptedLrm, config, node
from tests.unit.service.standincore import StandInCore

if TYPE_CHECKING:
    from koala_adapter.config.sitefile import ClusterConfig

pytestmark = pytest.mark.anyio


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
        core.shrinks_for_others, core.grows = others_matter, growth_waits
        self.poller = Poller(core, settings or config(), self.lrm, self)

    def examine(self, reading: ClusterReading) -> bool:
        self.readings.append(reading)
        return self._restless

    def unavailable(self, reason: str) -> None:
        self.failures.append(reason)

    async def run_until(self, polls: int, *, seconds: float = 20.0) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.poller.run)
            with anyio.fail_after(seconds):
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


async def test_others_that_wait_are_counted_when_it_matters() -> None:
    for matters in (True, False):
        polled = Polled(settings=config(queue="short"), others_matter=matters)
        polled.lrm.all_nodes = (node("n1", queues=("short",)), node("n2", queues=("long",)))
        ours = LrmJob(id=LrmJobId("1"), name="koala-k-1", state=LrmJobState.QUEUED, user="alice", processors=1)
        own = replace(ours, id=LrmJobId("2"), name="by-hand", processors=2, queue="short")
        namesake = replace(ours, id=LrmJobId("3"), user="bob", processors=3)
        elsewhere = replace(ours, id=LrmJobId("4"), name="x", queue="long", processors=4)
        polled.lrm.all_jobs = (ours, own, namesake, elsewhere)
        await polled.run_until(2)
        reading = polled.readings[0]
        assert reading.others_waiting == ((2, 3) if matters else ())
        assert reading.of_all_users == matters
        assert reading.jobs == (ours,)
        assert polled.lrm.prefixes == {"" if matters else "koala-k-"}


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
    polled = Polled()
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
    await polled.run_until(3, seconds=4.0)


async def test_processors_that_are_waited_for_are_looked_for() -> None:
    """A running job that would grow does not wait for the end of a long pause; a cluster in trouble is left alone."""
    settings = config(poll_interval=60, requests_per_minute=60)
    await Polled(growth_waits=True, settings=settings).run_until(3, seconds=4.0)
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


async def test_errors_of_an_lrm_pass_as_they_are() -> None:
    for error in (LrmRejectedError("no"), LrmUnavailableError("later")):
        with pytest.raises(type(error), match=error.message), answering("a"):
            raise error
    with pytest.raises(LrmUnavailableError, match="its plugin failed: ValueError"), answering("a"):
        raise ValueError("defect")

# SPDX-License-Identifier: Apache-2.0
"""The live scheduler around the pure parts: what an LRM answers, or fails to answer, never loses or doubles a job."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from koala_adapter.errors import JobNotFoundError, LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm import PinnedStart
from koala_adapter.lrm.startlog import OriginalRequest, Pin, StartLog
from koala_adapter.lrm.starts import Patience, Starter, Starts
from koala_adapter.model import HoldOwner, LrmJob, LrmJobId, LrmJobState, Node, NodeState, Queue
from koala_adapter.ordering.asking import explain, overview
from koala_adapter.ordering.jobs import JobEvent, JobEventKind, Rules
from koala_adapter.ordering.mirror import Mirror
from koala_adapter.ordering.passes import MisfitRules
from koala_adapter.ordering.scheduler import OutsideScheduler, Pace, PacedWatcher, give_back
from koala_adapter.queueing.backfill import make_cluster_scheduler
from tests.sqlite_watch import closed_later
from tests.unit.ordering.ordering_site import Listed
from tests.unit.service.scripted_lrm import ScriptedLrm


class StartingLrm(ScriptedLrm):
    """One node of eight processors, whose held jobs start when they are told to, unless a test says otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.all_nodes = (Node(name="n1", state=NodeState.UP, processors=8, processors_used=0),)
        self.started: list[tuple[str, tuple[str, ...]]] = []
        self.held: list[LrmJobId] = []
        self.confirmed: list[LrmJobId] = []
        self.sent_back: list[LrmJobId] = []
        self.undone: list[PinnedStart] = []
        self.becomes = LrmJobState.RUNNING
        self.layout: tuple[tuple[str, int], ...] = ()
        """Where a job runs, when that is told."""
        self.takes_first = False
        """A start that fails is taken all the same."""
        self.refuses = ""
        """The job whose start is refused."""

    def add(self, job_id: str, processors: int = 8) -> None:
        job = LrmJob(
            id=LrmJobId(job_id),
            name=job_id,
            state=LrmJobState.HELD,
            hold=HoldOwner.OPERATOR,
            user="u",
            processors=processors,
            walltime=60,
        )
        self.all_jobs = (*self.all_jobs, job)

    def change(self, job_id: str, state: LrmJobState) -> None:
        self.all_jobs = tuple(replace(job, state=state) if job.id == job_id else job for job in self.all_jobs)

    async def queues(self) -> tuple[Queue, ...]:
        self._answer("queues")
        return ()

    async def start_on(self, start: PinnedStart) -> None:
        job = start.job
        if job == self.refuses:
            raise LrmRejectedError("access denied")
        self.started.append((job, start.nodes))
        if self.takes_first or self.errors.get("start_on") is None:
            self.change(job, self.becomes)
            self.all_jobs = tuple(replace(one, layout=self.layout) if one.id == job else one for one in self.all_jobs)
        self._answer("start_on")

    async def confirm_start(self, start: PinnedStart) -> None:
        self._answer("confirm_start")
        self.confirmed.append(start.job)

    async def requeue(self, ids: Sequence[LrmJobId]) -> None:
        self._answer("requeue")
        self.sent_back += ids
        for job_id in ids:
            self.all_jobs = tuple(
                replace(job, state=LrmJobState.HELD, layout=(), requeues=1) if job.id == job_id else job
                for job in self.all_jobs
            )

    async def undo_start(self, start: PinnedStart) -> None:
        self.undone.append(start)
        await super().undo_start(start)

    async def release(self, ids: Sequence[LrmJobId]) -> None:
        if self.refuses in ids:
            raise LrmRejectedError("access denied")
        for job_id in ids:
            self.change(job_id, LrmJobState.QUEUED)

    async def hold(self, ids: Sequence[LrmJobId]) -> None:
        self._answer("hold")
        self.held += ids
        for job_id in ids:
            self.change(job_id, LrmJobState.HELD)


class Driven:
    """A driver of such an LRM."""

    def __init__(self, directory: Path, lrm: StartingLrm | None = None) -> None:
        self.lrm = lrm or StartingLrm()
        self.happened: list[JobEvent] = []
        self.troubles: list[str] = []
        self.record = closed_later(StartLog(directory / "starts.sqlite"))
        patience = Patience(start=0.3, backoff=0.05, refused=0.1, longest=1.0)
        starts = Starts(patience, pins=self.record.pins)
        self.mirror = Mirror(lambda: make_cluster_scheduler("easy", 0), Rules(), starts)
        watcher = PacedWatcher(self.lrm, Pace(interval=0.05, shortest=0.01), on_trouble=self.troubles.append)
        misfit_rules = MisfitRules(overtaking=True, guards=1)
        starter = Starter(self.lrm, starts, self.record, clock=watcher.clock.now)
        self.driver = OutsideScheduler(
            watcher, self.mirror, misfit_rules, starter, self.record, tell=self.happened.extend
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.driver.run)
            yield
            tasks.cancel_scope.cancel()

    async def until(self, met: Callable[[], bool]) -> None:
        with anyio.fail_after(60):
            while not met():  # noqa: ASYNC110 - it is not announced
                await anyio.sleep(0.01)

    async def looks_again(self) -> None:
        """Wait for passes that follow what is listed now; two listings may have been under way before."""
        seen = self.lrm.order.count("jobs")
        await self.until(lambda: self.lrm.order.count("jobs") >= seen + 4)

    def kinds(self, job_id: str) -> list[JobEventKind]:
        return [one.kind for one in self.happened if one.job_id == job_id]


async def test_jobs_are_started_one_after_the_other(tmp_path: Path) -> None:
    driven = Driven(tmp_path)
    driven.lrm.add("1")
    driven.lrm.add("2", 3)
    async with driven.running():
        await driven.until(lambda: JobEventKind.STARTED in driven.kinds("1"))
        assert all(pin.started for pin in driven.record.pins)
        driven.lrm.change("1", LrmJobState.ENDED)
        await driven.until(lambda: JobEventKind.STARTED in driven.kinds("2"))
    assert driven.lrm.started == [("1", ("n1",) * 8), ("2", ("n1",) * 3)]
    assert driven.kinds("1") == [JobEventKind.SUBMITTED, JobEventKind.START, JobEventKind.STARTED, JobEventKind.ENDED]


async def test_once_returns_when_what_it_started_shows(tmp_path: Path) -> None:
    """One pass, and nothing decided after it."""
    driven = Driven(tmp_path)
    driven.lrm.add("1")
    driven.lrm.add("2")
    with anyio.fail_after(60):
        await driven.driver.run(once=True)
    assert [job for job, _ in driven.lrm.started] == ["1"]
    assert JobEventKind.STARTED in driven.kinds("1")


async def test_a_silent_batch_system_costs_time_only(tmp_path: Path) -> None:
    driven = Driven(tmp_path)
    driven.lrm.add("1")
    driven.lrm.errors["jobs"] = LrmUnavailableError("no answer")
    async with driven.running():
        await driven.until(lambda: driven.lrm.polls >= 3)
        assert driven.troubles == ["no answer"]
        driven.lrm.errors["jobs"] = ValueError("a defect")
        await driven.until(lambda: driven.lrm.polls >= 4)
        driven.lrm.errors["jobs"] = None
        await driven.until(lambda: JobEventKind.STARTED in driven.kinds("1"))
    assert driven.troubles[-1] == ""


@pytest.mark.parametrize("error", [LrmUnavailableError("time-out"), RuntimeError("a defect")])
@pytest.mark.parametrize("taken", [True, False])
async def test_a_start_without_an_answer(tmp_path: Path, error: Exception, taken: bool) -> None:  # noqa: FBT001
    """What the listing shows decides: it runs, or it is tried again; never both."""
    driven = Driven(tmp_path)
    driven.lrm.add("1")
    driven.lrm.errors["start_on"] = error
    driven.lrm.takes_first = taken
    async with driven.running():
        await driven.until(lambda: bool(driven.lrm.started))
        driven.lrm.errors["start_on"] = None
        await driven.until(lambda: JobEventKind.STARTED in driven.kinds("1"))
        await driven.looks_again()
    assert len(driven.lrm.started) == (1 if taken else 2)


async def test_a_refused_start_lets_others_go_first(tmp_path: Path) -> None:
    driven = Driven(tmp_path)
    driven.lrm.add("1")
    driven.lrm.refuses = "1"
    async with driven.running():
        await driven.until(lambda: JobEventKind.NOT_STARTED in driven.kinds("1"))
        driven.lrm.add("2")
        await driven.until(lambda: JobEventKind.STARTED in driven.kinds("2"))
        driven.lrm.refuses = ""
        driven.lrm.change("2", LrmJobState.ENDED)
        await driven.until(lambda: JobEventKind.STARTED in driven.kinds("1"))


async def test_a_start_that_does_not_show_is_held_again(tmp_path: Path) -> None:
    """Also when holding fails at first; then it is tried again."""
    driven = Driven(tmp_path)
    driven.lrm.add("1")
    driven.lrm.becomes = LrmJobState.QUEUED
    driven.lrm.errors["hold"] = LrmUnavailableError("not now")
    async with driven.running():
        await driven.until(lambda: driven.lrm.order.count("hold") >= 2)
        driven.lrm.errors["hold"] = None
        driven.lrm.becomes = LrmJobState.RUNNING
        await driven.until(lambda: JobEventKind.STARTED in driven.kinds("1"))
    assert driven.lrm.held == ["1"]
    assert driven.kinds("1").count(JobEventKind.NOT_STARTED) == 1


async def test_a_start_that_shows_is_confirmed_once(tmp_path: Path) -> None:
    """Also when that is not answered at first; the next process says so again, because it cannot know."""
    driven = Driven(tmp_path)
    driven.lrm.add("1")
    driven.lrm.errors["confirm_start"] = LrmUnavailableError("not now")
    async with driven.running():
        await driven.until(lambda: driven.lrm.order.count("confirm_start") >= 3)
        driven.lrm.errors["confirm_start"] = None
        await driven.until(lambda: bool(driven.lrm.confirmed))
        await driven.looks_again()
    assert driven.lrm.confirmed == ["1"]
    driven.record.close()
    following = Driven(tmp_path, driven.lrm)
    async with following.running():
        await following.until(lambda: driven.lrm.confirmed == ["1", "1"])
    assert [job for job, _ in driven.lrm.started] == ["1"]


async def test_a_job_that_has_run_when_it_shows_is_confirmed(tmp_path: Path) -> None:
    driven = Driven(tmp_path)
    driven.lrm.add("1")
    driven.lrm.becomes = LrmJobState.ENDED
    driven.lrm.all_jobs = tuple(replace(job, started_at=1.0) for job in driven.lrm.all_jobs)
    async with driven.running():
        await driven.until(lambda: JobEventKind.ENDED in driven.kinds("1"))
        await driven.until(lambda: bool(driven.lrm.confirmed))
        await driven.until(lambda: not driven.mirror.starts.attempts)
    assert (driven.lrm.confirmed, driven.lrm.held) == (["1"], [])


async def test_what_a_job_that_is_gone_has_left_keeps_no_look_waiting(tmp_path: Path) -> None:
    """A batch system that is slow to give back a start costs other jobs nothing."""
    driven = Driven(tmp_path)
    slow, never = anyio.Event(), anyio.Event()

    async def undo(start: PinnedStart) -> None:
        slow.set()
        await never.wait()

    driven.lrm.add("1")
    driven.lrm.becomes = LrmJobState.ENDED
    driven.lrm.undo_start = undo  # type: ignore[method-assign] # as slow as it gets
    async with driven.running():
        await driven.until(slow.is_set)
        driven.lrm.becomes = LrmJobState.RUNNING
        driven.lrm.add("2")
        await driven.until(lambda: JobEventKind.STARTED in driven.kinds("2"))
        never.set()


async def test_a_job_that_runs_elsewhere_is_queued_again(tmp_path: Path) -> None:
    """Then it is started anew after a pause, where it should."""
    driven = Driven(tmp_path)
    driven.lrm.all_nodes = (*driven.lrm.all_nodes, replace(driven.lrm.all_nodes[0], name="n2"))
    driven.lrm.add("1", 16)
    driven.lrm.layout = (("n1", 12), ("n2", 4))
    async with driven.running():
        await driven.until(lambda: driven.lrm.sent_back == ["1"])
        driven.lrm.layout = (("n1", 8), ("n2", 8))
        await driven.until(lambda: driven.kinds("1").count(JobEventKind.STARTED) == 2)
        await driven.looks_again()
    assert driven.lrm.sent_back == ["1"]
    kinds = driven.kinds("1")
    afterwards = kinds[kinds.index(JobEventKind.REQUEUED) + 1 :]
    assert [one for one in afterwards if one is not JobEventKind.LEFT_OUT] == [JobEventKind.START, JobEventKind.STARTED]
    assert len(driven.lrm.started) == 2


async def test_stopped_it_holds_again_what_does_not_run(tmp_path: Path) -> None:
    driven = Driven(tmp_path)
    driven.lrm.add("1")
    driven.lrm.becomes = LrmJobState.QUEUED
    async with driven.running():
        await driven.until(lambda: bool(driven.lrm.started))
    assert (driven.lrm.held, driven.lrm.all_jobs[0].state) == (["1"], LrmJobState.HELD)
    driven.record.close()
    driven.lrm.becomes = LrmJobState.RUNNING
    following = Driven(tmp_path, driven.lrm)
    async with following.running():
        await following.until(lambda: JobEventKind.STARTED in following.kinds("1"))


async def test_nothing_is_started_that_is_not_on_record(tmp_path: Path) -> None:
    """While the record cannot be written nothing is asked for, and why is told; then all goes on."""
    driven = Driven(tmp_path)
    driven.lrm.add("1")
    with closing(sqlite3.connect(tmp_path / "starts.sqlite", isolation_level=None)) as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON pins BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        async with driven.running():
            await driven.until(lambda: driven.kinds("1").count(JobEventKind.NOT_STARTED) > 1)
            assert driven.lrm.started == []
            assert any("disk full" in one.detail for one in driven.happened)
            other.execute("DROP TRIGGER full")
            await driven.until(lambda: JobEventKind.STARTED in driven.kinds("1"))


async def test_giving_back_leaves_no_job_in_hold_for_another_that_is_refused() -> None:
    lrm = StartingLrm()
    for job_id in ("1", "2", "3"):
        lrm.add(job_id)
    lrm.refuses = "2"
    done = await give_back(lrm)
    assert (done.released, done.still_held) == (("1", "3"), {"2": "access denied"})


def test_explanations_name_place_reason_and_promise() -> None:
    site = Listed()
    site.submit_all(("1", 24, 100), ("2", 32, 100), ("3", 8, 500))
    site.submit("4", 1, hold=HoldOwner.USER)
    site.submit("5", 1, 50)
    (_, starting) = site.look()
    told = {job_id: explain(site.mirror, job_id) for job_id in site.jobs}
    assert (told["1"].phase, dict(told["1"].nodes)) == ("starting", {"n1": 8, "n2": 8, "n3": 8})
    assert (told["2"].position, told["2"].queued, told["2"].reserved_at) == (1, 2, site.now + 100)
    assert told["2"].promised_at == site.now + 100
    assert (told["3"].position, told["3"].reserved_at) == (2, None)
    assert "its user holds it" in told["4"].reason
    assert not any(one.estimate_assumed for one in told.values())
    assert told["5"].phase == "starting"
    site.run(starting)
    site.look()
    assert explain(site.mirror, "5").phase == "running"
    whole = overview(site.mirror)
    assert (whole.processors, whole.free, whole.waiting, whole.running, whole.starting, whole.left_out) == (
        32, 7, 2, 1, 1, 1,
    )  # fmt: skip
    with pytest.raises(JobNotFoundError):
        explain(site.mirror, "6")


def test_explanations_tell_of_assumed_run_times_and_elements_of_arrays() -> None:
    site = Listed()
    site.submit("1", 1)
    site.change("1", walltime=None)
    site.look()
    found = explain(site.mirror, "1")
    assert (found.estimate, found.estimate_assumed) == (86_400, True)
    site = Listed()
    for number in (1, 2):
        site.submit(f"7_{number}", 1, array_index=number)
    site.look()
    with pytest.raises(JobNotFoundError, match=r"7 .*such as 7_1, 7_2"):
        explain(site.mirror, "7")


async def test_giving_back_unties_what_is_on_record() -> None:
    """Neither a job that no start has tied, nor a later job of the same number, is untied; all are released."""
    lrm = StartingLrm()
    for job_id in ("1", "2", "3"):
        lrm.add(job_id)
    lrm.all_jobs = tuple(replace(job, submitted_at=100.0) for job in lrm.all_jobs)
    tied = Pin(
        job_id=LrmJobId("1"),
        submitted_at=100.0,
        nodes=(("n1", 2),),
        wishes=OriginalRequest(processors=2),
        at=0.0,
        original="as it was",
    )
    refused = replace(tied, job_id=LrmJobId("2"), wishes=None)
    earlier = replace(tied, job_id=LrmJobId("3"), submitted_at=1.0)
    done = await give_back(lrm, pins=[tied, refused, earlier])
    assert lrm.undone == [PinnedStart(job=LrmJobId("1"), nodes=("n1", "n1"), original="as it was")]
    assert (done.released, done.still_held) == (("1", "2", "3"), {})

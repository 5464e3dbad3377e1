# SPDX-License-Identifier: Apache-2.0
"""Starts that koala asks a batch system for: each step is on record, and is settled after a kill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import anyio
import pytest

from koala_adapter.errors import JournalError, LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm import Lrm, PinnedStart
from koala_adapter.lrm import starts as starter
from koala_adapter.lrm.startlog import OriginalRequest, Pin, StartLog
from koala_adapter.lrm.starts import Failure, Patience, Stage, Starter, Starts, placed_elsewhere
from koala_adapter.model import LrmJob, LrmJobId, LrmJobState
from tests.sqlite_watch import closed_later

JOB = LrmJobId("1")
NODES = (("n1", 4), ("n2", 2))
START = PinnedStart(job=JOB, nodes=("n1", "n1", "n1", "n1", "n2", "n2"), original="original 1")
PIN = Pin(job_id=JOB, submitted_at=None, nodes=NODES, wishes=OriginalRequest(processors=6), at=0.0)


class Killed(BaseException):
    """Nothing is done any more."""


@dataclass
class System:
    """A batch system with one job, which outlives the processes that ask it."""

    job: LrmJob | None = field(
        default_factory=lambda: LrmJob(id=JOB, name="j", state=LrmJobState.HELD, user="u", processors=6)
    )
    busy: bool = False
    """A job that is released waits."""
    layout: tuple[tuple[str, int], ...] = NODES
    reserved: bool = False
    """Something is kept for a start."""
    runs: int = 0
    asked: list[str] = field(default_factory=list)
    errors: dict[str, LrmError] = field(default_factory=dict)
    dies: tuple[str, bool] | None = None
    """Who asks is killed by this request, before or after it is carried out."""

    def _enter(self, what: str) -> None:
        if self.dies == (what, False) or "killed" in self.asked:
            self.asked.append("killed")
            raise Killed
        self.asked.append(what)
        if what in self.errors:
            raise self.errors[what]

    def _leave(self, what: str) -> None:
        if self.dies == (what, True):
            self.asked.append("killed")
            raise Killed

    def _known(self) -> LrmJob:
        if self.job is None:
            raise LrmNotFoundError("no such job")
        return self.job

    def let_run(self) -> None:
        """Have the job run."""
        self.job = replace(self._known(), state=LrmJobState.RUNNING, layout=self.layout)
        self.runs += 1

    async def original_request(self, job: LrmJobId) -> str:
        """Return a text that is to come back."""
        self._known()
        return f"original {job}"

    async def start_on(self, start: PinnedStart) -> None:
        """Release the job, which runs at once unless the system is busy."""
        self._enter("start")
        assert (start, self._known().state) == (START, LrmJobState.HELD)
        self.reserved = True
        self.job = replace(self._known(), state=LrmJobState.QUEUED)
        if not self.busy:
            self.let_run()
        await anyio.lowlevel.checkpoint()
        self._leave("start")

    async def confirm_starts(self, starts: Sequence[PinnedStart]) -> Mapping[LrmJobId, LrmError]:
        """Give back what was reserved."""
        self._enter("confirm")
        assert (tuple(starts), self._known().state) == ((START,), LrmJobState.RUNNING)
        self.reserved = False
        self._leave("confirm")
        return {}

    async def undo_start(self, start: PinnedStart) -> None:
        """Hold the job if it waits."""
        self._enter("take back")
        assert start == START or self.job is None
        self.reserved = False
        if self._known().state is LrmJobState.QUEUED:
            self.job = replace(self._known(), state=LrmJobState.HELD)
        self._leave("take back")

    async def requeue(self, ids: Sequence[LrmJobId]) -> None:
        """Queue the job again, in hold."""
        self._enter("requeue")
        assert (tuple(ids), self._known().state) == ((JOB,), LrmJobState.RUNNING)
        self.job = replace(self._known(), state=LrmJobState.HELD, layout=(), requeues=1)


class Process:
    """One process that starts the job, by listings of its own."""

    def __init__(self, directory: Path, system: System) -> None:
        self.system = system
        self.record = closed_later(StartLog(directory / "starts.sqlite"))
        self.starts = Starts(Patience(start=0.2), pins=self.record.pins)
        self.starter = Starter(cast("Lrm", system), self.starts, self.record, clock=anyio.current_time)
        self.looks = 0
        for pin in self.record.pins:
            if not pin.started:
                self.starts.resume(pin, Stage.FAILED)

    async def look(self) -> Mapping[LrmJobId, Failure]:
        """List the job, and have starts judged; again after a job was taken back. Return the starts that failed."""
        failed: dict[LrmJobId, Failure] = {}
        for _ in range(2):
            read_at = anyio.current_time()
            self.looks += 1
            jobs = () if self.system.job is None else (self.system.job,)
            await anyio.lowlevel.checkpoint()
            back, failures = await self.starter.settle(jobs, read_at)
            await self.starter.give_back()
            failed.update(failures)
            if not back:
                break
        return failed

    async def start(self) -> str:
        """Start the job, and return when that is over; return why it has failed, if it has."""
        self.starts.begin(PIN)
        for job_id in await self.starter.put_on_record([JOB]):
            await self.starter.ask(job_id)
        return await self.followed()

    async def followed(self) -> str:
        """Return when the start is over, and why it has failed, if it has."""
        reason = ""
        with anyio.fail_after(60):
            while not self.starts.is_over(JOB) or self.starts.in_stage(Stage.REFUSED):
                failures = await self.look()
                reason = failures[JOB].reason if JOB in failures else reason
                await anyio.sleep(0.01)
        # What has started in spite of being taken back has not failed.
        return reason if self.system.job is None or self.system.job.state is not LrmJobState.RUNNING else ""


@pytest.mark.parametrize("after", [True, False], ids=["after", "before"])
@pytest.mark.parametrize(("busy", "what"), [(False, "start"), (False, "confirm"), (True, "start"), (True, "take back")])
async def test_killed_at_any_request(tmp_path: Path, what: str, *, busy: bool, after: bool) -> None:
    """What is on record is settled by the next process: the job runs, once, or is in hold and can be started."""
    system = System(busy=busy, dies=(what, after))
    with pytest.raises(Killed):
        await Process(tmp_path, system).start()
    system.dies, system.asked = None, []
    following = Process(tmp_path, system)
    assert [pin.job_id for pin in following.record.pins] == [JOB]
    await following.look()
    assert not system.reserved
    assert system.job is not None
    if system.job.state is LrmJobState.HELD:
        system.busy = False
        await following.start()
    assert (system.job.state, system.runs) == (LrmJobState.RUNNING, 1)
    assert [(pin.started, pin.start) for pin in following.record.pins] == [(True, START)]


async def test_a_start_is_accepted_and_then_seen(tmp_path: Path) -> None:
    system = System()
    process = Process(tmp_path, system)
    await process.start()
    await process.look()
    assert (system.asked, system.reserved, len(process.record.pins)) == (["start", "confirm"], False, 1)
    system.job = None
    await process.look()
    assert (system.asked, process.record.pins) == (["start", "confirm"], ())


async def test_what_starts_while_it_is_taken_back_has_started(tmp_path: Path) -> None:
    class Late(System):
        async def undo_start(self, start: PinnedStart) -> None:
            self.let_run()
            await super().undo_start(start)

    system = Late(busy=True)
    await Process(tmp_path, system).start()
    assert system.asked == ["start", "take back", "confirm"]
    assert not system.reserved


@pytest.mark.parametrize("what", ["confirm", "take back"])
async def test_the_end_of_a_start_is_tried_until_it_is_answered(tmp_path: Path, what: str) -> None:
    system = System(busy=what == "take back", errors={what: LrmUnavailableError("no answer")})
    process = Process(tmp_path, system)

    async def answer() -> None:
        while system.asked.count(what) < 3:  # noqa: ASYNC110 - it is not announced
            await anyio.sleep(0.01)
        assert [pin.job_id for pin in process.record.pins] == [JOB]
        system.errors.clear()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        await process.start()
    assert not system.reserved


async def test_a_start_for_which_there_was_no_time_is_not_asked_for(tmp_path: Path) -> None:
    system = System()
    process = Process(tmp_path, system)
    process.starts.begin(PIN)
    async with AsyncExitStack() as stack:
        for borrower in range(starter.AT_ONCE):
            await process.starter._limit.acquire_on_behalf_of(borrower)
            stack.callback(process.starter._limit.release_on_behalf_of, borrower)
        with anyio.move_on_after(0.05):
            await process.starter.ask(JOB)
    assert "too many starts" in await process.followed()
    assert system.asked == []


async def test_a_refused_start_is_over_at_once(tmp_path: Path) -> None:
    system = System(errors={"start": LrmRejectedError("not so")})
    process = Process(tmp_path, system)
    assert "not so" in await process.start()
    assert (system.asked, process.looks, process.record.pins) == (["start"], 1, ())


@pytest.mark.parametrize("taken", [True, False])
async def test_without_an_answer_the_listing_tells(tmp_path: Path, *, taken: bool) -> None:
    class Unanswering(System):
        async def start_on(self, start: PinnedStart) -> None:
            if taken:
                await super().start_on(start)
            raise LrmUnavailableError("no answer")

    system = Unanswering()
    process = Process(tmp_path, system)
    await process.start()
    assert (system.runs, system.asked[-1]) == (taken, "confirm" if taken else "take back")


async def test_a_job_that_runs_elsewhere_is_queued_again(tmp_path: Path) -> None:
    """It is confirmed first, so that it comes back in hold; then it is freed from its nodes."""
    system = System(layout=(("n1", 2), ("n2", 4)))
    process = Process(tmp_path, system)
    assert "2 on n1, 4 on n2, which is not what was asked" in await process.start()
    await process.look()
    assert system.asked[:4] == ["start", "confirm", "requeue", "take back"]


@pytest.mark.parametrize(
    ("layout", "state", "wrong"),
    [
        (NODES, LrmJobState.RUNNING, False),
        ((("n2", 8), ("n1", 8)), LrmJobState.RUNNING, False),
        ((("n1", 6),), LrmJobState.RUNNING, True),
        ((("n1", 3), ("n2", 3)), LrmJobState.RUNNING, True),
        ((), LrmJobState.RUNNING, False),
        ((("n1", 6),), LrmJobState.ENDING, False),
    ],
)
def test_where_a_job_may_run(layout: tuple[tuple[str, int], ...], state: LrmJobState, *, wrong: bool) -> None:
    job = LrmJob(id=JOB, name="j", state=state, user="u", processors=6, layout=layout)
    assert bool(placed_elsewhere(job, NODES)) == wrong


async def test_who_leaves_takes_back_what_does_not_run(tmp_path: Path) -> None:
    for busy in (True, False):
        system = System(busy=busy)
        process = Process(tmp_path, system)
        process.starts.begin(replace(PIN, original=START.original))
        await process.starter.ask(JOB)
        if not busy:
            assert system.job is not None
            process.starts.observe((system.job,), anyio.current_time())
        await process.starter.leave()
        assert system.asked == ["start", "take back" if busy else "confirm"]
        assert not system.reserved


async def test_nothing_is_asked_for_that_is_not_on_record(tmp_path: Path) -> None:
    system = System()
    process = Process(tmp_path, system)
    process.record.close()
    assert "cannot be written" in await process.start()
    assert system.asked == []


async def test_a_job_that_has_gone_gives_back_what_was_kept(tmp_path: Path) -> None:
    system = System(busy=True)
    process = Process(tmp_path, system)
    process.starts.begin(replace(PIN, original=START.original))
    await process.starter.ask(JOB)
    system.job = None
    await process.look()
    assert (system.reserved, process.starts.attempts, process.record.pins) == (False, {}, ())


@pytest.mark.parametrize("ran", [True, False])
async def test_what_the_user_changes_after_a_refusal_counts(tmp_path: Path, *, ran: bool) -> None:
    """A start that was refused has tied nothing; what an earlier one has tied stays as it was asked for."""
    system = System()
    process = Process(tmp_path, system)
    assert system.job is not None
    held = system.job
    if ran:
        await process.start()
        system.job = replace(held, requeues=1)
        await process.look()
    system.errors = {"start": LrmRejectedError("not so")}
    assert "not so" in await process.start()
    changed = replace(held, requeues=int(ran), processors=2)
    assert process.starts.as_asked(changed).processors == (6 if ran else 2)
    assert [pin.start for pin in process.starts.pins.values()] == ([START] if ran else [])


# The record of starts that are under way is durable.


def test_the_log_survives_its_process(tmp_path: Path) -> None:
    log = closed_later(StartLog(tmp_path / "starts.sqlite"))
    wishes = OriginalRequest(processors=4, requested_nodes=("n1",), nodes_wanted=1)
    pins = {
        LrmJobId(number): Pin(job_id=LrmJobId(number), submitted_at=1.5, nodes=(("n1", 4),), wishes=wishes, at=2.0)
        for number in ("1", "2")
    }
    log.store(pins)
    del pins[LrmJobId("1")]
    log.store(pins)
    log.close()
    with pytest.raises(JournalError, match="cannot be written"):
        log.store({})
    again = closed_later(StartLog(tmp_path / "starts.sqlite"))
    assert again.pins == (pins[LrmJobId("2")],)
    again.close()
    (tmp_path / "bad").write_bytes(b"no database" * 100)
    with pytest.raises(JournalError, match="cannot be used"):
        StartLog(tmp_path / "bad")

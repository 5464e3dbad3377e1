# SPDX-License-Identifier: Apache-2.0
"""What processes say on their connections, and what becomes of garbage: only who says it hears of it."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from koala_adapter import negotiation as nt
from koala_adapter.model import EndReason, JobId, RunnerName, TaskEnd
from koala_adapter.negotiation import FrameBuffer, frame
from koala_adapter.runners.adaptive import AdaptiveRunner
from koala_adapter.runners.coordinator import Note, note, parse_note, payload_of
from koala_adapter.runners.runner import Application
from koala_adapter.scheduler.events import RankEnded
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.service.sizes.loop import Sizes
from koala_adapter.service.sizes.workers import WorkersJob
from tests.unit.scheduler.malleable_site import AdaptiveSite
from tests.unit.service.standincore import Center, StandInCore

if TYPE_CHECKING:
    from collections.abc import Collection

    from koala_adapter.model import PlaceholderId
    from koala_adapter.scheduler.events import Event
    from koala_adapter.scheduler.records import JobRecord, State
    from koala_adapter.service.applications import ApplicationListener


BADLY = TaskEnd(reason=EndReason.EXITED, exit_code=1)


class OneRunner:
    """The runner of the only job, where the service keeps those of all."""

    def __init__(self, site: AdaptiveSite) -> None:
        """``site``: where the job runs."""
        record = site.record("1")
        application = Application(job=record.job, ranks=record.ranks, clusters={"m": "a"}, files={"m": ()})
        self.runner = AdaptiveRunner(application)
        self.listener: ApplicationListener | None = None
        self.asked = 0

    def adaptive(self, record: JobRecord) -> AdaptiveRunner | None:
        self.asked += 1
        return None if record.state.final else self.runner

    def grow(self, record: JobRecord, ranks: Collection[int]) -> None:
        """Start nothing."""


class Line(Center):
    """An adaptive job of two processes, and what each of them hears."""

    def __init__(self, *, warn_before: int = 0) -> None:
        self.site = AdaptiveSite({"a": 2}, Approach.NONE)
        self.site.begin(warn_before=warn_before)
        self.applications = OneRunner(self.site)
        self.heard: list[tuple[str, bytes]] = []
        self.looks = 0
        """How often it was looked what time it is."""
        self.sizes = Sizes(StandInCore(self, center=self), self.applications)  # type: ignore[arg-type]

    @property
    def state(self) -> State:
        return self.site.state

    @property
    def now(self) -> float:
        self.looks += 1
        return self.site.now

    def post(self, event: Event) -> None:
        self.site.post(event)

    def tell_application(self, _placeholder: PlaceholderId, task: str, data: bytes) -> bool:
        self.heard += [(task, one) for one in FrameBuffer().feed(data)]
        return True

    def say(self, rank: int, data: bytes) -> list[tuple[str, bytes]]:
        before = len(self.heard)
        self.sizes.said(self.site.record("1"), rank, data)
        return self.heard[before:]

    def note(self, rank: int, said: Note) -> list[tuple[str, bytes]]:
        return self.say(rank, frame(payload_of(said)))


def hello(contact: str = "") -> Note:
    """Return the first words of a process."""
    return note("hello", version=1, state="new", change=0, at=0, reached=0, contact=contact, sizes="any", pid=7)


def test_processes_are_welcomed_when_all_have_come() -> None:
    line = Line()
    assert line.note(0, hello("port 1, 2@3")) == []
    welcomes = {task: parse_note(payload) for task, payload in line.note(1, hello("é"))}
    assert set(welcomes) == {"1:0", "1:1"}
    assert welcomes["1:1"].number("rank") == 1
    members = welcomes["1:1"].text("members").split(",")
    assert [one.split("@")[3] for one in members] == ["port%201%2C%202%403", "%C3%A9"]


@pytest.mark.parametrize(
    ("garbage", "answer"),
    [
        (b"\xff\xfe", "this is no note"),
        (b"hello", "hello lacks version="),
        (b"hello version=9 state=new change=0 at=0 reached=0", "koala speaks 1"),
        (b"hello version=1 state=odd change=0 at=0 reached=0", "state=odd"),
        (b"dance change=1", "dance is not known here"),
        (b"armed change=1 at=-3", "no number"),
        (b"armed change=1  at=3", "a word that cannot be"),
        (b"<NT/>", ""),
        (b"<!DOCTYPE x [<!ENTITY a 'b'>]><NT>&a;</NT>", ""),
    ],
)
def test_garbage_is_answered_to_who_says_it(garbage: bytes, answer: str) -> None:
    line = Line()
    line.note(0, hello())
    line.note(1, hello())
    heard = line.say(1, frame(garbage))
    assert {task for task, _ in heard} == {"1:1"}
    errors = [parse_note(payload) for _, payload in heard if payload.startswith(b"error ")]
    assert len(errors) == 1
    assert answer in errors[0].text("text")
    assert line.sizes.complaint(line.site.record("1").job.id).startswith("Process 1 made a wrong call: ")


def test_a_complaint_outlives_the_job() -> None:
    line = Line()
    job_id = line.site.record("1").job.id
    for rank in (0, 1):
        line.note(rank, hello())
    line.sizes.follow([job_id])
    line.note(0, note("error", text="done() without a change"))
    line.site.post(RankEnded(time=line.site.now, job_id=job_id, rank=0, end=BADLY))
    assert line.site.record("1").state.final
    line.sizes.follow([job_id])
    assert line.sizes.complaint(job_id) == "Process 0 made a wrong call: done() without a change."
    del line.site.state.jobs[job_id]
    line.sizes.follow([job_id])
    assert not line.sizes.complaint(job_id)


def test_a_complaint_of_the_library_is_shown() -> None:
    line = Line()
    line.note(0, hello())
    assert line.note(0, note("error", text="leave() of a process\nthat \x1b[31mstays")) == []
    told = line.sizes.complaint(line.site.record("1").job.id)
    assert told == "Process 0 made a wrong call: leave() of a process that ?[31mstays."


def test_a_job_that_runs_costs_nothing_while_nothing_happens() -> None:
    """What is due is looked for when something has happened, or is due, and not over and over."""

    async def rest() -> int:
        line = Line()
        line.note(0, hello())
        line.note(1, hello())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.sizes.run)
            await anyio.wait_all_tasks_blocked()
            before = line.looks
            for _ in range(50):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        return line.looks - before

    assert anyio.run(rest) == 0


def test_who_has_said_what_is_no_template_is_told_so_at_once_and_heard_again() -> None:
    """The answer does not wait for something else to happen, and the process' next wish is answered."""
    line = Line()
    for rank in (0, 1):
        line.note(rank, hello())
    heard = [payload for _, payload in line.say(0, frame(b"<NT/>"))]
    assert any(b"<NT_Status>NT_ERROR</NT_Status>" in one for one in heard), heard
    wish = nt.template("0-1", "APPLICATION", "node7", "head", [nt.resource("GPU", 1)], direction="grow", round=1)
    heard = [payload for _, payload in line.say(0, nt.frame(nt.build(wish)))]
    assert [nt.parse(one).status for one in heard] == ["NT_REJECTED"], heard


def test_a_failure_of_koala_on_what_a_process_says_costs_that_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job tells of it, and the process is heard again."""
    line = Line()
    for rank in (0, 1):
        line.note(rank, hello())
    with monkeypatch.context() as patch:
        patch.setattr(line.applications.runner.coordinators["m"], "heard", lambda *_: 1 // 0)
        assert line.note(0, note("done", change=1)) == []
    assert "koala failed on what process 0 said" in line.sizes.complaint(line.site.record("1").job.id)
    assert line.note(0, note("error", text="still there")) == []
    assert "still there" in line.sizes.complaint(line.site.record("1").job.id)


@pytest.mark.parametrize("runner", [RunnerName.WORKERS, RunnerName.SWEEP])
def test_a_program_can_negotiate_for_every_job_with_workers(runner: RunnerName) -> None:
    line = Line()
    record = line.site.record("1")
    record.job = replace(record.job, runner=runner)
    assert isinstance(line.sizes.job(record), WorkersJob)


def test_an_event_that_touches_other_jobs_costs_no_look_at_this_one() -> None:
    """The scheduler tells which jobs an event has touched, and nobody asks for the others."""
    line = Line()
    job_id = line.site.record("1").job.id
    for rank in (0, 1):
        line.note(rank, hello())
    line.applications.asked = 0
    line.sizes.follow([JobId("2")])
    assert line.applications.asked == 0
    line.sizes.follow([job_id])
    assert line.applications.asked == 1


def hello_of_today() -> Note:
    return note("hello", **{**hello().words, "ends": 1})


def ends(heard: list[tuple[str, bytes]]) -> list[tuple[str, int, str]]:
    """Return who hears of the end of the walltime: task, seconds that are left, and whether that is little."""
    notes = [(task, parse_note(payload)) for task, payload in heard if payload.startswith(b"ends ")]
    return [(task, one.number("in"), one.text("near")) for task, one in notes]


def test_processes_are_told_when_the_walltime_is_nearly_over() -> None:
    """Those that understand it: before they are welcomed how long they have, and at its time that it is near."""
    line = Line(warn_before=60)
    record = line.site.record("1")
    assert record.launched_at is not None
    end = record.launched_at + 600
    line.site.now = end - 599.5
    assert line.note(0, hello()) == [], "a library of an earlier version is told nothing"
    heard = line.note(1, hello_of_today())
    assert ends(heard) == [("1:1", 599, "0")]
    assert [payload.split()[0] for task, payload in heard if task == "1:1"] == [b"ends", b"welcome"]
    assert line.sizes.next_deadline() == end - 60
    assert line.sizes.warned(record.job.id) == ""
    line.site.now = end - 60
    before = len(line.heard)
    line.sizes.time_passed()
    assert ends(line.heard[before:]) == [("1:1", 60, "1")]
    assert len(line.heard) == before + 1, "nothing else is said, and the size stays"
    assert line.sizes.next_deadline() == inf
    told = "1 of its processes has been told that the end of the walltime is near."
    assert line.sizes.warned(record.job.id) == told
    line.site.now = end - 30
    assert ends(line.note(0, hello_of_today())) == [("1:0", 30, "1")]
    assert line.sizes.warned(record.job.id) == told.replace("1 of its processes has", "2 of its processes have")
    line.site.post(RankEnded(time=line.site.now, job_id=record.job.id, rank=0, end=BADLY))
    assert line.sizes.warned(record.job.id) == ""


def test_a_placeholder_that_ends_before_the_walltime_counts() -> None:
    """Its agent ends the process some seconds before, so that last words arrive; all hear of it."""
    line = Line(warn_before=60)
    record = line.site.record("1")
    for rank in (0, 1):
        line.note(rank, hello_of_today())
    before, placeholder = len(line.heard), record.ranks[1].placeholder
    line.site.hold(placeholder, ends_at=line.site.now + 200)
    line.sizes.in_contact(record, 1)
    assert ends(line.heard[before:]) == [("1:0", 190, "0")], "who comes back is told with its hello"
    assert ends(line.note(1, hello_of_today())) == [("1:1", 190, "0")]
    assert line.sizes.next_deadline() == line.site.now + 130

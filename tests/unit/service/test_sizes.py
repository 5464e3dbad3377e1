# SPDX-License-Identifier: Apache-2.0
"""Sizes of running jobs: what owners may want, and what offers, requests and rules lead to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from math import inf

import anyio
import anyio.lowlevel
import pytest

from koala_adapter import negotiation as nt
from koala_adapter.errors import JobRefusedError
from koala_adapter.model import EndReason, JobId, PlaceholderId, RunnerName, TaskEnd
from koala_adapter.negotiation import FrameBuffer, Template, frame
from koala_adapter.runners.adaptive import AdaptiveRunner
from koala_adapter.runners.notes import (
    Note,
    note,
    parse_note,
    payload_of,
)
from koala_adapter.runners.runner import AddressedSignal, Application, Order
from koala_adapter.runners.workers import WorkersRunner
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import Action, OfferProcessors, RequestProcessors, TakeProcessors
from koala_adapter.scheduler.events import Event, RankEnded
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.scheduler.records import JobRecord, State
from koala_adapter.scheduler.sizechange import Change, ChangePhase, Part
from koala_adapter.service.applications import SpeakingJobs
from koala_adapter.service.sizes import resizable
from koala_adapter.service.sizes.adaptive import AdaptiveJob
from koala_adapter.service.sizes.loop import Sizes
from koala_adapter.service.sizes.offers import FirstOffer, offer_of
from koala_adapter.service.sizes.workers import WorkersJob
from koala_adapter.sizes import OWN_SIZES, AnySize, CheckedRule, SizeRules
from koala_adapter.vjm import channel
from koala_adapter.vjm.channel import CenterMessage
from tests.unit.scheduler.malleable_site import AdaptiveSite, MalleableSite, malleable, part
from tests.unit.scheduler.scheduler_site import component, job, of_kind
from tests.unit.service.standins import Center, StandInCore, around

# What processes say on their connections, and what becomes of garbage: only who says it hears of it.

BADLY = TaskEnd(reason=EndReason.EXITED, exit_code=1)


class OneRunner:
    """The runner of the only job, where the service keeps those of all."""

    def __init__(self, site: AdaptiveSite) -> None:
        """``site``: where the job runs."""
        record = site.record("1")
        application = Application(job=record.job, ranks=record.ranks, files={"m": ()})
        self.runner = AdaptiveRunner(application)
        self.speaking_jobs: SpeakingJobs | None = None
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

    def tell(self, _placeholder: PlaceholderId, message: CenterMessage) -> bool:
        assert isinstance(message, channel.Application)
        self.heard += [(message.task, one) for one in FrameBuffer().feed(message.data)]
        return True

    def say(self, rank: int, data: bytes) -> list[tuple[str, bytes]]:
        before = len(self.heard)
        record = self.site.record("1")
        with self.sizes.speaking(record) as job:
            if job is not None:
                job.said(record, rank, data)
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


def test_a_complaint_of_the_library_is_shown_and_outlives_the_job() -> None:
    line = Line()
    job_id = line.site.record("1").job.id
    for rank in (0, 1):
        line.note(rank, hello())
    line.sizes.follow([job_id])
    assert line.note(0, note("error", text="leave() of a process\nthat \x1b[31mstays")) == []
    line.site.post(RankEnded(time=line.site.now, job_id=job_id, rank=0, end=BADLY))
    assert line.site.record("1").state.final
    line.sizes.follow([job_id])
    told = "Process 0 made a wrong call: leave() of a process that ?[31mstays."
    assert line.sizes.complaint(job_id) == told
    del line.site.state.jobs[job_id]
    line.sizes.follow([job_id])
    assert not line.sizes.complaint(job_id)


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
    with line.sizes.speaking(record) as job:
        assert job is not None
        job.in_contact(record, 1)
    assert ends(line.heard[before:]) == [("1:0", 190, "0")], "who comes back is told with its hello"
    assert ends(line.note(1, hello_of_today())) == [("1:1", 190, "0")]
    assert line.sizes.next_deadline() == line.site.now + 130


# Workers on several clusters: offers and requests lead to sizes that they can have.


class Scene:
    """One job of workers that may grow on all clusters, served by the part of the service that asks it."""

    def __init__(
        self,
        clusters: dict[str, int],
        sizes: str,
        minimum: int = 1,
        maximum: int = 16,
        *,
        approach: Approach,
        warn_before: int = 0,
    ) -> None:
        self.site = MalleableSite(clusters, approach)
        self._runner: WorkersRunner | None = None
        self.said: list[ev.Event] = []
        self.ordered: list[Order] = []
        self.sizes = Sizes(StandInCore(self), self)  # type: ignore[arg-type]  # it is all that is asked of them
        workers = replace(component("w", minimum, maximum, cluster=None), flexible=True, sizes=sizes)
        head = component("head", 1, cluster=next(iter(clusters)))
        job_ = replace(malleable("1", head, workers), runner=RunnerName.WORKERS, warn_before=warn_before)
        self.actions = self.site.start(job_)

    @property
    def state(self) -> State:
        return self.site.state

    @property
    def now(self) -> float:
        """Of the site."""
        return self.site.now

    def post(self, event: ev.Event) -> None:
        """Keep an event, for a test to take in."""
        self.said.append(event)

    # ---- Applications -----------------------------------------------------------------------------------------------

    def workers(self, record: JobRecord) -> WorkersRunner | None:
        application = Application(
            job=record.job,
            ranks=tuple(rank for rank in record.ranks if rank.rank not in record.departed),
            files={},
        )
        if self._runner is None:
            self._runner = WorkersRunner(application)
        self._runner.application = application
        return self._runner

    def grow(self, record: JobRecord, ranks: Collection[int]) -> None:
        """Start nothing: the tests tell what has started."""

    def order(self, orders: Iterable[Order]) -> None:
        self.ordered.extend(orders)

    # ---- what happens -----------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        return sum(one.processors for one in self.site.record("1").claims if one.component == "w")

    def ask(self, actions: Sequence[Action]) -> list[int]:
        """Have the job asked all that the scheduler wants, and only then its answers taken in; return these."""
        asked = [one for one in actions if isinstance(one, OfferProcessors | RequestProcessors)]
        for one in asked:
            self.sizes.carry_out(one)
        answers = [one for one in self.said if isinstance(one, ev.OfferAnswered)]
        self.said.clear()
        for answer in answers:
            self.site.post(answer)
        assert len(answers) == len(asked)
        return [one.accepted for one in answers]

    def gather(self) -> None:
        for taken in of_kind(TakeProcessors, self.site.hold_stubs()):
            self.site.take(taken)

    def lose(self, cluster: str) -> None:
        for batch in [b.key for b in self.site.state.batches.values() if b.cluster == cluster and b.lrm_ids is None]:
            self.site.post(ev.BatchRejected(time=self.site.now, batch=batch, reason="no"))


def offered(actions: Sequence[Action]) -> list[tuple[str, int]]:
    return [(one.cluster, one.processors) for one in of_kind(OfferProcessors, list(actions))]


@pytest.mark.parametrize("lost", [False, True])
def test_what_cannot_have_any_size_grows_on_one_cluster_at_a_time(lost: bool) -> None:  # noqa: FBT001
    """One worker that could have three more here and four there takes three, and four when it has the three."""
    scene = Scene({"a": 5, "b": 4}, "multiple-of-4", approach=Approach.PWA)
    assert offered(scene.actions) == [("a", 3)]
    assert scene.ask(scene.actions) == [3]
    before = len(scene.site.actions)
    if lost:
        scene.lose("a")
    scene.gather()
    assert offered(scene.site.actions[before:]) == [("b", 4)]
    assert scene.ask(scene.site.actions[before:]) == [3 if lost else 4]
    scene.gather()
    assert scene.size == (4 if lost else 8)


def test_what_has_any_size_takes_all_at_the_same_moment() -> None:
    scene = Scene({"a": 5, "b": 3}, "any", approach=Approach.PWA)
    assert scene.ask(scene.actions) == [3, 3]
    scene.gather()
    assert scene.size == 7


def test_what_is_wanted_back_leaves_a_usable_size_or_is_not_given() -> None:
    """Of four, which are two here and two there, one is wanted on each cluster: no power of two is left by it here."""
    scene = Scene({"a": 2, "b": 3}, "power-of-two", approach=Approach.PWA)
    for grown in (2, 4):
        assert sum(scene.ask(scene.actions)) == grown // 2
        before = len(scene.site.actions)
        scene.gather()
        assert scene.size == grown
        scene.actions = scene.site.actions[before:]
    before = len(scene.site.actions)
    scene.site.submit(job("2", component("x", 1, cluster="a"), component("y", 1, cluster="b")))
    asked = of_kind(RequestProcessors, scene.site.actions[before:])
    assert [(one.cluster, one.processors) for one in asked] == [("a", 1)], "on one cluster at a time"
    assert scene.ask(asked) == [0]
    told = scene.site.record("1").last_trouble
    assert told == 'asked for 1 back on a, w gives none: it cannot have 3 (sizes = "power-of-two")'


def test_what_is_wanted_back_waits_for_what_is_gathered_elsewhere() -> None:
    """The rule is asked about the size that the workers will have."""
    scene = Scene({"a": 5, "b": 4}, "power-of-two", maximum=8, approach=Approach.PWA)
    assert scene.ask(scene.actions) == [3]
    before = len(scene.site.actions)
    scene.gather()
    assert scene.ask(scene.site.actions[before:]) == [4]
    before = len(scene.site.actions)
    scene.site.submit(job("2", component("x", 1, cluster="a")))
    assert of_kind(RequestProcessors, scene.site.actions[before:]) == []
    scene.gather()
    asked = of_kind(RequestProcessors, scene.site.actions[before:])
    assert [(one.cluster, one.processors) for one in asked] == [("a", 1)]
    assert scene.ask(asked) == [4]
    scene.site.release("1", 4, "w")
    assert scene.size == 4


def signalled(scene: Scene) -> list[tuple[str, int]]:
    """Return which tasks were sent which signals since this was asked last."""
    sent = [(one.signal.task, one.signal.signal) for one in scene.ordered if isinstance(one, AddressedSignal)]
    scene.ordered.clear()
    return sent


def test_workers_are_asked_to_end_before_the_walltime_does() -> None:
    scene = Scene({"a": 4}, "any", 3, 4, approach=Approach.NONE, warn_before=60)
    record = scene.site.record("1")
    assert record.launched_at is not None
    end = record.launched_at + record.job.walltime
    assert scene.sizes.next_deadline() == inf, "nothing of the job was handled yet"
    scene.site.hold(record.ranks[2].placeholder, ends_at=end - 190)
    scene.sizes.follow([record.job.id, JobId("2")])
    assert scene.sizes.next_deadline() == end - 260
    scene.site.now = end - 260
    scene.sizes.time_passed()
    assert signalled(scene) == [("1:2", 15)]
    assert scene.sizes.next_deadline() == end - 230, "when it is killed"
    scene.site.now = end - 60
    scene.sizes.time_passed()
    assert signalled(scene) == [("1:1", 15), ("1:3", 15), ("1:2", 9)]
    scene.sizes.follow([record.job.id])
    assert scene.sizes.next_deadline() == end - 30


# What size an owner may want of a running job.


def running(sizes: str) -> JobRecord:
    """Return a running job of workers whose component has a rule for its sizes."""
    site = MalleableSite({"a": 2})
    site.start(replace(malleable("1", replace(part(2, 9), sizes=sizes)), runner=RunnerName.WORKERS))
    return site.record("1")


@pytest.mark.parametrize(("sizes", "processors"), [("any", 7), ("power-of-two", 8), ("multiple-of-3", 9)])
def test_a_size_that_can_be_used_is_taken(sizes: str, processors: int) -> None:
    assert resizable(running(sizes), "", processors) == "m"


@pytest.mark.parametrize(
    ("sizes", "processors", "way_out"),
    [
        ("power-of-two", 5, "near are 4 and 8"),
        ("power-of-two", 9, "near are 8"),
        ("multiple-of-3", 2, "near are 3"),
        ("any", 10, "its job file allows 2 to 9"),
    ],
)
def test_a_size_that_cannot_be_used_is_refused(sizes: str, processors: int, way_out: str) -> None:
    with pytest.raises(JobRefusedError) as caught:
        resizable(running(sizes), "", processors)
    assert caught.value.hint.endswith(way_out)


# Offers and requests as koala makes them of changes in the records: by the rule that the job file names.


class Failing(AnySize):
    """A rule that fails whatever it is asked."""

    name = "failing"

    def largest(self, size: int) -> int:
        raise ValueError(f"no idea of {size}")


RULES = SizeRules({"failing": CheckedRule(Failing(), "policy 'sizes.failing' (m:X) of d 1")})


def site(sizes: str) -> AdaptiveSite:
    found = AdaptiveSite({"a": 4, "b": 2}, Approach.PWA)
    found.poll("b", 2, idle=0)  # so that it begins on a
    flexible = replace(component("m", 1, 20), flexible=True, sizes=sizes)
    found.start(replace(malleable("1", flexible, initial=2), runner=RunnerName.ADAPTIVE))
    found.poll("b", 2)
    assert [one.processors for one in of_kind(OfferProcessors, found.actions)] == ([2, 2] if sizes == "any" else [2])
    return found


def offers(found: AdaptiveSite, rules: SizeRules = OWN_SIZES) -> list[FirstOffer]:
    record = found.record("1")
    runner = AdaptiveRunner(Application(job=record.job, ranks=record.ranks, files={"m": ()}))
    runner.follow(record, found.now)
    one_job = AdaptiveJob(around(found, rules=rules), runner)
    return [
        offer_of(record, one_job, record.claims[one.parts[0].claim], one, "n", rules=rules, answer_within=9)
        for one in record.changes.values()
        if one.phase is ChangePhase.ASKED
    ]


def processors(template: Template | None) -> int:
    """Return how many an offer is of."""
    return 0 if template is None else template.quantity("CPU")


def test_an_offer_is_bounded_by_the_rule() -> None:
    """Of two more, two processes that must be a power of two take two, and as multiples of three they take one."""
    (first,) = offers(site("power-of-two"))
    assert processors(first.template) == 2
    (first,) = offers(site("multiple-of-3"))
    assert processors(first.template) == 1


def test_a_rule_that_fails_is_told_for_offers_and_requests() -> None:
    found = site("failing")
    for one in offers(found, RULES):
        assert one.template is None
        assert one.trouble.endswith("it raises ValueError: no idea of 4")
    record = found.record("1")
    record.changes = {9: Change(number=9, component="m", parts=[Part(0, -1)], phase=ChangePhase.ASKED)}
    (request,) = offers(found, RULES)
    assert processors(request.template) == 1
    assert request.trouble.endswith("it raises ValueError: no idea of 1")

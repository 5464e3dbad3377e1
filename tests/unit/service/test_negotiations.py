# SPDX-License-Identifier: Apache-2.0
"""The negotiation manager between the real scheduler and the endpoint that applications have, also over a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter import negotiation as nt
from koala_adapter.model import EndReason, JobId
from koala_adapter.negotiation.templates import (
    APPLICATION,
    NT_ACCEPTED,
    NT_COMMITTED,
    NT_CONSUMED,
    NT_EXPIRED,
    NT_NEGOTIATION,
    RMS,
)
from koala_adapter.runners.adaptive import AdaptiveRunner
from koala_adapter.runners.coordinator import note
from koala_adapter.runners.runner import Application
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import Action, GrantProcessors, TakeProcessors, WithdrawOffer
from koala_adapter.scheduler.events import SizeWanted
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.scheduler.records import ChangePhase
from koala_adapter.service.records import KeptNegotiation, Message
from koala_adapter.service.sizes.adaptive import AdaptiveJob
from koala_adapter.service.sizes.bargaining import Surroundings
from koala_adapter.service.sizes.kept import NegotiationKeeper
from koala_adapter.service.sizes.offers import NEGOTIATOR
from koala_adapter.service.sizes.workers import WorkersJob
from koala_adapter.sizes import OWN_SIZES, SizeRules
from tests.frames import hear
from tests.unit.scheduler.malleable_site import AdaptiveSite, JointSite, MalleableSite, part
from tests.unit.scheduler.scheduler_site import component, of_kind
from tests.unit.scheduler.test_workers import workers
from tests.unit.service.standins import Center, StandInCore

if TYPE_CHECKING:
    from koala_adapter.model import PlaceholderId
    from koala_adapter.scheduler.parameters import ClusterParameters
    from koala_adapter.scheduler.records import State
    from tests.unit.scheduler.scheduler_site import Site
    from tests.unit.service.standins import World

ID = JobId("1")


class Stage(Center):
    """A scheduler with one adaptive job of two processes, the manager, and the process of rank 0."""

    def __init__(
        self,
        processors: int,
        approach: Approach = Approach.PWA,
        clusters: tuple[ClusterParameters, ...] = (),
        *,
        site: AdaptiveSite | None = None,
    ) -> None:
        """All have joined, and what the scheduler wants has not been said yet. ``site``: one where the job runs."""
        self.site = site or AdaptiveSite({"a": processors}, approach, clusters=clusters)
        if site is None:
            self.site.begin(most=9)
        self.application = nt.Endpoint("APPLICATION", "node")
        self.heard: list[nt.Event] = []
        self._carried = len(self.site.actions)
        self.journal_full = False
        self.kept: list[tuple[str, nt.Template]] = []
        """What was to be kept, and who said it."""
        self.start()

    def start(self) -> None:
        record = self.site.record("1")
        self.runner = AdaptiveRunner(
            Application(job=record.job, ranks=record.ranks, clusters={"m": "a"}, files={"m": ()})
        )
        self.job = AdaptiveJob(around(self, self, keeper=self), self.runner)
        self.manager = self.job.bargaining
        self.runner.follow(record, self.site.now)
        self.manager.restore(record)
        for rank in self.runner.memberships["m"].members:
            hello = note("hello", version=1, state="running", change=0, at=0, reached=3, contact="", sizes="any", pid=7)
            self.runner.coordinators["m"].heard(rank, hello, self.site.now)

    @property
    def state(self) -> State:
        return self.site.state

    @property
    def now(self) -> float:
        """Of the site."""
        return self.site.now

    def keep(self, job_id: JobId, rank: int, sender: str, template: nt.Template, text: str) -> None:
        assert (job_id, rank) == (ID, 0)
        assert nt.parse(text.encode()) == template
        self.kept.append((sender, template))

    def recalled(self, job_id: JobId, key: nt.NegotiationKey) -> KeptNegotiation | None:
        messages = tuple(
            Message(at=0.0, sender=sender, template=nt.build(template).decode())
            for sender, template in self.kept
            if template.key == key
        )
        if not messages:
            return None
        initiator, name = key
        return KeptNegotiation(
            job_id=job_id, component="m", rank=0, initiator=initiator, agreement_id=name, messages=messages
        )

    def post(self, event: ev.Event) -> None:
        if not self.journal_full:
            self.site.post(event)
            self.go_on()

    def tell_application(self, _placeholder: PlaceholderId, task: str, data: bytes) -> bool:
        assert task == "1:0"
        self.heard += hear(self.application, data, self.site.now)
        return True

    def go_on(self) -> None:
        actions: list[Action] = self.site.actions[self._carried :]
        self._carried = len(self.site.actions)
        self.runner.follow(self.site.record("1"), self.site.now)
        self.manager.follow(self.site.record("1"))
        for grant in of_kind(GrantProcessors, actions):
            self.manager.grant(grant)
        for withdrawal in of_kind(WithdrawOffer, actions):
            self.manager.withdraw(withdrawal.number, withdrawal.reason)

    def say(self, template: nt.Template) -> None:
        self.application.tell(template, self.site.now)
        self.deliver()

    def deliver(self) -> None:
        """Let what the application has said arrive."""
        for template in self.application.take_outbox():
            self.job.hear(self.site.record("1"), 0, nt.build(template))
        self.go_on()

    def latest(self) -> nt.Template:
        template = self.heard[-1].template
        assert template is not None
        return template

    @property
    def phase(self) -> ChangePhase | None:
        """Of the change that is under way."""
        change = self.site.record("1").change_on(0)
        return None if change is None else change.phase


class NoProgram:
    """In the place of the port, where no program negotiates."""

    def represents(self, _job_id: JobId) -> bool:
        return False

    def say(self, _job_id: JobId, payload: bytes) -> None:
        raise AssertionError(payload)


class Program(NoProgram):
    """A program that negotiates for a job."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.application = nt.Endpoint("APPLICATION", "node")
        self.heard: list[nt.Event] = []

    def represents(self, _job_id: JobId) -> bool:
        return True

    def say(self, _job_id: JobId, payload: bytes) -> None:
        self.heard += self.application.hear(nt.parse(payload), self._site.now)


class NoApplications:
    """In the place of the service's applications: starts nothing."""


def around(
    world: World,
    center: Center | None = None,
    *,
    programs: NoProgram | None = None,
    keeper: object = None,
    rules: SizeRules = OWN_SIZES,
) -> Surroundings:
    """Return what a job that changes its size uses of a service."""
    core = StandInCore(world, center=center)
    core.size_rules = rules
    applications, kept = NoApplications(), keeper or NegotiationKeeper(core)
    return Surroundings(core, applications, programs or NoProgram(), kept)  # type: ignore[arg-type]


def wish(number: int, *, mandatory: bool = False, direction: str = "grow") -> nt.Template:
    """Return a wish of the application."""
    obligation = "mandatory" if mandatory else "voluntary"
    cpu = nt.resource("CPU", number)
    return nt.template("0-1", "APPLICATION", "node", "koala", [cpu], direction=direction, obligation=obligation)


def test_an_offer_is_accepted_gathered_and_consumed() -> None:
    stage = Stage(5)
    stage.go_on()
    offer = stage.latest()
    assert (offer.quantity("CPU"), offer.direction, offer.obligation) == (3, "grow", "voluntary")
    stage.say(nt.accepted(offer))
    assert stage.phase is ChangePhase.GATHERING
    assert stage.heard[-1].kind == "agreed"
    stage.site.hold_stubs()
    stage.go_on()
    stage.site.reach()
    stage.go_on()
    stage.site.made()
    stage.go_on()
    assert stage.heard[-1].kind == "consumed"
    assert stage.site.sizes("1") == [5]
    assert [(sender, template.status) for sender, template in stage.kept] == [
        (RMS, NT_NEGOTIATION),
        (APPLICATION, NT_ACCEPTED),
        (RMS, NT_COMMITTED),
        (RMS, NT_CONSUMED),
    ]


@pytest.mark.parametrize(
    ("lost", "kind", "reason"),
    [
        (0, "consumed", ""),
        (1, "consumed", "1 of the 3 was lost before all processes had begun"),
        (2, "consumed", "2 of the 3 were lost before all processes had begun"),
        (3, "ended", "worker 4 on a was lost (node lost)"),
    ],
)
def test_what_was_lost_before_it_was_taken_in_is_told(lost: int, kind: str, reason: str) -> None:
    """An agreement says what was promised, and its end what came of that: workers may be lost before they begin."""
    site = MalleableSite({"a": 5}, Approach.PRA)
    site.start(workers("1", component("head", 1, cluster="a"), part(1, 4)))
    record = site.record("1")
    program = Program(site)
    heard, application = program.heard, program.application
    job = WorkersJob(around(site, programs=program), record.job)
    manager = job.bargaining
    manager.follow(record)
    offer = heard[-1].template
    assert offer is not None
    assert offer.quantity("CPU") == 3
    application.tell(nt.accepted(offer), site.now)
    for template in application.take_outbox():
        job.hear(record, NEGOTIATOR, nt.build(template))
    (taking,) = of_kind(TakeProcessors, site.hold_stubs())
    manager.follow(record)
    for rank in taking.ranks[:lost]:
        site.post(ev.PlaceholderEnded(time=site.now, placeholder=rank.placeholder, reason=EndReason.NODE_LOST))
        manager.follow(record)
    for rank in taking.ranks[lost:]:
        site.post(ev.RankStarted(time=site.now, job_id=ID, rank=rank.rank))
    manager.follow(record)
    said = [one for one in heard if one.key == offer.key]
    assert (said[-1].kind, said[-1].reason or (said[-1].template and said[-1].template.reason)) == (kind, reason)


@pytest.mark.parametrize("wanted", [2, 4])
def test_an_offer_beyond_what_its_owner_wants_meanwhile_is_withdrawn_at_once(wanted: int) -> None:
    """Nothing is committed to that does not come, and nobody waits for an answer until it is too late."""
    stage = Stage(5)
    stage.go_on()
    offer = stage.latest()
    assert offer.quantity("CPU") == 3
    stage.site.post(SizeWanted(time=stage.site.now, job_id=ID, component="m", processors=wanted))
    stage.say(nt.accepted(offer))
    ends = [one for one in stage.heard if one.state is not None and one.key == offer.key]
    assert ends[-1].state == "withdrawn", stage.heard
    assert all(one.kind not in {"agreed", "consumed"} for one in stage.heard)


def test_an_offer_heeds_what_its_owner_wants() -> None:
    stage = Stage(5)
    stage.site.post(SizeWanted(time=stage.site.now, job_id=ID, component="m", processors=4))
    stage.go_on()
    offer = stage.latest()
    assert (offer.quantity("CPU"), offer.resources[0].maximum) == (2, 2)
    stage.say(nt.accepted(offer))
    assert stage.heard[-1].kind == "agreed"
    assert stage.site.change().accepted == 2


def test_an_offer_is_countered() -> None:
    stage = Stage(5)
    stage.go_on()
    offer = stage.latest()
    key = offer.resources[0].key
    stage.say(nt.countered(offer, {key: 2}))
    assert stage.heard[-1].kind == "accepted"
    stage.say(nt.committed(stage.latest()))
    assert stage.phase is ChangePhase.GATHERING
    assert stage.site.change().accepted == 2


def test_an_offer_is_rejected_or_not_answered() -> None:
    stage = Stage(5)
    stage.go_on()
    stage.say(nt.rejected(stage.latest(), "not now"))
    assert stage.phase is None
    stage = Stage(5)
    stage.go_on()
    offer = stage.latest()
    stage.site.now += 30
    stage.manager.time_passed(stage.site.record("1"))
    assert stage.phase is None
    assert stage.heard[-1].state == "expired"
    assert offer.answer_within == 20


def test_an_offer_runs_out_while_the_journal_cannot_be_written() -> None:
    stage = Stage(5)
    stage.go_on()
    stage.journal_full = True
    stage.site.now += 30
    stage.manager.time_passed(stage.site.record("1"))
    assert stage.phase is ChangePhase.ASKED
    heard = len(stage.heard)
    stage.go_on()
    assert len(stage.heard) == heard


def test_what_cannot_be_had_is_withdrawn_with_the_reason() -> None:
    stage = Stage(5)
    stage.go_on()
    stage.say(nt.accepted(stage.latest()))
    lost = stage.site.stubs()[0]
    stage.site.ended(lost)
    stage.go_on()
    ended = next(one for one in stage.heard if one.state == "withdrawn")
    assert ended.before == "agreed"
    assert ended.reason == f"placeholder {lost} was lost"


def test_a_wish_is_granted_in_part_and_kept_until_it_is_answered() -> None:
    stage = Stage(5, Approach.NONE)
    stage.say(wish(6))
    counter = stage.latest()
    assert (stage.heard[-1].kind, counter.quantity("CPU"), counter.reason) == ("offer", 3, "no more is free")
    assert stage.site.state.clusters[next(iter(stage.site.state.clusters))].offered == 3
    stage.say(nt.accepted(counter))
    assert stage.heard[-1].kind == "agreed"
    assert stage.phase is ChangePhase.GATHERING


def test_a_wish_that_is_granted_and_one_that_is_not() -> None:
    stage = Stage(5, Approach.NONE)
    stage.say(wish(2))
    assert stage.heard[-1].kind == "accepted"
    stage.say(nt.committed(stage.latest()))
    assert stage.phase is ChangePhase.GATHERING
    stage = Stage(2, Approach.NONE)
    stage.say(wish(2))
    assert (stage.heard[-1].state, stage.heard[-1].reason) == ("rejected", "no more is free")


def test_what_is_neither_processors_nor_memory_is_refused() -> None:
    stage = Stage(5, Approach.NONE)
    both = [nt.resource("CPU", 1), nt.resource("GPU", 1)]
    stage.say(nt.template("0-1", "APPLICATION", "node", "koala", both, direction="grow"))
    assert stage.heard[-1].state == "rejected"
    assert "GPU cannot be had" in stage.heard[-1].reason
    assert stage.phase is None


def test_a_second_resource_that_is_declined_is_no_part_of_a_wish() -> None:
    stage = Stage(5, Approach.NONE)
    declined = nt.resource("CPU", 1, cluster="b", usage="NT_OPTIONAL", status="NT_REJECTED")
    resources = [declined, nt.resource("CPU", 2, cluster="a")]
    stage.say(nt.template("0-1", "APPLICATION", "node", "koala", resources, direction="grow"))
    assert stage.heard[-1].kind == "accepted"
    stage.say(nt.committed(stage.latest()))
    assert stage.phase is ChangePhase.GATHERING


def test_a_restart_before_the_answer() -> None:
    stage = Stage(5)
    stage.go_on()
    stage.application.tell(nt.accepted(stage.latest()), stage.site.now)
    stage.application.take_outbox()  # it gets lost
    stage.start()
    stage.manager.follow(stage.site.record("1"))
    stage.deliver()
    assert stage.heard[-1].kind == "agreed"
    assert stage.phase is ChangePhase.GATHERING


@pytest.mark.parametrize("known", [True, False])
def test_an_offer_that_ran_out_as_the_service_was_down(known: bool) -> None:  # noqa: FBT001 - drawn
    stage = Stage(5)
    stage.go_on()
    offer = stage.latest()
    if known:
        stage.application.tell(nt.accepted(offer), stage.site.now)
        stage.application.take_outbox()  # it gets lost
    stage.site.now += 31.0
    stage.application.time_passed(stage.site.now)
    stage.application.take_outbox()
    stage.site.post(ev.Configured(time=stage.site.now, parameters=stage.site.parameters, clusters=stage.site.clusters))
    stage.start()
    stage.go_on()
    for again in (True, False):
        stage.deliver()
        stage.site.now += 21.0
        stage.manager.time_passed(stage.site.record("1"))
        assert stage.phase is None
        stage.site.pass_time(2 * stage.site.parameters.scan_interval)
        stage.go_on()
        assert (stage.phase is ChangePhase.ASKED) == again
    assert len({template.agreement_id for sender, template in stage.kept if sender == RMS}) == 2


def killed_before_the_end_was_recorded(stage: Stage, seconds: float) -> None:
    """Let time run out, and have the service killed between telling the application and telling the scheduler."""
    stage.journal_full = True
    stage.site.now += seconds
    stage.manager.time_passed(stage.site.record("1"))
    assert stage.kept[-1][0] == RMS
    assert stage.kept[-1][1].status == NT_EXPIRED
    stage.journal_full = False
    stage.start()
    stage.go_on()
    stage.deliver()


def test_an_offer_that_had_ended_before_the_service_was_killed_is_not_made_again() -> None:
    """The application would say of it that it has expired. It may get another one later."""
    stage = Stage(5)
    stage.go_on()
    killed_before_the_end_was_recorded(stage, 21.0)
    assert stage.phase is None
    assert [template.status for _, template in stage.kept] == [NT_NEGOTIATION, NT_EXPIRED]
    stage.site.pass_time(2 * stage.site.parameters.scan_interval)
    stage.go_on()
    assert stage.phase is ChangePhase.ASKED


def test_a_wish_that_had_ended_before_the_service_was_killed_is_given_up() -> None:
    """With the reason that was told then, and not with what somebody answers to an acceptance that comes too late."""
    stage = Stage(5, Approach.NONE)
    stage.say(wish(2))
    assert stage.phase is ChangePhase.GATHERING
    killed_before_the_end_was_recorded(stage, 31.0)
    assert stage.phase is None
    assert stage.site.record("1").last_trouble == "2 more processors on a: not settled in time"


@pytest.mark.parametrize("kept", [True, False])
def test_a_restart_before_the_commitment_has_arrived(kept: bool) -> None:  # noqa: FBT001 - drawn
    stage = Stage(5)
    stage.go_on()
    offer = stage.latest()
    stage.application.tell(nt.accepted(offer), stage.site.now)
    stage.application.take_outbox()
    if kept:
        stage.kept.append((APPLICATION, nt.accepted(offer)))
    stage.site.answer_number(stage.site.change().number, 3)
    stage.start()
    stage.go_on()
    stage.manager.in_contact(0)
    assert stage.heard[-1].kind == "agreed"


def test_a_restart_before_the_commitment_of_the_application() -> None:
    for committed_before in (False, True):
        stage = Stage(5, Approach.NONE)
        stage.say(wish(2))
        acceptance = stage.latest()
        if committed_before:
            stage.application.tell(nt.committed(acceptance), stage.site.now)
            stage.application.take_outbox()  # it gets lost
        stage.start()
        stage.manager.in_contact(0)
        if not committed_before:
            stage.application.tell(nt.committed(acceptance), stage.site.now)
        stage.deliver()
        stage.site.hold_stubs()
        stage.go_on()
        stage.site.reach()
        stage.go_on()
        stage.site.made()
        stage.go_on()
        assert stage.heard[-1].kind == "consumed"


def test_a_commitment_that_comes_after_what_was_agreed_on() -> None:
    stage = Stage(5, Approach.NONE)
    stage.say(wish(2))
    acceptance = stage.latest()
    stage.site.hold_stubs()
    stage.go_on()
    stage.site.reach()
    stage.go_on()
    stage.site.made()
    stage.go_on()
    assert stage.heard[-1].kind == "accepted"
    stage.say(nt.committed(acceptance))
    assert stage.heard[-1].kind == "consumed"
    assert stage.site.sizes("1") == [4]


def test_a_commitment_to_what_has_been_lost() -> None:
    stage = Stage(5, Approach.NONE)
    stage.say(wish(2))
    acceptance = stage.latest()
    lost = stage.site.stubs()[0]
    stage.site.ended(lost)
    stage.go_on()
    stage.say(nt.committed(acceptance))
    assert (stage.heard[-1].state, stage.heard[-1].reason) == (
        "withdrawn",
        f"2 more processors on a: placeholder {lost} was lost",
    )
    assert stage.phase is None


def test_a_restart_while_a_counter_offer_is_out() -> None:
    stage = Stage(5, Approach.NONE)
    stage.say(wish(6))
    counter = stage.latest()
    stage.start()
    stage.manager.in_contact(0)
    stage.say(nt.accepted(counter))
    assert stage.heard[-1].kind == "agreed"
    assert stage.phase is ChangePhase.GATHERING


def test_a_restart_after_three_rounds() -> None:
    stage = Stage(5, Approach.NONE)
    stage.say(wish(6))
    counter = stage.latest()
    stage.say(nt.countered(counter, {counter.resources[0].key: 2}))
    acceptance = stage.latest()
    assert (stage.heard[-1].kind, acceptance.round) == ("accepted", 3)
    stage.start()
    stage.say(nt.committed(acceptance))
    assert stage.phase is ChangePhase.GATHERING
    assert stage.site.change().accepted == 2
    assert stage.application.state(acceptance.key) == "agreed"


def test_a_wish_for_fewer_than_it_can_use_is_not_offered() -> None:
    for resource, reason in (
        (nt.resource("CPU", 6, negotiability="NT_FIXED"), "3 can be had, and fewer than 6 are of no use to it"),
        (nt.resource("CPU", 6, minimum=4), "3 can be had, and fewer than 4 are of no use to it"),
    ):
        stage = Stage(5, Approach.NONE)
        stage.say(nt.template("0-1", "APPLICATION", "node", "koala", [resource], direction="grow"))
        assert (stage.heard[-1].state, stage.heard[-1].reason) == ("rejected", f"no more is free: {reason}")
        assert stage.phase is None


def parts(stage: Stage) -> list[tuple[str | None, ChangePhase, int]]:
    record = stage.site.record("1")
    found = [(change, part) for change in record.changes.values() for part in change.parts]
    return [(record.claims[part.claim].cluster, change.phase, part.accepted) for change, part in found]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_wish_over_two_clusters_is_one_agreement(restarted: bool) -> None:  # noqa: FBT001 - drawn
    """9 are asked for; the 6 that are idle on both clusters are offered, taken, and reported when all are there."""
    stage = Stage(0, site=JointSite())
    stage.say(wish(9))
    counter = stage.latest()
    assert (counter.quantity("CPU"), len(counter.resources), counter.reason) == (6, 1, "no more is free")
    if restarted:
        stage.start()
    stage.say(nt.accepted(counter))
    assert stage.heard[-1].kind == "agreed"
    assert parts(stage) == [("a", ChangePhase.GATHERING, 3), ("b", ChangePhase.GATHERING, 3)]
    if restarted:
        stage.start()
    stage.site.hold_stubs()
    stage.go_on()
    stage.site.reach(number=stage.site.change().number)
    stage.go_on()
    if restarted:
        stage.start()
    stage.site.made(number=stage.site.change().number)
    stage.go_on()
    assert [one.kind for one in stage.heard].count("consumed") == 1
    assert stage.heard[-1].kind == "consumed"
    assert stage.latest().quantity("CPU") == 6
    assert parts(stage) == []


@pytest.mark.parametrize("restarted", [False, True])
def test_processors_that_go_on_two_clusters_are_reported_when_all_have_gone(restarted: bool) -> None:  # noqa: FBT001
    """The application gives 5 of 8 back: those of one cluster go first, and that is not all of it."""
    stage = Stage(0, site=JointSite())
    stage.say(wish(6))
    stage.say(nt.committed(stage.latest()))
    stage.site.hold_stubs()
    stage.go_on()
    grown = stage.site.change()
    stage.site.reach(number=grown.number)
    stage.go_on()
    stage.site.made(number=grown.number)
    stage.go_on()
    assert stage.heard[-1].kind == "consumed"
    cpu = nt.resource("CPU", 5)
    stage.say(nt.template("0-2", "APPLICATION", "node", "koala", [cpu], direction="shrink"))
    stage.say(nt.committed(stage.latest()))
    if restarted:
        stage.start()
    assert parts(stage) == [("a", ChangePhase.RELEASING, 2), ("b", ChangePhase.RELEASING, 3)]
    heard = len(stage.heard)
    for number, leaving in enumerate([(3, 4), (5, 6, 7)]):
        change = stage.site.record("1").change_on(number)
        assert change is not None
        stage.site.reach(*leaving, number=change.number)
        stage.go_on()
        stage.site.made(number=change.number)
        for rank in leaving:
            stage.go_on()
            assert [one.kind for one in stage.heard[heard:]] == []
            stage.site.end(rank)
    stage.go_on()
    assert [one.kind for one in stage.heard[heard:]] == ["consumed"]
    assert stage.latest().quantity("CPU") == 5


def test_a_restart_before_the_commitment_to_a_counter_offer_of_the_application() -> None:
    stage = Stage(5)
    stage.go_on()
    offer = stage.latest()
    stage.say(nt.countered(offer, {offer.resources[0].key: 2}))
    assert stage.heard[-1].kind == "accepted"
    stage.start()
    stage.go_on()
    stage.say(nt.committed(stage.latest()))
    assert stage.phase is ChangePhase.GATHERING
    assert stage.site.change().accepted == 2


@pytest.mark.parametrize("killed", [False, True])
def test_a_program_that_is_started_anew_in_a_change_lets_nothing_expire(killed: bool) -> None:  # noqa: FBT001 - a parameter
    """An MPI program that restarts knows of no negotiation; what it says of them is not kept: the change took place."""
    stage = Stage(5)
    stage.go_on()
    stage.say(nt.accepted(stage.latest()))
    stage.site.hold_stubs()
    stage.go_on()
    stage.site.reach()
    stage.go_on()
    stage.application = nt.Endpoint("APPLICATION", "node")
    if killed:
        stage.start()
    stage.manager.in_contact(0)
    stage.deliver()
    stage.site.made()
    stage.go_on()
    stage.deliver()
    assert stage.site.sizes("1") == [5]
    assert (stage.kept[-1][0], stage.kept[-1][1].status) == (RMS, NT_CONSUMED)
    assert NT_EXPIRED not in [template.status for _, template in stage.kept]

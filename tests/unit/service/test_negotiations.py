# SPDX-License-Identifier: Apache-2.0
"""Negotiations between the real scheduler and the endpoint that applications have, also over a restart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from koala_adapter import negotiation as nt
from koala_adapter.model import ClusterName, EndReason, PlaceholderId
from koala_adapter.negotiation.templates import (
    APPLICATION,
    NT_ACCEPTED,
    NT_COMMITTED,
    NT_CONSUMED,
    NT_EXPIRED,
    NT_NEGOTIATION,
    RMS,
)
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import SubmitPlaceholders, TakeProcessors
from koala_adapter.scheduler.events import SizeWanted
from koala_adapter.scheduler.parameters import Approach, ClusterParameters
from koala_adapter.scheduler.sizechange import ChangePhase
from koala_adapter.service.sizes.offers import NEGOTIATOR
from koala_adapter.service.sizes.workers import WorkersJob
from koala_adapter.vjm.channel import Application, CenterMessage
from tests.unit.negotiation.templates import CPU
from tests.unit.scheduler.malleable_site import JointSite, MalleableSite, part
from tests.unit.scheduler.scheduler_site import component, of_kind
from tests.unit.scheduler.test_workers import workers
from tests.unit.service.standins import ID, Program, Stage, around, played, wish

GATHERING = ChangePhase.GATHERING


@pytest.mark.parametrize(
    ("script", "kinds", "phase", "accepted"),
    [
        ("offer, counter 2, commit", "offer accepted", GATHERING, 2),
        ("offer, reject", "offer", None, 0),
        ("offer, later 30", "offer ended", None, 0),
        ("wish 2, commit", "accepted", GATHERING, 2),
        # What has not arrived is said again after a restart, and what the application has said counts.
        ("offer, accept lost, restart, follow, deliver", "offer agreed", GATHERING, 3),
        ("offer, counter 2, restart, go, commit", "offer accepted", GATHERING, 2),
        ("wish 6, restart, contact, accept", "offer agreed", GATHERING, 3),
        ("wish 6, counter 2, restart, commit", "offer accepted", GATHERING, 2),
        # There is one agreement, and what was agreed on comes, whether the commitment was heard before, after, or late.
        ("wish 2, commit lost, restart, contact, deliver, change", "accepted consumed", None, 0),
        ("wish 2, restart, contact, commit unsent, deliver, change", "accepted consumed", None, 0),
        ("wish 2, change, commit", "accepted consumed", None, 0),
    ],
)
def test_the_course_of_a_negotiation(script: str, kinds: str, phase: ChangePhase | None, accepted: int) -> None:
    """What the application hears, and what becomes of the change; ``accepted``: of a change that is under way."""
    stage = played(script)
    assert " ".join(one.kind for one in stage.heard) == kinds
    assert stage.phase is phase
    assert not accepted or stage.site.change().accepted == accepted
    if "change" in script:
        assert stage.site.sizes("1") == [4]


def test_a_wish_that_cannot_be_granted_is_rejected_with_the_reason() -> None:
    stage = played("wish 2", processors=2)
    assert (stage.heard[-1].state, stage.heard[-1].reason) == ("rejected", "no more is free")


def test_an_offer_is_accepted_gathered_and_consumed() -> None:
    stage = played("offer")
    offer = stage.latest()
    assert (offer.quantity("CPU"), offer.direction, offer.obligation) == (3, "grow", "voluntary")
    assert offer.answer_within == 20
    stage.say(nt.accepted(offer))
    assert stage.phase is ChangePhase.GATHERING
    assert stage.heard[-1].kind == "agreed"
    stage.change()
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
    stage = played("offer")
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


def test_an_offer_runs_out_while_the_journal_cannot_be_written() -> None:
    stage = played("offer")
    stage.journal_full = True
    stage.site.now += 30
    stage.manager.time_passed(stage.site.record("1"))
    assert stage.phase is ChangePhase.ASKED
    heard = len(stage.heard)
    stage.go_on()
    assert len(stage.heard) == heard


def test_what_cannot_be_had_is_withdrawn_with_the_reason() -> None:
    stage = played("offer, accept")
    lost = stage.site.stubs()[0]
    stage.site.ended(lost)
    stage.go_on()
    ended = next(one for one in stage.heard if one.state == "withdrawn")
    assert ended.before == "agreed"
    assert ended.reason == f"placeholder {lost} was lost"


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


@pytest.mark.parametrize("known", [True, False])
def test_an_offer_that_ran_out_as_the_service_was_down(known: bool) -> None:  # noqa: FBT001 - drawn
    stage = played("offer")
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
    stage = played("offer")
    killed_before_the_end_was_recorded(stage, 21.0)
    assert stage.phase is None
    assert [template.status for _, template in stage.kept] == [NT_NEGOTIATION, NT_EXPIRED]
    stage.site.pass_time(2 * stage.site.parameters.scan_interval)
    stage.go_on()
    assert stage.phase is ChangePhase.ASKED


def test_a_wish_that_had_ended_before_the_service_was_killed_is_given_up() -> None:
    """With the reason that was told then, and not with what somebody answers to an acceptance that comes too late."""
    stage = played("wish 2")
    assert stage.phase is ChangePhase.GATHERING
    killed_before_the_end_was_recorded(stage, 31.0)
    assert stage.phase is None
    assert stage.site.record("1").last_trouble == "2 more processors on a: not settled in time"


@pytest.mark.parametrize("kept", [True, False])
def test_a_restart_before_the_commitment_has_arrived(kept: bool) -> None:  # noqa: FBT001 - drawn
    stage = played("offer")
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


def test_a_commitment_to_what_has_been_lost() -> None:
    stage = played("wish 2")
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
            stage.site.rank_ends("1", rank)
    stage.go_on()
    assert [one.kind for one in stage.heard[heard:]] == ["consumed"]
    assert stage.latest().quantity("CPU") == 5


@pytest.mark.parametrize("killed", [False, True])
def test_a_program_that_is_started_anew_in_a_change_lets_nothing_expire(killed: bool) -> None:  # noqa: FBT001 - a parameter
    """An MPI program that restarts knows of no negotiation; what it says of them is not kept: the change took place."""
    stage = played("offer, accept")
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


# An application asks for memory with its processors: new placeholders come with it where the site allows it.

KEY = ("MEM", "", "")


def stage_of(processors: int, limit: int | None = None) -> Stage:
    return Stage(processors, Approach.NONE, (ClusterParameters(name=ClusterName("a"), memory_limit=limit),))


def wish_with(processors: int, memory: int, usage: str = "NT_REQUIRED", direction: str = "grow") -> nt.Template:
    resources = [nt.resource("MEM", memory, usage=usage, negotiability="NT_FIXED")]
    if processors:
        resources.insert(0, nt.resource("CPU", processors))
    return nt.template("0-1", "APPLICATION", "node", "koala", resources, direction=direction)


def submitted(stage: Stage) -> list[tuple[int, int]]:
    return [(one.count, one.memory_mib) for one in of_kind(SubmitPlaceholders, stage.site.actions)]


def test_new_placeholders_come_with_the_memory() -> None:
    stage = stage_of(5, limit=8192)
    stage.say(wish_with(2, 4096))
    assert stage.heard[-1].kind == "accepted"
    assert stage.latest().quantities() == {("CPU", "", ""): 2, KEY: 4096}
    stage.say(nt.committed(stage.latest()))
    assert submitted(stage) == [(2, 0), (2, 4096)]


def test_fewer_processors_come_with_the_same_memory() -> None:
    stage = stage_of(5, limit=8192)
    stage.say(wish_with(6, 4096))
    assert (stage.heard[-1].kind, stage.latest().quantities()) == ("offer", {("CPU", "", ""): 3, KEY: 4096})
    stage.start()
    stage.say(nt.accepted(stage.latest()))
    assert stage.heard[-1].kind == "agreed"
    assert stage.phase is ChangePhase.GATHERING
    assert submitted(stage) == [(2, 0), (3, 4096)]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("processors", [3, 2])
def test_memory_that_an_application_declines_in_its_answer_is_not_submitted(processors: int, again: bool) -> None:  # noqa: FBT001
    """It takes the processors of a counter-offer without it, all or fewer; ``again``: also by a later service."""
    stage = stage_of(5, limit=8192)
    stage.say(wish_with(6, 4096, "NT_OPTIONAL"))
    assert (stage.heard[-1].kind, stage.latest().quantities()) == ("offer", {("CPU", "", ""): 3, KEY: 4096})
    if processors == 3:
        stage.say(nt.accepted(stage.latest(), declined=[KEY]))
    else:
        stage.say(nt.countered(stage.latest(), {("CPU", "", ""): processors}, declined=[KEY]))
        if again:
            stage.start()
        stage.say(nt.committed(stage.latest()))
    if again:
        stage.start()
    assert stage.application.state(stage.latest().key) == "agreed"
    assert stage.latest().quantities() == {("CPU", "", ""): processors}
    assert submitted(stage) == [(2, 0), (processors, 0)]


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_counter_offer_whose_memory_was_declined_stands_after_a_restart(forgotten: bool) -> None:  # noqa: FBT001
    stage = stage_of(5)
    stage.say(wish_with(6, 4096, "NT_OPTIONAL"))
    assert (stage.heard[-1].kind, stage.latest().quantities()) == ("offer", {("CPU", "", ""): 3})
    if forgotten:
        stage.kept = stage.kept[:1]
    stage.start()
    stage.say(nt.accepted(stage.latest()))
    assert stage.heard[-1].kind == "agreed"
    assert submitted(stage) == [(2, 0), (3, 0)]


def test_an_acceptance_whose_memory_was_declined_stands_after_a_restart() -> None:
    stage = stage_of(5)
    stage.say(wish_with(2, 4096, "NT_OPTIONAL"))
    assert stage.heard[-1].kind == "accepted"
    stage.start()
    stage.say(nt.committed(stage.latest()))
    assert stage.application.state(stage.latest().key) == "agreed"


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        (None, "the site gives an application no more memory on a"),
        (4095, "on a a processor comes with 4095 MiB of memory at most, not 4096"),
    ],
)
def test_where_it_cannot_be_had_it_is_refused_with_the_reason(limit: int | None, reason: str) -> None:
    """All of the wish if the memory is required; the memory alone if it is optional."""
    stage = stage_of(5, limit)
    stage.say(wish_with(2, 4096))
    assert (stage.heard[-1].kind, stage.heard[-1].reason) == ("ended", reason)
    stage = stage_of(5, limit)
    stage.say(wish_with(2, 4096, "NT_OPTIONAL"))
    assert stage.latest().quantities() == {("CPU", "", ""): 2}
    stage.say(nt.committed(stage.latest()))
    assert submitted(stage) == [(2, 0), (2, 0)]


@pytest.mark.parametrize(("processors", "direction"), [(0, "grow"), (1, "shrink")])
def test_the_memory_of_a_process_that_runs_stays(processors: int, direction: str) -> None:
    stage = stage_of(5, limit=8192)
    stage.say(wish_with(processors, 4096, direction=direction))
    assert stage.heard[-1].kind == "ended"
    assert "does not change that of a process that runs" in stage.heard[-1].reason


# A negotiation has ended, the application has not heard how, and the service is another one by then.


class HardOfHearing(Stage):
    """Nothing that koala says arrives while the process is out of contact."""

    out_of_contact = False
    written = b""
    """By koala, last."""

    def tell(self, placeholder: PlaceholderId, message: CenterMessage) -> bool:
        assert isinstance(message, Application)
        self.written = message.data
        return not self.out_of_contact and super().tell(placeholder, message)

    def come_back(self) -> None:
        self.heard += self.application.disconnected(self.site.now)
        self.start()
        self.out_of_contact = False
        self.manager.in_contact(0)
        self.application.resumed()
        self.deliver()


def test_what_was_agreed_on_has_been_made() -> None:
    stage = HardOfHearing(5, Approach.NONE)
    stage.say(wish(2))
    acceptance = stage.latest()
    stage.out_of_contact = True
    stage.say(nt.committed(acceptance))
    stage.change()
    assert stage.application.state(acceptance.key) == "agreed"
    stage.come_back()
    assert stage.application.state(acceptance.key) == "consumed"
    assert stage.heard[-1].kind == "consumed"
    assert stage.site.sizes("1") == [4]


def test_what_was_agreed_on_could_not_be_had() -> None:
    stage = HardOfHearing(5, Approach.NONE)
    stage.say(wish(2))
    acceptance = stage.latest()
    stage.say(nt.committed(acceptance))
    stage.out_of_contact = True
    lost = stage.site.stubs()[0]
    stage.site.ended(lost)
    stage.go_on()
    stage.come_back()
    assert (stage.heard[-1].state, stage.heard[-1].reason) == ("withdrawn", f"placeholder {lost} was lost")


def test_an_acceptance_that_ran_out() -> None:
    """The commitment comes too late; the scheduler's own time for it is over, too."""
    stage = HardOfHearing(5, Approach.NONE)
    stage.say(wish(2))
    acceptance = stage.latest()
    stage.out_of_contact = True
    stage.site.now += 31.0
    stage.manager.time_passed(stage.site.record("1"))
    stage.application.tell(nt.committed(acceptance), stage.site.now)
    stage.application.take_outbox()
    stage.go_on()
    stage.come_back()
    assert stage.application.state(acceptance.key) == "expired"
    assert stage.heard[-1].reason == "not settled in time"


@pytest.mark.parametrize("known", [True, False])
def test_what_the_application_itself_has_ended_stays_ended(known: bool) -> None:  # noqa: FBT001 - drawn
    """Who commits itself to what it has rejected hears that it is rejected; ``known``: by a service that heard it."""
    stage = HardOfHearing(5, Approach.NONE)
    stage.say(wish(6))
    counter = stage.latest()
    stage.say(nt.rejected(counter, "too few"))
    if not known:
        stage.start()
    second = nt.Endpoint("APPLICATION", "node")
    second.tell(wish(6), 0.0)
    second.take_outbox()
    second.hear(counter, 0.0)
    stage.application = second
    stage.say(nt.accepted(counter))
    assert stage.application.state(counter.key) == "rejected"
    assert stage.phase is None


@pytest.mark.parametrize("status", ["NT_ACCEPTED", "NT_COMMITTED", "NT_CONSUMED"])
def test_of_what_never_was_it_is_said_that_it_is_too_late(status: str) -> None:
    stage = HardOfHearing(5, Approach.NONE)
    resources = tuple(one._replace(status=status) for one in wish(2).resources)
    said = wish(2)._replace(status=status, resources=resources)
    stage.job.hear(stage.site.record("1"), 0, nt.build(said))
    assert b"<NT_Status>NT_EXPIRED</NT_Status>" in stage.written


def test_a_name_that_is_used_again_begins_anew() -> None:
    stage = HardOfHearing(5, Approach.NONE)
    stage.say(wish(6))
    stage.say(nt.rejected(stage.latest(), "too few"))
    stage.start()
    stage.application = nt.Endpoint("APPLICATION", "node")
    stage.say(wish(2))
    assert stage.heard[-1].kind == "accepted"
    stage.say(nt.committed(stage.latest()))
    stage.change()
    assert stage.heard[-1].kind == "consumed"


def restarted_after(kept: int | None = None, *answers: Callable[[nt.Template], nt.Template]) -> Stage:
    """Kill the service after answers to its counter-offer were heard and kept, and before the scheduler was told."""
    stage = played("wish 6")
    stage.journal_full = True
    for answer in answers:
        stage.say(answer(stage.latest()))
    stage.journal_full = False
    stage.kept = stage.kept[:kept]
    stage.start()
    stage.go_on()
    stage.manager.in_contact(0)
    stage.deliver()
    return stage


@pytest.mark.parametrize(
    ("kept", "answers", "processors"),
    [
        (3, [nt.accepted], 3),
        (3, [lambda counter: nt.countered(counter, {CPU: 2})], 2),
        (4, [lambda counter: nt.countered(counter, {CPU: 2})], 2),
        (None, [lambda counter: nt.countered(counter, {CPU: 2}), nt.committed], 2),
    ],
    ids=["accepted", "answered, not accepted", "answered", "committed"],
)
def test_what_was_heard_before_the_kill_counts(
    kept: int | None, answers: list[Callable[[nt.Template], nt.Template]], processors: int
) -> None:
    stage = restarted_after(kept, *answers)
    if stage.application.state(stage.latest().key) == "accepted":
        stage.say(nt.committed(stage.latest()))
    assert stage.application.state(stage.latest().key) == "agreed"
    assert stage.phase is ChangePhase.GATHERING
    assert stage.site.change().accepted == processors


def test_a_change_of_which_nothing_was_kept_is_given_up() -> None:
    stage = restarted_after(0)
    assert stage.phase is None

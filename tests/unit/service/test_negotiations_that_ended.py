# SPDX-License-Identifier: Apache-2.0
"""A negotiation has ended, the application has not heard how, and the service is another one by then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter import negotiation as nt
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.scheduler.records import ChangePhase
from tests.unit.negotiation.templates import CPU
from tests.unit.service.test_negotiations import Stage, wish

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.model import PlaceholderId


class HardOfHearing(Stage):
    """Nothing that koala says arrives while the process is out of contact."""

    out_of_contact = False
    written = b""
    """By koala, last."""

    def tell_application(self, placeholder: PlaceholderId, task: str, data: bytes) -> bool:
        self.written = data
        return not self.out_of_contact and super().tell_application(placeholder, task, data)

    def come_back(self) -> None:
        self.heard += self.application.disconnected(self.site.now)
        self.start()
        self.out_of_contact = False
        self.manager.in_contact(0)
        self.application.resumed()
        self.deliver()


def change(stage: Stage) -> None:
    stage.site.hold_stubs()
    stage.go_on()
    stage.site.reach()
    stage.go_on()
    stage.site.made()
    stage.go_on()


def test_what_was_agreed_on_has_been_made() -> None:
    stage = HardOfHearing(5, Approach.NONE)
    stage.say(wish(2))
    acceptance = stage.latest()
    stage.out_of_contact = True
    stage.say(nt.committed(acceptance))
    change(stage)
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
    change(stage)
    assert stage.heard[-1].kind == "consumed"


def restarted_after(kept: int | None = None, *answers: Callable[[nt.Template], nt.Template]) -> Stage:
    """Kill the service after answers to its counter-offer were heard and kept, and before the scheduler was told."""
    stage = Stage(5, Approach.NONE)
    stage.say(wish(6))
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

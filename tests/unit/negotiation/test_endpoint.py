# SPDX-License-Identifier: Apache-2.0
"""Conversations of two ends: offers, answers, agreements, and everything that may come in between."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from koala_adapter import negotiation as nt
from koala_adapter.negotiation import Endpoint, Event, Resource, Template, accepted, committed, consumed, countered
from koala_adapter.negotiation.states import (
    ACCEPTED,
    ACCEPTING,
    AGREED,
    ASKED,
    BROKEN,
    CONSUMED,
    EXPIRED,
    LOST,
    OFFERED,
    REJECTED,
    WITHDRAWN,
)
from koala_adapter.negotiation.templates import (
    APPLICATION,
    GROW,
    MANDATORY,
    NT_COMMITTED,
    NT_ERROR,
    NT_EXPIRED,
    NT_REJECTED,
    NT_WITHDRAWN,
    RMS,
    SHRINK,
    ended,
)
from tests.examples import repeated
from tests.unit.negotiation.templates import CPU, MEM, carried, pair, published, request

OURS = (APPLICATION, "1")
"""The negotiation that the application begins in these tests."""


def statuses(end: Endpoint) -> list[str]:
    """Return what an end has to send, in a word each."""
    return [template.status for template in end.take_outbox()]


def peer_says(end: Endpoint, *templates: Template, now: float = 0.0) -> list[Event]:
    """Let an end hear templates that no endpoint of ours might send, and return what happens."""
    return [event for one in templates for event in end.hear(one, now)]


def heard(events: list[Event], kind: str = "offer") -> Template:
    """Return the template of the only event, which is of a kind."""
    (event,) = events
    assert event.kind == kind
    assert event.template is not None
    return event.template


def over(events: list[Event]) -> Event:
    """Return the only event, by which a negotiation has ended."""
    (event,) = events
    assert event.kind == "ended"
    return event


def test_three_rounds_to_an_agreement_that_is_consumed() -> None:
    """14 are asked for, 6 are idle; the application takes 4 of them; they are committed to, and allocated."""
    rms, app = pair()
    app.tell(request(14, memory=512), 0)
    asked = heard(carried(app, rms))
    assert asked.quantities() == {CPU: 14, MEM: 512}
    rms.tell(nt.decide(asked, {"CPU": 6}), 1)
    offered = heard(carried(rms, app))
    assert (offered.round, offered.quantities()) == (2, {CPU: 6})
    app.tell(countered(offered, {CPU: 4}), 2)
    again = heard(carried(app, rms))
    rms.tell(accepted(again), 3)
    taken = heard(carried(rms, app), "accepted")
    app.tell(committed(taken), 4)
    agreed = heard(carried(app, rms), "agreed")
    rms.tell(consumed(agreed), 50)
    real = heard(carried(rms, app), "consumed")
    assert real.quantities() == {CPU: 4}
    assert real.round == 3
    assert app.state(OURS) == rms.state(OURS) == CONSUMED
    assert app.next_deadline() is rms.next_deadline() is None
    assert app.open_negotiations == 0


def test_either_side_begins_and_ids_do_not_meet() -> None:
    """Both talk at once, with the same id: these are two negotiations, and both come to their end."""
    rms, app = pair()
    app.tell(request(2), 0)
    rms.tell(request(3, initiator=RMS)._replace(direction=SHRINK, obligation=MANDATORY), 0)
    from_app, from_rms = app.take_outbox(), rms.take_outbox()
    asked = heard(peer_says(rms, *from_app))
    told = heard(peer_says(app, *from_rms))
    assert told.direction == SHRINK
    rms.tell(nt.rejected(asked, "nothing is free"), 1)
    app.tell(accepted(told), 1)
    ended = over(carried(rms, app))
    assert (ended.state, ended.reason, ended.was_agreed) == (REJECTED, "nothing is free", False)
    taken = heard(carried(app, rms), "accepted")
    assert taken.key == (RMS, "1")


def asked_pair(quantity: int = 4, memory: int = 0) -> tuple[Endpoint, Endpoint, Template]:
    """Return resource management that has an application's request, the application, and the request."""
    rms, app = pair()
    app.tell(request(quantity, memory=memory), 0)
    event = heard(carried(app, rms))
    return rms, app, event


def accepted_pair() -> tuple[Endpoint, Endpoint, Template]:
    """Return both sides when the application has still to commit to what was accepted."""
    rms, app, offer = asked_pair()
    rms.tell(accepted(offer), 0)
    event = heard(carried(rms, app), "accepted")
    return rms, app, event


def agreed_pair() -> tuple[Endpoint, Endpoint, Template]:
    """Return both sides when there is an agreement."""
    rms, app, acceptance = accepted_pair()
    app.tell(committed(acceptance), 0)
    event = heard(carried(app, rms), "agreed")
    return rms, app, event


def test_an_own_step_that_does_not_follow_is_refused_and_changes_nothing() -> None:
    rms, app, offer = asked_pair(4, memory=9)
    wrong = [
        (app, offer, "offer in 1 of APPLICATION: the negotiation is offered"),
        (app, committed(accepted(offer)), "cannot say commit"),
        (app, consumed(offer), "cannot say consume"),
        (rms, committed(offer), "cannot say commit"),
        (rms, accepted(countered(offer, {CPU: 3})), "are not the 4"),
        (rms, countered(offer, {MEM: 8}), "MEM is fixed"),
        (rms, request(1, agreement_id="2"), "RMS is the initiator"),
        (rms, nt.rejected(request(1, agreement_id="2")), "is new"),
        (rms, ended(offer, NT_ERROR, "because"), "cannot say error"),
    ]
    for end, template, named in wrong:
        with pytest.raises(nt.NegotiationStepError, match=named):
            end.tell(template, 0)
        assert end.take_outbox() == []
    rms.tell(accepted(offer), 0)
    event = heard(carried(rms, app), "accepted")
    with pytest.raises(nt.NegotiationStepError, match="not what was accepted"):
        app.tell(committed(accepted(event, declined=[MEM])), 0)


@pytest.mark.parametrize(
    ("message", "state", "reply"),
    [
        (committed(request()), BROKEN, NT_ERROR),
        (consumed(request()), BROKEN, NT_ERROR),
        (accepted(countered(request(), {CPU: 3})), BROKEN, NT_ERROR),
        (accepted(request(memory=5)), BROKEN, NT_ERROR),
        (accepted(request())._replace(round=7), BROKEN, NT_ERROR),
        (request(3)._replace(round=5), REJECTED, NT_REJECTED),
        (request(3)._replace(direction=SHRINK), REJECTED, NT_REJECTED),
        (ended(request(), NT_ERROR, "what?"), BROKEN, None),
        (ended(request(), NT_EXPIRED, ""), EXPIRED, None),
        (nt.rejected(request()), REJECTED, None),
        (nt.withdrawn(request()), WITHDRAWN, None),
    ],
)
def test_what_may_come_upon_an_offer(message: Template, state: str, reply: str | None) -> None:
    """Each message that is no good answer has its own, and ends this negotiation only."""
    _, app = pair()
    app.tell(request(), 0)
    app.tell(request(agreement_id="2"), 0)
    app.take_outbox()
    event = over(peer_says(app, message))
    assert (event.state, app.state(OURS)) == (state, state)
    assert event.reason, "the peer's programmer reads it in its answer, and ours in the event"
    assert [(one.status, one.reason) for one in app.take_outbox()] == ([(reply, event.reason)] if reply else [])
    assert app.state((APPLICATION, "2")) == OFFERED


@pytest.mark.parametrize("message", [accepted(request()), committed(request()), consumed(request())])
def test_what_is_not_known_has_expired(message: Template) -> None:
    """Whoever believes in an agreement that we do not know is told that there is none."""
    rms, app = pair()
    assert peer_says(rms, message) == []
    assert statuses(rms) == [NT_EXPIRED]
    assert peer_says(app, nt.rejected(message), nt.withdrawn(message), ended(message, NT_EXPIRED, "")) == []
    assert app.take_outbox() == []
    assert peer_says(app, ended(message, NT_ERROR, "what?")) == [Event("complaint", reason="what?")]


@pytest.mark.parametrize(
    "first",
    [
        request()._replace(round=2),
        request(initiator=RMS),
        countered(request(memory=9)._replace(resources=request(memory=9).resources[1:]), {}, declined=[MEM]),
    ],
)
def test_a_first_offer_that_is_none_is_rejected(first: Template) -> None:
    """It must be the initiator's, of round 1, and about something; nothing is remembered of another."""
    rms, _ = pair()
    assert peer_says(rms, first) == []
    assert statuses(rms) == [NT_REJECTED]
    assert rms.open_negotiations == 0


def test_the_rounds_have_a_bound_on_both_sides() -> None:
    """Who would make one offer too many is refused it; one that comes in is rejected."""
    rms, app = pair(most_rounds=3)
    ends, quantity = [app, rms], 10
    app.tell(request(quantity), 0)
    for _ in range(2):
        sender, receiver = ends
        event = heard(carried(sender, receiver))
        quantity -= 1
        receiver.tell(countered(event, {CPU: quantity}), 0)
        ends.reverse()
    event = heard(carried(app, rms))
    fourth = countered(event, {CPU: 1})
    with pytest.raises(nt.NegotiationStepError, match="there were 3 offers already"):
        rms.tell(fourth, 0)
    ended = over(peer_says(app, fourth))
    assert (ended.state, ended.reason) == (REJECTED, "no agreement within 3 offers")


def test_open_negotiations_have_a_bound_on_both_sides() -> None:
    """One too many is rejected with the reason, and the others are as they were."""
    rms, app = pair(most_open=2)
    for number in "12":
        app.tell(request(agreement_id=number), 0)
    with pytest.raises(nt.NegotiationStepError, match="too many"):
        app.tell(request(agreement_id="3"), 0)
    assert len(carried(app, rms)) == 2
    assert peer_says(rms, request(agreement_id="3")) == []
    (reply,) = rms.take_outbox()
    assert (reply.status, reply.reason) == (NT_REJECTED, "2 negotiations are open already")
    assert rms.open_negotiations == 2


def test_ended_negotiations_are_forgotten_one_day() -> None:
    rms, app = pair(most_kept=5)
    for number in range(50):
        app.tell(request(agreement_id=str(number)), 0)
        rms.tell(nt.rejected(heard(carried(app, rms))), 0)
        carried(rms, app)
    for end in (rms, app):
        known = [n for n in range(50) if end.state((APPLICATION, str(n))) == REJECTED]
        assert known == [45, 46, 47, 48, 49]


def test_an_offer_expires_on_both_sides() -> None:
    """The time of an answer is counted by each side's own clock, from when it was said or heard."""
    rms, app, offer = asked_pair()
    assert offer.answer_within == 30.0
    assert app.next_deadline() == rms.next_deadline() == 30.0
    assert app.time_passed(29.9) == []
    ended = over(app.time_passed(30.0))
    assert (ended.state, ended.reason) == (EXPIRED, "no answer in time")
    rms.tell(accepted(offer), 30.0)
    assert carried(rms, app) == []
    late = over(carried(app, rms))
    assert late.state == EXPIRED
    assert rms.next_deadline() is app.next_deadline() is None


def test_a_peer_cannot_bind_us_for_ever() -> None:
    """However long an offer may be answered, we stop caring after our own bound."""
    rms, _ = pair(longest_answer=100.0)
    peer_says(rms, request()._replace(answer_within=1e6), now=5)
    assert rms.next_deadline() == 105


def test_a_commitment_that_comes_too_late_is_void() -> None:
    """One side has committed while the other gave up: both are told that there is no agreement."""
    rms, app, acceptance = accepted_pair()
    app.tell(committed(acceptance), 29)
    over(rms.time_passed(30))
    assert carried(app, rms, 31) == []
    void = over(carried(rms, app, 31))
    assert (void.state, void.was_agreed) == (EXPIRED, True)


def test_doubled_commitments_are_harmless() -> None:
    """In whatever number acceptance, commitment and report come again, each happens once."""
    rms, app, agreement = agreed_pair()
    assert peer_says(rms, *[committed(agreement)] * 3) == []
    assert rms.take_outbox() == []
    assert peer_says(app, *[accepted(agreement)] * 2) == []
    assert statuses(app) == [NT_COMMITTED] * 2
    rms.tell(consumed(agreement), 0)
    assert [event.kind for event in carried(rms, app)] == ["consumed"]
    assert peer_says(app, *[consumed(agreement)] * 3) == []
    assert peer_says(rms, committed(agreement), request(4)) == []
    assert rms.take_outbox() == app.take_outbox() == []


def test_an_offer_that_comes_again_brings_the_answer_again() -> None:
    rms, _app, offer = asked_pair(8)
    assert peer_says(rms, offer, offer._replace(round=None)) == []
    assert rms.take_outbox() == []
    rms.tell(countered(offer, {CPU: 6}), 0)
    rms.take_outbox()
    assert peer_says(rms, offer) == []
    (reply,) = rms.take_outbox()
    assert (reply.round, reply.quantities()) == (2, {CPU: 6})


def test_an_agreement_that_cannot_be_kept_is_withdrawn() -> None:
    rms, app, agreement = agreed_pair()
    rms.tell(nt.withdrawn(agreement, "the node has failed"), 9)
    ended = over(carried(rms, app))
    assert (ended.state, ended.was_agreed, ended.reason) == (WITHDRAWN, True, "the node has failed")
    assert peer_says(rms, committed(agreement)) == []
    (reply,) = rms.take_outbox()
    assert (reply.status, reply.reason) == (NT_WITHDRAWN, "the node has failed")


def test_the_end_of_the_connection_ends_what_is_not_agreed_on() -> None:
    """Offers are lost; an acceptance waits for its deadline; an agreement stays."""
    for make, rms_state, app_state in [
        (asked_pair, LOST, LOST),
        (accepted_pair, ACCEPTING, LOST),
        (agreed_pair, AGREED, AGREED),
    ]:
        rms, app, _ = make()
        events = [*rms.disconnected(1), *app.disconnected(1)]
        assert (rms.state(OURS), app.state(OURS)) == (rms_state, app_state)
        assert [event.kind for event in events] == ["ended"] * (rms_state, app_state).count(LOST)
        assert rms.take_outbox() == []


def test_a_commitment_that_was_lost_is_asked_for_again() -> None:
    """After a new connection the acceptance is said again, and answered by the commitment that was given."""
    rms, app, acceptance = accepted_pair()
    app.tell(committed(acceptance), 1)
    app.take_outbox()  # lost on its way
    for end in (rms, app):
        assert end.disconnected(2) == []
        end.resumed()
    assert carried(rms, app, 3) == []
    heard(carried(app, rms, 3), "agreed")
    assert rms.state(OURS) == app.state(OURS) == AGREED


def test_a_commitment_that_was_never_given_is_not_invented() -> None:
    """The connection ended before the commitment: after the new one, both know that nothing is agreed."""
    rms, app, _ = accepted_pair()
    app.disconnected(2)
    rms.disconnected(2)
    rms.resumed()
    app.resumed()
    assert carried(rms, app, 3) == []
    ended = over(carried(app, rms, 3))
    assert (ended.state, ended.was_agreed) == (WITHDRAWN, False)


@pytest.mark.parametrize(("say", "kind"), [(consumed, "consumed"), (nt.withdrawn, "ended")])
def test_what_became_of_an_agreement_is_said_again(say: Callable[[Template], Template], kind: str) -> None:
    """A report or a withdrawal that was lost with its connection comes on the next one, and takes effect once."""
    rms, app, agreement = agreed_pair()
    rms.tell(say(agreement), 1)
    rms.take_outbox()  # lost on its way
    for expected in ([kind], []):
        for end in (rms, app):
            end.disconnected(2)
            end.resumed()
        assert [event.kind for event in carried(rms, app, 3)] == expected
        assert carried(app, rms, 3) == []
    assert rms.state(OURS) == app.state(OURS)


def test_what_is_no_template_is_complained_of() -> None:
    """The peer gets a template that says what is wrong; it belongs to no negotiation and ends none."""
    rms, app = pair()
    app.tell(request(), 0)
    app.take_outbox()
    rms.complain("a template is in UTF-8;\nbyte 3 is not")
    assert carried(rms, app) == [Event("complaint", reason="a template is in UTF-8; byte 3 is not")]
    assert app.state(OURS) == OFFERED


def test_a_peer_that_knows_the_published_form_alone() -> None:
    """It negotiates about a cluster's processors with templates that do not name one."""
    where = Resource("CPU", 4, cluster="beta", component="workers")
    rms = Endpoint(RMS)
    rms.tell(request(initiator=RMS)._replace(resources=(where,)), 0)
    offer = published(rms.take_outbox()[0])
    counter = heard(peer_says(rms, countered(offer, {CPU: 2})))
    assert counter.quantities() == {("CPU", "beta", "workers"): 2}
    rms.tell(accepted(counter), 1)
    agreed = heard(peer_says(rms, committed(countered(offer, {CPU: 2}))), "agreed")
    assert agreed.direction == GROW


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (NT_REJECTED, "the peer has rejected it"),
        (NT_WITHDRAWN, "the peer has withdrawn it"),
        (NT_EXPIRED, "the peer has let it expire"),
        (NT_ERROR, "the peer reports an error"),
    ],
)
def test_a_peer_that_gives_no_reason_has_said_what_may_follow(status: str, why: str) -> None:
    end = Endpoint()
    end.tell(request(2), 0)
    assert over(peer_says(end, published(request(2)._replace(status=status)))).reason == why


def test_an_end_that_is_asked_again_about_what_has_ended_says_why_it_has() -> None:
    """The peer may have been killed before it took note of that: what it says is no mistake of its."""
    offer = request(3, initiator=RMS)._replace(round=1)
    for again in (offer, accepted(offer)):
        end = Endpoint()
        peer_says(end, offer, ended(offer, NT_EXPIRED, "no answer in time"), again)
        *_, answer = end.take_outbox()
        assert (answer.status, answer.reason) == (NT_EXPIRED, "no answer in time")


@pytest.mark.parametrize("says", [accepted, nt.rejected, nt.withdrawn, lambda offer: countered(offer, {CPU: 2})])
def test_both_speak_at_the_same_time(says: Callable[[Template], Template]) -> None:
    """An offer is withdrawn while the answer to it is on its way: both know that nothing is agreed on."""
    rms, app = pair()
    key = rms.tell(request(4, initiator=RMS), 0)
    app.tell(says(heard(carried(rms, app))), 0)
    rms.tell(nt.withdrawn(request(4, initiator=RMS), "it is gone"), 0)
    crossing = rms.take_outbox()
    carried(app, rms)
    assert {event.kind for event in [*peer_says(app, *crossing), *carried(rms, app)]} <= {"ended"}
    assert rms.state(key) == WITHDRAWN
    assert app.state(key) in {WITHDRAWN, REJECTED}
    assert carried(app, rms) == []


def test_commitments_that_come_twice_and_late_in_any_order() -> None:
    """After a reconnect, all that was said of three negotiations comes again in every order: each is agreed on once."""
    rms, app = pair()
    wishes, commitments = [request(2, agreement_id=name) for name in "123"], []
    for wish in wishes:
        app.tell(wish, 0)
        rms.tell(accepted(heard(carried(app, rms))), 0)
        app.tell(committed(heard(carried(rms, app), "accepted")), 0)
        commitments += app.take_outbox()  # which do not arrive before the connection ends
    assert rms.disconnected(1) == app.disconnected(1) == []
    app.resumed()
    again = app.take_outbox()
    assert again == commitments
    events = []
    for order in itertools.permutations([*commitments, again[0], wishes[0]]):
        events += peer_says(rms, *order)
    assert [event.kind for event in events] == ["agreed"] * 3
    assert [rms.state(wish.key) for wish in wishes] == [AGREED] * 3


# -- Replay --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_what_is_replayed_leads_to_the_same_state(seed: int) -> None:
    """An endpoint that begins anew is where the earlier one was, has said nothing, and says the same again."""
    chance, log = random.Random(seed), []  # type: random.Random, list[tuple[str, Template]]
    rms, app = pair()
    app.tell(request(chance.randint(1, 9), memory=chance.choice([0, 5])), 0)
    for _ in range(chance.randint(1, 6)):
        for end, peer in ((app, rms), (rms, app)):
            for said in end.take_outbox():
                log.append((end.side, said))
                for event in peer.hear(said, 0):
                    answer(peer, event, chance)
    log += [(RMS, said) for said in rms.take_outbox()]
    again = pair()[0]
    for sender, said in log:
        again.replay(sender, said, 60.0)
    assert again.take_outbox() == []
    assert (again.state(OURS), again.standing(OURS)) == (rms.state(OURS), rms.standing(OURS))
    deadline = rms.next_deadline()
    assert again.next_deadline() == (None if deadline is None else deadline + 60.0)
    for end in (rms, again):
        end.resumed()
    standing = again.standing(OURS)
    agreement = [committed(standing)] if standing is not None and again.state(OURS) == AGREED else []
    assert again.take_outbox() == (agreement or rms.take_outbox())


# -- Random schedules ----------------------------------------------------------------------------------------


def answer(end: Endpoint, event: Event, chance: random.Random) -> None:
    """Answer as a program with a mind of its own."""
    if event.template is None or end.state(event.key) not in {ASKED, ACCEPTED, AGREED}:
        return
    value = event.template
    if event.kind == "accepted":
        end.tell(committed(value) if chance.random() < 0.8 else nt.withdrawn(value, "it is gone"), 0)
    elif event.kind == "offer" and chance.random() < 0.9:
        reply = nt.decide(value, {"CPU": chance.randint(0, 12)})
        last = reply.status == "NT_NEGOTIATION" and (value.round or 0) >= MOST_ROUNDS
        end.tell(nt.rejected(value) if last else reply, 0)
    elif event.kind == "agreed" and end.side == RMS and chance.random() < 0.5:
        end.tell(consumed(value), 0)


MOST_ROUNDS, ANSWER_WITHIN = 4, 60.0


@dataclass
class Line:
    """Both ends of a connection, and what is on the way between them."""

    chance: random.Random
    ends: tuple[Endpoint, Endpoint] = field(
        default_factory=lambda: pair(answer_within=ANSWER_WITHIN, most_kept=10_000, most_rounds=MOST_ROUNDS)
    )
    way: dict[str, list[Template]] = field(default_factory=lambda: {RMS: [], APPLICATION: []})
    """To each side."""
    strays: list[tuple[str, Template]] = field(default_factory=list)
    connected: bool = True
    begun: int = 0
    keys: set[nt.NegotiationKey] = field(default_factory=set)

    def flush(self) -> None:
        """Put on the way what both have to say; without a connection it is lost."""
        for end in self.ends:
            for said in end.take_outbox():
                self.strays.append((nt.OTHER_SIDE[end.side], said))
                if self.connected:
                    self.way[nt.OTHER_SIDE[end.side]].append(said)

    def arrive(self, end: Endpoint, said: Template, now: float) -> None:
        """Let a template arrive, and have it answered."""
        for event in end.hear(said, now):
            answer(end, event, self.chance)
        self.flush()

    def deliver(self, end: Endpoint, now: float) -> None:
        """Let what is first on the way to an end arrive, now and then twice."""
        if self.way[end.side]:
            said = self.way[end.side].pop(0)
            for _ in range(1 + (self.chance.random() < 0.1)):
                self.arrive(end, said, now)

    def begin(self, end: Endpoint, now: float) -> None:
        """Have an end begin a negotiation."""
        self.begun += 1
        if self.connected and end.open_negotiations < 10:
            offer = request(self.chance.randint(1, 12), agreement_id=str(self.begun), initiator=end.side)
            self.keys.add(end.tell(offer, now))

    def switch(self, now: float) -> None:
        """End the connection, with what is on the way lost or coming again as a stray; or make a new one."""
        self.flush()
        self.connected = not self.connected
        for end in self.ends:
            self.way[end.side].clear()
            if self.connected:
                end.resumed()
            else:
                end.disconnected(now)

    def settle(self, now: float) -> None:
        """Deliver all on a good connection until neither end has anything to say, and let all time run out."""
        if not self.connected:
            self.switch(now)
        for end in self.ends:
            end.time_passed(now)
        self.flush()
        while any(self.way.values()):
            for end in self.ends:
                self.deliver(end, now)


@pytest.mark.hypothesis  # of random schedules: in the night there are more
@pytest.mark.parametrize("seed", range(repeated(10)))
def test_both_ends_agree_in_the_end(seed: int) -> None:
    """Over random schedules of lost, doubled, late and stray messages, both know whether there is an agreement."""
    chance = random.Random(seed)
    line, now = Line(chance), 0.0
    for _ in range(600):
        now, end = now + chance.random(), chance.choice(line.ends)
        match chance.randrange(20):
            case 0 | 1:
                line.begin(end, now)
            case number if number < 16:
                line.deliver(end, now)
            case 16:
                line.switch(now)
            case 17 if line.strays and line.connected:
                side, said = chance.choice(line.strays)
                line.arrive(line.ends[side != RMS], said, now)
            case _:
                end.time_passed(now)
        line.flush()
    for later in (0.0, 100.0, 200.0):
        line.settle(now + later)
    rms, app = line.ends
    assert rms.next_deadline() is app.next_deadline() is None
    states = {(rms.state(key), app.state(key)) for key in line.keys}
    assert all((one in {AGREED, CONSUMED}) == (other in {AGREED, CONSUMED}) for one, other in states)
    assert states & {(AGREED, AGREED), (CONSUMED, CONSUMED)}

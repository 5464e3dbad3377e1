# SPDX-License-Identifier: Apache-2.0
"""Conversations of two ends: offers, answers, agreements, and everything that may come in between."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import NegotiationStepError
from koala_adapter.negotiation.serviceside.document import FrameBuffer, build, frame, parse
from koala_adapter.negotiation.serviceside.endpoint import (
    Agreed,
    Complaint,
    Consumed,
    Ended,
    Endpoint,
    OfferAccepted,
    OfferReceived,
    Unreadable,
)
from koala_adapter.negotiation.serviceside.states import State
from koala_adapter.negotiation.serviceside.template import (
    Direction,
    NegotiationKey,
    Obligation,
    Resource,
    ResourceKey,
    Side,
    Status,
    Template,
    accepted,
    committed,
    consumed,
    countered,
    expired,
    faulty,
    published,
    rejected,
    withdrawn,
)
from tests.granting import Terms, decide
from tests.unit.negotiation.foreign import ForeignEndpoint
from tests.unit.negotiation.templates import CPU, MEM, carried, pair, request

if TYPE_CHECKING:
    from collections.abc import Callable

OURS = NegotiationKey(initiator=Side.APPLICATION, agreement_id="1")
"""The negotiation that the application begins in these tests."""


def said(end: Endpoint) -> list[Template]:
    """Return what an end has to send, read again."""
    return [parse(payload) for payload in FrameBuffer().feed(end.data_to_send())]


def statuses(end: Endpoint) -> list[Status]:
    """Return what an end has to send, in a word each."""
    return [template.status for template in said(end)]


def peer_says(end: Endpoint, *templates: Template, now: float = 0.0) -> list[object]:
    """Let an end receive templates that no endpoint of ours might send, and return what happens."""
    return [event for one in templates for event in end.receive(frame(build(one)), now)]


def test_three_rounds_to_an_agreement_that_is_consumed() -> None:
    """14 are asked for, 6 are idle; the application takes 4 of them; they are committed to, and allocated."""
    rms, app = pair()
    app.send(request(14, memory=512), 0)
    (asked,) = carried(app, rms)
    assert isinstance(asked, OfferReceived)
    assert asked.template.quantities() == {CPU: 14, MEM: 512}
    rms.send(decide(asked.template, {CPU: Terms(most=6)}), 1)
    (offered,) = carried(rms, app)
    assert isinstance(offered, OfferReceived)
    assert (offered.template.round, offered.template.quantities()) == (2, {CPU: 6})
    app.send(countered(offered.template, {CPU: 4}), 2)
    (again,) = carried(app, rms)
    assert isinstance(again, OfferReceived)
    rms.send(accepted(again.template), 3)
    (taken,) = carried(rms, app)
    assert isinstance(taken, OfferAccepted)
    app.send(committed(taken.template), 4)
    (agreed,) = carried(app, rms)
    assert isinstance(agreed, Agreed)
    rms.send(consumed(agreed.template), 50)
    (real,) = carried(rms, app)
    assert isinstance(real, Consumed)
    assert real.template.quantities() == {CPU: 4}
    assert real.template.round == 3
    assert app.state(OURS) is rms.state(OURS) is State.CONSUMED
    assert app.next_deadline() is rms.next_deadline() is None
    assert app.open_negotiations == 0


def test_either_side_begins_and_ids_do_not_meet() -> None:
    """Both talk at once, with the same id: these are two negotiations, and both come to their end."""
    rms, app = pair()
    app.send(request(2), 0)
    rms.send(replace(request(3, initiator=Side.RMS), direction=Direction.SHRINK, obligation=Obligation.MANDATORY), 0)
    from_app, from_rms = app.data_to_send(), rms.data_to_send()
    (asked,) = rms.receive(from_app, 0)
    (told,) = app.receive(from_rms, 0)
    assert isinstance(asked, OfferReceived)
    assert isinstance(told, OfferReceived)
    assert told.template.direction is Direction.SHRINK
    rms.send(rejected(asked.template, "nothing is free"), 1)
    app.send(accepted(told.template), 1)
    (ended,) = carried(rms, app)
    assert isinstance(ended, Ended)
    assert (ended.state, ended.reason, ended.was_agreed) == (State.REJECTED, "nothing is free", False)
    (taken,) = carried(app, rms)
    assert isinstance(taken, OfferAccepted)
    assert taken.key == NegotiationKey(initiator=Side.RMS, agreement_id="1")


def asked_pair(quantity: int = 4, memory: int = 0) -> tuple[Endpoint, Endpoint, Template]:
    """Return resource management that has an application's request, the application, and the request."""
    rms, app = pair()
    app.send(request(quantity, memory=memory), 0)
    (event,) = carried(app, rms)
    assert isinstance(event, OfferReceived)
    return rms, app, event.template


def accepted_pair() -> tuple[Endpoint, Endpoint, Template]:
    """Return both sides when the application has still to commit to what was accepted."""
    rms, app, offer = asked_pair()
    rms.send(accepted(offer), 0)
    (event,) = carried(rms, app)
    assert isinstance(event, OfferAccepted)
    return rms, app, event.template


def agreed_pair() -> tuple[Endpoint, Endpoint, Template]:
    """Return both sides when there is an agreement."""
    rms, app, acceptance = accepted_pair()
    app.send(committed(acceptance), 0)
    (event,) = carried(app, rms)
    assert isinstance(event, Agreed)
    return rms, app, event.template


def test_an_own_step_that_does_not_follow_is_refused_and_changes_nothing() -> None:
    """A program that errs is told so; the negotiation goes on."""
    rms, app, offer = asked_pair(4, memory=9)
    wrong = [
        (app, offer, "'offer': negotiation 1 of APPLICATION is 'offered'"),
        (app, committed(accepted(offer)), "'commit'"),
        (app, consumed(offer), "'consume'"),
        (rms, committed(offer), "'commit'"),
        (rms, accepted(countered(offer, {CPU: 3})), "are not the 4"),
        (rms, countered(offer, {MEM: 8}), "MEM is fixed"),
        (rms, request(1, agreement_id="2"), "RMS is the initiator"),
        (rms, rejected(request(1, agreement_id="2")), "is 'new'"),
        (rms, faulty(offer, "because"), "'error'"),
    ]
    for end, template, named in wrong:
        with pytest.raises(NegotiationStepError, match=named):
            end.send(template, 0)
        assert end.data_to_send() == b""
    rms.send(accepted(offer), 0)
    (event,) = carried(rms, app)
    assert isinstance(event, OfferAccepted)
    with pytest.raises(NegotiationStepError, match="not what was accepted"):
        app.send(committed(accepted(event.template, declined=[MEM])), 0)


@pytest.mark.parametrize(
    ("message", "state", "reply"),
    [
        (committed(request()), State.BROKEN, Status.ERROR),
        (consumed(request()), State.BROKEN, Status.ERROR),
        (accepted(countered(request(), {CPU: 3})), State.BROKEN, Status.ERROR),
        (accepted(request(memory=5)), State.BROKEN, Status.ERROR),
        (replace(accepted(request()), round=7), State.BROKEN, Status.ERROR),
        (replace(request(3), round=5), State.REJECTED, Status.REJECTED),
        (replace(request(3), direction=Direction.SHRINK), State.REJECTED, Status.REJECTED),
        (faulty(request(), "what?"), State.BROKEN, None),
        (expired(request()), State.EXPIRED, None),
        (rejected(request()), State.REJECTED, None),
        (withdrawn(request()), State.WITHDRAWN, None),
    ],
)
def test_what_may_come_upon_an_offer(message: Template, state: State, reply: Status | None) -> None:
    """Each message that is no good answer has its own, and ends this negotiation only."""
    _, app = pair()
    app.send(request(), 0)
    app.send(request(agreement_id="2"), 0)
    app.data_to_send()
    (event,) = peer_says(app, message)
    assert isinstance(event, Ended)
    assert (event.state, app.state(OURS)) == (state, state)
    assert statuses(app) == ([reply] if reply else [])
    assert app.state(OURS._replace(agreement_id="2")) is State.OFFERED
    assert not app.unreadable


def test_an_error_says_what_was_wrong() -> None:
    """The peer's programmer reads it in the reason, and ours in the event."""
    _, app = pair()
    app.send(request(), 0)
    app.data_to_send()
    (event,) = peer_says(app, accepted(countered(request(), {CPU: 3})))
    (reply,) = said(app)
    assert isinstance(event, Ended)
    assert event.reason == reply.reason == "3 CPU are not the 4 that stand"


@pytest.mark.parametrize("message", [accepted(request()), committed(request()), consumed(request())])
def test_what_is_not_known_has_expired(message: Template) -> None:
    """Whoever believes in an agreement that we do not know is told that there is none."""
    rms, app = pair()
    assert peer_says(rms, message) == []
    assert statuses(rms) == [Status.EXPIRED]
    assert peer_says(app, rejected(message), withdrawn(message), expired(message)) == []
    assert app.data_to_send() == b""
    assert peer_says(app, faulty(message, "what?")) == [Complaint(reason="what?")]


@pytest.mark.parametrize(
    "first",
    [
        replace(request(), round=2),
        request(initiator=Side.RMS),
        countered(replace(request(memory=9), resources=request(memory=9).resources[1:]), {}, declined=[MEM]),
    ],
)
def test_a_first_offer_that_is_none_is_rejected(first: Template) -> None:
    """It must be the initiator's, of round 1, and about something; nothing is remembered of another."""
    rms, _ = pair()
    assert peer_says(rms, first) == []
    assert statuses(rms) == [Status.REJECTED]
    assert rms.open_negotiations == 0


def test_the_rounds_have_a_bound_on_both_sides() -> None:
    """Who would make one offer too many is refused it; one that comes in is rejected."""
    rms, app = pair(most_rounds=3)
    ends, quantity = [app, rms], 10
    app.send(request(quantity), 0)
    for _ in range(2):
        sender, receiver = ends
        (event,) = carried(sender, receiver)
        assert isinstance(event, OfferReceived)
        quantity -= 1
        receiver.send(countered(event.template, {CPU: quantity}), 0)
        ends.reverse()
    (event,) = carried(app, rms)
    assert isinstance(event, OfferReceived)
    fourth = countered(event.template, {CPU: 1})
    with pytest.raises(NegotiationStepError, match="there were 3 offers already"):
        rms.send(fourth, 0)
    (ended,) = peer_says(app, fourth)
    assert isinstance(ended, Ended)
    assert (ended.state, ended.reason) == (State.REJECTED, "no agreement within 3 offers")


def test_open_negotiations_have_a_bound_on_both_sides() -> None:
    """One too many is rejected with the reason, and the others are as they were."""
    rms, app = pair(most_open=2)
    for number in "12":
        app.send(request(agreement_id=number), 0)
    with pytest.raises(NegotiationStepError, match="too many"):
        app.send(request(agreement_id="3"), 0)
    assert len(carried(app, rms)) == 2
    assert peer_says(rms, request(agreement_id="3")) == []
    (reply,) = said(rms)
    assert (reply.status, reply.reason) == (Status.REJECTED, "2 negotiations are open already")
    assert rms.open_negotiations == 2


def test_ended_negotiations_are_forgotten_one_day() -> None:
    """A peer cannot fill our memory with negotiations that have ended."""
    rms, app = pair(most_kept=5)
    for number in range(50):
        app.send(request(agreement_id=str(number)), 0)
        for event in carried(app, rms):
            assert isinstance(event, OfferReceived)
            rms.send(rejected(event.template), 0)
        carried(rms, app)
    for end in (rms, app):
        known = [n for n in range(50) if end.state(OURS._replace(agreement_id=str(n))) is State.REJECTED]
        assert known == [45, 46, 47, 48, 49]


def test_an_offer_expires_on_both_sides() -> None:
    """The time of an answer is counted by each side's own clock, from when it was said or heard."""
    rms, app, offer = asked_pair()
    assert offer.answer_within == 30.0
    assert app.next_deadline() == rms.next_deadline() == 30.0
    assert app.time_passed(29.9) == []
    (ended,) = app.time_passed(30.0)
    assert isinstance(ended, Ended)
    assert (ended.state, ended.reason) == (State.EXPIRED, "no answer in time")
    rms.send(accepted(offer), 30.0)
    assert carried(rms, app) == []
    (late,) = carried(app, rms)
    assert isinstance(late, Ended)
    assert late.state is State.EXPIRED
    assert rms.next_deadline() is app.next_deadline() is None


def test_a_peer_cannot_bind_us_for_ever() -> None:
    """However long an offer may be answered, we stop caring after our own bound."""
    rms, _ = pair(longest_answer=100.0)
    peer_says(rms, replace(request(), answer_within=1e6), now=5)
    assert rms.next_deadline() == 105


def test_a_commitment_that_comes_too_late_is_void() -> None:
    """One side has committed while the other gave up: both are told that there is no agreement."""
    rms, app, acceptance = accepted_pair()
    app.send(committed(acceptance), 29)
    (given_up,) = rms.time_passed(30)
    assert isinstance(given_up, Ended)
    assert carried(app, rms, 31) == []
    first, *more = carried(rms, app, 31)
    assert isinstance(first, Ended)
    assert (first.state, first.was_agreed, more) == (State.EXPIRED, True, [])


def test_doubled_commitments_are_harmless() -> None:
    """In whatever number acceptance, commitment and report come again, each happens once."""
    rms, app, agreement = agreed_pair()
    assert peer_says(rms, *[committed(agreement)] * 3) == []
    assert rms.data_to_send() == b""
    assert peer_says(app, *[accepted(agreement)] * 2) == []
    assert statuses(app) == [Status.COMMITTED] * 2
    rms.send(consumed(agreement), 0)
    assert [type(event) for event in carried(rms, app)] == [Consumed]
    assert peer_says(app, *[consumed(agreement)] * 3) == []
    assert peer_says(rms, committed(agreement), request(4)) == []
    assert rms.data_to_send() == app.data_to_send() == b""


def test_an_offer_that_comes_again_brings_the_answer_again() -> None:
    """The answer may have been lost; the counter-offer is made once."""
    rms, _app, offer = asked_pair(8)
    assert peer_says(rms, offer, replace(offer, round=None)) == []
    assert rms.data_to_send() == b""
    rms.send(countered(offer, {CPU: 6}), 0)
    rms.data_to_send()
    assert peer_says(rms, offer) == []
    (reply,) = said(rms)
    assert (reply.round, reply.quantities()) == (2, {CPU: 6})


def test_an_agreement_that_cannot_be_kept_is_withdrawn() -> None:
    """Before it is consumed either side may say that it cannot be."""
    rms, app, agreement = agreed_pair()
    rms.send(withdrawn(agreement, "the node has failed"), 9)
    (ended,) = carried(rms, app)
    assert isinstance(ended, Ended)
    assert (ended.state, ended.was_agreed, ended.reason) == (State.WITHDRAWN, True, "the node has failed")
    assert peer_says(rms, committed(agreement)) == []
    (reply,) = said(rms)
    assert (reply.status, reply.reason) == (Status.WITHDRAWN, "the node has failed")


def test_the_end_of_the_connection_ends_what_is_not_agreed_on() -> None:
    """Offers are lost; an acceptance waits for its deadline; an agreement stays."""
    for make, rms_state, app_state in [
        (asked_pair, State.LOST, State.LOST),
        (accepted_pair, State.ACCEPTING, State.LOST),
        (agreed_pair, State.AGREED, State.AGREED),
    ]:
        rms, app, _ = make()
        events = [*rms.disconnected(1), *app.disconnected(1)]
        assert (rms.state(OURS), app.state(OURS)) == (rms_state, app_state)
        assert [type(event) for event in events] == [Ended] * (rms_state, app_state).count(State.LOST)
        assert rms.data_to_send() == b""


def test_a_commitment_that_was_lost_is_asked_for_again() -> None:
    """After a new connection the acceptance is said again, and answered by the commitment that was given."""
    rms, app, acceptance = accepted_pair()
    app.send(committed(acceptance), 1)
    app.data_to_send()  # lost on its way
    for end in (rms, app):
        assert end.disconnected(2) == []
        end.resumed()
    assert carried(rms, app, 3) == []
    (agreed, *more) = carried(app, rms, 3)
    assert isinstance(agreed, Agreed)
    assert more == []
    assert rms.state(OURS) is app.state(OURS) is State.AGREED


def test_a_commitment_that_was_never_given_is_not_invented() -> None:
    """The connection ended before the commitment: after the new one, both know that nothing is agreed."""
    rms, app, _ = accepted_pair()
    app.disconnected(2)
    rms.disconnected(2)
    rms.resumed()
    app.resumed()
    assert carried(rms, app, 3) == []
    (ended,) = carried(app, rms, 3)
    assert isinstance(ended, Ended)
    assert (ended.state, ended.was_agreed) == (State.WITHDRAWN, False)


@pytest.mark.parametrize(("say", "kind"), [(consumed, Consumed), (withdrawn, Ended)])
def test_what_became_of_an_agreement_is_said_again(say: Callable[[Template], Template], kind: type) -> None:
    """A report or a withdrawal that was lost with its connection comes on the next one, and takes effect once."""
    rms, app, agreement = agreed_pair()
    rms.send(say(agreement), 1)
    rms.data_to_send()  # lost on its way
    for expected in ([kind], []):
        for end in (rms, app):
            end.disconnected(2)
            end.resumed()
        assert [type(event) for event in carried(rms, app, 3)] == expected
        assert carried(app, rms, 3) == []
    assert rms.state(OURS) is app.state(OURS)


def test_half_a_frame_does_not_outlive_its_connection() -> None:
    """The next connection begins with a frame of its own."""
    rms, app = pair()
    app.send(request(), 0)
    data = app.data_to_send()
    assert rms.receive(data[:50], 0) == []
    rms.disconnected(1)
    rms.resumed()
    (event,) = rms.receive(data, 2)
    assert isinstance(event, OfferReceived)


@pytest.mark.parametrize("data", [b"99999999\n", b"GET / HTTP/1.1\r\n", frame(b"<NT/>"), frame(b"<!DOCTYPE x>")])
def test_what_is_no_template_is_told_once_and_ends_the_connection(data: bytes) -> None:
    """The peer gets a template that says what is wrong; whatever else it sends is not read."""
    rms, app = pair()
    (event,) = rms.receive(data + frame(build(request())), 0)
    assert isinstance(event, Unreadable)
    assert rms.unreadable
    assert rms.receive(frame(build(request())), 0) == []
    (complaint,) = carried(rms, app)
    assert complaint == Complaint(reason=event.reason)


def test_a_strict_peer_gets_the_published_form() -> None:
    """It negotiates about a cluster's processors with templates that do not name one."""
    where = Resource(type="CPU", quantity=4, cluster="beta", component="workers")
    rms = Endpoint(side=Side.RMS, host="head", peer="node7", strict_peer=True)
    rms.send(replace(request(initiator=Side.RMS), resources=(where,)), 0)
    (offer,) = said(rms)
    assert published(offer) == offer
    (event,) = peer_says(rms, countered(offer, {CPU: 2}))
    assert isinstance(event, OfferReceived)
    assert event.template.quantities() == {ResourceKey(type="CPU", cluster="beta", component="workers"): 2}
    rms.send(accepted(event.template), 1)
    (agreed,) = peer_says(rms, committed(countered(offer, {CPU: 2})))
    assert isinstance(agreed, Agreed)
    assert agreed.template.direction is Direction.GROW


def application(*, foreign: bool) -> Endpoint | ForeignEndpoint:
    """Return the end of an application, which may be that of the module for applications."""
    kind = ForeignEndpoint if foreign else Endpoint
    return kind(side=Side.APPLICATION, host="node7", peer="head")


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (Status.REJECTED, "the peer has rejected it"),
        (Status.WITHDRAWN, "the peer has withdrawn it"),
        (Status.EXPIRED, "the peer has let it expire"),
        (Status.ERROR, "the peer reports an error"),
    ],
)
@pytest.mark.parametrize("foreign", [False, True])
def test_a_peer_that_gives_no_reason_has_said_what_may_follow(status: Status, why: str, foreign: bool) -> None:  # noqa: FBT001
    """The published form has no reasons."""
    end = application(foreign=foreign)
    end.send(request(2), 0)
    (ended,) = end.receive(frame(build(published(replace(request(2), status=status)))), 1)
    assert isinstance(ended, Ended)
    assert ended.reason == why


@pytest.mark.parametrize("foreign", [False, True])
def test_who_is_asked_again_about_what_has_ended_says_why_it_has(foreign: bool) -> None:  # noqa: FBT001
    """The peer may have been killed before it took note of that: what it says is no mistake of its."""
    offer = replace(request(3, initiator=Side.RMS), round=1)
    for again in (offer, accepted(offer)):
        end = application(foreign=foreign)
        end.receive(frame(build(offer)), 0)
        end.receive(frame(build(expired(offer, "no answer in time"))), 1)
        end.data_to_send()
        end.receive(frame(build(again)), 2)
        (answer,) = [parse(payload) for payload in FrameBuffer().feed(end.data_to_send())]
        assert (answer.status, answer.reason) == (Status.EXPIRED, "no answer in time")

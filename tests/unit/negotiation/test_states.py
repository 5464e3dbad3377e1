# SPDX-License-Identifier: Apache-2.0
"""The state machine and its rules: the tables are whole and end, and what an answer may change; deciding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.negotiation import (
    NegotiationError,
    Resource,
    Template,
    accepted,
    committed,
    consumed,
    countered,
    decide,
)
from koala_adapter.negotiation.states import (
    ACCEPTED,
    ACCEPTING,
    AGAIN,
    AGREED,
    BARGAINING,
    CONSUMED,
    DISCONNECTED,
    ENDED,
    MESSAGES,
    NEW,
    OFFERED,
    RECEIVED,
    RESENT,
    SAID,
    SENT,
    completed,
    problem_of_closing,
    problem_of_counter,
)
from koala_adapter.negotiation.templates import (
    GROW,
    MANDATORY,
    NT_ACCEPTED,
    NT_FIXED,
    NT_NEGOTIATION,
    NT_OPTIONAL,
    NT_REJECTED,
    SHRINK,
    STATUSES,
    checked,
)
from tests.examples import examples
from tests.unit.negotiation.templates import CPU, MEM, published, request, templates

CLOSING = {"reject", "withdraw", "expire", "error"}

# -- Tables --------------------------------------------------------------------------------------------------


def test_every_message_has_an_answer_in_every_state() -> None:
    """No state and no message is forgotten."""
    assert set(RECEIVED) == set(SENT) == {NEW, AGREED, *BARGAINING, *ENDED}
    assert all(set(row) == set(MESSAGES) for row in RECEIVED.values())
    assert set(SAID) == set(STATUSES) == set(RESENT.values())


@pytest.mark.parametrize("state", list(RECEIVED))
def test_what_ends_a_negotiation_is_never_answered(state: str) -> None:
    """So two ends cannot answer each other for ever."""
    assert {RECEIVED[state][message][1] for message in CLOSING} == {"-"}


def test_what_is_said_again_is_not_answered_by_its_like() -> None:
    """A last message that is said again brings no answer that brings it again."""
    steps = [(state, message, step) for state, row in RECEIVED.items() for message, step in row.items()]
    assert {(state, message) for state, message, (_, answer) in steps if answer == AGAIN} == {
        (OFFERED, "repeated offer"),  # our offer: the peer has it, or answers it
        (ACCEPTING, "repeated offer"),  # our acceptance: answered by a commitment
        (AGREED, "accept"),  # our commitment: not answered
        (CONSUMED, "accept"),  # our report: not answered
    }
    assert RECEIVED[AGREED]["commit"] == (AGREED, "-")
    assert RECEIVED[ACCEPTING]["consume"] == (CONSUMED, "-")


@pytest.mark.parametrize("state", ENDED)
def test_the_end_is_final(state: str) -> None:
    """From an ended negotiation nothing leads elsewhere; only what one side holds for real may be void."""
    changing = {message for message, (following, _) in RECEIVED[state].items() if following != state}
    assert changing == (CLOSING if state == CONSUMED else set())
    assert SENT[state] == {}
    assert state not in {*BARGAINING, *DISCONNECTED}


def test_an_agreement_is_reached_only_by_commitment() -> None:
    """Only what was accepted can be committed to, and only what is agreed on, or was just committed, is consumed."""
    to = {(state, message) for state, row in RECEIVED.items() for message, (following, _) in row.items()
          if following != state and following in {AGREED, CONSUMED}}  # fmt: skip
    assert to == {(ACCEPTING, "commit"), (ACCEPTING, "consume"), (AGREED, "consume")}
    assert [state for state, row in SENT.items() if AGREED in row.values()] == [ACCEPTED]


def test_only_an_acceptance_outlives_the_connection() -> None:
    """The commitment to it may be on its way; all else that is not agreed on is lost."""
    assert set(BARGAINING) - set(DISCONNECTED) == {ACCEPTING}


# -- Deciding ------------------------------------------------------------------------------------------------


def test_what_fits_is_accepted_as_it_stands() -> None:
    """Enough of everything: the offer is taken."""
    answer = decide(request(4, memory=512), {"CPU": 6, "MEM": 4096})
    assert (answer.status, answer.quantities()) == (NT_ACCEPTED, {CPU: 4, MEM: 512})


def test_too_much_is_answered_with_what_can_be_had() -> None:
    """The published experiment: 14 are asked for, 6 are idle."""
    answer = decide(request(14), {"CPU": 6})
    assert (answer.status, answer.quantities()) == (NT_NEGOTIATION, {CPU: 6})


def test_an_optional_resource_that_is_missing_is_declined() -> None:
    """Its absence does not stop the agreement on the required one."""
    answer = decide(request(4, memory=512), {"CPU": 4})
    assert (answer.status, answer.quantities()) == (NT_ACCEPTED, {CPU: 4})


@pytest.mark.parametrize("most", [0, 3])
def test_a_required_fixed_resource_refuses_the_whole(most: int) -> None:
    """All required resources, or nothing: also the optional one that could be had is not taken."""
    offer = request(4, memory=512)
    fixed = offer.resources[0]._replace(negotiability=NT_FIXED)
    answer = decide(offer._replace(resources=(fixed, offer.resources[1])), {"CPU": most, "MEM": 512})
    assert (answer.status, answer.reason) == (NT_REJECTED, "4 CPU cannot be taken")


def test_the_bounds_of_the_offer_are_kept() -> None:
    """Who asks for 4, and 3 at least, is not offered 2."""
    offer = request()._replace(resources=(Resource(type="CPU", quantity=4, minimum=3),))
    assert decide(offer, {"CPU": 2}).status == NT_REJECTED
    assert decide(offer, {"CPU": 3}).quantities() == {CPU: 3}


@pytest.mark.parametrize(
    ("held", "offered", "taken"),
    [(4, 4, 4), (4, 1, 0), (4, 2, 0), (4, 3, 0), (4, 12, 12), (4, 13, 12), (3, 2, 1), (1, 9, 7)],
)
def test_an_application_of_powers_of_two(held: int, offered: int, taken: int) -> None:
    """The third published experiment: 5, 6 and 7 are declined, 8 is accepted."""
    answer = decide(request(offered), {"CPU": lambda most: (1 << (held + most).bit_length() - 1) - held})
    if taken:
        assert answer.quantities() == {CPU: taken}
        assert answer.status == (NT_ACCEPTED if taken == offered else NT_NEGOTIATION)
    else:
        assert answer.status == NT_REJECTED


def test_nothing_is_no_agreement() -> None:
    """An offer of optional resources of which none can be had is refused."""
    offer = request(4, memory=1)
    only = offer._replace(resources=offer.resources[1:])
    assert decide(only, {}).status == NT_REJECTED


@examples(100)
@given(templates, st.integers(0, 2**31))
def test_every_answer_may_follow_its_offer(offer: Template, most: int) -> None:
    """What is decided is never what the other side refuses to read, and never more than the terms allow."""
    try:
        offer = checked(offer._replace(status=NT_NEGOTIATION))
    except NegotiationError:
        return  # a required resource is declined: no offer
    answer = decide(offer, {one.type: most for one in offer.resources})
    assert all(many <= most for many in answer.quantities().values()) or answer.status == NT_REJECTED
    match answer.status:
        case "NT_NEGOTIATION":
            assert problem_of_counter(offer, answer) == ""
        case "NT_ACCEPTED":
            assert problem_of_closing(offer, answer) == ""
            assert problem_of_closing(answer, committed(answer)) == ""
        case _:
            assert answer.reason


# -- Rules ---------------------------------------------------------------------------------------------------


def changed(**fields: object) -> Resource:
    """Return the processors of a request with something changed."""
    return request(8).resources[0]._replace(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("counter", "problem"),
    [
        (countered(request(8), {CPU: 6}), ""),
        (countered(request(8), {CPU: 9}), ""),
        (request(8)._replace(resources=(changed(negotiability=NT_FIXED, quantity=2),)), ""),
        (request(8)._replace(resources=(changed(usage=NT_OPTIONAL),)), "usage"),
        (request(8)._replace(resources=(changed(type="MEM"),)), "has the resources of the offer"),
        (request(8, memory=5), "has the resources of the offer"),
        (request(8)._replace(direction=SHRINK), "direction"),
        (request(8)._replace(obligation=MANDATORY), "obligation"),
        (request(8)._replace(direction="", obligation=""), ""),
    ],
)
def test_what_a_counter_offer_may_change(counter: Template, problem: str) -> None:
    """Quantities, and what is negotiable may become fixed; nothing else."""
    found = problem_of_counter(request(8), counter)
    assert problem in found
    assert bool(problem) == bool(found)


def test_what_is_fixed_or_declined_stays_so() -> None:
    """A fixed quantity is not changed, and a declined resource does not come back."""
    offer = request(8, memory=512)
    assert "MEM is fixed" in problem_of_counter(offer, countered(offer, {MEM: 256}))
    declined = countered(offer, {CPU: 6}, declined=[MEM])
    assert problem_of_counter(offer, declined) == ""
    assert "MEM was declined" in problem_of_counter(declined, offer)


def test_a_counter_offer_keeps_to_stated_bounds() -> None:
    """Where an offer says from what to what, a counter-offer is within."""
    offer = request()._replace(resources=(changed(minimum=4, maximum=8),))
    assert problem_of_counter(offer, countered(offer, {CPU: 4})) == ""
    for many in (3, 9):
        assert "outside the bounds" in problem_of_counter(offer, countered(offer, {CPU: many}))


def test_an_acceptance_is_of_what_was_offered() -> None:
    """It may decline what is optional; a commitment may not decline any more."""
    offer = request(8, memory=512)
    other = countered(offer, {CPU: 7})
    assert problem_of_closing(offer, accepted(offer)) == ""
    assert problem_of_closing(offer, accepted(offer, declined=[MEM])) == ""
    assert "are not the 8" in problem_of_closing(offer, accepted(other))
    assert "other resources" in problem_of_closing(offer, accepted(request(8)))
    assert "was declined" in problem_of_closing(countered(offer, {}, declined=[MEM]), accepted(offer))
    assert "cannot be declined" in problem_of_closing(offer, committed(accepted(offer, declined=[MEM])))
    assert problem_of_closing(accepted(offer), consumed(accepted(offer))) == ""


def test_a_peer_of_the_published_form_leaves_out_what_is_known() -> None:
    """Its answer is about the same cluster, component and direction."""
    where = Resource(type="CPU", quantity=4, cluster="beta", component="workers")
    offer = request()._replace(resources=(where,))
    answer = completed(published(accepted(offer)), offer)
    assert problem_of_closing(offer, answer) == ""
    assert answer.quantities() == {("CPU", "beta", "workers"): 4}
    assert answer.direction == GROW

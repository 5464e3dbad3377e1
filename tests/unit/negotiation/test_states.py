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
    assert set(RECEIVED) == set(SENT) == {NEW, AGREED, *BARGAINING, *ENDED}
    assert all(set(row) == set(MESSAGES) for row in RECEIVED.values())
    assert set(SAID) == set(STATUSES) == set(RESENT.values())


@pytest.mark.parametrize("state", list(RECEIVED))
def test_what_ends_a_negotiation_is_never_answered(state: str) -> None:
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


FIXED = Resource("CPU", 4, negotiability=NT_FIXED)
OPTIONAL = Resource("MEM", 512, usage=NT_OPTIONAL, negotiability=NT_FIXED)


@pytest.mark.parametrize(
    ("resources", "terms", "status", "quantities"),
    [
        ([Resource("CPU", 4), OPTIONAL], {"CPU": 6, "MEM": 4096}, NT_ACCEPTED, {CPU: 4, MEM: 512}),
        ([Resource("CPU", 4), OPTIONAL], {"CPU": 4}, NT_ACCEPTED, {CPU: 4}),
        ([Resource("CPU", 14)], {"CPU": 6}, NT_NEGOTIATION, {CPU: 6}),
        ([Resource("CPU", 4, minimum=3)], {"CPU": 3}, NT_NEGOTIATION, {CPU: 3}),
        ([Resource("CPU", 4, minimum=3)], {"CPU": 2}, NT_REJECTED, "4 CPU cannot be taken"),
        ([FIXED, OPTIONAL], {"CPU": 3, "MEM": 512}, NT_REJECTED, "4 CPU cannot be taken"),
        ([FIXED, OPTIONAL], {"MEM": 512}, NT_REJECTED, "4 CPU cannot be taken"),
        ([OPTIONAL], {}, NT_REJECTED, "nothing that is offered can be taken"),
    ],
)
def test_deciding(resources: list[Resource], terms: dict[str, int], status: str, quantities: object) -> None:
    """All required resources or nothing, within the bounds of the offer; an optional one may be declined."""
    answer = decide(request()._replace(resources=tuple(resources)), terms)
    assert (answer.status, answer.reason or answer.quantities()) == (status, quantities)


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


def changed(offer: Template, **fields: object) -> Template:
    """Return an offer with something changed of its first resource."""
    first, *others = offer.resources
    return offer._replace(resources=(first._replace(**fields), *others))  # type: ignore[arg-type]


OFFER, WITH_MEMORY = request(8), request(8, memory=512)
BOUNDED, DECLINED = changed(OFFER, minimum=4, maximum=8), countered(WITH_MEMORY, {}, declined=[MEM])


@pytest.mark.parametrize(
    ("offer", "counter", "problem"),
    [
        (OFFER, countered(OFFER, {CPU: 6}), ""),
        (OFFER, countered(OFFER, {CPU: 9}), ""),
        (OFFER, changed(OFFER, negotiability=NT_FIXED, quantity=2), ""),
        (OFFER, OFFER._replace(direction="", obligation=""), ""),
        (OFFER, changed(OFFER, usage=NT_OPTIONAL), "the usage of CPU stays as it was"),
        (OFFER, changed(OFFER, type="MEM"), "has the resources of the offer"),
        (OFFER, WITH_MEMORY, "has the resources of the offer"),
        (OFFER, OFFER._replace(direction=SHRINK), "the direction of an offer stays as it was"),
        (OFFER, OFFER._replace(obligation=MANDATORY), "the obligation of an offer stays as it was"),
        (WITH_MEMORY, WITH_MEMORY._replace(resources=WITH_MEMORY.resources[::-1]), ""),
        (WITH_MEMORY, DECLINED, ""),
        (WITH_MEMORY, countered(WITH_MEMORY, {MEM: 256}), "MEM is fixed"),
        (DECLINED, WITH_MEMORY, "MEM was declined, and stays so"),
        (BOUNDED, countered(BOUNDED, {CPU: 4}), ""),
        (BOUNDED, countered(BOUNDED, {CPU: 3}), "3 CPU are outside the bounds of the offer"),
        (BOUNDED, countered(BOUNDED, {CPU: 9}), "9 CPU are outside the bounds of the offer"),
    ],
)
def test_what_a_counter_offer_may_change(offer: Template, counter: Template, problem: str) -> None:
    found = problem_of_counter(offer, counter)
    assert problem in found
    assert bool(problem) == bool(found)


@pytest.mark.parametrize(
    ("standing", "closing", "problem"),
    [
        (WITH_MEMORY, accepted(WITH_MEMORY), ""),
        (WITH_MEMORY, accepted(WITH_MEMORY, declined=[MEM]), ""),
        (accepted(WITH_MEMORY), consumed(accepted(WITH_MEMORY)), ""),
        (WITH_MEMORY, accepted(countered(WITH_MEMORY, {CPU: 7})), "7 CPU are not the 8 that stand"),
        (WITH_MEMORY, accepted(OFFER), "it has other resources than what stands"),
        (DECLINED, accepted(WITH_MEMORY), "MEM was declined"),
        (WITH_MEMORY, committed(accepted(WITH_MEMORY, declined=[MEM])), "MEM cannot be declined here"),
    ],
)
def test_what_may_be_accepted_and_committed_to(standing: Template, closing: Template, problem: str) -> None:
    assert problem_of_closing(standing, closing) == problem


def test_a_peer_of_the_published_form_leaves_out_what_is_known() -> None:
    where = Resource(type="CPU", quantity=4, cluster="beta", component="workers")
    offer = request()._replace(resources=(where,))
    answer = completed(published(accepted(offer)), offer)
    assert problem_of_closing(offer, answer) == ""
    assert answer.quantities() == {("CPU", "beta", "workers"): 4}
    assert answer.direction == GROW

# SPDX-License-Identifier: Apache-2.0
"""Deciding, and what a counter-offer, an acceptance and a commitment may change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter import negotiation as nt
from koala_adapter.errors import NegotiationError
from koala_adapter.negotiation.serviceside.document import build, parse
from koala_adapter.negotiation.serviceside.template import (
    Direction,
    Negotiability,
    Obligation,
    Resource,
    ResourceKey,
    Status,
    Template,
    Usage,
    accepted,
    committed,
    completed,
    consumed,
    countered,
    problem_of_closing,
    problem_of_counter,
    published,
)
from tests.examples import examples
from tests.unit.negotiation.templates import CPU, MEM, request, templates


def decide(offer: Template, terms: dict[str, nt.Terms]) -> Template:
    """Return the answer of a program to an offer."""
    return parse(nt.build(nt.decide(nt.parse(build(offer)), terms)))


def test_what_fits_is_accepted_as_it_stands() -> None:
    """Enough of everything: the offer is taken."""
    answer = decide(request(4, memory=512), {"CPU": 6, "MEM": 4096})
    assert (answer.status, answer.quantities()) == (Status.ACCEPTED, {CPU: 4, MEM: 512})


def test_too_much_is_answered_with_what_can_be_had() -> None:
    """The published experiment: 14 are asked for, 6 are idle."""
    answer = decide(request(14), {"CPU": 6})
    assert (answer.status, answer.quantities()) == (Status.NEGOTIATION, {CPU: 6})


def test_an_optional_resource_that_is_missing_is_declined() -> None:
    """Its absence does not stop the agreement on the required one."""
    answer = decide(request(4, memory=512), {"CPU": 4})
    assert (answer.status, answer.quantities()) == (Status.ACCEPTED, {CPU: 4})


@pytest.mark.parametrize("most", [0, 3])
def test_a_required_fixed_resource_refuses_the_whole(most: int) -> None:
    """All required resources, or nothing: also the optional one that could be had is not taken."""
    offer = request(4, memory=512)
    fixed = replace(offer.resources[0], negotiability=Negotiability.FIXED)
    answer = decide(replace(offer, resources=(fixed, offer.resources[1])), {"CPU": most, "MEM": 512})
    assert (answer.status, answer.reason) == (Status.REJECTED, "4 CPU cannot be taken")


def test_the_bounds_of_the_offer_are_kept() -> None:
    """Who asks for 4, and 3 at least, is not offered 2."""
    offer = replace(request(), resources=(Resource(type="CPU", quantity=4, minimum=3),))
    assert decide(offer, {"CPU": 2}).status is Status.REJECTED
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
        assert answer.status is (Status.ACCEPTED if taken == offered else Status.NEGOTIATION)
    else:
        assert answer.status is Status.REJECTED


def test_nothing_is_no_agreement() -> None:
    """An offer of optional resources of which none can be had is refused."""
    offer = request(4, memory=1)
    only = replace(offer, resources=offer.resources[1:])
    assert decide(only, {}).status is Status.REJECTED


@examples(100)
@given(templates, st.integers(0, 2**31))
def test_every_answer_may_follow_its_offer(offer: object, most: int) -> None:
    """What is decided is never what the other side refuses to read, and never more than the terms allow."""
    assert isinstance(offer, type(request()))
    try:
        offer = replace(offer, status=Status.NEGOTIATION)
    except NegotiationError:
        return  # a required resource is declined: no offer
    answer = decide(offer, {one.type: most for one in offer.resources})
    assert all(many <= most for many in answer.quantities().values()) or answer.status is Status.REJECTED
    match answer.status:
        case Status.NEGOTIATION:
            assert problem_of_counter(offer, answer) == ""
        case Status.ACCEPTED:
            assert problem_of_closing(offer, answer) == ""
            assert problem_of_closing(answer, committed(answer)) == ""
        case _:
            assert answer.reason


def changed(**fields: object) -> Resource:
    """Return the processors of a request with something changed."""
    return replace(request(8).resources[0], **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("counter", "problem"),
    [
        (countered(request(8), {CPU: 6}), ""),
        (countered(request(8), {CPU: 9}), ""),
        (replace(request(8), resources=(changed(negotiability=Negotiability.FIXED, quantity=2),)), ""),
        (replace(request(8), resources=(changed(usage=Usage.OPTIONAL),)), "usage"),
        (replace(request(8), resources=(changed(type="MEM"),)), "has the resources of the offer"),
        (request(8, memory=5), "has the resources of the offer"),
        (replace(request(8), direction=Direction.SHRINK), "direction"),
        (replace(request(8), obligation=Obligation.MANDATORY), "obligation"),
        (replace(request(8), direction=None, obligation=None), ""),
    ],
)
def test_what_a_counter_offer_may_change(counter: object, problem: str) -> None:
    """Quantities, and what is negotiable may become fixed; nothing else."""
    assert isinstance(counter, type(request()))
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
    offer = replace(request(), resources=(changed(minimum=4, maximum=8),))
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
    offer = replace(request(), resources=(where,))
    answer = completed(parse(build(published(accepted(offer)))), offer)
    assert problem_of_closing(offer, answer) == ""
    assert answer.quantities() == {ResourceKey(type="CPU", cluster="beta", component="workers"): 4}
    assert answer.direction is Direction.GROW

# SPDX-License-Identifier: Apache-2.0
"""Offers and requests as koala makes them of changes in the records: by the rule that the job file names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from koala_adapter.model import RunnerName
from koala_adapter.runners.adaptive import AdaptiveRunner
from koala_adapter.runners.runner import Application
from koala_adapter.scheduler.actions import OfferProcessors, TakeProcessors
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.scheduler.records import Change, ChangePhase
from koala_adapter.service.sizes.bargaining import AdaptiveParty, FirstOffer, depends_on_answer, offer_of
from koala_adapter.sizes import OWN_SIZES, AnySize, CheckedRule, SizeRules
from tests.unit.scheduler.malleable_site import AdaptiveSite, malleable
from tests.unit.scheduler.scheduler_site import component, of_kind

if TYPE_CHECKING:
    from koala_adapter.negotiation.serviceside.template import Template


class Failing(AnySize):
    """A rule that fails whatever it is asked."""

    name = "failing"

    def largest(self, size: int) -> int:
        """See AcceptanceRule."""
        raise ValueError(f"no idea of {size}")


RULES = SizeRules({"failing": CheckedRule(Failing(), "policy 'sizes.failing' (m:X) of d 1")})


def site(sizes: str) -> AdaptiveSite:
    """Return one where an adaptive job of two processes is offered two further ones on each of two clusters."""
    found = AdaptiveSite({"a": 4, "b": 2}, Approach.PWA)
    found.poll("b", 2, idle=0)  # so that it begins on a
    flexible = replace(component("m", 1, 20), flexible=True, sizes=sizes)
    found.start(replace(malleable("1", flexible, initial=2), runner=RunnerName.ADAPTIVE))
    found.poll("b", 2)
    assert [one.processors for one in of_kind(OfferProcessors, found.actions)] == [2, 2]
    return found


def offers(found: AdaptiveSite, rules: SizeRules = OWN_SIZES) -> list[FirstOffer]:
    """Return what the job is told of each change that is under way."""
    record = found.record("1")
    runner = AdaptiveRunner(Application(job=record.job, ranks=record.ranks, clusters={"m": "a"}, files={"m": ()}))
    runner.follow(record, found.now)
    party = AdaptiveParty(runner)
    return [
        offer_of(record, party, claim, claim.change, "n", rules=rules, answer_within=9)
        for claim in record.claims
        if claim.change is not None and claim.change.phase is ChangePhase.ASKED
    ]


def processors(template: Template | None) -> int:
    """Return how many an offer is of."""
    return 0 if template is None else template.quantity("CPU")


@pytest.mark.parametrize(("sizes", "further"), [("power-of-two", 0), ("multiple-of-2", 2), ("any", 2)])
def test_what_is_offered_fits_what_may_come_on_another_cluster(sizes: str, further: int) -> None:
    """Two more, and two more on top of those, are six, which is no power of two."""
    found = site(sizes)
    assert [processors(one.template) for one in offers(found)] == [2, 2]  # each as long as the other is not accepted
    found.answer(of_kind(OfferProcessors, found.actions)[0])
    (second,) = offers(found)
    assert processors(second.template) == further
    taken = of_kind(TakeProcessors, found.hold_stubs())
    assert [len(one.ranks) for one in taken] == [2]  # it has not got them yet: it may still be given up
    assert processors(offers(found)[0].template) == further


@pytest.mark.parametrize(("sizes", "depends"), [("power-of-two", True), ("any", False)])
def test_an_offer_waits_for_the_answer_to_another_one_that_decides_about_it(sizes: str, depends: bool) -> None:  # noqa: FBT001
    """It is not refused meanwhile: nobody would offer it again if the other one is declined."""
    record = site(sizes).record("1")
    (one, first), (other, second) = [(claim, claim.change) for claim in record.claims if claim.change is not None]
    assert depends_on_answer(record, other, second, {first.number}) == depends
    assert not depends_on_answer(record, one, first, {first.number})
    assert not depends_on_answer(record, other, second, ())


def test_a_rule_that_fails_is_told_for_offers_and_requests() -> None:
    """Nothing is offered by it; what is wanted back is asked for all the same, and what is wrong is told with it."""
    found = site("failing")
    for one in offers(found, RULES):
        assert one.template is None
        assert one.trouble.endswith("it raises ValueError: no idea of 4")
    record = found.record("1")
    for claim in record.claims:
        claim.change = None
    record.claims[0].change = Change(number=9, processors=-1, phase=ChangePhase.ASKED)
    (request,) = offers(found, RULES)
    assert processors(request.template) == 1
    assert request.trouble.endswith("it raises ValueError: no idea of 1")


def wanted_back(found: AdaptiveSite, count: int) -> FirstOffer:
    """Return what the job is told when so many processors are wanted back on its first cluster."""
    claim = found.record("1").claims[0]
    claim.change = Change(number=99, processors=-count, phase=ChangePhase.ASKED)
    (request,) = offers(found)
    claim.change = None
    return request


def growing_on_b(sizes: str) -> AdaptiveSite:
    """Return one whose job has two processors on one cluster, and for which two are gathered on the other."""
    found = site(sizes)
    first, second = of_kind(OfferProcessors, found.actions)
    found.answer(first, 0)
    found.answer(second)
    assert len(found.stubs()) == 2
    return found


def test_growths_are_in_the_way_of_what_is_wanted_back_where_a_size_fits_without_them_only() -> None:
    """One process is a power of two, three are none; nothing is asked for before they are handed back."""
    found = growing_on_b("power-of-two")
    (growth,) = [claim.change for claim in found.record("1").claims if claim.change is not None]
    assert wanted_back(found, 1) == FirstOffer(None, "no size of its fits", "", (growth.number,))
    assert processors(wanted_back(growing_on_b("any"), 1).template) == 1


def test_nothing_is_wanted_back_that_would_lead_to_no_size_with_what_is_taken_in() -> None:
    """That cannot be handed back any more; it is asked for again when it is over."""
    found = growing_on_b("power-of-two")
    assert of_kind(TakeProcessors, found.hold_stubs())
    assert wanted_back(found, 1) == FirstOffer(None, "no size of its fits", "", ())

# SPDX-License-Identifier: Apache-2.0
"""Offers and requests as koala makes them of changes in the records: by the rule that the job file names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.model import RunnerName
from koala_adapter.runners.adaptive import AdaptiveRunner
from koala_adapter.runners.runner import Application
from koala_adapter.scheduler.actions import OfferProcessors
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.scheduler.records import Change, ChangePhase, Part
from koala_adapter.service.sizes.adaptive import AdaptiveJob
from koala_adapter.service.sizes.offers import FirstOffer, offer_of
from koala_adapter.sizes import OWN_SIZES, AnySize, CheckedRule, SizeRules
from tests.unit.scheduler.malleable_site import AdaptiveSite, malleable
from tests.unit.scheduler.scheduler_site import component, of_kind
from tests.unit.service.test_negotiations import around

if TYPE_CHECKING:
    from koala_adapter.negotiation import Template


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
    runner = AdaptiveRunner(Application(job=record.job, ranks=record.ranks, clusters={"m": "a"}, files={"m": ()}))
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


def test_what_has_any_size_is_offered_processors_on_several_clusters_at_once() -> None:
    """One that has a rule changes on one cluster at a time."""
    assert [processors(one.template) for one in offers(site("any"))] == [2, 2]


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

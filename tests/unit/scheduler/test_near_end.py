# SPDX-License-Identifier: Apache-2.0
"""Malleable jobs whose walltime is near: what they would grow by is not worth its start any more."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from koala_adapter.model import JobId, RunnerName
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import GrantProcessors, OfferProcessors, WithdrawOffer
from koala_adapter.scheduler.explain import explain
from koala_adapter.scheduler.parameters import Approach
from tests.unit.scheduler.malleable_site import MalleableSite, malleable, part
from tests.unit.scheduler.scheduler_site import WELL, of_kind
from tests.unit.scheduler.test_workers import workers

if TYPE_CHECKING:
    from koala_adapter.scheduler.actions import Action

WALLTIME = 600
LEAST = 60


def crowded(*, least: float = LEAST) -> MalleableSite:
    """Return a cluster of six processors of which others have all that a job of two does not have."""
    site = MalleableSite({"a": 6}, policy="egs")
    parameters = replace(site.parameters, least_time_to_grow=least)
    site.post(ev.Configured(time=site.now, parameters=parameters, clusters=site.clusters))
    site.poll("a", 6, idle=2)
    site.start(malleable("1", part(2, 6), walltime=WALLTIME))
    site.poll("a", 6, idle=0, ours=2)
    return site


def freed(site: MalleableSite) -> list[Action]:
    """Have four processors come free."""
    return site.poll("a", 6, idle=4, ours=2)


def test_processors_are_offered_as_long_as_there_is_time() -> None:
    """A second before there is too little of it, too."""
    site = crowded()
    site.pass_time(WALLTIME - LEAST - 1)
    (offer,) = of_kind(OfferProcessors, freed(site))
    assert offer.processors == 4


def test_nothing_is_offered_when_the_walltime_is_near() -> None:
    """And it is said why; the job goes on as it is."""
    site = crowded()
    site.pass_time(WALLTIME - LEAST + 1)
    assert of_kind(OfferProcessors, freed(site)) == []
    assert site.sizes("1") == [2]
    assert "It grows no more: its walltime is near." in explain(site.state, None, site.record("1"), site.now)


def test_without_the_setting_growth_has_no_end() -> None:
    """As earlier versions decided."""
    site = crowded(least=0)
    site.pass_time(WALLTIME - 1)
    assert of_kind(OfferProcessors, freed(site)) != []


def test_a_job_that_is_too_short_never_grows() -> None:
    """Its walltime is near from its start."""
    site = MalleableSite({"a": 6}, policy="egs")
    assert of_kind(OfferProcessors, site.start(malleable("1", part(2, 6), walltime=LEAST))) == []


def test_what_the_application_asks_for_is_declined_with_the_reason() -> None:
    """Also where it insists."""
    site = crowded()
    site.pass_time(WALLTIME - LEAST + 1)
    freed(site)
    (grant,) = of_kind(GrantProcessors, site.ask("1", 1, mandatory=True))
    assert (grant.processors, grant.reason) == (0, "the walltime of the job is near")


@pytest.mark.parametrize("accepted_late", [False, True])
def test_what_is_not_there_by_then_is_handed_back(*, accepted_late: bool) -> None:
    """What is being gathered, and what the application accepts after that; it is told."""
    site = crowded()
    site.pass_time(WALLTIME - LEAST - 10)
    (offer,) = of_kind(OfferProcessors, freed(site))
    before = len(site.actions)
    if not accepted_late:
        site.answer(offer)
    site.pass_time(11)
    if accepted_late:
        site.answer(offer)
    (told,) = of_kind(WithdrawOffer, site.actions[before:])
    assert (told.number, told.reason) == (offer.number, "the walltime of the job is near")
    assert site.stubs() == []
    assert site.sizes("1") == [2]


def test_workers_that_their_owner_wants_are_not_added_either() -> None:
    """What is queued for them is given up, too."""
    site = MalleableSite({"a": 6}, Approach.NONE)
    site.start(workers("1", part(2, 6), walltime=WALLTIME))
    site.poll("a", 6, idle=0, ours=2)
    site.post(ev.SizeWanted(time=site.now, job_id=site.record("1").job.id, component="m", processors=4))
    assert len(site.stubs()) == 2
    site.pass_time(WALLTIME - LEAST + 1)
    assert site.stubs() == []


def test_workers_that_would_be_asked_to_end_at_once_are_not_started() -> None:
    """A job whose workers leave before its walltime ends grows no more from then on; who ends then is said to."""
    site = MalleableSite({"a": 6}, policy="egs")
    site.start(replace(workers("1", part(2, 6), walltime=WALLTIME), warn_before=2 * LEAST))
    site.poll("a", 6, idle=0, ours=2)
    site.pass_time(WALLTIME - 2 * LEAST + 1)
    assert of_kind(OfferProcessors, freed(site)) == []
    site.post(ev.RankEnded(time=site.now, job_id=JobId("1"), rank=0, end=WELL))
    change = site.record("1").size_changes[-1]
    assert (change.before, change.after, change.reason) == (2, 1, "worker 0 ended, near the end of the walltime")


def test_programs_that_are_only_told_go_on_growing_until_the_sites_time() -> None:
    """When their processes are told of the end, and what is worth its start, are two things."""
    site = MalleableSite({"a": 6}, policy="egs")
    own = replace(malleable("1", part(2, 6), walltime=WALLTIME), runner=RunnerName.ADAPTIVE, warn_before=2 * LEAST)
    site.start(own)
    site.poll("a", 6, idle=0, ours=2)
    site.pass_time(WALLTIME - 2 * LEAST + 1)
    assert of_kind(OfferProcessors, freed(site)) != []


def test_what_a_job_near_its_end_accepts_is_not_offered_on_its_other_clusters_for_ever() -> None:
    """EGS offers shares to all: what it cannot have here is no reason to offer again there, and so on."""
    site = MalleableSite({"a": 6, "b": 6}, Approach.NONE, "egs")
    site.start(malleable("m", replace(part(1, 9), cluster=None, flexible=True), walltime=100))
    for name in ("a", "b"):
        site.start(malleable(f"on {name}", part(1, 9, name), walltime=9000))
    site.pass_time(100 - site.parameters.least_time_to_grow)
    before = len(site.actions)
    parameters = replace(site.parameters, approach=Approach.PWA)
    site.post(ev.Configured(time=site.now, parameters=parameters, clusters=site.clusters))
    for name in ("a", "b"):
        ours = sum(one.cluster == name for one in site.state.placeholders.values())
        site.poll(name, 6, idle=6 - ours, ours=ours)
    answered = 0
    while answered < len(offered := of_kind(OfferProcessors, site.actions[before:])):
        message = offered[answered]
        site.answer(message, message.processors if message.job_id == "m" else 0)
        answered += 1
        assert answered < 20, "it is offered again and again"
    assert "m" in {message.job_id for message in offered}

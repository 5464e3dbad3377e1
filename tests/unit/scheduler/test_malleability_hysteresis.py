# SPDX-License-Identifier: Apache-2.0
"""Pauses between growing and shrinking, and the largest change of one step."""

from __future__ import annotations

import pytest

from koala_adapter.model import EndReason
from koala_adapter.scheduler.actions import OfferProcessors, RequestProcessors
from tests.unit.scheduler.malleable_site import MalleableSite, granted, malleable, offers, part, requests
from tests.unit.scheduler.scheduler_site import component, job, of_kind

PAUSE = 100.0


def shrunk(**hysteresis: float) -> MalleableSite:
    """Return a site of 10 where a job of 10 has given 4 for another one, which has ended since."""
    site = MalleableSite({"a": 10}, grow_pause=hysteresis.get("grow_pause", 0.0))
    site.start(malleable("1", part(2, 10), initial=10, walltime=9000))
    (request,) = of_kind(RequestProcessors, site.submit(job("2", 4)))
    site.shrink_by(request)
    site.started("2")
    site.complete("2")
    site.end_ending()
    return site


def grown(shrink_pause: float = 0.0) -> MalleableSite:
    """Return a site of 10 where a job of 4 has just grown to 10."""
    site = MalleableSite({"a": 10}, shrink_pause=shrink_pause)
    (offer,) = of_kind(OfferProcessors, site.start(malleable("1", part(2, 10), initial=4, walltime=9000)))
    site.grow_by(offer)
    assert site.sizes("1") == [10]
    return site


def test_without_pauses_what_comes_free_is_offered_at_once() -> None:
    """As ever."""
    assert offers(shrunk().actions)[-1:] == [("1", 4)]


def test_nothing_is_offered_in_the_pause_after_shrinking() -> None:
    """And all of it as soon as the pause is over, without any other event."""
    site = shrunk(grow_pause=PAUSE)
    assert offers(site.actions) == []
    assert offers(site.pass_time(PAUSE - 1)) == []
    assert offers(site.pass_time(2.0)) == [("1", 4)]


def test_applications_may_ask_in_the_pause_after_shrinking() -> None:
    """They know what they need."""
    site = shrunk(grow_pause=PAUSE)
    assert granted(site.ask("1", 2)) == [("1", 2, "")]


def test_a_pause_is_not_cut_short_by_a_growth_that_fails() -> None:
    """The pause after a failure is shorter here; the longer one counts."""
    site = shrunk(grow_pause=PAUSE)
    site.ask("1", 2)
    site.ended(site.stubs()[0], EndReason.NODE_LOST)
    site.end_ending()
    assert offers(site.pass_time(PAUSE - 5)) == []
    assert offers(site.pass_time(10.0)) == [("1", 4)]


def test_giving_back_of_its_own_will_begins_no_pause() -> None:
    """What one application does not want another may have."""
    site = MalleableSite({"a": 10}, grow_pause=PAUSE)
    site.submit(malleable("1", part(2, 6), initial=6))
    site.submit(malleable("2", part(2, 10), initial=4))
    site.started("1")
    site.started("2")
    site.release("1", 2)
    site.end_ending()
    assert offers(site.actions) == [("1", 1), ("2", 1)]


def test_nobody_is_asked_in_the_pause_after_growing() -> None:
    """The head of the queue waits for as long."""
    assert requests(grown().submit(job("2", 4))) == [("1", 4)]
    site = grown(PAUSE)
    assert requests(site.submit(job("2", 4))) == []
    assert requests(site.pass_time(PAUSE - 1)) == []
    assert requests(site.pass_time(2.0)) == [("1", 4)]


def test_others_wait_for_the_end_of_the_pause_too() -> None:
    """It is the changes of the applications that cost."""
    site = grown(PAUSE)
    assert requests(site.poll("a", 10, idle=0, ours=10, others=(4,))) == []
    assert requests(site.pass_time(PAUSE)) == [("1", 4)]


def test_an_application_that_insists_does_not_wait_for_the_pause() -> None:
    """It must be accommodated."""
    site = MalleableSite({"a": 10}, shrink_pause=PAUSE)
    site.submit(malleable("1", part(2, 9), initial=4))
    site.submit(malleable("2", part(1, 4), initial=1))
    site.started("1")
    site.started("2")
    for offer in of_kind(OfferProcessors, site.actions):
        site.grow_by(offer)
    assert sum(site.sizes("1") + site.sizes("2")) >= 9
    site.poll("a", 10, idle=0, ours=sum(site.sizes("1") + site.sizes("2")))
    assert [id_ for id_, _ in requests(site.ask("2", 1, mandatory=True))] == ["1"]


@pytest.mark.parametrize("policy", ["fpsma", "egs", "egs-repeated"])
def test_growth_comes_in_steps(policy: str) -> None:
    """Of 8 that are free 3 are offered at once; the rest follows when the job has taken these."""
    site = MalleableSite({"a": 10}, policy=policy, largest_change=3)
    (offer,) = of_kind(OfferProcessors, site.start(malleable("1", part(2, 10))))
    assert offer.processors == 3
    (offer,) = of_kind(OfferProcessors, site.grow_by(offer))
    assert offer.processors == 3
    (offer,) = of_kind(OfferProcessors, site.grow_by(offer))
    assert offer.processors == 2


def test_who_declines_a_part_is_not_offered_the_rest() -> None:
    """Or it would be asked over and over at one point in time."""
    site = MalleableSite({"a": 10}, largest_change=3)
    (offer,) = of_kind(OfferProcessors, site.start(malleable("1", part(2, 10))))
    assert site.answer(offer, 0) == []
    assert offers(site.poll("a", 10, idle=8, ours=2)) == []


def test_room_is_made_in_steps() -> None:
    """For the head, which needs 8: 3, then 3, then 2, each when the one before has been released."""
    site = MalleableSite({"a": 10}, largest_change=3)
    site.start(malleable("1", part(2, 10), initial=10))
    sizes = []
    site.submit(job("2", 8))
    done = 0
    while done < len(site.actions):
        message = site.actions[done]
        done += 1
        if isinstance(message, RequestProcessors):
            sizes.append(message.processors)
            site.shrink_by(message)
    assert sizes == [3, 3, 2]
    assert site.placed("2") == {"c0": ("a", 8)}


def test_room_is_made_for_others_in_steps() -> None:
    """The reason names what each step frees."""
    site = MalleableSite({"a": 10}, largest_change=3)
    site.start(malleable("1", part(2, 10), initial=10))
    (request,) = of_kind(RequestProcessors, site.poll("a", 10, idle=0, ours=10, others=(5,)))
    assert request.processors == 3
    site.shrink_by(request)
    assert requests(site.actions) == [("1", 3), ("1", 2)]


def asked_over(site: MalleableSite, seconds: float) -> int:
    """Return how often jobs are asked to shrink in some time; each declines, and the LRM is polled all the while."""
    asked, end = 0, site.now + seconds
    while site.now < end:
        for request in of_kind(RequestProcessors, site.pass_time(5.0)):
            asked += 1
            site.answer(request, 0)
    return asked


def vain() -> MalleableSite:
    """Return a site where EGS as published asks the job that started last, which has nothing to give."""
    site = MalleableSite({"a": 7}, policy="egs")
    site.start(malleable("1", part(2, 4), initial=4, walltime=90_000))
    site.start(malleable("2", part(3, 4), initial=3, walltime=90_000))
    site.poll("a", 7, idle=0, ours=7)
    (request,) = of_kind(RequestProcessors, site.submit(job("3", component("x", 1, cluster="a"))))
    assert request.job_id == "2"
    site.answer(request, 0)
    return site


def test_who_is_at_its_minimum_is_not_asked_for_ever() -> None:
    """At first with each scan, then less and less often."""
    site = vain()
    assert 8 <= asked_over(site, 3600) <= 20
    assert asked_over(site, 6 * 3600) <= 7


def test_who_gave_nothing_is_asked_again_when_sizes_have_changed() -> None:
    """The long pause is over then."""
    site = vain()
    asked_over(site, 3600)
    site.release("1", 1)
    site.end_ending()
    anew = [*site.submit(job("4", component("x", 1, cluster="a"))), *site.pass_time(20.0)]
    assert requests(anew) == [("2", 1)]

# SPDX-License-Identifier: Apache-2.0
"""Malleable jobs beside local users, and what keeps their sizes from swinging."""

from __future__ import annotations

import random

import pytest

from koala_adapter.model import EndReason
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import OfferProcessors, RequestProcessors, TakeProcessors, WithdrawOffer
from koala_adapter.scheduler.parameters import Approach, ClusterParameters
from tests.unit.scheduler.malleable_site import MalleableSite, granted, malleable, offers, part, requests
from tests.unit.scheduler.scheduler_site import A, component, copied, job, of_kind, submissions

# -- Jobs of others that wait in a batch system's own queue: under PWA running malleable jobs make room for them.


BACKOFF = 60.0
LONGEST_BACKOFF = 3600.0


def full(size: int = 8, approach: Approach = Approach.PWA, policy: str = "egs-repeated") -> MalleableSite:
    """Return a site with one job of 2 to ``size`` processors that has all ``size`` of the cluster a."""
    site = MalleableSite({"a": size}, approach, policy)
    site.start(malleable("1", part(2, size), initial=size, walltime=9000))
    site.poll("a", size, idle=0, ours=size)
    return site


def shrunk(site: MalleableSite, others: tuple[int, ...]) -> int:
    """Have others wait on the full cluster a; return how many processors the job 1 has given up for them."""
    asked = of_kind(RequestProcessors, site.poll("a", 8, idle=0, ours=8, others=others))
    for request in asked:
        site.shrink_by(request)
    return sum(request.processors for request in asked)


# ---- shrinking ------------------------------------------------------------------------------------------------------


def test_running_jobs_shrink_for_others_that_wait() -> None:
    """By what those lack; who refuses is not asked again at once, as for the head of the queue."""
    site = full()
    (request,) = of_kind(RequestProcessors, site.poll("a", 8, idle=0, ours=8, others=(3,)))
    assert (request.job_id, request.processors) == ("1", 3)
    assert site.answer(request, 0) == []
    assert requests(site.poll("a", 8, idle=0, ours=8, others=(3,))) == []
    assert requests(site.pass_time(14.0)) == []
    assert requests(site.pass_time(2.0)) == [("1", 3)]


@pytest.mark.parametrize("approach", [Approach.NONE, Approach.PRA])
def test_other_approaches_never_shrink_for_them(approach: Approach) -> None:
    """PRA puts running applications first; nor does it keep anything from them."""
    site = full(8, approach)
    assert site.poll("a", 8, idle=0, ours=8, others=(3,)) == []
    assert not site.scheduler.shrinks_for_others(A)
    site = MalleableSite({"a": 8}, Approach.PRA)
    site.poll("a", 8, idle=8, others=(8,))
    assert offers(site.start(malleable("1", part(2, 8)))) == [("1", 6)]


def test_what_the_scheduler_wants_to_know_of_a_cluster() -> None:
    site = MalleableSite({"a": 8})
    assert not site.scheduler.shrinks_for_others(A)
    site.start(malleable("1", part(2, 8)))
    assert site.scheduler.shrinks_for_others(A)
    site.complete("1")
    assert not site.scheduler.shrinks_for_others(A)
    # Where a running job is below its maximum; with approach none only when its owner wants it to be larger.
    site = MalleableSite({"a": 2})
    assert not site.scheduler.growth_waits(A)
    site.start(malleable("1", part(2, 8)))
    assert site.scheduler.growth_waits(A)
    assert not full().scheduler.growth_waits(A)
    site = MalleableSite({"a": 2}, Approach.NONE)
    site.start(malleable("1", part(2, 8)))
    assert not site.scheduler.growth_waits(A)
    site.want(4)
    assert site.scheduler.growth_waits(A)


def test_what_is_idle_and_on_its_way_out_counts() -> None:
    """Of 5 that others want 1 is idle: 4 are asked for; while they are on their way out nobody is asked again."""
    site = MalleableSite({"a": 9})
    site.start(malleable("1", part(2, 8), initial=8))
    (request,) = of_kind(RequestProcessors, site.poll("a", 9, idle=1, ours=8, others=(5,)))
    assert request.processors == 4
    site.answer(request)
    assert site.release("1", 4)
    assert requests(site.poll("a", 9, idle=1, ours=8, others=(5,))) == []
    site.end_ending()
    assert requests(site.poll("a", 9, idle=5, ours=4, others=(5,))) == []


def test_who_is_started_on_what_was_given_up_does_not_wait() -> None:
    """Between the two questions of one poll the batch system has started them: the next one tells who waits still."""
    site = full()
    (request,) = of_kind(RequestProcessors, site.poll("a", 8, idle=0, ours=8, others=(1, 1)))
    site.answer(request)
    site.release("1", 2)
    assert requests(site.poll("a", 8, idle=0, ours=6, others=(1, 1))) == []
    site.end_ending()
    assert requests(site.poll("a", 8, idle=0, ours=6, others=(1,))) == [("1", 1)]


@pytest.mark.parametrize(
    ("waiting", "given"),
    [((7,), 0), ((7, 2), 2), ((2, 7, 4), 6), ((1,) * 20, 6)],
    ids=["7 are wanted, 6 could be given", "for a smaller one behind it", "beside it", "for as many as it is enough"],
)
def test_jobs_are_shrunk_to_their_minima_at_most(waiting: tuple[int, ...], given: int) -> None:
    site = full()
    assert shrunk(site, waiting) == given
    assert site.sizes("1") == [8 - given]


def test_placed_jobs_of_ours_come_first_and_others_next() -> None:
    """Both wait in the queue of the batch system: one step for each."""
    site = MalleableSite({"a": 12}, policy="fpsma")
    (offer,) = of_kind(OfferProcessors, site.start(malleable("1", part(2, 12), initial=8)))
    site.answer(offer, 0)
    site.queue(job("2", 4))
    (first,) = of_kind(RequestProcessors, site.poll("a", 12, idle=1, ours=8, others=(2,)))
    assert first.processors == 3
    site.shrink_by(first)
    assert requests(site.actions) == [("1", 3), ("1", 2)]


# ---- growing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("idle", "waiting", "offered"), [(8, 4, 2), (4, 7, 2)], ids=["kept", "too little for others"])
def test_what_others_wait_for_is_not_offered(idle: int, waiting: int, offered: int) -> None:
    """Of 6 that are idle 4 are left to a job that waits; nothing is kept for one that needs more than there can be."""
    site = MalleableSite({"a": 8})
    site.poll("a", 8, idle=idle, others=(waiting,))
    assert offers(site.start(malleable("1", part(2, 8)))) == [("1", offered)]


def test_a_voluntary_wish_does_not_get_what_others_wait_for() -> None:
    """A mandatory one does: it comes before all who wait."""
    for mandatory, got in ((False, 1), (True, 3)):
        site = MalleableSite({"a": 8})
        site.start(malleable("1", part(2, 8), initial=5))
        for offer in of_kind(OfferProcessors, site.actions):
            site.answer(offer, 0)
        site.poll("a", 8, idle=3, ours=5, others=(2,))
        assert [count for _, count, _ in granted(site.ask("1", 3, mandatory=mandatory))] == [got]


def test_what_was_given_for_others_is_theirs_until_it_is_taken() -> None:
    """Not offered when the placeholders are gone, nor when the next poll shows it idle; after they have gone, it is."""
    site = full()
    assert shrunk(site, (3,)) == 3
    assert offers(site.poll("a", 8, idle=3, ours=5, others=(3,))) == []
    assert offers(site.poll("a", 8, idle=0, ours=5)) == []
    assert offers(site.poll("a", 8, idle=3, ours=5)) == [("1", 3)]


def test_waiting_jobs_of_ours_are_placed_all_the_same() -> None:
    """Who goes first in the batch system's own queue is the batch system's affair."""
    site = full()
    assert shrunk(site, (3,)) == 3
    site.poll("a", 8, idle=3, ours=5, others=(3,))
    assert submissions(site.submit(job("2", 2))) == {"a": 2}


def growing() -> MalleableSite:
    """Return a full cluster where a local user has taken the 3 processors into which a job of 5 was about to grow."""
    site = MalleableSite({"a": 8})
    (offer,) = of_kind(OfferProcessors, site.start(malleable("1", part(2, 8), initial=5, walltime=9000)))
    assert offer.processors == 3
    site.answer(offer)
    site.take_all()
    assert len(site.stubs()) == 3
    return site


def test_a_growth_whose_stubs_wait_makes_way() -> None:
    """They would go first in the queue, and the job could not be shrunk for as long as they wait."""
    site = growing()
    actions = site.poll("a", 8, idle=0, ours=5, others=(2,))
    (withdrawn,) = of_kind(WithdrawOffer, actions)
    assert withdrawn.reason == "jobs of others wait for them"
    assert requests(actions) == [("1", 2)]
    assert site.stubs() == []


@pytest.mark.parametrize("others", [(), (7,)], ids=["nobody waits", "for more than there could be"])
def test_a_growth_goes_on_where_that_helps_nobody(others: tuple[int, ...]) -> None:
    site = growing()
    assert of_kind(WithdrawOffer, site.poll("a", 8, idle=0, ours=5, others=others)) == []


def test_a_growth_goes_on_whose_stubs_have_started() -> None:
    site = growing()
    for stub in site.stubs():
        site.post(ev.PlaceholderStarted(time=site.now, placeholder=stub))
    assert site.poll("a", 8, idle=0, ours=8, others=(2,)) == []
    (taking,) = of_kind(TakeProcessors, site.hold_stubs())
    assert requests(site.take(taking)) == [("1", 2)]


# ---- jobs that wait for something else ------------------------------------------------------------------------------


def doubted() -> MalleableSite:
    """Return a site where 3 were given for a job that does not start although they are idle."""
    site = full()
    assert shrunk(site, (3,)) == 3
    site.poll("a", 8, idle=3, ours=5, others=(3,))
    assert offers(site.pass_time(BACKOFF - 1)) == []
    assert offers(site.pass_time(2.0)) == [("1", 3)]
    return site


def test_what_others_do_not_take_is_offered_again() -> None:
    """And nobody is shrunk for that job again for long, also when what it could have is in use; for a new one, yes."""
    site = doubted()
    assert copied(site.state) == site.state
    site.grow_by(of_kind(OfferProcessors, site.actions)[-1])
    assert site.sizes("1") == [8]
    assert requests(site.poll("a", 8, idle=0, ours=8, others=(3,))) == []
    site.pass_time(LONGEST_BACKOFF)
    assert requests(site.poll("a", 8, idle=0, ours=8, others=(3,))) == [("1", 3)]
    site = doubted()
    site.grow_by(of_kind(OfferProcessors, site.actions)[-1])
    assert requests(site.poll("a", 8, idle=0, ours=8, others=(3, 3))) == [("1", 3)]


def test_a_wait_that_ends_in_time_is_forgotten() -> None:
    """Enough was idle only for a moment, because somebody else has taken it."""
    site = full()
    assert shrunk(site, (3,)) == 3
    site.poll("a", 8, idle=3, ours=5, others=(3,))
    site.pass_time(BACKOFF - 1)
    site.poll("a", 8, idle=0, ours=5, others=(3,))
    site.pass_time(5.0)
    assert requests(site.actions)[-1] == ("1", 3)


# ---- words and snapshots --------------------------------------------------------------------------------------------


def test_what_is_said_of_it() -> None:
    site = full()
    site.poll("a", 8, idle=0, ours=8, others=(2,))
    assert "it has been asked to give up 2 (2 processors for a job that waits in a's queue)" in site.explained()
    assert "2 processors of a are wanted by others who wait in its queue." in site.explained()
    site.poll("a", 8, idle=0, ours=8)
    assert "wanted by others" not in site.explained()


# ---- whatever happens -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", ["fpsma", "egs-repeated", "equipartition", "folding"])
def test_others_come_and_go(seed: int, policy: str) -> None:
    """Over a long time of others that come and go: bounds hold, and no step is for nobody.

    What is asked of applications is never more than others want, and they grow again when nobody waits.
    """
    chance = random.Random(seed)
    threshold = chance.randint(0, 2)
    site = MalleableSite({"a": 24}, policy=policy, clusters=(ClusterParameters(name=A, threshold=threshold),))
    for number in range(chance.randint(1, 3)):
        least, first = chance.randint(1, 3), chance.randint(2, 7)
        site.submit(malleable(str(number), part(least, 10), initial=first, walltime=90_000))
    running = list(site.state.jobs)
    done = len(site.actions)
    for id_ in running:
        site.started(id_)
    done = carried_through(site, done, wanted=0, chance=chance)
    busy, waiting = 0, list[int]()
    for _ in range(60):
        site.now += chance.uniform(1.0, 40.0)
        waiting += [chance.randint(1, 8)] if chance.random() < 0.4 else []
        busy = max(0, busy - chance.choice([0, 0, 4]))
        ours = sum(sum(site.sizes(id_)) for id_ in running)
        while waiting and waiting[0] <= 24 - ours - busy:
            busy += waiting.pop(0)
        site.poll("a", 24, idle=24 - ours - busy, ours=ours, others=tuple(waiting))
        done = carried_through(site, done, wanted=sum(waiting), chance=chance)
        assert sum(sum(site.sizes(id_)) for id_ in running) <= 24 - threshold
    for _ in range(40):
        ours = sum(sum(site.sizes(id_)) for id_ in running)
        site.poll("a", 24, idle=24 - ours, ours=ours)
        done = carried_through(site, done, wanted=0, chance=chance)
        site.pass_time(30.0)
    if policy != "folding":
        most = min(24 - threshold, 10 * len(running))
        assert sum(sum(site.sizes(id_)) for id_ in running) >= most - len(running)


def carried_through(site: MalleableSite, done: int, *, wanted: int, chance: random.Random) -> int:
    """Have applications do what they are told from the action numbered ``done`` on; return how many there are."""
    while done < len(site.actions):
        message = site.actions[done]
        done += 1
        if isinstance(message, RequestProcessors):
            step = site.state.clusters[A].step
            if step is not None and " that wait" in step.reason and "of ours" not in step.reason:
                assert wanted > 0
                assert step.value <= wanted
            site.shrink_by(message, chance.choice([message.processors, message.processors, 0]) if wanted else None)
        elif isinstance(message, OfferProcessors):
            site.grow_by(message)
    return done


# -- Pauses between growing and shrinking, and the largest change of one step.


PAUSE = 100.0


def after_shrinking(grow_pause: float = PAUSE) -> MalleableSite:
    """Return a site of 10 where a job of 10 has given 4 for another one, which has ended since."""
    site = MalleableSite({"a": 10}, grow_pause=grow_pause)
    site.start(malleable("1", part(2, 10), initial=10, walltime=9000))
    (request,) = of_kind(RequestProcessors, site.submit(job("2", 4)))
    site.shrink_by(request)
    site.started("2")
    site.finish("2")
    return site


def grown(shrink_pause: float = 0.0) -> MalleableSite:
    """Return a site of 10 where a job of 4 has just grown to 10."""
    site = MalleableSite({"a": 10}, shrink_pause=shrink_pause)
    (offer,) = of_kind(OfferProcessors, site.start(malleable("1", part(2, 10), initial=4, walltime=9000)))
    site.grow_by(offer)
    assert site.sizes("1") == [10]
    return site


def test_nothing_is_offered_in_the_pause_after_shrinking() -> None:
    assert offers(after_shrinking(0.0).actions)[-1:] == [("1", 4)]
    site = after_shrinking()
    assert offers(site.actions) == []
    assert offers(site.pass_time(PAUSE - 1)) == []
    assert offers(site.pass_time(2.0)) == [("1", 4)]


def test_applications_may_ask_in_the_pause_after_shrinking() -> None:
    site = after_shrinking()
    assert granted(site.ask("1", 2)) == [("1", 2, "")]
    # The pause after a failure is shorter here; the longer one counts.
    site.ended(site.stubs()[0], EndReason.NODE_LOST)
    site.end_ending()
    assert offers(site.pass_time(PAUSE - 5)) == []
    assert offers(site.pass_time(10.0)) == [("1", 4)]


def test_giving_back_of_its_own_will_begins_no_pause() -> None:
    """What one application does not want another may have."""
    site = MalleableSite({"a": 10}, grow_pause=PAUSE)
    site.submit(malleable("1", part(2, 6), initial=6), malleable("2", part(2, 10), initial=4))
    site.started("1")
    site.started("2")
    site.release("1", 2)
    site.end_ending()
    assert offers(site.actions) == [("1", 1), ("2", 1)]


def test_nobody_is_asked_in_the_pause_after_growing() -> None:
    assert requests(grown().submit(job("2", 4))) == [("1", 4)]
    site = grown(PAUSE)
    assert requests(site.submit(job("2", 4))) == []
    assert requests(site.pass_time(PAUSE - 1)) == []
    assert requests(site.pass_time(2.0)) == [("1", 4)]
    site = grown(PAUSE)
    assert requests(site.poll("a", 10, idle=0, ours=10, others=(4,))) == []
    assert requests(site.pass_time(PAUSE)) == [("1", 4)]


def test_an_application_that_insists_does_not_wait_for_the_pause() -> None:
    site = MalleableSite({"a": 10}, shrink_pause=PAUSE)
    site.submit(malleable("1", part(2, 9), initial=4), malleable("2", part(1, 4), initial=1))
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
    site = vain()
    asked_over(site, 3600)
    site.release("1", 1)
    site.end_ending()
    anew = [*site.submit(job("4", component("x", 1, cluster="a"))), *site.pass_time(20.0)]
    assert requests(anew) == [("2", 1)]

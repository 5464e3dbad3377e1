# SPDX-License-Identifier: Apache-2.0
"""Malleable jobs through the scheduler: placement, offers, gathering, taking, releasing, PRA and PWA."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from koala_adapter.errors import ConfigurationError
from koala_adapter.model import BatchKey, ClusterName, EndReason, JobId, TaskEnd
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import (
    OfferProcessors,
    RequestProcessors,
    SubmitPlaceholders,
    TakeProcessors,
    WithdrawOffer,
)
from koala_adapter.scheduler.malleable.policies import Direction
from koala_adapter.scheduler.parameters import Approach, ClusterParameters, Parameters
from koala_adapter.sizes import AnySize, PowerOfTwo
from tests.unit.scheduler.malleable_site import MalleableSite, is_running, malleable, offers, part, requests
from tests.unit.scheduler.scheduler_site import A, component, copied, ends, job, launches, of_kind, submissions
from tests.unit.scheduler.test_malleability import Scene


def growing(count: int = 6, **fields: int) -> tuple[MalleableSite, OfferProcessors]:
    """Return a site with 10 processors where a job of 4 was offered the 6 others."""
    site = MalleableSite({"a": 10})
    actions = site.start(malleable("1", part(2, 4 + count), initial=4, **fields))
    (offer,) = of_kind(OfferProcessors, actions)
    return site, offer


# ---- start ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("initial", "idle", "size"), [(None, 10, 2), (5, 10, 5), (99, 10, 8), (1, 10, 2), (6, 3, 3)])
def test_initial_size(initial: int | None, idle: int, size: int) -> None:
    """Its minimum when a job names none, within its bounds; less where less is idle."""
    site = MalleableSite({"a": 10})
    site.poll("a", 10, idle=idle)
    assert submissions(site.submit(malleable("1", part(2, 8), initial=initial))) == {"a": size}


@pytest.mark.parametrize(("approach", "offered"), [(Approach.PWA, [("1", 8)]), (Approach.NONE, [])])
def test_nothing_is_offered_before_it_runs(approach: Approach, offered: list[tuple[str, int]]) -> None:
    site = MalleableSite({"a": 10}, approach)
    actions = site.submit(malleable("1", part(2, 8)))
    site.take_all()
    actions += site.hold_all("1")
    actions += site.post(ev.RankStarted(time=site.now, job_id=JobId("1"), rank=0))
    assert offers(actions) == []
    assert offers(site.post(ev.RankStarted(time=site.now, job_id=JobId("1"), rank=1))) == offered


# ---- growing --------------------------------------------------------------------------------------------------------


def test_growing_from_offer_to_processes() -> None:
    site, offer = growing()
    assert (offer.processors, offer.cluster) == (6, "a")
    answered = site.answer(offer, 3)
    assert submissions(answered) == {"a": 3}
    site.take_all()
    first, second, third = site.stubs()
    assert site.hold(first) == site.hold(second) == []
    assert site.sizes("1") == [4]
    (taking,) = of_kind(TakeProcessors, site.hold(third))
    assert [rank.rank for rank in taking.ranks] == [4, 5, 6]
    assert [rank.component_rank for rank in taking.ranks] == [4, 5, 6]
    assert {rank.placeholder for rank in taking.ranks} == {first, second, third}
    assert taking.number == offer.number
    assert site.sizes("1") == [7]
    assert offers(site.take(taking)) == [("1", 3)]


def test_declined_processors_are_not_offered_again_at_once() -> None:
    """Nobody is asked twice for the same; when more is free, all of it is offered."""
    site, offer = growing()
    assert site.answer(offer, 0) == []
    assert offers(site.poll("a", 10, idle=6, ours=4)) == []
    site = MalleableSite({"a": 10})
    site.start(job("r", 2))
    (offer,) = of_kind(OfferProcessors, site.start(malleable("1", part(2, 9))))
    assert site.answer(offer, 0) == []
    site.finish("r")
    assert offers(site.actions)[-1] == ("1", 8)


def test_an_answer_counts_once_and_for_no_more_than_was_offered() -> None:
    site, offer = growing()
    assert submissions(site.answer(offer, 99)) == {"a": 6}
    site, offer = growing()
    site.answer(offer, 2)
    assert site.answer(offer, 4) == []
    assert len(site.stubs()) == 2
    site, offer = growing()
    site.pass_time(61.0)
    assert site.answer(offer, 4) == []
    assert site.stubs() == []


def test_no_answer_declines() -> None:
    """What was kept for an offer is free again after the time-out, for a waiting job."""
    site, offer = growing()
    assert offer.processors == 6
    assert submissions(site.submit(job("2", 5))) == {}
    assert submissions(site.pass_time(61.0)) == {"a": 5}


@pytest.mark.parametrize("down", [1.0, 59.0, 300.0], ids=["for a moment", "almost till then", "for long"])
def test_an_application_that_could_not_answer_has_not_declined(down: float) -> None:
    """After a restart its agents have time to come back, and it has all of its time for the answer; then no more."""
    for answers in (True, False):
        site, offer = growing()
        site.now += down
        site.post(ev.Configured(time=site.now, parameters=site.parameters, clusters=site.clusters))
        site.pass_time(site.parameters.registration_timeout + site.parameters.answer_timeout - 1.0)
        if answers:
            assert submissions(site.answer(offer)) == {"a": 6}
        else:
            site.pass_time(1.0)
            assert site.answer(offer) == []
            assert not site.record("1").changes


@pytest.mark.parametrize(
    ("own", "processors", "offered"),
    [
        (ClusterParameters(name=A, threshold=3), 10, 5),
        (ClusterParameters(name=A, malleability_policy="folding"), 12, 2),
    ],
    ids=["threshold", "policy"],
)
def test_growth_on_a_cluster_with_parameters_of_its_own(own: ClusterParameters, processors: int, offered: int) -> None:
    site = MalleableSite({"a": processors}, clusters=(own,))
    assert offers(site.start(malleable("1", part(2, 9)))) == [("1", offered)]


def test_background_load_limits_growth() -> None:
    """Only idle processors are offered, as the latest poll saw them; more when local users have gone."""
    site = MalleableSite({"a": 10})
    site.submit(malleable("1", part(2, 9)))
    site.poll("a", 10, idle=3)
    (offer,) = of_kind(OfferProcessors, site.started("1"))
    assert offer.processors == 1
    site.answer(offer, 0)
    assert offers(site.poll("a", 10, idle=8, ours=2)) == [("1", 8)]


def lose_stub(site: MalleableSite, lost: str, batch: BatchKey) -> None:
    """Have a placeholder that is gathered not come to be used."""
    if lost == "rejected":
        site.post(ev.BatchRejected(time=site.now, batch=batch, reason="no account"))
        return
    if lost == "absent":  # koala may have been killed before it was on its way: it is submitted once more
        actions = site.post(ev.BatchAbsent(time=site.now, batch=batch, reason="not there"))
        (again,) = of_kind(SubmitPlaceholders, actions)
        site.post(ev.BatchAbsent(time=site.now, batch=again.batch, reason="not there"))
        return
    site.taken(batch)
    stub, other, _ = site.stubs()
    if lost == "ended":
        site.hold(other)
        site.ended(stub, EndReason.NODE_LOST)
    elif lost == "silent":
        site.hold(stub)
        site.silence(stub)
        site.pass_time(400.0)
    elif lost == "missing":
        site.post(ev.PlaceholderStarted(time=site.now, placeholder=stub))
        site.pass_time(121.0)
    else:  # in time, but too soon to end
        for one in site.stubs():
            site.hold(one, ends_at=site.now + 100.0)


@pytest.mark.parametrize("lost", ["ended", "rejected", "absent", "silent", "missing", "too short"])
def test_growth_whose_stubs_are_lost_is_given_up(lost: str) -> None:
    """The others go back, the application is told and keeps running on what it has; later it is offered some again."""
    site, offer = growing()
    (sent,) = of_kind(SubmitPlaceholders, site.answer(offer, 3))
    before = len(site.actions)
    lose_stub(site, lost, sent.batch)
    (withdrawn,) = of_kind(WithdrawOffer, site.actions[before:])
    assert withdrawn.number == offer.number
    assert is_running(site, "1")
    assert of_kind(TakeProcessors, site.actions) == []
    assert offers(site.actions[before:]) == [] or lost == "silent"
    site.end_ending()
    assert site.stubs() == []
    assert site.sizes("1") == [4]
    if lost == "ended":
        assert offers(site.pass_time(61.0)) == [("1", 6)]


def test_cluster_that_closes_before_the_answer() -> None:
    site, offer = growing()
    site.post(ev.ClusterUnavailable(time=site.now, cluster=A, reason="no answer"))
    actions = site.answer(offer, 3)
    assert of_kind(WithdrawOffer, actions) != []
    assert submissions(actions) == {}


@pytest.mark.parametrize("of_site", [True, False])
def test_unknown_policy_is_refused(*, of_site: bool) -> None:
    """A configuration with a policy that is not here changes nothing; the names that there are, are listed."""
    scheduler = Scheduler()
    before = copied(scheduler.state)
    parameters = Parameters(malleability_policy="nope") if of_site else Parameters()
    cluster = ClusterParameters(name=A, malleability_policy=None if of_site else "nope")
    with pytest.raises(ConfigurationError, match="no malleability policy 'nope'") as caught:
        scheduler.handle(ev.Configured(time=1.0, parameters=parameters, clusters=(cluster,)))
    assert "egs, egs-repeated, equipartition, folding, fpsma" in (caught.value.hint or "")
    assert scheduler.state == before


def test_equipartition_shrinks_before_it_grows() -> None:
    """When a second job has started, the first gives up a share; only when that is free is it offered."""
    site = MalleableSite({"a": 10}, policy="equipartition")
    (offer,) = of_kind(OfferProcessors, site.start(malleable("1", part(2, 10), initial=8)))
    site.answer(offer, 0)
    actions = site.start(malleable("2", part(2, 10)))
    (request,) = of_kind(RequestProcessors, actions)
    assert (request.job_id, request.processors) == ("1", 3)
    site.answer(request)
    assert offers(site.release("1", 3)) == []
    site.end_ending()
    (offer,) = [one for one in of_kind(OfferProcessors, site.actions) if one.job_id == "2"]
    site.grow_by(offer)
    assert (site.sizes("1"), site.sizes("2")) == ([5], [5])


# ---- shrinking ------------------------------------------------------------------------------------------------------


def grown(policy: str = "egs-repeated", approach: Approach = Approach.PWA) -> MalleableSite:
    """Return a site of 12 processors where two jobs (minimum 2) run on 6 each."""
    site = MalleableSite({"a": 12}, approach, policy)
    for name in ("1", "2"):
        site.start(malleable(name, part(2, 12), initial=6))
        for offer in of_kind(OfferProcessors, site.actions):
            site.answer(offer, 0)
    assert (site.sizes("1"), site.sizes("2")) == ([6], [6])
    return site


def test_published_egs_asks_those_at_their_minimum_too() -> None:
    """Job 1 can give 4, job 2 nothing: both are asked for 2; with rounds that repeat, job 1 alone for 4.

    As published, a step has one round. What is still missing is a matter of another step, since this one has helped.
    """
    again = [("1", 1), ("2", 1)]
    for policy, asked, more in (("egs", [("1", 2), ("2", 2)], again), ("egs-repeated", [("1", 4)], [])):
        site = MalleableSite({"a": 8}, Approach.PWA, policy)
        site.start(malleable("1", part(2, 6), initial=6))
        site.start(malleable("2", part(2, 2)))
        messages = of_kind(RequestProcessors, site.submit(job("late", 4)))
        assert [(one.job_id, one.processors) for one in messages] == asked
        for message in messages:
            site.answer(message, 0 if message.job_id == "2" else None)
        site.release("1", asked[0][1])
        site.end_ending()
        assert site.sizes("1") == [6 - asked[0][1]]
        assert requests(site.actions) == asked + more
        assert (site.record("late").state is JobState.CLAIMING) == (policy == "egs-repeated")


def test_pwa_shrinks_for_the_head_of_the_queue() -> None:
    """Each gives half of what it needs, which nobody else gets; placeholders end, and the head is placed on them."""
    site = grown()
    first, second = of_kind(RequestProcessors, site.submit(job("3", 4)))
    assert [(one.job_id, one.processors) for one in (first, second)] == [("1", 2), ("2", 2)]
    site.answer(first)
    released = site.release("1", 2)
    assert len(ends(released)) == 2
    before = len(site.actions)
    site.submit(job("late", 2))
    site.end_ending()
    assert offers(site.actions[before:]) == []
    assert site.record("3").state is site.record("late").state is JobState.WAITING
    site.shrink_by(second)
    assert site.placed("3") == {"c0": ("a", 4)}
    assert requests(site.actions) == [("1", 2), ("2", 2), ("1", 1), ("2", 1)]  # then for the late one


def test_fpsma_shrinks_one_after_the_other() -> None:
    """The last started gives all that it can; the rest is requested when it has really released that."""
    site = grown("fpsma")
    (first,) = of_kind(RequestProcessors, site.submit(job("3", 6)))
    assert (first.job_id, first.processors) == ("2", 6)
    assert site.answer(first, 4) == []
    assert requests(site.release("2", 3)) == []
    (second,) = of_kind(RequestProcessors, site.release("2", 1))
    assert (second.job_id, second.processors) == ("1", 2)


def test_pwa_never_shrinks_below_minima_and_grows_when_no_room_can_be_made() -> None:
    """More than all can give cannot be made: nobody is shrunk, and the running are offered what is free."""
    site = grown()
    assert requests(site.submit(job("3", 9))) == []
    assert requests(site.submit(job("4", 8))) == []  # not the head
    site.cancel("3")
    assert requests(site.actions) == [("1", 4), ("2", 4)]
    site = grown()
    site.submit(job("3", 10))
    site.release("1", 2)
    site.end_ending()
    assert offers(site.actions)[-2:] == [("1", 1), ("2", 1)]


def test_pra_grows_before_the_queue_is_looked_at_and_pwa_after_it() -> None:
    """Processors of a job that ended are offered to running jobs; the waiting job gets what nobody takes.

    Under PRA nobody is shrunk for it.
    """
    site = MalleableSite({"a": 10}, Approach.PRA)
    site.start(job("r", 5))
    assert offers(site.start(malleable("1", part(2, 9), initial=5))) == []
    site.submit(job("2", 2))
    site.complete("r")
    assert launches(site.actions) == ["r", "1"]
    site.end_ending()
    (offer,) = of_kind(OfferProcessors, site.actions)
    assert (offer.processors, site.record("2").state) == (5, JobState.WAITING)
    assert submissions(site.answer(offer, 3)) == {"a": 5}  # three stubs, two for the waiting job
    assert requests(site.actions) == []
    site = MalleableSite({"a": 10}, Approach.PWA)
    site.start(job("r", 5))
    site.start(malleable("1", part(5, 9)))
    site.submit(job("2", 2))
    site.finish("r")
    assert site.record("2").state is not JobState.WAITING
    assert offers(site.actions) == [("1", 3)]


@pytest.mark.parametrize(("ours", "asked"), [(10, []), (7, [("1", 3)])], ids=["it has started", "others have started"])
def test_a_placed_job_is_shrunk_for_until_it_has_started(ours: int, asked: list[tuple[str, int]]) -> None:
    """A batch system is asked for its jobs, then for its nodes.

    A job that it starts between the two on what ours have left is seen to wait while its processors are taken. So the
    next look decides whether others have taken them.
    """
    site = MalleableSite({"a": 12}, policy="fpsma")
    (offer,) = of_kind(OfferProcessors, site.start(malleable("1", part(2, 12), initial=9)))
    site.answer(offer, 0)
    site.queue(job("2", 3))
    (request,) = of_kind(RequestProcessors, site.poll("a", 12, idle=1, ours=9))
    assert request.processors == 2
    site.shrink_by(request)
    assert requests(site.poll("a", 12, idle=0, ours=7)) == []
    assert requests(site.poll("a", 12, idle=0, ours=ours)) == asked


def test_an_application_may_give_up_more_than_requested() -> None:
    """FT on 8 leaves 4: what it gives beyond the request counts, too."""
    site = MalleableSite({"a": 8})
    site.start(malleable("ft", part(2, 8), initial=8))
    (request,) = of_kind(RequestProcessors, site.submit(job("2", 3)))
    assert site.answer(request, 4) == []
    site.release("ft", 4)
    site.end_ending()
    assert site.sizes("ft") == [4]
    assert site.placed("2") == {"c0": ("a", 3)}


def test_only_its_own_is_released_and_never_below_its_minimum() -> None:
    site = grown()
    going = site.claimed("1")
    actions = site.release_these("1", *(one.id for one in going))
    assert ends(actions) == [str(one.id) for one in going[:4]]
    assert site.sizes("1") == [2]
    assert site.release_these("1", going[0].id) == []
    assert ends(site.release("1", 1)) == []
    site, offer = growing()
    site.answer(offer, 2)
    site.start(job("2", 2))
    theirs = [one.id for one in site.claimed("2")]
    assert site.release_these("1", *theirs, *site.stubs()) == []


def short(policy: str = "fpsma") -> MalleableSite:
    """Return a site where a job of 10 (at least 2) gave 4 of the 8 processors that the head of the queue needs."""
    site = MalleableSite({"a": 10}, policy=policy)
    site.start(malleable("1", part(2, 10), initial=10))
    (request,) = of_kind(RequestProcessors, site.submit(job("late", 8)))
    site.shrink_by(request, 4)
    assert (site.sizes("1"), site.record("late").state) == ([6], JobState.WAITING)
    return site


@pytest.mark.parametrize("policy", ["fpsma", "egs", "egs-repeated"])
def test_what_was_given_for_the_head_is_not_offered_back(policy: str) -> None:
    """The job has given too little: it is asked for the rest. It declines: it has not shrunk only to grow again."""
    site = short(policy)
    *_, rest = of_kind(RequestProcessors, site.actions)
    assert rest.processors == 4
    site.answer(rest, 0)
    site.poll("a", 10, idle=4, ours=6)
    assert offers(site.actions) == []
    assert requests(site.pass_time(20.0)) == [("1", 4)]


def test_what_was_given_in_vain_is_offered_once_nobody_waits() -> None:
    site = short()
    site.answer(of_kind(RequestProcessors, site.actions)[-1], 0)
    assert offers(site.cancel("late")) == [("1", 4)]


def test_room_is_made_elsewhere_when_a_cluster_gives_nothing() -> None:
    """The job on the cluster with most to give declines; the one on the other cluster is asked at once."""
    site = MalleableSite({"a": 10, "b": 8})
    site.start(malleable("1", part(2, 10, "a"), initial=10))
    site.start(malleable("2", part(2, 8, "b"), initial=8))
    (request,) = of_kind(RequestProcessors, site.submit(job("late", 4)))
    assert request.job_id == "1"
    assert requests(site.answer(request, 0)) == [("2", 4)]


def test_release_that_does_not_come_is_not_awaited_for_ever() -> None:
    site = grown("fpsma")
    (request,) = of_kind(RequestProcessors, site.submit(job("3", 2)))
    site.answer(request, 2)
    assert requests(site.pass_time(299.0)) == []
    assert requests(site.pass_time(2.0)) == [("1", 2)]
    assert len(ends(site.release("2", 2))) == 2


# ---- ends -----------------------------------------------------------------------------------------------------------


def test_end_of_a_job_that_shrank() -> None:
    """It is complete when the ranks it still has have ended; what departed ranks do is nobody's concern."""
    site = grown()
    departed = site.record("1").claims[0].placeholders[-1]
    rank = next(rank.rank for rank in site.record("1").ranks if rank.placeholder == departed)
    site.release_these("1", departed)
    site.rank_ends("1", rank, TaskEnd(reason=EndReason.SIGNALLED, signal=15))
    assert is_running(site, "1")
    site.complete("1")
    assert site.outcome("1").state is JobState.COMPLETED
    site = grown()
    for rank in range(4):
        site.rank_ends("1", rank)
    site.release("1", 2)
    assert site.outcome("1").state is JobState.COMPLETED


def test_end_of_a_job_that_grew() -> None:
    for well in (True, False):
        site, offer = growing()
        site.grow_by(offer, 2)
        for rank in range(5):
            site.rank_ends("1", rank)
        assert is_running(site, "1")
        if well:
            site.rank_ends("1", 5)
        else:
            site.rank_ends("1", 5, TaskEnd(reason=EndReason.EXITED, exit_code=3))
        assert site.outcome("1").exit_code == (0 if well else 3)


def in_the_middle(phase: str) -> MalleableSite:
    """Return a site where job 1 is in the middle of a change."""
    if phase in {"shrinking", "releasing"}:
        site = grown()
        request = of_kind(RequestProcessors, site.submit(job("3", 4)))[0]
        if phase == "releasing":
            site.answer(request)
        return site
    site, offer = growing()
    if phase != "asked":
        site.answer(offer, 2)
    if phase == "taking":
        site.hold_stubs()
    return site


PHASES = ("asked", "gathering", "taking", "shrinking", "releasing")


@pytest.mark.parametrize("phase", PHASES)
def test_job_that_ends_in_the_middle_of_a_change(phase: str) -> None:
    """Nothing is left of the change: stubs end, what was offered is free, and steps go on."""
    site = in_the_middle(phase)
    if phase == "releasing":
        site.release("1", 1)
    site.cancel("1")
    site.end_ending()
    site.cancel("2") if "2" in site.state.jobs else None
    site.end_ending()
    cluster = site.state.clusters[A]
    assert cluster.offered == cluster.gathering == 0
    assert site.stubs() == []
    assert [p for p in site.state.placeholders.values() if p.job_id == "1"] == []


def test_nothing_is_offered_to_a_job_that_is_about_to_end() -> None:
    site, offer = growing()
    site.answer(offer, 2)
    site.rank_ends("1", 0)
    actions = site.hold_stubs()
    assert of_kind(TakeProcessors, actions) == []
    assert len(of_kind(WithdrawOffer, actions)) == 1


# ---- co-allocation, snapshots, words ---------------------------------------------------------------------------------


def test_components_grow_each_in_its_own_cluster() -> None:
    site = MalleableSite({"a": 6, "b": 9})
    two = malleable("1", part(2, 9, "a", "x"), part(3, 9, "b", "y"))
    actions = site.start(two)
    made = [(one.component, one.cluster, one.processors) for one in of_kind(OfferProcessors, actions)]
    assert made == [("x", "a", 4), ("y", "b", 6)]
    x, y = of_kind(OfferProcessors, actions)
    site.grow_by(y)
    assert site.sizes("1") == [2, 9]
    site.grow_by(x, 3)
    assert site.sizes("1") == [5, 9]
    ranks = site.record("1").ranks
    assert [rank.rank for rank in ranks] == list(range(14))
    assert [rank.component_rank for rank in ranks if rank.component == "x"] == list(range(5))
    (request,) = of_kind(RequestProcessors, site.submit(job("2", component("z", 4, cluster="b"))))
    assert (request.component, request.processors) == ("y", 4)


def test_components_of_malleable_jobs_are_not_split() -> None:
    """A flexible component goes to one cluster, whole: there it grows."""
    site = MalleableSite({"a": 9, "b": 9})
    site.poll("a", 9, idle=3)
    site.poll("b", 9, idle=1)
    whole = replace(component("m", 4, 9), flexible=True)
    site.submit(replace(malleable("1", whole), placement="flexible-cluster-minimization"))
    assert site.placed("1") == {"m": ("a", 4)}


def test_room_for_a_co_allocated_head() -> None:
    site = MalleableSite({"a": 8, "b": 8})
    for name in ("a", "b"):
        site.start(malleable(name, part(2, 8, name), initial=8))
    site.submit(job("no", component("x", 4, cluster="a"), component("y", 7, cluster="b")))
    assert requests(site.actions) == []
    site.cancel("no")
    site.submit(job("yes", component("x", 4, cluster="a"), component("y", 5, cluster="b")))
    assert sorted(requests(site.actions)) == [("a", 4), ("b", 5)]


def test_explanations_of_a_change() -> None:
    """What is offered, gathered, taken, requested and released is told, and for whom; and why a growth ended."""
    site, offer = growing()
    assert "It can have 2 to 10 processors on a; it has been offered 6 more" in site.explained()
    site.answer(offer, 3)
    assert "3 more are being gathered for it" in site.explained()
    (taking,) = of_kind(TakeProcessors, site.hold_stubs())
    assert "it is taking in 3 more" in site.explained()
    site.take(taking)
    assert "on 7 processors: a (7)" in site.explained()
    site = grown()
    request = of_kind(RequestProcessors, site.submit(job("3", 4)))[0]
    assert "it has been asked to give up 2" in site.explained()
    site.answer(request)
    site.release("1", 1)
    assert "it is giving up 1 more" in site.explained()
    assert "Running jobs are giving up processors for it on a." in site.explained("3")
    site.release("1", 1)
    assert "on 4 processors: a (4)" in site.explained()
    site, offer = growing()
    site.answer(offer, 3)
    site.ended(site.stubs()[0], EndReason.NODE_LOST)
    assert "3 more processors on a: placeholder" in site.explained()


@pytest.mark.parametrize("end", [MalleableSite.cancel, MalleableSite.complete])
def test_a_job_that_has_ended_tells_what_sizes_it_had(end: Callable[[MalleableSite, str], object]) -> None:
    """By the time since it was launched, for that stays true however late it is asked for."""
    site, offer = growing()
    site.now += 30.0
    site.grow_by(offer, 3)
    site.now += 60.0
    (request,) = of_kind(RequestProcessors, site.submit(job("3", 4)))
    site.shrink_by(request)
    end(site, "1")
    site.now += 86400.0
    assert (
        " While it ran it grew from 4 to 7 on a 30 s after it was launched (processors are free); "
        "gave 1 of 7 back on a 90 s after it was launched (room for job 3)."
    ) in site.explained()


def test_only_the_latest_sizes_of_a_job_that_has_ended_are_told() -> None:
    site, offer = growing()
    site.grow_by(offer, 1)
    for count in range(1, 5):
        (*_, further) = of_kind(OfferProcessors, site.actions)
        site.grow_by(further, 1)
        assert site.sizes("1") == [5 + count]
    site.complete("1")
    assert " While it ran, after 2 earlier changes of its size, it grew from 6 to 7 on a" in site.explained()
    assert site.explained().count("after it was launched") == 3


# ---- the same policies on counts and on placeholders -----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("policy", ["fpsma", "egs"])
def test_scheduler_and_counts_agree(policy: str, seed: int) -> None:
    """What is decided on counts for some jobs and free processors, the scheduler does, message by message.

    (Folding differs: there a job can be doubled twice in a step, here its first change is still under way.)
    """
    chance = random.Random(seed)
    bounds: list[tuple[int, int, int]] = []
    for _ in range(chance.randint(1, 5)):
        minimum, size = chance.randint(1, 3), chance.randint(0, 4)
        bounds.append((minimum, minimum + size, minimum + size + chance.randint(0, 5)))
    rules = {n: PowerOfTwo() for n in range(len(bounds)) if chance.random() < 0.4}
    free, used = chance.randint(1, 12), sum(size for _, size, _ in bounds)
    site = MalleableSite({"a": used + free}, Approach.NONE)
    for number, (low, size, high) in enumerate(bounds):
        site.start(malleable(str(number), part(low, high), initial=size))
    scene = Scene(*bounds, rules=rules)
    scene.step(policy, Direction.GROW, free)
    said: list[tuple[int, int, int]] = []
    before = len(site.actions)
    now = Parameters(approach=Approach.PWA, malleability_policy=policy)
    site.post(ev.Configured(time=site.now, parameters=now, clusters=site.clusters))
    while waiting := of_kind(OfferProcessors, site.actions[before:])[len(said) :]:
        offer = waiting[0]
        number, record = int(offer.job_id), site.record(offer.job_id)
        low, _, high = bounds[number]
        rule = rules.get(number, AnySize())
        accepted = rule.answer(record.claims[0].processors, offer.processors, low, high)
        said.append((number, offer.processors, accepted))
        site.answer(offer, accepted)
    assert said == scene.said


def test_a_cluster_that_rejects_a_growth_is_not_offered_again() -> None:
    """As it is not for a job that waits; its owner may have it tried once more, and other jobs grow there."""
    site, offer = growing()
    (batch,) = [one.batch for one in of_kind(SubmitPlaceholders, site.answer(offer, 3))]
    before = len(site.actions)
    site.post(ev.BatchRejected(time=site.now, batch=batch, reason="no account"))
    for _ in range(5):
        site.pass_time(site.parameters.backoff + 1)
        site.poll("a", 10, idle=6, ours=4)
    assert offers(site.actions[before:]) == []
    assert "3 more processors on a: a refused it: no account" in site.explained()
    site.start(malleable("2", part(2, 4)))
    assert [name for name, _ in offers(site.actions[before:])] == ["2"]
    site.answer(of_kind(OfferProcessors, site.actions)[-1], 0)
    site.want(6)
    site.pass_time(site.parameters.backoff + 1)
    site.poll("a", 10, idle=4, ours=6)
    assert "1" in [name for name, _ in offers(site.actions[before:])]


def test_a_flexible_job_that_runs_grows_on_a_cluster_that_is_added() -> None:
    """What the site gets later is offered to it, and the claims that it has keep their numbers."""
    site = MalleableSite({"a": 2})
    wide = replace(component("m", 1, 8), flexible=True)
    site.start(malleable("1", wide, replace(component("n", 1, 2), flexible=True)))
    claims = [(claim.component, claim.cluster) for claim in site.record("1").claims]
    site.clusters = (*site.clusters, ClusterParameters(name=ClusterName("b")))
    site.post(ev.Configured(time=site.now, parameters=site.parameters, clusters=site.clusters))
    before = len(site.actions)
    site.poll("b", 4)
    record = site.record("1")
    assert [(claim.component, claim.cluster) for claim in record.claims] == [*claims, ("m", "b"), ("n", "b")]
    (offer, *_) = of_kind(OfferProcessors, site.actions[before:])
    assert (offer.cluster, offer.component) == ("b", "m")
    site.grow_by(offer)
    assert record.claims[len(claims)].processors == offer.processors
    site.post(ev.Configured(time=site.now, parameters=site.parameters, clusters=site.clusters))
    assert len(record.claims) == len(claims) + 2

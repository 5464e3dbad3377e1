# SPDX-License-Identifier: Apache-2.0
"""Jobs whose processes change together, through the scheduler: points, wishes, and what is lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from koala_adapter.errors import JobRefusedError
from koala_adapter.model import EndReason, JobId, JobKind, RunnerName, TaskEnd
from koala_adapter.outcome import JobState
from koala_adapter.runners.adaptive import membership_of
from koala_adapter.runners.notes import after
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import (
    Action,
    EndPlaceholders,
    GrantProcessors,
    OfferProcessors,
    RequestProcessors,
    TakeProcessors,
    WithdrawOffer,
)
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.scheduler.sizechange import ChangePhase
from koala_adapter.service.sizes import resizable
from tests.unit.scheduler.malleable_site import AdaptiveSite, JointSite, granted, malleable, part, requests
from tests.unit.scheduler.scheduler_site import WELL, A, B, component, copied, job, of_kind, submissions

FAILED = TaskEnd(reason=EndReason.EXITED, exit_code=3)


def growing() -> tuple[AdaptiveSite, TakeProcessors]:
    """Return a site of four processors whose adaptive job of two is to take in the others, and which."""
    site = AdaptiveSite({"a": 4})
    (offer,) = of_kind(OfferProcessors, site.begin())
    (taken,) = of_kind(TakeProcessors, [*site.answer(offer), *site.hold_stubs()])
    return site, taken


def shrinking() -> AdaptiveSite:
    """Return a site whose adaptive job of four is to give two up for another job."""
    site = AdaptiveSite({"a": 4})
    site.begin(initial=4, most=4)
    (request,) = of_kind(RequestProcessors, site.submit(job("2", 2)))
    site.answer(request)
    return site


def test_a_growth_is_over_when_all_are_done() -> None:
    """That newcomers run says nothing: they belong to the job when all have changed. Once begun it is not given up."""
    site, taken = growing()
    site.take(taken)
    assert site.change().phase is ChangePhase.TAKING
    site.reach()
    assert "at its point 17" in site.explained()
    site.give_up()
    site.pass_time(500)
    assert site.change().adaptation == 1
    site.made()
    assert site.sizes("1") == [4]
    record = site.record("1")
    assert not record.changes
    assert record.started == {0, 1, 2, 3}
    assert (record.size_changes[-1].before, record.size_changes[-1].after) == (2, 4)


def test_a_growth_that_is_given_up() -> None:
    site, taken = growing()
    actions = site.give_up()
    assert {one for ends in of_kind(EndPlaceholders, actions) for one in ends.placeholders} == {
        rank.placeholder for rank in taken.ranks
    }
    assert [one.reason for one in of_kind(WithdrawOffer, actions)] == ["too late"]
    site.rank_ends("1", 2, FAILED)
    site.end_ending()
    assert site.sizes("1") == [2]
    assert site.record("1").state is JobState.RUNNING
    site.rank_ends("1", 0)
    site.rank_ends("1", 1)
    assert site.record("1").state is JobState.COMPLETED


def test_a_program_that_ends_while_newcomers_are_taken_in() -> None:
    """All of its own processes have ended well: with the growth given up, nobody is left to end."""
    site, _ = growing()
    site.rank_ends("1", 0)
    site.rank_ends("1", 1)
    assert site.record("1").state is JobState.RUNNING
    site.give_up()
    assert site.record("1").state is JobState.COMPLETED


def test_a_newcomer_without_contact_is_not_told_to_cost_the_job() -> None:
    """Only the growth is given up with it; with one of the others, the job is lost."""
    site, taken = growing()
    for rank, said in ((taken.ranks[0].rank, "the growth that they are for is given up"), (0, "the job is lost")):
        placeholder = site.record("1").ranks[rank].placeholder
        site.silence(placeholder)
        assert f", {said}." in site.explained()


@pytest.mark.parametrize("lost", ["process", "placeholder"])
def test_a_newcomer_that_is_lost_before_the_point(lost: str) -> None:
    site, taken = growing()
    gone = taken.ranks[0].placeholder
    actions = site.rank_ends("1", 2, FAILED) if lost == "process" else site.ended(gone, EndReason.CANCELLED)
    (withdrawn,) = of_kind(WithdrawOffer, actions)
    assert "the new process 2" in withdrawn.reason or lost == "placeholder"
    site.end_ending()
    assert site.sizes("1") == [2]
    assert site.record("1").state is JobState.RUNNING


@pytest.mark.parametrize("grows", [True, False])
def test_a_process_that_is_lost_after_the_point_is_the_end_of_the_job(*, grows: bool) -> None:
    """A newcomer, on which others may hang by then, or a leaver, which is not let go until all are done."""
    site = growing()[0] if grows else shrinking()
    site.reach(*(() if grows else (2, 3)))
    site.rank_ends("1", 3, FAILED)
    assert site.record("1").state is JobState.FAILED


def test_a_shrink() -> None:
    site = shrinking()
    site.reach(2, 3)
    assert "it is giving up 2 at its point 17 (room for job 2)." in site.explained()
    site.made()
    assert "the processes of 2 that it gives up are ending (room for job 2)." in site.explained()
    first = site.rank_ends("1", 3)
    assert [len(one.placeholders) for one in of_kind(EndPlaceholders, first)] == [1]
    site.rank_ends("1", 2)
    assert site.sizes("1") == [2]
    assert not site.record("1").changes
    assert (site.record("1").size_changes[-1].before, site.record("1").size_changes[-1].after) == (4, 2)
    site.end_ending()
    site.run("2")
    assert site.record("2").state is JobState.RUNNING


def test_a_shrink_that_is_given_up() -> None:
    site = shrinking()
    site.give_up()
    assert site.sizes("1") == [4]
    assert "2 processors on a were not given back: too late" in site.record("1").last_trouble


def test_processes_that_do_not_leave_are_ended() -> None:
    site = shrinking()
    site.reach(2, 3)
    site.made()
    before = len(site.actions)
    site.pass_time(site.state.parameters.release_timeout + 1)
    ends = of_kind(EndPlaceholders, site.actions[before:])
    assert sum(len(one.placeholders) for one in ends) == 2
    assert site.sizes("1") == [2]
    assert site.record("1").state is JobState.RUNNING


@pytest.mark.parametrize("leaving", [(), (0, 1, 2, 3), (7,)])
def test_processes_that_cannot_leave(leaving: tuple[int, ...]) -> None:
    """Whatever is said, the minimum is kept, and only its own processes are let go."""
    site = shrinking()
    site.reach(*leaving)
    assert not site.record("1").changes
    assert site.sizes("1") == [4]


def still(processors: int, **sizes: int) -> AdaptiveSite:
    """Return a site (approach none) with running adaptive jobs."""
    site = AdaptiveSite({"a": processors}, Approach.NONE)
    for name, initial in sizes.items():
        site.begin(name[1:], initial=initial, most=9)
    return site


def test_what_its_owner_wants_is_offered_to_a_program() -> None:
    """It knows best which sizes it can use: of 1 that is free it takes none, and is asked again after a while."""
    site = still(3, j1=2)
    (offer,) = of_kind(OfferProcessors, site.want(4))
    assert offer.processors == 1
    assert of_kind(OfferProcessors, site.answer_number(offer.number, 0)) == []
    assert not site.record("1").changes
    (again,) = of_kind(OfferProcessors, site.pass_time(2 * site.state.parameters.scan_interval))
    site.answer_number(again.number, 1)
    assert site.change().phase is ChangePhase.GATHERING
    assert "its owner wants 4" in site.change().reason


def test_a_wish_that_can_be_granted_in_part_is_offered_and_kept() -> None:
    site = still(6, j1=2)
    site.wish(9)
    assert site.change().countered
    assert site.change().processors == 4
    site.submit(job("2", 1))
    assert site.record("2").state is JobState.WAITING
    change = site.change()
    site.post(ev.OfferAnswered(time=site.now, job_id=JobId("1"), number=change.number, accepted=4))
    assert site.change().phase is ChangePhase.GATHERING


def test_a_mandatory_wish_makes_another_job_shrink() -> None:
    site = still(6, j1=2, j2=4)
    before = len(site.actions)
    assert site.wish(2, mandatory=True) == []
    (request,) = of_kind(RequestProcessors, site.actions[before:])
    assert requests([request]) == [("2", 2)]
    site.answer(request)
    site.reach(2, 3, id_="2")
    site.made("2")
    site.rank_ends("2", 2)
    site.rank_ends("2", 3)
    site.end_ending()
    assert granted(site.actions)[-1] == ("1", 2, "")


def test_an_application_gives_back() -> None:
    site = still(6, j1=4)
    (answer,) = site.give_back(2)
    assert (answer.processors, answer.agreement, answer.number) == (2, "0-9", site.change().number)
    assert site.change().phase is ChangePhase.RELEASING
    site.reach(2, 3)
    site.made()
    site.rank_ends("1", 2)
    site.rank_ends("1", 3)
    assert site.sizes("1") == [2]


@pytest.mark.parametrize(
    ("id_", "count", "reason"),
    [
        ("1", 2, "0 processors are below its minimum of 1"),
        ("1", 3, "it has 2 processors, and cannot give 3 back"),
        ("rigid", 1, "this component keeps its size"),
    ],
)
def test_what_an_application_may_not_give_back(id_: str, count: int, reason: str) -> None:
    site = still(6, j1=2)
    site.start(job("rigid", component("m", 2, cluster="a")))
    (answer,) = site.give_back(count, id_)
    assert (answer.processors, answer.reason) == (0, reason)


def test_the_scheduler_tells_which_jobs_an_event_has_touched() -> None:
    """Those that it names, and those of which it wants something; no others, however many there are."""
    site = still(7, j1=2, j2=4, j3=1)
    nobody = ev.TimeReached(time=site.now)
    site.post(nobody)
    assert not site.scheduler.touched(nobody)
    site.wish(2, mandatory=True)
    assert set(site.scheduler.touched(nobody)) == {"1", "2"}
    ended = ev.RankEnded(time=site.now, job_id=JobId("3"), rank=5, end=WELL)
    site.post(ended)
    assert set(site.scheduler.touched(ended)) == {"3"}


def test_members_stay_in_the_order_in_which_they_joined() -> None:
    """Also where ranks were given to the newcomers of a later change first: so their processes have been told."""
    site = AdaptiveSite({"a": 4, "b": 2})
    members = replace(component("m", 1, 6), flexible=True)
    site.start(replace(malleable("1", members), runner=RunnerName.ADAPTIVE))
    first, second = sorted(of_kind(OfferProcessors, site.actions), key=lambda one: one.number)
    assert (first.cluster, second.cluster) == ("a", "b")
    site.answer(first)
    site.answer(second)
    site.take_all()
    for cluster in ("b", "a"):
        for stub in site.stubs():
            if site.state.placeholders[stub].cluster == cluster:
                site.hold(stub)
    record = site.record("1")
    ranks = {record.claims[one.parts[0].claim].cluster: one.ranks for one in record.changes.values()}
    assert ranks == {"a": [3, 4, 5], "b": [1, 2]}
    told = membership_of(record, "m").members
    for offer in (first, second):
        before = membership_of(record, "m")
        assert before.members == told
        told = after(before, next(one for one in before.wanted if one.number == offer.number))
        site.reach(number=offer.number)
        site.made(number=offer.number)
    assert membership_of(record, "m").members == told == (0, 3, 4, 5, 1, 2)
    assert membership_of(copied(site.state).jobs[record.job.id], "m").members == told


def test_only_its_application_changes_an_evolving_job() -> None:
    """Nothing is offered to it or wanted back from it, for anybody; what it asks for it gets, and it gives back."""
    site = AdaptiveSite({"a": 6})
    evolving = replace(malleable("1", part(1, 6), initial=2), runner=RunnerName.ADAPTIVE, kind=JobKind.EVOLVING)
    site.start(evolving)
    assert site.sizes("1") == [2]
    site.poll("a", 6, idle=4, ours=2)
    assert site.wish(2) == [("1", 2, "")]
    (taken,) = of_kind(TakeProcessors, site.hold_stubs())
    site.take(taken)
    site.reach()
    site.made()
    site.poll("a", 6, idle=2, ours=4)
    site.submit(job("2", 4))
    site.pass_time(120)
    assert (site.sizes("1"), site.record("2").state) == ([4], JobState.WAITING)
    assert of_kind(OfferProcessors, site.actions) == []
    assert of_kind(RequestProcessors, site.actions) == []
    said = site.explained()
    assert said.startswith("The evolving job has been running for")
    assert "It can have 1 to 6 processors on a, for which it asks itself." in said
    (answer,) = site.give_back(2)
    assert answer.processors == 2
    with pytest.raises(JobRefusedError, match="job 1 is evolving: its application alone changes its size"):
        resizable(site.record("1"), "m", 3)


# -- A wish of an application that is met on several clusters by one agreement: all parts share one fate.


def test_a_wish_is_met_on_two_clusters() -> None:
    """6 more where 3 are idle on each: both, taken in at one point, by one agreement."""
    site = JointSite()
    before = len(site.actions)
    answer = site.demand(6)
    assert (answer.processors, answer.countered, answer.reason) == (6, False, "")
    assert submissions(site.actions[before:]) == {"a": 3, "b": 3}
    taken = site.all_started(site.hold_stubs())
    assert {one.cluster: len(one.ranks) for one in taken} == {"a": 3, "b": 3}
    record = site.record("1")
    assert [rank.rank for rank in record.ranks] == [rank.component_rank for rank in record.ranks] == list(range(8))
    site.reach(number=answer.number)
    assert {change.adaptation for change in site.changes} == {1}
    site.made(number=answer.number)
    assert site.changes == []
    assert site.held == {"a": 5, "b": 3}
    assert {(one.cluster, one.after) for one in record.size_changes} == {("a", 5), ("b", 3)}


def test_no_more_is_taken_than_is_asked_for_and_may_be_had() -> None:
    site = JointSite()
    site.demand(3)
    assert list(site.parts.values()) == [3]
    site = JointSite(most=6)
    answer = site.demand(6)
    assert (answer.processors, answer.countered, answer.reason) == (4, True, "its maximum is reached")


@pytest.mark.parametrize(("accepted", "parts"), [(6, [3, 3]), (4, [3, 1]), (3, [3]), (0, [])])
def test_a_counter_offer_over_clusters(accepted: int, parts: list[int]) -> None:
    """9 are asked for, 6 are offered and kept; what is taken of them is gathered, and the rest is free again."""
    site = JointSite()
    answer = site.demand(9)
    assert (answer.processors, answer.countered, answer.reason) == (6, True, "no more is free")
    assert [cluster.offered for cluster in site.state.clusters.values()] == [3, 3]
    assert "it asked for 9 more and has been offered 3, which are kept for it on a; " in site.explained()
    site.answer_number(answer.number, accepted)
    assert list(site.parts.values()) == parts
    assert [cluster.offered for cluster in site.state.clusters.values()] == [0, 0]


@pytest.mark.parametrize(
    ("stage", "what", "trouble"),
    [
        ("queued", lambda site: site.ended(site.stub_on(B)), "placeholder"),
        ("started", lambda site: site.give_up(), "too late"),
        ("started", lambda site: site.rank_ends("1", 7), "the new process 7"),
        ("submitted", lambda site: site.want(2), None),
        ("submitted", lambda site: [site.fails("b"), site.fails("b")][1], "placeholder"),
        ("submitted", lambda site: site.fails("b", rejected=True), "b refused it"),
    ],
    ids=["lost", "cannot be brought to it", "ends before", "its owner wants fewer", "absent twice", "refused"],
)
def test_what_ends_one_part_ends_all_parts(
    stage: str, what: Callable[[JointSite], list[Action]], trouble: str | None
) -> None:
    """The application knows of one agreement; it hears of its end once, under its number. What comes late is let go."""
    site = JointSite()
    answer = site.demand(6)
    if stage == "queued":
        site.take_all()
    if stage == "started":
        site.all_started(site.hold_stubs())
    actions = what(site)
    assert [one.number for one in of_kind(WithdrawOffer, actions)] == [answer.number]
    assert submissions(actions) == {}
    told = site.record("1").last_trouble
    assert told.startswith("" if trouble is None else f"6 more processors on a and b: {trouble}"), told
    assert bool(told) is (trouble is not None)
    site.take_all()
    site.idle_again()


def test_parts_that_do_not_come_in_time_end_all_parts() -> None:
    """Those of a are held; those of b are not, and nothing more is offered there for a while."""
    site = JointSite()
    site.demand(6)
    site.take_all()
    for stub in site.stubs():
        if site.state.placeholders[stub].cluster == A:
            site.hold(stub)
    assert of_kind(TakeProcessors, site.actions) == []
    site.pass_time(site.parameters.placeholder_life + 1)
    assert site.state.clusters[A].no_growth_before is None
    assert site.state.clusters[B].no_growth_before is not None
    site.idle_again()


def test_nobody_answers_a_counter_offer_over_clusters() -> None:
    site = JointSite()
    site.demand(9)
    site.pass_time(site.parameters.answer_timeout + 1)
    site.idle_again()


def test_a_named_cluster() -> None:
    """It grows there and nowhere else; where it cannot be, it is refused."""
    site = JointSite()
    assert site.demand(6, cluster="b").processors == 3
    assert list(site.parts) == ["b"]
    refused = site.demand(1, 2, cluster="nowhere")
    assert (refused.processors, refused.reason) == (0, "component 'm' cannot grow on nowhere")


def test_fewer_than_are_of_use_are_not_offered() -> None:
    site = JointSite()
    answer = site.demand(9, least=7)
    assert (answer.processors, answer.number) == (0, 0)
    assert answer.reason == "no more is free: 6 can be had, and fewer than 7 are of no use to it"
    site.idle_again()
    assert site.demand(9, 2, least=6).processors == 6


@pytest.mark.parametrize("required", [True, False])
def test_memory_decides_where_it_grows(required: bool) -> None:  # noqa: FBT001 - drawn
    site = JointSite(b=4096)
    answer = site.demand(6, memory_mib=4000, memory_required=required)
    assert (answer.processors, answer.memory_mib) == (3, 4000)
    assert list(site.parts) == ["b"]


def test_a_wish_that_is_told_twice_is_met_once() -> None:
    """Also where most is free elsewhere by then."""
    site = JointSite({"a": 5, "b": 8})
    event = ev.MoreRequested(
        time=site.now, job_id=JobId("1"), component="m", number=1, processors=2, agreement="0-1", rank=0
    )
    site.post(event)
    assert list(site.parts) == ["b"]
    assert site.post(event) == []
    assert len(site.changes) == 1


def test_a_mandatory_wish_takes_what_is_free_everywhere_before_anybody_is_shrunk() -> None:
    """8 more: 3 are idle on each cluster, so another job gives up 2, and not 5."""
    site = JointSite({"a": 12, "b": 3})
    other = replace(malleable("2", part(1, 20), initial=7), runner=RunnerName.ADAPTIVE)
    site.start(other)
    event = ev.MoreRequested(
        time=site.now, job_id=JobId("1"), component="m", number=1, processors=8, mandatory=True, agreement="0-1", rank=0
    )
    site.post(event)
    assert sorted(part.processors for part in site.changes[0].parts) == [3, 5]
    assert {change.phase for change in site.changes} == {ChangePhase.PROMISED}
    (shrinking,) = site.record("2").changes.values()
    assert shrinking.processors == -2
    site.answer_number(shrinking.number, 2, "2")
    site.reach(5, 6, id_="2", number=shrinking.number)
    site.made("2")
    site.rank_ends("2", 5)
    site.rank_ends("2", 6)
    site.end_ending()
    site.poll("a", 12, idle=5, ours=7)
    site.poll("b", 3, idle=3)
    (answer,) = of_kind(GrantProcessors, site.actions)
    assert (answer.processors, answer.countered) == (8, False)
    assert site.parts == {"a": 5, "b": 3}


def test_a_mandatory_wish_that_others_cannot_meet_is_countered_with_what_is_free_everywhere() -> None:
    """Also where nothing at all is free on the cluster that was to make room."""
    site = JointSite({"a": 2, "b": 3})
    answer = site.demand(9, mandatory=True)
    assert (answer.processors, answer.countered, answer.reason) == (3, True, "the others could not give more")
    site.answer_number(answer.number, 3)
    assert site.parts == {"b": 3}


@pytest.mark.parametrize("phase", [ChangePhase.ASKED, ChangePhase.GATHERING, ChangePhase.TAKING])
def test_the_job_ends_in_each_phase(phase: ChangePhase) -> None:
    site = JointSite()
    site.demand(9 if phase is ChangePhase.ASKED else 6)
    if phase is ChangePhase.TAKING:
        site.all_started(site.hold_stubs())
    assert {change.phase for change in site.changes} == {phase}
    site.post(ev.CancelRequested(time=site.now, job_id=JobId("1")))
    site.end_ending()
    assert not site.state.placeholders
    for cluster in site.state.clusters.values():
        assert (cluster.offered, cluster.gathering, cluster.promises) == (0, 0, [])


def test_stubs_that_never_arrived_are_submitted_again() -> None:
    """Koala may have been killed before they were on their way: the growth goes on, also on the other cluster."""
    site = JointSite()
    site.demand(6)
    actions = site.fails("b")
    assert submissions(actions) == {"b": 3}
    assert not of_kind(WithdrawOffer, actions)
    taken = site.all_started(site.hold_stubs())
    assert {one.cluster: len(one.ranks) for one in taken} == {"a": 3, "b": 3}

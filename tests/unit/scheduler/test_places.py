# SPDX-License-Identifier: Apache-2.0
"""Workers that an owner wants and that have no idle processors: what is queued, taken in, kept and given up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koala_adapter.model import ClusterName, EndReason
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import SubmitPlaceholders, TakeProcessors
from koala_adapter.scheduler.explain import explain
from koala_adapter.scheduler.parameters import Approach, ClusterParameters
from tests.unit.scheduler.malleable_site import MalleableSite, part
from tests.unit.scheduler.scheduler_site import component, ends, job, of_kind, submissions
from tests.unit.scheduler.test_workers import FAILED, end, headed, want, workers


def crowded(approach: Approach = Approach.NONE, *, flexible: bool = False, threshold: int = 0) -> MalleableSite:
    """Return a site on whose cluster a a job of a head and one worker runs; local users have all the rest of 10."""
    names = {"a": 10, "b": 10} if flexible else {"a": 10}
    site = MalleableSite(names, approach, clusters=(ClusterParameters(name=ClusterName("a"), threshold=threshold),))
    one = headed(1, 6, flexible=flexible)
    if flexible:
        site.poll("b", 10, idle=0)
    site.start(one)
    site.poll("a", 10, idle=0, ours=2)
    return site


def places(site: MalleableSite) -> list[int]:
    """Return how many placeholders job 1 has in queues, claim by claim."""
    return [len(claim.places) for claim in site.record("1").claims]


def explained(site: MalleableSite) -> str:
    """Return what is said of job 1."""
    return explain(site.state, None, site.record("1"), site.now)


def test_what_is_not_idle_is_queued_for() -> None:
    """For the time that the job has left; it is told, and the cluster need not be looked at more often for it."""
    site = crowded()
    site.pass_time(200)
    assert submissions(want(site, 4)) == {"a": 3}
    assert of_kind(SubmitPlaceholders, site.actions)[-1].walltime == 400 + site.parameters.launch_margin
    assert "3 placeholders wait in the queue of a for a growth to 4." in explained(site)
    assert not site.scheduler.growth_waits(ClusterName("a"))
    assert submissions(site.poll("a", 10, idle=0, ours=2)) == {}


def test_each_is_taken_in_when_it_is_held() -> None:
    """The first one does not wait for the others; those that are held meanwhile come together after it."""
    site = crowded()
    want(site, 4)
    site.take_all()
    first, second, third = site.stubs()
    (taking,) = of_kind(TakeProcessors, site.hold(second))
    assert [rank.placeholder for rank in taking.ranks] == [second]
    assert site.sizes("1") == [1, 2]
    assert of_kind(TakeProcessors, [*site.hold(first), *site.hold(third)]) == []
    assert "wait in the queue" not in explained(site)
    (both,) = of_kind(TakeProcessors, site.take(taking))
    site.take(both)
    assert (site.sizes("1"), places(site)) == ([1, 4], [0, 0])
    assert [one.reason for one in site.record("1").size_changes] == ["its owner wants 4"] * 2


def test_the_rest_of_what_is_idle_in_part_is_queued_for() -> None:
    """What is idle is gathered as ever; what waits in the queue does not keep it from being taken in."""
    site = crowded()
    site.poll("a", 10, idle=2, ours=2)
    assert [one.count for one in of_kind(SubmitPlaceholders, want(site, 5))] == [2, 2]
    (taking,) = of_kind(TakeProcessors, site.hold_stubs())
    (rest,) = of_kind(TakeProcessors, site.take(taking))
    site.take(rest)
    assert site.sizes("1") == [1, 5]


def test_a_threshold_is_never_passed() -> None:
    """Of ten processors seven are left to local users, and two are the job's."""
    site = crowded(threshold=7)
    assert submissions(want(site, 6)) == {"a": 1}


def test_what_is_wanted_no_more_is_given_up() -> None:
    """The latest first; what is held is kept longest."""
    site = crowded()
    want(site, 6)
    site.take_all()
    (taking,) = of_kind(TakeProcessors, site.hold(site.stubs()[4]))
    site.hold(site.stubs()[3])
    first, *_, held = site.stubs()
    assert len(ends(want(site, 4))) == 2
    assert site.stubs() == [first, held]
    assert len(ends(want(site, 3))) == 1
    assert site.stubs() == [held]
    (more,) = of_kind(TakeProcessors, site.take(taking))
    site.take(more)
    assert site.sizes("1") == [1, 3]


def test_idle_processors_of_another_cluster_come_first() -> None:
    """The places that they stand for are given up; which are on a cluster where something is idle, stand for that."""
    site = crowded(flexible=True)
    want(site, 4)
    assert sum(places(site)) == 3
    (where,) = (claim.cluster for claim in site.record("1").claims if claim.places)
    other = "b" if where == "a" else "a"
    site.take_all()
    ours = {"a": 2, "b": 0}
    assert submissions(site.poll(str(where), 10, idle=3, ours=ours[str(where)])) == {}
    site.poll(str(where), 10, idle=0, ours=ours[str(where)])
    assert site.scheduler.growth_waits(ClusterName(other))
    actions = site.poll(other, 10, idle=2, ours=ours[other])
    assert submissions(actions) == {other: 2}
    assert len(ends(actions)) == 2
    assert sum(places(site)) == 1


def test_waiting_jobs_have_the_room() -> None:
    """Nothing is queued for a growth while jobs wait in the placement queue; afterwards it is."""
    site = crowded()
    site.submit(job("2", component("x", 9, cluster="a")))
    assert submissions(want(site, 4)) == {}
    assert submissions(site.cancel("2")) == {"a": 3}


@pytest.mark.parametrize("approach", [Approach.PRA, Approach.PWA])
def test_where_policies_offer_processors_nothing_is_queued(approach: Approach) -> None:
    """There what an owner wants bounds what is offered; when that becomes so, places are given up."""
    site = crowded(approach)
    assert submissions(want(site, 4)) == {}
    site = crowded()
    want(site, 4)
    parameters = replace(site.parameters, approach=approach)
    actions = site.post(ev.Configured(time=site.now, parameters=parameters, clusters=site.clusters))
    assert (len(ends(actions)), places(site)) == (0, [0, 0])  # their ids are not known yet
    assert site.stubs() == []


def test_sizes_of_which_not_any_is_of_use_are_not_queued_for() -> None:
    """Such a component is asked first, and needs what it accepts together."""
    site = MalleableSite({"a": 4}, Approach.NONE)
    site.start(workers("1", replace(part(2, 8), sizes="power-of-two")))
    site.poll("a", 4, idle=0, ours=2)
    assert submissions(want(site, 4)) == {}


def test_the_end_of_the_job_gives_them_up() -> None:
    """Those that wait and those that are held."""
    site = crowded()
    want(site, 4)
    site.take_all()
    site.hold(site.stubs()[0])
    site.hold(site.stubs()[0])
    end(site, 0)
    assert len(ends(site.actions)) == 2 + 3
    site.end_ending()
    assert not site.state.placeholders


def test_one_that_is_lost_is_queued_again_after_a_pause() -> None:
    """Whoever cancels it would have to do so without end otherwise."""
    site = crowded()
    want(site, 2)
    site.take_all()
    assert submissions(site.ended(site.stubs()[0], EndReason.CANCELLED)) == {}
    assert "was lost" in explained(site)
    assert submissions(site.pass_time(site.parameters.backoff)) == {"a": 1}


def test_a_submission_that_is_refused_is_made_again_after_a_pause() -> None:
    """The job goes on as it is."""
    site = crowded()
    (sent,) = of_kind(SubmitPlaceholders, want(site, 3))
    refused = ev.BatchRejected(time=site.now, batch=sent.batch, reason="no more jobs")
    assert submissions(site.post(refused)) == {}
    assert places(site) == [0, 0]
    assert submissions(site.pass_time(site.parameters.backoff)) == {"a": 2}


def test_one_that_would_end_before_the_job_is_not_queued() -> None:
    """The cluster allows less time than the job has left; nor is one that turns out so taken in."""
    limit = ClusterParameters(name=ClusterName("a"), walltime_limit=2000)
    site = MalleableSite({"a": 10}, Approach.NONE, clusters=(limit,))
    site.start(headed(1, 6))
    site.poll("a", 10, idle=0, ours=2)
    want(site, 2)
    site.take_all()
    assert of_kind(TakeProcessors, site.hold(site.stubs()[0], ends_at=site.now + 100)) == []
    assert site.stubs() == []
    assert "they would end before the job's walltime does" in explained(site)
    site.pass_time(site.parameters.backoff)
    limits = (replace(limit, walltime_limit=400),)
    site.end_ending()
    site.post(ev.Configured(time=site.now, parameters=site.parameters, clusters=limits))
    before = len(site.actions)
    want(site, 3)
    assert submissions(site.actions[before:]) == {}


def test_a_job_that_rests_keeps_its_places() -> None:
    """A worker has failed: nothing is queued in its place for now, and what comes meanwhile is given back."""
    site = crowded()
    want(site, 3)
    site.take_all()
    (taking,) = of_kind(TakeProcessors, site.hold(site.stubs()[0]))
    site.take(taking)
    end(site, 1, FAILED)
    assert (site.sizes("1"), places(site)) == ([1, 1], [0, 1])
    assert of_kind(TakeProcessors, site.hold(site.stubs()[0])) == []
    assert places(site) == [0, 0]
    later = site.pass_time(site.parameters.end_patience)
    assert submissions(later) == {"a": 2}


def test_what_the_application_asks_for_takes_the_place_of_what_is_queued() -> None:
    """Together they are never more than the owner wants."""
    site = crowded()
    want(site, 4)
    site.take_all()
    site.poll("a", 10, idle=5, ours=2)
    before = len(site.actions)
    site.ask("1", 2)
    assert submissions(site.actions[before:]) == {"a": 2}
    assert places(site) == [0, 1]

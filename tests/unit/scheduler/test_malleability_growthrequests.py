# SPDX-License-Identifier: Apache-2.0
"""Applications that ask for more processors themselves, voluntary and mandatory, through the scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koala_adapter.model import JobKind
from koala_adapter.outcome import JobState
from koala_adapter.scheduler.actions import GrantProcessors, OfferProcessors, RequestProcessors, TakeProcessors
from koala_adapter.scheduler.explain import explain
from koala_adapter.scheduler.parameters import Approach
from tests.unit.scheduler.malleable_site import MalleableSite, granted, malleable, part, requests
from tests.unit.scheduler.scheduler_site import A, component, job, of_kind, submissions


def still(size: dict[str, int], processors: int = 12) -> MalleableSite:
    """Return a site (approach none) with running jobs of minimum 2 and maximum 9."""
    site = MalleableSite({"a": processors}, Approach.NONE)
    for name, initial in size.items():
        site.start(malleable(name, part(2, 9), initial=initial))
    return site


def test_voluntary_wish() -> None:
    """It gets what is free, as far as it goes, and takes it in as any growth, under the number it was told."""
    site = still({"1": 4, "2": 5})
    actions = site.ask("1", 4)
    assert granted(actions) == [("1", 3, "no more is free")]
    assert submissions(actions) == {"a": 3}
    (taking,) = of_kind(TakeProcessors, site.hold_stubs())
    assert taking.number == of_kind(GrantProcessors, actions)[0].number
    site.take(taking)
    assert site.sizes("1") == [7]


def test_wish_beyond_the_maximum() -> None:
    """What it could not use is not granted."""
    site = still({"1": 7})
    assert granted(site.ask("1", 5)) == [("1", 2, "its maximum is reached")]
    site = still({"1": 9})
    assert granted(site.ask("1", 5)) == [("1", 0, "its maximum is reached")]


def test_mandatory_wish_that_can_be_granted_at_once() -> None:
    """Nobody is shrunk where enough is free."""
    site = still({"1": 4, "2": 4})
    actions = site.ask("1", 4, mandatory=True)
    assert granted(actions) == [("1", 4, "")]
    assert requests(actions) == []


def test_mandatory_wish_shrinks_others() -> None:
    """Two are free, the other two come from the other jobs; it is granted when these have really been released."""
    site = still({"1": 3, "2": 4, "3": 4}, processors=13)
    second, third = of_kind(RequestProcessors, site.ask("1", 4, mandatory=True))
    assert [(second.job_id, second.processors), (third.job_id, third.processors)] == [("2", 1), ("3", 1)]
    site.shrink_by(second)
    assert granted(site.actions) == []
    site.shrink_by(third)
    assert granted(site.actions) == [("1", 4, "")]
    (taking,) = of_kind(TakeProcessors, site.hold_stubs())
    site.take(taking)
    assert (site.sizes("1"), site.sizes("2"), site.sizes("3")) == ([7], [3], [3])


def test_what_is_promised_is_kept_from_waiting_jobs() -> None:
    """A job that comes meanwhile does not get what the others give up, nor what was free."""
    site = still({"1": 3, "2": 7})
    (request,) = of_kind(RequestProcessors, site.ask("1", 4, mandatory=True))
    assert request.processors == 2
    assert submissions(site.submit(job("late", 1))) == {}
    site.shrink_by(request)
    assert granted(site.actions) == [("1", 4, "")]
    assert site.record("late").state is JobState.WAITING


def test_mandatory_wish_shrinks_nobody_in_vain() -> None:
    """When the others cannot give enough it gets what is free, at once."""
    site = still({"1": 3, "2": 4, "3": 3})
    actions = site.ask("1", 6, mandatory=True)
    assert requests(actions) == []
    assert granted(actions) == [("1", 2, "the others could not give more")]


def test_a_reading_in_which_one_counts_twice() -> None:
    """A placeholder that started between the listings of jobs and of nodes: the next reading decides."""
    site = still({"1": 3, "2": 3})
    site.poll("a", 12, idle=0, ours=5)
    actions = site.ask("1", 1, mandatory=True)
    assert (requests(actions), granted(actions)) == ([], [])
    site.now += 1
    assert requests(site.poll("a", 12, idle=0, ours=6)) == [("2", 1)]


def test_others_who_take_more_than_there_is() -> None:
    """The second reading that says so ends the wait."""
    site = still({"1": 3, "2": 3})
    site.poll("a", 12, idle=0, ours=5)
    site.ask("1", 1, mandatory=True)
    site.now += 1
    assert granted(site.poll("a", 12, idle=0, ours=5)) == [("1", 0, "the others could not give more")]


def test_others_that_refuse() -> None:
    """They are asked once; then it gets what is free."""
    site = still({"1": 3, "2": 7})
    (request,) = of_kind(RequestProcessors, site.ask("1", 4, mandatory=True))
    assert granted(site.answer(request, 0)) == [("1", 2, "the others could not give more")]
    assert requests(site.actions) == [("2", 2)]


def test_others_that_never_release() -> None:
    """A promise is not kept open for ever."""
    site = MalleableSite({"a": 12}, Approach.NONE)
    for name, initial in {"1": 3, "2": 7}.items():
        site.start(malleable(name, part(2, 9), initial=initial, walltime=9000))
    (request,) = of_kind(RequestProcessors, site.ask("1", 4, mandatory=True))
    site.answer(request)
    assert granted(site.pass_time(299.0)) == []
    assert granted(site.pass_time(2.0)) == [("1", 2, "the others could not give more")]


def test_two_mandatory_wishes_are_granted_in_order() -> None:
    """The second waits for the first, and then has its own step."""
    site = still({"1": 2, "2": 2, "3": 8})
    (first,) = of_kind(RequestProcessors, site.ask("1", 2, mandatory=True))
    assert site.ask("2", 2, mandatory=True) == []
    site.shrink_by(first)
    (second,) = of_kind(RequestProcessors, site.actions)[1:]
    site.shrink_by(second)
    assert granted(site.actions) == [("1", 2, ""), ("2", 2, "")]


def test_a_request_told_twice_is_taken_once() -> None:
    """A repeated request, or an older one, changes nothing."""
    site = still({"1": 3})
    site.ask("1", 1, number=2)
    assert site.ask("1", 1, number=2) == []
    assert site.ask("1", 1, number=1) == []
    assert len(site.stubs()) == 1


def test_request_instead_of_an_answer() -> None:
    """Who asks for more while an offer is out has declined that offer."""
    site = MalleableSite({"a": 12})
    (offer,) = of_kind(OfferProcessors, site.start(malleable("1", part(2, 9))))
    actions = site.ask("1", 3)
    assert granted(actions) == [("1", 3, "")]
    assert site.answer(offer, 5) == []
    assert site.state.clusters[A].offered == 0


def test_request_in_the_middle_of_a_change() -> None:
    """It is answered at once, with nothing and the reason."""
    site = still({"1": 3})
    site.ask("1", 1)
    assert granted(site.ask("1", 1, number=2)) == [("1", 0, "another change is under way")]


def test_requests_that_nobody_can_grant() -> None:
    """A job that does not run yet, that is about to end, that is over, or has no such component."""
    site = still({"1": 3})
    site.submit(malleable("2", part(2, 9)))
    assert granted(site.ask("2", 1)) == [("2", 0, "the job does not run")]
    site.rank_ends("1", 0)
    assert granted(site.ask("1", 1)) == [("1", 0, "the job does not run")]
    assert site.ask("1", 1, number=2, component_name="other") == []
    assert site.ask("nobody", 1) == []


def test_requests_of_jobs_that_are_not_malleable() -> None:
    """A rigid job has a fixed size."""
    site = MalleableSite({"a": 12})
    site.start(job("r", component("m", 3, cluster="a")))
    assert granted(site.ask("r", 1)) == [("r", 0, f"a {JobKind.RIGID} job keeps its size")]


@pytest.mark.parametrize("which", ["asking", "giving"])
def test_end_of_a_job_while_others_shrink_for_a_wish(which: str) -> None:
    """Nothing stays reserved when the asking job ends; when a giving one ends, its processors are granted."""
    site = still({"1": 3, "2": 7})
    site.ask("1", 4, mandatory=True)
    site.cancel("1" if which == "asking" else "2")
    site.end_ending()
    assert site.state.clusters[A].promises == []
    assert site.state.clusters[A].offered == 0
    assert granted(site.actions) == ([] if which == "asking" else [("1", 4, "")])


def test_wish_of_one_of_several_components() -> None:
    """A component asks for its own cluster."""
    site = MalleableSite({"a": 6, "b": 6}, Approach.NONE)
    site.start(malleable("1", part(2, 9, "a", "x"), part(2, 9, "b", "y")))
    assert submissions(site.ask("1", 3, component_name="y")) == {"b": 3}


def test_explanation_of_a_mandatory_wish() -> None:
    """Who waits for others to give up processors is told so."""
    site = still({"1": 3, "2": 7})
    site.ask("1", 4, mandatory=True)
    record = site.record("1")
    said = "it asked for 4 more, and others give up processors for it"
    assert said in explain(site.state, None, record, site.now)


def test_mandatory_wish_does_not_wait_for_levelling() -> None:
    """Equipartition that waits for released processors to come free makes way for who insists, or it never ends."""
    site = MalleableSite({"a": 10}, policy="equipartition")
    (offer,) = of_kind(OfferProcessors, site.start(malleable("1", part(2, 10), initial=8, walltime=9000)))
    site.answer(offer, 0)
    (request,) = of_kind(RequestProcessors, site.start(malleable("2", part(2, 10), walltime=9000)))
    assert site.ask("2", 3, mandatory=True) == []
    site.answer(request)
    site.release("1", 3)
    # Their batch system never says that the released ones are gone.
    assert site.state.clusters[A].ending == 3
    site.pass_time(site.parameters.placeholder_life)
    assert granted(site.actions) == [("2", 0, "the others could not give more")]
    assert site.state.clusters[A].promises == []


def test_why_a_wish_is_not_granted_in_full() -> None:
    """The bound that holds is told: what its owner wants, or what it has been offered elsewhere, not its maximum."""
    site = still({"1": 4})
    site.record("1").sizes_wanted["m"] = 5
    assert granted(site.ask("1", 3)) == [("1", 1, "its owner wants it to have 5")]
    site = MalleableSite({"a": 6, "b": 6})
    site.start(malleable("1", replace(component("m", 2, 9), flexible=True)))
    assert [one.cluster for one in of_kind(OfferProcessors, site.actions)] == ["a", "b"]
    first = of_kind(OfferProcessors, site.actions)[0]
    site.answer(first, 0)
    coming = site.record("1").coming("m")
    assert coming > 0
    ((_, got, why),) = granted(site.ask("1", 7 - coming + 1))
    assert (got, why) == (7 - coming, f"{coming} more are offered to it already, or on their way")

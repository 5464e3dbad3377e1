# SPDX-License-Identifier: Apache-2.0
"""A wish of an application that is met on several clusters by one agreement: all parts share one fate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from koala_adapter.model import JobId, RunnerName
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import Action, GrantProcessors, TakeProcessors, WithdrawOffer
from koala_adapter.scheduler.parameters import Approach, ClusterParameters
from koala_adapter.scheduler.records import Change, ChangePhase
from tests.unit.scheduler.malleable_site import AdaptiveSite, malleable, part
from tests.unit.scheduler.scheduler_site import A, B, component, copied, of_kind, submissions

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.model import PlaceholderId

BOTH = {"a": 5, "b": 3}


class JointSite(AdaptiveSite):
    """A flexible adaptive job of two processes on cluster a, with three idle processors there and on b."""

    def __init__(self, processors: dict[str, int] | None = None, *, most: int = 20, **memory: int) -> None:
        """``memory``: limits of the clusters."""
        own = [ClusterParameters(name=name, memory_limit=memory.get(name)) for name in (A, B)]
        self.sizes_of = BOTH if processors is None else processors
        super().__init__(self.sizes_of, Approach.NONE, clusters=tuple(own))
        flexible = replace(component("m", 1, most), flexible=True)
        made = malleable("1", flexible, initial=2, walltime=90_000)
        self.poll("b", self.sizes_of["b"], idle=0)  # so that it begins on a
        self.start(replace(made, runner=RunnerName.ADAPTIVE, placement="worst-fit"))
        self.poll("b", self.sizes_of["b"])
        assert self.held == {"a": 2, "b": 0}

    @property
    def held(self) -> dict[str | None, int]:
        """Return what the job has on each cluster."""
        return {one.cluster: one.processors for one in self.record("1").claims}

    @property
    def changes(self) -> list[Change]:
        """Return what is under way."""
        return list(self.record("1").changes.values())

    @property
    def parts(self) -> dict[str | None, int]:
        """Return the processors that were accepted of what is under way, by cluster."""
        parts = (part for change in self.changes for part in change.parts)
        return {self.record("1").claims[part.claim].cluster: part.accepted for part in parts}

    def want(self, processors: int, number: int = 1, **more: object) -> GrantProcessors:
        """Have the application ask for more, and return the answer."""
        event = ev.MoreRequested(
            time=self.now, job_id=JobId("1"), component="m", number=number, processors=processors,
            agreement=f"0-{number}", rank=0, **more,  # type: ignore[arg-type]
        )  # fmt: skip
        (answer,) = of_kind(GrantProcessors, self.post(event))
        return answer

    def all_started(self, actions: list[Action]) -> list[TakeProcessors]:
        """Start the newcomers; return what they were started for."""
        taken = of_kind(TakeProcessors, actions)
        for one in taken:
            self.take(one)
        return taken

    def at_point(self, number: int) -> list[Action]:
        """Have all processes stand at the point of a change."""
        event = ev.PointReached(time=self.now, job_id=JobId("1"), number=number, adaptation=1, point=17, leaving=())
        return self.post(event)

    def stub_on(self, cluster: str) -> PlaceholderId:
        """Return a placeholder that is gathered on a cluster."""
        return next(one for one in self.stubs() if self.state.placeholders[one].cluster == cluster)

    def own(self, processors: int) -> list[Action]:
        """Have its owner want a size."""
        return self.post(ev.SizeWanted(time=self.now, job_id=JobId("1"), component="m", processors=processors))

    def fails(self, cluster: str, *, rejected: bool = False) -> list[Action]:
        """Have the latest submission to a cluster not arrive, or be refused."""
        batch = max(one.key for one in self.state.batches.values() if one.cluster == cluster)
        kind = ev.BatchRejected if rejected else ev.BatchAbsent
        return self.post(kind(time=self.now, batch=batch, reason="no answer"))

    def idle_again(self) -> None:
        """Expect the job as it was, and nothing kept, gathered or left over for it."""
        assert self.changes == []
        assert self.held == {"a": 2, "b": 0}
        self.end_ending()
        for cluster in self.state.clusters.values():
            assert (cluster.offered, cluster.gathering) == (0, 0)
        assert len(self.state.placeholders) == 2


def test_a_wish_is_met_on_two_clusters() -> None:
    """6 more where 3 are idle on each: both, taken in at one point, by one agreement."""
    site = JointSite()
    before = len(site.actions)
    answer = site.want(6)
    assert (answer.processors, answer.countered, answer.reason) == (6, False, "")
    assert submissions(site.actions[before:]) == {"a": 3, "b": 3}
    taken = site.all_started(site.hold_stubs())
    assert {one.cluster: len(one.ranks) for one in taken} == {"a": 3, "b": 3}
    record = site.record("1")
    assert [rank.rank for rank in record.ranks] == [rank.component_rank for rank in record.ranks] == list(range(8))
    site.at_point(answer.number)
    assert {change.adaptation for change in site.changes} == {1}
    site.post(ev.ChangeMade(time=site.now, job_id=JobId("1"), number=answer.number))
    assert site.changes == []
    assert site.held == {"a": 5, "b": 3}
    assert {(one.cluster, one.after) for one in record.size_changes} == {("a", 5), ("b", 3)}


def test_one_cluster_is_enough() -> None:
    site = JointSite()
    site.want(3)
    assert list(site.parts.values()) == [3]


@pytest.mark.parametrize(("accepted", "parts"), [(6, [3, 3]), (4, [3, 1]), (3, [3]), (0, [])])
def test_a_counter_offer_over_clusters(accepted: int, parts: list[int]) -> None:
    """9 are asked for, 6 are offered and kept; what is taken of them is gathered, and the rest is free again."""
    site = JointSite()
    answer = site.want(9)
    assert (answer.processors, answer.countered, answer.reason) == (6, True, "no more is free")
    assert [cluster.offered for cluster in site.state.clusters.values()] == [3, 3]
    site.answer_number(answer.number, accepted)
    assert list(site.parts.values()) == parts
    assert [cluster.offered for cluster in site.state.clusters.values()] == [0, 0]


def test_its_maximum_holds_for_all_clusters_together() -> None:
    site = JointSite(most=6)
    answer = site.want(6)
    assert (answer.processors, answer.countered, answer.reason) == (4, True, "its maximum is reached")


@pytest.mark.parametrize(
    ("stage", "what", "trouble"),
    [
        ("queued", lambda site: site.ended(site.stub_on(B)), "placeholder"),
        ("started", lambda site: site.give_up(), "too late"),
        ("started", lambda site: site.end(7), "the new process 7"),
        ("submitted", lambda site: site.own(2), None),
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
    answer = site.want(6)
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
    site.want(6)
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
    site.want(9)
    site.pass_time(site.parameters.answer_timeout + 1)
    site.idle_again()


def test_a_named_cluster() -> None:
    """It grows there and nowhere else; where it cannot be, it is refused."""
    site = JointSite()
    assert site.want(6, cluster="b").processors == 3
    assert list(site.parts) == ["b"]
    refused = site.want(1, 2, cluster="nowhere")
    assert (refused.processors, refused.reason) == (0, "component 'm' cannot grow on nowhere")


def test_fewer_than_are_of_use_are_not_offered() -> None:
    site = JointSite()
    answer = site.want(9, least=7)
    assert (answer.processors, answer.number) == (0, 0)
    assert answer.reason == "no more is free: 6 can be had, and fewer than 7 are of no use to it"
    site.idle_again()
    assert site.want(9, 2, least=6).processors == 6


@pytest.mark.parametrize("required", [True, False])
def test_memory_decides_where_it_grows(required: bool) -> None:  # noqa: FBT001 - drawn
    site = JointSite(b=4096)
    answer = site.want(6, memory_mib=4000, memory_required=required)
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
    site.end(5, id_="2")
    site.end(6, id_="2")
    site.end_ending()
    site.poll("a", 12, idle=5, ours=7)
    site.poll("b", 3, idle=3)
    (answer,) = of_kind(GrantProcessors, site.actions)
    assert (answer.processors, answer.countered) == (8, False)
    assert site.parts == {"a": 5, "b": 3}


def test_a_mandatory_wish_that_others_cannot_meet_is_countered_with_what_is_free_everywhere() -> None:
    """Also where nothing at all is free on the cluster that was to make room."""
    site = JointSite({"a": 2, "b": 3})
    answer = site.want(9, mandatory=True)
    assert (answer.processors, answer.countered, answer.reason) == (3, True, "the others could not give more")
    site.answer_number(answer.number, 3)
    assert site.parts == {"b": 3}


@pytest.mark.parametrize("phase", [ChangePhase.ASKED, ChangePhase.GATHERING, ChangePhase.TAKING])
def test_the_job_ends_in_each_phase(phase: ChangePhase) -> None:
    site = JointSite()
    site.want(9 if phase is ChangePhase.ASKED else 6)
    if phase is ChangePhase.TAKING:
        site.all_started(site.hold_stubs())
    assert {change.phase for change in site.changes} == {phase}
    site.post(ev.CancelRequested(time=site.now, job_id=JobId("1")))
    site.end_ending()
    assert not site.state.placeholders
    for cluster in site.state.clusters.values():
        assert (cluster.offered, cluster.gathering, cluster.promises) == (0, 0, [])


def test_it_goes_on_from_a_snapshot() -> None:
    site = JointSite()
    answer = site.want(9)
    site.scheduler = Scheduler(copied(site.state))
    site.answer_number(answer.number, 5)
    assert site.parts == {A: 3, B: 2}


def test_stubs_that_never_arrived_are_submitted_again() -> None:
    """Koala may have been killed before they were on their way: the growth goes on, also on the other cluster."""
    site = JointSite()
    site.want(6)
    actions = site.fails("b")
    assert submissions(actions) == {"b": 3}
    assert not of_kind(WithdrawOffer, actions)
    taken = site.all_started(site.hold_stubs())
    assert {one.cluster: len(one.ranks) for one in taken} == {"a": 3, "b": 3}

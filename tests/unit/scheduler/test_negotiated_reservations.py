# SPDX-License-Identifier: Apache-2.0
"""Negotiators in any order: what is offered is kept for whom it was offered to, and nobody is offered it twice.

What local users take is not the scheduler's to keep, so there are none here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from koala_adapter.model import JobId, RunnerName
from koala_adapter.outcome import JobState
from koala_adapter.scheduler.actions import GrantProcessors, TakeProcessors, WithdrawOffer
from koala_adapter.scheduler.parameters import Approach, ClusterParameters
from koala_adapter.scheduler.records import ChangePhase
from tests.unit.scheduler.malleable_site import AdaptiveSite, malleable, part
from tests.unit.scheduler.scheduler_site import A, B, component, job, of_kind, submissions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.scheduler.actions import Action
    from koala_adapter.scheduler.records import Change, Claim, JobRecord

SIZES = {"a": 11, "b": 5}
THRESHOLD = 1
IDS = ("1", "2", "3", "4")
FLEXIBLE = "4"
"""It grows on both clusters."""
APPROACHES = (Approach.NONE, Approach.PRA, Approach.PWA)


class Negotiators:
    """Four applications that negotiate, one of them on both clusters, and rigid jobs that come and go."""

    def __init__(self, approach: Approach, in_flight: int) -> None:
        """``in_flight``: placeholders that may wait in the queue of a cluster."""
        own = [ClusterParameters(name=name, threshold=THRESHOLD, placeholders_in_flight=in_flight) for name in (A, B)]
        self.site = AdaptiveSite(SIZES, approach, clusters=tuple(own))
        for id_ in IDS:
            cluster = "b" if id_ == "3" else "a"
            one = (
                replace(part(1, 14, cluster), cluster=None, flexible=True) if id_ == FLEXIBLE else part(1, 14, cluster)
            )
            made = malleable(id_, one, initial=1, walltime=90_000)
            self.site.submit(replace(made, runner=RunnerName.ADAPTIVE, placement="worst-fit"))
        for id_ in IDS:
            self.site.started(id_)
        self.wishes = 0
        self.rigid = 0

    # ---- what can happen --------------------------------------------------------------------------------------------

    def ask(self, id_: str, count: int, mandatory: bool) -> None:  # noqa: FBT001 - drawn
        """A process asks for more."""
        self.wishes += 1
        self.site.wish(count, mandatory=mandatory, id_=id_, number=self.wishes)

    def answer(self, id_: str, count: int) -> None:
        """An application takes all or a part of what it is offered, or nothing; koala can then keep its word."""
        for _, change in list(self.changes(id_)):
            if change.phase is ChangePhase.ASKED and change.processors > 0:
                taken = min(count, change.processors)
                actions = self.site.answer_number(change.number, taken, id_)
                gathered = [one for _, one in self.changes(id_) if one is change]
                assert sum(len(one.stubs) for one in gathered) == taken, "what was promised is gathered at once"
                assert sum(submissions(actions).values()) >= taken
                assert not of_kind(WithdrawOffer, actions)
            elif change.phase is ChangePhase.ASKED:
                self.site.answer_number(change.number, min(count, -change.processors), id_)

    def go_on(self) -> None:
        """Placeholders come and go, and processes change together."""
        self.poll()
        taking = of_kind(TakeProcessors, self.site.hold_stubs())
        for one in taking:
            self.site.take(one)
        for id_ in IDS:
            for claim, change in list(self.changes(id_)):
                if change.phase in {ChangePhase.TAKING, ChangePhase.RELEASING} and not change.adaptation:
                    self.move(id_, claim, change)
        self.site.end_ending()
        self.poll()

    def move(self, id_: str, claim: Claim, change: Change) -> None:
        """Have the processes of an application carry a change out; those that came last leave."""
        record = self.site.record(id_)
        mine = [one.rank for one in record.ranks if one.placeholder in claim.placeholders]
        leaving = mine[len(mine) - change.accepted :] if change.phase is ChangePhase.RELEASING else []
        self.site.reach(*leaving, id_=id_, number=change.number)
        self.site.made(id_, change.number)
        for rank in leaving:
            self.site.end(rank, id_=id_)

    def poll(self) -> None:
        """The batch systems say what is idle."""
        for name, count in SIZES.items():
            ours = sum(one.cluster == name and not one.waiting for one in self.site.state.placeholders.values())
            self.site.poll(name, count, idle=count - ours, ours=ours)

    def compete(self, count: int) -> None:
        """A rigid job comes, and runs if it can."""
        self.rigid += 1
        name = f"r{self.rigid}"
        self.site.submit(job(name, component("c", count, cluster="a"), walltime=90_000))
        self.site.take_all()
        if self.site.record(name).state is JobState.CLAIMING:
            self.site.hold_all(name)

    def wait(self, seconds: float) -> None:
        """Time passes; an offer that nobody has answered for too long is reserved no more."""
        before = {change.number for id_ in IDS for _, change in self.changes(id_) if change.phase is ChangePhase.ASKED}
        self.site.pass_time(seconds)
        if seconds > self.site.parameters.answer_timeout:
            left = {change.number for id_ in IDS for _, change in self.changes(id_)}
            assert not before & left or self.all_moved(before)

    def all_moved(self, numbers: set[int]) -> bool:
        """Tell whether changes are not asked any more."""
        return all(
            change.phase is not ChangePhase.ASKED
            for id_ in IDS
            for _, change in self.changes(id_)
            if change.number in numbers
        )

    # ---- what must be so --------------------------------------------------------------------------------------------

    def changes(self, id_: str) -> Iterator[tuple[Claim, Change]]:
        """Yield the changes of a job that are under way, each with the claim where it began."""
        record: JobRecord | None = self.site.state.jobs.get(JobId(id_))
        if record is not None:
            for change in list(record.changes.values()):
                yield record.claims[change.parts[0].claim], change

    def check(self) -> None:
        """The sum of what is reserved never exceeds what is free, of processors and of places in a queue."""
        for name, count in SIZES.items():
            cluster = self.site.state.clusters[A if name == "a" else B]
            reserved = sum(
                part.processors
                for record in self.site.state.jobs.values()
                for change in record.changes.values()
                for number, part in enumerate(change.parts)
                if record.claims[part.claim].cluster == name
                if (change.phase is ChangePhase.ASKED and part.processors > 0)
                or (change.phase is ChangePhase.PROMISED and number)  # kept while others make room elsewhere
            )
            assert reserved + cluster.managed <= count - THRESHOLD, f"{name}: promised twice"
            assert reserved + cluster.queued <= cluster.parameters.placeholders_in_flight, (
                f"{name}: cannot be submitted"
            )


ask = st.tuples(st.just("ask"), st.sampled_from(IDS), st.integers(1, 13), st.booleans())
answer = st.tuples(st.just("answer"), st.sampled_from(IDS), st.sampled_from([0, 1, 2, 99, 99]))
compete = st.tuples(st.just("compete"), st.integers(1, 4))
wait = st.tuples(st.just("wait"), st.sampled_from([0.0, 1.0, 61.0]))
go_on = st.tuples(st.just("go_on"))
moves = st.lists(st.one_of(ask, ask, answer, answer, compete, wait, go_on, go_on), max_size=25)


@given(moves, st.sampled_from(APPROACHES), st.sampled_from([4, 50]))
@settings(deadline=None, max_examples=200)
def test_nothing_is_promised_twice_and_every_promise_is_kept(
    schedule: list[tuple[object, ...]], approach: Approach, in_flight: int
) -> None:
    """Whatever is asked, accepted, declined, or left unanswered, and by whom."""
    stage = Negotiators(approach, in_flight)
    for move, *arguments in schedule:
        getattr(stage, str(move))(*arguments)
        stage.check()


def test_two_counter_offers_for_one_queue() -> None:
    """Only so many placeholders may be on their way: what of that was promised to one is not promised to another."""
    stage = Negotiators(Approach.NONE, 4)
    answers: list[Action] = stage.site.actions
    stage.ask("1", 9, mandatory=False)
    stage.ask("2", 9, mandatory=False)
    first, second = of_kind(GrantProcessors, answers)
    assert (first.processors, second.processors) == (4, 0)
    stage.answer("1", 99)
    stage.check()


def test_what_is_offered_is_kept_when_another_insists_on_more() -> None:
    """Who must have processors gets those that others give up, and not those that one has just been offered."""
    stage = Negotiators(Approach.PRA, 50)
    stage.ask("2", 4, mandatory=True)
    stage.answer("1", 99)
    assert not of_kind(WithdrawOffer, stage.site.actions)
    stage.check()

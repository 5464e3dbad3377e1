# SPDX-License-Identifier: Apache-2.0
"""State of malleable jobs: restored from a journal, near their end, and with reservations."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.model import JobId, JobKind, RunnerName
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import (
    Action,
    GrantProcessors,
    OfferProcessors,
    RequestProcessors,
    TakeProcessors,
    WithdrawOffer,
)
from koala_adapter.scheduler.malleable.policies import MALLEABILITY_POLICIES
from koala_adapter.scheduler.parameters import Approach, ClusterParameters, Parameters
from koala_adapter.scheduler.records import Claim, JobRecord
from koala_adapter.scheduler.sizechange import Change, ChangePhase
from tests.examples import examples
from tests.unit.scheduler.malleable_site import AdaptiveSite, MalleableSite, malleable, part
from tests.unit.scheduler.scheduler_site import A, B, Site, component, copied, job, of_kind, submissions
from tests.unit.scheduler.test_state import (
    answer_one,
    end_rank,
    end_some,
    expect_replayed,
    hold_many,
    poll_one,
    report_one,
)
from tests.unit.scheduler.test_workers import workers

# -- Malleable jobs under random events: same events, same actions, also through a snapshot; bounds always hold.


THRESHOLD = 1


def submit_malleable(site: Site, chance: random.Random, number: int) -> None:
    """A malleable job of one or two components comes in."""
    parts = []
    for n in range(chance.randint(1, 2)):
        minimum = chance.randint(1, 2)
        part = component(f"c{n}", minimum, minimum + chance.randint(0, 4), cluster=chance.choice([None, "a", "b"]))
        flexible = part.cluster is None and number % 2 == 0
        parts.append(replace(part, initial=chance.choice([None, 9, 9]), flexible=flexible))
    one = job(f"j{number}", *parts, submitted_at=site.now, walltime=chance.choice([50, 800, 800]))
    site.submit(replace(one, kind=JobKind.MALLEABLE) if chance.random() < 0.8 else one)


def start_ranks(site: Site, chance: random.Random, _: int) -> None:
    launched = [r for r in site.state.jobs.values() if r.ranks and not r.state.final]
    if launched:
        record = chance.choice(launched)
        for rank in record.ranks:
            site.post(ev.RankStarted(time=site.now, job_id=record.job.id, rank=rank.rank))


def answer_offer(site: Site, chance: random.Random, _: int) -> None:
    changes = [(r, change) for r in site.state.jobs.values() for change in r.changes.values()]
    if changes:
        record, change = chance.choice(changes)
        accepted = chance.choice([0, abs(change.processors), chance.randint(-1, 9)])
        site.post(ev.OfferAnswered(time=site.now, job_id=record.job.id, number=change.number, accepted=accepted))


def release_some(site: Site, chance: random.Random, _: int) -> None:
    running = [r for r in site.state.jobs.values() if r.state is JobState.RUNNING]
    if running and site.state.placeholders:
        record = chance.choice(running)
        own = [id_ for claim in record.claims for id_ in claim.placeholders]
        chosen = chance.sample(own, min(len(own), chance.randint(1, 3)))
        chosen.append(chance.choice(list(site.state.placeholders)))
        site.post(ev.ProcessorsReleased(time=site.now, job_id=record.job.id, placeholders=tuple(chosen)))


def ask_more(site: Site, chance: random.Random, number: int) -> None:
    if site.state.jobs:
        record = chance.choice(list(site.state.jobs.values()))
        wish = ev.MoreRequested(
            time=site.now,
            job_id=record.job.id,
            component=record.claims[0].component,
            number=number + 1,
            processors=chance.randint(0, 5),
            mandatory=chance.random() < 0.6,
        )
        site.post(wish)


def hold_stubs(site: Site, _: random.Random, __: int) -> None:
    for placeholder in list(site.state.placeholders.values()):
        if placeholder.stub:
            site.hold(placeholder.id)


def progress(site: Site, chance: random.Random, _: int) -> None:
    """Everything goes well for a moment: submissions are taken, agents report, processes start, what ends is gone."""
    site.take_all()
    for record in list(site.state.jobs.values()):
        if record.state is JobState.CLAIMING:
            site.hold_all(record.job.id)
        if record.state is JobState.LAUNCHING:
            for rank in record.ranks:
                site.post(ev.RankStarted(time=site.now, job_id=record.job.id, rank=rank.rank))
    site.end_ending()
    for name, processors in SITE.items():
        ours = sum(p.cluster == name and not p.waiting for p in site.state.placeholders.values())
        others = tuple(chance.randint(1, 4) for _ in range(chance.choice([0, 0, 1, 3])))
        site.poll(name, processors, idle=max(0, processors - ours - chance.randint(0, 1)), ours=ours, others=others)


_MOVES = {
    submit_malleable: 4,
    progress: 5,
    answer_offer: 6,
    release_some: 2,
    ask_more: 2,
    hold_stubs: 3,
    start_ranks: 2,
    hold_many: 1,
    poll_one: 1,
    answer_one: 1,
    report_one: 1,
    end_rank: 2,
    end_some: 2,
}
"""What can happen, and how often."""
SITE = {"a": 12, "b": 12, "c": 3}


@cache
def eventful(seed: int, length: int = 250) -> tuple[Site, set[ChangePhase]]:
    """Return a site after random but repeatable events, and the phases of changes that occurred.

    It is made once in a process: leave it as it is.
    """
    chance = random.Random(seed)
    parameters = Parameters(
        approach=chance.choice(list(Approach)),
        malleability_policy=chance.choice(sorted(MALLEABILITY_POLICIES)),
        backoff=20.0,
        placeholder_life=60.0,
        lease=30.0,
        registration_timeout=20.0,
        answer_timeout=15.0,
        release_timeout=30.0,
        longest_backoff=100.0,
        grow_pause=chance.choice([0.0, 0.0, 30.0]),
        shrink_pause=chance.choice([0.0, 0.0, 30.0]),
        largest_change=chance.choice([None, None, 2]),
    )
    site = Site(SITE, parameters, ClusterParameters(name=A, threshold=THRESHOLD))
    phases: set[ChangePhase] = set()
    for number in range(length):
        assert roster_of(site.scheduler) == roster_of(Scheduler(site.state)), "what is known after a restart differs"
        (move,) = chance.choices(list(_MOVES), weights=list(_MOVES.values()))
        move(site, chance, number)
        if chance.random() < 0.3:
            site.pass_time(chance.choice([0.0, 1.0, 7.0, 40.0]))
        phases |= {change.phase for r in site.state.jobs.values() for change in r.changes.values()}
    return site, phases


def roster_of(scheduler: Scheduler) -> list[tuple[str, JobId, int, int, int, int, bool]]:
    """Return what the policies see."""
    roster = scheduler._roster
    members = [(n, m) for n in roster.clusters() for m in roster.on(n)]
    return [(n, m.job_id, m.claim, m.size, m.minimum, m.maximum, m.busy) for n, m in members]


@pytest.mark.parametrize("seed", range(6))
def test_same_events_same_actions(seed: int) -> None:
    """A replay, and one that goes on from a snapshot anywhere, give the same actions, state and running jobs."""
    straight, resumed = expect_replayed(eventful(seed)[0], seed)
    fresh = Scheduler(copied(straight.state))
    assert roster_of(resumed) == roster_of(straight) == roster_of(fresh)


@pytest.mark.parametrize("runner", [RunnerName.RANKS, RunnerName.ADAPTIVE])
def test_what_a_component_gives_up_on_one_cluster_bounds_what_it_gives_on_another(runner: RunnerName) -> None:
    """Not what it was asked for there; who goes on without a restart knows the same as who reads the records."""
    site = MalleableSite({"a": 3, "b": 1})
    flexible = replace(component("m", 2, 4), flexible=True)
    made = replace(malleable("m", flexible, initial=3), runner=runner)
    (offer,) = of_kind(OfferProcessors, site.start(made))
    site.grow_by(offer)
    if runner is RunnerName.ADAPTIVE:
        number = offer.number
        site.post(ev.PointReached(time=site.now, job_id=made.id, number=number, adaptation=1, point=1, leaving=()))
        site.post(ev.ChangeMade(time=site.now, job_id=made.id, number=number))
    site.poll("a", 3, idle=0, ours=3)
    site.poll("b", 1, idle=0, ours=1)
    assert site.sizes("m") == [3, 1]
    (request,) = of_kind(RequestProcessors, site.submit(job("1", component("x", 2, cluster="a"))))
    assert request.processors == 2
    site.answer(request, 2 if runner is RunnerName.ADAPTIVE else 1)
    if runner is RunnerName.ADAPTIVE:
        number = request.number
        site.post(ev.PointReached(time=site.now, job_id=made.id, number=number, adaptation=2, point=2, leaving=(2,)))
    assert [(one.parts[0].claim, one.accepted - one.done) for one in site.record("m").changes.values()] == [(0, 1)]
    assert roster_of(site.scheduler) == roster_of(Scheduler(site.state))


def test_random_events_reach_every_phase() -> None:
    """The random events are worth something: changes go through all phases, ranks depart, jobs complete."""
    phases: set[ChangePhase] = set()
    departed = completed = 0
    for seed in range(6):
        site, some = eventful(seed)
        phases |= some
        departed += sum(len(record.departed) for record in site.state.jobs.values())
        completed += sum(record.state is JobState.COMPLETED for record in site.state.jobs.values())
    assert phases == set(ChangePhase) - {ChangePhase.NEW, ChangePhase.OVER}
    assert departed > 20
    assert completed > 20


# -- Malleable jobs whose walltime is near: what they would grow by is not worth its start any more.


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
    return site.poll("a", 6, idle=4, ours=2)


@pytest.mark.parametrize(("least", "left", "offered"), [(LEAST, LEAST + 1, [4]), (LEAST, LEAST - 1, []), (0, 1, [4])])
def test_processors_are_offered_as_long_as_there_is_time(least: float, left: float, offered: list[int]) -> None:
    """Near its end the job goes on as it is, and why is said, also where it insists on more."""
    site = crowded(least=least)
    site.pass_time(WALLTIME - left)
    assert [one.processors for one in of_kind(OfferProcessors, freed(site))] == offered
    if not offered:
        assert site.sizes("1") == [2]
        assert "It grows no more: its walltime is near." in site.explained()
        (grant,) = of_kind(GrantProcessors, site.ask("1", 1, mandatory=True))
        assert (grant.processors, grant.reason) == (0, "the walltime of the job is near")


def test_a_job_that_is_too_short_never_grows() -> None:
    site = MalleableSite({"a": 6}, policy="egs")
    assert of_kind(OfferProcessors, site.start(malleable("1", part(2, 6), walltime=LEAST))) == []


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
    site = MalleableSite({"a": 6}, Approach.NONE)
    site.start(workers("1", part(2, 6), walltime=WALLTIME))
    site.poll("a", 6, idle=0, ours=2)
    site.want(4)
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
    site.rank_ends("1", 0)
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


# -- Negotiators in any order: what is offered is kept for whom it was offered to, and nobody is offered it twice.
# What local users take is not the scheduler's to keep, so there are none here.


SIZES = {"a": 11, "b": 5}
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
            self.site.rank_ends(id_, rank)

    def poll(self) -> None:
        for name, count in SIZES.items():
            ours = sum(one.cluster == name and not one.waiting for one in self.site.state.placeholders.values())
            self.site.poll(name, count, idle=count - ours, ours=ours)

    def compete(self, count: int) -> None:
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
@examples(50)
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

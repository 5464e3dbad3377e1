# SPDX-License-Identifier: Apache-2.0
"""Malleable jobs under random events: same events, same actions, also through a snapshot; bounds always hold."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from koala_adapter.model import JobId, JobKind, RunnerName
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import OfferProcessors, RequestProcessors
from koala_adapter.scheduler.malleable.policies import MALLEABILITY_POLICIES
from koala_adapter.scheduler.parameters import Approach, ClusterParameters, Parameters
from koala_adapter.scheduler.records import ChangePhase
from koala_adapter.scheduler.states import Roster
from tests.unit.scheduler.malleable_site import MalleableSite, malleable
from tests.unit.scheduler.scheduler_site import STATE, A, Site, component, copied, job, of_kind
from tests.unit.scheduler.test_state import answer_one, end_rank, end_some, hold_many, poll_one, report_one

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
    """The processes of a job start."""
    launched = [r for r in site.state.jobs.values() if r.ranks and not r.state.final]
    if launched:
        record = chance.choice(launched)
        for rank in record.ranks:
            site.post(ev.RankStarted(time=site.now, job_id=record.job.id, rank=rank.rank))


def answer_offer(site: Site, chance: random.Random, _: int) -> None:
    """An application answers a message, fitting or not."""
    changes = [(r, change) for r in site.state.jobs.values() for change in r.changes.values()]
    if changes:
        record, change = chance.choice(changes)
        accepted = chance.choice([0, abs(change.processors), chance.randint(-1, 9)])
        site.post(ev.OfferAnswered(time=site.now, job_id=record.job.id, number=change.number, accepted=accepted))


def release_some(site: Site, chance: random.Random, _: int) -> None:
    """An application gives up processors, its own or not."""
    running = [r for r in site.state.jobs.values() if r.state is JobState.RUNNING]
    if running and site.state.placeholders:
        record = chance.choice(running)
        own = [id_ for claim in record.claims for id_ in claim.placeholders]
        chosen = chance.sample(own, min(len(own), chance.randint(1, 3)))
        chosen.append(chance.choice(list(site.state.placeholders)))
        site.post(ev.ProcessorsReleased(time=site.now, job_id=record.job.id, placeholders=tuple(chosen)))


def ask_more(site: Site, chance: random.Random, number: int) -> None:
    """An application asks for more."""
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
    """Whatever is gathered is held."""
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


def eventful(seed: int, length: int = 250) -> tuple[Site, set[ChangePhase]]:
    """Return a site after random but repeatable events, and the phases of changes that occurred."""
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


@pytest.mark.parametrize("seed", range(15))
def test_same_events_same_actions(seed: int) -> None:
    """A replay, and one that goes on from a snapshot anywhere, give the same actions, state and running jobs."""
    site, _ = eventful(seed)
    point = random.Random(seed).randrange(len(site.events))
    straight, snapped = Scheduler(), Scheduler()
    actions = [action for event in site.events for action in straight.handle(event)]
    assert actions == site.actions
    before = [action for event in site.events[:point] for action in snapped.handle(event)]
    resumed = Scheduler(copied(snapped.state))
    after = [action for event in site.events[point:] for action in resumed.handle(event)]
    assert before + after == actions
    assert STATE.dump_json(resumed.state) == STATE.dump_json(straight.state)
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
    for seed in range(15):
        site, some = eventful(seed)
        phases |= some
        departed += sum(len(record.departed) for record in site.state.jobs.values())
        completed += sum(record.state is JobState.COMPLETED for record in site.state.jobs.values())
    assert phases == set(ChangePhase) - {ChangePhase.NEW, ChangePhase.OVER}
    assert departed > 20
    assert completed > 20


def test_empty_roster() -> None:
    """Of a cluster on which nobody runs nothing is known."""
    roster = Roster()
    assert (len(roster), roster.clusters(), list(roster.on(A)), A in roster) == (0, [], [], False)

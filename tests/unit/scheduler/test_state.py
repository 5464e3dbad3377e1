# SPDX-License-Identifier: Apache-2.0
"""The state of the scheduler and its queues, snapshots and replays."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from koala_adapter.model import ClusterName, EndReason, JobId, TaskEnd
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.claiming.queue import Lane, PlacementQueue, position_of
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from koala_adapter.scheduler.records import Claim, JobRecord
from tests.examples import examples
from tests.unit.scheduler.scheduler_site import STATE, WELL, A, B, Site, component, copied, ends, job, launches

# -- Same events, same actions: run twice, and through a snapshot at any point.


@cache
def eventful(seed: int, length: int = 250) -> Site:
    """Return a site after random but repeatable events of every kind, made once in a process: leave it as it is."""
    chance = random.Random(seed)
    parameters = Parameters(
        backoff=20.0, placeholder_life=60.0, lease=30.0, registration_timeout=20.0, guard_scans=3, maximum_tries=9
    )
    limits = [ClusterParameters(name=A, threshold=1, walltime_limit=900)]
    site = Site({"a": 5, "b": 4, "c": 3}, parameters, *limits)
    for number in range(length):
        chance.choice([submit_one, *_MOVES])(site, chance, number)
        if chance.random() < 0.5:
            site.pass_time(chance.choice([0.0, 1.0, 7.0, 40.0]))
    return site


def submit_one(site: Site, chance: random.Random, number: int) -> None:
    parts = [
        component(
            f"c{n}", chance.randint(1, 4), chance.choice([None, 6]), cluster=chance.choice([None, None, "a", "b"])
        )
        for n in range(chance.randint(1, 3))
    ]
    parts = [p if p.maximum >= p.minimum else replace(p, maximum=p.minimum) for p in parts]
    one = job(
        f"j{number}", *parts, priority=chance.randint(0, 1), submitted_at=site.now, walltime=chance.choice([50, 800])
    )
    site.submit(one)


def poll_one(site: Site, chance: random.Random, _: int) -> None:
    name, processors = chance.choice([("a", 5), ("b", 4), ("c", 3)])
    if chance.random() < 0.2:
        site.post(ev.ClusterUnavailable(time=site.now, cluster=ClusterParameters(name=A).name, reason="no answer"))
    else:
        site.poll(name, processors, idle=chance.randint(0, processors))


def answer_one(site: Site, chance: random.Random, _: int) -> None:
    batches = [batch for batch in site.state.batches.values() if batch.lrm_ids is None]
    if not batches:
        return
    key = chance.choice(batches).key
    kind = chance.randint(0, 5)
    if kind == 0:
        site.post(ev.BatchRejected(time=site.now, batch=key, reason="no account"))
    elif kind == 1:
        site.post(ev.BatchAbsent(time=site.now, batch=key, reason="not there"))
    elif kind == 2:
        site.post(ev.BatchUncertain(time=site.now, batch=key, reason="time-out"))
    else:
        site.taken(key)


def report_one(site: Site, chance: random.Random, _: int) -> None:
    if not site.state.placeholders:
        return
    id_ = chance.choice(list(site.state.placeholders))
    kind = chance.randint(0, 9)
    if kind == 0:
        site.post(ev.PlaceholderStarted(time=site.now, placeholder=id_))
    elif kind == 1:
        site.silence(id_)
    elif kind == 2:
        site.post(ev.PlaceholderEnding(time=site.now, placeholder=id_, reason=EndReason.WALLTIME))
    elif kind == 3:
        site.ended(id_, chance.choice(list(EndReason)))
    else:
        site.hold(id_, ends_at=site.now + chance.choice([40, 5000]))


def hold_many(site: Site, chance: random.Random, _: int) -> None:
    claiming = [r.job.id for r in site.state.jobs.values() if r.state is JobState.CLAIMING]
    if claiming:
        site.hold_all(chance.choice(claiming))


def end_rank(site: Site, chance: random.Random, _: int) -> None:
    launched = [r for r in site.state.jobs.values() if r.ranks and not r.state.final]
    if not launched:
        return
    record = chance.choice(launched)
    for rank in range(len(record.ranks)):
        if chance.random() < 0.3:
            site.post(ev.RankStarted(time=site.now, job_id=record.job.id, rank=rank))
        else:
            bad = chance.random() < 0.1
            site.rank_ends(record.job.id, rank, TaskEnd(reason=EndReason.SIGNALLED, signal=9) if bad else WELL)


def end_some(site: Site, chance: random.Random, _: int) -> None:
    if chance.random() < 0.7:
        site.end_ending()
    elif site.state.jobs:
        site.cancel(chance.choice(list(site.state.jobs)))


_MOVES = (poll_one, answer_one, answer_one, report_one, hold_many, hold_many, end_rank, end_some)


def expect_replayed(site: Site, seed: int) -> tuple[Scheduler, Scheduler]:
    """Expect the same of a replay, and of one that goes on from a snapshot at a drawn event; return both schedulers."""
    assert site.actions, "the test does nothing"
    point = random.Random(seed).randrange(len(site.events))
    straight, snapped = Scheduler(), Scheduler()
    actions = [action for event in site.events for action in straight.handle(event)]
    assert actions == site.actions
    assert straight.state == site.state
    before = [action for event in site.events[:point] for action in snapped.handle(event)]
    resumed = Scheduler(copied(snapped.state))
    after = [action for event in site.events[point:] for action in resumed.handle(event)]
    assert before + after == actions
    assert STATE.dump_json(resumed.state) == STATE.dump_json(straight.state)
    return straight, resumed


@pytest.mark.parametrize("seed", range(8))
def test_same_events_same_actions(seed: int) -> None:
    expect_replayed(eventful(seed), seed)


def test_random_events_reach_every_kind_of_state() -> None:
    """The random events are worth something: jobs end in every way, and wait in every way."""
    sites = [eventful(seed) for seed in range(4)]
    states = {record.state for site in sites for record in site.state.jobs.values()}
    assert states >= set(JobState) - {JobState.RUNNING, JobState.LAUNCHING}
    assert any(record.hand_backs for site in sites for record in site.state.jobs.values())
    assert any(site.state.guarded for site in sites)


def test_events_slightly_out_of_order() -> None:
    """Time stands still for an event of a minute ago; nothing fires early for that."""
    site = Site({"a": 4}, Parameters(registration_timeout=120.0))
    site.queue(job("1", 1))
    site.post(ev.PlaceholderStarted(time=site.now, placeholder=site.claimed("1")[0].id))
    for _ in range(50):
        site.post(ev.ClusterPolled(time=site.now - 55.0, cluster=A, processors=4, idle=4, ours=0))
        site.post(ev.TimeReached(time=site.now))
    assert site.pass_time(119.0) == []
    assert ends(site.pass_time(2.0)) != []


def test_late_wake_up_catches_up() -> None:
    """After a long sleep everything that was due happens, each thing once."""
    site = Site({"a": 4}, Parameters(placeholder_life=100.0, backoff=50.0))
    site.submit(job("1", 2))
    site.start(job("2", 2, walltime=60))
    site.take_all()
    site.hold(site.claimed("1")[0].id)
    site.now += 100_000.0
    actions = site.post(ev.TimeReached(time=site.now))
    assert site.outcome("2").reason is EndReason.WALLTIME
    assert len(ends(actions)) == len(set(ends(actions))) == 3
    assert launches(actions) == []


def test_what_was_due_comes_before_the_event() -> None:
    """A job whose walltime is over has ended by that, whatever is told of it later."""
    site = Site({"a": 4})
    site.start(job("1", 1, walltime=60))
    site.now += 61.0
    site.complete("1")
    assert site.outcome("1").reason is EndReason.WALLTIME


def restarted(site: Site, down: float) -> None:
    """Let the service be down for so many seconds, and start again."""
    site.now += down
    site.post(ev.Configured(time=site.now, parameters=site.parameters, clusters=site.clusters))


def test_ranks_that_ended_while_the_service_was_down() -> None:
    """A job that ended in time is not judged by its walltime before its agents could say so; one that did not is."""
    for well in (True, False):
        site = Site({"a": 4}, Parameters(registration_timeout=120.0))
        site.start(job("1", 1, walltime=600))
        restarted(site, 700.0)
        site.pass_time(60.0)
        if well:
            site.complete("1")
        site.pass_time(61.0)
        assert site.outcome("1").reason is (EndReason.EXITED if well else EndReason.WALLTIME)


def test_what_happened_while_the_service_was_down_is_not_held_against_agents() -> None:
    site = Site({"a": 4}, Parameters(registration_timeout=120.0, launch_margin=600))
    site.queue(job("1", 3))
    for placeholder in site.claimed("1"):
        site.post(ev.PlaceholderStarted(time=site.now, placeholder=placeholder.id))
    restarted(site, 500.0)
    site.pass_time(119.0)
    assert launches(site.hold_all("1")) == ["1"]
    assert site.state.clusters[A].missing_in_a_row == 0
    site = Site({"a": 4}, Parameters(placeholder_life=100.0))
    site.queue(job("1", 2, walltime=60))
    site.hold(site.claimed("1")[0].id)
    restarted(site, 150.0)
    assert launches(site.hold_all("1")) == ["1"]


@pytest.mark.parametrize("down", [5.0, 500.0], ids=["briefly", "for long"])
def test_agents_that_were_to_end_may_come_back_and_deliver(down: float) -> None:
    """After the service was down, the agents of a job that is over have time to report before they are cancelled."""
    site = Site({"a": 4}, Parameters(end_patience=10.0, registration_timeout=120.0))
    site.start(job("1", 2))
    assert len(ends(site.complete("1"), force=False)) == 2
    restarted(site, down)
    assert ends(site.pass_time(119.9)) == []
    assert len(ends(site.pass_time(0.2), force=True)) == 2


def test_what_has_no_agent_is_cancelled_again_soon() -> None:
    """A placeholder in its LRM's queue has nobody who could report: a restart does not put off its cancellation."""
    site = Site({"a": 4}, Parameters(end_patience=10.0, registration_timeout=120.0))
    site.queue(job("1", 2))
    assert len(ends(site.cancel("1"))) == 2
    restarted(site, 5.0)
    assert len(ends(site.pass_time(5.1), force=True)) == 2


# -- The placement queue against a naive list: order, lanes, and jobs that leave while it is scanned.


def record(
    id_: str, number: int, *sizes: int, priority: int = 0, at: float = 0.0, cluster: str | None = None
) -> JobRecord:
    """Return the record of a job whose components ask for ``sizes`` processors."""
    components = [component(f"c{n}", size, cluster=cluster) for n, size in enumerate(sizes)]
    made = JobRecord(
        job=job(id_, *components, priority=priority, submitted_at=at),
        claims=[Claim(component=one.name) for one in components],
    )
    made.queue_number = number
    return made


class QueueMachine(RuleBasedStateMachine):
    """Does the same to the queue and to a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = PlacementQueue()
        self.naive: list[JobRecord] = []
        self.count = 0

    @initialize()
    def configure(self) -> None:
        self.queue.configure([500, 1000], margin=0)

    @rule(
        sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
        priority=st.integers(-1, 1),
        at=st.integers(0, 3),
        cluster=st.sampled_from([None, "a", "b"]),
    )
    def push(self, sizes: list[int], priority: int, at: int, cluster: str | None) -> None:
        self.count += 1
        made = record(f"j{self.count}", self.count, *sizes, priority=priority, at=float(at), cluster=cluster)
        self.queue.push(made)
        self.naive.append(made)

    @precondition(lambda self: self.naive)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(self.naive))
        self.queue.remove(gone.job.id)
        self.naive.remove(gone)

    @rule(most=st.integers(0, 12), take=st.sets(st.integers(0, 30)))
    def scan(self, most: int, take: set[int]) -> None:
        """A scan sees every job that is small enough, in order, and may take any of them."""
        seen = []
        for number, (position, job_id) in enumerate(self.queue.scan(lambda _: True, most=most)):
            seen.append((position, job_id))
            if number in take:
                self.queue.remove(job_id)
        ordered = sorted(self.naive, key=position_of)
        expected = [r for r in ordered if sum(c.minimum for c in r.job.components) <= most]
        assert seen == [(position_of(r), r.job.id) for r in expected]
        taken = {expected[number].job.id for number in take if number < len(expected)}
        self.naive = [r for r in self.naive if r.job.id not in taken]

    @invariant()
    def same_order(self) -> None:
        """Length, order, head and each job's place agree with the plain list."""
        ordered = [r.job.id for r in sorted(self.naive, key=position_of)]
        assert len(self.queue) == len(ordered)
        assert self.queue.first(len(ordered)) == ordered
        assert self.queue.first(2) == ordered[:2]
        assert [self.queue.place_in_order(id_) for id_ in ordered] == list(range(1, len(ordered) + 1))
        assert all(id_ in self.queue for id_ in ordered)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(examples(40), stateful_step_count=25)


@given(st.permutations(range(6)))
def test_order_does_not_depend_on_the_order_of_entering(order: list[int]) -> None:
    """Priority, then submission, then number: a queue rebuilt from a snapshot is the same."""
    records = [record(f"j{n}", n, 1 + n % 2, priority=n % 3, at=float(n // 3)) for n in range(6)]
    queue = PlacementQueue()
    for number in order:
        queue.push(records[number])
    assert queue.first(len(queue)) == ["j2", "j5", "j1", "j4", "j0", "j3"]


def test_lane_is_passed_over_once_it_cannot_be_met() -> None:
    queue = PlacementQueue()
    for number, size in enumerate([3, 1, 3, 1, 3]):
        queue.push(record(f"j{number}", number, size))
    hopeless: set[Lane] = set()
    seen = []
    for _, job_id in queue.scan(lambda lane: lane not in hopeless, most=99):
        seen.append(job_id)
        if job_id == "j0":
            hopeless.add(queue.lane_of(record("same", 9, 3)))
    assert seen == ["j0", "j1", "j3"]


def test_lanes_that_need_too_much_are_not_asked() -> None:
    queue = PlacementQueue()
    for number, size in enumerate([5, 2, 7]):
        queue.push(record(f"j{number}", number, size, 1))
    asked: list[int] = []

    def may_fit(lane: Lane) -> bool:
        asked.append(lane.total)
        return True

    assert [job_id for _, job_id in queue.scan(may_fit, most=4)] == ["j1"]
    assert set(asked) == {3}


def test_jobs_that_differ_in_what_may_hold_them_stand_in_different_lanes() -> None:
    """Sizes, wishes, refusals, policy and walltime class tell lanes apart; name, maximum and small change do not."""
    queue = PlacementQueue()
    queue.configure([500, 1000], margin=100)
    base = record("x", 1, 2, 3)
    excluded = record("x", 1, 2, 3)
    excluded.claims[0].excluded[ClusterName("a")] = "no"
    longer = replace(base, job=replace(base.job, walltime=901))
    others = [
        record("x", 1, 2, 4),
        record("x", 1, 2),
        record("x", 1, 2, 3, cluster="a"),
        excluded,
        longer,
        replace(base, job=replace(base.job, placement="other")),
    ]
    lanes = {queue.lane_of(one) for one in [base, *others]}
    assert len(lanes) == 1 + len(others)
    same = replace(base, job=replace(base.job, id=JobId("y"), name="y", priority=3, walltime=900))
    swapped = record("z", 2, 3, 2)
    assert queue.lane_of(same) == queue.lane_of(swapped) == queue.lane_of(base)


# -- A large job is not passed for ever by small ones that came later ----------------------------------------


GUARD = Parameters(guard_scans=4, scan_interval=15.0, maximum_tries=100_000)


def stream(site: Site, *, seconds: float, prefix: str = "small", priority: int = 0) -> None:
    """Let time pass while there is always a small job waiting and each runs for 20 s, one ending every 10 s."""
    number = 0
    started: list[tuple[float, str]] = []
    end = site.now + seconds
    while site.now < end:
        site.submit(job(f"{prefix}{site.now}-{number}", 1, submitted_at=site.now, priority=priority, walltime=60))
        number += 1
        for record in list(site.state.jobs.values()):
            if record.state is JobState.CLAIMING:
                site.take_all()
                site.hold_all(record.job.id)
            if record.state is JobState.LAUNCHING and not any(id_ == record.job.id for _, id_ in started):
                started.append((site.now + 20, record.job.id))
        for at, id_ in list(started):
            if at <= site.now and id_ != "large":
                site.complete(id_)
                started.remove((at, id_))
        site.end_ending()
        site.pass_time(10.0)


@pytest.mark.parametrize(("guard", "seconds"), [(False, 600.0), (True, 200.0)])
def test_large_job_starts_soon_with_the_guard_and_starves_without(*, guard: bool, seconds: float) -> None:
    """Without it the large job would wait for as long as small ones come; with it, what comes free is kept."""
    site = Site({"a": 2}, GUARD if guard else replace(GUARD, guard_scans=10**9))
    stream(site, seconds=60.0)
    site.submit(job("large", 2, submitted_at=site.now))
    stream(site, seconds=seconds)
    assert ("large" in launches(site.actions)) is guard


def test_later_jobs_leave_the_room_alone() -> None:
    """The cluster that is kept gets nothing of a later job; another cluster does."""
    site = Site({"a": 4, "b": 2}, GUARD)
    site.submit(job("long", component("x", 2, cluster="a")), job("large", component("x", 4, cluster="a")))
    site.pass_time(100.0)
    assert site.state.guarded == "large"
    assert site.state.kept_room == {A: 4}
    site.submit(job("free", 2, submitted_at=5.0))
    assert site.placed("free") == {"c0": (B, 2)}
    site.submit(job("bound", component("x", 1, cluster="a"), submitted_at=6.0))
    assert site.record("bound").state is JobState.WAITING
    site.run("long")
    site.finish("long")
    assert site.placed("large") == {"x": (A, 4)}
    assert site.state.guarded is None


def test_jobs_before_it_are_not_held_up() -> None:
    site = Site({"a": 4}, GUARD)
    site.submit(job("long", 2), job("large", 4))
    site.pass_time(100.0)
    assert site.state.guarded == "large"
    site.submit(job("urgent", 2, priority=1))
    assert site.record("urgent").state is JobState.CLAIMING


def test_handed_on_placeholders_respect_the_guard() -> None:
    for guarded in (True, False):
        site = Site({"a": 4}, GUARD if guarded else Parameters())
        site.submit(job("long", 2), job("other", 2), job("large", 4), job("small", 2, submitted_at=9.0))
        site.run("long")
        site.run("other")
        site.pass_time(100.0)
        done = site.complete("long")
        assert launches(done) == ([] if guarded else ["small"])


def test_job_on_a_closed_cluster_is_not_guarded() -> None:
    """Room is not kept idle for a job that cannot start there; the next one in the queue is guarded instead."""
    site = Site({"a": 4, "b": 4}, GUARD)
    site.submit(job("busy", component("x", 3, cluster="b")))
    site.post(ev.ClusterUnavailable(time=site.now, cluster=A, reason="down"))
    site.submit(job("stuck", component("x", 2, cluster="a"), component("y", 4, cluster="b"), submitted_at=1.0))
    site.submit(job("large", component("x", 4, cluster="b"), submitted_at=2.0))
    site.pass_time(100.0)
    assert site.state.guarded == "large"


def test_guard_is_lifted_when_its_cluster_closes_or_the_job_goes() -> None:
    """Neither an outage nor a cancelled job leaves room kept for nobody."""
    site = Site({"a": 4}, GUARD)
    site.submit(job("long", 2), job("large", 4))
    site.pass_time(100.0)
    site.post(ev.ClusterUnavailable(time=site.now, cluster=ClusterName("a"), reason="down"))
    site.pass_time(16.0)
    assert (site.state.guarded, site.state.kept_room) == (None, {})
    site.poll("a", 4, idle=2)
    site.pass_time(16.0)
    assert site.state.guarded == "large"
    site.submit(job("small", 2, submitted_at=9.0))
    assert site.record("small").state is JobState.WAITING
    site.cancel("large")
    assert site.state.guarded is None
    assert site.record("small").state is JobState.CLAIMING

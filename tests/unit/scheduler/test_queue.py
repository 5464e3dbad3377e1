# SPDX-License-Identifier: Apache-2.0
"""The placement queue against a naive list: order, lanes, and jobs that leave while it is scanned."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from koala_adapter.model import ClusterName, JobId
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.claiming.queue import Lane, PlacementQueue, position_of
from koala_adapter.scheduler.parameters import Parameters
from koala_adapter.scheduler.records import Claim, JobRecord
from tests.examples import examples
from tests.unit.scheduler.scheduler_site import A, B, Site, component, job, launches


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
        """Start with both empty."""
        super().__init__()
        self.queue = PlacementQueue()
        self.naive: list[JobRecord] = []
        self.count = 0

    @initialize()
    def configure(self) -> None:
        """Know two walltime limits."""
        self.queue.configure([500, 1000], margin=0)

    @rule(
        sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
        priority=st.integers(-1, 1),
        at=st.integers(0, 3),
        cluster=st.sampled_from([None, "a", "b"]),
    )
    def push(self, sizes: list[int], priority: int, at: int, cluster: str | None) -> None:
        """A job comes in."""
        self.count += 1
        made = record(f"j{self.count}", self.count, *sizes, priority=priority, at=float(at), cluster=cluster)
        self.queue.push(made)
        self.naive.append(made)

    @precondition(lambda self: self.naive)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """Any job leaves."""
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
    """After no to a lane its further jobs are not shown; other lanes go on in order."""
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
    """A lane beyond the room there is costs nothing, not even the question."""
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


def test_removing_what_is_not_there_is_harmless() -> None:
    """A job that left already, or never came, is no error."""
    queue = PlacementQueue()
    queue.push(record("j", 1, 2))
    queue.remove(JobId("j"))
    queue.remove(JobId("j"))
    assert len(queue) == 0
    assert queue.place_in_order(JobId("j")) is None


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


def test_large_job_starves_without_the_guard() -> None:
    """The workload is such that the large job would wait for as long as small ones come."""
    site = Site({"a": 2}, Parameters(guard_scans=10**9, maximum_tries=10**6))
    stream(site, seconds=60.0)
    site.submit(job("large", 2, submitted_at=site.now))
    stream(site, seconds=3000.0)
    assert site.record("large").state is JobState.WAITING


def test_large_job_starts_soon_with_the_guard() -> None:
    """After some scans what comes free is kept, until it is enough."""
    site = Site({"a": 2}, GUARD)
    stream(site, seconds=60.0)
    site.submit(job("large", 2, submitted_at=site.now))
    stream(site, seconds=200.0)
    assert "large" in launches(site.actions)


def test_later_jobs_leave_the_room_alone() -> None:
    """The cluster that is kept gets nothing of a later job; another cluster does."""
    site = Site({"a": 4, "b": 2}, GUARD)
    site.submit(job("long", component("x", 2, cluster="a")))
    site.submit(job("large", component("x", 4, cluster="a")))
    site.pass_time(100.0)
    assert site.state.guarded == "large"
    assert site.state.kept_room == {A: 4}
    site.submit(job("free", 2, submitted_at=5.0))
    assert site.placed("free") == {"c0": (B, 2)}
    site.submit(job("bound", component("x", 1, cluster="a"), submitted_at=6.0))
    assert site.record("bound").state is JobState.WAITING
    site.run("long")
    site.complete("long")
    site.end_ending()
    assert site.placed("large") == {"x": (A, 4)}
    assert site.state.guarded is None


def test_jobs_before_it_are_not_held_up() -> None:
    """A job of higher priority takes the room, guard or not."""
    site = Site({"a": 4}, GUARD)
    site.submit(job("long", 2))
    site.submit(job("large", 4))
    site.pass_time(100.0)
    assert site.state.guarded == "large"
    site.submit(job("urgent", 2, priority=1))
    assert site.record("urgent").state is JobState.CLAIMING


def test_handed_on_placeholders_respect_the_guard() -> None:
    """A completed job's processors are not handed to a later job where they are kept for the guarded one."""
    for guarded in (True, False):
        site = Site({"a": 4}, GUARD if guarded else Parameters())
        site.submit(job("long", 2))
        site.submit(job("other", 2))
        site.submit(job("large", 4))
        site.submit(job("small", 2, submitted_at=9.0))
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
    site.submit(job("long", 2))
    site.submit(job("large", 4))
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

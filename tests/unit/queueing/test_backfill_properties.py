# SPDX-License-Identifier: Apache-2.0
"""The policies of one cluster on random workloads, and the profile of free processors that they reserve in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koala_adapter.queueing import backfill as conservative
from koala_adapter.queueing import profile as availability
from koala_adapter.queueing.backfill import ClusterScheduler, LocalJob, Metric, make_cluster_scheduler
from koala_adapter.queueing.maui import FirstFit, Greedy
from koala_adapter.queueing.profile import EarliestStarts, Profile
from tests.examples import examples

# -- An independent, plain and slow simulator of one cluster: the truth that the fast policies are compared with. It
# shares no code with them. Everything is worked out anew at each event from a list of holdings, which are (from,
# until, processors); whether a job may overtake is asked in the words of the definition: does anybody start
# later?

Holding: TypeAlias = tuple[int, int, int]
"""From, until, processors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowJob:
    """A job with all that there is to know of it; its run never takes longer than its estimate."""

    id: int
    submit: int
    processors: int
    estimate: int
    run: int


def free_at(time: int, holdings: list[Holding], size: int) -> int:
    """Return how many processors nobody holds at a time."""
    return size - sum(processors for start, end, processors in holdings if start <= time < end)


def fits(job: SlowJob, start: int, holdings: list[Holding], size: int) -> bool:
    """Tell whether a job could hold its processors from a start for its whole estimate."""
    end = start + job.estimate
    times = [start, *(begin for begin, _, _ in holdings if start < begin < end)]
    return all(free_at(time, holdings, size) >= job.processors for time in times)


def earliest(job: SlowJob, now: int, holdings: list[Holding], size: int) -> int:
    """Return the first time from now on at which a job fits."""
    times = sorted({now, *(end for _, end, _ in holdings if end > now)})
    return next(time for time in times if fits(job, time, holdings, size))


class SlowSimulator:
    """Plays one workload on one cluster with one policy."""

    def __init__(self, policy: str, size: int, *, depth: int = 1, metric: str = "processors") -> None:
        self.policy = policy
        self.size = size
        self.depth = depth
        self.metric = metric
        self.now = 0
        self.starts: dict[int, int] = {}
        self.running: list[SlowJob] = []
        self.queue: list[SlowJob] = []
        self.reserved: dict[int, int] = {}
        self.first_reserved: dict[int, int] = {}

    def play(self, jobs: list[SlowJob]) -> dict[int, int]:
        """Return the start of every job."""
        to_come = sorted(jobs, key=lambda job: job.submit)
        while to_come or self.running or self.queue:
            times = [job.submit for job in to_come[:1]] + [self.starts[job.id] + job.run for job in self.running]
            times += [start for start in self.reserved.values() if start > self.now]
            self.now = min(times)
            left = [job for job in self.running if self.starts[job.id] + job.run > self.now]
            ended = len(left) < len(self.running)
            self.running = left
            while to_come and to_come[0].submit == self.now:
                self.queue.append(to_come.pop(0))
            self.one_pass(ended=ended)
        return self.starts

    def one_pass(self, *, ended: bool) -> None:
        """Decide at one instant, after all that happened at it."""
        if self.policy == "conservative":
            self.conservative(ended=ended)
            return
        while self.queue and self.queue[0].processors <= free_at(self.now, self.held(), self.size):
            self.start(self.queue[0])
        if not self.queue or self.policy == "fcfs":
            return
        if self.policy in {"easy", "metacluster"}:
            self.easy()
        else:
            self.maui()

    def held(self) -> list[Holding]:
        """Return what the running jobs hold by their estimates."""
        return [(self.starts[job.id], self.starts[job.id] + job.estimate, job.processors) for job in self.running]

    def start(self, job: SlowJob) -> None:
        """Let a job run from now on."""
        self.queue.remove(job)
        self.starts[job.id] = self.now
        self.running.append(job)

    def easy(self) -> None:
        """Overtake only if the head could still start at its shadow time, which was fixed before."""
        head = self.queue[0]
        shadow = earliest(head, self.now, self.held(), self.size)
        for job in self.queue[1:]:
            if job.processors > free_at(self.now, self.held(), self.size):
                continue
            if self.policy == "metacluster":
                harmless = self.now + job.estimate <= shadow
            else:
                with_it = [*self.held(), (self.now, self.now + job.estimate, job.processors)]
                harmless = earliest(head, self.now, with_it, self.size) <= shadow
            if harmless:
                self.start(job)

    def maui(self) -> None:
        """Reserve for the first jobs that cannot start, then fill the gap."""
        reservations: list[Holding] = []
        candidates: list[SlowJob] = []
        for job in list(self.queue):
            if len(reservations) == self.depth:
                candidates.append(job)
                continue
            start = earliest(job, self.now, self.held() + reservations, self.size)
            if start == self.now:
                self.start(job)
            else:
                reservations.append((start, start + job.estimate, job.processors))
        while True:
            fitting = [job for job in candidates if fits(job, self.now, self.held() + reservations, self.size)]
            if not fitting:
                return
            # max returns the first of equals, and candidates are in the order of the queue
            best = fitting[0] if self.policy == "firstfit" else max(fitting, key=self.worth)
            self.start(best)
            candidates.remove(best)

    def worth(self, job: SlowJob) -> int:
        """Return how much of the metric a job has."""
        if self.metric == "processors":
            return job.processors
        return job.estimate if self.metric == "seconds" else job.estimate * job.processors

    def conservative(self, *, ended: bool) -> None:
        """Compress when a job ended, reserve for newcomers, start whose time has come."""
        for job in list(self.queue):
            if job.id in self.reserved and (not ended or self.reserved[job.id] <= self.now):
                continue
            others = [
                (self.reserved[other.id], self.reserved[other.id] + other.estimate, other.processors)
                for other in self.queue
                if other is not job and other.id in self.reserved
            ]
            self.reserved[job.id] = earliest(job, self.now, self.held() + others, self.size)
            self.first_reserved.setdefault(job.id, self.reserved[job.id])
        for job in list(self.queue):
            if self.reserved[job.id] <= self.now:
                self.start(job)
                del self.reserved[job.id]


def best_sum(jobs: list[SlowJob], now: int, holdings: list[Holding], size: int, metric: str) -> int:
    """Return the most of a metric that any set of these jobs has that can start now beside some holdings."""
    judge = SlowSimulator("greedy", size, metric=metric)
    if not jobs:
        return 0
    first, rest = jobs[0], jobs[1:]
    without = best_sum(rest, now, holdings, size, metric)
    if not fits(first, now, holdings, size):
        return without
    taken = [*holdings, (now, now + first.estimate, first.processors)]
    return max(without, judge.worth(first) + best_sum(rest, now, taken, size, metric))


# -- The policies of one cluster on random workloads, and the profile of free processors that they reserve in. The
# schedule is that of the slow simulator, and what must always hold does. Times are small whole numbers so that
# ends, arrivals and reservations often fall on the same instant.

SIZE = 8

WITH_A_SLOW_TWIN = [
    ("fcfs", {}),
    ("easy", {}),
    ("metacluster", {}),
    ("conservative", {}),
    ("firstfit", {}),
    ("firstfit", {"depth": 2}),
    ("firstfit", {"depth": 5}),
    ("bestfit", {}),
    ("bestfit", {"metric": "seconds", "depth": 2}),
    ("bestfit", {"metric": "processor-seconds", "depth": 3}),
]
ALL = [*WITH_A_SLOW_TWIN, ("greedy", {}), ("greedy", {"metric": "processor-seconds", "depth": 3})]


@st.composite
def workloads(draw: st.DrawFn) -> list[SlowJob]:
    """Workloads of up to thirty jobs whose arrivals crowd."""
    count = draw(st.integers(1, 30))
    span = draw(st.sampled_from([0, 10, 60]))
    jobs = []
    for number in range(count):
        estimate = draw(st.integers(1, 12))
        job = SlowJob(
            id=number,
            submit=draw(st.integers(0, span)),
            processors=draw(st.integers(1, SIZE)),
            estimate=estimate,
            run=draw(st.integers(1, estimate)),
        )
        jobs.append(job)
    return sorted(jobs, key=lambda job: job.submit)


@dataclass
class Played:
    """What a scheduler did with a workload."""

    starts: dict[int, float] = field(default_factory=dict)
    passes: list[tuple[float, list[SlowJob], list[SlowJob]]] = field(default_factory=list)
    """Of each pass: when, who ran before it, who waited before it in the order of the queue."""
    first_reserved: dict[int, float] = field(default_factory=dict)
    """The first start that each job had reserved after a pass that did not start it."""


def play(scheduler: ClusterScheduler, jobs: list[SlowJob]) -> Played:
    """Drive a scheduler through a workload as its interface says."""
    played = Played()
    to_come = [(job, LocalJob(job.id, job.processors, job.estimate, job.submit)) for job in jobs]
    by_id = {job.id: job for job in jobs}
    running: list[tuple[float, LocalJob]] = []
    while to_come or running or scheduler.waiting:
        now = min([to_come[0][0].submit if to_come else inf, scheduler.wake_at, *(end for end, _ in running)])
        assert now < inf, f"nothing will ever happen, and {scheduler.waiting} wait"
        for end, local in running:
            if end == now:
                scheduler.end(local, now)
        running = [(end, local) for end, local in running if end > now]
        while to_come and to_come[0][0].submit == now:
            scheduler.submit(to_come.pop(0)[1])
        before = [by_id[int(local.id)] for local in scheduler.waiting]
        played.passes.append((now, [by_id[int(local.id)] for _, local in running], before))
        for local in scheduler.schedule(now):
            played.starts[int(local.id)] = now
            running.append((now + by_id[int(local.id)].run, local))
        for local, start in scheduler.reservations(now).items():
            played.first_reserved.setdefault(int(local.id), start)
    return played


def most_held(jobs: Iterable[SlowJob], starts: dict[int, float]) -> int:
    jobs = list(jobs)
    return max(
        sum(job.processors for job in jobs if starts[job.id] <= at < starts[job.id] + job.run) for at in starts.values()
    )


@pytest.mark.parametrize(("policy", "options"), WITH_A_SLOW_TWIN, ids=str)
@given(jobs=workloads())
@examples(20)
def test_schedule_is_that_of_the_slow_simulator(policy: str, options: dict[str, object], jobs: list[SlowJob]) -> None:
    """Every job starts exactly when the independent simulator starts it."""
    fast = play(make_cluster_scheduler(policy, SIZE, **options), jobs)  # type: ignore[arg-type]
    slow = SlowSimulator(policy, SIZE, **options).play(jobs)  # type: ignore[arg-type]
    assert fast.starts == slow


@pytest.mark.parametrize(("policy", "options"), ALL, ids=str)
@given(jobs=workloads())
@examples(15)
def test_every_job_runs_once_and_never_too_many(policy: str, options: dict[str, object], jobs: list[SlowJob]) -> None:
    """All work is done, nobody starts before it came, no processor is used twice, and all is free in the end."""
    scheduler = make_cluster_scheduler(policy, SIZE, **options)  # type: ignore[arg-type]
    played = play(scheduler, jobs)
    assert set(played.starts) == {job.id for job in jobs}
    assert all(played.starts[job.id] >= job.submit for job in jobs)
    assert most_held(jobs, played.starts) <= SIZE
    assert (scheduler.free, scheduler.running, scheduler.waiting) == (SIZE, [], [])


@given(jobs=workloads())
@examples(20)
def test_fcfs_never_overtakes(jobs: list[SlowJob]) -> None:
    starts = play(make_cluster_scheduler("fcfs", SIZE), jobs).starts
    in_order = [starts[job.id] for job in jobs]
    assert in_order == sorted(in_order)


@pytest.mark.parametrize("policy", ["easy", "metacluster", "bestfit", "greedy"])
@given(jobs=workloads())
@examples(20)
def test_the_head_is_never_delayed_against_its_shadow(policy: str, jobs: list[SlowJob]) -> None:
    """Whoever was the head of the queue started no later than the time it was promised when it became the head."""
    played = play(make_cluster_scheduler(policy, SIZE), jobs)
    assert all(played.starts[number] <= start for number, start in played.first_reserved.items())


@pytest.mark.parametrize("policy", ["firstfit", "bestfit", "greedy"])
@given(jobs=workloads(), depth=st.integers(2, 6))
@examples(20)
def test_what_fills_the_gap_delays_no_reservation(policy: str, jobs: list[SlowJob], depth: int) -> None:
    """In every pass, the first jobs could still all start when they could without the jobs started behind them."""
    played = play(make_cluster_scheduler(policy, SIZE, depth=depth), jobs)
    for now, running, waiting in played.passes:
        held = [
            (int(played.starts[job.id]), int(played.starts[job.id]) + job.estimate, job.processors) for job in running
        ]
        reserved: list[tuple[int, int, int]] = []
        for job in waiting:
            if len(reserved) == depth:
                break
            start = earliest(job, int(now), held + reserved, SIZE)
            if start == now:
                held.append((start, start + job.estimate, job.processors))
            else:
                reserved.append((start, start + job.estimate, job.processors))
                assert played.starts[job.id] > now
                started = [
                    (int(now), int(now) + other.estimate, other.processors)
                    for other in waiting
                    if played.starts[other.id] == now
                ]
                running_held = held[: len(running)]
                assert fits(job, start, [*running_held, *started, *reserved[:-1]], SIZE)


@given(jobs=workloads())
@examples(20)
def test_conservative_never_delays_anybody(jobs: list[SlowJob]) -> None:
    played = play(make_cluster_scheduler("conservative", SIZE), jobs)
    assert all(played.starts[number] <= start for number, start in played.first_reserved.items())


@given(jobs=workloads())
@settings(examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_conservative_within_a_bound_never_delays_anybody(jobs: list[SlowJob], monkeypatch: pytest.MonkeyPatch) -> None:
    """Compression that stops after its first vain try keeps the promise, and leaves nobody out who could start now."""
    monkeypatch.setattr(conservative, "TRIES", 0)
    played = play(make_cluster_scheduler("conservative", SIZE), jobs)
    assert set(played.starts) == {job.id for job in jobs}
    assert all(played.starts[number] <= start for number, start in played.first_reserved.items())
    assert most_held(jobs, played.starts) <= SIZE


@given(jobs=workloads())
@examples(20)
def test_firstfit_of_depth_one_is_easy(jobs: list[SlowJob]) -> None:
    """The code of FIRSTFIT for any depth gives EASY's schedule with depth 1, though the factory makes EASY of it."""
    easy = play(make_cluster_scheduler("easy", SIZE), jobs)
    assert play(FirstFit(SIZE), jobs).starts == easy.starts


@given(
    free=st.integers(1, 10),
    ends=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    waiting=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 25)), min_size=1, max_size=9),
    needs=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    metric=st.sampled_from(list(Metric)),
)
@examples(20)
def test_greedy_fills_the_gap_with_the_best_combination(
    free: int, ends: list[int], waiting: list[tuple[int, int]], needs: list[int], metric: Metric
) -> None:
    """What GREEDY starts has as much of the metric as the best of all combinations."""
    size = free + 3 * len(ends)
    scheduler = Greedy(size, metric=metric, depth=len(needs))
    for number, end in enumerate(ends):
        scheduler.adopt(LocalJob(f"running {number}", 3, end, 0), 0, 0)
    heads = [
        SlowJob(id=-1 - number, submit=0, processors=min(size, free + need), estimate=7, run=7)
        for number, need in enumerate(needs)
    ]
    jobs = [
        SlowJob(id=number, submit=0, processors=processors, estimate=estimate, run=estimate)
        for number, (processors, estimate) in enumerate(waiting)
    ]
    for job in heads + jobs:
        scheduler.submit(LocalJob(job.id, job.processors, job.estimate, 0))
    started = scheduler.schedule(0)
    holdings = [(0, end, 3) for end in ends]
    for head in heads:
        start = earliest(head, 0, holdings, size)
        holdings.append((start, start + head.estimate, head.processors))
    assert sum(metric.of(job) for job in started) == best_sum(jobs, 0, holdings, size, metric)
    assert scheduler.beyond == 0


# -- The profile of free processors against a plain list of holdings, with blocks so small that they split and vanish.


FREE = 12
HORIZON = 60

Window: TypeAlias = tuple[int, int, int]

WINDOWS = st.lists(st.tuples(st.integers(0, HORIZON), st.integers(1, 15), st.integers(1, 5)), max_size=40)
"""Start, duration, processors of what is profile_of."""


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of at most four breakpoints."""
    monkeypatch.setattr(availability, "BLOCK", 4)


def level(time: float, windows: list[Window]) -> int:
    """Return how many are free at a time, the plain way."""
    return FREE - sum(processors for start, duration, processors in windows if start <= time < start + duration)


def plain_earliest(processors: int, duration: int, after: int, before: float, windows: list[Window]) -> float:
    """Return the first start second by second; beyond the horizon everything is free."""
    for start in range(after, 3 * HORIZON):
        if start >= before:
            return before
        if all(level(at, windows) >= processors for at in range(start, int(min(start + duration, before)))):
            return start
    return inf


def profile_of(windows: list[Window]) -> Profile:
    """Return a profile in which these windows are taken."""
    profile = Profile(0, FREE)
    for start, duration, processors in windows:
        profile.take(start, start + duration, processors)
    return profile


@pytest.mark.usefixtures("small_blocks")
@given(windows=WINDOWS, now=st.integers(0, HORIZON), given_back=st.integers(0, 40))
@examples(20)
def test_levels_are_those_of_a_plain_list(windows: list[Window], now: int, given_back: int) -> None:
    """After taking all, giving some back and forgetting the past, each time has its level and no step is needless."""
    profile = profile_of(windows)
    for start, duration, processors in windows[:given_back]:
        profile.give(start, start + duration, processors)
    left = windows[given_back:]
    profile.advance(now)
    assert [profile.level(time) for time in range(now, 2 * HORIZON)] == [
        level(t, left) for t in range(now, 2 * HORIZON)
    ]
    steps = list(profile)
    assert steps[0][0] == now
    assert all(before[0] < after[0] for before, after in pairwise(steps))


@pytest.mark.usefixtures("small_blocks")
@given(
    windows=WINDOWS,
    processors=st.integers(1, FREE),
    duration=st.integers(1, 30),
    after=st.integers(0, HORIZON),
    before=st.one_of(st.just(inf), st.integers(0, 2 * HORIZON)),
)
@examples(20)
def test_earliest_start(windows: list[Window], processors: int, duration: int, after: int, before: float) -> None:
    """The search gives what trying every second gives, and "free since" what going back second by second gives."""
    profile = profile_of(windows)
    expected = plain_earliest(processors, duration, after, before, windows)
    assert profile.earliest(processors, duration, after=after, before=before)[0] == max(expected, min(before, expected))
    since = after
    while since > 0 and level(since - 1, windows) >= processors:
        since -= 1
    assert profile.since(processors, after) == since


@pytest.mark.usefixtures("small_blocks")
@given(windows=WINDOWS)
@examples(20)
def test_least_until_each_time(windows: list[Window]) -> None:
    steps = profile_of(windows).least()
    for until in range(1, 2 * HORIZON):
        expected = min(level(at, windows) for at in range(until))
        assert next(least for end, least in steps if until <= end) == expected


@pytest.mark.usefixtures("small_blocks")
@given(ends=st.lists(st.tuples(st.integers(0, HORIZON), st.integers(1, 5)), max_size=20), now=st.integers(0, HORIZON))
@examples(20)
def test_a_profile_of_what_runs(ends: list[tuple[int, int]], now: int) -> None:
    profile = Profile(now, 3, [(end, processors, None) for end, processors in sorted(ends)])
    for time in range(now, HORIZON + 1):
        assert profile.level(time) == 3 + sum(processors for end, processors in ends if max(end, now) <= time)


@pytest.mark.usefixtures("small_blocks")
def test_what_comes_free_is_found_by_jobs_of_any_length() -> None:
    """Gaps of all lengths are remembered; then all from 10 to 50 comes free, and jobs of any length find that."""
    profile = Profile(0, 4)
    starts = EarliestStarts(profile)
    for start, end in ((0, 5), (8, 20), (25, 40), (50, 60)):
        profile.take(start, end, 4)
    assert [starts.find(1, duration) for duration in (3, 5, 10, 11)] == [5, 20, 40, 60]
    profile.give(10, 20, 4)
    profile.give(25, 40, 4)
    starts.freed(10)
    assert [starts.find(1, duration) for duration in (3, 5, 40, 11, 41)] == [5, 10, 10, 10, 60]


@pytest.mark.usefixtures("small_blocks")
@given(
    windows=WINDOWS,
    asked=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 12), st.booleans()), min_size=1, max_size=40),
)
@examples(20)
def test_remembered_searches_give_what_plain_ones_give(
    windows: list[Window], asked: list[tuple[int, int, bool]]
) -> None:
    """Reservations made and improved one after the other are the same with and without the memory of past searches."""
    held: list[Window] = []
    for start, duration, processors in windows:
        if all(level(at, held) >= processors for at in range(start, start + duration)):
            held.append((start, duration, processors))
    profile = profile_of(held)
    starts = EarliestStarts(profile)
    for processors, duration, improve in asked:
        if not improve:
            found = starts.find(processors, duration)
            assert found == plain_earliest(processors, duration, 0, inf, held)
            profile.take(found, found + duration, processors)
            held.append((int(found), duration, processors))
            continue
        if not held:
            continue
        was, length, wide = held[len(held) // 2]
        without = [*held[: len(held) // 2], *held[len(held) // 2 + 1 :]]
        better = starts.improve(wide, length, was)
        assert better == min(was, plain_earliest(wide, length, 0, inf, without))
        if better < was:
            profile.give(was, was + length, wide)
            profile.take(better, better + length, wide)
            starts.freed(max(was, better + length))
            held = [*without, (int(better), length, wide)]

# SPDX-License-Identifier: Apache-2.0
"""An independent, plain and slow simulator of one cluster: the truth that the fast policies are compared with.

It shares no code with them. Everything is worked out anew at each event from a list of holdings, which are (from,
until, processors); whether a job may overtake is asked in the words of the definition: does anybody start later?
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

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

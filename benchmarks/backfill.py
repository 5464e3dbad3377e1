# SPDX-License-Identifier: Apache-2.0
"""How fast the policies of one cluster are: whole traces beside a bare loop, and single passes by length of the queue.

- *easy*: each trace played by ``benchmarks/plain_easy.py`` and by EASY through the public interface, as ``koala
  simulate`` does it, both in this run, without reading the file; the schedules must be the same. The goal is half the
  speed of the bare loop.
- *others*: the other policies on the first jobs of the same traces.
- *pass*: one pass as ``koala schedule`` makes it, with 2,000 running jobs and a queue of 100 to 10,000. *First*: all is
  new. *Later*: the median of ten passes with three ended and three new jobs before each. The growth exponent is the
  slope of log(time) over log(queue): 0 is no growth, 1 is linear. The goal is 0.2 s with 10,000.

Traces are the files named, else those in ``../shared/traces``, else a generated workload (Lublin and Feitelson).

    python benchmarks/backfill.py [TRACE...] [--part easy,others,pass] [--jobs 20000] [--repeat 3] [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.plain_easy import plain_easy
from koala_adapter.queueing.backfill import LocalJob
from koala_adapter.simulation.models import lublin
from koala_adapter.simulation.replay import Policy, Site, replay
from koala_adapter.simulation.workload import NEEDED, read_trace, workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from koala_adapter.queueing.backfill import ClusterScheduler
    from koala_adapter.simulation.workload import Workload

TRACES = Path(__file__).parents[2] / "shared" / "traces"
POLICIES = (
    Policy(name="fcfs"),
    Policy(name="metacluster"),
    Policy(name="easy"),
    Policy(name="firstfit", depth=10),
    Policy(name="bestfit", metric="processor-seconds"),
    Policy(name="greedy"),
    Policy(name="greedy", metric="processor-seconds"),
    Policy(name="conservative"),
)
QUEUES = (100, 1000, 10_000)
RUNNING = 2000
IDLE = 256
"""Processors that are idle before the first pass; the head of the queue needs half the cluster."""
PASSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """EASY beside the bare loop, in jobs per second."""

    trace: str
    jobs: int
    bare: float
    easy: float

    @property
    def ratio(self) -> float:
        """Speed through the interface over that of the bare loop."""
        return self.easy / self.bare


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A policy on a trace."""

    trace: str
    policy: str
    jobs: int
    jobs_per_second: float
    mean_wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Seconds of one pass."""

    policy: str
    waiting: int
    first: float
    later: float


def label(policy: Policy) -> str:
    """Return what a policy is called in the tables."""
    extra = f" depth {policy.depth}" if policy.depth > 1 else ""
    return policy.name + extra + (f" {policy.metric}" if policy.metric != "processors" else "")


def processor_seconds(action: Callable[[], object]) -> float:
    """Return the processor time that an action takes: others work on this machine as well."""
    gc.collect()
    begin = time.process_time()
    action()
    return time.process_time() - begin


def traces(paths: Sequence[Path]) -> Iterator[Workload]:
    """Yield the workloads to play."""
    paths = paths or sorted(TRACES.glob("*.swf.gz"))
    for path in paths:
        jobs = workload(read_trace(path, NEEDED))
        yield jobs.fitting(jobs.processors or max(jobs.sizes))
    if not paths:
        yield lublin(50_000, seed=1)


def machine(jobs: Workload) -> Site:
    """Return the cluster that a workload was recorded on."""
    return Site(name="machine", processors=jobs.processors or max(jobs.sizes))


def beside(jobs: Workload, repeat: int) -> Beside:
    """Play a trace both ways, alternately; the best of each counts."""
    site = machine(jobs)
    easy = Policy(name="easy")
    columns = (jobs.submits, jobs.runs, jobs.sizes, jobs.estimates)
    assert list(replay(jobs, easy, [site]).starts) == plain_easy(*columns, site.processors)
    both = [
        (
            processor_seconds(lambda: plain_easy(*columns, site.processors)),
            processor_seconds(lambda: replay(jobs, easy, [site])),
        )
        for _ in range(repeat)
    ]
    bare, ours = (len(jobs) / min(times) for times in zip(*both, strict=True))
    return Beside(trace=jobs.name, jobs=len(jobs), bare=bare, easy=ours)


def played(jobs: Workload, policy: Policy) -> Played:
    """Play a trace with a policy."""
    begin = time.process_time()
    starts = replay(jobs, policy, [machine(jobs)]).starts
    seconds = time.process_time() - begin
    wait = sum(start - submit for start, submit in zip(starts, jobs.submits, strict=True)) / len(jobs)
    return Played(
        trace=jobs.name, policy=label(policy), jobs=len(jobs), jobs_per_second=len(jobs) / seconds, mean_wait=wait
    )


class FullCluster:
    """A cluster of many running jobs and a queue as long as wanted."""

    def __init__(self, policy: Policy, waiting: int) -> None:
        """Fill it."""
        self.chance = random.Random(waiting)
        self.now = 0.0
        self.number = 0
        self.running = [self.job([1, 1, 2, 4, 8, 16, 32]) for _ in range(RUNNING)]
        size = sum(job.processors for job in self.running) + IDLE
        self.scheduler: ClusterScheduler = policy.scheduler(size)
        for job in self.running:
            self.scheduler.adopt(job, -self.chance.randrange(600), 0)
        self.scheduler.submit(LocalJob("head", size // 2, 3600, self.now))
        for _ in range(waiting - 1):
            self.scheduler.submit(self.job([1, 1, 2, 4, 8, 16, 32, 64, 128, 256]))

    def job(self, sizes: list[int]) -> LocalJob:
        """Return the next job, of one of these sizes or something near."""
        self.number += 1
        estimate = self.chance.choice([600, 3600, 7200, 14_400, 43_200, 86_400]) + self.chance.randrange(600)
        size = self.chance.choice(sizes) + self.chance.choice([0, 0, 0, 1])
        return LocalJob(self.number, size, estimate, self.now)

    def first(self) -> None:
        """Make the first pass."""
        self.running += self.scheduler.schedule(self.now)

    def later(self) -> float:
        """Return the time of a pass after three jobs ended and three came."""
        self.now += 10
        for _ in range(3):
            self.scheduler.end(self.running.pop(self.chance.randrange(len(self.running))), self.now)
            self.scheduler.submit(self.job([1, 2, 4, 8, 16]))
        return processor_seconds(self.first)


def one_pass(policy: Policy, waiting: int) -> Pass:
    """Measure single passes."""
    cluster = FullCluster(policy, waiting)
    first = processor_seconds(cluster.first)
    later = statistics.median(cluster.later() for _ in range(PASSES))
    return Pass(policy=label(policy), waiting=waiting, first=first, later=later)


def growth(passes: Sequence[Pass]) -> float:
    """Return the slope of log(time of a later pass) over log(length of the queue)."""
    points = [(math.log(one.waiting), math.log(one.later)) for one in passes]
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def measure_easy(workloads: Sequence[Workload], repeat: int) -> list[Beside]:
    """Measure and print the first part."""
    print("EASY beside a bare loop, jobs per second\n")
    rows = []
    for jobs in workloads:
        rows.append(row := beside(jobs, repeat))
        print(f"{row.trace:26} {row.jobs:8} jobs  bare {row.bare:9,.0f}  easy {row.easy:9,.0f}  ratio {row.ratio:.2f}")
    return rows


def measure_others(workloads: Sequence[Workload], most: int) -> list[Played]:
    """Measure and print the second part."""
    print("\nEach policy, jobs per second and mean wait in seconds\n")
    rows = []
    for jobs in workloads:
        for policy in POLICIES:
            rows.append(row := played(jobs.first(most), policy))
            print(
                f"{row.trace:26} {row.policy:26} {row.jobs:8} jobs  {row.jobs_per_second:9,.0f}  {row.mean_wait:12,.1f}"
            )
    return rows


def measure_passes() -> list[Pass]:
    """Measure and print the third part."""
    print(f"\nOne pass with {RUNNING} running jobs, milliseconds (first pass / later ones)\n")
    rows = []
    for policy in POLICIES:
        passes = [one_pass(policy, waiting) for waiting in QUEUES]
        rows += passes
        cells = "  ".join(f"{one.waiting}: {one.first * 1000:6.1f} / {one.later * 1000:6.1f}" for one in passes)
        print(f"{label(policy):26} {cells}  growth {growth(passes):.1f}")
    return rows


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--part", default="easy,others,pass")
    parser.add_argument("--jobs", type=int, default=20_000, help="most jobs of each trace in the part others")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON after the tables")
    options = parser.parse_args()
    parts = options.part.split(",")
    workloads = list(traces(options.traces)) if {"easy", "others"} & set(parts) else []
    result: dict[str, Sequence[Beside | Played | Pass]] = {}
    if "easy" in parts:
        result["easy"] = measure_easy(workloads, options.repeat)
    if "others" in parts:
        result["others"] = measure_others(workloads, options.jobs)
    if "pass" in parts:
        result["pass"] = measure_passes()
    if options.json:
        print(json.dumps({part: [asdict(row) for row in rows] for part, rows in result.items()}, indent=2))


if __name__ == "__main__":
    main()

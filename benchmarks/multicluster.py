# SPDX-License-Identifier: Apache-2.0
"""A synthetic month: 1,000,000 malleable jobs on 100 clusters of 1,000 processors with EGS (repeated) and PWA.

Jobs come as a Poisson process whose rate follows the hour of the day. Each is FT-like (powers of two) or GADGET-like
(any size), starts on 2, 4 or 8 processors and can grow to 32 or 46; its work is exponential, so that the mean demand,
with all jobs at their maxima, is the load asked for. In the same run, for the ratio, the same jobs are simulated as
rigid ones: what is left is the cost of malleability.

    python benchmarks/multicluster.py [--jobs 1000000] [--clusters 100] [--processors 1000] [--load 0.7] [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from koala_adapter.scheduler.parameters import Approach
from koala_adapter.simulation.applications import Application, Interpolated, SimulatedJob
from koala_adapter.simulation.multicluster import Multicluster, Settings
from koala_adapter.simulation.platform import ClusterModel, Platform
from koala_adapter.sizes import PowerOfTwo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.simulation.applications import JobResult

MONTH = 30 * 86_400.0
"""Seconds."""
SWING = 0.5
"""How far the rate of submissions swings about its mean over a day."""
FT = Application(
    name="FT", speed_up=Interpolated(((2, 2.0), (32, 1.0))), minimum=2, maximum=32, acceptance=PowerOfTwo()
)
GADGET = Application(name="GADGET-2", speed_up=Interpolated(((2, 2.5), (46, 1.0))), minimum=2, maximum=46)
INITIAL = (2, 4, 8)


@dataclass(slots=True)
class Totals:
    """What is added up of the results, none of which is kept."""

    jobs: int = 0
    wait: float = 0.0
    execution: float = 0.0
    processor_seconds: float = 0.0

    def take(self, result: JobResult) -> None:
        """Add a result."""
        self.jobs += 1
        self.wait += result.wait
        self.execution += result.execution
        self.processor_seconds += result.execution * result.average_processors


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run."""

    what: str
    seconds: float
    processor_time: float
    """Seconds of processor time of this process: what is left of the time on a machine with other work."""
    jobs: int
    jobs_per_second: float
    messages: int
    mean_wait: float
    mean_execution: float
    utilization: float
    peak_mib: float
    """Of the process so far."""


def month(jobs: int, processors: int, load: float, *, malleable: bool, seed: int = 1) -> Iterator[SimulatedJob]:
    """Yield the jobs, made as they are needed."""
    chance = random.Random(seed)
    # The time on the maximum is `work` seconds, so the mean demand of a job is work times the mean of the maxima.
    mean_work = load * processors * MONTH / (jobs * (FT.maximum + GADGET.maximum) / 2)
    now = 0.0
    for number in range(jobs):
        rate = jobs / MONTH * (1 + SWING * math.sin(2 * math.pi * now / 86_400))
        now += chance.expovariate(rate)
        yield SimulatedJob(
            number=number,
            submitted_at=now,
            application=FT if chance.random() < 0.5 else GADGET,
            initial=chance.choice(INITIAL),
            malleable=malleable,
            work=chance.expovariate(1 / mean_work),
        )


def measure(platform: Platform, jobs: int, load: float, *, malleable: bool) -> Measured:
    """Simulate the month and return what it took."""
    totals = Totals()
    approach = Approach.PWA if malleable else Approach.NONE
    workload = month(jobs, platform.processors, load, malleable=malleable)
    world = Multicluster(
        platform, workload, Settings(approach=approach, malleability="egs-repeated", timeline=False), on_end=totals.take
    )
    gc.collect()
    begin, begin_processor = time.perf_counter(), time.process_time()
    outcome = world.run()
    seconds, processor_time = time.perf_counter() - begin, time.process_time() - begin_processor
    assert totals.jobs == jobs
    return Measured(
        what="EGS, PWA" if malleable else "rigid",
        seconds=seconds,
        processor_time=processor_time,
        jobs=jobs,
        jobs_per_second=jobs / seconds,
        messages=outcome.grow_messages + outcome.shrink_messages,
        mean_wait=totals.wait / jobs,
        mean_execution=totals.execution / jobs,
        utilization=totals.processor_seconds / (platform.processors * outcome.ended_at),
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--clusters", type=int, default=100)
    parser.add_argument("--processors", type=int, default=1000, help="of each cluster")
    parser.add_argument(
        "--load", type=float, default=0.7, help="mean demand of processors with all jobs at their maxima"
    )
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    models = tuple(ClusterModel(name=f"c{number}", nodes=chosen.processors) for number in range(chosen.clusters))
    platform = Platform(name="synthetic", clusters=models)
    found = [measure(platform, chosen.jobs, chosen.load, malleable=malleable) for malleable in (True, False)]
    if chosen.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    print(f"{chosen.jobs:,} jobs, {chosen.clusters} clusters of {chosen.processors:,} processors, load {chosen.load:g}")
    for one in found:
        print(
            f"{one.what:9} {one.seconds:7.1f} s ({one.processor_time:.1f} s of processor)  "
            f"{one.jobs_per_second:9,.0f} jobs/s  {one.messages:11,} messages  "
            f"wait {one.mean_wait:8.1f} s  execution {one.mean_execution:8.0f} s  utilization {one.utilization:.2f}  "
            f"peak {one.peak_mib:5.0f} MiB"
        )
    ratio = found[0].processor_time / found[1].processor_time
    print(f"malleable jobs take {ratio:.1f} times the processor time of rigid ones")


if __name__ == "__main__":
    main()

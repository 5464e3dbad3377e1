# SPDX-License-Identifier: Apache-2.0
"""The scheduler: how long a decision takes, how long a snapshot makes others wait, and a simulated month.

python -m benchmarks.scheduler decisions [--clusters 10,1000] [--jobs 100,1000,10000,100000] [--repeat 15]
python -m benchmarks.scheduler snapshots [--placeholders 1000,10000,100000] [--repeat 3]
python -m benchmarks.scheduler month [--jobs 1000000] [--clusters 100] [--processors 1000] [--load 0.7]
"""

from __future__ import annotations

import gc
import math
import random
import resource
import statistics
import tempfile
import time
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import Row, beside, growth, main
from koala_adapter.model import (
    ClusterName,
    Component,
    EndReason,
    Job,
    JobId,
    JobKind,
    PlaceholderId,
    TaskEnd,
)
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import SubmitPlaceholders
from koala_adapter.scheduler.claiming.queue import PlacementQueue
from koala_adapter.scheduler.claiming.waiting import place
from koala_adapter.scheduler.context import Context
from koala_adapter.scheduler.parameters import Approach, ClusterParameters, Parameters
from koala_adapter.service.journal import Journal
from koala_adapter.simulation.applications import Application, Interpolated, SimulatedJob
from koala_adapter.simulation.multicluster import Multicluster, Settings
from koala_adapter.simulation.platform import ClusterModel, Platform
from koala_adapter.sizes import PowerOfTwo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.scheduler.actions import Action
    from koala_adapter.simulation.applications import JobResult

# -- Decisions -----------------------------------------------------------------------------------------------
# The site is full; its queue holds jobs of one to three components of 1 to 16 processors, some bound to a cluster, some
# moldable, of three priorities.

PROCESSORS = 64
"""Of each cluster."""
FILLER = 16
"""Processors of each running job: four fill a cluster."""
FEW = 4
"""Processors that come free when there is room."""
NAIVE_MOST = 2000
"""More jobs than these are not asked about one by one; the time is taken to be proportional."""
WELL = TaskEnd(reason=EndReason.EXITED, exit_code=0)
OPERATIONS = ("submit", "poll_full", "poll_room", "completion", "release", "interval")
"""A job comes in, or a poll shows nothing new, while nothing is free; a poll shows room for a few processors, which
waiting jobs get; the last rank of a running job ends; a placeholder is gone; the interval scan."""


def decisions(
    *,
    clusters: tuple[int, ...] = (10, 1000),
    jobs: tuple[int, ...] = (100, 1000, 10_000, 100_000),
    repeat: int = 15,
) -> list[Row]:
    """Milliseconds of one event by clusters and waiting jobs, ratio to the first line, and growth with the jobs.

    The growth is the slope of log(time) over log(jobs): 0 is none, 1 is linear. A naive scan, which asks the placement
    policy about every waiting job, is what a poll with room is compared with.
    """
    rows: list[Row] = []
    sizes = [(many, waiting) for many in clusters for waiting in jobs]
    found = {size: measured(*size, repeat) for size in sizes}
    for name in (*OPERATIONS, "naive scan"):
        base = found[sizes[0]][name]
        for many, some in groupby(sizes, key=lambda size: size[0]):
            times = [(waiting, found[many, waiting][name]) for _, waiting in some]
            slope = growth(times) if len(times) > 1 else 0.0
            rows += [
                {"": name, "clusters": many, "jobs": waiting, "ms": 1000 * t, "ratio": t / base, "growth": slope}
                for waiting, t in times
            ]
    return rows


class FullSite:
    """A scheduler whose clusters are full of running jobs, and whose queue is as long as wanted."""

    def __init__(self, clusters: int, jobs: int) -> None:
        """Fill the clusters, then the queue."""
        self.chance = random.Random(clusters * 1_000_003 + jobs)
        self.names = [ClusterName(f"cluster{number}") for number in range(clusters)]
        self.size = dict.fromkeys(self.names, PROCESSORS)
        self.now = 1_000_000.0
        self.number = 0
        self.scheduler = Scheduler()
        self.post(
            ev.Configured(
                time=self.now,
                parameters=Parameters(maximum_tries=10**9),
                clusters=tuple(ClusterParameters(name=name) for name in self.names),
            )
        )
        for name in self.names:
            self.poll(name)
        self.running = [self._run(name) for name in self.names for _ in range(PROCESSORS // FILLER)]
        for _ in range(jobs):
            self.post(ev.JobSubmitted(time=self.now, job=self.waiting_job()))

    def post(self, event: ev.Event) -> list[Action]:
        """Give the scheduler an event."""
        return self.scheduler.handle(event)

    def poll(self, name: ClusterName) -> list[Action]:
        """Report a cluster as it is, all in use."""
        size = self.size[name]
        return self.post(ev.ClusterPolled(time=self.now, cluster=name, processors=size, idle=0, ours=size))

    def make(self, *components: Component, priority: int = 0) -> Job:
        """Return the next job."""
        self.number += 1
        return Job(
            id=JobId(str(self.number)),
            name="job",
            kind=JobKind.MOLDABLE,
            components=components,
            walltime=3600 * self.chance.randint(1, 20),
            user="alice",
            submitted_at=self.now + self.number * 0.001,
            priority=priority,
        )

    def waiting_job(self) -> Job:
        """Return a job as users submit them."""
        parts = []
        for number in range(self.chance.choice([1, 1, 1, 2, 3])):
            minimum = self.chance.choice([1, 2, 4, 8, 8, 16])
            cluster = self.chance.choice(self.names) if self.chance.random() < 0.1 else None
            maximum = minimum * self.chance.choice([1, 1, 2])
            parts.append(
                Component(name=f"c{number}", command=("x",), minimum=minimum, maximum=maximum, cluster=cluster)
            )
        return self.make(*parts, priority=self.chance.choice([0, 0, 0, 1, -1]))

    def _run(self, name: ClusterName) -> JobId:
        job = self.make(Component(name="c", command=("x",), minimum=FILLER, maximum=FILLER, cluster=name))
        (submission,) = self.post(ev.JobSubmitted(time=self.now, job=job))
        assert isinstance(submission, SubmitPlaceholders)
        for index in range(1, FILLER + 1):
            id_ = PlaceholderId(batch=submission.batch, index=index)
            self.post(ev.PlaceholderHeld(time=self.now, placeholder=id_, host="h", address="a", ends_at=self.now + 1e6))
        for rank in range(FILLER - 1):
            self.post(ev.RankEnded(time=self.now, job_id=job.id, rank=rank, end=WELL))
        return job.id


def timed(site: FullSite, event: ev.Event) -> float:
    """Return the seconds that the scheduler takes for one event."""
    begin = time.perf_counter()
    site.post(event)
    return time.perf_counter() - begin


def measured(clusters: int, jobs: int, repeat: int) -> dict[str, float]:
    """Return the median seconds of every operation at one size."""
    site = FullSite(clusters, jobs)
    gc.collect()
    gc.disable()
    try:
        found = {
            operation: statistics.median(timed(site, _event(site, operation, number)) for number in range(repeat))
            for operation in OPERATIONS
        }
        return {**found, "naive scan": _naive(site, jobs)}
    finally:
        gc.enable()


def _event(site: FullSite, operation: str, number: int) -> ev.Event:
    name = site.names[number % len(site.names)]
    if operation == "submit":
        return ev.JobSubmitted(time=site.now, job=site.waiting_job())
    if operation in {"poll_full", "poll_room"}:
        site.size[name] += FEW if operation == "poll_room" else 0
        size = site.size[name]
        return ev.ClusterPolled(time=site.now, cluster=name, processors=size, idle=0, ours=size)
    if operation == "completion":
        return ev.RankEnded(time=site.now, job_id=site.running.pop(), rank=FILLER - 1, end=WELL)
    if operation == "release":
        record = site.scheduler.state.jobs[site.running[number % len(site.running)]]
        id_ = record.claims[0].placeholders[0]
        return ev.PlaceholderEnded(time=site.now, placeholder=id_, reason=EndReason.EXITED)
    site.now = max(site.now, site.scheduler.next_wakeup or site.now)
    return ev.TimeReached(time=site.now)


def _naive(site: FullSite, jobs: int) -> float:
    """Return the seconds for asking the policy about every waiting job."""
    state = site.scheduler.state
    waiting = [record for record in state.jobs.values() if record.queued_at_scan is not None]
    asked = waiting[:NAIVE_MOST]
    context = Context(
        ledger=site.scheduler.ledger, timetable=site.scheduler.timetable, queue=PlacementQueue(), now=site.now
    )
    views = context.views()
    begin = time.perf_counter()
    for record in asked:
        place(context, record, views)
    return (time.perf_counter() - begin) * max(1.0, jobs / max(1, len(asked)))


# -- Snapshots -----------------------------------------------------------------------------------------------
# Measured are the pauses between two moments at which another client could be answered: with the whole snapshot written
# at once, and with one group of records after the other, as the service does it. Events wait until the last one.

EVENTS = 5000
"""In the journal since the snapshot before."""
OVER = object()


def snapshots(*, placeholders: tuple[int, ...] = (1000, 10_000, 100_000), repeat: int = 3) -> list[Row]:
    """For how long everything waits while a service with many placeholders writes a snapshot of its state.

    The first snapshot, which replaces none, does not count.
    """
    rows: list[Row] = []
    for size in placeholders:
        scheduler = FullSite(size // PROCESSORS, 0).scheduler
        with tempfile.TemporaryDirectory() as directory, Journal(Path(directory) / "journal.sqlite") as journal:
            runs = [pauses(journal, scheduler) for _ in range(repeat + 1)][1:]
        rows.append({
            "placeholders": len(scheduler.state.placeholders),
            "at once, ms": 1000 * statistics.median(sum(run) for run in runs),
            "longest pause, ms": 1000 * statistics.median(max(run) for run in runs),
            "steps": len(runs[0]),
        })  # fmt: skip
    return rows


def pauses(journal: Journal, scheduler: Scheduler) -> list[float]:
    """Write a snapshot; return the seconds that each step of it took."""
    event = ev.ClusterUnavailable(time=4.0, cluster=ClusterName("c0"), reason="no answer")
    last = [journal.append(event) for _ in range(EVENTS)][-1]
    found = []
    writing = journal.snapshot_in_groups(scheduler.state, last)
    while True:
        begun = time.perf_counter()
        over = next(writing, OVER) is OVER
        found.append(time.perf_counter() - begun)
        if over:
            return found


# -- A simulated month ---------------------------------------------------------------------------------------

MONTH = 30 * 86_400.0
"""Seconds."""
SWING = 0.5
"""How far the rate of submissions swings about its mean over a day."""
FT = Application(
    name="FT", speed_up=Interpolated(((2, 2.0), (32, 1.0))), minimum=2, maximum=32, acceptance=PowerOfTwo()
)
GADGET = Application(name="GADGET-2", speed_up=Interpolated(((2, 2.5), (46, 1.0))), minimum=2, maximum=46)
INITIAL = (2, 4, 8)


def jobs_of_month(jobs: int, processors: int, load: float, *, malleable: bool, seed: int = 1) -> Iterator[SimulatedJob]:
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


def month(*, jobs: int = 1_000_000, clusters: int = 100, processors: int = 1000, load: float = 0.7) -> list[Row]:
    """A synthetic month of malleable jobs on many clusters, with EGS (repeated) and PWA.

    Jobs come as a Poisson process whose rate follows the hour of the day. Each is FT-like (powers of two) or
    GADGET-like (any size), starts on 2, 4 or 8 processors and can grow to 32 or 46; its work is exponential, so that
    the mean demand, with all jobs at their maxima, is the load asked for. In the same run, for the ratio, the same jobs
    are simulated as rigid ones: what is left is the cost of malleability.
    """
    models = tuple(ClusterModel(name=f"c{number}", nodes=processors) for number in range(clusters))
    platform = Platform(name="synthetic", clusters=models)
    found = {
        name: simulated(platform, jobs, load, malleable=malleable)
        for name, malleable in (("EGS, PWA", True), ("rigid", False))
    }
    return beside(found, "processor, s", "rigid")


def simulated(platform: Platform, jobs: int, load: float, *, malleable: bool) -> dict[str, float]:
    """Simulate the month and return what it took and what came out."""
    sums = dict.fromkeys(("jobs", "wait", "execution", "area"), 0.0)

    def take(result: JobResult) -> None:
        sums["jobs"] += 1
        sums["wait"] += result.wait
        sums["execution"] += result.execution
        sums["area"] += result.execution * result.average_processors

    approach = Approach.PWA if malleable else Approach.NONE
    workload = jobs_of_month(jobs, platform.processors, load, malleable=malleable)
    settings = Settings(approach=approach, malleability="egs-repeated", timeline=False)
    world = Multicluster(platform, workload, settings, on_end=take)
    gc.collect()
    begin, begin_processor = time.perf_counter(), time.process_time()
    outcome = world.run()
    seconds, used = time.perf_counter() - begin, time.process_time() - begin_processor
    assert sums["jobs"] == jobs
    return {
        "s": seconds,
        "processor, s": used,
        "jobs/s": jobs / seconds,
        "messages": outcome.grow_messages + outcome.shrink_messages,
        "mean wait, s": sums["wait"] / jobs,
        "mean execution, s": sums["execution"] / jobs,
        "utilization": sums["area"] / (platform.processors * outcome.ended_at),
        "peak so far, MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    main(decisions, snapshots, month)

# SPDX-License-Identifier: Apache-2.0
"""How long the scheduler takes to decide, and how that grows with clusters and waiting jobs.

The site is full; its queue holds jobs of one to three components of 1 to 16 processors, some bound to a cluster, some
moldable, of three priorities. Measured is the time of one event, as the median over repetitions; in the same run

- the smallest site of the run (10 clusters, 100 jobs) is the baseline of the ratios, and
- a naive scan that asks the placement policy about every waiting job is what a poll with room is compared with.

Then one poll of a cluster with 100 placeholders, from its listing to the scheduler's answer: alone, and as one of many
clusters with as many placeholders each. The ratio should be 1.

The growth exponent is the slope of log(time) over log(jobs): 0 is no growth, 1 is linear.

    python benchmarks/scheduler.py [--clusters 10,1000] [--jobs 100,1000,10000,100000] [--repeat 15] [--json]
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

from koala_adapter.model import (
    ClusterName,
    Component,
    EndReason,
    Job,
    JobId,
    JobKind,
    LrmJob,
    LrmJobId,
    LrmJobState,
    PlaceholderId,
    TaskEnd,
)
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import SubmitPlaceholders
from koala_adapter.scheduler.claiming.queue import PlacementQueue
from koala_adapter.scheduler.claiming.waiting import place
from koala_adapter.scheduler.context import Context
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from koala_adapter.service.listings import Reconciler, new_holds

if TYPE_CHECKING:
    from koala_adapter.scheduler.actions import Action

PROCESSORS = 64
"""Of each cluster."""
FILLER = 16
"""Processors of each running job: four fill a cluster."""
FEW = 4
"""Processors that come free when there is room."""
NAIVE_MOST = 2000
"""More jobs than these are not asked about one by one; the time is taken to be proportional."""
ON_EACH = 100
"""Placeholders on each cluster while the poll of one is measured."""
WELL = TaskEnd(reason=EndReason.EXITED, exit_code=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Median seconds of single events at one size."""

    clusters: int
    jobs: int
    submit: float
    """A job comes in while nothing is free."""
    poll_full: float
    """A poll shows nothing new while nothing is free."""
    poll_room: float
    """A poll shows room for a few processors, which waiting jobs get."""
    completion: float
    """The last rank of a running job ends, and its placeholders are handed on."""
    release: float
    """A placeholder is gone, and its processor goes to a waiting job."""
    interval: float
    """The interval scan."""
    naive_scan: float
    """Asking the policy about every waiting job, for comparison with ``poll_room``."""


OPERATIONS = ("submit", "poll_full", "poll_room", "completion", "release", "interval")


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


def measured(clusters: int, jobs: int, repeat: int) -> Measured:
    """Measure every operation at one size."""
    site = FullSite(clusters, jobs)
    gc.collect()
    gc.disable()
    try:
        times = {operation: _times(site, operation, repeat) for operation in OPERATIONS}
        naive = _naive(site, jobs)
    finally:
        gc.enable()
    medians = {operation: statistics.median(some) for operation, some in times.items()}
    return Measured(clusters=clusters, jobs=jobs, naive_scan=naive, **medians)


def _times(site: FullSite, operation: str, repeat: int) -> list[float]:
    return [timed(site, _event(site, operation, number)) for number in range(repeat)]


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
    views = dict(context.views())
    begin = time.perf_counter()
    for record in asked:
        place(context, record, views)
    return (time.perf_counter() - begin) * max(1.0, jobs / max(1, len(asked)))


def poll_of_one(clusters: int, repeat: int) -> float:
    """Return the median seconds for all that one poll costs, while so many clusters have placeholders in their queues.

    The collector of garbage, whose work grows with the objects that there are, is switched off.
    """
    site = FullSite(0, 0)
    names = [ClusterName(f"cluster{number}") for number in range(clusters)]
    parameters = tuple(ClusterParameters(name=name, placeholders_in_flight=ON_EACH) for name in names)
    site.post(ev.Configured(time=site.now, parameters=Parameters(), clusters=parameters))
    for name in names:
        site.post(ev.ClusterPolled(time=site.now, cluster=name, processors=ON_EACH, idle=0, ours=0))
    for name in names:
        claimed = site.make(Component(name="c", command=("x",), minimum=ON_EACH, maximum=ON_EACH, cluster=name))
        (submission,) = site.post(ev.JobSubmitted(time=site.now, job=claimed))
        assert isinstance(submission, SubmitPlaceholders)
        ids = tuple(LrmJobId(f"{submission.batch}_{index}") for index in range(1, ON_EACH + 1))
        site.post(ev.BatchSubmitted(time=site.now, batch=submission.batch, lrm_ids=ids))
    site.now += 1.0
    gc.collect()
    gc.disable()
    try:
        return statistics.median(_poll(site, names[number % clusters]) for number in range(repeat))
    finally:
        gc.enable()


def _poll(site: FullSite, name: ClusterName) -> float:
    """Return the seconds for judging a listing that shows nothing new, and for telling the scheduler of it."""
    state, reconciler = site.scheduler.state, Reconciler(cluster=name, user="alice")
    listing = tuple(
        LrmJob(
            id=one.lrm_id or LrmJobId(""),
            name=one.id.batch,
            state=LrmJobState.QUEUED,
            user="alice",
            processors=1,
            array_index=one.id.index,
        )
        for one in state.placeholders.values()
        if one.cluster == name
    )
    begin = time.perf_counter()
    reconciler.examine(
        state, listing, read_at=site.now, now=site.now, in_contact=lambda _: False, settled=lambda _: True
    )
    new_holds(state, name, listing, now=site.now, told=True)
    site.post(ev.ClusterPolled(time=site.now, cluster=name, processors=ON_EACH, idle=0, ours=0))
    return time.perf_counter() - begin


def exponent(points: list[tuple[int, float]]) -> float:
    """Return the slope of log(time) over log(size) by least squares."""
    xs = [math.log(size) for size, _ in points]
    ys = [math.log(seconds) for _, seconds in points]
    middle = statistics.fmean(xs)
    spread = sum((x - middle) ** 2 for x in xs)
    return sum((x - middle) * y for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0


def growth(results: list[Measured]) -> dict[str, dict[str, float]]:
    """Return the growth exponent of each operation over the number of jobs, for each number of clusters."""
    found: dict[str, dict[str, float]] = {}
    for clusters in sorted({one.clusters for one in results}):
        some = [one for one in results if one.clusters == clusters]
        if len(some) > 1:
            found[str(clusters)] = {
                operation: exponent([(one.jobs, getattr(one, operation)) for one in some])
                for operation in (*OPERATIONS, "naive_scan")
            }
    return found


def shown(results: list[Measured]) -> None:
    """Print the tables."""
    base = results[0]
    columns = (*OPERATIONS, "naive_scan")
    print("milliseconds of one event (and ratio to the first line)")
    print(f"{'clusters':>8} {'jobs':>7}", *(f"{name:>16}" for name in columns))
    for one in results:
        cells = [f"{getattr(one, c) * 1e3:8.3f} {getattr(one, c) / getattr(base, c):6.1f}x" for c in columns]
        print(f"{one.clusters:>8} {one.jobs:>7}", *(f"{cell:>16}" for cell in cells))
    print("growth exponent over the number of jobs")
    for clusters, exponents in growth(results).items():
        print(f"{clusters:>8} {'':>7}", *(f"{exponents[c]:16.2f}" for c in columns))


def main() -> None:
    """Measure all sizes and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clusters", default="10,1000")
    parser.add_argument("--jobs", default="100,1000,10000,100000")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--poll-clusters", type=int, default=1000, help="clusters beside the one that is polled")
    given = parser.parse_args()
    clusters, jobs = ([int(one) for one in text.split(",")] for text in (given.clusters, given.jobs))
    results = [measured(many, waiting, given.repeat) for many in clusters for waiting in jobs]
    alone, among = poll_of_one(1, 51), poll_of_one(given.poll_clusters, 51)
    if given.json:
        polls = {"alone": alone, "among": among, "clusters": given.poll_clusters, "ratio": among / alone}
        found = {"results": [asdict(one) for one in results], "growth": growth(results), "poll": polls}
        print(json.dumps(found, indent=2))
    else:
        shown(results)
        print(f"milliseconds of one poll of a cluster with {ON_EACH} placeholders, from its listing to the answer")
        print(f"alone {alone * 1e3:.3f}, among {given.poll_clusters} such clusters {among * 1e3:.3f}:", end=" ")
        print(f"ratio {among / alone:.2f}")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""The queue of one cluster: EASY on whole traces, all policies pass by pass, and looks of ``koala schedule``.

    python -m benchmarks.queues easy [TRACE...] [--repeat 3]
    python -m benchmarks.queues passes
    python -m benchmarks.queues looks [--waiting 10000] [--running 2000] [--repeat 5]

Traces are the files named, else those in ``../shared/traces``, else a generated workload (Lublin and Feitelson). All
seconds are of processor time, so that other work on the machine counts less.
"""

from __future__ import annotations

import gc
import random
import statistics
from bisect import bisect_left, insort
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from benchmarks.common import ROOT, Row, growth, least, main, processor_seconds
from koala_adapter.lrm.listing import Listing
from koala_adapter.lrm.starts import Starts
from koala_adapter.model import HoldOwner, LrmJob, LrmJobId, LrmJobState, Node, NodeState, Queue
from koala_adapter.ordering.jobs import Rules
from koala_adapter.ordering.mirror import Mirror
from koala_adapter.ordering.passes import MisfitRules, decide
from koala_adapter.queueing.backfill import POLICIES, LocalJob, make_cluster_scheduler
from koala_adapter.simulation.models import lublin
from koala_adapter.simulation.replay import Policy, Site, replay
from koala_adapter.simulation.workload import NEEDED, read_trace, workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from koala_adapter.queueing.backfill import ClusterScheduler
    from koala_adapter.simulation.workload import Workload

# -- Whole traces --------------------------------------------------------------------------------------------

TRACES = ROOT.parent / "shared" / "traces"
VARIANTS = (
    Policy(name="fcfs"),
    Policy(name="metacluster"),
    Policy(name="easy"),
    Policy(name="firstfit", depth=10),
    Policy(name="bestfit", metric="processor-seconds"),
    Policy(name="greedy"),
    Policy(name="greedy", metric="processor-seconds"),
    Policy(name="conservative"),
)


def easy(*traces: Path, repeat: int = 3) -> list[Row]:
    """EASY beside a bare loop on whole traces, in jobs per second.

    Each trace is played by ``plain_easy`` and by EASY through the public interface, as ``koala simulate``
    does it, without reading the file; the schedules must be the same, and the best of each counts. The goal is half the
    speed of the bare loop.
    """
    rows: list[Row] = []
    for jobs in workloads(traces):
        site = machine(jobs)
        columns = (jobs.submits, jobs.runs, jobs.sizes, jobs.estimates)
        ways: dict[str, Callable[[], object]] = {
            "bare": partial(plain_easy, *columns, site.processors),
            "easy": partial(replay, jobs, Policy(name="easy"), [site]),
        }
        assert list(replay(jobs, Policy(name="easy"), [site]).starts) == ways["bare"]()
        times = least({name: partial(collected_seconds, way) for name, way in ways.items()}, repeat)
        bare, ours = (len(jobs) / seconds for seconds in times.values())
        rows.append({"trace": jobs.name, "jobs": len(jobs), "bare, jobs/s": bare, "easy, jobs/s": ours,
                     "ratio": ours / bare})  # fmt: skip
    return rows


# EASY backfill as one bare loop: no classes, no options, nothing that can be asked. The bar for the real one. All
# events of one instant first, then one pass; the shadow time counts every estimated end up to and including it;
# candidates in the order of the queue. The same schedule as ``koala simulate --policy easy``, to the second.


def plain_easy(  # noqa: C901, PLR0912, PLR0915 - one bare loop is the point
    submits: Sequence[float],
    runs: Sequence[float],
    sizes: Sequence[int],
    estimates: Sequence[float],
    processors: int,
) -> list[float]:
    """Return the start of each job; jobs are in order of submission."""
    starts = [0.0] * len(submits)
    free = processors
    queue: list[int] = []
    ends: list[tuple[float, int]] = []
    expected: list[tuple[float, int]] = []
    arrivals = [*submits, inf]
    to_come = 0
    arrival = arrivals[0]
    smallest = asked = extra = 0
    shadow = -inf
    came_free = False
    while ends or arrival < inf:
        now = ends[0][0] if ends and ends[0][0] < arrival else arrival
        while ends and ends[0][0] == now:
            job = heappop(ends)[1]
            size = sizes[job]
            free += size
            came_free = True
            del expected[bisect_left(expected, (starts[job] + estimates[job], size))]
        while arrival == now:
            if not queue or sizes[to_come] < smallest:
                smallest = sizes[to_come]
            queue.append(to_come)
            to_come += 1
            arrival = arrivals[to_come]
        if not queue or free < smallest:
            continue
        first = 0
        for job in queue:
            size = sizes[job]
            if size > free:
                break
            first += 1
            free -= size
            starts[job] = now
            heappush(ends, (now + runs[job], job))
            insort(expected, (now + estimates[job], size))
        if first:
            del queue[:first]
        if not queue:
            shadow = -inf
            continue
        if first or came_free or now > shadow:
            head = sizes[queue[0]]
            shadow = inf
            extra = free - head
            for end, size in expected:
                if end > shadow:
                    break
                extra += size
                if extra >= 0:
                    shadow = end
            came_free = False
            asked = 1
            smallest = head
        overtaking = []
        for job in islice(queue, asked, None):
            size = sizes[job]
            if size <= free and (size <= extra or now + estimates[job] <= shadow):
                end = now + estimates[job]
                if end > shadow:
                    extra -= size
                free -= size
                starts[job] = now
                heappush(ends, (now + runs[job], job))
                insort(expected, (end, size))
                overtaking.append(job)
                if not free:
                    smallest = 1
                    break
            elif size < smallest:
                smallest = size
        for job in overtaking:
            del queue[bisect_left(queue, job)]
        asked = len(queue)
    return starts


def label(policy: Policy) -> str:
    """Return what a policy is called in the tables."""
    extra = f" depth {policy.depth}" if policy.depth > 1 else ""
    return policy.name + extra + (f" {policy.metric}" if policy.metric != "processors" else "")


def collected_seconds(action: Callable[[], object]) -> float:
    """Return the processor time of an action, which does not begin with the garbage of others."""
    gc.collect()
    return processor_seconds(action)


def workloads(paths: Sequence[Path]) -> Iterator[Workload]:
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


# -- Single passes -------------------------------------------------------------------------------------------

QUEUES = (100, 1000, 10_000)
RUNNING = 2000
IDLE = 256
"""Processors that are idle before the first pass; the head of the queue needs half the cluster."""
PASSES = 10


def passes() -> list[Row]:
    """One pass as ``koala schedule`` makes it, with 2,000 running jobs, in milliseconds by length of the queue.

    *First*: all is new. *Later*: the median of ten passes with three ended and three new jobs before each. The growth
    is the slope of log(time) over log(queue): 0 is none, 1 is linear. The goal is 0.2 s with 10,000.
    """
    rows: list[Row] = []
    for policy in VARIANTS:
        row: dict[str, str | float] = {"policy": label(policy)}
        points = []
        for waiting in QUEUES:
            cluster = FullCluster(policy, waiting)
            row[f"{waiting} first"] = 1000 * collected_seconds(cluster.first)
            points.append((waiting, statistics.median(cluster.later() for _ in range(PASSES))))
            row[f"{waiting} later"] = 1000 * points[-1][1]
        rows.append({**row, "growth": growth(points)})
    return rows


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
        return collected_seconds(self.first)


# -- Looks of ``koala schedule`` ------------------------------------------------------------------------------

SEED = 1
NODE = 16
"""Processors of a node."""


def looks(*, waiting: int = 10_000, running: int = 2000, repeat: int = 5) -> list[Row]:
    """A look of ``koala schedule`` at a long queue under each policy, in seconds.

    A look is what follows a listing in which one job has ended and one has come: comparing it with the picture, and
    deciding, nodes included. Listing and starting are the batch system's, and are not in it. The goal is 0.2 s.
    """
    return [look(policy, waiting=waiting, running=running, repeat=repeat) for policy in POLICIES]


def site(waiting: int, running: int, chance: random.Random) -> tuple[list[LrmJob], list[Node]]:
    """Return jobs and nodes: what runs fills the nodes but for a few processors, what waits is of all sizes."""
    sizes = [chance.choice([1, 1, 2, 4, 8, 16]) for _ in range(running)]
    count = -(-sum(sizes) // NODE) * 3 // 2 + 4
    nodes = [
        Node(name=f"n{n}", state=NodeState.UP, processors=NODE, processors_used=0, queues=("main",), memory_mib=64_000)
        for n in range(count)
    ]
    free = [NODE] * count
    jobs = []
    at = 0
    for number, size in enumerate(sizes):
        while free[at] < size:
            at += 1
        free[at] -= size
        jobs.append(
            replace(
                waiting_job(number, size, chance),
                state=LrmJobState.RUNNING,
                hold=None,
                started_at=1e9 - chance.randrange(3600),
                layout=((f"n{at}", size),),
                nodes=(f"n{at}",),
            )
        )
    jobs += [waiting_job(running + n, chance.choice([1, 2, 8, 16, 32, 64, 128]), chance) for n in range(waiting)]
    used = [NODE - left for left in free]
    return jobs, [replace(node, processors_used=count) for node, count in zip(nodes, used, strict=True)]


def waiting_job(number: int, processors: int, chance: random.Random) -> LrmJob:
    """Return a job in hold."""
    return LrmJob(
        id=LrmJobId(str(number)),
        name=f"job{number}",
        state=LrmJobState.HELD,
        hold=HoldOwner.OPERATOR,
        user=f"u{chance.randrange(50)}",
        processors=processors,
        queue="main",
        walltime=chance.choice([3600, 7200, 14_400, 86_400]),
        submitted_at=1e9 - 100_000 + number,
    )


def look(policy: str, *, waiting: int, running: int, repeat: int) -> Row:
    """Return what the first look costs, a later one in all and of it the deciding, and the jobs that were started."""
    chance = random.Random(SEED)
    jobs, nodes = site(waiting, running, chance)
    queues = {"main": Queue(name="main", up=True, processors=NODE * len(nodes), default=True)}
    mirror = Mirror(lambda: make_cluster_scheduler(policy, 0, depth=4), Rules(), Starts())
    rules = MisfitRules.of(policy, 4)
    started = 0

    def deciding(at: float) -> None:
        nonlocal started
        started += len(decide(mirror, rules, at))

    def listed(at: float) -> tuple[float, float]:
        listing = Listing(read_at=at, jobs=tuple(map(replace, jobs)), nodes=tuple(nodes), queues=queues)
        return processor_seconds(lambda: mirror.observe(listing)), processor_seconds(lambda: deciding(at))

    first = sum(listed(1e9))
    later = []
    for turn in range(1, repeat + 1):
        gone = jobs.pop(0)
        nodes = [replace(n, processors_used=n.processors_used - gone.processors) if n.name == gone.nodes[0] else n
                 for n in nodes]  # fmt: skip
        jobs.append(waiting_job(100_000 + turn, 4, chance))
        later.append(listed(1e9 + turn))
    return {
        "policy": policy,
        "first, s": first,
        "later, s": statistics.median(map(sum, later)),
        "deciding, s": statistics.median(decided for _, decided in later),
        "started": started,
    }


if __name__ == "__main__":
    main(easy, passes, looks)

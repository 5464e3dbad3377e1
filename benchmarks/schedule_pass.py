# SPDX-License-Identifier: Apache-2.0
"""One scheduling pass of ``koala schedule`` over a long queue, for each policy: 10,000 waiting, 2,000 running jobs.

    python benchmarks/schedule_pass.py [--waiting 10000] [--running 2000] [--repeat 5]

A pass is what follows a listing in which one job has ended and one has come: comparing it with the picture, and
deciding, nodes included, in seconds of processor time. Listing and starting are the batch system's, and are not in it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import replace

from koala_adapter.lrm.listing import Listing
from koala_adapter.lrm.starts import Starts
from koala_adapter.model import HoldOwner, LrmJob, LrmJobId, LrmJobState, Node, NodeState, Queue
from koala_adapter.ordering.jobs import Rules
from koala_adapter.ordering.mirror import Mirror
from koala_adapter.ordering.passes import MisfitRules, decide
from koala_adapter.queueing.backfill import POLICIES, make_cluster_scheduler

SEED = 1
NODE = 16
GOAL = 0.2


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


def measure(policy: str, *, waiting: int, running: int, repeat: int) -> tuple[float, float, float, int]:
    """Return CPU seconds: of the first listing, of a pass in all (median), of it the deciding; and the jobs started."""
    chance = random.Random(SEED)
    jobs, nodes = site(waiting, running, chance)
    queues = {"main": Queue(name="main", up=True, processors=NODE * len(nodes), default=True)}
    mirror = Mirror(lambda: make_cluster_scheduler(policy, 0, depth=4), Rules(), Starts())
    misfit_rules = MisfitRules.of(policy, 4)
    begun = time.process_time()
    mirror.observe(Listing(read_at=1e9, jobs=tuple(jobs), nodes=tuple(nodes), queues=queues))
    started = len(decide(mirror, misfit_rules, 1e9))
    first = time.process_time() - begun
    whole, deciding = [], []
    for turn in range(1, repeat + 1):
        gone = jobs.pop(0)
        nodes = [replace(n, processors_used=n.processors_used - gone.processors) if n.name == gone.nodes[0] else n
                 for n in nodes]  # fmt: skip
        jobs.append(waiting_job(100_000 + turn, 4, chance))
        listing = Listing(
            read_at=1e9 + turn, jobs=tuple(replace(job) for job in jobs), nodes=tuple(nodes), queues=queues
        )
        begun = time.process_time()
        mirror.observe(listing)
        seen = time.process_time()
        started += len(decide(mirror, misfit_rules, 1e9 + turn))
        ended = time.process_time()
        whole.append(ended - begun)
        deciding.append(ended - seen)
    return first, statistics.median(whole), statistics.median(deciding), started


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--running", type=int, default=2_000)
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    print(f"{given.waiting} waiting, {given.running} running; goal {GOAL} s a pass")
    print(f"{'policy':<14}{'first listing':>14}{'pass':>10}{'deciding':>10}{'started':>9}")
    for policy in POLICIES:
        first, whole, deciding, started = measure(
            policy, waiting=given.waiting, running=given.running, repeat=given.repeat
        )
        print(f"{policy:<14}{first:>12.3f} s{whole:>8.3f} s{deciding:>8.3f} s{started:>9}")


if __name__ == "__main__":
    main()

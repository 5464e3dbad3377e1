# SPDX-License-Identifier: Apache-2.0
"""Laws of the live scheduler on random queues: no node is exceeded, nobody starves, every promise is kept."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.ordering.jobs import JobEventKind
from koala_adapter.queueing.backfill import POLICIES
from tests.examples import examples
from tests.unit.ordering.ordering_site import Listed

if TYPE_CHECKING:
    from collections.abc import Callable

NODES, EACH = 4, 8
LONGEST = 4000


def wishes(chance: random.Random, processors: int) -> dict[str, Any]:
    """Return what a job insists on besides, often nothing."""
    some: list[Callable[[], dict[str, Any]]] = [
        dict,
        dict,
        lambda: {"nodes_wanted": chance.randint(max(1, -(-processors // EACH)), min(NODES, processors))},
        lambda: {"requested_nodes": (f"n{chance.randint(1, NODES)}",)},
        lambda: {"tasks_per_node": max(1, -(-processors // NODES))},
    ]
    return chance.choice(some)()


class Life:
    """A batch system whose jobs come, run for less than they may, and end."""

    def __init__(self, policy: str, seed: int, *, jobs: int, choosy: bool) -> None:
        self.chance = random.Random(seed)
        self.site = Listed(policy)
        self.run_times: dict[str, int] = {}
        self.started: dict[str, float] = {}
        for number in range(jobs):
            processors = self.chance.choice([1, 2, 3, 5, 8, 12, 16, 24, 32])
            walltime = self.chance.randint(2, 60)
            job_id = str(number)
            more = wishes(self.chance, processors) if choosy else {}
            submitted_at = self.site.now + number / 1000
            self.site.submit(job_id, processors, walltime, submitted_at=submitted_at, **more)
            self.run_times[job_id] = self.chance.randint(1, walltime)

    def step(self) -> None:
        """Let one second pass: jobs end, others start, and the nodes are counted."""
        ending = [id_ for id_, at in self.started.items() if self.site.now + 1 >= at + self.run_times[id_]]
        for job_id in ending:
            del self.started[job_id]
        self.site.end(*ending)
        for job_id in self.site.step():
            assert job_id not in self.started
            self.started[job_id] = self.site.now
        used = Counter[str]()
        for job in self.site.jobs.values():
            for name, count in job.layout:
                used[name] += count
            assert not job.layout or sum(count for _, count in job.layout) == job.processors
        assert all(count <= EACH for count in used.values()), used

    def run(self) -> None:
        """Go on until all jobs are over."""
        for _ in range(LONGEST):
            if not self.site.jobs:
                return
            self.step()
        raise AssertionError(f"still there after {LONGEST} s: {self.site.jobs}")


@pytest.mark.parametrize("policy", POLICIES)
@examples(6)
@given(st.integers(0, 2**32), st.booleans())
def test_every_queue_runs_to_its_end(policy: str, seed: int, choosy: bool) -> None:  # noqa: FBT001 - drawn
    """On no node are ever more processors held than there are, each job starts once, with what it asked for."""
    life = Life(policy, seed, jobs=25, choosy=choosy)
    life.run()
    starts = [one.job_id for one in life.site.told(JobEventKind.START)]
    assert sorted(starts) == sorted(life.run_times)


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative", "firstfit", "bestfit", "greedy", "metacluster"])
@examples(6)
@given(st.integers(0, 2**32))
def test_every_promise_is_kept(policy: str, seed: int) -> None:
    """A job for which a start was reserved never starts later than that, whoever overtook it."""
    life = Life(policy, seed, jobs=25, choosy=False)
    life.run()
    promised = {one.job_id: one.at for one in life.site.told(JobEventKind.RESERVED)}
    started = {one.job_id: one.time for one in life.site.told(JobEventKind.START)}
    assert promised
    for job_id, at in promised.items():
        # Time passes in steps of one second here.
        assert at is not None
        assert started[job_id] <= at + 1

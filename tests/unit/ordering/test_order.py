# SPDX-License-Identifier: Apache-2.0
"""Jobs wait in the order of their submission, whatever the order and the listing in which a batch system shows them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.lrm.listing import Listing
from koala_adapter.lrm.starts import Starts
from koala_adapter.model import LrmJob, LrmJobId, LrmJobState
from koala_adapter.ordering.jobs import Rules
from koala_adapter.ordering.mirror import Mirror
from koala_adapter.ordering.shadow import Shadow
from koala_adapter.queueing.backfill import POLICIES, make_cluster_scheduler
from koala_adapter.queueing.queue import PriorityWeights
from tests.unit.ordering.ordering_site import Listed, node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.queueing.queue import ClusterScheduler

IDS = (
    ("8", "9", "10", "11", "100"),
    ("7", "12_2", "12_3", "12_10", "13"),
    ("7", "12.2", "12.3", "12.10", "13"),
    ("7", "12+0", "12+1", "12+10", "13"),
    ("9.server", "12[2].server", "12[10].server", "13.server", "100.server"),
)
"""Ids of Slurm (arrays, heterogeneous jobs), Grid Engine and others, as each of them counts."""

WEIGHTS = (
    PriorityWeights(),
    PriorityWeights(queue_time=0.0, processors=-10.0),
    PriorityWeights(queue_time=1.0, share=7200.0),
)


def listed(id_: str, submitted_at: float, state: LrmJobState) -> LrmJob:
    """Return a job that needs the whole of a small cluster."""
    site = Listed()
    site.submit(id_, 8, submitted_at=submitted_at, state=state)
    return site.jobs[id_]


@st.composite
def showings(draw: st.DrawFn) -> tuple[list[str], list[list[tuple[str, float]]]]:
    """Return ids in the order due, and the listings taken at one time in which they are shown, each in any order."""
    ids = draw(st.sampled_from(IDS))
    later = draw(st.integers(0, len(ids)))
    jobs = [(id_, 999.0 + (number >= later)) for number, id_ in enumerate(ids)]
    first_in = {id_: draw(st.integers(0, 2)) for id_ in ids}
    listings = [draw(st.permutations([job for job in jobs if first_in[job[0]] <= number])) for number in range(3)]
    return list(ids), [list(listing) for listing in listings]


def scheduler_of(policy: str, weights: PriorityWeights) -> ClusterScheduler:
    """Return a policy of a cluster without processors."""
    return make_cluster_scheduler(policy, 0, weights=weights)


@pytest.mark.parametrize("policy", POLICIES)
@given(shown=showings(), weights=st.sampled_from(WEIGHTS))
def test_any_listing_leads_to_the_same_order(
    policy: str, shown: tuple[Sequence[str], Sequence[Sequence[tuple[str, float]]]], weights: PriorityWeights
) -> None:
    """Any permutation, split over any listings taken at one time: the oldest first, then as the LRM counts."""
    ids, listings = shown
    mirror = Mirror(lambda: scheduler_of(policy, weights), Rules(), Starts())
    shadow = Shadow(lambda: scheduler_of(policy, weights), Rules(shadow=True))
    nodes = (node("n1", 8),)
    shadow.observe(Listing(read_at=990.0, jobs=(), nodes=nodes, queues={}))
    blocker = replace(
        listed("1", 980.0, LrmJobState.RUNNING), started_at=985.0, layout=(("n1", 8),), nodes=("n1",), hold=None
    )
    for listing in listings:
        held = tuple(listed(id_, at, LrmJobState.HELD) for id_, at in listing)
        mirror.observe(Listing(read_at=1000.0, jobs=(*held, blocker), nodes=nodes, queues={}))
        queued = tuple(listed(id_, at, LrmJobState.QUEUED) for id_, at in listing)
        shadow.observe(Listing(read_at=1000.0, jobs=queued, nodes=nodes, queues={}))
    (scheduler,) = mirror.schedulers
    scheduler.schedule(1000.0)
    assert [local.id for local in scheduler.waiting] == list(ids)
    later = listed("1000", 1990.0, LrmJobState.QUEUED)
    shadow.observe(Listing(read_at=2000.0, jobs=(*queued, later), nodes=nodes, queues={}))
    starts = {one.ours: one.job_id for one in shadow.report().first_earlier}
    assert [starts[at] for at in sorted(at for at in starts if at is not None)] == [*ids, later.id]


@pytest.mark.parametrize("policy", POLICIES)
def test_jobs_of_one_second_start_by_their_numbers(policy: str) -> None:
    """Slurm lists the newest first; those that come later are sorted in the same way as those of the first look."""
    site = Listed(policy)
    site.submit("1", 32, 10)
    assert site.step() == ["1"]
    submitted = site.now
    for number in range(12, 7, -1):
        site.submit(str(number), 32, 10, submitted_at=submitted)
    site.step()
    started: list[str] = []
    while site.jobs:
        for id_ in [id_ for id_, job in site.jobs.items() if job.state is LrmJobState.RUNNING]:
            site.end(id_)
        started += site.step()
    assert started == ["8", "9", "10", "11", "12"]


def test_ids_are_no_more_than_told() -> None:
    """The same number written in two ways is still one order."""
    jobs = [replace(listed("7", 1.0, LrmJobState.HELD), id=LrmJobId(id_)) for id_ in ("7", "07", "007")]
    orders = set()
    for shown in (jobs, jobs[::-1]):
        mirror = Mirror(lambda: make_cluster_scheduler("fcfs", 0), Rules(), Starts())
        mirror.observe(Listing(read_at=2.0, jobs=tuple(shown), nodes=(node("n1", 8),), queues={}))
        orders.add(tuple(local.id for local in mirror.schedulers[0].waiting))
    assert len(orders) == 1

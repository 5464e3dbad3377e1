# SPDX-License-Identifier: Apache-2.0
"""Flexible components in the scheduler: claimed in pieces, launched as one, placed again piece by piece."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from koala_adapter.model import ClusterName, EndReason, Job
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import LaunchJob
from koala_adapter.scheduler.explain import explain
from koala_adapter.scheduler.parameters import Parameters
from tests.unit.scheduler.scheduler_site import A, B, Site, component, copied, job, launches, of_kind, submissions

FLEXIBLE = "flexible-cluster-minimization"
PARAMETERS = Parameters(placeholder_life=500.0, backoff=50.0)


def flexible_job(id_: str, size: int, maximum: int | None = None, *, placement: str = FLEXIBLE, **more: int) -> Job:
    """Return a job of one component that may be split."""
    return job(id_, replace(component("x", size, maximum), flexible=True), placement=placement, **more)


def claims(site: Site, id_: str = "1") -> list[tuple[str | None, int, int | None]]:
    """Return cluster, processors and piece of each claim."""
    return [(claim.cluster, claim.processors, claim.piece) for claim in site.record(id_).claims]


def test_pieces_are_claimed_on_their_clusters() -> None:
    """9 processors on two clusters of 6: 6 and 3, one submission each."""
    site = Site({"a": 6, "b": 6})
    assert submissions(site.submit(flexible_job("1", 9))) == {"a": 6, "b": 3}
    assert claims(site) == [("a", 6, 6), ("b", 3, 3)]


def test_ranks_are_numbered_through_the_pieces() -> None:
    """To the program it is one component: component ranks 0 to 8, each with its cluster."""
    site = Site({"a": 6, "b": 6})
    site.submit(flexible_job("1", 9))
    site.take_all()
    (launch,) = of_kind(LaunchJob, site.hold_all("1"))
    assert [rank.component_rank for rank in launch.ranks] == list(range(9))
    assert Counter(rank.cluster for rank in launch.ranks) == {"a": 6, "b": 3}
    assert {rank.component for rank in launch.ranks} == {"x"}
    site.complete("1")
    assert site.outcome("1").state is JobState.COMPLETED


def test_small_flexible_job_is_one_claim() -> None:
    """Where one cluster holds it there are no pieces."""
    site = Site({"a": 6, "b": 6})
    site.submit(flexible_job("1", 5))
    assert claims(site) == [("a", 5, None)]


def test_only_the_piece_that_failed_is_placed_again() -> None:
    """The piece on b is lost and goes to c; the one on a stays (incremental claiming)."""
    site = Site({"a": 6, "b": 4, "c": 3}, PARAMETERS)
    site.submit(flexible_job("1", 9))
    site.take_all()
    site.hold_all("1", "a")
    kept = [p.id for p in site.claimed("1") if p.cluster == A]
    for placeholder in site.claimed("1"):
        if placeholder.cluster == B:
            site.ended(placeholder.id, EndReason.NODE_LOST)
    site.post(ev.ClusterUnavailable(time=site.now, cluster=B, reason="down"))
    assert submissions(site.pass_time(100.0)) == {"c": 3}
    assert claims(site) == [("a", 6, 6), ("c", 3, 3)]
    assert [p.id for p in site.claimed("1") if p.cluster == A] == kept


def test_a_piece_may_be_split_again() -> None:
    """The lost piece of 4 goes to two clusters of 2."""
    site = Site({"a": 6, "b": 4, "c": 2, "d": 2}, PARAMETERS)
    site.submit(flexible_job("1", 10))
    site.take_all()
    site.hold_all("1", "a")
    for placeholder in site.claimed("1"):
        if placeholder.cluster == B:
            site.ended(placeholder.id, EndReason.NODE_LOST)
    site.post(ev.ClusterUnavailable(time=site.now, cluster=B, reason="down"))
    assert submissions(site.pass_time(100.0)) == {"c": 2, "d": 2}
    assert claims(site) == [("a", 6, 6), ("c", 2, 2), ("d", 2, 2)]
    site.take_all()
    assert launches(site.hold_all("1")) == ["1"]


def test_lost_pieces_are_explained_as_one() -> None:
    """Two pieces that are lost and cannot be had again now are one need, in its full size."""
    site = Site({"a": 6, "b": 2, "c": 2}, PARAMETERS)
    site.submit(flexible_job("1", 10))
    site.take_all()
    site.hold_all("1", "a")
    for placeholder in site.claimed("1"):
        if placeholder.cluster != A:
            site.ended(placeholder.id, EndReason.NODE_LOST)
    for name in (B, ClusterName("c")):
        site.post(ev.ClusterUnavailable(time=site.now, cluster=name, reason="down"))
    site.pass_time(100.0)
    assert claims(site) == [("a", 6, 6), (None, 0, 4)]
    said = explain(site.state, None, site.record("1"), site.now)
    assert said.startswith("The job holds 6 of 10 processors (6 of 6 on a, 0 of 4 on no cluster yet for 'x')")


def test_pieces_are_one_component_again_in_the_queue() -> None:
    """A job that lost everything is placed anew as a whole: now on one cluster."""
    site = Site({"a": 6, "b": 4}, PARAMETERS)
    site.submit(flexible_job("1", 9))
    site.take_all()
    for placeholder in site.claimed("1"):
        site.ended(placeholder.id, EndReason.NODE_LOST)
    assert site.record("1").state is JobState.WAITING
    assert claims(site) == [(None, 0, None)]
    site.poll("b", 12)
    site.pass_time(100.0)
    assert claims(site) == [("b", 9, None)]


def test_refusal_of_one_piece_excludes_that_cluster_for_it() -> None:
    """A cluster that refuses a piece gets none again; what is placed elsewhere stays."""
    site = Site({"a": 6, "b": 5, "c": 4}, PARAMETERS)
    site.submit(flexible_job("1", 9))
    refused = next(batch.key for batch in site.state.batches.values() if batch.cluster == B)
    done = site.post(ev.BatchRejected(time=site.now, batch=refused, reason="no account"))
    done += site.pass_time(2.0)
    assert submissions(done) == {"c": 3}
    assert claims(site) == [("a", 6, 6), ("c", 3, 3)]


def test_moldable_pieces_keep_their_share_of_the_minimum() -> None:
    """7 to 10 on 6 and 5: claimed 6 and 4, of which the second piece needs 1."""
    site = Site({"a": 6, "b": 5})
    site.submit(flexible_job("1", 7, 10))
    assert claims(site) == [("a", 6, 6), ("b", 4, 1)]


def test_large_flexible_job_waits_for_the_sum() -> None:
    """Larger than any cluster and more than what is free: it waits, and starts as soon as the sum suffices."""
    site = Site({"a": 6, "b": 6})
    site.submit(job("small", component("y", 4, cluster="a")))
    site.run("small")
    site.submit(flexible_job("1", 9))
    assert site.record("1").state is JobState.WAITING
    site.complete("small")
    site.end_ending()
    assert claims(site) == [("b", 6, 6), ("a", 3, 3)]


def test_waiting_flexible_job_is_explained() -> None:
    """All clusters count for it, also those that are smaller than it is."""
    site = Site({"a": 6, "b": 6})
    site.submit(job("small", component("y", 4, cluster="a")))
    site.submit(flexible_job("1", 9))
    assert explain(site.state, 1, site.record("1"), site.now) == (
        "The job is number 1 in the queue and needs 9 processors on one or more clusters. "
        "It starts when that can be had at once: a has room for 2; b has room for 6."
    )


def test_policy_that_does_not_split_keeps_it_whole() -> None:
    """The same job under worst fit needs one cluster for all."""
    site = Site({"a": 6, "b": 12})
    site.submit(flexible_job("1", 9, placement="worst-fit"))
    assert claims(site) == [("b", 9, None)]
    site.submit(flexible_job("2", 13, placement="worst-fit"))
    assert site.record("2").state is JobState.REFUSED
    assert site.outcome("2").detail.endswith("at most 12 can be used there); its placement policy splits no components")


def test_pieces_survive_a_snapshot() -> None:
    """A restart in the middle goes on with the same pieces."""
    site = Site({"a": 6, "b": 6})
    site.submit(flexible_job("1", 9))
    site.scheduler = Scheduler(copied(site.state))
    site.take_all()
    assert launches(site.hold_all("1")) == ["1"]

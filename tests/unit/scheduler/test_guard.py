# SPDX-License-Identifier: Apache-2.0
"""A large job is not passed for ever by small ones that came later."""

from __future__ import annotations

from koala_adapter.model import ClusterName
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.parameters import Parameters
from tests.unit.scheduler.scheduler_site import A, B, Site, component, job, launches

GUARD = Parameters(guard_scans=4, scan_interval=15.0, maximum_tries=100_000)


def stream(site: Site, *, seconds: float, prefix: str = "small", priority: int = 0) -> None:
    """Let time pass while there is always a small job waiting and each runs for 20 s, one ending every 10 s."""
    number = 0
    started: list[tuple[float, str]] = []
    end = site.now + seconds
    while site.now < end:
        site.submit(job(f"{prefix}{site.now}-{number}", 1, submitted_at=site.now, priority=priority, walltime=60))
        number += 1
        for record in list(site.state.jobs.values()):
            if record.state is JobState.CLAIMING:
                site.take_all()
                site.hold_all(record.job.id)
            if record.state is JobState.LAUNCHING and not any(id_ == record.job.id for _, id_ in started):
                started.append((site.now + 20, record.job.id))
        for at, id_ in list(started):
            if at <= site.now and id_ != "large":
                site.complete(id_)
                started.remove((at, id_))
        site.end_ending()
        site.pass_time(10.0)


def test_large_job_starves_without_the_guard() -> None:
    """The workload is such that the large job would wait for as long as small ones come."""
    site = Site({"a": 2}, Parameters(guard_scans=10**9, maximum_tries=10**6))
    stream(site, seconds=60.0)
    site.submit(job("large", 2, submitted_at=site.now))
    stream(site, seconds=3000.0)
    assert site.record("large").state is JobState.WAITING


def test_large_job_starts_soon_with_the_guard() -> None:
    """After some scans what comes free is kept, until it is enough."""
    site = Site({"a": 2}, GUARD)
    stream(site, seconds=60.0)
    site.submit(job("large", 2, submitted_at=site.now))
    stream(site, seconds=200.0)
    assert "large" in launches(site.actions)


def test_later_jobs_leave_the_room_alone() -> None:
    """The cluster that is kept gets nothing of a later job; another cluster does."""
    site = Site({"a": 4, "b": 2}, GUARD)
    site.submit(job("long", component("x", 2, cluster="a")))
    site.submit(job("large", component("x", 4, cluster="a")))
    site.pass_time(100.0)
    assert site.state.guarded == "large"
    assert site.state.kept_room == {A: 4}
    site.submit(job("free", 2, submitted_at=5.0))
    assert site.placed("free") == {"c0": (B, 2)}
    site.submit(job("bound", component("x", 1, cluster="a"), submitted_at=6.0))
    assert site.record("bound").state is JobState.WAITING
    site.run("long")
    site.complete("long")
    site.end_ending()
    assert site.placed("large") == {"x": (A, 4)}
    assert site.state.guarded is None


def test_jobs_before_it_are_not_held_up() -> None:
    """A job of higher priority takes the room, guard or not."""
    site = Site({"a": 4}, GUARD)
    site.submit(job("long", 2))
    site.submit(job("large", 4))
    site.pass_time(100.0)
    assert site.state.guarded == "large"
    site.submit(job("urgent", 2, priority=1))
    assert site.record("urgent").state is JobState.CLAIMING


def test_handed_on_placeholders_respect_the_guard() -> None:
    """A completed job's processors are not handed to a later job where they are kept for the guarded one."""
    for guarded in (True, False):
        site = Site({"a": 4}, GUARD if guarded else Parameters())
        site.submit(job("long", 2))
        site.submit(job("other", 2))
        site.submit(job("large", 4))
        site.submit(job("small", 2, submitted_at=9.0))
        site.run("long")
        site.run("other")
        site.pass_time(100.0)
        done = site.complete("long")
        assert launches(done) == ([] if guarded else ["small"])


def test_job_on_a_closed_cluster_is_not_guarded() -> None:
    """Room is not kept idle for a job that cannot start there; the next one in the queue is guarded instead."""
    site = Site({"a": 4, "b": 4}, GUARD)
    site.submit(job("busy", component("x", 3, cluster="b")))
    site.post(ev.ClusterUnavailable(time=site.now, cluster=A, reason="down"))
    site.submit(job("stuck", component("x", 2, cluster="a"), component("y", 4, cluster="b"), submitted_at=1.0))
    site.submit(job("large", component("x", 4, cluster="b"), submitted_at=2.0))
    site.pass_time(100.0)
    assert site.state.guarded == "large"


def test_guard_is_lifted_when_its_cluster_closes_or_the_job_goes() -> None:
    """Neither an outage nor a cancelled job leaves room kept for nobody."""
    site = Site({"a": 4}, GUARD)
    site.submit(job("long", 2))
    site.submit(job("large", 4))
    site.pass_time(100.0)
    site.post(ev.ClusterUnavailable(time=site.now, cluster=ClusterName("a"), reason="down"))
    site.pass_time(16.0)
    assert (site.state.guarded, site.state.kept_room) == (None, {})
    site.poll("a", 4, idle=2)
    site.pass_time(16.0)
    assert site.state.guarded == "large"
    site.submit(job("small", 2, submitted_at=9.0))
    assert site.record("small").state is JobState.WAITING
    site.cancel("large")
    assert site.state.guarded is None
    assert site.record("small").state is JobState.CLAIMING

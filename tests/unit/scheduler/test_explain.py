# SPDX-License-Identifier: Apache-2.0
"""The exact words of ``koala explain`` in every situation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koala_adapter.model import ClusterName, EndReason, HoldOwner, JobId, TaskEnd
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.explain import duration
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from tests.unit.scheduler.scheduler_site import A, B, Site, component, job

PARAMETERS = Parameters(placeholder_life=600.0, backoff=120.0, guard_scans=4, lease=300.0)


def claiming() -> Site:
    """Return a site where job 1 holds 4 processors on a and waits for 3 on b, which is busy."""
    site = Site({"a": 8, "b": 4}, PARAMETERS, ClusterParameters(name=B, threshold=1))
    parts = (component("x", 4, cluster="a"), component("y", 3, cluster="b"))
    site.queue(job("1", *parts, walltime=3600))
    site.poll("b", 4, idle=0)
    site.hold_all("1", "a")
    return site


def test_just_submitted() -> None:
    site = Site({"a": 8}, PARAMETERS)
    site.submit(job("1", 4))
    assert site.explained() == (
        "The job holds 0 of 4 processors (0 of 4 on a) and waits for 4 in the queue of a (idle there: 8). "
        "It starts when all are held."
    )


def test_holds_a_part() -> None:
    assert claiming().explained() == (
        "The job holds 4 of 7 processors (4 of 4 on a, 0 of 3 on b) and waits for 3 in the queue of b (idle there: 0). "
        "It starts when all are held; what it holds is kept for another 10 min, then given back for a while."
    )
    site = claiming()
    site.post(ev.ClusterUnavailable(time=site.now, cluster=ClusterName("b"), reason="no answer within 30 s"))
    assert "waits for 3 in the queue of b, which is out of reach (no answer within 30 s). It starts" in site.explained()


def on_hold(site: Site, holder: HoldOwner | None, reason: str, count: int = 3) -> None:
    """Report that so many of the placeholders on b are in hold there."""
    queued = [p.id for p in site.claimed("1") if p.cluster == B][:count]
    holds = tuple(ev.Hold(placeholder=id_, holder=holder, reason=reason) for id_ in queued)
    site.post(ev.HoldsSeen(time=site.now, cluster=B, holds=holds))


@pytest.mark.parametrize(
    ("holder", "reason", "who"),
    [
        (HoldOwner.USER, "JobHeldUser", "by its user or a submission hook (JobHeldUser)"),
        (HoldOwner.OPERATOR, "", "by an operator"),
        (HoldOwner.SYSTEM, "JobHoldMaxRequeue", "by the batch system itself (JobHoldMaxRequeue)"),
        (None, "", "by somebody that it does not name"),
    ],
)
def test_waits_for_what_is_in_hold(holder: HoldOwner | None, reason: str, who: str) -> None:
    """Who holds it in the batch system, since when, and that it does not start by itself."""
    site = claiming()
    on_hold(site, holder, reason, count=2)
    site.now += 45.0
    on_hold(site, holder, reason, count=2)
    text = site.explained()
    assert f"waits for 3 in the queue of b (idle there: 0; 2 in hold {who} for 45 s). It starts when" in text
    assert "What is in hold starts only when it is released there." in text


def test_waits_no_more_for_what_was_released() -> None:
    """What is not named any more is in no hold; a later one begins anew."""
    site = claiming()
    on_hold(site, HoldOwner.OPERATOR, "")
    site.now += 45.0
    on_hold(site, HoldOwner.OPERATOR, "", count=0)
    assert "hold " not in site.explained()
    on_hold(site, HoldOwner.OPERATOR, "")
    assert "3 in hold by an operator for 0 s" in site.explained()


def test_gave_back() -> None:
    site = claiming()
    site.pass_time(600.0)
    text = site.explained()
    assert text.startswith(
        "The job holds 0 of 7 processors (0 of 4 on a, 0 of 3 on b) and waits for 3 in the queue of b (idle there: 0). "
        "It starts when all are held; 4 processors that it lost or gave back will be claimed again in "
    )
    assert text.endswith(
        " Last trouble: 4 held processors were handed back after their life cycle, still waiting on b."
    )


def test_unknown_submission() -> None:
    site = Site({"a": 4}, PARAMETERS)
    site.submit(job("1", 1))
    (key,) = site.state.batches
    site.post(ev.BatchUncertain(time=site.now, batch=key, reason="sbatch: no answer within 30 s"))
    assert site.explained() == (
        "The job holds 0 of 1 processor (0 of 1 on a) and waits for 1 in the queue of a, "
        "whose answer is unknown (sbatch: no answer within 30 s). It starts when all are held."
    )


def test_agents_yet_to_report_and_out_of_contact() -> None:
    site = Site({"a": 4}, PARAMETERS)
    first, second, third = site.queue(job("1", 3))
    site.hold(first)
    site.silence(first)
    site.post(ev.PlaceholderStarted(time=site.now, placeholder=second))
    site.hold(third)
    assert site.explained().startswith(
        "The job holds 1 of 3 processors (1 of 3 on a) and waits for word from 1 that started on a "
        "and 1 on a to come into contact again. It starts when all are held; "
    )


def test_refused_component_has_no_cluster_yet() -> None:
    site = Site({"a": 8, "b": 5}, PARAMETERS)
    site.submit(job("1", component("x", 3, cluster="b"), component("y", 2)))
    key = next(key for key, batch in site.state.batches.items() if batch.cluster == "a")
    site.post(ev.BatchRejected(time=site.now, batch=key, reason="no account"))
    assert site.explained() == (
        "The job holds 0 of 5 processors (0 of 3 on b, 0 of 2 on no cluster yet for 'y') "
        "and waits for 3 in the queue of b (idle there: 5). It starts when all are held; "
        "2 processors that it lost or gave back will be claimed again now. Last trouble: a: no account."
    )


def test_in_the_queue() -> None:
    """Its place, its need, and why each cluster that could hold it cannot now; too small ones are left out."""
    site = Site({"a": 8, "b": 4, "c": 9}, PARAMETERS)
    site.submit(job("0", component("x", 8, cluster="a"), component("y", 5, cluster="c")))
    site.post(ev.ClusterUnavailable(time=site.now, cluster=ClusterName("c"), reason="no answer"))
    site.submit(job("1", 5))
    assert site.explained() == (
        "The job is number 1 in the queue and needs 5 processors on one cluster. "
        "It starts when that can be had at once: a has no room (our jobs have all 8 that we may use); "
        "c is out of reach: no answer."
    )


def test_several_components_in_the_queue() -> None:
    site = Site({"a": 4, "b": 6}, PARAMETERS)
    site.submit(job("0", component("x", 3, cluster="a"), component("y", 4, cluster="b")))
    site.submit(job("1", 2, 2, component("z", 1, cluster="a")))
    assert site.explained() == (
        "The job is number 1 in the queue and needs 2 times 2 processors on one cluster and 1 processor on a. "
        "It starts when that can be had at once: a has room for 1; b has room for 2."
    )


def test_closed_clusters() -> None:
    site = Site({"a": 4, "b": 4}, PARAMETERS)
    everything = (*site.clusters, ClusterParameters(name=ClusterName("c")))
    site.post(ev.Configured(time=site.now, parameters=PARAMETERS, clusters=everything))
    site.poll("a", 0)
    site.state.clusters[B].paused_until = site.now + 300
    site.state.clusters[B].pause_reason = "3 placeholders in a row started but never reported"
    site.submit(job("1", 2))
    assert site.explained().endswith(
        "at once: a is closed: its batch system lists no processors; "
        "b is paused for another 300 s: 3 placeholders in a row started but never reported; c is not seen yet."
    )


def test_many_clusters() -> None:
    site = Site({f"n{number}": 1 for number in range(10)}, PARAMETERS)
    for number in range(10):
        site.submit(job(f"filler{number}", 1))
    site.submit(job("1", 1))
    assert site.explained().endswith("n5 has no room (our jobs have all 1 that we may use); 4 more.")


def test_kept_room() -> None:
    """A job that is guarded has waited long; one that room was made for, by what others give up, has not."""
    site = Site({"a": 4}, PARAMETERS)
    site.submit(job("0", 2), job("1", 4))
    site.state.guarded, site.state.kept_room = JobId("1"), {A: 4}
    assert site.explained().endswith("a has room for 2. What comes free is kept for it (4 on a).")
    site.state.guarded, site.state.kept_room = None, {}
    site.pass_time(100.0)
    assert site.explained().endswith(". Because it has waited long, what comes free is kept for it (4 on a).")


def test_room_that_is_kept_for_another_job() -> None:
    """It is told for whom, and how much of it; not to a job that comes before that one."""
    site = Site({"a": 4, "b": 4}, PARAMETERS)
    site.submit(job("0", component("x", 2, cluster="a")))
    site.submit(job("1", component("x", 4, cluster="a"), component("y", 1, cluster="b")))
    site.pass_time(100.0)
    site.submit(job("2", component("x", 1, cluster="a"), component("y", 4, cluster="b"), submitted_at=5.0))
    assert site.explained("2").endswith(
        "at once: a has room for 2 (kept for job 1, which has waited long: all); "
        "b has room for 4 (kept for job 1, which has waited long: 1)."
    )
    assert "(kept for job" not in site.explained()
    first = replace(job("3", component("x", 3, cluster="a")), priority=1)
    site.submit(first)
    assert "(kept for job" not in site.explained("3")


def test_backing_off() -> None:
    site = Site({"a": 4}, PARAMETERS)
    site.submit(job("1", 1))
    (key,) = site.state.batches
    site.post(ev.BatchAbsent(time=site.now, batch=key, reason="the submission did not arrive"))
    assert site.explained() == (
        "The job holds nothing and is tried again in 3 min. Last trouble: a: the submission did not arrive."
    )


def test_launching_on_one_processor() -> None:
    site = Site({"a": 4}, PARAMETERS)
    site.submit(job("1", 1))
    site.hold_all("1", "a")
    assert site.explained() == "1 processor is held on a (1); 0 of 1 processes have started."


def test_running() -> None:
    site = claiming()
    site.hold_all("1", "b")
    assert site.explained() == "All 7 processors are held on a (4) and b (3); 0 of 7 processes have started."
    site.run("1")
    site.pass_time(605.0)
    assert site.explained() == (
        "The rigid job has been running for 10 min on 7 processors: a (4) and b (3); its walltime ends in 50 min."
    )
    site.silence(site.claimed("1")[0].id)
    site.pass_time(60.0)
    assert site.explained().endswith(
        "There is no contact with 1 of its placeholders (1 on a); if that lasts another 4 min, the job is lost."
    )


def test_running_on_many_clusters() -> None:
    names = "abcdefgh"
    site = Site(dict.fromkeys(names, 1), PARAMETERS)
    site.start(job("1", *(component(name, 1, cluster=name) for name in names)))
    assert "on 8 processors: a (1), b (1), c (1), d (1), e (1), f (1) and 2 more; its walltime" in site.explained()


def test_ended() -> None:
    site = claiming()
    site.run("1")
    site.pass_time(90.0)
    site.rank_ends("1", 2, TaskEnd(reason=EndReason.EXITED, exit_code=3))
    ended = "The job failed with exit code 3 after running for 90 s: rank 2 (component 'x') exited with status 3."
    assert site.explained() in {
        f"{ended} Still being given back: {parts}." for parts in ("4 on a and 3 on b", "3 on b and 4 on a")
    }
    site.end_ending()
    assert site.explained() == ended


@pytest.mark.parametrize(("seconds", "told"), [(10.0, "10 s"), (0.5, "0.5 s")])
def test_completed(seconds: float, told: str) -> None:
    """A short run is told to a tenth of a second, as in the tables of the commands."""
    site = Site({"a": 4}, PARAMETERS)
    site.start(job("1", 1))
    site.pass_time(seconds)
    site.finish("1")
    assert site.explained() == f"The job completed after running for {told}."


def test_never_and_not_in_time() -> None:
    site = Site({"a": 4}, Parameters(maximum_tries=1))
    site.submit(job("never", 5))
    assert site.explained("never") == (
        "The job can never run as it is written: "
        "component 'c0' fits nowhere (a: needs 5 processors, at most 4 can be used there)."
    )
    site.submit(job("0", 4), job("late", 2), job("1", 2, maximum_tries=9))
    site.cancel("1")
    assert site.explained() == "The job was cancelled by the user while waiting."
    site.pass_time(20.0)
    assert site.explained("late") == (
        "The job was given up: not placed in 1 try (the limit is 1); "
        "last: component 'c0' needs 2 processors (a: room for 0)."
    )


def test_lost() -> None:
    site = Site({"a": 4}, PARAMETERS)
    site.start(job("1", 1))
    (id_,) = (p.id for p in site.claimed("1"))
    site.ended(id_, EndReason.NODE_LOST, "node a1 is down")
    assert site.explained() == (
        f"The job was lost after running for 0 s: rank 0 (component 'c0'): node lost, "
        f"placeholder {id_} on a, host a-{id_}: node a1 is down."
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "0 s"),
        (0.4, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (12000, "3 h 20 min"),
        (172800, "2 d"),
        (187200, "2 d 4 h"),
    ],
)
def test_duration(seconds: float, words: str) -> None:
    assert duration(seconds) == words

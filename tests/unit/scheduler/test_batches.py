# SPDX-License-Identifier: Apache-2.0
"""What becomes of submissions: refused, not arrived, unknown, and told too late or twice."""

from __future__ import annotations

from koala_adapter.model import BatchKey, ClusterName, HoldOwner, LrmJob, LrmJobId, LrmJobState
from koala_adapter.outcome import JobState, PlaceholderState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import WithdrawOffer
from koala_adapter.scheduler.claiming.claims import KEPT_PATIENCE
from koala_adapter.scheduler.parameters import Parameters
from koala_adapter.service.listings import new_holds
from tests.unit.scheduler.malleable_site import JointSite
from tests.unit.scheduler.scheduler_site import A, B, Site, component, ends, job, launches, of_kind, submissions


def batch_on(site: Site, cluster: str) -> BatchKey:
    """Return the key of the latest submission to a cluster."""
    return next(key for key, batch in reversed(site.state.batches.items()) if batch.cluster == cluster)


def rejected(site: Site, cluster: str, reason: str = "no such account") -> dict[str, int]:
    """Report the latest submission to a cluster as refused; return what is submitted next."""
    before = len(site.actions)
    site.post(ev.BatchRejected(time=site.now, batch=batch_on(site, cluster), reason=reason))
    site.pass_time(0.0)
    return submissions(site.actions[before:])


def test_refused_component_goes_elsewhere_at_once() -> None:
    site = Site({"a": 8, "b": 4, "c": 3})
    site.submit(job("1", component("x", 3), component("y", 3, cluster="b")))
    site.taken(batch_on(site, "b"))
    assert rejected(site, "a") == {"c": 3}
    assert site.record("1").claims[0].excluded == {A: "no such account"}
    assert site.state.clusters[A].managed == 0
    assert site.state.clusters[B].managed == 3


def test_refused_everywhere_ends_the_job() -> None:
    site = Site({"a": 8, "b": 8})
    site.submit(job("1", 2))
    assert rejected(site, "a") == {"b": 2}
    assert rejected(site, "b", "invalid qos") == {}
    outcome = site.outcome("1")
    assert outcome.state is JobState.REFUSED
    assert outcome.detail == "b refused the placeholders of 'c0': invalid qos"
    assert not site.state.placeholders


def test_refusal_that_leaves_no_joint_fit_ends_the_job() -> None:
    """Each component could still go somewhere, but not both at once: refused, not tried a thousand times."""
    site = Site({"a": 8, "b": 4})
    site.submit(job("1", component("x", 4, cluster="b"), component("y", 3)))
    key = next(k for k, one in site.state.batches.items() if one.component == "y")
    site.post(ev.BatchRejected(time=site.now, batch=key, reason="no account"))
    outcome = site.outcome("1")
    assert outcome.state is JobState.REFUSED
    assert outcome.detail == (
        "a refused the placeholders of 'y': no account; "
        "without it, its components (4, 3 processors) do not fit into the clusters at the same time (a: 8; b: 4)"
    )


def test_refusal_of_a_later_part_moves_the_whole_component() -> None:
    site = Site({"a": 4, "b": 4}, Parameters(backoff=10.0))
    site.queue(job("1", 3))
    first = site.claimed("1")[0].id
    site.hold(first)
    site.ended(site.claimed("1")[2].id)
    site.pass_time(20.0)
    before = len(site.actions)
    assert rejected(site, "a") == {"b": 3}
    assert str(first) in ends(site.actions[before:])
    site.take_all()
    assert launches(site.hold_all("1")) == ["1"]


def test_submission_that_did_not_arrive_is_repeated_under_another_name() -> None:
    site = Site({"a": 4}, Parameters(backoff=30.0))
    site.submit(job("1", 2))
    key = batch_on(site, "a")
    site.post(ev.BatchAbsent(time=site.now, batch=key, reason="the submission did not arrive"))
    assert not site.state.placeholders
    assert site.record("1").state is JobState.WAITING
    assert site.record("1").last_trouble == "a: the submission did not arrive"
    assert submissions(site.pass_time(29.0)) == {}
    assert submissions(site.pass_time(31.0)) == {"a": 2}
    assert batch_on(site, "a") != key


def test_absence_without_a_pause_at_time_zero() -> None:
    """A job put back into the queue at the very beginning of time is tried again like any other."""
    site = Site({"a": 4, "b": 4})
    site.now = 0.0
    site.scheduler.state.now = None
    site.state.scan_due = None
    site.submit(job("1", 2))
    site.now = 0.0
    assert rejected(site, "a") == {"b": 2}


def test_unknown_outcome_is_waited_for() -> None:
    """Nothing is submitted again while a submission may have arrived, however long that takes."""
    site = Site({"a": 4})
    site.submit(job("1", 2))
    site.post(ev.BatchUncertain(time=site.now, batch=batch_on(site, "a"), reason="time-out"))
    assert submissions(site.pass_time(50_000.0)) == {}
    assert site.state.clusters[A].managed == 2
    site.take_all()
    assert site.state.batches[batch_on(site, "a")].uncertain is None
    assert launches(site.hold_all("1")) == ["1"]


def test_cancelled_while_the_outcome_is_unknown() -> None:
    """Its placeholders stay on the books until it is known; then they are cancelled, or were never there."""
    for found in (True, False):
        site = Site({"a": 4})
        site.submit(job("1", 2))
        key = batch_on(site, "a")
        site.post(ev.BatchUncertain(time=site.now, batch=key, reason="time-out"))
        assert ends(site.cancel("1")) == []
        site.pass_time(1000.0)
        assert site.state.clusters[A].managed == 2
        if found:
            assert len(ends(site.taken(key), force=True)) == 2
            site.end_ending()
        else:
            site.post(ev.BatchAbsent(time=site.now, batch=key, reason="not there"))
        assert not site.state.placeholders
        assert site.pass_time(1000.0) == []


def test_the_absence_of_what_was_given_up_is_no_claim_failed() -> None:
    """Its component has gone elsewhere meanwhile, because another submission was refused: it misses nothing."""
    site = Site({"a": 4, "b": 4}, Parameters(backoff=1.0))
    site.submit(job("1", component("x", 3), component("y", 1, cluster="b")))
    site.taken(batch_on(site, "b"))
    site.taken(batch_on(site, "a"))
    first, second, _ = (one.id for one in site.claimed("1") if one.cluster == A)
    site.ended(first)
    site.pass_time(10.0)
    unknown = batch_on(site, "a")
    site.post(ev.BatchUncertain(time=site.now, batch=unknown, reason="time-out"))
    site.ended(second)
    site.pass_time(10.0)
    assert rejected(site, "a") == {"b": 3}
    tries = site.record("1").tries
    site.post(ev.BatchAbsent(time=site.now, batch=unknown, reason="not there"))
    record = site.record("1")
    assert (record.tries, record.reclaim_at) == (tries, None)
    site.take_all()
    assert launches(site.hold_all("1")) == ["1"]


def test_answers_that_are_late_or_about_unknown_submissions_change_nothing() -> None:
    site = Site({"a": 4})
    site.submit(job("1", 2))
    key = batch_on(site, "a")
    site.taken(key)
    site.post(ev.BatchAbsent(time=site.now, batch=key, reason="late"))
    site.post(ev.BatchRejected(time=site.now, batch=key, reason="late"))
    site.post(ev.BatchUncertain(time=site.now, batch=key, reason="late"))
    site.post(ev.BatchSubmitted(time=site.now, batch=key, lrm_ids=(LrmJobId("x"), LrmJobId("y"))))
    assert [p.lrm_id for p in site.claimed("1")] == [f"{key}:1", f"{key}:2"]
    assert [p.state for p in site.claimed("1")] == [PlaceholderState.QUEUED] * 2
    gone = BatchKey("koala-k-77")
    site.post(ev.BatchSubmitted(time=site.now, batch=gone, lrm_ids=()))
    site.post(ev.BatchRejected(time=site.now, batch=gone, reason="no"))
    site.post(ev.BatchAbsent(time=site.now, batch=gone, reason="no"))
    assert site.post(ev.BatchUncertain(time=site.now, batch=gone, reason="no")) == []


def test_cluster_that_takes_no_submission_is_paused() -> None:
    """The job goes to another cluster at once; where there is none it waits with the reason, and is tried again."""
    site = Site({"a": 8, "b": 4}, Parameters(backoff=30.0))
    site.submit(job("1", 2))
    site.post(ev.BatchAbsent(time=site.now, batch=batch_on(site, "a"), reason="wrong library", pauses=True))
    site.pass_time(0.0)
    assert {placeholder.cluster for placeholder in site.claimed("1")} == {"b"}
    site.submit(job("2", component("x", 2, cluster="a")))
    assert site.record("2").state is JobState.WAITING
    assert "wrong library" in site.explained("2")
    site.pass_time(31.0)
    assert {placeholder.cluster for placeholder in site.claimed("2")} == {"a"}


def test_agents_that_reported_prove_the_submission() -> None:
    """Said to be absent although an agent of it has reported: only what never showed itself is forgotten."""
    site = Site({"a": 4}, Parameters(backoff=10.0))
    site.submit(job("1", 2))
    key = batch_on(site, "a")
    first, second = (p.id for p in site.claimed("1"))
    site.hold(first)
    site.post(ev.BatchAbsent(time=site.now, batch=key, reason="not listed"))
    assert first in site.state.placeholders
    assert second not in site.state.placeholders
    assert site.state.batches[key].lrm_ids is not None
    assert submissions(site.pass_time(20.0)) == {"a": 1}


def test_fewer_ids_than_placeholders() -> None:
    site = Site({"a": 4})
    site.submit(job("1", 2))
    key = batch_on(site, "a")
    site.post(ev.BatchSubmitted(time=site.now, batch=key, lrm_ids=(LrmJobId("7"),)))
    assert [p.lrm_id for p in site.claimed("1")] == ["7", None]
    assert launches(site.hold_all("1")) == ["1"]


# -- Placeholders that their batch system keeps waiting for something else than free processors --------------


LIMIT = "PartitionTimeLimit"


def keep(site: Site, *, lasts: bool = True, cluster: ClusterName = A) -> None:
    """Report that all placeholders in the queue of a cluster are kept waiting there."""
    waiting = [one.id for one in site.state.placeholders.values() if one.cluster == cluster and one.waiting]
    holds = tuple(ev.Hold(placeholder=id_, reason=LIMIT, in_hold=False, lasts=lasts) for id_ in waiting)
    site.post(ev.HoldsSeen(time=site.now, cluster=cluster, holds=holds))


def queued(sizes: dict[str, int], *, cluster: str | None = None) -> Site:
    """Return a site with a job of four processors that waits in the queue of the first cluster."""
    site = Site(sizes)
    site.queue(job("1", component("m", 4, cluster=cluster)))
    assert {one.cluster for one in site.claimed("1")} == {A}
    return site


def test_the_batch_systems_reason_is_quoted() -> None:
    site = queued({"a": 8})
    keep(site)
    said = site.explained()
    assert f"4 kept waiting by the batch system ({LIMIT}) for 0 s" in said
    assert "in hold" not in said


def test_a_job_goes_elsewhere_when_a_limit_keeps_it() -> None:
    site = queued({"a": 8, "b": 6})
    keep(site)
    site.pass_time(KEPT_PATIENCE / 2)
    assert {one.cluster for one in site.claimed("1")} == {A}
    site.pass_time(KEPT_PATIENCE)
    site.end_ending()
    site.pass_time(1)
    assert {one.cluster for one in site.claimed("1")} == {"b"}
    assert LIMIT in site.record("1").claims[0].excluded[A]


def test_it_stays_where_it_must_be() -> None:
    for site in (queued({"a": 8, "b": 2}), queued({"a": 8, "b": 8}, cluster="a")):
        before = [one.id for one in site.claimed("1")]
        keep(site)
        site.pass_time(3 * KEPT_PATIENCE)
        assert [one.id for one in site.claimed("1")] == before
        assert not site.record("1").claims[0].excluded


def test_what_ends_by_itself_is_waited_for() -> None:
    """Licences, shared limits and begin times; and a limit that was lifted in time."""
    site = queued({"a": 8, "b": 6})
    keep(site, lasts=False)
    site.pass_time(3 * KEPT_PATIENCE)
    keep(site)
    site.pass_time(KEPT_PATIENCE / 2)
    site.post(ev.HoldsSeen(time=site.now, cluster=A))
    site.pass_time(3 * KEPT_PATIENCE)
    assert {one.cluster for one in site.claimed("1")} == {A}


def test_what_a_listing_says_of_our_placeholders() -> None:
    site = queued({"a": 8})
    ours = [one.lrm_id for one in site.claimed("1")]
    jobs = [
        LrmJob(
            id=LrmJobId(str(id_)),
            name="koala-x",
            state=LrmJobState.QUEUED if number else LrmJobState.HELD,
            user="ann",
            processors=1,
            reason=LIMIT if number else "JobHeldUser",
            blocked=bool(number),
            kept=bool(number),
            hold=None if number else HoldOwner.USER,
        )
        for number, id_ in enumerate(ours)
    ]
    seen = new_holds(site.state, A, jobs, now=site.now, told=True)
    assert seen is not None
    assert [(one.in_hold, one.lasts, one.reason) for one in seen.holds] == [
        (True, False, "JobHeldUser"),
        *[(False, True, LIMIT)] * 3,
    ]
    site.post(seen)
    assert new_holds(site.state, A, jobs, now=site.now, told=True) is None


def test_a_growth_that_is_kept_is_met_elsewhere() -> None:
    """After a while it is given up; the next one asks for nothing on that cluster."""
    site = JointSite()
    site.want(6)
    site.take_all()
    keep(site, cluster=B)
    site.pass_time(KEPT_PATIENCE / 2)
    assert len(site.parts) == 2
    actions = site.pass_time(KEPT_PATIENCE)
    assert len(of_kind(WithdrawOffer, actions)) == 1
    site.idle_again()
    assert LIMIT in site.explained()
    site.pass_time(3600)
    answer = site.want(6, 2)
    assert (answer.processors, list(site.parts)) == (3, [A])


def test_a_growth_that_is_kept_for_a_while_goes_on() -> None:
    site = JointSite()
    site.want(6)
    site.take_all()
    keep(site)
    site.pass_time(KEPT_PATIENCE / 2)
    site.post(ev.HoldsSeen(time=site.now, cluster=A))
    site.pass_time(KEPT_PATIENCE)
    assert len(site.parts) == 2

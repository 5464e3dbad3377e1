# SPDX-License-Identifier: Apache-2.0
"""Placeholders that their batch system keeps waiting for something else than free processors."""

from __future__ import annotations

from koala_adapter.model import ClusterName, HoldOwner, LrmJob, LrmJobId, LrmJobState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import WithdrawOffer
from koala_adapter.scheduler.claiming.claims import KEPT_PATIENCE
from koala_adapter.scheduler.explain import explain
from koala_adapter.service.listings import new_holds
from tests.unit.scheduler.scheduler_site import A, B, Site, component, job, of_kind
from tests.unit.scheduler.test_joint_growth import JointSite

LIMIT = "PartitionTimeLimit"


def keep(site: Site, *, lasts: bool = True, cluster: ClusterName = A) -> None:
    """Report that all placeholders on a cluster are kept waiting there."""
    waiting = [one.id for one in site.claimed("1") if one.cluster == cluster]
    holds = tuple(ev.Hold(placeholder=id_, reason=LIMIT, in_hold=False, lasts=lasts) for id_ in waiting)
    site.post(ev.HoldsSeen(time=site.now, cluster=cluster, holds=holds))


def queued(sizes: dict[str, int], *, cluster: str | None = None) -> Site:
    """Return a site with a job of four processors that waits in the queue of the first cluster."""
    site = Site(sizes)
    site.submit(job("1", component("m", 4, cluster=cluster)))
    site.take_all()
    assert {one.cluster for one in site.claimed("1")} == {A}
    return site


def test_the_batch_systems_reason_is_quoted() -> None:
    """By ``koala explain``, without the words for a hold that somebody has to release."""
    site = queued({"a": 8})
    keep(site)
    said = explain(site.state, None, site.record("1"), site.now)
    assert f"4 kept waiting by the batch system ({LIMIT}) for 0 s" in said
    assert "in hold" not in said


def test_a_job_goes_elsewhere_when_a_limit_keeps_it() -> None:
    """After a while it is claimed on another cluster, and says why."""
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
    """A job that fits nowhere else, or names the cluster, keeps its place in the queue."""
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
    """Their reasons are told once, with the holds."""
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
    kept = [one for one in site.stubs() if site.state.placeholders[one].cluster == B]
    holds = tuple(ev.Hold(placeholder=id_, reason=LIMIT, in_hold=False, lasts=True) for id_ in kept)
    site.post(ev.HoldsSeen(time=site.now, cluster=B, holds=holds))
    site.pass_time(KEPT_PATIENCE / 2)
    assert len(site.parts) == 2
    actions = site.pass_time(KEPT_PATIENCE)
    assert len(of_kind(WithdrawOffer, actions)) == 1
    site.idle_again()
    assert LIMIT in explain(site.state, None, site.record("1"), site.now)
    site.pass_time(3600)
    answer = site.want(6, 2)
    assert (answer.processors, list(site.parts)) == (3, [A])


def test_a_growth_that_is_kept_for_a_while_goes_on() -> None:
    """The limit was lifted in time."""
    site = JointSite()
    site.want(6)
    site.take_all()
    holds = tuple(ev.Hold(placeholder=id_, reason=LIMIT, in_hold=False, lasts=True) for id_ in site.stubs())
    site.post(ev.HoldsSeen(time=site.now, cluster=A, holds=holds))
    site.pass_time(KEPT_PATIENCE / 2)
    site.post(ev.HoldsSeen(time=site.now, cluster=A))
    site.pass_time(KEPT_PATIENCE)
    assert len(site.parts) == 2

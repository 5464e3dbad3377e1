# SPDX-License-Identifier: Apache-2.0
"""Jobs that would only be queued, while clusters of the site have not answered their first poll."""

from __future__ import annotations

from koala_adapter.model import JobId
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import RequestProcessors
from koala_adapter.scheduler.claiming.waiting import FIRST_LOOK
from koala_adapter.scheduler.explain import explain
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from tests.unit.scheduler.malleable_site import MalleableSite, malleable, part
from tests.unit.scheduler.scheduler_site import B, C, Site, component, copied, job, of_kind, submissions


def busy_first() -> Site:
    """Return a site whose cluster a, all of it busy, has answered; b has not."""
    site = Site({"a": 4}, unseen=("b",))
    site.poll("a", 4, idle=0)
    return site


def test_waits_for_a_cluster_that_may_have_idle_processors() -> None:
    """It would be queued on the first one that answered, and stay there."""
    site = busy_first()
    assert submissions(site.submit(job("1", 2))) == {}
    assert submissions(site.poll("b", 4)) == {"b": 2}
    assert site.placed("1") == {"c0": (B, 2)}


def test_starts_at_once_on_processors_that_are_known_to_be_idle() -> None:
    """Nothing is to be gained; what does not fit beside it waits."""
    site = Site({"a": 4}, unseen=("b",))
    assert submissions(site.submit(job("1", 3))) == {"a": 3}
    assert submissions(site.submit(job("2", 2))) == {}
    assert submissions(site.submit(job("3", 1))) == {"a": 1}


def test_is_queued_as_soon_as_every_cluster_was_seen() -> None:
    """Also when the last one has no processors to use."""
    for processors in (4, 0):
        site = busy_first()
        site.submit(job("1", 2))
        (placed,) = submissions(site.poll("b", processors, idle=0)).values()
        assert placed == 2


def test_a_first_poll_that_fails_is_an_answer() -> None:
    """A dead cluster holds nobody up."""
    site = busy_first()
    site.submit(job("1", 2))
    assert submissions(site.post(ev.ClusterUnavailable(time=site.now, cluster=B, reason="no answer"))) == {"a": 2}


def test_no_cluster_is_waited_for_for_long() -> None:
    """One that neither answers nor fails counts as seen after a bounded time."""
    site = busy_first()
    site.submit(job("1", 2))
    assert submissions(site.pass_time(FIRST_LOOK - 1.0)) == {}
    assert submissions(site.pass_time(1.0)) == {"a": 2}
    assert submissions(site.submit(job("2", 1))) == {"a": 1}


def test_does_not_wait_for_a_cluster_that_cannot_take_it() -> None:
    """One that it does not name, or that cannot hold what would have to be queued."""
    site = busy_first()
    assert submissions(site.submit(job("1", component("x", 2, cluster="a")))) == {"a": 2}
    site = Site({"a": 4, "b": 4}, unseen=("c",))
    site.poll("a", 4, idle=0)
    parts = (component("queued", 2, cluster="a"), component("started", 2))
    assert submissions(site.submit(job("1", *parts))) == {"a": 2, "b": 2}


def test_components_on_one_cluster_are_counted_together() -> None:
    """Each alone would fit in what is idle, both together do not."""
    site = Site({"a": 4}, unseen=("b",))
    site.poll("a", 4, idle=3)
    assert submissions(site.submit(job("1", 2, 2))) == {}
    assert submissions(site.poll("b", 2)) == {"a": 2, "b": 2}


def test_tries_are_not_used_up_by_waiting() -> None:
    """It could be placed all the time."""
    site = Site({"a": 4}, Parameters(scan_interval=1.0), unseen=("b",))
    site.poll("a", 4, idle=0)
    site.submit(job("1", 2, maximum_tries=2))
    site.pass_time(FIRST_LOOK - 1.0)
    assert site.record("1").state is JobState.WAITING
    site.poll("b", 4)
    assert site.placed("1") == {"c0": (B, 2)}


def test_a_cluster_that_is_added_later_is_waited_for_too() -> None:
    """But not one that was seen and is configured again."""
    site = Site({"a": 4, "b": 4})
    site.poll("a", 4, idle=0)
    site.poll("b", 4, idle=0)
    site.post(ev.Configured(time=site.now, parameters=site.parameters, clusters=site.clusters))
    assert len(submissions(site.submit(job("1", 2)))) == 1
    more = (*site.clusters, *Site({}, unseen=("c",)).clusters)
    site.post(ev.Configured(time=site.now, parameters=site.parameters, clusters=more))
    assert submissions(site.submit(job("2", 2))) == {}
    assert submissions(site.poll("c", 4)) == {"c": 2}


def test_the_wait_outlives_a_restart() -> None:
    """The time that it may take is part of the state."""
    site = busy_first()
    site.submit(job("1", 2))
    site.scheduler = Scheduler(copied(site.state))
    assert submissions(site.pass_time(FIRST_LOOK)) == {"a": 2}


def test_running_jobs_are_not_shrunk_before() -> None:
    """What the head of the queue needs may be idle where nobody has looked yet."""
    for seen in (True, False):
        site = MalleableSite({"a": 4})
        site.start(malleable("m", part(2, 4), initial=4))
        site.poll("a", 4, idle=0, ours=4)
        clusters = (*site.clusters, ClusterParameters(name=C))
        site.post(ev.Configured(time=site.now, parameters=site.parameters, clusters=clusters))
        if seen:
            site.post(ev.ClusterUnavailable(time=site.now, cluster=C, reason="no answer"))
        assert bool(of_kind(RequestProcessors, site.submit(job("1", 2)))) is seen


def test_explain_names_what_is_waited_for() -> None:
    """And for how long at most; of a cluster that the job cannot use nothing is said."""
    site = busy_first()
    site.submit(job("1", 2))
    site.submit(job("2", component("x", 9, cluster="a"), component("y", 1, cluster="a")))
    site.now += 8.0
    assert said(site, "1") == (
        "The job is number 1 in the queue and needs 2 processors on one cluster. Before it is queued anywhere, the "
        "first answer of b is waited for, for another 22 s at most. It starts when that can be had at once: a has room "
        "for 4; b is not seen yet."
    )
    assert "first answer" not in said(site, "2")
    site.now += FIRST_LOOK
    assert "first answer" not in said(site, "1")


def said(site: Site, id_: str) -> str:
    """Return what is said of a job now."""
    return explain(site.state, site.scheduler.queue_position(JobId(id_)), site.record(id_), site.now)

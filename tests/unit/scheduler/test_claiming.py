# SPDX-License-Identifier: Apache-2.0
"""From the queue to the launch: claiming, submissions, walltime drain, and never more than the capacity."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from koala_adapter.errors import JobRefusedError
from koala_adapter.model import BatchKey, ClusterName, EndReason, HoldOwner, Job, LrmJob, LrmJobId, LrmJobState
from koala_adapter.outcome import JobState, PlaceholderState
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import (
    Action,
    FinishJob,
    LaunchJob,
    RequestProcessors,
    SubmitPlaceholders,
    WithdrawOffer,
)
from koala_adapter.scheduler.claiming.claims import KEPT_PATIENCE
from koala_adapter.scheduler.claiming.waiting import FIRST_LOOK
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from koala_adapter.scheduler.placement.policy import Placed, PlacedComponent
from koala_adapter.scheduler.timers import TimerKind
from koala_adapter.service.listings import new_holds
from tests.unit.scheduler.malleable_site import JointSite, MalleableSite, malleable, part
from tests.unit.scheduler.scheduler_site import (
    A,
    B,
    C,
    Site,
    component,
    copied,
    ends,
    job,
    launches,
    of_kind,
    submissions,
)


def test_job_is_claimed_with_one_submission_per_component() -> None:
    """One request each, for walltime, margin, and what the placeholders may wait; that alone is cut to a limit."""
    limited = ClusterParameters(name=B, walltime_limit=720)
    site = Site({"a": 8, "b": 4}, Parameters(launch_margin=120, placeholder_life=900.0), limited)
    actions = site.submit(job("1", component("x", 5), component("y", 3), walltime=600))
    first, second = of_kind(SubmitPlaceholders, actions)
    assert actions == [
        SubmitPlaceholders(batch=first.batch, cluster=A, count=5, walltime=780),
        SubmitPlaceholders(batch=second.batch, cluster=B, count=3, walltime=720),
    ]
    assert site.record("1").state is JobState.CLAIMING
    assert site.state.clusters[A].queued == 5


def test_launch_when_all_are_held_and_not_before() -> None:
    site = Site({"a": 8, "b": 4})
    first, second, third = site.queue(job("1", component("x", 2, cluster="b"), component("y", 1, cluster="a")))
    assert site.hold(third) == []
    assert site.hold(first) == []
    (launch,) = site.hold(second)
    assert isinstance(launch, LaunchJob)
    assert [(r.rank, r.component, r.component_rank, r.placeholder) for r in launch.ranks] == [
        (0, "x", 0, first),
        (1, "x", 1, second),
        (2, "y", 0, third),
    ]
    assert {r.address for r in launch.ranks} == {"10.0.0.1"}
    assert {site.state.placeholders[id_].state for id_ in (first, second, third)} == {PlaceholderState.LAUNCHED}


def test_agents_that_report_early_or_again_launch_once() -> None:
    """Held is held, even if nobody knows the ids yet."""
    site = Site({"a": 8})
    site.submit(job("1", 2))
    assert launches(site.hold_all("1")) == ["1"]
    site.take_all()
    assert {p.state for p in site.claimed("1")} == {PlaceholderState.LAUNCHED}
    assert all(p.lrm_id for p in site.claimed("1"))
    site = Site({"a": 8})
    first, second = site.queue(job("1", 2))
    for id_ in (first, first, second, second, first):
        site.hold(id_)
    assert launches(site.actions) == ["1"]


def test_capacity_is_what_the_threshold_leaves() -> None:
    """With 8 processors and 3 for local users, jobs of 2 get 4 processors, and the third waits."""
    site = Site({"a": 8}, Parameters(), ClusterParameters(name=A, threshold=3))
    for number in range(3):
        site.submit(job(str(number), 2))
    assert site.state.clusters[A].managed == 4
    assert [site.record(str(n)).state for n in range(3)] == [JobState.CLAIMING, JobState.CLAIMING, JobState.WAITING]


def test_placeholders_in_flight_bound_what_waits_in_a_queue() -> None:
    site = Site({"a": 8}, Parameters(), ClusterParameters(name=A, placeholders_in_flight=3))
    site.submit(job("1", 3), job("2", 2))
    assert site.record("2").state is JobState.WAITING
    site.take_all()
    site.hold_all("1")
    assert submissions(site.poll("a", 8, idle=5, ours=3)) == {"a": 2}


def test_lost_placeholder_is_claimed_again_after_a_pause() -> None:
    """The held ones are kept, only what was lost is submitted again, on the same cluster."""
    site = Site({"a": 4}, Parameters(backoff=60.0))
    first, second, third = site.queue(job("1", 3))
    site.hold(first)
    assert submissions(site.ended(third, EndReason.NODE_LOST)) == {}
    assert submissions(site.pass_time(59.0)) == {}
    assert submissions(site.pass_time(61.0)) == {"a": 1}
    site.take_all()
    site.hold(second)
    assert launches(site.hold_all("1")) == ["1"]
    assert site.record("1").tries == 1


def test_retake_counts_settled_and_moving_components_together() -> None:
    """A reclaim never takes more than there is room for, whichever component it is for."""
    site = Site({"a": 6, "b": 4}, Parameters(backoff=10.0))
    site.submit(job("1", component("stays", 3, cluster="a"), component("moves", 2)))
    assert site.placed("1") == {"stays": (A, 3), "moves": (B, 2)}
    site.take_all()
    stays = [p.id for p in site.claimed("1") if p.component == "stays"]
    for id_ in stays[:2]:
        site.ended(id_, EndReason.NODE_LOST)
    for placeholder in site.claimed("1"):
        if placeholder.component == "moves":
            site.ended(placeholder.id, EndReason.NODE_LOST)
    site.post(ev.ClusterUnavailable(time=site.now, cluster=B, reason="no answer"))
    site.poll("a", 4, idle=1)
    site.pass_time(1000.0)
    assert site.state.clusters[A].managed == 1
    assert "moves" in site.record("1").last_trouble
    site.poll("a", 5)
    site.pass_time(4000.0)
    assert site.placed("1") == {"stays": (A, 3), "moves": (A, 2)}
    assert site.state.clusters[A].managed == 5


def test_lost_component_that_fits_nowhere_any_more_ends_the_job() -> None:
    """Its cluster has gone from the site file while it was to be claimed again."""
    site = Site({"a": 4, "b": 6}, Parameters(backoff=10.0))
    site.queue(job("1", component("x", 2, cluster="a"), component("y", 5)))
    site.hold_all("1", "a")
    for placeholder in site.claimed("1"):
        if placeholder.cluster == B:
            site.ended(placeholder.id, EndReason.NODE_LOST)
    site.post(ev.Configured(time=site.now, parameters=site.parameters, clusters=site.clusters[:1]))
    site.pass_time(30.0)
    assert site.outcome("1").state is JobState.REFUSED
    assert site.outcome("1").detail.startswith("component 'y' fits nowhere")


def test_walltime_drain() -> None:
    """A held processor that ends too soon for the job is given back and replaced, and the job not launched on it."""
    site = Site({"a": 4}, Parameters(backoff=30.0))
    first, second = site.queue(job("1", 2, walltime=600))
    site.hold(first, ends_at=site.now + 599)
    actions = site.hold(second, ends_at=site.now + 5000)
    assert launches(actions) == []
    assert ends(actions) == [str(first)]
    assert site.record("1").last_trouble == "1 held processors had less walltime left than the job needs"
    assert submissions(site.pass_time(60.0)) == {"a": 1}
    site.take_all()
    assert launches(site.hold_all("1")) == ["1"]


def test_walltime_drain_without_word_from_the_agent() -> None:
    """Where nobody says when a placeholder ends, what was asked from the LRM counts from its start."""
    site = Site({"a": 4, "b": 4}, Parameters(launch_margin=100, placeholder_life=300.0, backoff=5000.0))
    site.queue(job("1", component("x", 1, cluster="a"), component("y", 1, cluster="b"), walltime=600))
    site.hold_all("1", "a")
    del site.record("1").timers[TimerKind.LIFE]  # so that it can be held beyond its life
    site.pass_time(401.0)
    assert launches(site.hold_all("1", "b")) == []
    assert site.record("1").last_trouble == "1 held processors had less walltime left than the job needs"


def test_plan_changes_nothing() -> None:
    site = Site({"a": 4, "b": 2})
    result = site.scheduler.plan(job("1", component("x", 3), component("y", 1, 9)), site.now)
    assert result == Placed(
        components=(
            PlacedComponent(component="x", cluster=A, processors=3),
            PlacedComponent(component="y", cluster=B, processors=2),
        )
    )
    assert site.state.jobs == {}
    assert site.state.clusters[A].managed == 0


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (job("1", 5), "component 'c0' fits nowhere (a: needs 5 processors, at most 4 can be used there)"),
        (
            job("1", 1, placement="best"),
            (
                "there is no placement policy 'best'; there are: close-to-files, cluster-minimization, "
                "flexible-cluster-minimization, waiting-history, worst-fit"
            ),
        ),
    ],
    ids=["too large", "unknown policy"],
)
def test_what_can_never_run_is_refused_at_once(one: Job, said: str) -> None:
    (finished,) = of_kind(FinishJob, Site({"a": 4}).submit(one))
    outcome = finished.outcome
    assert (outcome.state, outcome.exit_code, outcome.detail) == (JobState.REFUSED, 240, said)


def test_known_id_is_refused_without_losing_anything() -> None:
    """The second job of an id is refused before anything changes: timers that are due fire with the next event."""
    site = Site({"a": 4}, Parameters(backoff=10.0))
    site.queue(job("1", 2))
    site.ended(site.claimed("1")[0].id, EndReason.NODE_LOST)
    site.now += 100
    with pytest.raises(JobRefusedError, match="exists already"):
        site.scheduler.handle(ev.JobSubmitted(time=site.now, job=job("1", 1)))
    assert submissions(site.pass_time(1.0)) == {"a": 1}


def test_job_submitted_before_the_first_poll_waits_and_is_then_judged() -> None:
    """Nothing is refused on hope alone; once all clusters are seen, what cannot fit is."""
    site = Site({})
    clusters = (ClusterParameters(name=A), ClusterParameters(name=B))
    site.post(ev.Configured(time=site.now, parameters=Parameters(), clusters=clusters))
    site.submit(job("large", 10), job("larger", 20))
    site.poll("a", 4)
    assert site.record("larger").state is JobState.WAITING
    site.poll("b", 10)
    assert site.record("large").state is JobState.CLAIMING
    assert site.outcome("larger").state is JobState.REFUSED


def test_one_empty_listing_refuses_nothing() -> None:
    site = Site({"a": 4})
    site.poll("a", 0)
    site.submit(job("1", component("x", 3, cluster="a")))
    assert site.record("1").state is JobState.WAITING
    assert submissions(site.poll("a", 4)) == {"a": 3}


def test_one_low_reading_at_the_end_of_an_hour_refuses_nothing() -> None:
    """What counts after an hour of fewer processors is the most of that hour, not its last reading."""
    site = Site({"a": 100})
    site.queue(job("large", 85))
    for readings, refused in (([90] * 60 + [10], False), ([10, 9] * 31, True)):
        for processors in readings:
            site.pass_time(60)
            site.poll("a", processors, idle=0)
        site.submit(job(f"after {readings[-1]}", 50))
        assert (site.record(f"after {readings[-1]}").state is JobState.REFUSED) is refused
    assert site.state.clusters[A].largest == 10


def test_cluster_that_shrank_is_believed_after_an_hour() -> None:
    """Room follows each reading at once; what can never run follows only when it has been so for an hour."""
    site = Site({"a": 8})
    site.submit(job("running", 8), job("1", 8))
    for _ in range(3):
        site.poll("a", 4, idle=0, ours=4)
        assert site.record("1").state is JobState.WAITING
        site.pass_time(1300.0)
    site.poll("a", 4, idle=0, ours=4)
    assert site.outcome("1").state is JobState.REFUSED


def test_cluster_taken_out_of_the_site_file() -> None:
    site = Site({"a": 4, "b": 4})
    site.submit(job("there", component("x", 4, cluster="a")), job("bound", component("x", 4, cluster="a")))
    site.run("there")
    site.post(ev.Configured(time=site.now, parameters=site.parameters, clusters=(ClusterParameters(name=B),)))
    assert site.outcome("bound").detail == "component 'x' fits nowhere (a: not in the site file)"
    assert site.record("there").state is JobState.RUNNING
    site.submit(job("free", 2))
    assert site.placed("free") == {"c0": (B, 2)}
    assert len(ends(site.complete("there"))) == 4


# -- Jobs that would only be queued, while clusters of the site have not answered their first poll -----------


def busy_first() -> Site:
    """Return a site whose cluster a, all of it busy, has answered; b has not."""
    site = Site({"a": 4}, unseen=("b",))
    site.poll("a", 4, idle=0)
    return site


@pytest.mark.parametrize(
    ("answer", "placed"),
    [
        (lambda site: site.poll("b", 4), {"b": 2}),
        (lambda site: site.poll("b", 4, idle=0), {"a": 2}),
        (lambda site: site.poll("b", 0), {"a": 2}),
        (lambda site: site.post(ev.ClusterUnavailable(time=site.now, cluster=B, reason="no answer")), {"a": 2}),
        (lambda site: site.pass_time(1.0), {"a": 2}),
    ],
    ids=["idle", "busy", "no processors", "a failure", "none in time"],
)
@pytest.mark.parametrize("restarted", [False, True])
def test_waits_for_a_cluster_that_may_have_idle_processors(
    answer: Callable[[Site], list[Action]], placed: dict[str, int], *, restarted: bool
) -> None:
    """It would be queued on the first one that answered, and stay there; the time that it may take is in the state."""
    site = busy_first()
    assert submissions(site.submit(job("1", 2))) == {}
    if restarted:
        site.scheduler = Scheduler(copied(site.state))
    assert submissions(site.pass_time(FIRST_LOOK - 1.0)) == {}
    assert submissions(answer(site)) == placed


def test_starts_at_once_on_processors_that_are_known_to_be_idle() -> None:
    site = Site({"a": 4}, unseen=("b",))
    assert submissions(site.submit(job("1", 3))) == {"a": 3}
    assert submissions(site.submit(job("2", 2))) == {}
    assert submissions(site.submit(job("3", 1))) == {"a": 1}
    site = Site({"a": 4}, unseen=("b",))
    site.poll("a", 4, idle=3)
    assert submissions(site.submit(job("1", 2, 2))) == {}
    assert submissions(site.poll("b", 2)) == {"a": 2, "b": 2}


def test_does_not_wait_for_a_cluster_that_cannot_take_it() -> None:
    """One that it does not name, or that cannot hold what would have to be queued."""
    site = busy_first()
    assert submissions(site.submit(job("1", component("x", 2, cluster="a")))) == {"a": 2}
    site = Site({"a": 4, "b": 4}, unseen=("c",))
    site.poll("a", 4, idle=0)
    parts = (component("queued", 2, cluster="a"), component("started", 2))
    assert submissions(site.submit(job("1", *parts))) == {"a": 2, "b": 2}


def test_tries_are_not_used_up_by_waiting() -> None:
    site = Site({"a": 4}, Parameters(scan_interval=1.0), unseen=("b",))
    site.poll("a", 4, idle=0)
    site.submit(job("1", 2, maximum_tries=2))
    site.pass_time(FIRST_LOOK - 1.0)
    assert site.record("1").state is JobState.WAITING
    site.poll("b", 4)
    assert site.placed("1") == {"c0": (B, 2)}


def test_a_cluster_that_is_added_later_is_waited_for_too() -> None:
    site = Site({"a": 4, "b": 4})
    site.poll("a", 4, idle=0)
    site.poll("b", 4, idle=0)
    site.post(ev.Configured(time=site.now, parameters=site.parameters, clusters=site.clusters))
    assert len(submissions(site.submit(job("1", 2)))) == 1
    more = (*site.clusters, *Site({}, unseen=("c",)).clusters)
    site.post(ev.Configured(time=site.now, parameters=site.parameters, clusters=more))
    assert submissions(site.submit(job("2", 2))) == {}
    assert submissions(site.poll("c", 4)) == {"c": 2}


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
    site = busy_first()
    site.submit(job("1", 2), job("2", component("x", 9, cluster="a"), component("y", 1, cluster="a")))
    site.now += 8.0
    assert site.explained("1") == (
        "The job is number 1 in the queue and needs 2 processors on one cluster. Before it is queued anywhere, the "
        "first answer of b is waited for, for another 22 s at most. It starts when that can be had at once: a has room "
        "for 4; b is not seen yet."
    )
    assert "first answer" not in site.explained("2")
    site.now += FIRST_LOOK
    assert "first answer" not in site.explained("1")


# -- What becomes of submissions: refused, absent, uncertain, and kept waiting by their batch system.


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


def asked(site: Site) -> list[int]:
    """Return the seconds beyond job and margin that submissions have asked for."""
    return [one.walltime - 720 for one in of_kind(SubmitPlaceholders, site.actions)]


def test_one_placeholder_waits_for_no_other() -> None:
    site = Site({"a": 1}, Parameters(launch_margin=120, placeholder_life=900.0))
    site.submit(job("1", 1, walltime=600), job("2", 1, walltime=600))
    assert asked(site) == [0]


def test_placeholders_last_as_long_as_others_have_waited() -> None:
    """The whole life is asked for while nothing is known, and once a claim has come to nothing."""
    site = Site({"a": 4, "b": 4}, Parameters(launch_margin=120, placeholder_life=900.0))
    site.poll("b", 4, 0)
    parts = (component("x", 2, cluster="a"), component("y", 2, cluster="b"))
    site.submit(job("1", *parts, walltime=600))
    site.pass_time(100)
    site.run("1")
    site.finish("1")
    site.poll("a", 4)
    site.poll("b", 4, 0)
    site.submit(job("2", *parts, walltime=600))
    site.take_all()
    site.ended(site.claimed("2")[0].id)
    site.pass_time(300)
    assert asked(site) == [900, 900, 260, 260, 900]


def test_placeholders_that_another_job_may_get_next_last_longer() -> None:
    for reuse, life in ((True, 900), (False, 60)):
        site = Site({"a": 4}, Parameters(launch_margin=120, placeholder_life=900.0, reuse=reuse))
        site.submit(*(job(id_, 4, walltime=600) for id_ in "123"))
        site.cancel("1")
        site.take_all()
        site.end_ending()
        site.poll("a", 4)
        assert asked(site) == [60, life]


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
        "without it, the job needs 7 processors at once, the clusters that suit it have 4 together (b: 4)"
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


def test_a_job_goes_elsewhere_when_a_limit_keeps_it() -> None:
    """While it waits, the reason of the batch system is quoted."""
    site = queued({"a": 8, "b": 6})
    keep(site)
    assert f"4 kept waiting by the batch system ({LIMIT}) for 0 s)" in site.explained()
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
    site.demand(6)
    site.take_all()
    keep(site, cluster=B)
    site.pass_time(KEPT_PATIENCE / 2)
    assert len(site.parts) == 2
    actions = site.pass_time(KEPT_PATIENCE)
    assert len(of_kind(WithdrawOffer, actions)) == 1
    site.idle_again()
    assert LIMIT in site.explained()
    site.pass_time(3600)
    answer = site.demand(6, 2)
    assert (answer.processors, list(site.parts)) == (3, [A])

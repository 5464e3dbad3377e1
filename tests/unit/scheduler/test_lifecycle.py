# SPDX-License-Identifier: Apache-2.0
"""Bounded holding: life cycle, hand-back, back-off, MISSING agents, silence, endings, and tries that run out."""

from __future__ import annotations

import itertools

import pytest

from koala_adapter.errors import EXIT_NOT_PLACED
from koala_adapter.model import EndReason, JobId, PlaceholderId
from koala_adapter.outcome import JobState, PlaceholderState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import ReadPlaceholderOutput
from koala_adapter.scheduler.context import backoff, grace, life
from koala_adapter.scheduler.parameters import Parameters
from koala_adapter.scheduler.records import JobRecord
from tests.unit.scheduler.scheduler_site import A, B, Site, component, ends, job, launches, submissions

LIFE = Parameters(placeholder_life=100.0, backoff=50.0, longest_backoff=400.0, end_patience=10.0)


def half_held(parameters: Parameters = LIFE) -> Site:
    """Return a site with a job that holds 2 processors on a and waits for 2 in the queue of b."""
    site = Site({"a": 4, "b": 4}, parameters)
    site.queue(job("1", component("x", 2, cluster="a"), component("y", 2, cluster="b")))
    site.hold_all("1", "a")
    return site


def test_life_begins_with_the_first_held_processor() -> None:
    """Waiting in queues may take for ever; holding may not."""
    site = Site({"a": 4}, LIFE)
    site.queue(job("1", 2))
    assert site.pass_time(100_000.0) == []
    site.hold(site.claimed("1")[0].id)
    end = site.record("1").life_ends_at
    assert end is not None
    assert 20.0 <= end - site.now <= 100.0


def test_hand_back_keeps_the_places_in_the_queues() -> None:
    site = half_held()
    held = [str(p.id) for p in site.claimed("1") if p.held]
    queued = [p.id for p in site.claimed("1") if not p.held]
    actions = site.pass_time(100.0)
    assert sorted(set(ends(actions))) == sorted(held)
    assert [p.id for p in site.claimed("1")] == queued
    record = site.record("1")
    assert (record.state, record.hand_backs, record.tries) == (JobState.CLAIMING, 1, 1)
    assert record.last_trouble == "2 held processors were handed back after their life cycle, still waiting on b"
    site.end_ending()
    assert submissions(site.pass_time(101.0)) == {"a": 2}
    site.take_all()
    site.hold_all("1", "b")
    assert launches(site.hold_all("1", "a")) == ["1"]


def test_handed_back_component_may_move() -> None:
    site = Site({"a": 4, "b": 4, "c": 3}, LIFE)
    site.submit(job("1", component("free", 3), component("bound", 4, cluster="b")))
    assert site.placed("1")["free"] == (A, 3)
    site.take_all()
    site.hold_all("1", "a")
    site.pass_time(100.0)
    site.end_ending()
    site.poll("a", 4, idle=0)
    assert submissions(site.pass_time(101.0)) == {"c": 3}


def test_all_handed_back_puts_the_job_into_the_queue() -> None:
    """A job that holds and awaits nothing any more waits for its pause, then in its old place in the queue."""
    site = Site({"a": 4, "b": 4}, LIFE)
    site.queue(job("1", component("x", 2, cluster="a"), component("y", 1, cluster="b"), submitted_at=1.0))
    site.hold_all("1", "a")
    (lost,) = (p.id for p in site.claimed("1") if p.cluster == B)
    site.ended(lost, EndReason.CANCELLED)
    site.post(ev.ClusterUnavailable(time=site.now, cluster=B, reason="down"))
    site.pass_time(101.0)
    record = site.record("1")
    assert record.state is JobState.WAITING
    assert record.not_before is not None
    assert site.scheduler.queue_position(JobId("1")) is None
    site.submit(job("2", component("x", 1, cluster="b"), submitted_at=2.0))
    site.pass_time(400.0)
    assert site.scheduler.queue_position(JobId("1")) == 1


def test_delivery_during_the_pause_claims_at_once() -> None:
    """When the queue delivers while the rest is handed back, the rest is claimed without waiting for the pause."""
    site = half_held()
    site.pass_time(101.0)
    site.end_ending()
    first, second = (p.id for p in site.claimed("1"))
    assert submissions(site.hold(first)) == {}
    assert submissions(site.hold(second)) == {"a": 2}


def test_pause_begins_with_the_hand_back() -> None:
    """A pause that began earlier and is over in the same moment does not take back what was just given."""
    site = half_held()
    site.pass_time(60.0)
    site.ended(site.claimed("1")[-1].id, EndReason.NODE_LOST)
    site.now += 70.0
    actions = site.post(ev.TimeReached(time=site.now))
    assert len(ends(actions)) == 2
    assert submissions(actions) == {}


def test_life_of_what_is_lost_already_is_no_hand_back() -> None:
    """Losing the only held processor was counted once; the end of its life is not counted again."""
    site = Site({"a": 4, "b": 4}, Parameters(placeholder_life=100.0, backoff=5000.0))
    site.queue(job("1", component("x", 1, cluster="a"), component("y", 1, cluster="b")))
    site.hold_all("1", "a")
    site.ended(site.claimed("1")[0].id, EndReason.NODE_LOST)
    site.pass_time(200.0)
    assert (site.record("1").hand_backs, site.record("1").tries) == (0, 1)


@pytest.mark.parametrize(("first", "longest"), [(60.0, 3600.0), (1.0, 10.0), (0.0, 0.0)])
def test_pauses_grow_to_a_bound(first: float, longest: float) -> None:
    """Each pause is about twice the one before, never beyond the longest and never nothing."""
    record = JobRecord(job=job("1", 1), claims=[])
    parameters = Parameters(backoff=first, longest_backoff=longest)
    pauses = []
    for failed_claims in range(1, 40):
        record.failed_claims = failed_claims
        pauses.append(backoff(record, parameters))
    for number, pause in enumerate(pauses):
        assert pause >= 1.0
        assert pause >= first
        assert min(longest / 2, first * 2**number) <= pause <= max(1.0, min(longest, 2 * first * 2**number))


@pytest.mark.parametrize("failed_claims", [1, 3, 30])
def test_jobs_and_instances_do_not_move_in_step(failed_claims: int) -> None:
    """Two jobs with the same history pause for different times, in one instance or two; at the longest pause, too."""
    pauses = set()
    for name in "abcdefgh":
        for instance in ("k", "l"):
            record = JobRecord(job=job(name, 1), claims=[], failed_claims=failed_claims)
            pauses.add(backoff(record, Parameters(instance=instance, backoff=60.0, longest_backoff=3600.0)))
    assert len(pauses) == 16


def test_lives_are_gaps_apart() -> None:
    """Two instances draw lives that are equal or far apart, and those that were equal differ after failed claims."""
    names = [f"{number:08x}" for number in range(40)]
    for longest, gap in ((12.0, 3.9), (120.0, 26.0), (900.0, 60.0)):
        lives = [[_life(name, longest, failed_claims) for failed_claims in range(16)] for name in names]
        distinct = sorted({one for row in lives for one in row})
        assert distinct[0] >= longest / 5
        assert distinct[-1] + grace(Parameters(placeholder_life=longest)) == longest
        assert min(b - a for a, b in itertools.pairwise(distinct)) >= gap
        assert all(one != other for one, other in itertools.combinations(lives, 2))


def _life(instance: str, longest: float, failed_claims: int) -> float:
    record = JobRecord(job=job("1", 1), claims=[], failed_claims=failed_claims)
    return life(record, Parameters(instance=instance, placeholder_life=longest))


def _about_to_give_back() -> Site:
    """Return a site where job 1 holds its half on a, a second before its life ends, and b is somebody else's."""
    site = Site({"a": 4, "b": 4}, LIFE)
    site.queue(job("1", component("x", 2, cluster="a"), component("y", 2, cluster="b")))
    site.hold_all("1", "a")
    site.pass_time((site.record("1").life_ends_at or 0.0) - site.now - 1.0)
    return site


def test_what_begins_to_start_is_waited_for_but_not_for_ever() -> None:
    site = _about_to_give_back()
    missing = [p.id for p in site.claimed("1") if p.cluster == B]
    for one in missing:
        site.post(ev.PlaceholderStarted(time=site.now, placeholder=one))
    assert ends(site.pass_time(1.0 + grace(LIFE) / 2)) == []
    site.hold_all("1", "b")
    assert launches(site.actions) == ["1"]
    site = _about_to_give_back()
    began = site.now
    for one in [p.id for p in site.claimed("1") if p.cluster == B]:
        site.post(ev.PlaceholderStarted(time=site.now, placeholder=one))
    assert ends(site.pass_time(1.0)) == []
    assert len(set(ends(site.pass_time(grace(LIFE))))) == 4
    assert site.record("1").hand_backs == 1
    assert site.now - began == 1.0 + grace(LIFE)


def test_a_placeholder_that_has_been_starting_for_long_does_not_lengthen_a_life() -> None:
    """An agent that does not report is no sign that somebody else gave way."""
    site = Site({"a": 4, "b": 4}, LIFE)
    site.queue(job("1", component("x", 2, cluster="a"), component("y", 2, cluster="b")))
    for one in [p.id for p in site.claimed("1") if p.cluster == B]:
        site.post(ev.PlaceholderStarted(time=site.now, placeholder=one))
    site.hold_all("1", "a")
    assert len(set(ends(site.pass_time((site.record("1").life_ends_at or 0.0) - site.now)))) == 4


def test_an_early_retake_without_room_is_no_claim_failed() -> None:
    """What was handed back is still counted when the rest comes: it is claimed again when it is gone, without delay."""
    site = Site({"a": 2, "b": 2}, LIFE)
    site.queue(job("1", component("x", 2, cluster="a"), component("y", 2, cluster="b")))
    site.hold_all("1", "a")
    site.pass_time(100.0)
    assert (site.record("1").failed_claims, site.record("1").hand_backs) == (1, 1)
    due = site.record("1").reclaim_at
    assert submissions(site.hold_all("1", "b")) == {}
    assert (site.record("1").failed_claims, site.record("1").reclaim_at) == (1, due)
    before = len(site.actions)
    site.end_ending()
    assert submissions(site.actions[before:]) == {"a": 2}


def test_tries_run_out_while_claiming() -> None:
    site = Site({"a": 4}, Parameters(maximum_tries=3, backoff=10.0))
    site.submit(job("1", 2))
    for _ in range(3):
        site.take_all()
        site.ended(site.claimed("1")[0].id, EndReason.NODE_LOST, "node a1 is down")
        site.pass_time(100.0)
    outcome = site.outcome("1")
    assert (outcome.state, outcome.exit_code) == (JobState.NOT_PLACED, EXIT_NOT_PLACED)
    assert outcome.detail.startswith("not placed in 3 tries (the limit is 3); last: placeholder koala-k-")
    assert outcome.detail.endswith("on a node lost: node a1 is down")
    site.end_ending()
    assert not site.state.placeholders


def test_tries_run_out_while_waiting() -> None:
    """Each scan at the interval is a try; the job's own limit goes before the site's."""
    site = Site({"a": 4}, Parameters(scan_interval=15.0, maximum_tries=1000))
    site.submit(job("other", 4), job("1", 2, maximum_tries=4))
    site.pass_time(59.0)
    assert site.record("1").state is JobState.WAITING
    site.pass_time(2.0)
    outcome = site.outcome("1")
    assert outcome.detail == (
        "not placed in 4 tries (the limit is 4); last: component 'c0' needs 2 processors (a: room for 0)"
    )
    assert site.state.tries_end == {}


def test_last_try_is_a_try() -> None:
    """A job that fits at the very scan that would give it up is placed."""
    site = Site({"a": 4}, Parameters(scan_interval=15.0))
    site.submit(job("other", 4), job("1", 2, maximum_tries=2))
    site.pass_time(20.0)
    record = site.state.clusters[A]
    record.processors = record.largest = 6  # room that no event announced
    site.pass_time(10.0)
    assert site.record("1").state is JobState.CLAIMING


def test_scans_in_the_queue_count_when_the_job_is_placed_in_between() -> None:
    site = Site({"a": 4}, Parameters(scan_interval=15.0, backoff=10.0))
    site.submit(job("other", 4), job("1", 2))
    site.pass_time(61.0)
    site.cancel("other")
    site.take_all()
    site.end_ending()
    assert site.record("1").state is JobState.CLAIMING
    assert site.record("1").tries == 4
    site.take_all()
    site.ended(site.claimed("1")[0].id, EndReason.NODE_LOST)
    assert site.record("1").tries == 5


def test_higher_limit_after_a_restart_counts() -> None:
    site = Site({"a": 4}, Parameters(scan_interval=15.0, maximum_tries=4))
    site.submit(job("other", 4), job("1", 2))
    more = Parameters(scan_interval=15.0, maximum_tries=8)
    site.post(ev.Configured(time=site.now, parameters=more, clusters=site.clusters))
    site.pass_time(100.0)
    assert site.record("1").state is JobState.WAITING
    site.pass_time(30.0)
    assert site.outcome("1").state is JobState.NOT_PLACED


# ---- MISSING ---------------------------------------------------------------------------------------------------------


def started(site: Site, id_: str) -> list[str]:
    """Report all placeholders of a job as started by the LRM; return their names."""
    site.take_all()
    for placeholder in site.claimed(id_):
        site.post(ev.PlaceholderStarted(time=site.now, placeholder=placeholder.id))
    return [str(p.id) for p in site.claimed(id_)]


def test_missing_agent_is_replaced() -> None:
    site = Site({"a": 4}, Parameters(registration_timeout=120.0, backoff=10.0))
    site.submit(job("1", 1))
    (name,) = started(site, "1")
    assert ends(site.pass_time(119.0)) == []
    assert ends(site.pass_time(2.0), force=True) == [name]
    assert site.record("1").last_trouble == (
        f"MISSING: placeholder {name} on a started but its agent did not report in 120 s"
    )
    assert submissions(site.pass_time(20.0)) == {"a": 1}


@pytest.mark.parametrize("by_themselves", [False, True])
def test_missing_agents_pause_the_cluster(*, by_themselves: bool) -> None:
    """After three in a row nothing goes there for a while; then one more chance, until an agent reports again."""
    site = Site({"a": 4, "b": 4}, Parameters(missing_limit=3, pause=600.0, registration_timeout=60.0, backoff=10.0))
    site.submit(job("1", 3))
    started(site, "1")
    if by_themselves:
        for placeholder in list(site.claimed("1")):
            site.ended(placeholder.id, EndReason.LAUNCH_FAILED)
    else:
        site.pass_time(60.0)
        site.end_ending()
    assert site.state.clusters[A].paused_until == pytest.approx(site.now + 600)
    assert submissions(site.pass_time(30.0)) == {"b": 3}
    site.submit(job("2", component("x", 2, cluster="a")))
    assert site.record("2").state is JobState.WAITING
    assert submissions(site.pass_time(600.0)) == {"a": 2}
    site.take_all()
    site.hold_all("2")
    assert site.state.clusters[A].missing_in_a_row == 0


def test_what_an_agent_that_ended_by_itself_wrote_is_told() -> None:
    """As of one that did not report in time: its words are asked for, and added to the trouble of its job."""
    site = Site({"a": 4}, Parameters(registration_timeout=60.0))
    site.submit(job("1", 1))
    (name,) = started(site, "1")
    site.ended(site.claimed("1")[0].id, EndReason.LAUNCH_FAILED)
    asked = [action for action in site.actions if isinstance(action, ReadPlaceholderOutput)]
    assert [str(action.placeholder) for action in asked] == [name]
    site.post(ev.PlaceholderSaid(time=site.now, cluster=A, job_id=JobId("1"), text="No space left on device"))
    assert site.record("1").last_trouble.startswith(f"placeholder {name} on a launch failed")
    assert site.record("1").last_trouble.endswith("; it wrote: No space left on device")


def test_agent_that_reports_late_is_told_to_end() -> None:
    site = Site({"a": 4}, Parameters(registration_timeout=60.0))
    site.submit(job("1", 1))
    started(site, "1")
    late = site.claimed("1")[0].id
    site.pass_time(61.0)
    assert ends(site.hold(late), force=False) == [str(late)]
    assert launches(site.actions) == []


# ---- silence ---------------------------------------------------------------------------------------------------------


def silent(site: Site, id_: str, number: int = 0) -> None:
    placeholder = site.claimed(id_)[number].id
    site.post(ev.PlaceholderSilent(time=site.now, placeholder=placeholder, detail="connection reset"))


def test_silent_agent_is_lost_with_its_job_unless_it_comes_back_within_the_lease() -> None:
    """It has ended itself by then; the placeholder is cancelled through the LRM as well."""
    site = Site({"a": 4}, Parameters(lease=300.0))
    site.start(job("1", 2, walltime=9000))
    for _ in range(5):
        silent(site, "1")
        assert site.pass_time(299.0) == []
        site.hold(site.claimed("1")[0].id)
    assert site.pass_time(1000.0) == []
    assert site.record("1").state is JobState.RUNNING
    name = str(site.claimed("1")[0].id)
    silent(site, "1")
    actions = site.pass_time(316.0)
    outcome = site.outcome("1")
    assert (outcome.state, outcome.reason, outcome.exit_code) == (JobState.LOST, EndReason.LOST, 242)
    assert "no contact with its agent for 315 s; it has ended itself by its lease" in outcome.detail
    assert name in ends(actions, force=True)


def suspended(site: Site, *placeholders: PlaceholderId) -> None:
    site.post(ev.SuspensionsSeen(time=site.now, cluster=A, placeholders=placeholders))


def test_a_suspended_agent_is_said_to_be_suspended() -> None:
    """Since when, by whom, and why the job is lost: not by an agent that has ended itself."""
    site = Site({"a": 4}, Parameters(lease=300.0))
    site.start(job("1", 2, walltime=9000))
    one = site.claimed("1")[0].id
    suspended(site, one)
    silent(site, "1")
    site.pass_time(10.0)
    suspended(site, one)
    text = site.explained()
    assert "1 of its placeholders on a is suspended by the batch system for 10 s." in text
    assert "if that lasts another" in text
    site.pass_time(306.0)
    assert "its batch system lists it as suspended, for 315 s" in site.outcome("1").detail


def test_a_site_can_have_jobs_wait_for_what_is_suspended() -> None:
    """As long as the batch system says so, and as long as an agent has to come back after that."""
    site = Site({"a": 4}, Parameters(lease=300.0, await_suspended=True))
    site.start(job("1", 2, walltime=90_000))
    one = site.claimed("1")[0].id
    suspended(site, one)
    silent(site, "1")
    site.pass_time(2000.0)
    assert "if that lasts" not in site.explained()
    suspended(site)
    site.pass_time(310.0)
    assert site.record("1").state is JobState.RUNNING
    site.hold(one)
    site.pass_time(1000.0)
    assert site.record("1").state is JobState.RUNNING
    suspended(site, one)
    silent(site, "1")
    site.pass_time(1000.0)
    suspended(site)
    site.pass_time(316.0)
    assert "ended itself by its lease" in site.outcome("1").detail


def test_silence_beyond_the_lease_while_claiming_claims_another() -> None:
    site = Site({"a": 4}, Parameters(lease=100.0, backoff=10.0, placeholder_life=5000.0))
    site.queue(job("1", 2))
    site.hold(site.claimed("1")[0].id)
    silent(site, "1")
    assert submissions(site.pass_time(150.0)) == {"a": 1}


# ---- ending ----------------------------------------------------------------------------------------------------------


def test_ending_is_insisted_on_until_it_is_over() -> None:
    """First the agent is told, then the LRM is asked, again and again at a fixed pace, until the end is seen."""
    site = Site({"a": 4}, Parameters(end_patience=10.0))
    (id_,) = site.queue(job("1", 1))
    assert ends(site.cancel("1"), force=False) == [str(id_)]
    assert ends(site.pass_time(9.0)) == []
    assert ends(site.pass_time(2.0), force=True) == [str(id_)]
    assert len(ends(site.pass_time(600.0), force=True)) == 10
    site.ended(id_)
    assert site.pass_time(600.0) == []


def test_repeated_reports_do_not_multiply_the_timers() -> None:
    site = Site({"a": 4}, Parameters(end_patience=10.0))
    (id_,) = site.queue(job("1", 1))
    site.cancel("1")
    for _ in range(20):
        site.hold(id_)
        site.post(ev.PlaceholderEnding(time=site.now, placeholder=id_, reason=EndReason.CANCELLED))
    site.pass_time(15.0)
    assert len(ends(site.pass_time(600.0), force=True)) == 10
    assert len(site.scheduler.timetable) <= 2


def test_no_setting_makes_it_spin() -> None:
    """With every pause set to 0 there is still a second between two attempts."""
    nothing = Parameters(end_patience=0.0, backoff=0.0, longest_backoff=0.0)
    site = Site({"a": 4}, nothing)
    site.queue(job("1", 1))
    site.ended(site.claimed("1")[0].id, EndReason.NODE_LOST)
    site.take_all()
    site.cancel("1")
    before = len(site.events)
    site.pass_time(10.0)
    assert len(site.events) - before < 30


def test_agent_that_must_end_is_not_free_before_it_is_gone() -> None:
    """Its processor counts as ours until the LRM no longer has it."""
    site = Site({"a": 1}, Parameters(backoff=5.0))
    (id_,) = site.queue(job("1", 1))
    actions = site.post(ev.PlaceholderEnding(time=site.now, placeholder=id_, reason=EndReason.WALLTIME, detail="term"))
    assert ends(actions) == [str(id_)]
    assert site.state.placeholders[id_].state is PlaceholderState.ENDING
    assert submissions(site.pass_time(30.0)) == {}
    assert submissions(site.ended(id_)) == {"a": 1}

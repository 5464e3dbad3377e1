# SPDX-License-Identifier: Apache-2.0
"""The picture of a batch system's queue: what it shows is what the policies know, and their word becomes starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koala_adapter.errors import LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm.listing import Listing
from koala_adapter.lrm.startlog import Pin
from koala_adapter.lrm.starts import Stage
from koala_adapter.model import HoldOwner, LrmJobState, NodeState, Queue
from koala_adapter.ordering import passes
from koala_adapter.ordering.jobs import JobEventKind, Phase, Rules
from koala_adapter.ordering.passes import MOST_GUARDS, MisfitRules
from tests.unit.ordering.ordering_site import PATIENCE, Listed, accepted, node, starting


def test_jobs_are_started_in_order_and_backfilled() -> None:
    """What fits starts; a wide job gets a start reserved, and only what ends before it may overtake it."""
    site = Listed()
    site.submit_all(("1", 24, 100), ("2", 32, 100), ("3", 8, 500), ("4", 8, 90))
    assert site.step() == ["1", "4"]
    assert [(one.job_id, one.at) for one in site.told(JobEventKind.RESERVED)] == [("2", 1101.0)]
    site.end("4")
    assert site.step() == []
    site.end("1")
    assert site.step() == ["2"]
    site.end("2")
    assert site.step() == ["3"]
    assert site.step() == []
    assert {one.job_id for one in site.told(JobEventKind.STARTED)} == {"1", "3"}
    assert [one.job_id for one in site.told(JobEventKind.ENDED)] == ["4", "1", "2"]


def test_first_come_first_served_overtakes_nobody() -> None:
    """Also where the first one fits in sum but not on nodes."""
    site = Listed("fcfs")
    site.submit("1", 4, requested_nodes=("n1",))
    site.submit("2", 4, requested_nodes=("n2",))
    assert site.step() == ["1", "2"]
    site.submit("3", 16, nodes_wanted=2, requested_nodes=("n1", "n2"))
    site.submit("4", 1)
    assert site.step() == []
    assert "16 processors on 2 nodes" in site.told(JobEventKind.PASSED_OVER)[0].detail
    site.end("1", "2")
    assert site.step() == ["3", "4"]


@pytest.mark.parametrize("policy", ["easy", "conservative", "firstfit"])
def test_a_job_that_fits_in_sum_only_is_passed_over_and_not_starved(policy: str) -> None:
    """Others go first, but on its nodes only those that end before it can start."""
    site = Listed(policy)
    for number in range(1, 5):
        site.submit(f"r{number}", 4, 100, requested_nodes=(f"n{number}",))
    assert len(site.step()) == 4
    site.submit("wide", 16, 100, nodes_wanted=2, tasks_per_node=8, submitted_at=site.now - 1)
    site.submit_all(("long", 4, 5000), ("longer", 8, 5000), ("short", 4, 50))
    assert site.step() == ["long", "short"]
    assert "wide" in {one.job_id for one in site.told(JobEventKind.PASSED_OVER)}
    site.end("r1", "r2", "r3", "r4")
    assert "wide" in site.step(100)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"hold": HoldOwner.USER}, "its user holds it"),
        ({"hold": HoldOwner.SYSTEM, "reason": "launch failed"}, "batch system holds it (launch failed)"),
        ({"dependent": True, "reason": "Dependency"}, "waits for other jobs"),
        ({"eligible_at": 5000.0}, "begin time"),
        ({"state": LrmJobState.QUEUED, "hold": None}, "not in hold"),
        ({"state": LrmJobState.UNKNOWN, "raw_state": "ODD"}, "ODD"),
        ({"queue": "none"}, "no node serves queue none"),
        ({"queue": "off"}, "queue off is down"),
        ({"features": ("gpu",)}, "even with nothing else running"),
        ({"processors": 33}, ""),
    ],
)
def test_what_may_not_be_started_is_left_out(values: dict[str, Any], reason: str) -> None:
    """With the reason; and it is in nobody's way."""
    site = Listed(nodes=[node(f"n{n}", queues=("on", "off")) for n in range(1, 5)])
    site.queues = {
        "on": Queue(name="on", up=True, processors=32, default=True),
        "off": Queue(name="off", up=False, processors=32),
    }
    processors = values.pop("processors", 4)
    site.submit("odd", processors, **{"queue": "on", **values})
    site.submit("even", 32, queue="on")
    assert site.step() == ["even"]
    entry = site.mirror.entries[site.jobs["odd"].id]
    assert reason in entry.reason
    assert (entry.phase is Phase.LEFT_OUT) == bool(entry.reason)


def test_the_site_may_say_that_user_holds_are_its_own() -> None:
    """Where the batch system's submission default can only give a user hold."""
    site = Listed(rules=Rules(user_holds=True))
    site.submit("1", 4, hold=HoldOwner.USER)
    assert site.step() == ["1"]


def test_a_batch_system_that_divides_jobs_itself() -> None:
    """Each job gets one node, and what needs more is left to others, with the reason."""
    site = Listed(rules=Rules(one_node=True))
    site.submit_all(("1", 6), ("2", 6), ("3", 9))
    assert site.step() == ["1", "2"]
    assert [len(site.jobs[one].layout) for one in ("1", "2")] == [1, 1]
    assert "9 processors on one node" in site.mirror.entries[site.jobs["3"].id].reason


def test_elements_of_an_array_one_after_the_other() -> None:
    """Where the batch system pins whole arrays, the next one starts when the one before runs."""
    site = Listed(rules=Rules(one_by_one=True))
    for number in (1, 2):
        site.submit(f"7.{number}", 4, array_index=number)
    site.submit("8.1", 4, array_index=1)
    assert site.step() == ["7.1", "8.1"]
    assert "one at a time" in site.told(JobEventKind.PASSED_OVER)[0].detail
    assert site.step() == ["7.2"]


def test_others_starts_and_ends_are_taken_in() -> None:
    site = Listed()
    site.submit("1", 24, state=LrmJobState.RUNNING, hold=None, layout=(("n1", 8), ("n2", 8), ("n3", 8)))
    site.submit("2", 16)
    assert site.step() == []
    assert [one.job_id for one in site.told(JobEventKind.ADOPTED)] == ["1"]
    site.end("2")
    site.submit("3", 8)
    assert site.step() == ["3"]
    site.end("1", "3")
    site.submit("4", 32)
    assert site.step() == ["4"]


def test_nodes_that_go_down_make_the_cluster_smaller() -> None:
    site = Listed()
    site.nodes["n1"] = node("n1", state=NodeState.DOWN)
    site.nodes["n2"] = node("n2", processors_used=6)
    site.submit_all(("1", 32), ("2", 18))
    assert site.step() == ["2"]
    assert dict(site.jobs["2"].layout) == {"n3": 8, "n4": 8, "n2": 2}
    site.end("2")
    site.nodes = {name: node(name) for name in site.nodes}
    assert site.step() == ["1"]


def test_a_drained_node_shrinks_as_its_jobs_end() -> None:
    site = Listed()
    site.submit("1", 8, requested_nodes=("n1",))
    assert site.step() == ["1"]
    site.nodes["n1"] = node("n1", state=NodeState.DRAINING)
    site.submit("2", 25)
    assert site.step() == []
    site.end("1")
    assert site.step() == []
    assert site.mirror.schedulers[0].processors == 24


def test_queues_without_common_nodes_do_not_wait_for_each_other() -> None:
    site = Listed(nodes=[node("a", queues=("day",)), node("b", queues=("night",)), node("c", queues=("night",))])
    site.queues = {name: Queue(name=name, up=True, processors=8) for name in ("day", "night")}
    site.submit("1", 4, queue="day")
    site.submit("2", 8, queue="day")
    site.submit("3", 16, 9000, queue="night")
    assert site.step() == ["1", "3"]
    assert dict(site.jobs["3"].layout) == {"b": 8, "c": 8}


def test_nodes_that_move_to_another_queue_take_its_jobs() -> None:
    """What waits then is decided anew, and what runs holds its processors there."""
    site = Listed(nodes=[node("a", queues=("day",)), node("b", queues=("day",)), node("c", queues=("night",))])
    site.queues = {name: Queue(name=name, up=True, processors=8) for name in ("day", "night")}
    site.submit("1", 12, queue="day")
    site.submit("2", 8, queue="night")
    site.submit("3", 10, queue="night")
    assert site.step() == ["1", "2"]
    site.nodes["b"] = node("b", queues=("night",))
    site.end("2")
    assert site.step() == ["3"]
    assert dict(site.jobs["3"].layout) == {"c": 8, "b": 2}


def test_a_changed_walltime_is_a_changed_promise() -> None:
    """A running job that may run longer moves the reservation; a waiting one that got shorter may slip in."""
    site = Listed()
    site.submit_all(("1", 24, 100), ("2", 32, 100), ("3", 8, 500))
    assert site.step() == ["1"]
    site.change("3", walltime=60)
    assert site.step() == ["3"]
    site.change("1", walltime=5000)
    site.submit("4", 8, 300)
    site.end("3")
    assert site.step() == ["4"]
    assert {one.job_id for one in site.told(JobEventKind.CHANGED)} == {"1", "3"}


def test_a_start_is_counted_before_it_shows() -> None:
    site, start = accepted(20)
    site.submit_all(("2", 20), ("3", 12))
    (other,) = site.look()
    assert other.job_id == "3"
    assert not set(dict(start.nodes).items()) & {(n, 8) for n, _ in other.nodes}


def test_nodes_that_we_ourselves_occupy_for_a_start_stay_in_the_plan() -> None:
    """They look reserved for a moment; a wide job is not set aside meanwhile, and nothing slips in before it."""
    site, start = starting(20, 100)
    site.mirror.starts.advance(start.job_id, Stage.ASKED, site.now)
    site.submit_all(("2", 32, 100), ("3", 8, 500))
    for name, _ in start.nodes:
        site.nodes[name] = node(name, state=NodeState.DRAINING)
    assert site.step() == []
    assert site.mirror.schedulers[0].processors == 32
    site.run(start)
    site.accept(start.job_id)
    assert site.step() == []
    assert site.mirror.schedulers[0].processors == 32
    site.mirror.starts.advance(start.job_id, Stage.CONFIRMED, site.now + 0.5)
    assert site.step() == []
    assert site.mirror.schedulers[0].processors == 20


def test_a_start_that_does_not_show_is_taken_back() -> None:
    """After some time it is to be held again, and is tried later with the nodes its user asked for."""
    site, start = accepted(4, requested_nodes=("n1",))
    site.change("1", state=LrmJobState.QUEUED, hold=None, reason="Resources")
    assert site.look(5.0) == []
    assert site.mirror.starts_to_undo() == []
    assert site.look(6.0) == []
    assert site.mirror.starts_to_undo() == ["1"]
    assert "did not start within 11 s (Resources)" in site.told(JobEventKind.NOT_STARTED)[0].detail
    site.change("1", state=LrmJobState.HELD, hold=HoldOwner.USER)
    site.start_undone(start.job_id)
    assert site.look() == []
    assert site.mirror.starts_to_undo() == []
    assert "tried again in" in site.mirror.entries[start.job_id].reason
    (again,) = site.look(5.0)
    assert again.failures == 1
    assert again.wishes
    assert again.wishes.requested_nodes == ("n1",)
    site.run(again)
    site.look()
    assert [(pin.started, pin.failures, pin.failure) for pin in site.mirror.starts.pins.values()] == [(True, 0, "")]
    site.end("1")
    site.look()
    assert site.mirror.starts.pins == {}


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ((("n1", 4),), ""),
        ((("n1", 8),), "with more processors than it asked for"),
        ((("n1", 2),), "with other processors on each than we said"),
        ((("n2", 4),), "on other nodes than we said"),
    ],
)
def test_where_a_started_job_is_found_is_told(layout: tuple[tuple[str, int], ...], said: str) -> None:
    """A job that has a node for itself has more of it; other differences should not be."""
    site, _ = accepted(4, requested_nodes=("n1",))
    nodes = tuple(name for name, _ in layout)
    site.change("1", state=LrmJobState.RUNNING, hold=None, layout=layout, nodes=nodes, started_at=site.now)
    site.look()
    assert [one.detail for one in site.told(JobEventKind.STARTED)] == [said]


def test_a_refused_start_waits_longer() -> None:
    site, start = starting(32)
    site.refuse(start.job_id, LrmRejectedError("access denied"))
    site.submit("2", 32, 1000)
    assert site.step() == ["2"]
    assert "access denied" in site.mirror.entries[start.job_id].reason
    site.end("2")
    assert site.step(30.0) == []
    assert site.step(30.0) == ["1"]


def test_an_unanswered_start_is_judged_by_what_shows() -> None:
    site = Listed()
    site.submit_all(("1", 4), ("2", 4))
    first, second = site.look()
    for start in (first, second):
        site.mirror.starts.advance(start.job_id, Stage.UNCERTAIN, site.now, error=LrmUnavailableError("no answer"))
    site.run(second)
    assert site.look() == []
    assert site.mirror.starts_to_undo() == ["1"]
    site.start_undone(first.job_id)
    site.look()
    assert site.mirror.entries[first.job_id].phase is Phase.LEFT_OUT
    assert [one.job_id for one in site.told(JobEventKind.NOT_STARTED)] == ["1"]
    assert [one.job_id for one in site.told(JobEventKind.STARTED)] == ["2"]


@pytest.mark.parametrize("ended", [True, False])
def test_a_job_that_goes_before_it_shows_gives_back_what_was_reserved(ended: bool) -> None:  # noqa: FBT001 - a parameter
    site, start = accepted(4)
    if ended:
        site.change("1", state=LrmJobState.ENDED, hold=None)
    else:
        site.end("1")
    site.look()
    assert (site.mirror.starts.in_stage(Stage.GONE), site.mirror.starts.pins) == (["1"], {})
    site.start_undone(start.job_id)
    site.look()
    assert site.mirror.starts.attempts == {}


@pytest.mark.parametrize("shown_running", [False, True])
def test_the_start_of_a_job_that_has_run_is_confirmed(shown_running: bool) -> None:  # noqa: FBT001 - a parameter
    """It ended between two looks, or before its start was confirmed: it is not to be taken back."""
    site, start = accepted(4)
    if shown_running:
        site.mirror.starts.shown(replace(site.jobs["1"], state=LrmJobState.RUNNING), site.now)
    site.change("1", state=LrmJobState.ENDED, hold=None, started_at=site.time_of_day)
    starts = site.mirror.starts
    site.mirror.observe(Listing(read_at=site.now + 1, jobs=tuple(site.jobs.values()), nodes=tuple(site.nodes.values())))
    assert (starts.in_stage(Stage.RUNS), starts.in_stage(Stage.GONE)) == (["1"], [])
    starts.advance(start.job_id, Stage.CONFIRMED, site.now)
    site.look()
    assert (starts.attempts, starts.pins) == ({}, {})
    assert [one.kind for one in site.mirror.happened if one.job_id == "1"][-1] is JobEventKind.ENDED


@pytest.mark.parametrize("shown", ["held", "queued", "running", "gone"])
def test_a_restart_in_the_middle_of_a_start(shown: str) -> None:
    before, start = starting(4)
    site = Listed(pins=[start])
    site.jobs, site.now = before.jobs, before.now
    ours = tuple(name for name, _ in start.nodes)
    if shown == "running":
        site.run(start)
    elif shown == "gone":
        site.end("1")
    else:
        state = LrmJobState.HELD if shown == "held" else LrmJobState.QUEUED
        site.change("1", state=state, requested_nodes=ours, hold=HoldOwner.OPERATOR if shown == "held" else None)
    again = site.look(1.0)
    if shown == "held":
        # It may have been tied.
        assert (again, site.mirror.starts_to_undo()) == ([], ["1"])
        site.start_undone(start.job_id)
        again = site.look(1.0)
    if shown in {"running", "gone"}:
        assert again == site.look(100.0) == []
        assert [pin.started for pin in site.mirror.starts.pins.values()] == ([True] if shown == "running" else [])
        return
    if shown == "queued":
        assert again == site.look(11.0) == []
        assert site.mirror.starts_to_undo() == ["1"]
        site.change("1", state=LrmJobState.HELD, hold=HoldOwner.USER)
        site.start_undone(start.job_id)
        again = [*site.look(1.0), *site.look(6.0)]
    assert [(one.job_id, one.wishes and one.wishes.requested_nodes) for one in again] == [("1", ())]


def test_a_number_that_is_given_again_is_another_job() -> None:
    _, start = starting(4)
    site = Listed(pins=[start])
    site.now = 9000.0
    site.submit("1", 4, requested_nodes=("n3",))
    (new,) = site.look()
    assert new.nodes == (("n3", 4),)
    assert new.failures == 0


def test_being_killed_again_and_again_is_no_failure_of_the_job() -> None:
    """Then it is tried as soon as a job that failed for the first time, not after hours."""
    pins: list[Pin] = []
    for _ in range(8):
        site = Listed(pins=pins)
        site.submit("1", 4, submitted_at=1.0)
        if pins:
            assert site.look() == []
            site.start_undone(pins[0].job_id)
        (start,) = site.look()
        pins = [start]
    site.refuse(start.job_id, LrmRejectedError("busy"))
    assert site.look(PATIENCE.refused - 2.0) == []
    assert [one.job_id for one in site.look(3.0)] == ["1"]


def test_killed_while_a_start_is_taken_back() -> None:
    site, start = accepted(4, submitted_at=1.0)
    site.change("1", state=LrmJobState.QUEUED, hold=None)
    site.look(11.0)
    following = Listed(pins=site.mirror.starts.pins.values())
    following.now, following.jobs = site.now, site.jobs
    assert following.look() == []
    assert following.mirror.starts_to_undo() == ["1"]
    following.change("1", state=LrmJobState.HELD, hold=HoldOwner.USER)
    following.start_undone(start.job_id)
    assert [one.job_id for one in [*following.look(), *following.look(PATIENCE.backoff)]] == ["1"]


def test_ended_jobs_in_the_listing_are_over() -> None:
    site = Listed()
    site.submit("0", 4, state=LrmJobState.ENDED, hold=None)
    site.submit("1", 32)
    assert site.step() == ["1"]
    site.look()
    site.change("1", state=LrmJobState.ENDED, layout=())
    site.submit("2", 32)
    assert site.step() == ["2"]
    assert [one.job_id for one in site.told(JobEventKind.SUBMITTED)] == ["1", "2"]


def _history(policy: str, steps: tuple[float, ...]) -> list[list[str]]:
    """Return what starts look by look while jobs come and go; the time of day is set between the looks."""
    site = Listed(policy)
    started: list[list[str]] = []

    def look(after: float) -> None:
        started.append(site.step(after))
        site.set_by = steps[len(started) % len(steps)]

    site.submit("1", 24, walltime=1000)
    look(1)
    site.submit("2", 32, walltime=500)
    look(1)
    site.submit("3", 8, walltime=900)
    look(1)
    site.submit("4", 8, walltime=5000)
    look(1)
    for number in (5, 6, 7):
        site.submit(str(number), 32, walltime=50)
        look(10)
    site.submit("8", 32, walltime=50, eligible_at=site.time_of_day + 100)
    for _ in range(3):
        look(400)
    site.end("1", *(job for job in ("3",) if job in site.jobs))
    look(1)
    for job_id in ("4", "2", "5", "6", "7"):
        look(1)
        if site.jobs[job_id].state is LrmJobState.RUNNING:
            site.end(job_id)
            look(1)
    return started


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative"])
@pytest.mark.parametrize("steps", [(0, 7200), (0, -7200), (7200, -7200, 0)])
def test_nothing_is_decided_otherwise_because_the_clock_is_set(policy: str, steps: tuple[float, ...]) -> None:
    """Order, room beside those that run, and what is tried again go by time that passes."""
    assert _history(policy, steps) == _history(policy, (0,))


@pytest.mark.parametrize("step", [7200.0, -7200.0])
def test_a_begin_time_is_one_of_the_clock_as_it_is_set(step: float) -> None:
    """Its user meant what the clock on the wall shows."""
    site = Listed()
    site.submit("1", 8, eligible_at=site.now + 3600)
    assert site.step() == []
    assert site.mirror.next_due(site.now) == 1000 + 3600
    site.set_by = step
    assert site.step() == (["1"] if step > 0 else [])
    assert site.mirror.next_due(site.now) == (None if step > 0 else 1000 + 3600 + 7200)


@pytest.mark.parametrize("step", [7200.0, -7200.0])
def test_the_patience_with_a_start_does_not_depend_on_the_clock(step: float) -> None:
    """A start that was accepted gets its ten seconds, and the next try comes after five."""
    site, start = accepted(8)
    site.set_by = step
    site.look(9)
    assert not site.told(JobEventKind.NOT_STARTED)
    site.look(2)
    assert len(site.told(JobEventKind.NOT_STARTED)) == 1
    site.start_undone(start.job_id)
    site.set_by = 0.0
    assert [one.job_id for one in site.look(6)] == ["1"]


@pytest.fixture
def tried_at_once(monkeypatch: pytest.MonkeyPatch) -> int:
    """Jobs that one pass tries to find nodes for, fewer than usual."""
    monkeypatch.setattr(passes, "MOST_TRIED", 20)
    return passes.MOST_TRIED


def misfits(policy: str, count: int, *, alike: bool) -> Listed:
    """Return a site with jobs that fit in sum and on no single node; unless ``alike``, each asks for something else."""
    site = Listed(policy, nodes=[node(f"n{number}", processors_used=4) for number in range(count)])
    for number in range(count):
        wishes: dict[str, Any] = {} if alike else {"excluded_nodes": (f"x{number}",)}
        site.submit(f"m{number}", 5, 100, nodes_wanted=1, submitted_at=site.now - 1000 + number, **wishes)
    return site


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("policy", ["easy", "conservative", "firstfit"])
def test_a_job_behind_many_that_fit_in_sum_only_starts(policy: str, tried_at_once: int, *, alike: bool) -> None:
    """At once where those ask for the same; else within a few passes, which go on although nothing changes."""
    site = misfits(policy, 3 * tried_at_once, alike=alike)
    site.submit("small", 1)
    started = [start.job_id for start in site.look()]
    looks = 1
    while site.mirror.unfinished or site.mirror.dirty:
        looks += 1
        started += [start.job_id for start in site.look()]
    assert started == ["small"]
    assert looks == 1 if alike else 1 < looks <= 8


def test_what_comes_free_between_passes_goes_to_the_head_of_the_queue(tried_at_once: int) -> None:
    count = 3 * tried_at_once
    site = misfits("easy", count, alike=False)
    assert site.look() == []
    assert site.mirror.unfinished
    site.nodes["n7"] = node("n7")
    started: list[str] = []
    while site.mirror.unfinished or site.mirror.dirty:
        started += [start.job_id for start in site.look()]
        assert len(site.told(JobEventKind.PASSED_OVER)) <= 2 * count
    assert started == ["m0"]


def test_a_job_passed_over_keeps_its_place_before_those_behind_it() -> None:
    """Conservative backfill reserves for it the time at which its nodes are free, and for later jobs no earlier one."""
    site = Listed("conservative", nodes=[node("n1"), node("n2")])
    for name in ("n1", "n2"):
        site.submit(f"r{name}", 4, 100, requested_nodes=(name,))
    assert len(site.step()) == 2
    site.submit("wide", 8, 50, nodes_wanted=1, submitted_at=site.now - 3)
    site.submit("next", 8, 500, submitted_at=site.now - 2)
    site.submit("last", 16, 10, submitted_at=site.now - 1)
    for _ in range(3):
        assert site.step(10) == []
        times = {local.id: at for queue in site.mirror.standings for local, at in queue.reserved.items()}
        assert times == {"wide": 1101.0, "next": 1101.0, "last": 1601.0}
    assert {one.job_id: one.at for one in site.told(JobEventKind.RESERVED)} == times
    site.end("rn1", "rn2")
    assert set(site.step(100)) == {"wide", "next"}


def test_nodes_are_kept_for_a_bounded_number_of_jobs() -> None:
    """Conservative backfill kept nodes for each of hundreds, each with several looks at all nodes."""
    assert MisfitRules.of("conservative", 1).guards == MisfitRules.of("easy", 1000).guards == MOST_GUARDS

# SPDX-License-Identifier: Apache-2.0
"""Timers are kept once, by the records: what no record keeps does not fire, and the order can be made from them."""

from __future__ import annotations

import pytest

from koala_adapter.model import JobId
from koala_adapter.scheduler.parameters import Parameters
from koala_adapter.scheduler.records import Timer, TimerKind
from koala_adapter.scheduler.timetable import Timetable
from tests.unit.scheduler import test_malleability_state
from tests.unit.scheduler.scheduler_site import A, Site, copied, job
from tests.unit.scheduler.test_state import eventful


def fired(timetable: Timetable) -> list[Timer]:
    """Take every timer, in the order of time."""
    taken = []
    while (at := timetable.next_at) is not None:
        timer = timetable.take_due(at)
        assert timer is not None
        taken.append(timer)
    return taken


def waiting_site() -> Site:
    """Return a site with one job that waits for its placeholders; nothing is timed but by the tests."""
    site = Site({"a": 4})
    site.submit(job("1", 2))
    site.state.scan_due = None
    return site


def test_a_timer_that_is_set_again_fires_once() -> None:
    """At the later time only; set for the same time again, it keeps its place before those that came in between."""
    site = waiting_site()
    record, timetable = site.record("1"), Timetable(site.state)
    first, second = site.claimed("1")
    timetable.for_job(record, TimerKind.LIFE, 1.0)
    timetable.for_job(record, TimerKind.LIFE, 5.0)
    timetable.for_placeholder(first, TimerKind.ENDING, 3.0)
    timetable.for_placeholder(second, TimerKind.ENDING, 3.0)
    timetable.for_placeholder(first, TimerKind.ENDING, 3.0)
    assert timetable.take_due(2.9) is None
    assert [(timer.at, timer.placeholder) for timer in fired(timetable)] == [
        (3.0, first.id),
        (3.0, second.id),
        (5.0, None),
    ]
    assert not record.timers


def test_what_its_record_does_not_keep_is_passed_over() -> None:
    """A cancelled timer, one of a record that is gone, and a pause that was made longer."""
    site = waiting_site()
    timetable, cluster = site.scheduler.timetable, site.state.clusters[A]
    timetable.for_job(site.record("1"), TimerKind.RECLAIM, site.now + 1.0)
    del site.record("1").timers[TimerKind.RECLAIM]
    first = site.claimed("1")[0]
    timetable.for_placeholder(first, TimerKind.SILENCE, site.now + 2.0)
    site.scheduler.ledger.remove(first)
    for seconds in (3.0, 4.0):
        cluster.paused_until = site.now + seconds
        timetable.for_cluster(cluster, cluster.paused_until)
    assert timetable.next_at == site.now + 4.0
    assert len(fired(timetable)) == 1
    assert len(timetable) == 0


def test_pauses_that_end_together_have_one_timer() -> None:
    """Also one that was taken back and begun again."""
    site = waiting_site()
    timetable, cluster = site.scheduler.timetable, site.state.clusters[A]
    at = site.now + 3.0
    cluster.paused_until = cluster.no_growth_before = at
    for _ in range(3):
        timetable.for_cluster(cluster, at)
    assert len(timetable) == len(Timetable(copied(site.state)))
    assert [timer.at for timer in fired(timetable) if timer.kind is TimerKind.PAUSE] == [at]


@pytest.mark.parametrize("malleable", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_the_order_can_be_made_from_the_records(seed: int, *, malleable: bool) -> None:
    """After random events, a scheduler that begins with their snapshot has the same timers ahead."""
    site = test_malleability_state.eventful(seed)[0] if malleable else eventful(seed)
    again = Timetable(copied(site.state))
    assert len(again) == len(site.scheduler.timetable)

    def subject(timer: Timer) -> tuple[float, str, object]:
        return timer.at, timer.kind.value, timer.job_id or timer.placeholder or timer.cluster

    ours = fired(site.scheduler.timetable)
    pauses = {subject(timer) for timer in ours if timer.kind is TimerKind.PAUSE}
    others = [subject(timer) for timer in ours if timer.kind is not TimerKind.PAUSE]
    remade = fired(again)
    assert [subject(timer) for timer in remade if timer.kind is not TimerKind.PAUSE] == others
    assert {subject(timer) for timer in remade if timer.kind is TimerKind.PAUSE} == pauses


def test_a_job_that_is_over_has_no_timers() -> None:
    """Whatever it awaited when it ended."""
    site = Site({"a": 4}, Parameters(placeholder_life=100.0))
    site.submit(job("1", 2))
    site.take_all()
    site.hold(site.claimed("1")[0].id)
    assert TimerKind.LIFE in site.record("1").timers
    site.cancel("1")
    assert site.state.jobs[JobId("1")].timers == {}

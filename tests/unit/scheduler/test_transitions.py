# SPDX-License-Identifier: Apache-2.0
"""The tables of states, events and timers: all that can happen is in them, and nothing else is let through."""

from __future__ import annotations

import itertools

import pytest

from koala_adapter.errors import TransitionError
from koala_adapter.outcome import JobState, PlaceholderState
from koala_adapter.scheduler import ends, reports
from koala_adapter.scheduler.claiming import claims
from koala_adapter.scheduler.core import HANDLERS, JOB_TIMERS, PLACEHOLDER_TIMERS
from koala_adapter.scheduler.events import EVENT_TYPES
from koala_adapter.scheduler.malleable import changes, requests
from koala_adapter.scheduler.records import ChangePhase, TimerKind
from koala_adapter.scheduler.states import CHANGE_TRANSITIONS, JOB_TRANSITIONS, PLACEHOLDER_TRANSITIONS
from tests.unit.scheduler.malleable_site import MalleableSite, malleable, part
from tests.unit.scheduler.scheduler_site import A, Site, job


def test_every_state_is_in_the_tables() -> None:
    """Each state says what follows it; what is final is followed by a correction of the outcome at most."""
    assert set(JOB_TRANSITIONS) == set(JobState)
    assert set(PLACEHOLDER_TRANSITIONS) == set(PlaceholderState)
    assert set(CHANGE_TRANSITIONS) == set(ChangePhase)
    for source, targets in JOB_TRANSITIONS.items():
        assert not source.final or all(target.final for target in targets)


def test_every_event_and_timer_has_a_handler() -> None:
    """The tables of the chapters, put together, have each kind once."""
    assert set(HANDLERS) == set(EVENT_TYPES)
    chapters = (claims, reports, ends, changes, requests)
    assert sum(len(chapter.HANDLERS) for chapter in chapters) + 7 == len(HANDLERS)
    handled_in_place = {TimerKind.SCAN, TimerKind.PAUSE, TimerKind.CHANGE}
    assert set(JOB_TIMERS) | set(PLACEHOLDER_TIMERS) | handled_in_place == set(TimerKind)
    assert len(JOB_TIMERS) + len(PLACEHOLDER_TIMERS) + len(handled_in_place) == len(TimerKind)


def test_every_state_can_be_reached() -> None:
    """From where a job or placeholder begins there is a way to each state."""
    reached = {JobState.WAITING}
    for _ in JobState:
        reached |= {target for source in reached for target in JOB_TRANSITIONS[source]}
    assert reached == set(JobState)
    assert {target for targets in PLACEHOLDER_TRANSITIONS.values() for target in targets} == set(PlaceholderState) - {
        PlaceholderState.SUBMITTED
    }


@pytest.mark.parametrize(("source", "target"), list(itertools.product(JobState, JobState)))
def test_a_job_goes_where_the_table_says(source: JobState, target: JobState) -> None:
    """Any other move is a defect: it is refused, and the job stays as it is."""
    site = Site({"a": 4})
    site.submit(job("1", 9))
    record, ledger = site.record("1"), site.scheduler.ledger
    record.state = source
    if target in JOB_TRANSITIONS[source]:
        ledger.move_job(record, target)
        assert record.state is target
    else:
        with pytest.raises(TransitionError, match=f"job 1 cannot go from '{source.value}' to '{target.value}'"):
            ledger.move_job(record, target)
        assert record.state is source


@pytest.mark.parametrize(("source", "target"), list(itertools.product(ChangePhase, ChangePhase)))
def test_a_change_goes_where_the_table_says(source: ChangePhase, target: ChangePhase) -> None:
    """Any other move is a defect: it is refused, and the counts stay as they are."""
    site = MalleableSite({"a": 8})
    site.start(malleable("1", part(2, 8)))
    record, ledger, cluster = site.record("1"), site.scheduler.ledger, site.state.clusters[A]
    (change,) = record.changes.values()
    change.parts[0].accepted, change.phase = 4, source
    if source in {ChangePhase.NEW, ChangePhase.OVER}:
        record.changes.clear()
    ledger.recount()
    if target in CHANGE_TRANSITIONS[source]:
        ledger.move_change(record, change, target)
        assert change.phase is target
    else:
        with pytest.raises(TransitionError, match=f"of job 1 cannot go from '{source.value}' to '{target.value}'"):
            ledger.move_change(record, change, target)
        assert change.phase is source
    kept = 6 if change.phase in {ChangePhase.ASKED, ChangePhase.PROMISED} else 0
    assert (cluster.offered, cluster.gathering) == (kept, 4 if change.phase is ChangePhase.GATHERING else 0)
    assert bool(record.changes) == (change.phase not in {ChangePhase.NEW, ChangePhase.OVER})


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(PlaceholderState, 2)))
def test_a_placeholder_goes_where_the_table_says(source: PlaceholderState, target: PlaceholderState) -> None:
    """Any other move is a defect: it is refused, and the counts stay as they are."""
    site = Site({"a": 4})
    site.submit(job("1", 1))
    (placeholder,) = site.claimed("1")
    placeholder.state = source
    site.scheduler.ledger.recount()
    cluster, record = site.state.clusters[placeholder.cluster], site.record("1")
    if target in PLACEHOLDER_TRANSITIONS[source]:
        site.scheduler.ledger.move(placeholder, target)
        assert placeholder.state is target
    else:
        with pytest.raises(TransitionError, match=f"from '{source.value}' to '{target.value}'"):
            site.scheduler.ledger.move(placeholder, target)
        assert placeholder.state is source
    counted = (cluster.managed, cluster.queued, cluster.ending, record.live, record.held)
    waits, ends, held = placeholder.waiting, placeholder.state is PlaceholderState.ENDING, placeholder.held
    assert counted == (1, int(waits), int(ends), 1, int(held))

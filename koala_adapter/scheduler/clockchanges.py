# SPDX-License-Identifier: Apache-2.0
"""What becomes of timers when a clock was set back, when the service was down, and when the scheduler failed on them.

What is noted in the old time of a clock set back is moved to the new one. Otherwise every timer would be late by the
whole jump: with a clock corrected by an hour, jobs would wait that hour. How long it was quiet before the jump cannot
be known; timers are late by that much.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from koala_adapter.scheduler.changes import ChangePhase
from koala_adapter.scheduler.timers import TimerKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.scheduler.clusterrecord import ClusterRecord
    from koala_adapter.scheduler.othersjob import OthersJob
    from koala_adapter.scheduler.records import BatchRecord, JobRecord, PlaceholderRecord, State
    from koala_adapter.scheduler.timetable import Timetable

TOLERANCE = 60.0
"""Seconds by which events may be out of order; time just stands still for them."""
AWAITS_AGENTS = frozenset(
    {TimerKind.REGISTRATION, TimerKind.WALLTIME, TimerKind.LIFE, TimerKind.CHANGE, TimerKind.LAST_RANKS}
)
"""Timers that judge by what agents have not said."""
POINTS_IN_TIME = frozenset(
    {
        "doubted_at",
        "ending_since",
        "ends_at",
        "finished_at",
        "first_look_until",
        "held_at",
        "launched_at",
        "levelled_until",
        "no_growth_before",
        "no_shrink_before",
        "on_hold_since",
        "paused_until",
        "polled_at",
        "silent_since",
        "sizes_asked_at",
        "smaller_since",
        "started_at",
        "submitted_at",
        "taken_at",
        "vain_until",
    }
)
"""Fields of the records that hold a point in time."""


def advance(state: State, timetable: Timetable, time: float) -> float:
    """Return the time of an event as the scheduler takes it, never before that of the event before."""
    if state.now is not None and time < state.now:
        if time >= state.now - TOLERANCE:
            return state.now
        _set_back(state, state.now - time)
        state.now = time
        timetable.rebuild()
    state.now = time
    return time


def give_time(state: State, timetable: Timetable, now: float) -> None:
    """Put off what fell due while the service was down, as long as an agent has for its first report.

    An agent that could not report is not MISSING, ranks may have ended well in time, and the last processor may be
    there: first let them say so. What an application was asked is asked again when its agents are back: from then on it
    has all of its time for the answer.
    """
    _move_timers(state, lambda kind, at, placeholder: _after_downtime(state, kind, at, placeholder, now))
    _await_answers(state, now + state.parameters.registration_timeout + state.parameters.answer_timeout)
    timetable.rebuild()


def _await_answers(state: State, until: float) -> None:
    """Take nothing for declined before that."""
    changes = (claim.change for job in state.jobs.values() for claim in job.claims)
    for change in changes:
        if change is not None and change.phase is ChangePhase.ASKED and change.due is not None:
            change.due = change.due._replace(at=max(change.due.at, until))


def postpone(state: State, timetable: Timetable, now: float, seconds: float) -> None:
    """Have the timers that are due fire ``seconds`` later."""
    _move_timers(state, lambda _kind, at, _placeholder: now + seconds if at <= now else at)
    timetable.rebuild()


def _after_downtime(
    state: State, kind: TimerKind, at: float, placeholder: PlaceholderRecord | None, now: float
) -> float:
    """Return when a timer fires that was set before the service was down."""
    if kind in AWAITS_AGENTS and at <= now:
        return now + state.parameters.registration_timeout
    if kind is TimerKind.ENDING and placeholder is not None and placeholder.host:
        # Its agent may hold the last output of a job, and has yet to find out that somebody listens again.
        return max(at, now + state.parameters.registration_timeout)
    return at


def _move_timers(state: State, moved: Callable[[TimerKind, float, PlaceholderRecord | None], float]) -> None:
    """Give each timer another time, which ``moved`` tells from its kind, its time and its placeholder."""
    if state.scan_due is not None:
        state.scan_due = state.scan_due._replace(at=moved(TimerKind.SCAN, state.scan_due.at, None))
    for placeholder in state.placeholders.values():
        for kind, due in placeholder.timers.items():
            placeholder.timers[kind] = due._replace(at=moved(kind, due.at, placeholder))
    for job in state.jobs.values():
        for kind, due in job.timers.items():
            job.timers[kind] = due._replace(at=moved(kind, due.at, None))
        for claim in job.claims:
            if claim.change is not None and claim.change.due is not None:
                due = claim.change.due
                claim.change.due = due._replace(at=moved(TimerKind.CHANGE, due.at, None))


def _set_back(state: State, seconds: float) -> None:
    for table in (state.jobs, state.placeholders, state.batches, state.clusters):
        for record in table.values():
            _move(record, seconds)
    for cluster in state.clusters.values():
        for other in cluster.others_waiting:
            _move(other, seconds)
    for job in state.jobs.values():
        job.size_changes = [replace(change, at=change.at - seconds) for change in job.size_changes]
    _move_timers(state, lambda _kind, at, _placeholder: at - seconds)


def _move(record: JobRecord | PlaceholderRecord | BatchRecord | ClusterRecord | OthersJob, seconds: float) -> None:
    for one in fields(record):
        if one.name in POINTS_IN_TIME:
            noted = getattr(record, one.name)
            if noted is not None:
                setattr(record, one.name, noted - seconds)

# SPDX-License-Identifier: Apache-2.0
"""Time that does not simply go on: clocks that are set back, and the time while nobody listened.

What is noted in the old time of a clock set back is moved to the new one. Otherwise every timer would be late by the
whole jump: with a clock corrected by an hour, jobs would wait that hour. How long it was quiet before the jump cannot
be known; timers are late by that much.
"""

from __future__ import annotations

import heapq
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from koala_adapter.scheduler.timers import TimerKind

if TYPE_CHECKING:
    from koala_adapter.scheduler.changes import Change
    from koala_adapter.scheduler.records import BatchRecord, ClusterRecord, JobRecord, PlaceholderRecord, State
    from koala_adapter.scheduler.timers import Timer

TOLERANCE = 60.0
"""Seconds by which events may be out of order; time just stands still for them."""
AWAITS_AGENTS = frozenset({TimerKind.REGISTRATION, TimerKind.WALLTIME, TimerKind.LIFE, TimerKind.CHANGE})
"""Timers that judge by what agents have not said."""
POINTS_IN_TIME = frozenset(
    {
        "due_at",
        "ending_since",
        "end_check_at",
        "ends_at",
        "finished_at",
        "held_at",
        "launched_at",
        "levelled_until",
        "life_ends_at",
        "no_growth_before",
        "no_shrink_before",
        "not_before",
        "on_hold_since",
        "paused_until",
        "polled_at",
        "retake_at",
        "silent_since",
        "smaller_since",
        "started_at",
        "submitted_at",
        "taken_at",
    }
)
"""Fields of the records that hold a point in time."""


def advance(state: State, time: float) -> float:
    """Return the time of an event as the scheduler takes it, never before that of the event before."""
    if state.now is not None and time < state.now:
        if time >= state.now - TOLERANCE:
            return state.now
        _set_back(state, state.now - time)
    state.now = time
    return time


def give_time(state: State, now: float) -> None:
    """Put off what fell due while the service was down, as long as an agent has for its first report.

    An agent that could not report is not MISSING, ranks may have ended well in time, and the last processor may be
    there: first let them say so.
    """
    state.timers = [replace(timer, at=_put_off(state, timer, now)) for timer in state.timers]
    heapq.heapify(state.timers)


def postpone(state: State, now: float, seconds: float) -> None:
    """Have the timers that are due fire ``seconds`` later."""
    due: list[Timer] = []
    while (timer := state.due_timer(now)) is not None:
        due.append(timer)
    for timer in due:
        state.set_timer(now + seconds, timer.kind, job_id=timer.job_id, placeholder=timer.placeholder)


def _put_off(state: State, timer: Timer, now: float) -> float:
    """Return when a timer fires that was set before the service was down."""
    if timer.kind in AWAITS_AGENTS and timer.at <= now:
        return now + state.parameters.registration_timeout
    placeholder = state.placeholders.get(timer.placeholder) if timer.placeholder is not None else None
    if timer.kind is TimerKind.ENDING and placeholder is not None and placeholder.host:
        # Its agent may hold the last output of a job, and has yet to find out that somebody listens again.
        return max(timer.at, now + state.parameters.registration_timeout)
    return timer.at


def _set_back(state: State, seconds: float) -> None:
    for table in (state.jobs, state.placeholders, state.batches, state.clusters):
        for record in table.values():
            _move(record, seconds)
    for job in state.jobs.values():
        for claim in job.claims:
            if claim.change is not None:
                _move(claim.change, seconds)
    state.timers = [replace(timer, at=timer.at - seconds) for timer in state.timers]


def _move(record: JobRecord | PlaceholderRecord | BatchRecord | ClusterRecord | Change, seconds: float) -> None:
    for one in fields(record):
        if one.name in POINTS_IN_TIME:
            noted = getattr(record, one.name)
            if noted is not None:
                setattr(record, one.name, noted - seconds)

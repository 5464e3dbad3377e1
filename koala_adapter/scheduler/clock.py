# SPDX-License-Identifier: Apache-2.0
"""A clock that was set back: what is noted in the old time is moved to the new one.

Otherwise every timer would be late by the whole jump: with a clock corrected by an hour, jobs would wait that hour. How
long it was quiet before the jump cannot be known; timers are late by that much.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koala_adapter.scheduler.records import BatchRecord, ClusterRecord, JobRecord, PlaceholderRecord, State

TOLERANCE = 60.0
"""Seconds by which events may be out of order; time just stands still for them."""
POINTS_IN_TIME = frozenset(
    {
        "ending_since",
        "end_check_at",
        "ends_at",
        "finished_at",
        "held_at",
        "launched_at",
        "life_ends_at",
        "not_before",
        "paused_until",
        "polled_at",
        "retake_at",
        "silent_since",
        "smaller_since",
        "started_at",
        "submitted_at",
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


def _set_back(state: State, seconds: float) -> None:
    for table in (state.jobs, state.placeholders, state.batches, state.clusters):
        for record in table.values():
            _move(record, seconds)
    state.timers = [replace(timer, at=timer.at - seconds) for timer in state.timers]


def _move(record: JobRecord | PlaceholderRecord | BatchRecord | ClusterRecord, seconds: float) -> None:
    for one in fields(record):
        if one.name in POINTS_IN_TIME:
            noted = getattr(record, one.name)
            if noted is not None:
                setattr(record, one.name, noted - seconds)

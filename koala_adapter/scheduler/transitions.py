# SPDX-License-Identifier: Apache-2.0
"""The state machines of jobs and placeholders as tables: which state may follow which, and when.

Any other move is a defect of the scheduler and is refused where it is made (``ledger.py``). The tables are printed in
docs/architecture.md by docs/reference.py.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from koala_adapter.errors import TransitionError
from koala_adapter.scheduler.outcome import JobState, PlaceholderState

if TYPE_CHECKING:
    from collections.abc import Mapping

_CANCELLED = "its user cancels it"
_STOPPED = "a process ends badly, or the walltime is over"
_LOST = "one of its processors is lost"
_KILLED = "a process or placeholder is cancelled in its batch system"

JOB_TRANSITIONS: Mapping[JobState, Mapping[JobState, str]] = MappingProxyType(
    {
        JobState.WAITING: {
            JobState.CLAIMING: "it is placed, or gets all its processors from another job",
            JobState.CANCELLED: _CANCELLED,
            JobState.NOT_PLACED: "its tries are used up",
            JobState.REFUSED: "it can never run",
        },
        JobState.CLAIMING: {
            JobState.WAITING: "nothing is left of its claim",
            JobState.LAUNCHING: "all its processors are held",
            JobState.CANCELLED: _CANCELLED,
            JobState.NOT_PLACED: "its tries are used up",
            JobState.REFUSED: "it can never run where it is still accepted",
        },
        JobState.LAUNCHING: {
            JobState.RUNNING: "all its processes run",
            JobState.COMPLETED: "all its processes have ended well",
            JobState.FAILED: _STOPPED,
            JobState.CANCELLED: f"{_CANCELLED}, or {_KILLED}",
            JobState.LOST: _LOST,
        },
        JobState.RUNNING: {
            JobState.COMPLETED: "all its processes have ended well",
            JobState.FAILED: _STOPPED,
            JobState.CANCELLED: f"{_CANCELLED}, or {_KILLED}",
            JobState.LOST: _LOST,
        },
        JobState.COMPLETED: {},
        JobState.FAILED: {},
        JobState.CANCELLED: {
            JobState.FAILED: "the batch system tells afterwards that memory or walltime were exceeded",
            JobState.LOST: "the batch system tells afterwards that a node was lost",
        },
        JobState.LOST: {},
        JobState.NOT_PLACED: {},
        JobState.REFUSED: {},
    }
)
"""For each state of a job the states that may follow it, and when they do. A new job is waiting."""

_STARTS = "its batch system lists it as running"
_REPORTS = "its agent reports"
_UNWANTED = "it is not wanted any more, or is about to end"

PLACEHOLDER_TRANSITIONS: Mapping[PlaceholderState, Mapping[PlaceholderState, str]] = MappingProxyType(
    {
        PlaceholderState.SUBMITTED: {
            PlaceholderState.QUEUED: "its batch system has taken it",
            PlaceholderState.STARTED: _STARTS,
            PlaceholderState.HELD: _REPORTS,
            PlaceholderState.ENDING: _UNWANTED,
        },
        PlaceholderState.QUEUED: {
            PlaceholderState.STARTED: _STARTS,
            PlaceholderState.HELD: _REPORTS,
            PlaceholderState.ENDING: _UNWANTED,
        },
        PlaceholderState.STARTED: {
            PlaceholderState.HELD: _REPORTS,
            PlaceholderState.ENDING: "its agent does not report in time, or it is not wanted any more",
        },
        PlaceholderState.HELD: {
            PlaceholderState.LAUNCHED: "its job is launched, or takes it in as it grows",
            PlaceholderState.ENDING: _UNWANTED,
        },
        PlaceholderState.LAUNCHED: {
            PlaceholderState.HELD: "its job has completed, and another job gets it",
            PlaceholderState.ENDING: _UNWANTED,
        },
        PlaceholderState.ENDING: {},
    }
)
"""The same for a placeholder. A new one is submitted; its record is dropped, from any state, when it is gone."""


def check_job(job: str, source: JobState, target: JobState) -> None:
    """Raise TransitionError unless a job may go from one state to another."""
    if target not in JOB_TRANSITIONS[source]:
        raise TransitionError(f"job {job} cannot go from {source.value!r} to {target.value!r}")


def check_placeholder(placeholder: object, source: PlaceholderState, target: PlaceholderState) -> None:
    """Raise TransitionError unless a placeholder may go from one state to another."""
    if target not in PLACEHOLDER_TRANSITIONS[source]:
        raise TransitionError(f"placeholder {placeholder} cannot go from {source.value!r} to {target.value!r}")

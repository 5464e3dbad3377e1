# SPDX-License-Identifier: Apache-2.0
"""Times of our own clock as people read them: by the time of day as it is set now. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from koala_adapter.ordering.entries import JobEvent
    from koala_adapter.ordering.explanations import Explanation, Overview
    from koala_adapter.ordering.shadow import Difference, ShadowReport

_Told = TypeVar("_Told", "Explanation", "Overview", "JobEvent", "Difference")

_TIMES = ("time", "at", "reserved_at", "promised_at", "read_at", "ours", "theirs")
"""Fields that hold a time of our clock. When a job started is told in the words of its batch system."""


def as_read(told: _Told, offset: float) -> _Told:
    """Return what is told with ``offset`` (seconds) added to its times."""
    times = {name: getattr(told, name, None) for name in _TIMES}
    return replace(told, **{name: time + offset for name, time in times.items() if time is not None})


def report_as_read(report: ShadowReport, offset: float) -> ShadowReport:
    """Return a report with ``offset`` (seconds) added to its times."""
    return replace(
        report,
        since=report.since + offset,
        until=report.until + offset,
        first_earlier=tuple(as_read(one, offset) for one in report.first_earlier),
        first_later=tuple(as_read(one, offset) for one in report.first_later),
    )

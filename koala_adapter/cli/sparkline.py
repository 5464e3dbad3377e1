# SPDX-License-Identifier: Apache-2.0
"""How the size of a job went, in one line of characters. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.cli.plaintext import STEPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.api.reports import JobReport


def size_now(report: JobReport) -> int:
    """Return the processors that a job has."""
    return sum(component.processors for component in report.components)


def sizes_over_time(report: JobReport, points: int) -> list[int]:
    """Return the processors of a job at so many times, evenly from its launch until its end or now.

    What its latest changes tell of, of which so many are kept; before them it is taken to have had one size.
    """
    if report.launched_at is None or points < 1:
        return []
    until = report.finished_at or report.reported_at
    span = max(0.0, until - report.launched_at)
    times = [report.launched_at + span * (number + 1) / points for number in range(points)]
    places = {(one.name, one.cluster) for one in report.components if one.cluster}
    size = sum(report.size_at_last(name, cluster) for name, cluster in places)
    sizes, changes = [], list(report.size_changes)
    for time in reversed(times):
        while changes and changes[-1].at > time:
            change = changes.pop()
            size -= change.after - change.before
        sizes.append(size)
    return sizes[::-1]


def sparkline(values: Sequence[int]) -> str:
    """Return a character for each value, as high as it is of the largest one."""
    largest = max(values, default=0)
    if largest <= 0:
        return STEPS[0] * len(values)
    return "".join(STEPS[max(0, -(-value * len(STEPS) // largest) - 1)] for value in values)

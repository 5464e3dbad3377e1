# SPDX-License-Identifier: Apache-2.0
"""The estimate of a sweep's end."""

from __future__ import annotations

from koala_adapter.tasks.sweep import WINDOW, Pace


def test_nobody_can_tell_yet() -> None:
    """Before anything is done, or while nobody is at work."""
    pace = Pace()
    assert pace.left(tasks=10, launchers=4) is None
    pace.note(2.0)
    assert pace.left(tasks=10, launchers=0) is None
    assert pace.left(tasks=0, launchers=0) == 0.0


def test_tasks_are_shared() -> None:
    """By as many launchers as there are, but a task takes as long as a task takes."""
    pace = Pace()
    for _ in range(4):
        pace.note(3.0)
    assert pace.left(tasks=40, launchers=4) == 30.0
    assert pace.left(tasks=2, launchers=100) == 3.0


def test_what_is_long_ago_counts_no_more() -> None:
    """Later tasks may take longer."""
    pace = Pace()
    for seconds in (1.0, 9.0):
        for _ in range(WINDOW):
            pace.note(seconds)
    assert pace.left(tasks=10, launchers=10) == 9.0

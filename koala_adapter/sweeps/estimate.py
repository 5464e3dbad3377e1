# SPDX-License-Identifier: Apache-2.0
"""When a sweep will be done, from how long its latest tasks took and how many are at work now. Pure."""

from __future__ import annotations

from collections import deque

WINDOW = 200
"""Tasks that the estimate looks back on: parameters often grow, and with them the time of a task."""


class Pace:
    """How long tasks take."""

    def __init__(self) -> None:
        """Begin with no idea."""
        self._latest: deque[float] = deque(maxlen=WINDOW)

    def note(self, seconds: float) -> None:
        """Take in how long a launcher was at a task."""
        self._latest.append(max(0.0, seconds))

    def left(self, *, tasks: int, launchers: int) -> float | None:
        """Return the seconds until so many tasks are done by so many launchers; None: nobody can tell yet."""
        if not tasks:
            return 0.0
        if not launchers or not self._latest:
            return None
        each = sum(self._latest) / len(self._latest)
        return each * max(1.0, tasks / min(launchers, tasks))

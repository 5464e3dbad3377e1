# SPDX-License-Identifier: Apache-2.0
"""Safety rails as pure values: how many requests a minute may go to an LRM, and when to stop asking a failing one.

Time (seconds, any monotonic origin) is always given by the caller.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

WINDOW = 60.0
SHORTEST_PAUSE = 0.5
"""Seconds between two polls, however few there were."""
URGENT_SHARE = 0.2
"""Share of the window that only urgent requests (cancels) may use, so that polling never delays a clean-up."""


class RequestWindow:
    """At most ``per_minute`` requests in any 60 seconds; a share is kept for urgent ones."""

    def __init__(self, per_minute: int, times: Iterable[float] = ()) -> None:
        """``per_minute``: the stated upper bound, at least 2. ``times``: those of requests that went before."""
        self.per_minute = max(2, per_minute)
        self._ordinary = max(1, int(self.per_minute * (1 - URGENT_SHARE)))
        self._times = deque(sorted(times))
        self.total = 0
        self.largest = 0
        """Largest number of requests seen in any 60 seconds."""

    @property
    def times(self) -> tuple[float, ...]:
        """Times of the requests of the last 60 seconds, in order."""
        return tuple(self._times)

    def wait(self, now: float, *, urgent: bool = False) -> float:
        """Return 0.0 when a request may go now, else the seconds to wait before asking again."""
        self._forget(now)
        limit = self.per_minute if urgent else self._ordinary
        if len(self._times) < limit:
            return 0.0
        # Rounding must not make it longer than a window.
        return min(WINDOW, max(0.001, self._times[len(self._times) - limit] + WINDOW - now))

    def record(self, now: float) -> None:
        """Count one request sent at ``now``."""
        self._forget(now)
        self._times.append(now)
        self.total += 1
        self.largest = max(self.largest, len(self._times))

    def _forget(self, now: float) -> None:
        while self._times and self._times[0] <= now - WINDOW:
            self._times.popleft()


class PollPace:
    """How long to wait between polls while something is about to change: the first come soon, many come seldom.

    In the long run they use no more than half of the ordinary requests, in any 60 seconds at most three quarters.
    """

    def __init__(self, *, shortest_interval: float) -> None:
        """``shortest_interval``: seconds between polls that would use all of the ordinary requests."""
        self._lasting = 2 * shortest_interval
        self._times: deque[float] = deque()

    def polled(self, now: float) -> None:
        """Count one poll at ``now``."""
        self._times.append(now)

    def pause(self, now: float) -> float:
        """Return the seconds to wait before the next one."""
        while self._times and self._times[0] <= now - WINDOW:
            self._times.popleft()
        # As many in a window as may last are as far apart as may last; fewer are nearer to each other by so much.
        return max(SHORTEST_PAUSE, self._lasting * min(1.0, self._lasting * len(self._times) / WINDOW))


class CircuitBreaker:
    """Stops asking an LRM that fails again and again, and tries it with growing pauses."""

    def __init__(self, *, failures: int = 3, pause: float = 5.0, longest_pause: float = 120.0) -> None:
        """Open after ``failures`` in a row; the pause doubles from ``pause`` to ``longest_pause`` seconds."""
        self._threshold = failures
        self._first_pause = pause
        self._longest_pause = longest_pause
        self.failures = 0
        self._retry_at = 0.0

    @property
    def open(self) -> bool:
        """True while the LRM counts as out of reach."""
        return self.failures >= self._threshold

    def may_ask(self, now: float) -> bool:
        """Tell whether a request may be tried at ``now``."""
        return not self.open or now >= self._retry_at

    def succeeded(self) -> None:
        """Close the breaker."""
        self.failures = 0

    def failed(self, now: float) -> None:
        """Count a failure at ``now`` and set the time of the next try."""
        self.failures += 1
        beyond = min(self.failures - self._threshold, 10)
        if beyond >= 0:
            self._retry_at = now + min(self._longest_pause, self._first_pause * 2.0**beyond)

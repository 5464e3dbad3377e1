# SPDX-License-Identifier: Apache-2.0
"""Calls to be made later."""

from koala_adapter.vjm.agent.node import clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Optional, Tuple


class Timers:
    """Calls to be made later."""

    def __init__(self) -> None:
        self._calls: "List[Tuple[float, int, Callable[[], None]]]" = []  # in the order of their time
        self._serial = 0

    def after(self, seconds: float, call: "Callable[[], None]") -> None:
        """Make ``call`` once, ``seconds`` from now."""
        self._serial += 1
        self._calls.append((clock() + seconds, self._serial, call))
        self._calls.sort()  # there are few

    def run(self) -> None:
        """Make the calls that are due."""
        while self._calls and self._calls[0][0] <= clock():
            self._calls.pop(0)[2]()

    def wait(self) -> "Optional[float]":
        """Return the seconds until the next call."""
        return max(0.0, self._calls[0][0] - clock()) if self._calls else None

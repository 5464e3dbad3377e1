# SPDX-License-Identifier: Apache-2.0
"""Functions that tests of the simulator compute in other processes, which import this module and nothing else of tests.

What a test module imports (pytest, hypothesis) takes a new process longer than all that it computes.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from koala_adapter.errors import SimulationError

if TYPE_CHECKING:
    from koala_adapter.simulation.parallel import ProgressMark


def square(number: int) -> int:
    """Return the square, later for small numbers."""
    time.sleep(0.02 / (1 + number))
    return number * number


def refuse(number: int) -> int:
    if number == 1:
        raise SimulationError(f"not {number}", hint="another")
    return number


def die(number: int) -> int:
    """End the process without a word."""
    os._exit(number)


def count(number: int, mark: ProgressMark) -> tuple[int, bool]:
    """Count until told to stop; returns how far, and whether to the end."""
    mark.expect(number)
    for done in range(number):
        if not mark(done):
            return done, False
        time.sleep(0.001)
    mark(number)
    return number, True

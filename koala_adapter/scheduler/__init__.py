# SPDX-License-Identifier: Apache-2.0
"""The scheduler core: pure, no I/O, no clock, no threads, no global randomness."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koala_adapter.scheduler.core import Scheduler

__all__ = ["Scheduler"]


def __getattr__(name: str) -> object:
    """Import the scheduler when it is asked for: whoever reads a site file wants its parameters and no more."""
    if name == "Scheduler":
        return import_module("koala_adapter.scheduler.core").Scheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

# SPDX-License-Identifier: Apache-2.0
"""The scheduler core: pure, no I/O, no clock, no threads, no global randomness.

``Scheduler`` is imported when it is asked for: who reads a report needs the states of a job, and no scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koala_adapter.scheduler.core import Scheduler

__all__ = ["Scheduler"]


def __getattr__(name: str) -> type[Scheduler]:
    """Return ``Scheduler`` (PEP 562)."""
    if name != "Scheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from koala_adapter.scheduler.core import Scheduler  # noqa: PLC0415 - see above

    return Scheduler

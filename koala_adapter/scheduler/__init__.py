# SPDX-License-Identifier: Apache-2.0
"""The scheduler of koala: a pure state machine from events to actions.

The door is :class:`koala_adapter.scheduler.core.Scheduler`. It does no I/O and uses no clock, threads or global
randomness: drivers (the service, the simulator, tests of failures) feed it events and carry out its actions. What it
knows is in ``records``, what can happen in ``events``, what it wants in ``actions``; ``placement``, ``claiming`` and
``malleable`` take its decisions. ``Scheduler`` is imported on demand (PEP 562), because clients that read a report need
only the states of a job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import on_demand

if TYPE_CHECKING:
    from koala_adapter.scheduler.core import Scheduler

__all__ = ["Scheduler"]
__getattr__, __dir__ = on_demand(__name__, {"core": ("Scheduler",)})

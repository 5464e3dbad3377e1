# SPDX-License-Identifier: Apache-2.0
"""The service of one user: it runs the scheduler against real clusters, agents and the clock.

The door is :class:`koala_adapter.service.service.Service`. Around it stand the journal and the kept records, one
driver for each cluster, the control center for agents, running applications with their files and sweeps, and the
commands that remove what is left of old jobs. Changes of size are in :mod:`koala_adapter.service.sizes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import on_demand

if TYPE_CHECKING:
    from koala_adapter.service.leftovers import Cleaning
    from koala_adapter.service.sweepfiles import kept_job, latest_progress

__all__ = ["Cleaning", "kept_job", "latest_progress"]

__getattr__, __dir__ = on_demand(__name__, {"leftovers": ("Cleaning",), "sweepfiles": ("kept_job", "latest_progress")})

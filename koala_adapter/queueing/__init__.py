# SPDX-License-Identifier: Apache-2.0
"""The order of one cluster's own queue: priorities, backfill policies and Maui's policies. Pure.

The door is :func:`koala_adapter.queueing.backfill.make_cluster_scheduler`, which makes the queue of a cluster under a
policy by its name. The same code orders a real batch system (``koala schedule``) and a simulated one
(``koala simulate``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import on_demand

if TYPE_CHECKING:
    from koala_adapter.queueing.backfill import POLICIES

__all__ = ["POLICIES"]

__getattr__, __dir__ = on_demand(__name__, {"backfill": ("POLICIES",)})

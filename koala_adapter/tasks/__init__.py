# SPDX-License-Identifier: Apache-2.0
"""Task servers, and the programs on nodes that pull tasks from them: sweeps, and workers of ``koala.Executor``.

``server`` (the door) hands out tasks, ``sweep`` is the ledger of the tasks of a sweep. ``launcher`` and ``connection``
travel to the nodes: they are for Python 3.6 or newer and use the standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import on_demand

if TYPE_CHECKING:
    from koala_adapter.tasks.results import read_results, row_of

__all__ = ["read_results", "row_of"]

__getattr__, __dir__ = on_demand(__name__, {"results": ("read_results", "row_of")})

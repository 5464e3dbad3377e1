# SPDX-License-Identifier: Apache-2.0
"""Plugin ``drmaa``: any batch system with a DRMAA 1.0 library, through a helper process per cluster.

The door is PLUGIN, which the entry point names; it is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import on_demand

if TYPE_CHECKING:
    from koala_drmaa.lrm import PLUGIN

__all__ = ["PLUGIN"]
__getattr__, __dir__ = on_demand(__name__, {"lrm": ("PLUGIN",)})

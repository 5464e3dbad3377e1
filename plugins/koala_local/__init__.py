# SPDX-License-Identifier: Apache-2.0
"""Plugin ``local``: a cluster of subprocess slots on this host, for use and tests without a batch system.

The door is PLUGIN, which is imported when it is asked for, because the daemon of this package must stay light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import on_demand

if TYPE_CHECKING:
    from koala_local.lrm import PLUGIN

__all__ = ["PLUGIN"]
__getattr__, __dir__ = on_demand(__name__, {"lrm": ("PLUGIN",)})

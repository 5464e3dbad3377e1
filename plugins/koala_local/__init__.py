# SPDX-License-Identifier: Apache-2.0
"""Plugin ``local``: a cluster of subprocess slots on this host, for use and tests without a batch system.

The door is PLUGIN, which is imported when it is asked for, because the daemon of this package must stay light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koala_adapter.lrm import PluginDefinition

__all__ = ["PLUGIN"]


def __getattr__(name: str) -> PluginDefinition:
    """Give PLUGIN, the object that the entry point names."""
    if name == "PLUGIN":
        from koala_local.lrm import PLUGIN  # noqa: PLC0415 - see the docstring of the module

        return PLUGIN
    raise AttributeError(name)

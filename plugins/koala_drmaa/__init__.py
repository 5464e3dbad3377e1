# SPDX-License-Identifier: Apache-2.0
"""Plugin ``drmaa``: any batch system with a DRMAA 1.0 library, through a helper process per cluster.

The door is PLUGIN, which the entry point names; it is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koala_adapter.lrm import PluginDefinition

__all__ = ["PLUGIN"]


def __getattr__(name: str) -> PluginDefinition:
    """Give PLUGIN, the object that the entry point names."""
    if name == "PLUGIN":
        from koala_drmaa.lrm import PLUGIN  # noqa: PLC0415 - see the docstring of the module

        return PLUGIN
    raise AttributeError(name)

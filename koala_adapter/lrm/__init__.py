# SPDX-License-Identifier: Apache-2.0
"""Batch systems (LRMs): the contract of a plugin, finding installed plugins, and what all plugins use.

The names in ``__all__`` are the door for authors of plugins. Beside them: ``commands`` for plugins that run commands,
``rate`` for bounds of requests, ``listing`` and ``starts`` for the parts of koala that use plugins, and ``drmaa`` for
submitting through a DRMAA library.
"""

from koala_adapter import on_demand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from koala_adapter.lrm.commands import login_name
    from koala_adapter.lrm.contract import (
        ENTRY_POINT_GROUP,
        INTERFACE_VERSION,
        NOWHERE,
        Capabilities,
        CheckResult,
        ClusterContext,
        Lrm,
        PinnedStart,
        PluginDefinition,
        RenderedSubmission,
        Submission,
        load_plugins,
    )
    from koala_adapter.lrm.discovery import Discovery, FoundCluster, LeftOut, Surroundings, readable_text

__all__ = [
    "ENTRY_POINT_GROUP",
    "INTERFACE_VERSION",
    "NOWHERE",
    "Capabilities",
    "CheckResult",
    "ClusterContext",
    "Discovery",
    "FoundCluster",
    "LeftOut",
    "Lrm",
    "PinnedStart",
    "PluginDefinition",
    "RenderedSubmission",
    "Submission",
    "Surroundings",
    "load_plugins",
    "login_name",
    "readable_text",
]

# The DRMAA helper process is a module below this package, and needs neither the contract nor what that imports.
_DISCOVERY = ("Discovery", "FoundCluster", "LeftOut", "Surroundings", "readable_text")
_CONTRACT = tuple({*__all__}.difference(_DISCOVERY, ["login_name"]))
__getattr__, __dir__ = on_demand(
    __name__, {"commands": ("login_name",), "contract": _CONTRACT, "discovery": _DISCOVERY}
)

# SPDX-License-Identifier: Apache-2.0
"""Batch systems (LRMs): the contract of a plugin, finding installed plugins, and what all plugins use.

The names in ``__all__`` are the door for authors of plugins. Beside them: ``commands`` for plugins that run commands,
``rate`` for bounds of requests, ``listing`` and ``starts`` for the parts of koala that use plugins, and ``drmaa`` for
submitting through a DRMAA library.
"""

from koala_adapter.lrm.contract import (
    ENTRY_POINT_GROUP,
    INTERFACE_VERSION,
    NOWHERE,
    Capabilities,
    CheckResult,
    ClusterContext,
    Discovery,
    FoundCluster,
    LeftOut,
    Lrm,
    PluginDefinition,
    RenderedSubmission,
    Submission,
    Surroundings,
    load_plugins,
    readable_text,
)

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
    "PluginDefinition",
    "RenderedSubmission",
    "Submission",
    "Surroundings",
    "load_plugins",
    "readable_text",
]

# SPDX-License-Identifier: Apache-2.0
"""The contract of a plugin, and the registry that finds plugins: all that a third party needs to know.

Beside it, for plugins that run commands: :mod:`koala_adapter.lrm.commands`.
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

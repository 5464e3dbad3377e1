# SPDX-License-Identifier: Apache-2.0
"""The contract of a plugin, and the registry that finds plugins: all that a third party needs to know.

Beside it, for plugins that run commands: :mod:`koala_adapter.plugin.commands`.
"""

from koala_adapter.plugin.contract import (
    INTERFACE_VERSION,
    NOWHERE,
    Capabilities,
    CheckResult,
    ClusterContext,
    Lrm,
    PluginDefinition,
    RenderedSubmission,
    Submission,
)
from koala_adapter.plugin.discovery import Discovery, FoundCluster, LeftOut, Surroundings, readable_text
from koala_adapter.plugin.registry import ENTRY_POINT_GROUP, load_plugins

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

# SPDX-License-Identifier: Apache-2.0
"""Plugin ``sge``: Grid Engine, through DRMAA and its own commands. The door is PLUGIN."""

from __future__ import annotations

from koala_adapter.lrm import PluginDefinition
from koala_sge.lrm import CAPABILITIES, SgeLrm
from koala_sge.settings import SgeSettings, discover

__all__ = ["PLUGIN", "SgeLrm", "SgeSettings"]


PLUGIN = PluginDefinition(
    name="sge",
    summary="Grid Engine 8.1 and relatives (Son of Grid Engine, Univa, Open Cluster Scheduler).",
    settings=SgeSettings,
    capabilities=CAPABILITIES,
    factory=SgeLrm,
    identified_by=("root", "cell", "qmaster_port", "bin_directory"),
    sites=True,
    discover=discover,
)

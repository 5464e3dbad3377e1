# SPDX-License-Identifier: Apache-2.0
"""Plugin ``drmaa``: any batch system with a DRMAA 1.0 library, through a helper process per cluster."""

from __future__ import annotations

from koala_adapter.plugin import PluginDefinition
from koala_drmaa.lrm import CAPABILITIES, DrmaaLrm
from koala_drmaa.settings import DrmaaSettings

__all__ = ["PLUGIN", "DrmaaLrm", "DrmaaSettings"]

PLUGIN = PluginDefinition(
    name="drmaa",
    summary="Any batch system with a DRMAA 1.0 library; sees only our own jobs.",
    settings=DrmaaSettings,
    capabilities=CAPABILITIES,
    factory=DrmaaLrm,
)

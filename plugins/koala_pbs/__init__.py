# SPDX-License-Identifier: Apache-2.0
"""Plugin ``pbs``: OpenPBS, PBS Professional and Torque, through their own commands.

The door is PLUGIN. Torque is read as a dialect: what it lists is put into the words of OpenPBS (``torque``).
"""

from __future__ import annotations

from koala_adapter.lrm import PluginDefinition
from koala_pbs.lrm import CAPABILITIES, PbsLrm, make_lrm
from koala_pbs.settings import PbsSettings, discover

__all__ = ["PLUGIN", "PbsLrm", "PbsSettings"]

PLUGIN = PluginDefinition(
    name="pbs",
    summary="OpenPBS and PBS Professional 19 to 23.",
    settings=PbsSettings,
    capabilities=CAPABILITIES,
    factory=make_lrm,
    identified_by=("conf", "server", "bin_directory"),
    sites=True,
    discover=discover,
)

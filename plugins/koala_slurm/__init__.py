# SPDX-License-Identifier: Apache-2.0
"""Plugin ``slurm``: Slurm, 20.11 to 26.05, through its commands, as an ordinary user.

The door is PLUGIN. Every command is a pair of functions without I/O: one builds its command line, one parses what it
prints. For an outside scheduler's listing pyslurm takes the place of some of them, where it is installed.
"""

from __future__ import annotations

from koala_adapter.lrm import PluginDefinition
from koala_slurm.lrm import CAPABILITIES, make_lrm
from koala_slurm.settings import SlurmSettings, discover

__all__ = ["PLUGIN", "SlurmSettings"]

PLUGIN = PluginDefinition(
    name="slurm",
    summary="Slurm 20.11 to 26.05, through sbatch, squeue, sinfo, scontrol and scancel",
    settings=SlurmSettings,
    capabilities=CAPABILITIES,
    factory=make_lrm,
    identified_by=("conf", "bin_directory"),
    sites=True,
    discover=discover,
)

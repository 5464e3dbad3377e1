# SPDX-License-Identifier: Apache-2.0
"""A fake Slurm for machines without one: its commands act on a directory and run jobs as ordinary processes.

It plays what the plugin ``slurm`` asks for and refuses every option that it does not know, so that a new option needs a
look at the real system first.
"""

from __future__ import annotations

from pathlib import Path

from tests.fakes.slurm.cluster import FakeSlurm

__all__ = ["PYSLURM", "FakeSlurm"]

PYSLURM = str(Path(__file__).parent / "modules")
"""Directory in which a fake pyslurm is found, as an entry of sys.path."""

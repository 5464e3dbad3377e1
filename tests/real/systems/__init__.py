# SPDX-License-Identifier: Apache-2.0
"""Private batch systems for tests: each lives in one temporary directory, on free ports of the loopback interface.

They are made of the distribution's own packages and touch nothing of a batch system that the machine may already
have: no file in /etc or /var, no well-known port, no well-known socket.
"""

from __future__ import annotations

from tests.real.systems.gridengine import GridEngineCell
from tests.real.systems.processes import CommandError, SystemFailedError
from tests.real.systems.slurm import SlurmCluster

__all__ = ["CommandError", "GridEngineCell", "SlurmCluster", "SystemFailedError"]

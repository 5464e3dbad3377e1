# SPDX-License-Identifier: Apache-2.0
"""Runners: each follows one job, from the launch into its held placeholders to the end of its processes.

``runner`` defines the interface and the runner of plain processes; the other modules have a runner each for workers and
sweeps, processes that change in step, and MPI. The service chooses the runner of a job by its ``RunnerName`` and
launcher, and imports those of the last two kinds with the first job that needs one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import on_demand

if TYPE_CHECKING:
    from koala_adapter.runners.adaptive import AdaptiveRunner
    from koala_adapter.runners.mpi import AdaptiveMpiRunner, MpiRunner
    from koala_adapter.runners.restartedmpi import RestartedMpiRunner

__all__ = ["AdaptiveMpiRunner", "AdaptiveRunner", "MpiRunner", "RestartedMpiRunner"]

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "adaptive": ("AdaptiveRunner",),
        "mpi": ("AdaptiveMpiRunner", "MpiRunner"),
        "restartedmpi": ("RestartedMpiRunner",),
    },
)

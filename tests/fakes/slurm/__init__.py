# SPDX-License-Identifier: Apache-2.0
"""A fake Slurm for machines without one: its commands act on a directory and run jobs as ordinary processes.

It plays what the plugin ``slurm`` asks for and refuses every option that it does not know, so that a new option needs a
look at the real system first.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tests.fakes.scripts import FakeSystem, end_runners
from tests.fakes.slurm.state import Settings, Store

__all__ = ["PYSLURM", "FakeSlurm"]

PYSLURM = str(Path(__file__).parent / "modules")
"""Directory in which a fake pyslurm is found, as an entry of sys.path."""


class FakeSlurm(FakeSystem):
    """A fake cluster."""

    variable = Store.variable
    variables: ClassVar = {"SLURM_TIME_FORMAT": "%s"}
    programs: ClassVar = ("sbatch", "squeue", "sinfo", "scontrol", "scancel", "sacct")

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 2,
        cpus: int = 2,
        release: str = "22.05.8",
        max_array_size: int = 1001,
        accounting: bool = False,
        site_hook: bool = False,
        whole_nodes: bool = False,
    ) -> None:
        """Make the cluster in ``directory``, which must not exist. ``whole_nodes``: see Settings."""
        self.release = release
        settings: Settings = {
            "cluster": "fake",
            "release": release,
            "nodes": {f"n{number}": cpus for number in range(1, nodes + 1)},
            "partition": "main",
            "max_array_size": max_array_size,
            "accounting": accounting,
            "site_hook": site_hook,
            "whole_nodes": whole_nodes,
        }
        super().__init__(directory, "slurm.conf", settings, system="slurm")

    def close(self) -> None:
        """End all jobs and wait for the processes that run them."""
        self.start_server()
        store = Store(self.conf)
        with store.locked() as state:
            for job in state.jobs:
                job.reason = "JobHeldUser"
            running = [job for job in state.jobs if job.alive]
        end_runners({job.runner: store.process(job) for job in running})

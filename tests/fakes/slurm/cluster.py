# SPDX-License-Identifier: Apache-2.0
"""Setting up a fake cluster in a directory, and taking it down."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

from tests.fakes.scripts import await_runners, kill_scripts, write_command
from tests.fakes.slurm.state import Settings, Store

if TYPE_CHECKING:
    from pathlib import Path

PROGRAMS = ("sbatch", "squeue", "sinfo", "scontrol", "scancel", "sacct")


class FakeSlurm:
    """A fake cluster; the plugin is pointed at it by ``conf`` and ``bin_directory``."""

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
        self.conf = directory / "slurm.conf"
        self.bin_directory = directory / "bin"
        self.processors = nodes * cpus
        self.release = release
        self._directory = directory
        (directory / "spool").mkdir(parents=True, mode=0o700)
        self.bin_directory.mkdir()
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
        self.conf.write_text(json.dumps(settings))
        for program in PROGRAMS:
            write_command(self.bin_directory / program, "slurm")

    def run(self, *command: str, stdin: str = "", user: str = "nobody") -> str:
        """Run a command as somebody else would; return what it prints."""
        environment = {
            "PATH": os.environ["PATH"],
            "SLURM_CONF": str(self.conf),
            "USER": user,
            "SLURM_TIME_FORMAT": "%s",
        }
        program, *arguments = command
        done = subprocess.run(
            [self.bin_directory / program, *arguments],
            env=environment,
            input=stdin.encode(),
            capture_output=True,
            check=True,
        )
        return done.stdout.decode()

    def stop_controller(self) -> None:
        """Make the commands complain that nobody answers; jobs go on."""
        (self._directory / "down").touch()

    def start_controller(self) -> None:
        """Make the commands work again."""
        (self._directory / "down").unlink(missing_ok=True)

    def close(self) -> None:
        """End all jobs and wait for the processes that run them."""
        self.start_controller()
        store = Store(self.conf)
        with store.locked() as state:
            for job in state.jobs:
                job.reason = "JobHeldUser"
            running = [job for job in state.jobs if job.alive]
            kill_scripts(store.process(job) for job in running)
        await_runners(job.runner for job in running)

# SPDX-License-Identifier: Apache-2.0
"""``koala check`` of a Slurm cluster: what is there, what answers, and whether a submission would be taken."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError, LrmUnavailableError
from koala_adapter.model import BatchKey
from koala_adapter.plugin import CheckResult, Submission
from koala_adapter.plugin.commands import child_environment
from koala_slurm.accounting import sacct_command
from koala_slurm.controller import CONFIG_COMMAND, VERSION_COMMAND, parse_config, parse_version, release_number
from koala_slurm.nodes import PARTITION_COMMAND, parse_partitions
from koala_slurm.refusals import submission_error
from koala_slurm.submission import dry_run_command, sbatch_command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from koala_adapter.model import Queue
    from koala_adapter.plugin.directives import Directives
    from koala_slurm.client import SlurmCommands
    from koala_slurm.controller import ControllerConfig
    from koala_slurm.settings import SlurmSettings

PROGRAMS = ("sbatch", "squeue", "sinfo", "scontrol", "scancel")

OLDEST_RELEASE = (20, 11)
"""The listings of older releases were never seen."""

_TRIAL = Submission(key=BatchKey("koala-check"), count=1, script="#!/bin/sh\nexit 0\n", walltime=60)


@dataclass(slots=True, kw_only=True)
class Checks:
    """One run of all checks; each that fails says what to do. Without a controller the rest is left out."""

    commands: SlurmCommands
    settings: SlurmSettings
    directives: Directives
    unanswered: LrmUnavailableError | None = None
    """How the controller failed to answer a moment ago: to ask once more would take as long."""
    _partition: str | None = None
    _config: ControllerConfig | None = None

    async def run(self) -> tuple[CheckResult, ...]:
        """Return one result for each subject, in the order in which a person would look."""
        steps: tuple[tuple[str, Callable[[], Awaitable[CheckResult]], str], ...] = (
            ("commands", self._programs, "install slurm-client, or give bin_directory"),
            ("version", self._version, "give conf, the path of this cluster's slurm.conf"),
            ("controller", self._controller, "start slurmctld, or give conf, the path of this cluster's slurm.conf"),
            ("partitions", self._partitions, "ask the site which partitions you may use"),
            ("submission", self._submission, "correct the settings and directives of this cluster in the site file"),
            ("accounting", self._accounting, "tell the site that sacct does not work"),
        )
        results: list[CheckResult] = []
        for subject, step, remedy in steps:
            results.append(await _guarded(subject, step, remedy))
            # Each further question would wait for the controller until its time-out.
            if subject == "controller" and not results[-1].ok:
                return tuple(results)
        return tuple(results)

    async def _programs(self) -> CheckResult:
        directory = str(self.settings.bin_directory) if self.settings.bin_directory else child_environment()["PATH"]
        places = {program: shutil.which(program, path=directory) for program in PROGRAMS}
        missing = [program for program, place in places.items() if place is None]
        if missing:
            remedy = "install slurm-client, or give bin_directory, the directory of the commands"
            return _bad("commands", f"no {', '.join(missing)} in {directory}", remedy)
        found = sorted({os.path.dirname(place) for place in places.values() if place})  # noqa: PTH120 - plain text
        return _good("commands", f"{', '.join(PROGRAMS)} in {', '.join(found)}")

    async def _version(self) -> CheckResult:
        output = await self.commands.read(VERSION_COMMAND, action="asking for the version")
        version = parse_version(output)
        if version is None:
            return _bad("version", f"no version in {output.strip()[:100]!r}", "check what sinfo --version prints")
        if release_number(version) < OLDEST_RELEASE:
            return _bad("version", version, "Slurm 20.11 or later is needed")
        return _good("version", version)

    async def _controller(self) -> CheckResult:
        if self.unanswered is not None:
            raise self.unanswered
        config = self._config = parse_config(await self.commands.read(CONFIG_COMMAND, action="asking the controller"))
        elements = config.max_array_size - 1
        return _good("controller", f"cluster {config.cluster}, at most {elements} placeholders in one submission")

    async def _partitions(self) -> CheckResult:
        partitions = parse_partitions(await self.commands.read(PARTITION_COMMAND, action="listing of partitions"))
        up = [partition for partition in partitions if partition.up]
        if not up:
            return _bad("partitions", "none is up", "wait until the site opens one")
        # Without a default the site file names one; any that is up tells whether submissions work at all.
        if not any(partition.default for partition in up):
            self._partition = up[0].name
        return _good("partitions", "; ".join(_described(partition) for partition in partitions))

    async def _submission(self) -> CheckResult:
        trial = Submission(
            key=_TRIAL.key, count=1, script=_TRIAL.script, walltime=_TRIAL.walltime, queue=self._partition
        )
        command = dry_run_command(sbatch_command(trial, self.settings, self.directives))
        result = await self.commands.run(command, stdin=trial.script.encode())
        if result.returncode:
            raise submission_error(result)
        return _good("submission", result.complaint or "would be taken")

    async def _accounting(self) -> CheckResult:
        if self._config is None:
            raise LrmUnavailableError("the controller did not say whether there is any")
        if not self._config.accounting:
            return _good("accounting", "none configured; how jobs ended is known for as long as squeue shows them")
        await self.commands.read(sacct_command(("1",)), action="accounting")
        return _good("accounting", "sacct works")


async def _guarded(subject: str, step: Callable[[], Awaitable[CheckResult]], remedy: str) -> CheckResult:
    try:
        return await step()
    except LrmError as error:
        return _bad(subject, error.message, error.hint or remedy)


def _described(partition: Queue) -> str:
    limit = f"{partition.walltime_limit // 60} min" if partition.walltime_limit is not None else "no walltime limit"
    words = (f"{partition.processors} processors", limit, *(("default",) if partition.default else ()))
    return f"{partition.name} {'up' if partition.up else 'down'} ({', '.join(words)})"


def _good(subject: str, found: str) -> CheckResult:
    return CheckResult(subject=subject, ok=True, found=found)


def _bad(subject: str, found: str, remedy: str) -> CheckResult:
    return CheckResult(subject=subject, ok=False, found=found, remedy=remedy)

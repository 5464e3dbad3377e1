# SPDX-License-Identifier: Apache-2.0
"""``koala check`` of a Slurm cluster, and ``koala check --outside``."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError, LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm import CheckResult, Submission
from koala_adapter.lrm.commandplugin import Checks, OutsideChecks, Step, bad, good
from koala_adapter.lrm.commands import QUEUES_KEPT
from koala_adapter.model import BatchKey, LrmJob, LrmJobId, Queue
from koala_slurm import client, releases
from koala_slurm.listing import (
    CONFIG_COMMAND,
    PARTITION_COMMAND,
    VERSION_COMMAND,
    ControllerConfig,
    parse_config,
    parse_partitions,
    parse_version,
    release_number,
    sacct_command,
    without_default_memory,
)
from koala_slurm.submission import dry_run_command, sbatch_command
from koala_slurm.words import parse_job_id, submission_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.lrm.contract import Directives
    from koala_slurm.client import SlurmCommands
    from koala_slurm.outside import OutsideReader
    from koala_slurm.settings import SlurmSettings

# -- Checks of a cluster -------------------------------------------------------------------------------------

_GIVEN = re.compile(r"using ([0-9]+) processors", re.ASCII)
"""What ``sbatch --test-only`` says of what a job would get."""

_TRIAL = Submission(key=BatchKey("koala-check"), count=1, script="#!/bin/sh\nexit 0\n", walltime=60)


class SlurmChecks(Checks):
    """Checks of commands, controller, and a trial submission that is not sent."""

    programs = ("sbatch", "squeue", "sinfo", "scontrol", "scancel")
    missing_remedy = "install slurm-client, or give bin_directory, the directory of the commands"
    decisive = "controller"

    def __init__(
        self,
        commands: SlurmCommands,
        settings: SlurmSettings,
        directives: Directives,
        unanswered: LrmUnavailableError | None,
    ) -> None:
        """``directives``: of the site, which the trial submission has, too."""
        super().__init__(commands.host, settings.bin_directory, unanswered)
        self._commands = commands
        self._settings = settings
        self._directives = directives
        self._partition: str | None = None
        self._config: ControllerConfig | None = None

    def steps(self) -> tuple[Step, ...]:
        return (
            ("commands", self.check_programs, self.missing_remedy),
            ("version", self._version, "give conf, the path of this cluster's slurm.conf"),
            ("controller", self._controller, "start slurmctld, or give conf, the path of this cluster's slurm.conf"),
            ("partitions", self._partitions, "ask the site which partitions you may use"),
            ("memory", self._memory, "ask the site how much memory jobs get by default"),
            ("submission", self._submission, "correct the settings and directives of this cluster in the site file"),
            ("accounting", self._accounting, "tell the site that sacct does not work"),
        )

    async def _version(self) -> CheckResult:
        output = await self._commands.read(VERSION_COMMAND, action="asking for the version")
        version = parse_version(output)
        if version is None:
            return bad(f"no version in {output.strip()[:100]!r}", "check what sinfo --version prints")
        if release_number(version) < releases.OLDEST:
            return bad(version, f"Slurm {releases.name_of(releases.OLDEST)} or later is needed")
        return good(version)

    async def _controller(self) -> CheckResult:
        self.require_answer()
        config = await self._commands.setting(CONFIG_COMMAND, parse_config, action="asking the controller")
        self._config = config
        elements = config.max_array_size - 1
        return good(f"cluster {config.cluster}, at most {elements} placeholders in one submission")

    async def _partitions(self) -> CheckResult:
        action = "listing of partitions"
        partitions = await self._commands.setting(
            PARTITION_COMMAND, parse_partitions, action=action, within=QUEUES_KEPT
        )
        up = [partition for partition in partitions if partition.up]
        if not up:
            return bad("none is up", "wait until the site opens one")
        # Without a default the site file names one; any that is up tells whether submissions work at all.
        if not any(partition.default for partition in up):
            self._partition = up[0].name
        return good("; ".join(_described(partition) for partition in partitions))

    async def _memory(self) -> CheckResult:
        names: Sequence[str] = ()
        if self._config is not None and self._config.whole_memory:
            action = "listing of partitions"
            names = await self._commands.setting(PARTITION_COMMAND, without_default_memory, action=action)
        if not names:
            return good("a placeholder takes none from others, or the site's default")
        where = ", ".join(names)
        return good(
            f"in {where} a placeholder that asks for none gets all of a node, and keeps others from it (there is no "
            "DefMemPerCPU or DefMemPerNode): set memory_mib for this cluster in the site file",
        )

    async def _submission(self) -> CheckResult:
        trial = replace(_TRIAL, queue=self._partition)
        command = dry_run_command(sbatch_command(trial, self._settings, self._directives))
        result = await self._commands.run(command, stdin=trial.script.encode())
        if result.returncode:
            raise submission_error(result)
        return good(_with_surplus(result.complaint) or "would be taken")

    async def _accounting(self) -> CheckResult:
        if self._config is None:
            raise LrmUnavailableError("the controller did not say whether there is any")
        if not self._config.accounting:
            return good("none configured; how jobs ended is known for as long as squeue shows them")
        await self._commands.read(sacct_command(("1",)), action="accounting")
        return good("sacct works")


def _with_surplus(said: str) -> str:
    """Return the result of sbatch --test-only for one processor, with a note if more would be allocated."""
    match = _GIVEN.search(said)
    if match is None or int(match[1]) <= 1:
        return said
    return f"{said} (a placeholder asks for one processor and is given {match[1]}: whole cores, or a whole node)"


def _described(partition: Queue) -> str:
    limit = f"{partition.walltime_limit // 60} min" if partition.walltime_limit is not None else "no walltime limit"
    words = (f"{partition.processors} processors", limit, *(("default",) if partition.default else ()))
    return f"{partition.name} {'up' if partition.up else 'down'} ({', '.join(words)})"


# -- Checks of starting from outside -------------------------------------------------------------------------
# ``koala check --outside`` of a Slurm cluster: whether ordinary jobs come in held for us, and we may start them.

TRIAL = ("sbatch", "--parsable", "--job-name=koala-check", "--ntasks=1", "--time=1", "--output=/dev/null", "--chdir=/")
"""An ordinary submission, but for next week, so that it never runs if nobody holds it."""

SCRIPT = b"#!/bin/sh\nexit 0\n"


class SlurmOutsideChecks(OutsideChecks):
    """Checks for scheduling from outside, with a job of their own."""

    scheduler = "Slurm's own scheduler"
    held_for_us = "yes, and marked as ours"
    held_otherwise = "not marked as ours"

    def __init__(self, commands: SlurmCommands, reader: OutsideReader, *, user: str, uid: int) -> None:
        """``user``, ``uid``: the name and id under which Slurm knows this user."""
        self._commands = commands
        self._reader = reader
        self._user = user
        self._uid = uid

    async def rights(self) -> CheckResult:
        config = parse_config(await self._commands.read(CONFIG_COMMAND, action="asking the controller"))
        ok = config.may_suspend(user=self._user, uid=self._uid)
        found = f"we are {self._user}; SlurmUser is {config.slurm_user}"
        remedy = "run as root or SlurmUser; of an Operator named in slurmdbd nothing can be said here"
        return CheckResult(subject="rights of an operator", ok=ok, found=found, remedy=remedy)

    async def submit(self) -> LrmJobId:
        result = await self._commands.run((*TRIAL, "--begin=now+7days"), stdin=SCRIPT)
        job = parse_job_id(result.text)
        if job is None:
            remedy = "submit such a job by hand (sbatch --wrap=true -n1 -t1), and mend what it complains about"
            raise LrmRejectedError(result.complaint, hint=remedy)
        return LrmJobId(job)

    async def seen(self, job: LrmJobId) -> LrmJob | None:
        return next((one for one in await self._reader.jobs() if one.id == job), None)

    async def release(self, job: LrmJobId) -> LrmError | None:
        result = await self._commands.run(client.job_command("release", (job,)))
        return client.control_error(result, action="releasing a job")

    async def cancel(self, job: LrmJobId) -> None:
        await self._commands.run(("scancel", job), urgent=True)

    def remedy_of_hold(self) -> str:
        return (
            "install what `koala conf job_submit.lua` prints: JobSubmitPlugins=lua in slurm.conf, then scontrol "
            "reconfigure"
        )

    def remedy_of_release(self) -> str:
        return f"add the user id {self._uid} to OPERATORS in job_submit.lua"

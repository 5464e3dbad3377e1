# SPDX-License-Identifier: Apache-2.0
"""Slurm's commands: those that act on jobs, how commands are run, and reading nodes and jobs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError, LrmRejectedError
from koala_adapter.lrm.commands import SETTINGS_KEPT, CommandResult, CommandRunner, CommandSystem
from koala_slurm.listing import (
    ENVIRONMENT,
    EVERY_JOB,
    NODE_COMMAND,
    PARTITION_COMMAND,
    job_format,
    new_separator,
    parse_jobs,
    parse_nodes,
    parse_units,
    parse_whole,
)
from koala_slurm.requests import DETAILS_COMMAND, JobDetails, everything_format, parse_everything, parse_one_detailed
from koala_slurm.words import COMPLAINTS, checked, minutes, reading_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from koala_adapter.model import LrmJob, Node
    from koala_slurm.listing import AllocationRules, ControllerConfig
    from koala_slurm.settings import SlurmSettings


# -- Command lines that act on jobs --------------------------------------------------------------------------
# scancel(1) and scontrol(1), and their complaints as errors.

_GONE = ("invalid job id", "already completing or completed", "job has already finished", "no job found")
"""Complaints of scancel about jobs that need no cancelling any more."""


def signal_command(arguments: Sequence[str], signal: int) -> tuple[str, ...]:
    """Return the command line that signals the script of each running job and all its processes (scancel --full).

    Without --state scancel tries for a minute and a half to signal a job that waits.
    """
    return ("scancel", "--full", "--state=RUNNING", f"--signal={int(signal)}", *arguments)


def job_command(verb: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command line of a scontrol verb that takes a list of jobs."""
    return ("scontrol", verb, ",".join(arguments))


def walltime_command(job: str, walltime: int) -> tuple[str, ...]:
    """Return the command line that changes a job's walltime (seconds, rounded up to minutes)."""
    return ("scontrol", "update", f"JobId={checked(job)}", f"TimeLimit={minutes(walltime)}")


def show_command(job: str) -> tuple[str, ...]:
    """Return the command line that shows a job; it complains about one that does not exist."""
    return ("scontrol", "--local", "--oneliner", "show", "job", job)


def is_ambiguous(result: CommandResult) -> bool:
    """Tell whether a complaint may mean an unknown job as well as no answer: so says ``scontrol suspend``."""
    return "unexpected message received for job" in result.complaint.lower()


def control_error(result: CommandResult, *, action: str) -> LrmError | None:
    """Return the error of a scontrol that changes jobs; None when it did not complain."""
    complaint = result.complaint if result.returncode or result.stderr.strip() else ""
    if not complaint and not result.returncode:
        return None
    return COMPLAINTS.error(complaint, action=action, otherwise=LrmRejectedError)


def cancel_error(result: CommandResult) -> LrmError | None:
    """Return the worst error among what scancel says of each job; None when all are cancelled or were gone."""
    return COMPLAINTS.cancel_error(result, gone=_GONE, marked="error")


# -- Running the commands ------------------------------------------------------------------------------------
# Which program, with which slurm.conf, for how long.


class SlurmCommands(CommandSystem):
    """The commands of one cluster, run within its bounds of rate and time."""

    def __init__(self, runner: CommandRunner, settings: SlurmSettings) -> None:
        super().__init__(
            runner,
            COMPLAINTS,
            directory=settings.bin_directory,
            environment=settings.variables(),
            timeout=settings.command_timeout,
        )

    def reading_error(self, result: CommandResult, *, action: str) -> LrmError | None:
        """Return the error of a listing: squeue may also fail with exit status 0."""
        return reading_error(result, action=action)

    def changing_error(self, result: CommandResult, *, action: str) -> LrmError | None:
        """Return the error of a change: a complaint of scontrol that is not known is a refusal."""
        return control_error(result, action=action)

    async def everything(
        self,
        *narrowed: str,
        parse: Callable[[str, str], Sequence[LrmJob]] = parse_everything,
        action: str = "listing of jobs",
    ) -> Sequence[LrmJob]:
        """List jobs with all fields by squeue: all users', or those that its options ``narrowed`` name."""
        separator = new_separator()
        form = everything_format(separator)
        return parse(await self.read((*EVERY_JOB, *narrowed), action=action, environment=form), separator)

    async def details(self, job: str) -> JobDetails:
        """Return what scontrol tells of one job."""
        command = (*DETAILS_COMMAND, checked(job))
        return parse_one_detailed(await self.read(command, action="looking at a job", environment=ENVIRONMENT))


ASKED_SINGLY = 5
"""Jobs of one listing of all users that scontrol is asked for each by itself."""

LISTING_REQUESTS = 6 + ASKED_SINGLY
"""At most, of a listing of all users: jobs (by pyslurm, and by squeue what that does not tell), details, partitions,
licences, generic resources."""

# -- Reading nodes and jobs ----------------------------------------------------------------------------------
# With sinfo and squeue.


class CommandReader:
    """Reads with sinfo and squeue."""

    requests = 2
    """Of one call of each method together."""

    def __init__(self, commands: SlurmCommands, rules: AllocationRules) -> None:
        """``rules``: those that are known before Slurm has answered."""
        self._commands = commands
        self._rules = rules
        self._partitions_read_at: float | None = None

    async def start(self, config: ControllerConfig) -> None:
        """Read what Slurm allocates at least to one job, also by partition."""
        self._rules = replace(self._rules, unit=config.unit)
        self._partitions_read_at = None
        if config.partitions_tell_more:
            await self._read_partitions()

    async def _read_partitions(self) -> None:
        units, whole = await self._commands.setting(
            PARTITION_COMMAND,
            lambda shown: (parse_units(shown, self._rules.unit), parse_whole(shown)),
            action="listing of partitions",
            within=SETTINGS_KEPT,
        )
        self._rules = replace(self._rules, units=units, whole=whole)
        self._partitions_read_at = time.monotonic()

    async def nodes(self) -> tuple[Node, ...]:
        """List all nodes, each once; settings of partitions are read again now and then."""
        read_at = self._partitions_read_at
        if read_at is not None and time.monotonic() > read_at + SETTINGS_KEPT:
            await self._read_partitions()
        return parse_nodes(await self._commands.read(NODE_COMMAND, action="listing of nodes"), self._rules)

    async def jobs(self, *, user: str) -> tuple[LrmJob, ...]:
        """Return all jobs of a user, which costs slurmctld least; those of all users where it is empty."""
        end = new_separator()
        output = await self._commands.read(
            (*EVERY_JOB, *((f"--user={user}",) if user else ())), action="listing of jobs", environment=job_format(end)
        )
        return parse_jobs(output, end)

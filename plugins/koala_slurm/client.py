# SPDX-License-Identifier: Apache-2.0
"""Slurm's commands: those that act on jobs, how commands are run, and reading nodes and jobs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmRejectedError
from koala_adapter.lrm.commands import SETTINGS_KEPT, CommandSystem, message_line
from koala_slurm.listing import (
    NODE_COMMAND,
    PARTITION_COMMAND,
    Unit,
    job_format,
    new_separator,
    parse_jobs,
    parse_nodes,
    parse_units,
    parse_whole,
    squeue_command,
)
from koala_slurm.words import COMPLAINTS, checked, minutes, reading_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.errors import LrmError
    from koala_adapter.lrm.commands import CommandResult, CommandRunner
    from koala_adapter.model import LrmJob, Node
    from koala_slurm.listing import ControllerConfig
    from koala_slurm.settings import SlurmSettings


# -- Command lines that act on jobs --------------------------------------------------------------------------
# scancel(1) and scontrol(1), and their complaints as errors.

_GONE = ("invalid job id", "already completing or completed", "job has already finished", "no job found")
"""Complaints of scancel about jobs that need no cancelling any more."""


def cancel_command(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that cancels jobs; without any filter scancel sends each argument as one request."""
    return ("scancel", *arguments)


def signal_command(arguments: Sequence[str], signal: int) -> tuple[str, ...]:
    """Return the command line that signals the script of each running job and all its processes (scancel --full).

    Without --state scancel tries for a minute and a half to signal a job that waits.
    """
    return ("scancel", "--full", "--state=RUNNING", f"--signal={int(signal)}", *arguments)


def job_command(verb: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command line of a scontrol verb that takes a list of jobs."""
    return ("scontrol", verb, ",".join(arguments))


def requeueable_command(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that lets jobs be requeued in spite of --no-requeue; their owner may do that."""
    return ("scontrol", "update", f"JobId={','.join(arguments)}", "Requeue=1")


def walltime_command(job: str, walltime: int) -> tuple[str, ...]:
    """Return the command line that changes a job's walltime (seconds, rounded up to minutes)."""
    return ("scontrol", "update", f"JobId={checked(job)}", f"TimeLimit={minutes(walltime)}")


def notify_command(job: str, text: str) -> tuple[str, ...]:
    """Return the command line that passes a message to a job, as one line of printable text."""
    return ("scontrol", "notify", checked(job), message_line(text))


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

    def __init__(self, commands: SlurmCommands, *, reserved_is_up: bool = False, has_default: bool = True) -> None:
        """``reserved_is_up``: nodes in a reservation count as usable, because we submit into one.

        ``has_default``: jobs that name no partition go to the default one.
        """
        self._commands = commands
        self._reserved_is_up = reserved_is_up
        self._has_default = has_default
        self._unit = Unit.CPU
        self._units: Mapping[str, Unit] = {}
        self._whole: frozenset[str] = frozenset()
        self._partitions_read_at: float | None = None

    async def start(self, config: ControllerConfig) -> None:
        """Read what Slurm allocates at least to one job, also by partition."""
        self._unit = config.unit
        self._partitions_read_at = None
        if config.partitions_tell_more:
            await self._read_partitions()

    async def _read_partitions(self) -> None:
        self._units, self._whole = await self._commands.setting(
            PARTITION_COMMAND,
            lambda shown: (parse_units(shown, self._unit), parse_whole(shown)),
            action="listing of partitions",
            within=SETTINGS_KEPT,
        )
        self._partitions_read_at = time.monotonic()

    async def nodes(self) -> tuple[Node, ...]:
        """List all nodes, each once; settings of partitions are read again now and then."""
        read_at = self._partitions_read_at
        if read_at is not None and time.monotonic() > read_at + SETTINGS_KEPT:
            await self._read_partitions()
        output = await self._commands.read(NODE_COMMAND, action="listing of nodes")
        return parse_nodes(
            output,
            reserved_is_up=self._reserved_is_up,
            unit=self._unit,
            units=self._units,
            whole=self._whole,
            has_default=self._has_default,
        )

    async def jobs(self, *, user: str = "") -> tuple[LrmJob, ...]:
        """Return all jobs, or all of one user."""
        end = new_separator()
        output = await self._commands.read(
            squeue_command(user=user), action="listing of jobs", environment=job_format(end)
        )
        return parse_jobs(output, end)

# SPDX-License-Identifier: Apache-2.0
"""Running the commands of one Slurm cluster: which program, with which slurm.conf, for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.plugin.commandsystem import CommandSystem
from koala_slurm.control import control_error
from koala_slurm.refusals import COMPLAINTS, reading_error

if TYPE_CHECKING:
    from koala_adapter.errors import LrmError
    from koala_adapter.plugin.commands import CommandResult, CommandRunner
    from koala_slurm.settings import SlurmSettings


class SlurmCommands(CommandSystem):
    """The commands of one cluster, run within its bounds of rate and time."""

    def __init__(self, runner: CommandRunner, settings: SlurmSettings) -> None:
        """Nothing is run yet."""
        super().__init__(
            runner,
            COMPLAINTS,
            directory=settings.bin_directory,
            environment=settings.variables(),
            timeout=settings.command_timeout,
        )

    def reading_error(self, result: CommandResult, *, action: str) -> LrmError | None:
        """See CommandSystem; squeue may also fail with exit status 0."""
        return reading_error(result, action=action)

    def changing_error(self, result: CommandResult, *, action: str) -> LrmError | None:
        """See CommandSystem; what scontrol says and no complaint is known of, is a refusal."""
        return control_error(result, action=action)

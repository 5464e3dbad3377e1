# SPDX-License-Identifier: Apache-2.0
"""Running the commands of one Slurm cluster: which program, with which slurm.conf, for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_slurm.control import control_error
from koala_slurm.refusals import reading_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.plugin.commands import CommandResult, CommandRunner
    from koala_slurm.settings import SlurmSettings


class SlurmCommands:
    """The commands of one cluster, run within its bounds of rate and time."""

    def __init__(self, runner: CommandRunner, settings: SlurmSettings) -> None:
        """Nothing is run yet."""
        self._runner = runner
        self._directory = settings.bin_directory
        self._timeout = settings.command_timeout
        self.environment: Mapping[str, str] = {"SLURM_CONF": str(settings.conf)} if settings.conf else {}

    def argv(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return a command with its program in the directory of the settings, unless it has a directory already."""
        program, *arguments = command
        found = str(self._directory / program) if self._directory and "/" not in program else program
        return (found, *arguments)

    async def run(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        urgent: bool = False,
    ) -> CommandResult:
        """Run a command (program first) and return what it printed. Raises LrmUnavailableError: no answer."""
        return await self._runner.run(
            self.argv(command),
            stdin=stdin,
            environment={**self.environment, **(environment or {})},
            timeout=self._timeout,
            urgent=urgent,
        )

    async def read(self, command: Sequence[str], *, action: str, environment: Mapping[str, str] | None = None) -> str:
        """Run a command that lists something and return its standard output. Raises LrmError when it failed."""
        result = await self.run(command, environment=environment)
        error = reading_error(result, action=action)
        if error is not None:
            raise error
        return result.text

    async def change(self, command: Sequence[str], *, action: str) -> None:
        """Run a scontrol that changes something. Raises LrmError when it complains."""
        error = control_error(await self.run(command), action=action)
        if error is not None:
            raise error

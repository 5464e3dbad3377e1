# SPDX-License-Identifier: Apache-2.0
"""Running the commands of one PBS server, and reading what they list."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from koala_adapter.plugin.commandsystem import CommandSystem, parsed
from koala_pbs.control import UTC
from koala_pbs.refusals import COMPLAINTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from koala_adapter.plugin.commands import CommandRunner
    from koala_pbs.settings import PbsSettings

T = TypeVar("T")


class PbsCommands(CommandSystem):
    """The commands of one server, run within its bounds of rate and time."""

    def __init__(self, runner: CommandRunner, settings: PbsSettings) -> None:
        """Nothing is run yet."""
        super().__init__(
            runner,
            COMPLAINTS,
            directory=settings.bin_directory,
            environment=settings.variables(),
            timeout=settings.command_timeout,
        )

    async def list(self, command: Sequence[str], parse: Callable[[str], T], *, action: str) -> T:
        """Return what a listing says. Raises LrmError: it failed, or cannot be read."""
        text = await self.read(command, action=action, environment=UTC)
        return parsed(parse, text, source=command[0])

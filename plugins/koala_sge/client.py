# SPDX-License-Identifier: Apache-2.0
"""Running Grid Engine's own commands. Their exit status says nothing: a refused qconf -tsm exits with 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.errors import LrmNotFoundError, LrmRejectedError, LrmUnavailableError
from koala_adapter.plugin.commandsystem import CommandSystem, ComplaintTable, complaints
from koala_drmaa.classify import NOT_FOUND_PHRASES, REJECTED_PHRASES, UNAVAILABLE_PHRASES, error_of, kind_of_text
from koala_drmaa.protocol import FailureKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.errors import LrmError
    from koala_adapter.plugin.commands import CommandResult, CommandRunner
    from koala_sge.settings import SgeSettings


COMPLAINTS = ComplaintTable(
    system="Grid Engine",
    known=(
        *complaints(LrmUnavailableError, dict.fromkeys(UNAVAILABLE_PHRASES, "it is asked again later")),
        *complaints(LrmNotFoundError, dict.fromkeys(NOT_FOUND_PHRASES, "it has ended, or never was")),
        *complaints(LrmRejectedError, dict.fromkeys(REJECTED_PHRASES, "")),
    ),
)
"""The same phrases as DRMAA's classification, in the same order."""


class GridEngineCommands(CommandSystem):
    """The commands of one cell; which directory they are in is in the requests already."""

    def __init__(self, runner: CommandRunner, settings: SgeSettings) -> None:
        """Nothing is run yet."""
        super().__init__(runner, COMPLAINTS, environment=settings.variables(), timeout=settings.request_timeout)

    async def document(self, command: Sequence[str]) -> bytes:
        """Return what a listing command printed. Raises what its complaint means when it printed nothing."""
        result = await self.run(command)
        if result.stdout.strip():
            return result.stdout
        complaint = result.complaint or f"exit code {result.returncode} and no output"
        raise error_of(kind_of_text(complaint), f"{result.argv[0]}: {complaint}")

    async def first_line(self, command: Sequence[str]) -> str:
        """Return the first line of text that a command printed."""
        result = await self.run(command)
        lines = [line.strip() for line in result.text.splitlines() if line.strip()]
        if not lines:
            raise error_of(FailureKind.UNAVAILABLE, f"{result.argv[0]}: {result.complaint or 'no output'}")
        return lines[0]

    def changing_error(self, result: CommandResult, *, action: str) -> LrmError | None:  # noqa: ARG002 - the program says it
        """See CommandSystem: by the text alone, in the words of DRMAA's classification."""
        complaint = result.complaint
        kind = kind_of_text(complaint, FailureKind.UNSUPPORTED)
        if kind is not FailureKind.UNSUPPORTED:
            return error_of(kind, f"{result.argv[0]}: {complaint}")
        return error_of(FailureKind.UNAVAILABLE, f"{result.argv[0]}: {complaint}") if result.returncode else None

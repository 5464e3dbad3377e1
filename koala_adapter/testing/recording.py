# SPDX-License-Identifier: Apache-2.0
"""A command runner that remembers what it ran, so that a test can compare it with what was promised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.plugin.commands import DEFAULT_TIMEOUT, CommandResult, CommandRunner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCommand:
    """One command as it was run."""

    argv: tuple[str, ...]
    stdin: bytes
    environment: tuple[tuple[str, str], ...]
    """What the caller added for this command."""


class RecordingRunner(CommandRunner):
    """Runs commands like its parent and keeps a list of them."""

    def __init__(self, *, per_minute: int = 60_000, environment: Mapping[str, str] | None = None) -> None:
        """The bound is generous, because a test asks far more often than the service does."""
        super().__init__(per_minute=per_minute, environment=environment)
        self.commands: list[RecordedCommand] = []

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        urgent: bool = False,
    ) -> CommandResult:
        """Record the command, then run it; see :meth:`koala_adapter.plugin.commands.CommandRunner.run`."""
        added = tuple((environment or {}).items())
        self.commands.append(RecordedCommand(argv=tuple(argv), stdin=stdin, environment=added))
        return await super().run(argv, stdin=stdin, environment=environment, timeout=timeout, urgent=urgent)

# SPDX-License-Identifier: Apache-2.0
"""A runner of commands whose answers a test lays out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.lrm.commands import CommandResult, CommandRunner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ScriptedRunner(CommandRunner):
    """Runs nothing: each command is answered with what is laid out for it, and remembered."""

    def __init__(self, answers: Mapping[str, tuple[int, str, str]]) -> None:
        """``answers``: exit code, stdout and stderr by the command's last path component."""
        super().__init__(per_minute=60_000)
        self.answers = dict(answers)
        self.asked: list[tuple[str, ...]] = []

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",  # noqa: ARG002 - the signature is the parent's
        environment: Mapping[str, str] | None = None,  # noqa: ARG002
        timeout: float = 30.0,  # noqa: ARG002
        urgent: bool = False,  # noqa: ARG002
    ) -> CommandResult:
        """Answer from the table."""
        self.asked.append(tuple(argv))
        code, stdout, stderr = self.answers[argv[0]]
        return CommandResult(argv=tuple(argv), returncode=code, stdout=stdout.encode(), stderr=stderr.encode())

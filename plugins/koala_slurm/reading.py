# SPDX-License-Identifier: Apache-2.0
"""Reading nodes and jobs with sinfo and squeue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_slurm.listing import ENVIRONMENT, parse_jobs, squeue_command
from koala_slurm.nodes import NODE_COMMAND, parse_nodes

if TYPE_CHECKING:
    from koala_adapter.model import LrmJob, Node
    from koala_slurm.client import SlurmCommands


class CommandReader:
    """Reads with sinfo and squeue."""

    requests = 2
    """Of one call of each method together; the outside scheduler's listing takes one more."""

    def __init__(self, commands: SlurmCommands, *, reserved_is_up: bool = False) -> None:
        """``reserved_is_up``: nodes in a reservation count as usable, because we submit into one."""
        self._commands = commands
        self._reserved_is_up = reserved_is_up

    async def nodes(self) -> tuple[Node, ...]:
        """Return all nodes, each once."""
        output = await self._commands.read(NODE_COMMAND, action="listing of nodes")
        return parse_nodes(output, reserved_is_up=self._reserved_is_up)

    async def jobs(self, *, user: str = "") -> tuple[LrmJob, ...]:
        """Return all jobs, or all of one user."""
        command = squeue_command(user=user)
        output = await self._commands.read(command, action="listing of jobs", environment=ENVIRONMENT)
        return parse_jobs(output)

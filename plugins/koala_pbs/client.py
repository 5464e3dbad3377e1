# SPDX-License-Identifier: Apache-2.0
"""Running the commands of one PBS server, and reading what they list, in the dialect that it speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from koala_adapter.errors import LrmRejectedError
from koala_adapter.plugin.commandsystem import CommandSystem, parsed
from koala_pbs import control
from koala_pbs.dialects import DIALECTS, OPENPBS, SET_TORQUE, require_release
from koala_pbs.jobs import parse_held_by_operator, parse_jobs, parse_requests, servers_of
from koala_pbs.nodes import parse_nodes
from koala_pbs.queues import parse_queues, parse_server
from koala_pbs.refusals import COMPLAINTS, UNKNOWN_JOB_STATUS, says_usage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from koala_adapter.errors import LrmError
    from koala_adapter.model import LrmJob, Node
    from koala_adapter.plugin.commands import CommandResult, CommandRunner
    from koala_pbs.queues import QueueConfig, ServerConfig
    from koala_pbs.settings import PbsSettings

T = TypeVar("T")


class PbsCommands(CommandSystem):
    """The commands of one server, run within its bounds of rate and time. All methods raise LrmError."""

    def __init__(self, runner: CommandRunner, settings: PbsSettings) -> None:
        """Nothing is run yet."""
        super().__init__(
            runner,
            COMPLAINTS,
            directory=settings.bin_directory,
            environment=settings.variables(),
            timeout=settings.command_timeout,
        )
        self.dialect = DIALECTS[settings.dialect]

    def changing_error(self, result: CommandResult, *, action: str) -> LrmError | None:
        """See CommandSystem; some of Torque's commands tell by their exit status alone that they know no such job."""
        if result.returncode == UNKNOWN_JOB_STATUS and not result.complaint:
            return self.complaints.error("unknown job id", action=action)
        return super().changing_error(result, action=action)

    async def jobs(self, *, at: str = "") -> tuple[LrmJob, ...]:
        """Return all jobs that are listed, elements of arrays singly; ``at``: by another server than ours."""
        read, there = self.dialect.read, f" of {at}" if at else ""
        command = control.show_all(self.dialect, at)
        return await self._list(
            command, lambda text: parse_jobs(text, read, moved=bool(at)), action=f"listing of jobs{there}"
        )

    async def located(self, job: str, *, home: str) -> tuple[LrmJob, ...]:
        """Return what is listed of one job, or of all elements of an array, by whichever server has it now.

        ``home``: what our own server is called.
        """
        read = self.dialect.read

        def parse(text: str) -> tuple[LrmJob, ...]:
            return parse_jobs(text, read, moved=home not in servers_of(text, read))

        return await self._list(control.show_job(job, self.dialect), parse, action="looking for a job")

    async def job(self, job: str) -> tuple[tuple[LrmJob, ...], Mapping[str, tuple[str, str, str]]]:
        """Return what is listed of one job, or element, and of it select, place and holds."""
        read = self.dialect.read

        def parse(text: str) -> tuple[tuple[LrmJob, ...], Mapping[str, tuple[str, str, str]]]:
            return parse_jobs(text, read), parse_requests(text, read)

        return await self._list(control.show_job(job, self.dialect), parse, action="looking at a job")

    async def held_by_operator(self) -> tuple[LrmJob, ...]:
        """Return the jobs that are not over and have an operator's hold, whoever holds them beside."""
        read = self.dialect.read
        return await self._list(
            self.dialect.list_jobs, lambda text: parse_held_by_operator(text, read), action="listing of jobs"
        )

    async def ended(self, job: str, *, at: str = "") -> tuple[LrmJob, ...]:
        """Return what the history says of one job, or of all elements of an array; ``at``: that of another server."""
        return await self._list(
            control.show_ended(job, at), lambda text: parse_jobs(text, moved=bool(at)), action="history"
        )

    async def nodes(self, *, queues: Collection[str] = ()) -> tuple[Node, ...]:
        """Return the vnodes that have processors; ``queues``: all execution queues."""
        read = self.dialect.read
        return await self._list(
            self.dialect.list_nodes,
            lambda text: parse_nodes(text, queues=queues, read=read),
            action="listing of nodes",
        )

    async def queues(self, *, home: str) -> tuple[QueueConfig, ...]:
        """Return what is set for the queues; ``home``: what the server is called."""
        read = self.dialect.read
        return await self._list(
            self.dialect.list_queues, lambda text: parse_queues(text, read, home=home), action="listing of queues"
        )

    async def server(self) -> ServerConfig:
        """Return what the server says of itself. Raises LrmRejectedError when it speaks the other dialect."""
        read = self.dialect.read
        try:
            config = await self._list(
                self.dialect.show_server, lambda text: parse_server(text, read), action="asking the server"
            )
        except LrmRejectedError as error:
            if self.dialect is OPENPBS and says_usage(error.message):
                raise LrmRejectedError(error.message, hint=SET_TORQUE) from error
            raise
        require_release(self.dialect, config.version)
        return config

    async def release(self) -> str:
        """Return the version of the commands; of Torque, of the server."""
        return await self.version(self.dialect.show_version, control.parse_version)

    async def _list(self, command: Sequence[str], parse: Callable[[str], T], *, action: str) -> T:
        text = await self.read(command, action=action, environment=control.UTC)
        return parsed(parse, text, source=command[0])

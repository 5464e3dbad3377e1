# SPDX-License-Identifier: Apache-2.0
"""PBS's commands: their command lines, and how they are run against one server."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from koala_adapter.errors import LrmError, LrmRejectedError
from koala_adapter.lrm.commands import CommandResult, CommandRunner, CommandSystem, message_line, parsed
from koala_pbs.jobs import (
    parse_held_by_operator,
    parse_jobs,
    parse_nodes,
    parse_requests,
    parse_selections,
)
from koala_pbs.queues import QueueConfig, ServerConfig, Vnodes, parse_queues, parse_server, parse_vnodes, placed
from koala_pbs.settings import DIALECTS, OPENPBS, SET_TORQUE, TORQUE, Dialect, PbsSettings, require_release
from koala_pbs.words import COMPLAINTS, UNKNOWN_JOB_STATUS, checked, is_array, says_usage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from koala_adapter.model import LrmJob, Node
    from koala_pbs.jobs import Assignment, Entries, JobRequest


# -- Command lines -------------------------------------------------------------------------------------------
# All but that of qsub.
#
# Listings are of everything, never of several ids: of these the development head of OpenPBS shows the first alone. qdel
# gets one id: of several, two of them finished, 23.06 crashes and deletes none.

UTC = {"TZ": "UTC"}
"""Environment of listings: they tell the time as their host has it."""

_VERSION = re.compile(r"(?:pbs_version\s*=|version:)\s*(\S+)", re.IGNORECASE)


def hold(jobs: Sequence[str], kinds: str) -> tuple[str, ...]:
    """Return the command line that puts jobs in hold: ``u`` of the user, ``o`` of an operator."""
    return ("qhold", "-h", kinds, *jobs)


def release(jobs: Sequence[str], kinds: str) -> tuple[str, ...]:
    """Return the command line that takes holds from jobs."""
    return ("qrls", "-h", kinds, *jobs)


def signal(jobs: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the command line that signals running jobs; ``suspend`` and ``resume`` are signals, too."""
    return ("qsig", "-s", name, *jobs)


def set_selection(job: str, select: str, place: str) -> tuple[str, ...]:
    """Return the command line that changes which chunks a waiting job asks for, and how they are arranged."""
    return ("qalter", "-l", f"select={select}", *(("-l", f"place={place}") if place else ()), checked(job))


def run_on(job: str, assignment: Assignment, dialect: Dialect) -> tuple[str, ...]:
    """Return the command line that starts a job at once, be it held. OpenPBS does not look whether there is room."""
    return ("qrun", "-H", assignment.hosts if dialect is TORQUE else assignment.destination, checked(job))


def notify(job: str, text: str) -> tuple[str, ...]:
    """Return the command line that writes a line to a job's standard error."""
    line = message_line(text)
    return ("qmsg", "-E", line if not line.startswith("-") else f" {line}", checked(job))


def parse_version(text: str) -> str | None:
    """Return the version in ``pbs_version = 23.06.06``; None when there is none."""
    found = _VERSION.search(text)
    return found[1] if found else None


# -- Running the commands ------------------------------------------------------------------------------------
# What they list is read in the dialect that the server speaks.

T = TypeVar("T")


class PbsCommands(CommandSystem):
    """The commands of one server, run within its bounds of rate and time. All methods raise LrmError."""

    def __init__(self, runner: CommandRunner, settings: PbsSettings) -> None:
        super().__init__(
            runner,
            COMPLAINTS,
            directory=settings.bin_directory,
            environment=settings.variables(),
            timeout=settings.command_timeout,
        )
        self.dialect = DIALECTS[settings.dialect]
        self.vnodes = Vnodes({})
        """As they were listed last."""

    def changing_error(self, result: CommandResult, *, action: str) -> LrmError | None:
        """Return the error of a change: some commands of Torque say by their exit status alone that there is no job."""
        if result.returncode == UNKNOWN_JOB_STATUS and not result.complaint:
            return self.complaints.error("unknown job id", action=action)
        return super().changing_error(result, action=action)

    async def jobs(self) -> tuple[LrmJob, ...]:
        """Return all jobs that are listed, elements of arrays singly."""

        def parse(listed: Entries) -> tuple[LrmJob, ...]:
            return placed(parse_jobs(listed), parse_selections(listed), self.vnodes)

        return await self._list(self.dialect.list_jobs, "Jobs", parse, action="listing of jobs")

    async def job(self, job: str) -> tuple[LrmJob, JobRequest] | None:
        """Return a job or element with its request; None when it is not listed."""

        def parse(listed: Entries) -> tuple[LrmJob, JobRequest] | None:
            requests = parse_requests(listed)
            return next(((one, requests[job]) for one in parse_jobs(listed) if one.id == job), None)

        return await self._list((*self.dialect.list_jobs, checked(job)), "Jobs", parse, action="looking at a job")

    async def held_by_operator(self) -> tuple[LrmJob, ...]:
        """Return unfinished jobs with an operator's hold."""
        return await self._list(self.dialect.list_jobs, "Jobs", parse_held_by_operator, action="listing of jobs")

    async def ended(self, job: str) -> tuple[LrmJob, ...]:
        """Return the server's history of a job, or of all elements of an array."""
        command = ("qstat", "-x", *(("-t",) if is_array(job) else ()), "-f", "-F", "json", checked(job))
        return await self._list(command, "Jobs", parse_jobs, action="history")

    async def nodes(self, *, queues: Collection[str] = ()) -> tuple[Node, ...]:
        """Return the vnodes that have processors; ``queues``: all execution queues."""

        def parse(listed: Entries) -> tuple[tuple[Node, ...], Vnodes]:
            return parse_nodes(listed, queues=queues), parse_vnodes(listed)

        nodes, self.vnodes = await self._list(self.dialect.list_nodes, "nodes", parse, action="listing of nodes")
        return nodes

    async def queues(self, *, home: str) -> tuple[QueueConfig, ...]:
        """Return the queues with their settings; ``home``: name of the server."""
        parse = partial(parse_queues, home=home)
        return await self._list(self.dialect.list_queues, "Queue", parse, action="listing of queues")

    async def server(self) -> ServerConfig:
        """Return the server's settings. Raises LrmRejectedError when it speaks the other dialect."""
        try:
            config = await self._list(self.dialect.show_server, "Server", parse_server, action="asking the server")
        except LrmRejectedError as error:
            if self.dialect is OPENPBS and says_usage(error.message):
                raise LrmRejectedError(error.message, hint=SET_TORQUE) from error
            raise
        require_release(self.dialect, config.version)
        return config

    async def release(self) -> str:
        """Return the version of the commands; of Torque, of the server."""
        return await self.version(self.dialect.show_version, parse_version)

    async def _list(self, command: Sequence[str], section: str, parse: Callable[[Entries], T], *, action: str) -> T:
        text = await self.read(command, action=action, environment=UTC)
        return parsed(lambda shown: parse(self.dialect.read(shown, section)), text, source=command[0])

# SPDX-License-Identifier: Apache-2.0
"""PBS's commands: their command lines, how they are run against one server, and holds of jobs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from koala_adapter.errors import LrmNotFoundError, LrmRejectedError
from koala_adapter.lrm.commands import CommandSystem, message_line, parsed, portions
from koala_adapter.model import LrmJobState
from koala_pbs.jobs import (
    parse_held_by_operator,
    parse_jobs,
    parse_nodes,
    parse_requests,
    parse_selections,
)
from koala_pbs.queues import Vnodes, parse_queues, parse_server, parse_vnodes, placed
from koala_pbs.settings import DIALECTS, OPENPBS, SET_TORQUE, TORQUE, require_release
from koala_pbs.words import COMPLAINTS, UNKNOWN_JOB_STATUS, array_index, array_of, checked, is_array, says_usage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from koala_adapter.errors import LrmError
    from koala_adapter.lrm.commands import CommandResult, CommandRunner
    from koala_adapter.model import LrmJob, LrmJobId, Node
    from koala_pbs.jobs import Assignment
    from koala_pbs.queues import QueueConfig, ServerConfig
    from koala_pbs.settings import Dialect, PbsSettings


# -- Command lines -------------------------------------------------------------------------------------------
# All but that of qsub.
#
# Listings are of everything, never of several ids: of these the development head of OpenPBS shows the first alone. qdel
# gets one id: of several, two of them finished, 23.06 crashes and deletes none.

UTC = {"TZ": "UTC"}
"""Environment of listings: they tell the time as their host has it."""

_VERSION = re.compile(r"(?:pbs_version\s*=|version:)\s*(\S+)", re.IGNORECASE)


def show_job(job: str, dialect: Dialect) -> tuple[str, ...]:
    """Return the command that lists one job or element."""
    return (*dialect.list_jobs, checked(job))


def show_ended(job: str) -> tuple[str, ...]:
    """Return the command that lists a job, or an array's elements, including ended ones."""
    return ("qstat", "-x", *(("-t",) if is_array(job) else ()), "-f", "-F", "json", checked(job))


def cancel(argument: str) -> tuple[str, ...]:
    """Return the command line that deletes a job, an array, or a range of its elements."""
    return ("qdel", argument)


def hold(jobs: Sequence[str], kinds: str) -> tuple[str, ...]:
    """Return the command line that puts jobs in hold: ``u`` of the user, ``o`` of an operator."""
    return ("qhold", "-h", kinds, *jobs)


def release(jobs: Sequence[str], kinds: str) -> tuple[str, ...]:
    """Return the command line that takes holds from jobs."""
    return ("qrls", "-h", kinds, *jobs)


def signal(jobs: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the command line that signals running jobs; ``suspend`` and ``resume`` are signals, too."""
    return ("qsig", "-s", name, *jobs)


def requeue(jobs: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that stops running jobs and queues them again."""
    return ("qrerun", *jobs)


def make_rerunnable(jobs: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that allows jobs to be queued again."""
    return ("qalter", "-r", "y", *jobs)


def set_walltime(job: str, seconds: int) -> tuple[str, ...]:
    """Return the command line that changes a job's walltime."""
    return ("qalter", "-l", f"walltime={int(seconds)}", checked(job))


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
        read = self.dialect.read

        def parse(text: str) -> tuple[LrmJob, ...]:
            return placed(parse_jobs(text, read), parse_selections(text, read), self.vnodes)

        return await self._list(self.dialect.list_jobs, parse, action="listing of jobs")

    async def job(self, job: str) -> tuple[tuple[LrmJob, ...], Mapping[str, tuple[str, str, str]]]:
        """Return a listed job or element with its selection, placement and holds."""
        read = self.dialect.read

        def parse(text: str) -> tuple[tuple[LrmJob, ...], Mapping[str, tuple[str, str, str]]]:
            return parse_jobs(text, read), parse_requests(text, read)

        return await self._list(show_job(job, self.dialect), parse, action="looking at a job")

    async def held_by_operator(self) -> tuple[LrmJob, ...]:
        """Return unfinished jobs with an operator's hold."""
        read = self.dialect.read
        return await self._list(
            self.dialect.list_jobs, lambda text: parse_held_by_operator(text, read), action="listing of jobs"
        )

    async def ended(self, job: str) -> tuple[LrmJob, ...]:
        """Return the server's history of a job, or of all elements of an array."""
        return await self._list(show_ended(job), parse_jobs, action="history")

    async def nodes(self, *, queues: Collection[str] = ()) -> tuple[Node, ...]:
        """Return the vnodes that have processors; ``queues``: all execution queues."""
        read = self.dialect.read

        def parse(text: str) -> tuple[tuple[Node, ...], Vnodes]:
            return parse_nodes(text, queues=queues, read=read), parse_vnodes(text, read)

        nodes, self.vnodes = await self._list(self.dialect.list_nodes, parse, action="listing of nodes")
        return nodes

    async def queues(self, *, home: str) -> tuple[QueueConfig, ...]:
        """Return the queues with their settings; ``home``: name of the server."""
        read = self.dialect.read
        return await self._list(
            self.dialect.list_queues, lambda text: parse_queues(text, read, home=home), action="listing of queues"
        )

    async def server(self) -> ServerConfig:
        """Return the server's settings. Raises LrmRejectedError when it speaks the other dialect."""
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
        return await self.version(self.dialect.show_version, parse_version)

    async def _list(self, command: Sequence[str], parse: Callable[[str], T], *, action: str) -> T:
        text = await self.read(command, action=action, environment=UTC)
        return parsed(parse, text, source=command[0])


# -- Holds ---------------------------------------------------------------------------------------------------
# A user's own and an operator's. Waiting elements of an array are held and released together.

ARGUMENTS_PER_COMMAND = 100


class Holding:
    """Holds and releases the jobs of one server."""

    def __init__(self, commands: PbsCommands, *, operator: bool) -> None:
        """``operator``: whether we are an operator of PBS, whose holds users cannot remove."""
        self._commands = commands
        self._operator = operator

    async def hold(self, ids: Sequence[LrmJobId]) -> None:
        """Put jobs in user hold, or in an operator's if that is what we are; arrays as a whole only."""
        kinds = "o" if self._operator else "u"
        for part in portions(await self._holdable(ids), ARGUMENTS_PER_COMMAND):
            await self._commands.change(hold(part, kinds), action="hold")

    async def release(self, ids: Sequence[LrmJobId]) -> None:
        """Take our hold and the user's from jobs; from arrays as a whole only."""
        await self._release(await self._holdable(ids), "uo" if self._operator else "u")

    async def give_back(self, ids: Sequence[LrmJobId]) -> None:
        """Remove the operator's hold and keep the user's; arrays as a whole."""
        await self._release(list(dict.fromkeys(map(array_of, ids))), "o")

    async def _release(self, jobs: Sequence[str], kinds: str) -> None:
        for part in portions(jobs, ARGUMENTS_PER_COMMAND):
            await self._commands.change(release(part, kinds), action="release")

    async def _holdable(self, ids: Sequence[LrmJobId]) -> list[str]:
        """Return jobs, and arrays of which all waiting elements are given.

        Raises LrmNotFoundError for an element that is not there, and LrmRejectedError for a part of an array.
        """
        elements = [job for job in ids if array_index(checked(job)) is not None]
        if not elements or not self._commands.dialect.only_whole_arrays:
            return list(ids)
        listed = await self._commands.jobs()
        there = {job.id for job in listed if job.state is not LrmJobState.ENDED}
        waiting = {job.id for job in listed if job.state in {LrmJobState.QUEUED, LrmJobState.HELD}}
        for job in elements:
            if job not in there:
                raise LrmNotFoundError(f"job {job} has gone", hint="it has ended, or never was")
            left_out = {other for other in waiting if array_of(other) == array_of(job)} - set(elements)
            if left_out:
                message = f"PBS holds and releases whole job arrays only, and {min(left_out)} is not among the jobs"
                raise LrmRejectedError(message, hint="submit jobs singly that are to be held singly")
        return list(dict.fromkeys(map(array_of, ids)))

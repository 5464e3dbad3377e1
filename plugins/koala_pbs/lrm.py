# SPDX-License-Identifier: Apache-2.0
"""One PBS server as a local resource manager: runs the commands whose building and parsing is pure elsewhere."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import (
    ConfigurationError,
    LrmError,
    LrmNotFoundError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnsupportedError,
)
from koala_adapter.model import LrmJobId, LrmJobState
from koala_adapter.plugin import Capabilities, Lrm, RenderedSubmission
from koala_adapter.plugin.commands import login_name
from koala_adapter.plugin.commandsystem import only_id, portions
from koala_drmaa.libraries import PBS
from koala_drmaa.transportchoice import chosen_transport
from koala_pbs import control
from koala_pbs.checks import Checks
from koala_pbs.client import PbsCommands
from koala_pbs.dialects import OPENPBS, TORQUE
from koala_pbs.directives import problem_of
from koala_pbs.holding import ARGUMENTS_PER_COMMAND, Holding
from koala_pbs.jobids import SUBMITTED, array_of, checked, compacted, element_ids, is_array
from koala_pbs.jobs import INDEX_VARIABLE
from koala_pbs.movedjobs import MovedJobs
from koala_pbs.outsidechecks import OutsideChecks
from koala_pbs.packing import packed
from koala_pbs.queues import largest_array, served
from koala_pbs.refusals import BEING_DELETED, NOT_RERUNNABLE, refuses_array, submission_error
from koala_pbs.starting import ByOperator, ByScheduler, Starting
from koala_pbs.submission import native_specification, pieces, qsub_command
from koala_pbs.tiednotes import TiedNotes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from koala_adapter.model import BatchKey, LrmJob, Node, Queue
    from koala_adapter.plugin import CheckResult, ClusterContext, Submission
    from koala_pbs.queues import QueueConfig, ServerConfig
    from koala_pbs.settings import PbsSettings

CAPABILITIES = Capabilities(
    hold=True, pin=True, annotate=True, suspend=True, requeue=True, signal=True, modify=True, accounting=True
)
"""What PBS can do. For who is no operator, and where the server keeps no history, :class:`PbsLrm` says less."""

BE_OPERATOR = "set operator = true where koala is an operator of PBS"
LARGEST_HISTORY_REQUEST = 20
"""Jobs asked for in one history request: each is a command."""


def make_lrm(context: ClusterContext, settings: PbsSettings) -> PbsLrm:
    """Return the LRM of one cluster. Raises ConfigurationError for directives of the site that cannot be used."""
    problem = problem_of(context.directives)
    if problem:
        raise ConfigurationError(f"cluster {context.cluster}: {problem}", hint="correct it in the site file")
    return PbsLrm(context, settings)


class PbsLrm(Lrm):
    """One PBS server."""

    hook_removal = "qmgr -c 'delete hook koala_hold'"
    array_index_variable = INDEX_VARIABLE
    job_id_variable = "PBS_JOBID"

    def __init__(self, context: ClusterContext, settings: PbsSettings) -> None:
        """Nothing is run yet; see :meth:`start`."""
        self._context = context
        self._settings = settings
        self._user = context.user or login_name()
        self._commands = PbsCommands(context.commands, settings)
        self._server: ServerConfig | None = None
        self._queues: Mapping[str, QueueConfig] = {}
        self._holding = Holding(self._commands, operator=settings.operator)
        self._moved = MovedJobs(self._commands, user=self._user)
        self._sizes: dict[str, int] = {}
        self._suspended: frozenset[LrmJobId] = frozenset()
        self._unanswered: LrmUnavailableError | None = None
        self._without_arrays: set[str | None] = set()
        self._starting: Starting = (
            ByOperator(self._commands)
            if settings.operator
            else ByScheduler(self._commands, TiedNotes(context.state_directory / "tied"))
        )
        self._transport = chosen_transport(
            settings, context, expected=PBS, variables=settings.variables(), timeout=settings.command_timeout
        )
        self.capabilities = self._capabilities()

    def _capabilities(self) -> Capabilities:
        operator, server = self._settings.operator, self._server
        return replace(
            CAPABILITIES,
            # Torque has no chunks that could be tied to vnodes.
            pin=operator or self._commands.dialect is OPENPBS,
            pin_elements=operator,
            annotate=operator and self._commands.dialect is OPENPBS,
            suspend=operator,
            requeue=operator,
            accounting=server is not None and server.history,
            lists_others=server is None or server.lists_others or operator,
        )

    @property
    def requests_per_poll(self) -> int:  # type: ignore[override]
        """Two, and one for each other server on which jobs of ours may be."""
        return 2 + len(self._moved.servers)

    async def start(self) -> None:
        """Ask the server once what it can do. Raises LrmError when it does not answer."""
        self._unanswered = None
        try:
            await self._learn()
        except LrmUnavailableError as error:
            self._unanswered = error
            raise
        if self._transport is not None:
            # Not before the server has answered: pbs-drmaa aborts without it.
            await self._transport.start()

    async def close(self) -> None:
        """End the DRMAA helper, where there is one."""
        if self._transport is not None:
            await self._transport.close()

    async def _learn(self) -> None:
        self._server = await self._commands.server()
        queues = await self._commands.queues(home=self._server.name)
        self._queues = {queue.name: queue for queue in queues}
        routed = dict.fromkeys(server for queue in queues for server in queue.servers)
        self._moved.learn(self._server.name, routed, history=self._server.history)
        self.capabilities = self._capabilities()

    # -- reading -----------------------------------------------------------------------------------------------------

    async def version(self) -> str:
        """Return ``pbs`` or ``torque`` and the version of the commands, such as ``pbs 23.06.06``."""
        name = "torque" if self._commands.dialect is TORQUE else "pbs"
        return f"{name} {await self._commands.release()}"

    async def nodes(self) -> tuple[Node, ...]:
        """Return the vnodes that have processors."""
        executing = tuple(queue.name for queue in self._queues.values() if queue.executes)
        return await self._commands.nodes(queues=executing)

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Return the jobs of all users from one listing; elements stay in it until their whole array has ended.

        Our own that were moved to another server are among them, as they are there.
        """
        jobs = self._starting.as_asked(await self._commands.jobs())
        jobs += await self._moved.listed({job.id for job in jobs})
        self._suspended = frozenset(job.id for job in jobs if job.state is LrmJobState.SUSPENDED)
        if self._transport is not None:
            live = {job.name for job in jobs if job.state is not LrmJobState.ENDED}
            self._transport.sweep(live, time.monotonic())
        return tuple(job for job in jobs if job.name.startswith(name_prefix))

    async def queues(self) -> tuple[Queue, ...]:
        """Return the queues, routing queues among them."""
        await self._learn()
        nodes = await self.nodes()
        default = self._server.default_queue if self._server is not None else ""
        return served(self._queues, nodes, default=default)

    async def moved(self, ids: Sequence[LrmJobId]) -> tuple[LrmJob, ...]:
        """Return those of these jobs that live on another server: PBS's commands follow them there by their ids."""
        return await self._moved.find(ids) if self._commands.dialect is OPENPBS else ()

    async def history(self, ids: Sequence[LrmJobId]) -> tuple[LrmJob, ...]:
        """Return the ends of jobs that the server still knows (job_history_duration)."""
        if not self.capabilities.accounting:
            self._unsupported("history", ids)
        found: list[LrmJob] = []
        for job in list(dict.fromkeys(map(array_of, ids)))[:LARGEST_HISTORY_REQUEST]:
            try:
                found += await self._commands.ended(job)
            except LrmNotFoundError:
                continue
        wanted = set(ids)
        return tuple(job for job in found if job.id in wanted and job.state is LrmJobState.ENDED)

    # -- submitting --------------------------------------------------------------------------------------------------

    def render(self, submission: Submission) -> RenderedSubmission:
        """Return the command line and the script that qsub gets on stdin, or the DRMAA call; of several the first."""
        if self._transport is not None:
            return self._transport.render(submission, self._native(submission), index_variable=INDEX_VARIABLE)
        parts = self._pieces(submission)
        note = "the script goes to qsub on its standard input"
        if len(parts) > 1:
            note = f"the first of {len(parts)} requests; {note}"
        return RenderedSubmission(
            command=self._qsub(submission, parts[0] if parts else range(1, 1)),
            script=self._script(submission),
            environment=tuple(self._commands.environment.items()),
            note=note,
        )

    def _script(self, submission: Submission) -> str:
        return packed(submission.script) if self._commands.dialect is TORQUE else submission.script

    def _pieces(self, submission: Submission) -> tuple[range, ...]:
        if self._commands.dialect is TORQUE or submission.queue in self._without_arrays:
            return pieces(submission, 1)
        limit = largest_array(self._server, self._queues, submission.queue)
        return pieces(submission, min(limit, self._settings.max_array_size or limit))

    def _qsub(self, submission: Submission, piece: range) -> tuple[str, ...]:
        return self._commands.argv(qsub_command(submission, self._settings, self._context.directives, piece))

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Submit an array of ``count`` elements with one qsub, where the queue takes it, else with several.

        When one of several is refused, those before it are cancelled. A queue that says only by its refusal that it
        takes no such arrays, because it passes jobs on to another, gets single jobs from then on. Through DRMAA each
        placeholder is a job of its own, because pbs-drmaa tells the elements of a bulk no index.
        """
        if self._transport is not None:
            return await self._transport.submit(submission, self._native(submission), index_variable=INDEX_VARIABLE)
        parts = self._pieces(submission)
        try:
            return await self._submit_pieces(submission, parts)
        except LrmRejectedError as error:
            if not refuses_array(error.message) or not any(len(piece) > 1 for piece in parts):
                raise
        self._without_arrays.add(submission.queue)
        return await self._submit_pieces(submission, self._pieces(submission))

    async def _submit_pieces(self, submission: Submission, parts: Sequence[range]) -> tuple[LrmJobId, ...]:
        commands = [(piece, self._qsub(submission, piece)) for piece in parts]
        if not commands:
            self._qsub(submission, range(1, 1))
        ids: list[LrmJobId] = []
        for piece, command in commands:
            try:
                ids += await self._submit(submission, command, piece)
            except LrmRejectedError:
                with anyio.CancelScope(shield=True):
                    await self.cancel(ids)
                raise
        return tuple(ids)

    def _native(self, submission: Submission) -> tuple[str, ...]:
        return (native_specification(submission, self._settings, self._context.directives),)

    def forget(self, key: BatchKey) -> None:
        """Delete the script that DRMAA needed: nobody will read it any more."""
        if self._transport is not None:
            self._transport.forget(key)

    async def _submit(self, submission: Submission, command: Sequence[str], piece: range) -> tuple[LrmJobId, ...]:
        result = await self._commands.run(command, stdin=self._script(submission).encode())
        if result.returncode and not SUBMITTED.search(result.text):
            raise submission_error(result)
        job = only_id(result.text, SUBMITTED)
        if not is_array(job):
            return (LrmJobId(job),)
        self._sizes[job] = len(piece)
        return element_ids(job, piece)

    # -- control -----------------------------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        """Delete jobs, one request for each job and each range of elements. Running ones take up to kill_delay."""
        error: LrmError | None = None
        await self._continue(ids)
        ranges = self._commands.dialect is OPENPBS
        for argument in compacted(ids, whole=self._whole(ids)) if ranges else self._checked(ids):
            try:
                await self._commands.cancel(control.cancel(self._moved.addressed(argument)), gone=BEING_DELETED)
            except LrmError as refused:
                # No answer is worse than a refusal: after it nothing is known.
                error = refused if error is None or isinstance(refused, LrmUnavailableError) else error
        if error is not None:
            raise error

    async def _continue(self, ids: Iterable[LrmJobId]) -> None:
        """Resume those of these jobs that are suspended: when one is deleted PBS leaves it so for twice kill_delay."""
        suspended = [job for job in ids if job in self._suspended]
        if self._settings.operator and suspended:
            with contextlib.suppress(LrmError):
                await self._commands.change(control.signal(self._checked(suspended), "resume"), action="resume")

    def _whole(self, ids: Iterable[LrmJobId]) -> list[str]:
        """Return the arrays of ours of which all elements are named."""
        counts: dict[str, int] = {}
        for job in set(ids):
            counts[array_of(job)] = counts.get(array_of(job), 0) + 1
        return [array for array, count in counts.items() if self._sizes.get(array) == count]

    async def hold(self, ids: Sequence[LrmJobId]) -> None:
        """Put jobs in user hold, or in an operator's if that is what we are; arrays as a whole only."""
        await self._holding.hold(ids)

    async def release(self, ids: Sequence[LrmJobId]) -> None:
        """Release held jobs; arrays as a whole only."""
        await self._holding.release(ids)

    async def held_by_hook(self) -> tuple[LrmJob, ...]:
        """Return the jobs that have an operator's hold."""
        return await self._commands.held_by_operator()

    async def give_back(self, ids: Sequence[LrmJobId]) -> None:
        """Take the operator's hold from jobs, and leave their users'; from arrays as a whole."""
        await self._holding.give_back(ids)

    async def annotate(self, ids: Sequence[LrmJobId], text: str) -> None:
        """Leave a note as the comments of jobs (``qstat -f``); elements share that of their array. For operators."""
        if not self.capabilities.annotate:
            message = f"PBS lets only its operators comment jobs ({', '.join(ids)})"
            raise LrmUnsupportedError(message, hint=BE_OPERATOR)
        for part in portions(list(dict.fromkeys(map(array_of, self._checked(ids)))), ARGUMENTS_PER_COMMAND):
            await self._commands.change(control.annotate(part, text), action="annotate")

    async def suspend(self, ids: Sequence[LrmJobId]) -> None:
        """Suspend running jobs; needs operator rights."""
        await self._operate("suspend", ids, control.signal(self._checked(ids), "suspend"))

    async def resume(self, ids: Sequence[LrmJobId]) -> None:
        """Resume suspended jobs; needs operator rights, and that PBS's scheduler is at work."""
        await self._operate("resume", ids, control.signal(self._checked(ids), "resume"))

    async def requeue(self, ids: Sequence[LrmJobId]) -> None:
        """Stop running jobs and queue them again, also those of ours that were submitted to run once only."""
        try:
            await self._operate("requeue", ids, control.requeue(self._checked(ids)))
        except LrmRejectedError as error:
            if NOT_RERUNNABLE not in error.message.lower():
                raise
            await self._operate("requeue", ids, control.make_rerunnable(self._checked(ids)))
            await self._operate("requeue", ids, control.requeue(self._checked(ids)))

    async def _operate(self, operation: str, ids: Sequence[LrmJobId], command: Sequence[str]) -> None:
        if not self._settings.operator:
            message = f"PBS lets only its operators {operation} jobs ({', '.join(ids)})"
            raise LrmUnsupportedError(message, hint=BE_OPERATOR)
        if ids:
            await self._commands.change(command, action=operation)

    def _checked(self, ids: Iterable[LrmJobId]) -> list[str]:
        return [checked(job) for job in ids]

    async def signal(self, ids: Sequence[LrmJobId], signal: int) -> None:
        """Send a signal to all processes of running jobs."""
        for part in portions(self._checked(ids), ARGUMENTS_PER_COMMAND):
            await self._commands.change(control.signal(part, str(int(signal))), action="signal")

    async def modify(self, job: LrmJobId, *, walltime: int) -> None:
        """Change the walltime of a job, not of an element; only operators make that of a running job longer."""
        await self._commands.change(control.set_walltime(job, walltime), action="modify")

    async def notify(self, job: LrmJobId, text: str) -> None:
        """Write a line to the job's standard error (qmsg). Torque's qmsg may never return, and is not used."""
        if self._commands.dialect is TORQUE:
            raise LrmUnsupportedError("Torque's qmsg may never return", hint="write to the job's user instead")
        await self._commands.change(control.notify(job, text), action="notify")

    async def start_on(self, job: LrmJobId, nodes: Sequence[str]) -> None:
        """Have a held job start on vnodes, with one entry for each of its processors: see koala_pbs.starting."""
        if not self.capabilities.pin:
            message = f"Torque lets only its operators start jobs on chosen nodes ({job})"
            raise LrmUnsupportedError(message, hint=BE_OPERATOR)
        await self._starting.start_on(checked(job), nodes)

    async def confirm_start(self, job: LrmJobId) -> None:
        """Have a job that runs come back in hold."""
        await self._starting.confirm(checked(job))

    async def undo_start(self, job: LrmJobId) -> None:
        """Hold a job that waits after it was started, and untie it."""
        await self._starting.undo_start(checked(job))

    # -- checking ----------------------------------------------------------------------------------------------------

    async def check(self) -> tuple[CheckResult, ...]:
        """Verify commands, version, server, scheduler, vnodes, queues and history."""
        checks = Checks(commands=self._commands, settings=self._settings, unanswered=self._unanswered)
        found = await checks.run()
        if self._transport is None or self._unanswered is not None:
            return found
        return (*found, *await self._transport.check())

    async def check_outside(self) -> tuple[CheckResult, ...]:
        """Verify with a job for next week that the site's hook holds jobs, and that we may start them."""
        return await OutsideChecks(self._commands, self._settings, user=self._user, uid=os.geteuid()).run()

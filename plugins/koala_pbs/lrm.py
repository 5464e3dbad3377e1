# SPDX-License-Identifier: Apache-2.0
"""Plugin ``pbs``: the LRM of one server.

It runs commands, which are built and read in ``client``, ``jobs``, ``queues``, ``submission`` and ``words``.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import (
    LrmError,
    LrmNotFoundError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnsupportedError,
)
from koala_adapter.lrm import Capabilities, RenderedSubmission
from koala_adapter.lrm.commandplugin import CommandPlugin, require_directives
from koala_adapter.lrm.commands import only_id, portions, worst
from koala_adapter.lrm.contract import ReservationRequest, oldest_first
from koala_adapter.lrm.drmaa.choice import Submitter
from koala_adapter.lrm.drmaa.libraries import PBS
from koala_adapter.model import LrmJob, LrmJobId, LrmJobState, Node, Queue
from koala_pbs import client
from koala_pbs.checks import PbsChecks, PbsOutsideChecks
from koala_pbs.client import UTC, PbsCommands
from koala_pbs.jobs import INDEX_VARIABLE
from koala_pbs.queues import QueueConfig, ServerConfig, ends_of, largest_array, served, tied
from koala_pbs.settings import OPENPBS, TORQUE, PbsSettings
from koala_pbs.starting import ByOperator, ByScheduler, Starting
from koala_pbs.submission import (
    OPENPBS_SLOTS,
    QSUB,
    SHOW_RESERVATIONS,
    TORQUE_SLOTS,
    native_specification,
    obstacle_to_drmaa,
    parse_confirmed,
    parse_reservations,
    pieces,
    qsub_command,
    rsub_command,
)
from koala_pbs.torque import packed
from koala_pbs.words import (
    BEING_DELETED,
    NOT_RERUNNABLE,
    SUBMITTED,
    array_index,
    array_of,
    checked,
    compacted,
    element_ids,
    is_array,
    refuses_array,
    submission_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from koala_adapter.lrm import CheckResult, ClusterContext, PinnedStart, Submission

CAPABILITIES = Capabilities(
    hold=True,
    pin=True,
    suspend=True,
    requeue=True,
    signal=True,
    modify=True,
    reserve=True,
    slots=OPENPBS_SLOTS | TORQUE_SLOTS,
    accounting=True,
)
"""What PBS can do. For who is no operator, and where the server keeps no history, :class:`PbsLrm` says less."""

BE_OPERATOR = "set operator = true where koala is an operator of PBS"
ARGUMENTS_PER_COMMAND = 100
LARGEST_HISTORY_REQUEST = 20
"""Jobs asked for in one history request: each is a command."""


def make_lrm(context: ClusterContext, settings: PbsSettings) -> PbsLrm:
    """Return the LRM of one cluster. Raises ConfigurationError for directives of the site that cannot be used."""
    require_directives(context, QSUB.problem_of(context.directives))
    return PbsLrm(context, settings)


class PbsLrm(CommandPlugin):
    """One PBS server."""

    hook_removal = "qmgr -c 'delete hook koala_hold'"
    array_index_variable = INDEX_VARIABLE
    job_id_variable = "PBS_JOBID"
    index_by_drmaa = INDEX_VARIABLE
    operators_only = "PBS lets only its operators"
    be_operator = BE_OPERATOR
    requests_per_poll = 2

    def __init__(self, context: ClusterContext, settings: PbsSettings) -> None:
        submitter = Submitter(
            settings,
            context,
            expected=PBS,
            variables=settings.variables(),
            timeout=settings.command_timeout,
            obstacle=obstacle_to_drmaa(settings, context.directives),
        )
        super().__init__(context, submitter)
        self._settings = settings
        self._commands = PbsCommands(context.commands, settings)
        self._server: ServerConfig | None = None
        self._queues: Mapping[str, QueueConfig] = {}
        self._sizes: dict[str, int] = {}
        self._suspended: frozenset[LrmJobId] = frozenset()
        self._without_arrays: set[str | None] = set()
        self._starting: Starting = ByOperator(self._commands) if settings.operator else ByScheduler(self._commands)
        self.capabilities = self._capabilities()

    def _capabilities(self) -> Capabilities:
        operator, server = self._settings.operator, self._server
        return replace(
            CAPABILITIES,
            # Torque has no chunks that could be tied to vnodes.
            pin=operator or self._commands.dialect is OPENPBS,
            pin_elements=operator,
            reserve=self._commands.dialect is OPENPBS,
            slots=TORQUE_SLOTS if self._commands.dialect is TORQUE else OPENPBS_SLOTS,
            suspend=operator,
            requeue=operator,
            accounting=server is not None and server.history,
            lists_others=server is None or server.lists_others or operator,
        )

    async def learn(self) -> None:
        self._server = await self._commands.server()
        queues = await self._commands.queues(home=self._server.name)
        self._queues = {queue.name: queue for queue in queues}
        self.capabilities = self._capabilities()

    # -- reading -----------------------------------------------------------------------------------------------------

    async def version(self) -> str:
        """Return ``pbs`` or ``torque`` and the version of the commands, such as ``pbs 23.06.06``."""
        name = "torque" if self._commands.dialect is TORQUE else "pbs"
        return f"{name} {await self._commands.release()}"

    async def nodes(self) -> tuple[Node, ...]:
        """Return the vnodes that have processors."""
        chunk = {} if self._server is None else self._server.default_chunk
        ties = {queue.name: queue.tie.with_defaults(chunk) for queue in self._queues.values() if queue.executes}
        default = self._queues.get(self._server.default_queue) if self._server is not None else None
        ends = ends_of(default, self._queues) if default is not None else ()
        nodes = await self._commands.nodes(queues=tuple(ties))
        return tied(nodes, self._commands.vnodes, ties, default=[queue.name for queue in ends])

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Return the jobs of all users from one listing; elements stay in it until their whole array has ended."""
        jobs = await self._commands.jobs()
        self._suspended = frozenset(job.id for job in jobs if job.state is LrmJobState.SUSPENDED)
        await self._submitter.sweep({job.name for job in jobs if job.state is not LrmJobState.ENDED})
        return tuple(oldest_first(job for job in jobs if job.name.startswith(name_prefix)))

    async def queues(self) -> tuple[Queue, ...]:
        """Return the queues, routing queues among them."""
        await self.learn()
        nodes = await self.nodes()
        default = self._server.default_queue if self._server is not None else ""
        return served(self._queues, nodes, default=default)

    async def accounted(self, ids: Sequence[LrmJobId]) -> Sequence[LrmJob]:
        """Return the ends of jobs in the server's history (job_history_duration)."""
        found: list[LrmJob] = []
        for job in list(dict.fromkeys(map(array_of, ids)))[:LARGEST_HISTORY_REQUEST]:
            with contextlib.suppress(LrmNotFoundError):
                found += await self._commands.ended(job)
        return found

    # -- submitting --------------------------------------------------------------------------------------------------

    def rendered(self, submission: Submission) -> RenderedSubmission:
        """Return the command line, and the script that qsub gets on stdin; of several command lines the first."""
        parts = self._pieces(submission)
        several = f"the first of {len(parts)} requests; " if len(parts) > 1 else ""
        return RenderedSubmission(
            command=self._qsub(submission, parts[0]),
            script=self._script(submission),
            environment=tuple(self._commands.environment.items()),
            note=f"{several}the script goes to qsub on its standard input",
        )

    def native(self, submission: Submission) -> tuple[str, ...]:
        return (native_specification(submission, self._settings, self._context.directives),)

    def _script(self, submission: Submission) -> str:
        return packed(submission.script) if self._commands.dialect is TORQUE else submission.script

    def _pieces(self, submission: Submission) -> tuple[range, ...]:
        if self._commands.dialect is TORQUE or submission.queue in self._without_arrays:
            return pieces(submission, 1)
        limit = largest_array(self._server, self._queues, submission.queue)
        return pieces(submission, min(limit, self._settings.max_array_size or limit))

    def _qsub(self, submission: Submission, piece: range) -> tuple[str, ...]:
        return self._commands.argv(qsub_command(submission, self._settings, self._context.directives, piece))

    async def submit_by_command(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Submit an array of ``count`` elements with one qsub, where the queue takes it, else with several.

        When one of several is refused, those before it are cancelled. A queue that says only by its refusal that it
        takes no such arrays, because it passes jobs on to another, gets single jobs from then on.
        """
        parts = self._pieces(submission)
        try:
            return await self._submit_pieces(submission, parts)
        except LrmRejectedError as error:
            if not refuses_array(error.message) or not any(len(piece) > 1 for piece in parts):
                raise
        # A refusal of single jobs, too, says that something else is wrong, such as too long a walltime.
        ids = await self._submit_pieces(submission, pieces(submission, 1))
        self._without_arrays.add(submission.queue)
        return ids

    async def _submit_pieces(self, submission: Submission, parts: Sequence[range]) -> tuple[LrmJobId, ...]:
        commands = [(piece, self._qsub(submission, piece)) for piece in parts]
        ids: list[LrmJobId] = []
        for piece, command in commands:
            try:
                ids += await self._submit(submission, command, piece)
            except LrmRejectedError:
                with anyio.CancelScope(shield=True):
                    await self.cancel(ids)
                raise
        return tuple(ids)

    async def _submit(self, submission: Submission, command: Sequence[str], piece: range) -> tuple[LrmJobId, ...]:
        result = await self._commands.run(command, stdin=self._script(submission).encode())
        if result.returncode and not SUBMITTED.search(result.text):
            raise submission_error(result)
        job = only_id(result.text, SUBMITTED)
        if not is_array(job):
            return (LrmJobId(job),)
        self._sizes[job] = len(piece)
        return element_ids(job, piece)

    # -- reservations ------------------------------------------------------------------------------------------------

    async def reserve(self, request: ReservationRequest) -> str:
        """Reserve a chunk for each placeholder, on vnodes that belong to no queue."""
        default = "" if self._server is None else self._server.default_queue
        queue = self._queues.get(request.placeholders.queue or default)
        if queue is not None and queue.tie.partition:
            raise LrmRejectedError(f"PBS reserves nothing in partition {queue.tie.partition} of queue {queue.name}")
        command = rsub_command(
            request,
            self._settings,
            self._context.directives,
            begins_at=time.time() + request.starts_in,
            defaults={} if queue is None else queue.tie.chunk,
        )
        result = await self._commands.run(command, environment=UTC)
        if name := parse_confirmed(result.text):
            return name
        said = result.complaint or result.text.strip() or "no output"
        raise LrmRejectedError(f"pbs_rsub: {said}")

    async def reservations(self) -> Mapping[str, str]:
        shown = await self._commands.read(SHOW_RESERVATIONS, action="listing of reservations")
        return parse_reservations(shown, self._user)

    async def unreserve(self, reservation: str) -> None:
        """Remove a reservation in which no jobs are left: PBS would end them."""
        if (await self._commands.run(("qselect", "-q", reservation))).text.strip():
            raise LrmUnavailableError(f"reservation {reservation}: jobs are in it")
        result = await self._commands.run(("pbs_rdel", reservation))
        if result.returncode and "unknown reservation" not in result.complaint.lower():
            raise LrmRejectedError(f"reservation {reservation}: {result.complaint}")

    # -- control -----------------------------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        """Delete jobs, one request for each job and each range of elements. Running ones take up to kill_delay."""
        errors: list[LrmError] = []
        await self._continue(ids)
        ranges = self._commands.dialect is OPENPBS
        for argument in compacted(ids, whole=self._whole(ids)) if ranges else self._checked(ids):
            try:
                await self._commands.cancel(("qdel", argument), gone=BEING_DELETED)
            except LrmError as refused:
                errors.append(refused)
        if (error := worst(errors)) is not None:
            raise error

    async def _continue(self, ids: Iterable[LrmJobId]) -> None:
        """Resume suspended jobs, as PBS delays the deletion of a suspended one by twice kill_delay."""
        suspended = [job for job in ids if job in self._suspended]
        if self._settings.operator and suspended:
            with contextlib.suppress(LrmError):
                await self._commands.change(client.signal(self._checked(suspended), "resume"), action="resume")

    def _whole(self, ids: Iterable[LrmJobId]) -> list[str]:
        """Return arrays of ours of which all elements are given."""
        counts = Counter(map(array_of, set(ids)))
        return [array for array, count in counts.items() if self._sizes.get(array) == count]

    async def hold(self, ids: Sequence[LrmJobId]) -> None:
        """Put jobs in user hold, or in an operator's if that is what we are; arrays as a whole only."""
        kinds = "o" if self._settings.operator else "u"
        await self._change(partial(client.hold, kinds=kinds), await self._holdable(ids), action="hold")

    async def release(self, ids: Sequence[LrmJobId]) -> None:
        """Take our hold and the user's from jobs; from arrays as a whole only."""
        kinds = "uo" if self._settings.operator else "u"
        await self._change(partial(client.release, kinds=kinds), await self._holdable(ids), action="release")

    async def held_by_hook(self) -> tuple[LrmJob, ...]:
        """Return the jobs that have an operator's hold."""
        return await self._commands.held_by_operator()

    async def give_back(self, ids: Sequence[LrmJobId]) -> None:
        """Take the operator's hold from jobs, and leave their users'; from arrays as a whole."""
        jobs = list(dict.fromkeys(map(array_of, ids)))
        await self._change(partial(client.release, kinds="o"), jobs, action="release")

    async def _holdable(self, ids: Sequence[LrmJobId]) -> list[str]:
        """Return jobs, and arrays of which all waiting elements are given: these are held and released together.

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

    async def _change(
        self, command: Callable[[Sequence[str]], Sequence[str]], jobs: Sequence[str], *, action: str
    ) -> None:
        for part in portions(jobs, ARGUMENTS_PER_COMMAND):
            await self._commands.change(command(part), action=action)

    async def suspend(self, ids: Sequence[LrmJobId]) -> None:
        await self._operate("suspend", ids, client.signal(self._checked(ids), "suspend"))

    async def resume(self, ids: Sequence[LrmJobId]) -> None:
        """Resume suspended jobs; needs operator rights, and that PBS's scheduler is at work."""
        await self._operate("resume", ids, client.signal(self._checked(ids), "resume"))

    async def requeue(self, ids: Sequence[LrmJobId]) -> None:
        """Stop running jobs and queue them again, also those of ours that were submitted to run once only."""
        try:
            await self._operate("requeue", ids, ("qrerun", *self._checked(ids)))
        except LrmRejectedError as error:
            if NOT_RERUNNABLE not in error.message.lower():
                raise
            await self._operate("requeue", ids, ("qalter", "-r", "y", *self._checked(ids)))
            await self._operate("requeue", ids, ("qrerun", *self._checked(ids)))

    async def _operate(self, operation: str, ids: Sequence[LrmJobId], command: Sequence[str]) -> None:
        self.require_operator(operation, ids, may=self._settings.operator)
        if ids:
            await self._commands.change(command, action=operation)

    def _checked(self, ids: Iterable[LrmJobId]) -> list[str]:
        return [checked(job) for job in ids]

    async def signal(self, ids: Sequence[LrmJobId], signal: int) -> None:
        """Send a signal to all processes of running jobs."""
        await self._change(partial(client.signal, name=str(int(signal))), self._checked(ids), action="signal")

    async def modify(self, job: LrmJobId, *, walltime: int) -> None:
        """Change the walltime of a job, not of an element; only operators make that of a running job longer."""
        command = ("qalter", "-l", f"walltime={int(walltime)}", checked(job))
        await self._commands.change(command, action="modify")

    async def notify(self, job: LrmJobId, text: str) -> None:
        """Write a line to the job's standard error (qmsg). Torque's qmsg may never return, and is not used."""
        if self._commands.dialect is TORQUE:
            raise LrmUnsupportedError("Torque's qmsg may never return", hint="write to the job's user instead")
        await self._commands.change(client.notify(job, text), action="notify")

    async def original_request(self, job: LrmJobId) -> str:
        return await self._starting.original_request(checked(job))

    async def start_on(self, start: PinnedStart) -> None:
        """Start a held job on vnodes (module koala_pbs.starting)."""
        if not self.capabilities.pin:
            message = f"Torque lets only its operators start jobs on chosen nodes ({start.job})"
            raise LrmUnsupportedError(message, hint=BE_OPERATOR)
        checked(start.job)
        await self._starting.start_on(start)

    async def confirm_start(self, start: PinnedStart) -> None:
        """Hold a running job, so that it waits held if it is queued again."""
        checked(start.job)
        await self._starting.confirm_start(start)

    async def undo_start(self, start: PinnedStart) -> None:
        checked(start.job)
        await self._starting.undo_start(start)

    # -- checking ----------------------------------------------------------------------------------------------------

    def checks(self) -> PbsChecks:
        return PbsChecks(self._commands, self._settings, self._unanswered)

    async def check_outside(self) -> tuple[CheckResult, ...]:
        """Verify with a job for next week that the site's hook holds jobs, and that we may start them."""
        uid = (await self._context.host.facts()).uid
        return await PbsOutsideChecks(self._commands, self._settings, user=self._user, uid=uid).run()

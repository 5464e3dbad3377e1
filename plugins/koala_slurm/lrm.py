# SPDX-License-Identifier: Apache-2.0
"""One Slurm cluster as a local resource manager: runs the commands whose building and parsing is pure elsewhere."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

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
from koala_adapter.plugin.commandsystem import portions
from koala_drmaa.libraries import SLURM
from koala_drmaa.transportchoice import chosen_transport
from koala_slurm import control
from koala_slurm.accounting import parse_history, sacct_command
from koala_slurm.client import SlurmCommands
from koala_slurm.controller import CONFIG_COMMAND, VERSION_COMMAND, ControllerConfig, parse_config, parse_version
from koala_slurm.directives import problem_of
from koala_slurm.durations import TIME_FORMAT
from koala_slurm.jobids import ARGUMENTS_PER_COMMAND, array_ids, compacted
from koala_slurm.jobnotes import annotate_commands
from koala_slurm.nodes import PARTITION_COMMAND, parse_partitions
from koala_slurm.pinning import make_pin
from koala_slurm.reading import CommandReader
from koala_slurm.refusals import submission_error
from koala_slurm.startnotes import StartNotes
from koala_slurm.submission import native_specification, parse_job_id, sbatch_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from koala_adapter.model import BatchKey, LrmJob, Node, Queue
    from koala_adapter.plugin import CheckResult, ClusterContext, Submission
    from koala_slurm.outside import OutsideReader
    from koala_slurm.reservations import Reserved
    from koala_slurm.settings import SlurmSettings
    from koala_slurm.starting import Starting

CAPABILITIES = Capabilities(
    hold=True,
    pin=True,
    annotate=True,
    suspend=True,
    requeue=True,
    signal=True,
    modify=True,
    accounting=True,
)
"""What Slurm can do. Without accounting, and for users who may not suspend, :class:`SlurmLrm` says less."""


def make_lrm(context: ClusterContext, settings: SlurmSettings) -> SlurmLrm:
    """Return the LRM of one cluster. Raises ConfigurationError for directives of the site that cannot be used."""
    problem = problem_of(context.directives)
    if problem:
        raise ConfigurationError(f"cluster {context.cluster}: {problem}", hint="correct it in the site file")
    return SlurmLrm(context, settings)


class SlurmLrm(Lrm):
    """One Slurm cluster."""

    hook_removal = "take lua out of JobSubmitPlugins in slurm.conf, then `scontrol reconfigure`"
    array_index_variable = "SLURM_ARRAY_TASK_ID"
    job_id_variable = "SLURM_ARRAY_JOB_ID"
    requests_per_start = 3

    def __init__(self, context: ClusterContext, settings: SlurmSettings) -> None:
        """Nothing is run yet; see :meth:`start`."""
        self._context = context
        self._settings = settings
        self._user = context.user or login_name()
        self._commands = SlurmCommands(context.commands, settings)
        self._reader = CommandReader(self._commands, reserved_is_up=settings.reservation is not None)
        self._config: ControllerConfig | None = None
        self._unanswered: LrmUnavailableError | None = None
        self._notes = StartNotes(context.state_directory / "starts")
        self._sizes: dict[str, int] = {}
        self._transport = chosen_transport(
            settings, context, expected=SLURM, variables=settings.variables(), timeout=settings.command_timeout
        )
        self.capabilities = replace(CAPABILITIES, accounting=False, suspend=False)
        self.requests_per_poll = self._reader.requests + 1

    async def start(self) -> None:
        """Ask the controller once what it can do, and set right what a killed process left.

        Raises LrmError when it does not answer.
        """
        if self._transport is not None:
            await self._transport.start()
        self._unanswered = None
        try:
            config = await self._read_config()
        except LrmUnavailableError as error:
            self._unanswered = error
            raise
        self.capabilities = replace(
            CAPABILITIES,
            suspend=config.may_suspend(user=self._user, uid=os.geteuid()),
            accounting=config.accounting and await self._accounting_works(),
        )
        self._config = config
        for note in self._notes.left():
            await self._starting(note.job, note.nodes).undo_start(note, after_kill=True)

    @cached_property
    def _outside(self) -> OutsideReader:
        """What reads all that an outside scheduler must know: imported for that alone."""
        from koala_slurm.outside import OutsideReader

        return OutsideReader(self._commands, self._notes)

    @cached_property
    def _reserved(self) -> Reserved:
        from koala_slurm.reservations import Reserved

        return Reserved()

    async def close(self) -> None:
        """End the DRMAA helper, where there is one."""
        if self._transport is not None:
            await self._transport.close()

    async def _read_config(self) -> ControllerConfig:
        return parse_config(await self._commands.read(CONFIG_COMMAND, action="reading the configuration"))

    async def _accounting_works(self) -> bool:
        try:
            result = await self._commands.run(sacct_command(("1",)), environment=TIME_FORMAT)
        except LrmUnavailableError:
            # A database that hangs must not keep us from a controller that answers.
            return False
        return result.returncode == 0 and not result.stderr.strip()

    # -- reading -----------------------------------------------------------------------------------------------------

    async def version(self) -> str:
        """Return ``slurm`` and a version, such as ``slurm 22.05.8``: that which the controller has told.

        Only where none is known are the commands asked for theirs: each request counts against the bound of a minute.
        """
        if self._config is not None and self._config.version:
            return f"slurm {self._config.version}"
        return f"slurm {await self._commands.version(VERSION_COMMAND, parse_version)}"

    async def nodes(self) -> tuple[Node, ...]:
        """Return the nodes of all partitions that we may see."""
        return await self._reader.nodes()

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Return jobs; with a prefix only our user's, and without what only an outside scheduler must know.

        That costs the controller least.
        """
        if not name_prefix:
            self._outside.limits_enforced = self._config is not None and self._config.limits_enforced
            return await self._outside.jobs()
        jobs = await self._reader.jobs(user=self._user)
        if self._transport is not None:
            live = {job.name for job in jobs if job.state is not LrmJobState.ENDED}
            self._transport.sweep(live, time.monotonic())
        return tuple(job for job in jobs if job.name.startswith(name_prefix))

    async def queues(self) -> tuple[Queue, ...]:
        """Return the partitions that we may see."""
        return parse_partitions(await self._commands.read(PARTITION_COMMAND, action="listing of partitions"))

    async def history(self, ids: Sequence[LrmJobId]) -> tuple[LrmJob, ...]:
        """Return the ends of jobs that accounting knows."""
        if not self.capabilities.accounting:
            self._unsupported("history", ids)
        found: list[LrmJob] = []
        for part in _arguments(ids):
            output = await self._commands.read(sacct_command(part), action="accounting", environment=TIME_FORMAT)
            found += parse_history(output)
        wanted = set(ids)
        return tuple(job for job in found if job.id in wanted and job.state is LrmJobState.ENDED)

    # -- submitting --------------------------------------------------------------------------------------------------

    def render(self, submission: Submission) -> RenderedSubmission:
        """Return the command line and the script that sbatch gets on stdin, or what goes to the DRMAA library."""
        if self._transport is not None:
            return self._transport.render(submission, self._native(submission), index_variable=None)
        command = sbatch_command(submission, self._settings, self._context.directives)
        return RenderedSubmission(
            command=self._commands.argv(command),
            script=submission.script,
            environment=tuple(self._commands.environment.items()),
            note="the script goes to sbatch on its standard input",
        )

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Submit an array of ``count`` elements with one sbatch, or as one bulk through DRMAA."""
        self._require_array_size(submission.count)
        if self._transport is not None:
            ids = await self._transport.submit(submission, self._native(submission), index_variable=None)
            self._sizes[ids[0].partition("_")[0]] = submission.count
            return ids
        rendered = self.render(submission)
        result = await self._commands.run(rendered.command, stdin=rendered.script.encode())
        job = parse_job_id(result.text)
        if job is None:
            raise submission_error(result)
        self._sizes[job] = submission.count
        return array_ids(job, submission.count)

    def _native(self, submission: Submission) -> tuple[str, ...]:
        return (native_specification(submission, self._settings, self._context.directives),)

    def forget(self, key: BatchKey) -> None:
        """Delete the script that DRMAA needed: nobody will read it any more."""
        if self._transport is not None:
            self._transport.forget(key)

    def _require_array_size(self, count: int) -> None:
        limit = self._config.max_array_size if self._config else None
        if limit is not None and count >= limit:
            message = f"{count} placeholders in one submission are more than Slurm takes here, {limit - 1}"
            raise LrmRejectedError(
                message, hint="MaxArraySize in slurm.conf; ask for fewer processors of this cluster in one component"
            )

    # -- control -----------------------------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        """Cancel jobs; those of a whole array of ours by its bare id."""
        error: LrmError | None = None
        for part in _arguments(ids, self._sizes):
            result = await self._commands.run(control.cancel_command(part), urgent=True)
            error = error or control.cancel_error(result)
        if error is not None:
            raise error

    async def hold(self, ids: Sequence[LrmJobId]) -> None:
        """Put jobs in user hold, also when we are an operator, so that their owner can release them."""
        await self._control("uhold", ids)

    async def release(self, ids: Sequence[LrmJobId]) -> None:
        """Release held jobs."""
        await self._control("release", ids)

    async def held_by_hook(self) -> tuple[LrmJob, ...]:
        """Return the jobs with the mark of conf/job_submit.lua that no user holds on top."""
        return await self._outside.held_by_hook()

    async def annotate(self, ids: Sequence[LrmJobId], text: str) -> None:
        """Leave a note in the comments of jobs (``squeue -o %k``), behind what their users have written there."""
        for command in annotate_commands(await self._outside.listed(ids), text):
            await self._commands.change(command, action="annotate")

    async def suspend(self, ids: Sequence[LrmJobId]) -> None:
        """Suspend running jobs; needs operator rights."""
        self._need_suspend("suspend", ids)
        await self._control("suspend", ids)

    async def resume(self, ids: Sequence[LrmJobId]) -> None:
        """Resume suspended jobs; needs operator rights."""
        self._need_suspend("resume", ids)
        await self._control("resume", ids)

    def _need_suspend(self, operation: str, ids: Sequence[LrmJobId]) -> None:
        if not self.capabilities.suspend:
            message = f"Slurm lets only its operators {operation} jobs ({', '.join(ids)})"
            raise LrmUnsupportedError(message, hint="koala runs as an ordinary user here")

    async def requeue(self, ids: Sequence[LrmJobId]) -> None:
        """Stop running jobs and queue them again; first allows it, because we submit with --no-requeue."""
        for part in _arguments(ids):
            await self._commands.change(control.requeueable_command(part), action="requeue")
        await self._control("requeue", ids)

    async def signal(self, ids: Sequence[LrmJobId], signal: int) -> None:
        """Send a signal to the scripts of running jobs and all their processes."""
        for part in _arguments(ids):
            await self._commands.change(control.signal_command(part, signal), action="signal")

    async def modify(self, job: LrmJobId, *, walltime: int) -> None:
        """Change the walltime; that of a running job can be made longer by operators only."""
        await self._commands.change(control.walltime_command(job, walltime), action="modify")

    async def notify(self, job: LrmJobId, text: str) -> None:
        """Write a line to where the job's standard error goes (scontrol notify)."""
        await self._commands.change(control.notify_command(job, text), action="notify")

    async def start_on(self, job: LrmJobId, nodes: Sequence[str]) -> None:
        """Tie a held job to nodes, with one entry for each of its processors, and release it.

        Different numbers of processors on its nodes need an operator's rights.
        """
        if self._config is None:
            self._config = await self._read_config()
        if self._notes.is_open(job):
            await self.undo_start(job)
        try:
            await self._starting(job, nodes).begin(self._outside.known(job))
        except LrmRejectedError:
            # The controller may have been upgraded: before the next start it is asked again.
            self._config = None
            raise

    async def confirm_start(self, job: LrmJobId) -> None:
        """Give the cores back that were reserved for the start of a job, and hold it: it comes back in hold."""
        for error in (await self.confirm_starts([job])).values():
            raise error

    async def confirm_starts(self, jobs: Sequence[LrmJobId]) -> Mapping[LrmJobId, LrmError]:
        """Do so for several jobs: those that were held alike are put in hold again in one request."""
        from koala_slurm.starting import hold_verb

        by_verb: dict[str, list[LrmJobId]] = {}
        for job in jobs:
            note = self._notes.of(job)
            by_verb.setdefault("uhold" if note is None else hold_verb(note.before()), []).append(job)
        errors: dict[LrmJobId, LrmError] = {}
        for verb, alike in by_verb.items():
            for part in portions(alike, ARGUMENTS_PER_COMMAND):
                try:
                    await self._hold_again(verb, part)
                except LrmError as error:
                    errors.update(dict.fromkeys(map(LrmJobId, part), error))
        for job in jobs:
            note = self._notes.of(job)
            if note is not None and job not in errors:
                try:
                    await self._starting(job, note.nodes).confirm()
                except LrmError as error:
                    errors[job] = error
        return errors

    async def _hold_again(self, verb: str, jobs: Sequence[str]) -> None:
        """Put running jobs in hold, of which some may be over by now. Raises LrmUnavailableError."""
        with suppress(LrmRejectedError, LrmNotFoundError):
            await self._commands.change(control.job_command(verb, jobs), action="confirm_start")

    async def undo_start(self, job: LrmJobId) -> None:
        """Hold a job that waits after it was started, and give it back what it had before it was tied."""
        note = self._notes.of(job)
        if note is None:
            await self.hold([job])
            return
        await self._starting(job, note.nodes).undo_start(note)
        self._outside.forget(job)

    def _starting(self, job: str, nodes: Sequence[str]) -> Starting:
        from koala_slurm.reservations import CoreReservation
        from koala_slurm.starting import Starting

        pin, numbers_by_node = make_pin(job, nodes), self._config is None or self._config.takes_cores_by_node
        reservation = CoreReservation(self._commands, pin, self._reserved, numbers_by_node=numbers_by_node)
        return Starting(self._commands, pin, self._notes, reservation=reservation)

    async def _control(self, verb: str, ids: Sequence[LrmJobId]) -> None:
        for part in _arguments(ids):
            result = await self._commands.run(control.job_command(verb, part))
            error = control.control_error(result, action=verb)
            if error is not None and control.is_ambiguous(result):
                error = await self._missing(part) or error
            if error is not None:
                raise error

    async def _missing(self, jobs: Sequence[str]) -> LrmError | None:
        for job in jobs:
            result = await self._commands.run(control.show_command(job))
            error = control.control_error(result, action="looking at a job")
            if error is not None:
                return error
        return None

    # -- checking ----------------------------------------------------------------------------------------------------

    async def check(self) -> tuple[CheckResult, ...]:
        """Verify commands, versions, controller, partitions and a submission that is only tried."""
        from koala_slurm.checks import Checks

        checks = Checks(
            commands=self._commands,
            settings=self._settings,
            directives=self._context.directives,
            unanswered=self._unanswered,
        )
        found = await checks.run()
        if self._transport is None or self._unanswered is not None:
            return found
        return (*found, *await self._transport.check())

    async def check_outside(self) -> tuple[CheckResult, ...]:
        """Verify with a job for next week that the site's submission hook holds jobs, and that we may start them."""
        from koala_slurm.outsidechecks import OutsideChecks

        return await OutsideChecks(self._commands, self._outside, user=self._user, uid=os.geteuid()).run()


def _arguments(ids: Iterable[LrmJobId], sizes: Mapping[str, int] | None = None) -> Iterator[tuple[str, ...]]:
    """Yield the fewest arguments that name these jobs, in portions that fit one command line."""
    return portions(compacted(ids, sizes), ARGUMENTS_PER_COMMAND)

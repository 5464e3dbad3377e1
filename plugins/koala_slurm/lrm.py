# SPDX-License-Identifier: Apache-2.0
"""Plugin ``slurm``: the LRM of one cluster.

It runs commands; building and reading most of them is in ``listing``, ``client``, ``submission`` and ``words``.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import structlog

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm import Capabilities, PinnedStart, RenderedSubmission
from koala_adapter.lrm.commandplugin import CommandPlugin, require_directives
from koala_adapter.lrm.commands import EXPORTED, SETTINGS_KEPT, message_line, portions, worst
from koala_adapter.lrm.drmaa.choice import Submitter
from koala_adapter.lrm.drmaa.libraries import SLURM
from koala_adapter.model import BatchKey, LrmJob, LrmJobId, LrmJobState, Node, Queue
from koala_slurm import client, releases
from koala_slurm.checks import SlurmChecks, SlurmOutsideChecks
from koala_slurm.client import LISTING_REQUESTS, CommandReader, SlurmCommands
from koala_slurm.library import LibraryAccess
from koala_slurm.listing import (
    ADDRESS_COMMAND,
    CONFIG_COMMAND,
    PARTITION_COMMAND,
    VERSION_COMMAND,
    AllocationRules,
    ControllerConfig,
    all_here,
    parse_config,
    parse_history,
    parse_partitions,
    parse_version,
    release_number,
    sacct_command,
)
from koala_slurm.outside import OutsideReader
from koala_slurm.reserving import (
    SHOW_RESERVATIONS,
    CoreReservations,
    extent_on_nodes,
    make_pin,
    needs_one_core,
    original_text,
    parse_original,
    parse_reservations,
    reserve_command,
    unreserve_command,
)
from koala_slurm.starting import Starting, hold_verb
from koala_slurm.submission import SBATCH, SLOTS, long_name, native_specification, obstacle_to_drmaa, sbatch_command
from koala_slurm.words import (
    ARGUMENTS_PER_COMMAND,
    TIME_FORMAT,
    array_ids,
    checked,
    compacted,
    minutes,
    parse_job_id,
    submission_error,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from koala_adapter.lrm import CheckResult, ClusterContext, Submission
    from koala_adapter.lrm.contract import ReservationRequest
    from koala_slurm.settings import SlurmSettings

log = structlog.get_logger()

RESERVATION_USED, RESERVATION_GONE = "is in use", "reservation is invalid"
"""Slurm's complaints about a reservation in which jobs run, and one that is not there."""


CAPABILITIES = Capabilities(
    hold=True,
    pin=True,
    suspend=True,
    requeue=True,
    signal=True,
    modify=True,
    slots=SLOTS,
    accounting=True,
    reserve=True,
)
"""What Slurm can do. Without accounting, and for users who may not suspend, :class:`SlurmLrm` says less."""


def make_lrm(context: ClusterContext, settings: SlurmSettings) -> SlurmLrm:
    """Return the LRM of one cluster. Raises ConfigurationError for directives of the site that cannot be used."""
    require_directives(context, SBATCH.problem_of(context.directives))
    return SlurmLrm(context, settings)


class SlurmLrm(CommandPlugin):
    """One Slurm cluster."""

    hook_removal = "take lua out of JobSubmitPlugins in slurm.conf, then `scontrol reconfigure`"
    array_index_variable = "SLURM_ARRAY_TASK_ID"
    job_id_variable = "SLURM_ARRAY_JOB_ID"
    requests_per_start = 3
    operators_only = "Slurm lets only its operators"
    be_operator = "koala runs as an ordinary user here"

    def __init__(self, context: ClusterContext, settings: SlurmSettings) -> None:
        submitter = Submitter(
            settings,
            context,
            expected=SLURM,
            variables=settings.variables(),
            timeout=settings.command_timeout,
            obstacle=obstacle_to_drmaa(settings, context.directives),
        )
        super().__init__(context, submitter)
        self._settings = settings
        self._commands = SlurmCommands(context.commands, settings)
        self._reader = CommandReader(
            self._commands,
            AllocationRules(
                reserved_is_up=settings.reservation is not None,
                has_default=not any(long_name(text) == "--partition" for text in context.directives.add),
            ),
        )
        self._config: ControllerConfig | None = None
        self._reservations = CoreReservations(self._commands)
        self._sizes: dict[str, int] = {}
        """Elements of each array of ours that is not forgotten."""
        self._arrays: dict[BatchKey, str] = {}
        """Their ids, by key."""
        self.library: LibraryAccess | None = None
        """pyslurm, and whether it is used; None where it is not, or all users' jobs were not asked for yet."""
        self.capabilities = replace(CAPABILITIES, accounting=False, suspend=False, reserve=False)
        # Of all users' jobs there are details to be asked for now and then.
        self.requests_per_poll = self._reader.requests + 1
        self.requests_per_listing = 1 + LISTING_REQUESTS

    async def learn(self) -> None:
        self._config = await self._read_config()

    async def choose_submission(self) -> None:
        """Verify how placeholders are submitted, and learn what this Slurm can do."""
        config = self._config or await self._read_config()

        async def misfit(library: Path) -> str:
            # Later than at the start, the controller may have been updated meanwhile.
            told = config if self._config is None else await self._read_config(within=0.0)
            return releases.misfit(library, release_number(told.version))

        self._config = None
        await self._submitter.start(nodes_are_here=self._nodes_are_here, misfit=misfit)
        operator = config.may_suspend(user=self._user, uid=(await self._context.host.facts()).uid)
        self.capabilities = replace(
            CAPABILITIES,
            suspend=operator,
            reserve=operator,
            accounting=config.accounting and await self._accounting_works(),
        )
        self._config = config
        await self._reader.start(config)

    @cached_property
    def _outside(self) -> OutsideReader:
        """Reader for scheduling from outside; its code is imported only for that."""
        return OutsideReader(self._commands)

    def _access(self) -> LibraryAccess | None:
        """Return the access by pyslurm for outside scheduling; None where it is not to be used.

        Nor is it before the controller has told its release.
        """
        if self.library is None and self._config is not None and self._settings.access != "commands":
            self.library = LibraryAccess(self._context, self._settings, self._config)
        return self.library

    async def _by_library(self, verb: str, ids: Sequence[LrmJobId], value: object = None) -> bool:
        """Make a change by pyslurm where possible; return False when commands must make it."""
        return self.library is not None and await self.library.change(verb, ids, value)

    async def close(self) -> None:
        await super().close()
        if self.library is not None:
            await self.library.close()

    async def _nodes_are_here(self) -> bool:
        output = await self._commands.read(ADDRESS_COMMAND, action="listing of the nodes' addresses")
        return all_here(output, host=(await self._context.host.facts()).name)

    async def _read_config(self, *, within: float = SETTINGS_KEPT) -> ControllerConfig:
        action = "reading the configuration"
        return await self._commands.setting(CONFIG_COMMAND, parse_config, action=action, within=within)

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
        nodes = await self._reader.nodes()
        self._reservations.threads = {node.name: node.grain for node in nodes if node.grain > 1}
        return nodes

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Return jobs; with a prefix only our user's, without details, which costs the controller least."""
        if not name_prefix:
            return await self._all_jobs().jobs()
        jobs = await self._reader.jobs(user=self._user)
        await self._submitter.sweep({job.name for job in jobs if job.state is not LrmJobState.ENDED})
        return tuple(job for job in jobs if job.name.startswith(name_prefix))

    async def jobs_to_schedule(self) -> tuple[LrmJob, ...]:
        return await self._all_jobs().jobs_to_schedule()

    def _all_jobs(self) -> OutsideReader:
        self._outside.access = self._access()
        return self._outside

    async def queues(self) -> tuple[Queue, ...]:
        action = "listing of partitions"
        # Never from what was kept: a controller that does not answer has none.
        return await self._commands.setting(PARTITION_COMMAND, parse_partitions, action=action, within=0.0)

    async def accounted(self, ids: Sequence[LrmJobId]) -> Sequence[LrmJob]:
        """Return sacct's records of these jobs' arrays."""
        found: list[LrmJob] = []
        # sacct takes no ranges of elements: an array's number stands for all of them.
        numbers = dict.fromkeys(checked(job).partition("_")[0] for job in ids)
        for part in portions(tuple(numbers), ARGUMENTS_PER_COMMAND):
            output = await self._commands.read(sacct_command(part), action="accounting", environment=TIME_FORMAT)
            found += parse_history(output)
        return found

    # -- submitting --------------------------------------------------------------------------------------------------

    def rendered(self, submission: Submission) -> RenderedSubmission:
        """Return the sbatch command and the script for its stdin."""
        command = sbatch_command(submission, self._settings, self._context.directives)
        return RenderedSubmission(
            command=self._commands.argv(command),
            script=submission.script,
            environment=tuple(self._commands.environment.items()),
            note="the script goes to sbatch on its standard input",
        )

    def native(self, submission: Submission) -> tuple[str, ...]:
        return (native_specification(submission, self._settings, self._context.directives),)

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Submit an array of ``count`` elements with one sbatch, or as one bulk through DRMAA."""
        self._require_array_size(submission.count)
        ids = await super().submit(submission)
        self._arrays[submission.key] = array = ids[0].partition("_")[0]
        self._sizes[array] = submission.count
        return ids

    async def submit_by_command(self, submission: Submission) -> tuple[LrmJobId, ...]:
        rendered = self.rendered(submission)
        result = await self._commands.run(rendered.command, stdin=rendered.script.encode(), environment=EXPORTED)
        job = parse_job_id(result.text)
        if job is None:
            raise submission_error(result)
        return array_ids(job, submission.count)

    def forget(self, key: BatchKey) -> None:
        """Drop what is kept of a submission, with the size of its array."""
        self._sizes.pop(self._arrays.pop(key, ""), None)
        super().forget(key)

    def _require_array_size(self, count: int) -> None:
        limit = self._config.max_array_size if self._config else None
        if limit is not None and count >= limit:
            message = f"{count} placeholders in one submission are more than Slurm takes here, {limit - 1}"
            raise LrmRejectedError(
                message, hint="MaxArraySize in slurm.conf; ask for fewer processors of this cluster in one component"
            )

    # -- reservations ------------------------------------------------------------------------------------------------

    async def reserve(self, request: ReservationRequest) -> str:
        """Reserve cores or nodes; needs an operator's rights."""
        self.require_operator("reserve", (), may=self.capabilities.reserve)
        placeholders = request.placeholders
        extent: Sequence[str] = (f"CoreCnt={placeholders.count}",)
        if not needs_one_core(placeholders.slot):
            cores_by_node = self._config is not None and self._config.takes_cores_by_node
            extent = extent_on_nodes(placeholders, await self.nodes(), cores_by_node=cores_by_node)
        command = reserve_command(
            placeholders.key,
            extent,
            user=self._user,
            partition=placeholders.queue or None,
            begins=f"now+{math.ceil(request.starts_in)}",
            duration=str(minutes(placeholders.walltime)),
        )
        await self._commands.change(command, action="reserve")
        return placeholders.key

    async def reservations(self) -> Mapping[str, str]:
        shown = await self._commands.read(SHOW_RESERVATIONS, action="listing of reservations")
        return parse_reservations(shown, self._user)

    async def unreserve(self, reservation: str) -> None:
        """Remove a reservation: Slurm refuses while jobs run in it, and does so by itself soon after them."""
        result = await self._commands.run(unreserve_command(reservation))
        if RESERVATION_USED in result.complaint:
            raise LrmUnavailableError(f"reservation {reservation}: {result.complaint}")
        if result.returncode and RESERVATION_GONE not in result.complaint.lower():
            raise LrmRejectedError(f"reservation {reservation}: {result.complaint}")

    # -- control -----------------------------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        """Cancel jobs; those of a whole array of ours by its bare id."""
        # Without any filter scancel sends each argument as one request.
        results = [await self._commands.run(("scancel", *part), urgent=True) for part in _arguments(ids, self._sizes)]
        error = worst(error for result in results if (error := client.cancel_error(result)) is not None)
        if error is not None:
            raise error

    async def hold(self, ids: Sequence[LrmJobId]) -> None:
        """Put jobs in user hold, also when we are an operator, so that their owner can release them."""
        await self._control("uhold", ids)

    async def release(self, ids: Sequence[LrmJobId]) -> None:
        if await self._by_library("release", ids):
            return
        await self._control("release", ids)

    async def held_by_hook(self) -> tuple[LrmJob, ...]:
        """Return the jobs with the mark of conf/job_submit.lua that no user holds on top."""
        return await self._outside.held_by_hook()

    async def suspend(self, ids: Sequence[LrmJobId]) -> None:
        self.require_operator("suspend", ids, may=self.capabilities.suspend)
        await self._control("suspend", ids)

    async def resume(self, ids: Sequence[LrmJobId]) -> None:
        self.require_operator("resume", ids, may=self.capabilities.suspend)
        await self._control("resume", ids)

    async def requeue(self, ids: Sequence[LrmJobId]) -> None:
        """Stop running jobs and queue them again; first allows it, because we submit with --no-requeue."""
        if await self._by_library("requeue", ids):
            return
        for part in _arguments(ids):
            allowed = ("scontrol", "update", f"JobId={','.join(part)}", "Requeue=1")
            await self._commands.change(allowed, action="requeue")
        await self._control("requeue", ids)

    async def signal(self, ids: Sequence[LrmJobId], signal: int) -> None:
        """Send a signal to the scripts of running jobs and all their processes."""
        if await self._by_library("signal", ids, int(signal)):
            return
        for part in _arguments(ids):
            await self._commands.change(client.signal_command(part, signal), action="signal")

    async def modify(self, job: LrmJobId, *, walltime: int) -> None:
        """Change the walltime; that of a running job can be made longer by operators only."""
        if not await self._by_library("walltime", [job], minutes(walltime)):
            await self._commands.change(client.walltime_command(job, walltime), action="modify")

    async def notify(self, job: LrmJobId, text: str) -> None:
        """Write a line to where the job's standard error goes (scontrol notify)."""
        line = message_line(text)
        if not await self._by_library("notify", [job], line):
            await self._commands.change(("scontrol", "notify", checked(job), line), action="notify")

    async def original_request(self, job: LrmJobId) -> str:
        """Return the parts of a job's request that tying changes."""
        known = self._outside.known(job)
        return original_text(known[1] if known else await self._commands.details(job))

    async def start_on(self, start: PinnedStart) -> None:
        """Tie a held job to nodes and release it.

        Different numbers of processors on its nodes need an operator's rights.
        """
        if self._config is None:
            self._config = await self._read_config(within=0.0)
        try:
            await self._starting(start).begin(self._outside.known(start.job))
        except LrmRejectedError:
            # The controller may have been upgraded: before the next start it is asked again.
            self._config = None
            raise

    async def confirm_start(self, start: PinnedStart) -> None:
        """Give the cores back that were reserved for the start of a job, and hold it: it comes back in hold."""
        for error in (await self.confirm_starts([start])).values():
            raise error

    async def confirm_starts(self, starts: Sequence[PinnedStart]) -> Mapping[LrmJobId, LrmError]:
        """Put jobs that run in hold again, those that were held alike in one request, and give reserved cores back."""
        by_verb: dict[str, list[LrmJobId]] = {}
        for start in starts:
            by_verb.setdefault(hold_verb(parse_original(start.original)), []).append(start.job)
        errors: dict[LrmJobId, LrmError] = {}
        for verb, alike in by_verb.items():
            for part in portions(alike, ARGUMENTS_PER_COMMAND):
                try:
                    await self._hold_again(verb, part)
                except LrmError as error:
                    errors.update(dict.fromkeys(map(LrmJobId, part), error))
        for start in starts:
            if start.job not in errors:
                try:
                    await self._starting(start).close()
                except LrmError as error:
                    errors[start.job] = error
        return errors

    async def _hold_again(self, verb: str, jobs: Sequence[str]) -> None:
        """Hold running jobs, some of which may be over. Raises LrmUnavailableError."""
        with suppress(LrmRejectedError, LrmNotFoundError):
            await self._commands.change(client.job_command(verb, jobs), action="confirm_start")

    async def undo_start(self, start: PinnedStart) -> None:
        """Hold a job that waits after it was started, and give it back what it had before it was tied."""
        if start.nodes:
            await self._starting(start).undo()
        else:
            await self.hold([start.job])
        self._outside.forget(start.job)

    def _starting(self, start: PinnedStart) -> Starting:
        return Starting(
            self._commands,
            make_pin(start.job, start.nodes),
            parse_original(start.original),
            reservations=self._reservations,
            cores_by_node=self._config is None or self._config.takes_cores_by_node,
            library=self.library,
        )

    async def _control(self, verb: str, ids: Sequence[LrmJobId]) -> None:
        for part in _arguments(ids):
            result = await self._commands.run(client.job_command(verb, part))
            error = client.control_error(result, action=verb)
            if error is not None and client.is_ambiguous(result):
                error = await self._missing(part) or error
            if error is not None:
                raise error

    async def _missing(self, jobs: Sequence[str]) -> LrmError | None:
        for job in jobs:
            result = await self._commands.run(client.show_command(job))
            error = client.control_error(result, action="looking at a job")
            if error is not None:
                return error
        return None

    # -- checking ----------------------------------------------------------------------------------------------------

    def checks(self) -> SlurmChecks:
        return SlurmChecks(self._commands, self._settings, self._context.directives, self._unanswered)

    async def check_submission(self) -> tuple[CheckResult, ...]:
        """Check how placeholders are submitted, and pyslurm where it is present or required."""
        found = await super().check_submission()
        access = self._access()
        return (*found, *await access.check()) if access is not None and access.matters else found

    async def check_outside(self) -> tuple[CheckResult, ...]:
        """Verify with a job for next week that the site's submission hook holds jobs, and that we may start them."""
        uid = (await self._context.host.facts()).uid
        checks = SlurmOutsideChecks(self._commands, self._outside, user=self._user, uid=uid)
        access = self._access()
        return (*(await access.check() if access is not None else ()), *await checks.run())


def _arguments(ids: Iterable[LrmJobId], sizes: Mapping[str, int] | None = None) -> Iterator[tuple[str, ...]]:
    """Yield the fewest arguments that name these jobs, in portions that fit one command line."""
    return portions(compacted(ids, sizes), ARGUMENTS_PER_COMMAND)

# SPDX-License-Identifier: Apache-2.0
"""Plugin ``sge``: checks, and the LRM of one Grid Engine cell.

Grid Engine's own commands do what is read; DRMAA, or commands where there is no library, what changes jobs. Status is
never taken from an exit code: qstat -xml of an unknown job and a refused qconf -tsm both exit with 0.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm import Capabilities, CheckResult, Lrm, RenderedSubmission
from koala_adapter.lrm.commands import login_name, portions
from koala_adapter.lrm.contract import oldest_first
from koala_adapter.lrm.drmaa.libraries import GRID_ENGINE, FailureKind, error_of, kind_of_text
from koala_adapter.lrm.drmaa.protocol import ControlAction
from koala_adapter.lrm.drmaa.transport import apply_directives, raise_for
from koala_adapter.model import HoldOwner, LrmJobState
from koala_sge import heldjobs
from koala_sge.defaults import check_defaults, groups_arrays, require_whole_listings
from koala_sge.explained import ExplainedJob, JobContext, noted, parse_explained
from koala_sge.heldjobs import HeldJobs, possibly_hook_holds, without_users
from koala_sge.listing import (
    GridEngineCommands,
    parse_accounting,
    parse_jobs,
    parse_layouts,
    parse_limits,
    parse_nodes,
    parse_queues,
    with_layout,
)
from koala_sge.settings import smallest_user
from koala_sge.submission import SgeSubmissions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from koala_adapter.lrm import ClusterContext, Submission
    from koala_adapter.lrm.commands import CommandResult
    from koala_adapter.model import BatchKey, LrmJob, LrmJobId, Node, Queue
    from koala_sge.settings import SgeSettings

    Run = Callable[[Sequence[str]], Awaitable[CommandResult]]


# -- Checks --------------------------------------------------------------------------------------------------
# ``koala check`` of a Grid Engine cell: each thing that can be wrong, and what to do about it.


async def run_checks(
    lrm: Lrm, commands: GridEngineCommands, submissions: SgeSubmissions, settings: SgeSettings
) -> tuple[CheckResult, ...]:
    """Check from the outside in, so that the first complaint is the one to mend first.

    Without a qmaster the rest is left out.
    """
    results = [_root(settings), check_defaults(settings), await _commands(lrm, settings)]
    try:
        results.append(await _nodes(lrm, settings))
    except LrmUnavailableError as error:
        # Each further question would wait for the qmaster until its time-out.
        return (*results, _no_nodes(error))
    results.append(await _queue(lrm, settings))
    return (*results, *await submissions.check(), await check_user(commands, settings))


async def check_user(commands: GridEngineCommands, settings: SgeSettings) -> CheckResult:
    """Check that Grid Engine takes jobs of this user at all: Debian's takes none of root."""
    subject, user = "user", os.geteuid()
    try:
        least = smallest_user((await commands.run((settings.command("qconf"), "-sconf"))).text)
    except LrmError as error:
        return CheckResult(subject=subject, ok=False, found=error.message, remedy=error.hint)
    found = f"jobs of users with an id of {least} or more are taken (min_uid), yours is {user}"
    remedy = "use koala as an ordinary user, or lower min_uid (qconf -mconf)"
    return CheckResult(subject=subject, ok=user >= least, found=found, remedy=remedy)


def _root(settings: SgeSettings) -> CheckResult:
    common = settings.root / settings.cell / "common"
    subject = f"cell {settings.cell} in {settings.root}"
    if not (common / "act_qmaster").is_file():
        return CheckResult(
            subject=subject,
            ok=False,
            found=f"no {common}/act_qmaster",
            remedy="correct root and cell (SGE_ROOT, SGE_CELL)",
        )
    return CheckResult(subject=subject, ok=True, found=str(common))


async def _commands(lrm: Lrm, settings: SgeSettings) -> CheckResult:
    subject = f"command {settings.command('qstat')}"
    try:
        return CheckResult(subject=subject, ok=True, found=await lrm.version())
    except LrmError as error:
        remedy = "install gridengine-client, or set bin_directory"
        return CheckResult(subject=subject, ok=False, found=error.message, remedy=remedy)


def _no_nodes(error: LrmError) -> CheckResult:
    remedy = "start sge_qmaster, correct qmaster_port, or make this a submit host (qconf -as HOST)"
    return CheckResult(subject="qmaster", ok=False, found=error.message, remedy=remedy)


async def _nodes(lrm: Lrm, settings: SgeSettings) -> CheckResult:
    """Raises LrmUnavailableError when the qmaster does not answer."""
    subject = "qmaster"
    try:
        nodes = await lrm.nodes()
    except LrmUnavailableError:
        raise
    except LrmError as error:
        return _no_nodes(error)
    slots = sum(node.processors for node in nodes)
    if not slots:
        where = f"queue {settings.queue}" if settings.queue else "any batch queue"
        return CheckResult(
            subject=subject, ok=False, found=f"answers, but there are no slots in {where}", remedy="correct queue"
        )
    idle = sum(node.processors_idle for node in nodes)
    counted = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    return CheckResult(subject=subject, ok=True, found=f"answers: {counted}, {slots} slots, {idle} idle")


async def _queue(lrm: Lrm, settings: SgeSettings) -> CheckResult:
    subject = f"queue {settings.queue}" if settings.queue else "queues"
    try:
        queues = await lrm.queues()
    except LrmError as error:
        remedy = "make this a submit host (qconf -as HOST)"
        return CheckResult(subject=subject, ok=False, found=error.message, remedy=remedy)
    names = ", ".join(queue.name for queue in queues)
    if settings.queue and settings.queue not in {queue.name for queue in queues}:
        return CheckResult(subject=subject, ok=False, found=f"there are {names}", remedy="correct queue")
    return CheckResult(subject=subject, ok=True, found=names or "none")


# -- Checks of starting from outside -------------------------------------------------------------------------
# ``koala check --outside`` of a Grid Engine cell: whether ordinary jobs come in held, and we may start them.

_NUMBER = re.compile(r"^([0-9]+)$", re.MULTILINE)
_ALLOWED = re.compile(r"^jsv_allowed_mod\s+(\S+)", re.MULTILINE)
_JSV = re.compile(r"^jsv_url\s+(\S+)", re.MULTILINE)


async def check_outside(run: Run, settings: SgeSettings, *, user: str) -> tuple[CheckResult, ...]:
    """Return whether jobs come in held, whether we are a manager, and what would keep us from pinning and starting."""
    try:
        return (await _held(run, settings), await _manager(run, settings, user), await _pinning(run, settings))
    except LrmError as error:
        remedy = error.hint or "see `koala docs wiki`"
        return (CheckResult(subject="outside scheduler", ok=False, found=error.message, remedy=remedy),)


def submission_remedy(complaint: str) -> str:
    """Return what to do about an ordinary submission that was refused."""
    if "minimum" in complaint.lower():
        return (
            "Grid Engine takes no jobs of users with so small an id, such as root (min_uid in qconf -sconf, 1000 on "
            "Debian): run koala as an ordinary user that is made a manager (qconf -am USER)"
        )
    return "submit such a job by hand (qsub -b y true) as the user that koala runs as, and mend what it complains about"


async def _held(run: Run, settings: SgeSettings) -> CheckResult:
    subject = "jobs come in held"
    remedy = "set jsv_url to what `koala conf sge_jsv.sh` prints (qconf -mconf), or put -h into sge_request of the cell"
    # For the end of the year, so that it never runs if nobody holds it.
    options = ("-terse", "-a", "12312359", "-N", "koala-check", "-wd", "/", "-o", "/dev/null", "-j", "y", "-b", "y")
    submitted = await run((settings.command("qsub"), *options, "true"))
    number = _NUMBER.search(submitted.text)
    if number is None:
        found = f"an ordinary submission is refused: {submitted.complaint}"
        return CheckResult(subject=subject, ok=False, found=found, remedy=submission_remedy(submitted.complaint))
    try:
        listing = await run(heldjobs.list_jobs(settings, singly=groups_arrays(settings)))
        seen = next((job for job in parse_jobs(listing.stdout) if job.id == number[1]), None)
    finally:
        await run((settings.command("qdel"), number[1]))
    ok = seen is not None and seen.state is LrmJobState.HELD
    found = "yes" if ok else "no, they go to Grid Engine's own scheduler"
    return CheckResult(subject=subject, ok=ok, found=found, remedy=remedy)


async def _manager(run: Run, settings: SgeSettings, user: str) -> CheckResult:
    managers = (await run((settings.command("qconf"), "-sm"))).text.split()
    ok = user in managers
    found = f"we are {user}; managers are {', '.join(managers)}"
    remedy = f"make it one (qconf -am {user}): others' jobs can be pinned and released by managers only"
    return CheckResult(subject="rights of a manager", ok=ok, found=found, remedy=remedy)


async def _pinning(run: Run, settings: SgeSettings) -> CheckResult:
    subject, shown = "starting at once", (await run((settings.command("qconf"), "-sconf"))).text
    jsv, allowed = _JSV.search(shown), _ALLOWED.search(shown)
    if jsv and jsv[1] != "none" and allowed and "q_hard" not in allowed[1].split(","):
        remedy = "add q_hard,q_soft to jsv_allowed_mod (qconf -mconf)"
        return CheckResult(subject=subject, ok=False, found="qalter -q is forbidden by jsv_allowed_mod", remedy=remedy)
    remedy = "set trigger_scheduler = true in the settings of this cluster: else a start takes a schedule_interval"
    found = "qconf -tsm after each start" if settings.trigger_scheduler else "only at the next schedule_interval"
    return CheckResult(subject=subject, ok=settings.trigger_scheduler, found=found, remedy=remedy)


# -- The LRM -------------------------------------------------------------------------------------------------

CAPABILITIES = Capabilities(
    hold=True,
    pin=True,
    pin_several=False,
    pin_elements=False,
    tells_holders=False,
    tells_own_holders=True,
    suspend=True,
    accounting=True,
)
"""No requeue: placeholders are not restartable (-r n). No signal: only SIGSTOP and SIGCONT can be sent. No modify: a
running job keeps the walltime it started with."""

ERROR_LETTER = "E"
GIVEN_BACK_AT_ONCE = 100
"""Jobs on one command line."""
LISTING_SERVES = 2.0
"""Seconds for which it is believed that a job is in hold: qalter refuses what is gone by then."""
VERIFIED_AFTER = 30.0
"""Seconds that a job of ours waits before it is asked whether it ever could run."""
VERDICT_KEPT = 120.0
"""Seconds for which the answer is believed."""
HOLDERS_KEPT = 60.0
"""Seconds for which it is believed who holds the same jobs."""

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*", re.ASCII)


class SgeLrm(Lrm):
    """One Grid Engine cell."""

    capabilities = CAPABILITIES
    hook_removal = "set jsv_url to none (qconf -mconf), or take -h out of sge_request of the cell"
    array_index_variable = "SGE_TASK_ID"
    job_id_variable = "JOB_ID"
    requests_per_poll = 6
    """qhost, qstat, qstat -j when one of our jobs has got into error state, two more when some have got into hold, and
    qalter -w v of one that waits."""
    requests_per_listing = 4 + heldjobs.REQUESTS_FOR_ALL
    """qhost, qstat, qstat -g t when a parallel job has started since the last time, qstat -j for errors, and what
    HeldJobs asks."""

    def __init__(self, context: ClusterContext, settings: SgeSettings) -> None:
        """Nothing is started yet."""
        self._context = context
        self._settings = settings
        self._user = context.user or login_name()
        self._commands = GridEngineCommands(context.commands, settings)
        self._error_reasons: Mapping[str, Mapping[int, str]] = {}
        self._by_queue = settings.nodes == "queue-instances"
        self._singly = groups_arrays(settings)
        self._held: frozenset[LrmJobId] = frozenset()
        self._held_asked_at = 0.0
        self._holders: Mapping[LrmJobId, HoldOwner] = {}
        self._verdicts: dict[str, tuple[float, str]] = {}
        """Of jobs of ours that wait, by their numbers: when the next question is due, and why they never start."""
        self._layouts: Mapping[LrmJobId, tuple[float | None, tuple[tuple[str, int], ...] | None]] = {}
        self._listed: tuple[float, Mapping[LrmJobId, LrmJob]] = (-LISTING_SERVES, {})
        """When the last listing was asked for, and what it showed."""
        self._held_jobs = HeldJobs(self._commands, settings)
        self.submissions = SgeSubmissions(context, settings, self._commands)

    async def start(self) -> None:
        """Start the DRMAA helper, where there is one; a qmaster that is out of reach now is tried again later.

        Raises LrmRejectedError when a file of defaults hides jobs, queues or hosts from qstat or qselect.
        """
        require_whole_listings(self._settings)
        await self.submissions.submitter.start()

    async def close(self) -> None:
        """End the DRMAA helper, where there is one."""
        await self.submissions.submitter.close()

    async def version(self) -> str:
        """Return the version as qstat tells it, such as ``SGE 8.1.9``."""
        return await self._commands.first_line(heldjobs.show_version(self._settings))

    # -- reading -------------------------------------------------------------------------------------------------

    async def nodes(self) -> tuple[Node, ...]:
        """Return the hosts that run batch jobs, with the slots that jobs of all users have."""
        document = await self._commands.document(heldjobs.list_nodes(self._settings))
        return parse_nodes(document, queue=self._settings.queue, by_queue=self._by_queue)

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Return the jobs of all users from one listing; a job that ends is gone from it at once."""
        document, everything = await self._listing()
        self.submissions.submitter.sweep({job.name for job in everything if job.user == self._user})
        jobs = oldest_first(job for job in everything if job.name.startswith(name_prefix))
        if name_prefix:
            return await self._with_reasons(await self._with_verdicts(await self._with_holders(jobs)))
        return await self._with_reasons(await self._held_jobs.described(document, await self._with_layouts(jobs)))

    async def _listing(self) -> tuple[bytes, tuple[LrmJob, ...]]:
        asked_at = time.monotonic()
        document = await self._commands.document(heldjobs.list_jobs(self._settings, singly=self._singly))
        everything = parse_jobs(document, by_queue=self._by_queue)
        self._listed = asked_at, {job.id: job for job in everything}
        return document, everything

    async def _with_holders(self, jobs: Sequence[LrmJob]) -> list[LrmJob]:
        """Say who holds jobs of ours; asked when others are in hold than before, and now and then."""
        held = frozenset(job.id for job in jobs if job.user == self._user and job.hold is HoldOwner.USER)
        now = time.monotonic()
        if held and (held != self._held or now > self._held_asked_at + HOLDERS_KEPT):
            found: dict[LrmJobId, HoldOwner] = {}
            for kind, owner in (("o", HoldOwner.OPERATOR), ("s", HoldOwner.SYSTEM)):
                document = await self._commands.document(
                    heldjobs.list_held(self._settings, self._user, kind, singly=self._singly)
                )
                found.update((job.id, owner) for job in parse_jobs(document))
            self._holders, self._held_asked_at = found, now
        self._held = held
        return [replace(job, hold=self._holders.get(job.id, job.hold)) if job.id in held else job for job in jobs]

    async def _with_verdicts(self, jobs: Sequence[LrmJob]) -> list[LrmJob]:
        """Say of jobs of ours that wait why they never start, where that is so: one is asked for with each listing.

        What qstat -j tells of scheduling is off by default, and says of a full cell only that it is full.
        """
        waiting = [job for job in jobs if job.user == self._user and job.state is LrmJobState.QUEUED]
        numbers = dict.fromkeys(heldjobs.job_number(job.id) for job in waiting if not job.dependent)
        now = time.monotonic()
        unseen = (now + VERIFIED_AFTER, "")
        self._verdicts = {number: self._verdicts.get(number, unseen) for number in numbers}
        due = min(self._verdicts, key=lambda number: self._verdicts[number][0], default=None)
        if due is not None and self._verdicts[due][0] <= now:
            said = await self._commands.run(heldjobs.verify(self._settings, due))
            self._verdicts[due] = (now + VERDICT_KEPT, heldjobs.why_never(said.text))
        return [self._with_verdict(job) for job in jobs]

    def _with_verdict(self, job: LrmJob) -> LrmJob:
        _, why = self._verdicts.get(heldjobs.job_number(job.id), (0.0, ""))
        if not why or job.user != self._user or job.state is not LrmJobState.QUEUED:
            return job
        return replace(job, reason=why, blocked=True, kept=True)

    async def _with_layouts(self, jobs: Sequence[LrmJob]) -> list[LrmJob]:
        """Say where the slots of parallel jobs are; asked when one has started."""
        parallel = {job.id: job.started_at for job in jobs if job.layout and job.processors > 1}
        if parallel.items() - {id_: started for id_, (started, _) in self._layouts.items()}.items():
            document = await self._commands.document(heldjobs.list_slots(self._settings))
            found = parse_layouts(document, by_queue=self._by_queue)
            self._layouts = {id_: (started, found.get(id_)) for id_, started in parallel.items()}
        return [with_layout(job, self._layouts.get(job.id, (None, None))[1]) for job in jobs]

    async def queues(self) -> tuple[Queue, ...]:
        """Return the cluster queues."""
        document = await self._commands.document(heldjobs.list_queues(self._settings))
        shown = await self._commands.run(heldjobs.show_queues(self._settings))
        return parse_queues(document, parse_limits(shown.text), default=self._settings.queue)

    async def history(self, ids: Sequence[LrmJobId]) -> tuple[LrmJob, ...]:
        """Return the ends that accounting knows; it can lag behind by 15 s (accounting_flush_time, sge_conf(5))."""
        wanted = set(ids)
        found: list[LrmJob] = []
        for number in list(dict.fromkeys(map(heldjobs.job_number, ids)))[: heldjobs.LARGEST_ACCOUNTING_REQUEST]:
            result = await self._commands.run(heldjobs.account(self._settings, number))
            jobs = parse_accounting(result.text)
            if not jobs and kind_of_text(result.complaint) is not FailureKind.NOT_FOUND and result.complaint:
                raise error_of(FailureKind.UNAVAILABLE, f"qacct: {result.complaint}")
            found.extend(job for job in jobs if job.id in wanted)
        return tuple(found)

    async def _with_reasons(self, jobs: Sequence[LrmJob]) -> tuple[LrmJob, ...]:
        """Say why jobs of ours are in error state; asked once for each job, because the reason does not change."""
        broken = {
            heldjobs.job_number(job.id) for job in jobs if job.user == self._user and ERROR_LETTER in job.raw_state
        }
        if missing := broken - self._error_reasons.keys():
            numbers = sorted(missing)[: heldjobs.LARGEST_EXPLANATION]
            try:
                document = await self._commands.document(heldjobs.explain_jobs(self._settings, numbers))
                explained = parse_explained(document)
            except LrmUnavailableError:
                explained = {}  # asked again with the next listing
            else:
                explained = {number: explained.get(number, ExplainedJob()) for number in numbers}
            kept = {number: told for number, told in self._error_reasons.items() if number in broken}
            self._error_reasons = kept | {number: job.error_reasons for number, job in explained.items()}
        return tuple(self._with_reason(job) for job in jobs)

    def _with_reason(self, job: LrmJob) -> LrmJob:
        if ERROR_LETTER not in job.raw_state:
            return job
        told = self._error_reasons.get(heldjobs.job_number(job.id), {})
        reason = told.get(job.array_index or 1) or next(iter(told.values()), "")
        return replace(job, reason=f"error state {job.raw_state}: {reason}") if reason else job

    # -- submission ----------------------------------------------------------------------------------------------

    def render(self, submission: Submission) -> RenderedSubmission:
        """Return the qsub command, and the DRMAA call that is made in its place where there is a library."""
        native = self._native(submission)
        shown = RenderedSubmission(
            command=heldjobs.qsub(self._settings, self.submissions.template(submission, native), submission.count),
            script=submission.script,
            environment=tuple(sorted(self._settings.variables().items())),
            note="the script is in the file that is named last",
        )
        return self.submissions.render(submission, native, shown)

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Submit one array. After a crash or a time-out, :meth:`jobs` finds it by its name."""
        return await self.submissions.submit(submission, self._native(submission))

    def forget(self, key: BatchKey) -> None:
        """Delete the script: it is not read any more."""
        self.submissions.submitter.forget(key)

    @property
    def submission_way(self) -> str:
        """How placeholders are submitted, and why."""
        return str(self.submissions.submitter.choice)

    @property
    def submission_obstacle(self) -> str:
        """What is wrong with the DRMAA library on which the site insists."""
        return self.submissions.submitter.obstacle

    async def look_for_obstacle(self) -> None:
        """Try that library again."""
        await self.submissions.submitter.look_for_obstacle()

    def _native(self, submission: Submission) -> tuple[str, ...]:
        return apply_directives(
            heldjobs.native_options(self._settings, submission), self._context.directives, GRID_ENGINE
        )

    # -- control -------------------------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        """Delete jobs, whatever their state. Running ones are gone when their node has reported it, seconds later."""
        refusals = await self.submissions.control(ControlAction.TERMINATE, ids, urgent=True)
        raise_for(refusals, gone_is_fine=True)

    async def hold(self, ids: Sequence[LrmJobId]) -> None:
        """Put jobs in user hold."""
        raise_for(await self.submissions.control(ControlAction.HOLD, ids))

    async def release(self, ids: Sequence[LrmJobId]) -> None:
        """Release from user hold."""
        raise_for(await self.submissions.control(ControlAction.RELEASE, ids))

    async def held_by_hook(self) -> tuple[LrmJob, ...]:
        """Return the jobs in user hold whose users, by the mark of conf/sge_jsv.sh, do not hold them."""
        document = await self._commands.document(heldjobs.list_jobs(self._settings, singly=self._singly))
        # The letters of a listing do not tell this hold from an operator's.
        listed = await self._commands.document(heldjobs.list_held(self._settings, "*", "u", singly=self._singly))
        held = possibly_hook_holds(parse_jobs(document), {job.id for job in parse_jobs(listed)})
        contexts: dict[str, JobContext] = {}
        for part in portions(sorted({heldjobs.job_number(job.id) for job in held}), heldjobs.LARGEST_EXPLANATION):
            explained = parse_explained(await self._commands.document(heldjobs.explain_jobs(self._settings, part)))
            contexts |= {number: job.context for number, job in explained.items()}
        return without_users(held, contexts)

    async def give_back(self, ids: Sequence[LrmJobId]) -> None:
        """Take the user hold from jobs; from arrays as a whole. Managers may do it with all jobs."""
        for part in portions(list(dict.fromkeys(map(heldjobs.job_number, ids))), GIVEN_BACK_AT_ONCE):
            await self._commands.change(heldjobs.give_back(self._settings, part), action="release")

    async def suspend(self, ids: Sequence[LrmJobId]) -> None:
        """Suspend jobs (SIGSTOP to the whole job)."""
        raise_for(await self.submissions.control(ControlAction.SUSPEND, ids))

    async def resume(self, ids: Sequence[LrmJobId]) -> None:
        """Resume suspended jobs."""
        raise_for(await self.submissions.control(ControlAction.RESUME, ids))

    async def start_on(self, job: LrmJobId, nodes: Sequence[str]) -> None:
        """Pin a held job or task to a node, with one entry for each of its processors, and release it.

        Grid Engine itself chooses how many slots of a parallel job each of several nodes gives, so that such a start is
        refused. It pins whole jobs, not tasks, and only while they wait; so tasks of one array are started on chosen
        nodes one after another: while one that was released has not started, LrmRejectedError.
        """
        places = tuple(dict.fromkeys(nodes))
        if len(places) != 1:
            message = f"Grid Engine itself divides job {job} among {len(places)} nodes, by the rule of its environment"
            raise LrmRejectedError(message, hint="start it on one node (NODES=1, or pack jobs: NODEALLOCATIONPOLICY)")
        node = places[0]
        if not _NODE.fullmatch(node):
            raise LrmRejectedError(f"{node!r} is no node name", hint="name nodes that qhost -q shows")
        held = await self._may_be_pinned(job, len(nodes))
        where = self._held_jobs.instances(job, node)
        if where is None:
            where = (node if self._by_queue else f"{self._settings.queue or '*'}@{node}",)
        elif not where:
            message = f"{node} has not what job {job} asks for"
            raise LrmRejectedError(message, hint="start it on a node that is listed for it")
        number, context = heldjobs.job_number(job), noted(self._held_jobs.queues(job))
        self._held_jobs.note_pin(job)
        if held.array_index is None:
            command = heldjobs.pin_and_release(self._settings, number, where, context=context)
            await self._commands.change(command, action="start")
        else:
            await self._commands.change(heldjobs.pin(self._settings, number, where, context=context), action="pin")
            await self.release([job])
        if self._settings.trigger_scheduler:
            await self._commands.change(heldjobs.trigger_scheduler(self._settings), action="trigger")

    async def confirm_start(self, job: LrmJobId) -> None:
        """Hold a running job: it comes back in hold when it is queued again (``qmod -rj``, exit status 99)."""
        await self.hold([job])

    async def undo_start(self, job: LrmJobId) -> None:
        """Hold a job that waits again, and let it run in the queues it asked for. Tasks of one array go together."""
        await self.hold([job])
        _, everything = await self._listing()
        waits = any(seen.id == job and seen.state is LrmJobState.HELD for seen in everything)
        asked = (await self._held_jobs.context(job)).queues if waits else None
        if asked is not None:
            await self._commands.change(heldjobs.unpin(self._settings, heldjobs.job_number(job), asked), action="unpin")

    async def _may_be_pinned(self, job: LrmJobId, processors: int) -> LrmJob:
        """Return a job that may be started on so many processors of a node. Raises LrmError."""
        number = heldjobs.job_number(job)
        listed_at, listed = self._listed
        last = listed.get(job)
        # Whether another task of its array was released meanwhile shows only in a new listing.
        single = last is not None and last.array_index is None and last.state is LrmJobState.HELD
        if not single or time.monotonic() > listed_at + LISTING_SERVES:
            _, everything = await self._listing()
            listed = {other.id: other for other in everything}
        siblings = {id_: other for id_, other in listed.items() if heldjobs.job_number(id_) == number}
        if job not in siblings:
            message = f"Grid Engine does not know job {job} any more"
            raise LrmNotFoundError(message, hint="it has ended, or never was")
        if siblings[job].state is not LrmJobState.HELD:
            message = f"job {job} is {siblings[job].state}, not held"
            raise LrmRejectedError(message, hint="hold it first")
        if siblings[job].processors != processors:
            message = f"job {job} has {siblings[job].processors} processors, and {processors} are given"
            raise LrmRejectedError(message, hint="name a node once for each processor")
        waiting = [other.id for other in siblings.values() if other.state is LrmJobState.QUEUED]
        if waiting:
            message = f"{waiting[0]} of the same array is released and has not started; it would be moved too"
            raise LrmRejectedError(message, hint="wait until it runs, or submit jobs singly")
        return siblings[job]

    # -- check ---------------------------------------------------------------------------------------------------

    async def check(self) -> tuple[CheckResult, ...]:
        """Verify commands, qmaster, queue, DRMAA library and the place of scripts."""
        return await run_checks(self, self._commands, self.submissions, self._settings)

    async def check_outside(self) -> tuple[CheckResult, ...]:
        """Verify with a job for the year's end that jobs come in held, and that we may start jobs of all users."""
        return await check_outside(self._commands.run, self._settings, user=self._user)

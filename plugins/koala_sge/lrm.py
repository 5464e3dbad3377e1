# SPDX-License-Identifier: Apache-2.0
"""Plugin ``sge``: the LRM of one Grid Engine cell.

Grid Engine's own commands do what is read; DRMAA, or commands where there is no library, what changes jobs. Status is
never taken from an exit code: qstat -xml of an unknown job and a refused qconf -tsm both exit with 0.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm import Capabilities, RenderedSubmission
from koala_adapter.lrm.commandplugin import CommandPlugin
from koala_adapter.lrm.commands import portions
from koala_adapter.lrm.contract import ReservationRequest, oldest_first
from koala_adapter.lrm.drmaa.choice import Submitter
from koala_adapter.lrm.drmaa.complaints import FailureKind, kind_of_text
from koala_adapter.lrm.drmaa.libraries import GRID_ENGINE, error_of
from koala_adapter.lrm.drmaa.protocol import ControlAction, Refusal
from koala_adapter.lrm.drmaa.transport import job_template, raise_for
from koala_adapter.model import HoldOwner, LrmJob, LrmJobId, LrmJobState, Node, NodeGpus, Queue
from koala_sge import heldjobs
from koala_sge.accounting import NOTHING_ENDED, parse_accounting
from koala_sge.checks import SgeChecks, check_outside, groups_arrays, require_whole_listings
from koala_sge.heldjobs import ExplainedJob, HeldJobs, parse_explained, possibly_hook_holds, without_users
from koala_sge.listing import (
    GridEngineCommands,
    first_line,
    parse_jobs,
    parse_layouts,
    parse_left,
    parse_limits,
    parse_nodes,
    parse_queues,
    with_layout,
)
from koala_sge.submission import (
    CHANGES,
    LIST_COMPLEXES,
    NATIVE,
    Complexes,
    environments_of_queues,
    gpu_complex,
    is_on_one_host,
    keep,
    kept,
    native_options,
    parse_complex_value,
    parse_complexes,
    parse_granted,
    parse_refusals,
    parse_reservations,
    parse_submitted,
    qrsub_command,
    qsub_command,
    slots_granted,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.lrm import CheckResult, ClusterContext, PinnedStart, Submission
    from koala_sge.settings import SgeSettings

CAPABILITIES = Capabilities(
    hold=True,
    pin=True,
    pin_several=False,
    pin_elements=False,
    tells_holders=False,
    tells_own_holders=True,
    suspend=True,
    slots=NATIVE,
    accounting=True,
    reserve=True,
)
"""No requeue: placeholders are not restartable (-r n). No signal: only SIGSTOP and SIGCONT can be sent. No modify: a
running job keeps the walltime it started with."""

ERROR_LETTER = "E"
ARGUMENTS_PER_COMMAND = 100
"""Jobs and tasks on one command line."""
LARGEST_ACCOUNTING_REQUEST = 20
"""Arrays asked for in one history request: qacct reads the whole file for each."""
LISTING_SERVES = 2.0
"""Seconds for which it is believed that a job is in hold: qalter refuses what is gone by then."""
VERIFIED_AFTER = 30.0
"""Seconds that a job of ours waits before it is asked whether it ever could run."""
VERDICT_KEPT = 120.0
"""Seconds for which the answer is believed."""
MOST_ENVIRONMENTS = 10
"""Parallel environments of the queue that are looked at."""
HOLDERS_KEPT = 60.0
"""Seconds for which it is believed who holds the same jobs."""

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*", re.ASCII)


def _unknown(job: LrmJobId) -> LrmNotFoundError:
    message = f"Grid Engine does not know job {job} any more"
    return LrmNotFoundError(message, hint="it has ended, or never was")


class SgeLrm(CommandPlugin):
    """One Grid Engine cell."""

    hook_removal = "set jsv_url to none (qconf -mconf), or take -h out of sge_request of the cell"
    array_index_variable = "SGE_TASK_ID"
    job_id_variable = "JOB_ID"
    requests_per_poll = 7
    """qhost, qconf -se of one host with GPUs when it is new, qstat, qstat -j when one of our jobs has got into error
    state, two more when some have got into hold, and qalter -w v of one that waits."""
    requests_per_listing = 4 + heldjobs.REQUESTS_FOR_ALL
    """qhost, qstat, qstat -g t when a parallel job has started since the last time, qstat -j for errors, and what
    HeldJobs asks."""

    def __init__(self, context: ClusterContext, settings: SgeSettings) -> None:
        submitter = Submitter(
            settings,
            context,
            expected=GRID_ENGINE,
            variables=settings.variables(),
            timeout=settings.request_timeout,
            places=settings.library_places(),
            delivery=settings.script_delivery,
        )
        super().__init__(context, submitter)
        self._settings = settings
        self._commands = GridEngineCommands(context.commands, settings)
        self._error_reasons: Mapping[str, Mapping[int, str]] = {}
        self._by_queue = settings.nodes == "queue-instances"
        self._singly = False
        """Whether a file of defaults has qstat put array elements together."""
        self._held: frozenset[LrmJobId] = frozenset()
        self._held_asked_at = 0.0
        self._holders: Mapping[LrmJobId, HoldOwner] = {}
        self._verdicts: dict[str, tuple[float, str]] = {}
        """Of jobs of ours that wait, by their numbers: when the next question is due, and why they never start."""
        self._gpu_counts: dict[str, int | None] = {}
        """GPUs of hosts that count them, as they tell it; None: one does not."""
        self._layouts: Mapping[LrmJobId, tuple[float | None, tuple[tuple[str, int], ...] | None]] = {}
        self._listed: tuple[float, Mapping[LrmJobId, LrmJob]] = (-LISTING_SERVES, {})
        """When the last listing was asked for, and what it showed."""
        self._held_jobs = HeldJobs(self._commands, by_queue=self._by_queue)
        self._complexes_path = context.state_directory / "complexes.json"
        self._adopt(kept(self._complexes_path, settings))

    def _adopt(self, complexes: Complexes) -> None:
        self._complexes = complexes
        # Before the cell has told it, jobs are not refused: they are when they are submitted.
        self.capabilities = replace(CAPABILITIES, slots=complexes.expressible if complexes.known else NATIVE)

    async def learn(self) -> None:
        """Raise LrmRejectedError when a defaults file makes listings incomplete.

        A qmaster that is out of reach now is tried again later.
        """
        await self._commands.pass_by_wrapper()
        await require_whole_listings(self._settings, self._context.host)
        self._singly = await groups_arrays(self._settings, self._context.host)

    async def choose_submission(self) -> None:
        """Choose the way of submission and read what the cell has for slots."""
        await self._learn_complexes()
        await super().choose_submission()

    async def _learn_complexes(self) -> None:
        with suppress(LrmError):
            self._adopt(await self._read_complexes())
            with suppress(OSError):
                keep(self._complexes_path, self._complexes)

    async def _read_complexes(self) -> Complexes:
        environment = self._settings.parallel_environment or await self._find_environment()
        return await self._commands.setting(
            LIST_COMPLEXES, lambda shown: parse_complexes(shown, environment), action="listing of complexes"
        )

    async def _find_environment(self) -> str:
        wanted = self._settings.queue
        names = await self._commands.setting(heldjobs.SHOW_QUEUES, lambda shown: environments_of_queues(shown, wanted))
        for name in names[:MOST_ENVIRONMENTS]:
            if await self._commands.setting(("qconf", "-sp", name), is_on_one_host):
                return name
        return ""

    async def version(self) -> str:
        """Return the version as qstat tells it, such as ``SGE 8.1.9``."""
        return await self._commands.setting(heldjobs.SHOW_VERSION, first_line, action="asking for the version")

    # -- reading -------------------------------------------------------------------------------------------------

    async def nodes(self) -> tuple[Node, ...]:
        """Return the hosts that run batch jobs, with the slots that jobs of all users have."""
        features = self._complexes.booleans
        gpu = gpu_complex(self._context.directives, self._complexes)
        document = await self._commands.document(heldjobs.list_nodes((*features, *([gpu] if gpu else []))))
        # What a site calls a feature may be no complex that says yes or no.
        mapped = any(key == "features" for key, _ in self._context.directives.map)
        return parse_nodes(
            document,
            queue=self._settings.queue,
            by_queue=self._by_queue,
            features=features,
            untold=("features",) if mapped else (),
            gpus=await self._gpus(parse_left(document, beside=features)) if gpu else None,
        )

    async def _gpus(self, left: Mapping[str, tuple[str, int]]) -> Mapping[str, NodeGpus | None] | None:
        """Return the GPUs of hosts by what is left of their complex; None: no host counts them.

        How many there are in all is a setting of each host. A host is asked for it once, and again when it has more.
        """
        known = self._gpu_counts
        new = [host for host, (_, count) in left.items() if host not in known or count > (known[host] or count)]
        for host in new[:1]:  # the others with the next listings
            self._gpu_counts[host] = None
            with suppress(LrmError):
                shown = await self._commands.run(("qconf", "-se", host))
                self._gpu_counts[host] = parse_complex_value(shown.text, left[host][0])
        counts = {host: self._gpu_counts.get(host) for host in left}
        return {
            host: None if count is None else NodeGpus(kind="", count=count, used=max(0, count - left[host][1]))
            for host, count in counts.items()
        } or None

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Return the jobs of all users from one listing; a job that ends is gone from it at once."""
        _, everything = await self._listing()
        jobs = oldest_first(job for job in everything if job.name.startswith(name_prefix))
        if name_prefix:
            jobs = await self._with_verdicts(await self._with_holders(jobs))
        return await self._with_reasons(jobs)

    async def jobs_to_schedule(self) -> tuple[LrmJob, ...]:
        document, everything = await self._listing()
        jobs = await self._with_layouts(oldest_first(everything))
        return await self._with_reasons(await self._held_jobs.described(document, jobs))

    async def _listing(self) -> tuple[bytes, tuple[LrmJob, ...]]:
        asked_at = time.monotonic()
        document = await self._commands.document(heldjobs.list_jobs(singly=self._singly))
        gpu = gpu_complex(self._context.directives, self._complexes)
        everything = parse_jobs(document, by_queue=self._by_queue, gpu=gpu)
        self._listed = asked_at, {job.id: job for job in everything}
        await self._submitter.sweep({job.name for job in everything if job.user == self._user})
        return document, everything

    async def _with_holders(self, jobs: Sequence[LrmJob]) -> list[LrmJob]:
        """Add who holds our jobs; asked for when holds change, and now and then."""
        held = frozenset(job.id for job in jobs if job.user == self._user and job.hold is HoldOwner.USER)
        now = time.monotonic()
        if held and (held != self._held or now > self._held_asked_at + HOLDERS_KEPT):
            found: dict[LrmJobId, HoldOwner] = {}
            for kind, owner in (("o", HoldOwner.OPERATOR), ("s", HoldOwner.SYSTEM)):
                document = await self._commands.document(heldjobs.list_held(self._user, kind, singly=self._singly))
                found.update((job.id, owner) for job in parse_jobs(document))
            self._holders, self._held_asked_at = found, now
        self._held = held
        return [replace(job, hold=self._holders.get(job.id, job.hold)) if job.id in held else job for job in jobs]

    async def _with_verdicts(self, jobs: Sequence[LrmJob]) -> list[LrmJob]:
        """Add to waiting jobs of ours why they can never start; one job is checked with each listing.

        What qstat -j tells of scheduling is off by default, and says of a full cell only that it is full.
        """
        waiting = [job for job in jobs if job.user == self._user and job.state is LrmJobState.QUEUED]
        numbers = dict.fromkeys(heldjobs.job_number(job.id) for job in waiting if not job.dependent)
        now = time.monotonic()
        unseen = (now + VERIFIED_AFTER, "")
        self._verdicts = {number: self._verdicts.get(number, unseen) for number in numbers}
        due = min(self._verdicts, key=lambda number: self._verdicts[number][0], default=None)
        if due is not None and self._verdicts[due][0] <= now:
            said = await self._commands.run(heldjobs.verify(due))
            self._verdicts[due] = (now + VERDICT_KEPT, heldjobs.why_never(said.text))
        return [self._with_verdict(job) for job in jobs]

    def _with_verdict(self, job: LrmJob) -> LrmJob:
        _, why = self._verdicts.get(heldjobs.job_number(job.id), (0.0, ""))
        if not why or job.user != self._user or job.state is not LrmJobState.QUEUED:
            return job
        return replace(job, reason=why, blocked=True, kept=True)

    async def _with_layouts(self, jobs: Sequence[LrmJob]) -> list[LrmJob]:
        """Add the nodes of running parallel jobs; asked for when one has started."""
        parallel = {job.id: job.started_at for job in jobs if job.layout and job.processors > 1}
        if parallel.items() - {id_: started for id_, (started, _) in self._layouts.items()}.items():
            document = await self._commands.document(heldjobs.LIST_SLOTS)
            found = parse_layouts(document, by_queue=self._by_queue)
            self._layouts = {id_: (started, found.get(id_)) for id_, started in parallel.items()}
        return [with_layout(job, self._layouts.get(job.id, (None, None))[1]) for job in jobs]

    async def queues(self) -> tuple[Queue, ...]:
        limits = await self._commands.setting(heldjobs.SHOW_QUEUES, parse_limits)
        document = await self._commands.document(heldjobs.LIST_QUEUES)
        return parse_queues(document, limits, default=self._settings.queue)

    async def accounted(self, ids: Sequence[LrmJobId]) -> Sequence[LrmJob]:
        """Return the ends that accounting knows; it can lag behind by 15 s (accounting_flush_time, sge_conf(5))."""
        found: list[LrmJob] = []
        for number in list(dict.fromkeys(map(heldjobs.job_number, ids)))[:LARGEST_ACCOUNTING_REQUEST]:
            result = await self._commands.run(("qacct", "-j", number))
            if NOTHING_ENDED in result.text:
                return ()
            jobs = parse_accounting(result.text)
            if not jobs and kind_of_text(result.complaint) is not FailureKind.NOT_FOUND and result.complaint:
                raise error_of(FailureKind.UNAVAILABLE, f"qacct: {result.complaint}")
            found += jobs
        return found

    async def _with_reasons(self, jobs: Sequence[LrmJob]) -> tuple[LrmJob, ...]:
        """Add the reasons of error states of our jobs; asked for once for each job."""
        broken = {
            heldjobs.job_number(job.id) for job in jobs if job.user == self._user and ERROR_LETTER in job.raw_state
        }
        if missing := broken - self._error_reasons.keys():
            numbers = sorted(missing)[: heldjobs.LARGEST_EXPLANATION]
            try:
                document = await self._commands.document(heldjobs.explain_jobs(numbers))
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

    def rendered(self, submission: Submission) -> RenderedSubmission:
        here = self._context.host.here
        return RenderedSubmission(
            command=self._commands.argv(self._qsub(submission)),
            script=submission.script,
            environment=tuple(sorted(self._settings.variables().items())),
            note="the script is in the file that is named last" + ("" if here else ", in `directory` of its site"),
        )

    def native(self, submission: Submission) -> tuple[str, ...]:
        return native_options(self._settings, submission, self._complexes, self._context.directives)

    def _qsub(self, submission: Submission) -> tuple[str, ...]:
        template = job_template(submission, self._submitter.scripts, self.native(submission))
        return qsub_command(template, submission.count)

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Submit; where the cell has not told yet what it has for slots, ask it before one that is not plain."""
        if not self._complexes.known and not submission.slot.is_plain:
            await self._learn_complexes()
        return await super().submit(submission)

    async def submit_by_command(self, submission: Submission) -> tuple[LrmJobId, ...]:
        self._qsub(submission)  # refuses what cannot be submitted before a script is written
        async with self._submitter.scripts.submitted(submission.key, submission.script):
            result = await self._commands.run(self._qsub(submission))
            if ids := parse_submitted(result.text):
                return ids
            raise error_of(kind_of_text(result.complaint), f"qsub: {result.complaint or 'no output'}")

    # -- reservations --------------------------------------------------------------------------------------------

    async def reserve(self, request: ReservationRequest) -> str:
        """Reserve slots of a parallel environment that spreads over hosts; for the users of the list arusers.

        Those of several processors are given back where what is granted on a host does not fit them.
        """
        placeholders = request.placeholders
        threads = placeholders.slot.threads
        name = await self._spreading_environment(placeholders.queue or self._settings.queue)
        native = native_options(self._settings, placeholders, self._complexes, self._context.directives)
        command = qrsub_command(request, name, native, time.time() + request.starts_in)
        result = await self._commands.run(command, environment={"TZ": "UTC0"})
        number = parse_granted(result.text)
        if not number:
            raise LrmRejectedError(f"qrsub: {result.complaint or 'no output'}")
        if threads > 1:
            shown = (await self._commands.run(("qrstat", "-ar", number))).text
            if slots_granted(shown, threads) < placeholders.count:
                await self.unreserve(number)
                raise LrmRejectedError(f"parallel environment {name} spreads what it reserves, not by {threads} a host")
        return number

    async def _spreading_environment(self, queue: str | None) -> str:
        queues = (await self._commands.run(heldjobs.SHOW_QUEUES)).text
        for name in environments_of_queues(queues, queue)[:MOST_ENVIRONMENTS]:
            if not is_on_one_host((await self._commands.run(("qconf", "-sp", name))).text):
                return name
        raise LrmRejectedError("no parallel environment of its queue spreads over hosts, which a reservation needs")

    async def reservations(self) -> Mapping[str, str]:
        return parse_reservations((await self._commands.run(("qrstat", "-xml"))).text, self._user)

    async def unreserve(self, reservation: str) -> None:
        """Remove a reservation; Grid Engine ends the jobs in it with it."""
        result = await self._commands.run(("qrdel", reservation))
        if "does not exist" not in result.complaint and "delet" not in result.complaint:
            raise LrmRejectedError(f"reservation {reservation}: {result.complaint}")

    # -- control -------------------------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        """Delete jobs, whatever their state. Running ones are gone when their node has reported it, seconds later."""
        raise_for(await self._control(ControlAction.TERMINATE, ids), gone_is_fine=True)

    async def _control(self, action: ControlAction, ids: Sequence[LrmJobId]) -> tuple[Refusal, ...]:
        """Apply an action to each job; return those with which it did not work."""
        urgent = action is ControlAction.TERMINATE
        if (drmaa := self._submitter.drmaa) is not None:
            return await drmaa.client.control(action, ids, urgent=urgent)
        for id_ in ids:
            heldjobs.job_number(id_)
        refusals: list[Refusal] = []
        for part in portions(ids, ARGUMENTS_PER_COMMAND):
            result = await self._commands.run((*CHANGES[action], *part), urgent=urgent)
            refusals += parse_refusals(result, action, part)
        return tuple(refusals)

    async def hold(self, ids: Sequence[LrmJobId]) -> None:
        raise_for(await self._control(ControlAction.HOLD, ids))

    async def release(self, ids: Sequence[LrmJobId]) -> None:
        raise_for(await self._control(ControlAction.RELEASE, ids))

    async def held_by_hook(self) -> tuple[LrmJob, ...]:
        """Return the jobs in user hold whose users, by the mark of conf/sge_jsv.sh, do not hold them."""
        document = await self._commands.document(heldjobs.list_jobs(singly=self._singly))
        # The letters of a listing do not tell this hold from an operator's.
        listed = await self._commands.document(heldjobs.list_held("*", "u", singly=self._singly))
        held = possibly_hook_holds(parse_jobs(document), {job.id for job in parse_jobs(listed)})
        explained: dict[str, ExplainedJob] = {}
        for part in portions(sorted({heldjobs.job_number(job.id) for job in held}), heldjobs.LARGEST_EXPLANATION):
            explained |= parse_explained(await self._commands.document(heldjobs.explain_jobs(part)))
        return without_users(held, explained)

    async def give_back(self, ids: Sequence[LrmJobId]) -> None:
        """Take the user hold from jobs; from arrays as a whole. Managers may do it with all jobs."""
        for part in portions(list(dict.fromkeys(map(heldjobs.job_number, ids))), ARGUMENTS_PER_COMMAND):
            await self._commands.change(("qrls", *part), action="release")

    async def suspend(self, ids: Sequence[LrmJobId]) -> None:
        """Suspend jobs (SIGSTOP to the whole job)."""
        raise_for(await self._control(ControlAction.SUSPEND, ids))

    async def resume(self, ids: Sequence[LrmJobId]) -> None:
        raise_for(await self._control(ControlAction.RESUME, ids))

    async def original_request(self, job: LrmJobId) -> str:
        """Return the queues that the job asks for."""
        queues = self._held_jobs.queues(job)
        if queues is None:
            listed = heldjobs.parse_wishes(await self._commands.document(heldjobs.list_jobs(singly=self._singly)))
            wishes = listed.get(heldjobs.job_number(job))
            if wishes is None:
                raise _unknown(job)
            queues = wishes.queues
        return json.dumps(queues)

    async def start_on(self, start: PinnedStart) -> None:
        """Pin a held job or task to a node and release it.

        Grid Engine itself chooses how many slots of a parallel job each of several nodes gives, so that such a start is
        refused. It pins whole jobs, not tasks, and only while they wait; so tasks of one array are started on chosen
        nodes one after another: while one that was released has not started, LrmRejectedError.
        """
        job, places = start.job, tuple(start.counts)
        if len(places) != 1:
            message = f"Grid Engine itself divides job {job} among {len(places)} nodes, by the rule of its environment"
            raise LrmRejectedError(message, hint="start it on one node (NODES=1, or pack jobs: NODEALLOCATIONPOLICY)")
        node = places[0]
        if not _NODE.fullmatch(node):
            raise LrmRejectedError(f"{node!r} is no node name", hint="name nodes that qhost -q shows")
        held = await self._may_be_pinned(job, len(start.nodes))
        where = self._held_jobs.instances(job, node)
        if where is None:
            where = (node if self._by_queue else f"{self._settings.queue or '*'}@{node}",)
        elif not where:
            message = f"{node} has not what job {job} asks for"
            raise LrmRejectedError(message, hint="start it on a node that is listed for it")
        number = heldjobs.job_number(job)
        if held.array_index is None:
            # Pinned, and released from the hold of its user, in one request.
            *pinned, _ = heldjobs.pin(number, where)
            await self._commands.change((*pinned, "-h", "U", number), action="start")
        else:
            await self._commands.change(heldjobs.pin(number, where), action="pin")
            await self.release([job])
        if self._settings.trigger_scheduler:
            await self._commands.change(heldjobs.TRIGGER_SCHEDULER, action="trigger")

    async def confirm_start(self, start: PinnedStart) -> None:
        """Hold a running job: it comes back in hold when it is queued again (``qmod -rj``, exit status 99)."""
        await self.hold([start.job])

    async def undo_start(self, start: PinnedStart) -> None:
        """Hold a job that waits again, and let it run in the queues it asked for. Tasks of one array go together."""
        await self.hold([start.job])
        _, everything = await self._listing()
        waits = any(seen.id == start.job and seen.state is LrmJobState.HELD for seen in everything)
        if waits and start.original:
            queues = json.loads(start.original)
            await self._commands.change(heldjobs.pin(heldjobs.job_number(start.job), queues), action="unpin")

    async def _may_be_pinned(self, job: LrmJobId, processors: int) -> LrmJob:
        """Return a job that may be started on the given processors of a node. Raises LrmError."""
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
            raise _unknown(job)
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

    def checks(self) -> SgeChecks:
        return SgeChecks(self, self._commands, self._settings)

    async def check_submission(self) -> tuple[CheckResult, ...]:
        """Look at the folder of scripts, too: with qsub, the nodes read them as with DRMAA."""
        found = await super().check_submission()
        return found if self._submitter.drmaa is not None else (*found, await self._submitter.scripts.check())

    async def check_outside(self) -> tuple[CheckResult, ...]:
        """Verify with a job for the year's end that jobs come in held, and that we may start jobs of all users."""
        return await check_outside(self._commands.run, self._settings, self._context.host, user=self._user)

# SPDX-License-Identifier: Apache-2.0
"""Plugin ``wiki``: settings, refusals as errors, records as nodes and jobs, and the LRM.

The LRM makes one TCP connection for each request.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from koala_adapter.errors import (
    ConfigurationError,
    LrmError,
    LrmNotFoundError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnsupportedError,
    WikiError,
)
from koala_adapter.lrm import Capabilities, CheckResult, Lrm, PluginDefinition
from koala_adapter.lrm.contract import oldest_first
from koala_adapter.model import EndReason, HoldOwner, LrmJob, LrmJobId, LrmJobState, Node, NodeState, Queue
from koala_adapter.wiki.client import Peer, exchange, load_key
from koala_adapter.wiki.codec.records import JobRecord, NodeRecord, parse_jobs, parse_nodes
from koala_adapter.wiki.codec.verbs import (
    CancelJob,
    GetJobs,
    GetNodes,
    ModifyJob,
    NotifyJob,
    RequeueJob,
    ResumeJob,
    SignalJob,
    StartJob,
    SuspendJob,
)
from koala_adapter.wiki.codec.words import Dialect, JobWord, NodeWord, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import NoReturn

    from koala_adapter.lrm import ClusterContext, PinnedStart, RenderedSubmission, Submission
    from koala_adapter.wiki.codec.verbs import JobRequest, Reply, Request


# -- Settings ------------------------------------------------------------------------------------------------
# The ``[clusters.settings]`` table of a cluster whose plugin is ``wiki``.


class WikiSettings(BaseModel):
    """Settings of one cluster whose resource manager speaks WIKI."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        max_length=255,
        description="Where the resource manager listens. The protocol protects nothing: stay on this host, or tunnel.",
    )
    port: int = Field(default=7321, ge=1, le=65535, description="Its port; of Slurm: SchedulerPort.")
    dialect: Dialect = Field(
        default=Dialect.WIKI2,
        description="'wiki' is what Maui and Slurm's sched/wiki speak, 'wiki2' Moab and Slurm's sched/wiki2, which "
        "can requeue, signal and name jobs.",
    )
    key_file: Path | None = Field(
        default=None,
        description="File with the shared key (of Slurm: AuthKey of wiki.conf) in its first line, mode 0600. "
        "Default: nothing is signed, which few resource managers accept.",
    )
    answer_seconds: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="Seconds within which a request must be answered; otherwise the cluster counts as out of reach.",
    )
    largest_reply_mib: int = Field(
        default=64, ge=1, le=95, description="Larger replies are refused; 1 MiB are some 5,000 jobs."
    )


# -- Refusals ------------------------------------------------------------------------------------------------
# Which of our errors a refusal over WIKI is: by its status, and for one status by Slurm's words.

_UNKNOWN_JOB = re.compile(r"no such job|invalid job id|unknown job|job .* (not found|does not exist)", re.IGNORECASE)
_OVER = re.compile(r"already (completing|completed|ended|finished)", re.IGNORECASE)
_HINTS: Mapping[int | None, str] = {
    Status.CLOCK_SKEW: "its clock and ours differ by more than 5 minutes",
    Status.BAD_CHECKSUM: "the key in key_file is not the one that it has",
}
_UNSUPPORTED_VERB = "unsupported request type"


def to_lrm_error(error: WikiError, *, what: str, of_query: bool = False) -> LrmError:
    """Return the error for a refusal. ``what``: what was asked for, such as ``STARTJOB of 7``.

    ``of_query``: it was a list of nodes or jobs, which a resource manager refuses only while it cannot make one.
    """
    said = f"{what} was refused: {error.message} (SC={error.status})"
    if error.status == Status.INITIALIZING or (of_query and error.status in {Status.REFUSED, Status.INVENTORY}):
        return LrmUnavailableError(said, hint="it is starting up, or its own batch system does not answer it")
    if error.status == Status.UNSUPPORTED or error.message == _UNSUPPORTED_VERB:
        return LrmUnsupportedError(said, hint="does the setting `dialect` name the one that it speaks?")
    if _UNKNOWN_JOB.search(error.message):
        return LrmNotFoundError(said)
    return LrmRejectedError(said, hint=_HINTS.get(error.status, error.hint))


def is_gone(error: WikiError) -> bool:
    """Tell whether a job cannot be cancelled because there is nothing left to cancel."""
    return bool(_UNKNOWN_JOB.search(error.message) or _OVER.search(error.message))


# -- Nodes, jobs and queues ----------------------------------------------------------------------------------
# Made of what a WIKI resource manager reports. Idle is all that WIKI has for a job that waits for its outside
# scheduler, so that is a job held by the site; Hold is one that the outside scheduler must leave alone.

QUEUE = "default"
"""Name of the one queue when the resource manager names none."""

UNLIMITED = 8_639_999
"""Seconds from which on Maui takes a walltime for none; Slurm reports a year."""

NODE_STATES: Mapping[str, NodeState] = {
    NodeWord.IDLE: NodeState.UP,
    NodeWord.RUNNING: NodeState.UP,
    NodeWord.BUSY: NodeState.UP,
    NodeWord.DOWN: NodeState.DOWN,
    NodeWord.DRAINED: NodeState.DRAINING,
    NodeWord.DRAIN: NodeState.DRAINING,
    NodeWord.DRAINING: NodeState.DRAINING,
    NodeWord.FLUSH: NodeState.DRAINING,
    NodeWord.RESERVED: NodeState.DRAINING,
}
"""Everything else is UNKNOWN, on which nothing is started."""

JOB_STATES: Mapping[str, LrmJobState] = {
    JobWord.IDLE: LrmJobState.HELD,
    JobWord.HOLD: LrmJobState.HELD,
    JobWord.STARTING: LrmJobState.STARTING,
    JobWord.RUNNING: LrmJobState.RUNNING,
    JobWord.SUSPENDED: LrmJobState.SUSPENDED,
    JobWord.COMPLETED: LrmJobState.ENDED,
    JobWord.REMOVED: LrmJobState.ENDED,
    JobWord.VACATED: LrmJobState.ENDED,
}

HOLDERS: Mapping[str, HoldOwner] = {JobWord.IDLE: HoldOwner.OPERATOR, JobWord.HOLD: HoldOwner.SYSTEM}

OCCUPYING = frozenset({LrmJobState.STARTING, LrmJobState.RUNNING})
"""States of jobs whose processors are not idle; those of a suspended one are free for others."""


def used_processors(jobs: Iterable[JobRecord]) -> Counter[str]:
    """Return how many processors jobs occupy on each node."""
    used: Counter[str] = Counter()
    for job in jobs:
        if JOB_STATES.get(job.state) in OCCUPYING:
            for host in job.task_list:
                used[host] += job.processors_per_task or 1
    return used


def to_node(record: NodeRecord, used: Mapping[str, int]) -> Node:
    """Return a node. ``used``: processors that jobs occupy there, for resource managers that do not tell."""
    processors = record.processors or 1
    occupied = used.get(record.name, 0)
    if record.processors_free is not None:
        occupied = processors - record.processors_free
    elif record.state == NodeWord.BUSY:
        # Also without any job on it, such as while one is being cleaned up.
        occupied = processors
    total, free = record.memory, record.memory_free
    return Node(
        name=record.name,
        state=NODE_STATES.get(record.state, NodeState.UNKNOWN),
        processors=processors,
        processors_used=max(0, min(occupied, processors)),
        memory_mib=total,
        memory_used_mib=max(0, total - free) if total is not None and free is not None else None,
        disk_mib=record.disk,
        load=record.load,
        queues=node_queues(record),
        raw_state=record.state,
        reason=record.reason,
        features=record.features,
        architecture=record.architecture,
        operating_system=record.operating_system,
    )


def node_queues(record: NodeRecord) -> tuple[str, ...]:
    """Return the queues of a node: its classes, else its partition, else one for all."""
    return tuple(item.name for item in record.classes) or ((record.partition,) if record.partition else (QUEUE,))


def to_queues(nodes: Sequence[Node]) -> tuple[Queue, ...]:
    """Return the queues of nodes. WIKI has neither limits nor defaults."""
    names = dict.fromkeys(name for node in nodes for name in node.queues) or {QUEUE: None}
    return tuple(
        Queue(
            name=name,
            up=any(node.state is NodeState.UP for node in nodes if name in node.queues),
            processors=sum(node.processors for node in nodes if name in node.queues),
            default=len(names) == 1,
        )
        for name in names
    )


def to_job(record: JobRecord, dialect: Dialect) -> LrmJob:
    """Return a job."""
    state = JOB_STATES.get(record.state, LrmJobState.UNKNOWN)
    if state is LrmJobState.RUNNING and not record.task_list and record.completed_at:
        state = LrmJobState.ENDING
    each = record.processors_per_task or 1
    active = state in {LrmJobState.STARTING, LrmJobState.RUNNING, LrmJobState.SUSPENDED, LrmJobState.ENDING}
    hosts = Counter(record.task_list if active else ())
    walltime = record.walltime if record.walltime and 0 < record.walltime < UNLIMITED else None
    started = record.started_at or None
    details = comment_parts(record.comment) if dialect is Dialect.WIKI2 else {}
    end, exit_code = _end(record, state, dialect)
    return LrmJob(
        id=LrmJobId(record.id),
        name=record.name,
        state=state,
        user=record.user,
        processors=(record.tasks or 1) * each,
        nodes=tuple(hosts),
        queue=record.queue or ":".join(record.partitions),
        reason=record.rejection,
        end=end,
        exit_code=exit_code,
        submitted_at=_moment(record.queued_at),
        started_at=_moment(started) if active or state is LrmJobState.ENDED else None,
        ends_at=_ends_at(record, state, started, walltime),
        raw_state=record.state,
        walltime=walltime,
        eligible_at=_moment(record.eligible_at),
        dependent="DEPEND" in details,
        hold=HOLDERS.get(record.state),
        layout=tuple((host, count * each) for host, count in hosts.items()),
        processors_per_task=each,
        nodes_wanted=record.nodes if state is LrmJobState.HELD else None,
        tasks_per_node=record.tasks_per_node or _number(details.get("TPN")),
        memory_per_processor_mib=None if record.memory_per_task is None else -(-record.memory_per_task // each),
        memory_per_node_mib=record.memory or None,
        features=record.features,
        requested_nodes=tuple(dict.fromkeys(record.host_list)),
        excluded_nodes=tuple(dict.fromkeys(record.excluded_hosts)),
        group=record.group,
        account=record.account,
        working_directory=record.directory,
        comment=details.get("", record.comment) if details else record.comment,
    )


def comment_parts(comment: str) -> dict[str, str]:
    """Return what sched/wiki2 packs into a comment, ``DEPEND=afterok:5?TPN:4?words``; the user's own words under ""."""
    parts: dict[str, str] = {}
    words = []
    for item in comment.split("?"):
        name, _, value = item.replace("=", ":", 1).partition(":")
        if name in {"DEPEND", "NACCESSPOLICY", "TPN", "JOBFLAGS"}:
            parts[name] = value
        else:
            words.append(item)
    parts[""] = "?".join(words)
    return parts


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None  # noqa: PLR2004


def _moment(seconds: int | None) -> float | None:
    return None if seconds is None else float(seconds)


def _ends_at(record: JobRecord, state: LrmJobState, started: int | None, walltime: int | None) -> float | None:
    if state in {LrmJobState.ENDED, LrmJobState.ENDING}:
        return _moment(record.completed_at)
    if state in OCCUPYING and started is not None and walltime is not None:
        return float(started + walltime + (record.suspended_for or 0))
    return None


def _end(record: JobRecord, state: LrmJobState, dialect: Dialect) -> tuple[EndReason | None, int | None]:
    """Return how a job ended when that is certain: only WIKI2 tells exit codes, and 0 also of a death by a signal."""
    if (
        state is LrmJobState.ENDED
        and record.state == JobWord.COMPLETED
        and dialect is Dialect.WIKI2
        and record.exit_code
    ):
        return EndReason.EXITED, record.exit_code
    return None, None


# -- The LRM -------------------------------------------------------------------------------------------------

T = TypeVar("T")

CAPABILITIES = Capabilities(submit=False, pin=True, suspend=True, requeue=True, signal=True, modify=True)
"""What WIKI2 can."""

WIKI_CAPABILITIES = replace(CAPABILITIES, find_by_name=False, requeue=False, signal=False)
"""What the dialect of Maui can: it has no names of jobs either."""

MINUTE = 60


class WikiLrm(Lrm):
    """A resource manager that speaks WIKI."""

    # No script of ours ever runs there, so nothing looks for these.
    array_index_variable = "KOALA_WIKI_INDEX"
    job_id_variable = "KOALA_WIKI_JOB"
    requests_per_poll = 3

    def __init__(self, context: ClusterContext, settings: WikiSettings) -> None:
        self.capabilities = CAPABILITIES if settings.dialect is Dialect.WIKI2 else WIKI_CAPABILITIES
        self._commands = context.commands
        self._settings = settings
        self._peer = Peer(
            host=settings.host,
            port=settings.port,
            key=None,
            dialect=settings.dialect,
            user=context.user,
            timeout=settings.answer_seconds,
            largest_reply=settings.largest_reply_mib << 20,
        )
        self._processors_per_task: dict[str, int] = {}
        """Of the jobs in the last listing: a task list has one entry for each task."""

    async def start(self) -> None:
        """Read the key. Raises LrmRejectedError when others could know it."""
        try:
            self._load_key()
        except ConfigurationError as error:
            raise LrmRejectedError(error.message, hint=error.hint) from error

    async def version(self) -> str:
        """Return the dialect, once the resource manager has answered in it; WIKI has no version."""
        await self._query(GetJobs(ids=()))
        return f"WIKI dialect {2 if self._peer.dialect is Dialect.WIKI2 else 1}"

    async def nodes(self) -> tuple[Node, ...]:
        """Return all nodes; where it does not tell how many processors are free, that follows from its jobs."""
        records = await self._node_records()
        # Only Maui's own document has numbers of what is free; Slurm never sent them.
        jobs = await self._job_records() if any(record.processors_free is None for record in records) else ()
        used = used_processors(jobs)
        return tuple(to_node(record, used) for record in records)

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Return the jobs; in the dialect of Maui they have no names, so that only an empty prefix finds any."""
        records = await self._job_records()
        named = (record for record in records if record.name.startswith(name_prefix))
        return tuple(oldest_first(to_job(record, self._peer.dialect) for record in named))

    async def queues(self) -> tuple[Queue, ...]:
        return to_queues([to_node(record, {}) for record in await self._node_records()])

    def render(self, submission: Submission) -> RenderedSubmission:
        """Raise LrmUnsupportedError: WIKI has no submission."""
        self._no_submission(submission)

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Raise LrmUnsupportedError: WIKI has no submission."""
        self._no_submission(submission)

    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        """Cancel jobs one after the other."""
        refused = []
        for id_ in ids:
            try:
                await self._do(CancelJob(job=id_), urgent=True, gone_is_fine=True)
            except LrmRejectedError as error:
                refused.append(error)
        if refused:
            raise refused[0]

    async def start_on(self, start: PinnedStart) -> None:
        """Start a waiting job on exactly these processors."""
        job = start.job
        if job not in self._processors_per_task:
            await self._ask_for(job)
        tasks = _tasks(job, start.nodes, self._processors_per_task[job])
        await self._do(StartJob(job=job, tasks=tasks))

    async def suspend(self, ids: Sequence[LrmJobId]) -> None:
        for id_ in ids:
            await self._do(SuspendJob(job=id_))

    async def resume(self, ids: Sequence[LrmJobId]) -> None:
        for id_ in ids:
            await self._do(ResumeJob(job=id_))

    async def requeue(self, ids: Sequence[LrmJobId]) -> None:
        """Stop running jobs and queue them again; WIKI2 only."""
        self._need("requeue", ids, able=self.capabilities.requeue)
        for id_ in ids:
            await self._do(RequeueJob(job=id_))

    async def signal(self, ids: Sequence[LrmJobId], signal: int) -> None:
        """Send a signal to running jobs; WIKI2 only."""
        self._need("signal", ids, able=self.capabilities.signal)
        for id_ in ids:
            await self._do(SignalJob(job=id_, signal=signal))

    async def modify(self, job: LrmJobId, *, walltime: int) -> None:
        """Change the walltime of a job, to whole minutes."""
        minutes = max(1, -(-walltime // MINUTE))
        await self._do(ModifyJob(job=job, changes=(("TIMELIMIT", str(minutes)),)))

    async def notify(self, job: LrmJobId, text: str) -> None:
        """Tell the user of a running job something; WIKI2 only."""
        self._need("notify", [job], able=self._peer.dialect is Dialect.WIKI2)
        await self._do(NotifyJob(job=job, message=text))

    async def check(self) -> tuple[CheckResult, ...]:
        """Verify the key file and that the resource manager answers in its dialect."""
        return self._check_key(), await self._check_answer()

    async def check_outside(self) -> tuple[CheckResult, ...]:
        """Verify that the resource manager lists its jobs for us, as it does for any scheduler with its key."""
        subject = "outside scheduler"
        try:
            jobs = await self._job_records()
        except LrmError as error:
            remedy = error.hint or "correct host, port, dialect and key_file of this cluster"
            return (CheckResult(subject=subject, ok=False, found=error.message, remedy=remedy),)
        return (CheckResult(subject=subject, ok=True, found=f"{self._peer} leaves {len(jobs)} jobs to us"),)

    # -- parts ------------------------------------------------------------------------------------------------

    def _load_key(self) -> None:
        if self._settings.key_file is not None:
            self._peer = replace(self._peer, key=load_key(self._settings.key_file))

    async def _node_records(self) -> tuple[NodeRecord, ...]:
        return _read(parse_nodes, await self._query(GetNodes()))

    async def _job_records(self) -> tuple[JobRecord, ...]:
        records = _read(parse_jobs, await self._query(GetJobs()))
        self._processors_per_task = {record.id: record.processors_per_task or 1 for record in records}
        return records

    async def _ask_for(self, job: LrmJobId) -> None:
        for record in _read(parse_jobs, await self._query(GetJobs(ids=(job,)))):
            self._processors_per_task[record.id] = record.processors_per_task or 1
        if job not in self._processors_per_task:
            raise LrmNotFoundError(f"{self._peer} knows no job {job}")

    async def _query(self, request: GetNodes | GetJobs) -> str:
        reply = await self._exchange(request)
        try:
            argument = reply.require()
        except WikiError as error:
            raise to_lrm_error(error, what=request.verb, of_query=True) from error
        if reply.argument is None:
            raise LrmRejectedError(f"{self._peer} answered {request.verb} without a list: {reply.text[:80]!r}")
        return argument

    async def _do(self, request: JobRequest, *, urgent: bool = False, gone_is_fine: bool = False) -> None:
        try:
            (await self._exchange(request, urgent=urgent)).require()
        except WikiError as error:
            if gone_is_fine and is_gone(error):
                return
            raise to_lrm_error(error, what=f"{request.verb} of {request.job}") from error

    async def _exchange(self, request: Request, *, urgent: bool = False) -> Reply:
        await self._commands.admit(urgent=urgent)
        user = self._peer.user or (await self._commands.host.facts()).user
        peer = replace(self._peer, user=user, timeout=self._commands.bounded(self._peer.timeout))
        with self._commands.timed(request.verb):
            try:
                return await exchange(peer, request, self._commands.host)
            except WikiError as error:
                raise LrmRejectedError(error.message, hint=error.hint) from error

    def _no_submission(self, submission: Submission) -> NoReturn:
        raise LrmUnsupportedError(
            f"{submission.key} cannot be submitted over WIKI, which has no submission",
            hint="give the cluster `enabled = false`; `koala schedule` orders the jobs that its users submit",
        )

    def _need(self, operation: str, ids: Sequence[str], *, able: bool) -> None:
        if not able:
            self._unsupported(operation, ids)

    def _check_key(self) -> CheckResult:
        path = self._settings.key_file
        if path is None:
            return CheckResult(subject="key", ok=True, found="none; requests and replies are not signed")
        try:
            self._load_key()
        except ConfigurationError as error:
            return CheckResult(subject="key", ok=False, found=error.message, remedy=error.hint or "correct key_file")
        return CheckResult(subject="key", ok=True, found=f"in {path}, readable by us alone")

    async def _check_answer(self) -> CheckResult:
        try:
            nodes, found = await self._node_records(), await self.version()
        except LrmError as error:
            remedy = error.hint or "correct host, port, dialect and key_file of this cluster"
            return CheckResult(subject="answer", ok=False, found=error.message, remedy=remedy)
        counted = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
        return CheckResult(subject="answer", ok=True, found=f"{self._peer} speaks {found} of {counted}")


def _read(parse: Callable[[str], T], argument: str) -> T:
    try:
        return parse(argument)
    except WikiError as error:
        raise LrmUnavailableError(f"the answer cannot be understood: {error.message}") from error


def _tasks(job: str, nodes: Sequence[str], processors_per_task: int) -> tuple[str, ...]:
    """Return one host for each task, from a list with one for each processor."""
    tasks: list[str] = []
    for node, same in groupby(nodes):
        count, rest = divmod(len(list(same)), processors_per_task)
        if rest:
            raise LrmRejectedError(f"job {job} has tasks of {processors_per_task} processors: they do not fill {node}")
        tasks += [node] * count
    return tuple(tasks)


PLUGIN = PluginDefinition(
    name="wiki",
    summary="a resource manager that speaks WIKI, to be scheduled from outside",
    settings=WikiSettings,
    capabilities=CAPABILITIES,
    factory=WikiLrm,
    identified_by=("host", "port"),
    sites=True,
)

# SPDX-License-Identifier: Apache-2.0
"""The plugin itself: the LRM contract on one side, one TCP connection for each request on the other."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from koala_adapter.errors import (
    ConfigurationError,
    LrmError,
    LrmNotFoundError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnsupportedError,
    WikiError,
)
from koala_adapter.plugin import Capabilities, CheckResult, Lrm, PluginDefinition
from koala_adapter.plugin.commands import login_name
from koala_adapter.wiki.client import Peer, exchange
from koala_adapter.wiki.codec.protocol import (
    CancelJob,
    Dialect,
    GetJobs,
    GetNodes,
    ModifyJob,
    NotifyJob,
    RequeueJob,
    ResumeJob,
    SignalJob,
    StartJob,
    SuspendJob,
    parse_jobs,
    parse_nodes,
)
from koala_adapter.wiki.keyfile import load_key
from koala_wiki.reading import to_job, to_node, to_queues, used_processors
from koala_wiki.refusals import is_gone, to_lrm_error
from koala_wiki.settings import WikiSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from koala_adapter.model import LrmJob, LrmJobId, Node, Queue
    from koala_adapter.plugin import ClusterContext, RenderedSubmission, Submission
    from koala_adapter.wiki.codec.protocol import JobRecord, NodeRecord, Reply, Request

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
        """Nothing is read before `start`."""
        self.capabilities = CAPABILITIES if settings.dialect is Dialect.WIKI2 else WIKI_CAPABILITIES
        self._commands = context.commands
        self._settings = settings
        self._peer = Peer(
            host=settings.host,
            port=settings.port,
            key=None,
            dialect=settings.dialect,
            user=context.user or login_name(),
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
        """Return the dialect, once the resource manager has answered in it: WIKI has no word for its version."""
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
        return tuple(to_job(record, self._peer.dialect) for record in records if record.name.startswith(name_prefix))

    async def queues(self) -> tuple[Queue, ...]:
        """Return the queues that the nodes name."""
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

    async def start_on(self, job: LrmJobId, nodes: Sequence[str]) -> None:
        """Start a waiting job on exactly these processors."""
        if job not in self._processors_per_task:
            await self._ask_for(job)
        tasks = _tasks(job, nodes, self._processors_per_task[job])
        await self._do(StartJob(job=job, tasks=tasks))

    async def suspend(self, ids: Sequence[LrmJobId]) -> None:
        """Suspend running jobs."""
        for id_ in ids:
            await self._do(SuspendJob(job=id_))

    async def resume(self, ids: Sequence[LrmJobId]) -> None:
        """Resume suspended jobs."""
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
        """Verify that the resource manager lists its jobs for us: whoever speaks WIKI to it is its scheduler."""
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
            raise to_lrm_error(error, what=str(request.verb), of_query=True) from error
        if reply.argument is None:
            raise LrmRejectedError(f"{self._peer} answered {request.verb} without a list: {reply.text[:80]!r}")
        return argument

    async def _do(self, request: Request, *, urgent: bool = False, gone_is_fine: bool = False) -> None:
        try:
            (await self._exchange(request, urgent=urgent)).require()
        except WikiError as error:
            if gone_is_fine and is_gone(error):
                return
            what = f"{request.verb} of {getattr(request, 'job', '?')}"
            raise to_lrm_error(error, what=what) from error

    async def _exchange(self, request: Request, *, urgent: bool = False) -> Reply:
        await self._commands.admit(urgent=urgent)
        try:
            return await exchange(self._peer, request)
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
    """Return one host for each task, of one host for each processor."""
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
)

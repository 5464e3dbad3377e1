# SPDX-License-Identifier: Apache-2.0
"""The plugin itself: the LRM contract on one side, requests to the cluster's daemon on the other."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError, LrmRejectedError
from koala_adapter.model import LrmJobId, Node, NodeState, Queue
from koala_adapter.plugin import Capabilities, CheckResult, Lrm, PluginDefinition, RenderedSubmission
from koala_adapter.plugin.commands import login_name
from koala_local import process
from koala_local.client import DaemonClient
from koala_local.layout import QUEUE
from koala_local.record import JobRecord
from koala_local.settings import LocalSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.model import LrmJob
    from koala_adapter.plugin import ClusterContext, Submission
    from koala_local.protocol import Json

CAPABILITIES = Capabilities(
    hold=True, pin=True, tells_holders=False, suspend=True, requeue=True, signal=True, modify=True
)


class LocalLrm(Lrm):
    """A cluster of subprocess slots on this host."""

    capabilities = CAPABILITIES
    array_index_variable = process.TASK
    job_id_variable = process.JOB
    requests_per_poll = 2

    def __init__(self, context: ClusterContext, settings: LocalSettings) -> None:
        """Nothing runs before `start`."""
        self._context = context
        self._layout = settings.layout
        self._user = context.user or login_name()
        self._daemon = DaemonClient(
            context.state_directory, self._layout, context.commands, seconds=settings.answer_seconds
        )

    async def start(self) -> None:
        """Start the cluster's daemon, or tell the running one our settings."""
        self._daemon.prepare()
        await self._daemon.ask("configure", {"layout": self._layout.to_json()})

    async def version(self) -> str:
        """Return the daemon's version."""
        answer = await self._daemon.ask("version")
        return f"local {answer.text('version')}"

    async def nodes(self) -> tuple[Node, ...]:
        """Return the simulated nodes."""
        answer = await self._daemon.ask("nodes")
        return tuple(
            Node(
                name=node.text("name"),
                state=NodeState.UP,
                processors=node.integer("processors"),
                processors_used=node.integer("used"),
                queues=(QUEUE,),
                raw_state="up",
            )
            for node in answer.objects("nodes")
        )

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Return the jobs, with those that ended some minutes ago."""
        answer = await self._daemon.ask("jobs", {"prefix": name_prefix})
        return tuple(JobRecord.from_json(job).to_lrm_job() for job in answer.objects("jobs"))

    async def queues(self) -> tuple[Queue, ...]:
        """Return the one queue."""
        nodes = await self.nodes()
        return (
            Queue(
                name=QUEUE,
                up=True,
                processors=sum(node.processors for node in nodes),
                walltime_limit=self._layout.walltime_limit,
                default=True,
            ),
        )

    def render(self, submission: Submission) -> RenderedSubmission:
        """Return the request to the daemon, field by field."""
        fields = self._request(submission)
        script = fields.pop("script")
        command = ("koala-local", "submit", *(f"{name}={value}" for name, value in fields.items()))
        note = f"one request over the Unix socket in {self._context.state_directory}; no command is run"
        return RenderedSubmission(command=command, script=str(script), note=note)

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Submit all placeholders in one request."""
        answer = await self._daemon.ask("submit", self._request(submission))
        return tuple(LrmJobId(id_) for id_ in answer.texts("ids"))

    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        """SIGTERM to the jobs' process groups, SIGKILL to all that is left after ``kill_wait`` seconds."""
        if ids:
            await self._daemon.ask("cancel", {"ids": [*ids]}, urgent=True)

    async def hold(self, ids: Sequence[LrmJobId]) -> None:
        """Put queued jobs in hold."""
        await self._daemon.ask("hold", {"ids": [*ids]})

    async def release(self, ids: Sequence[LrmJobId]) -> None:
        """Release held jobs."""
        await self._daemon.ask("release", {"ids": [*ids]})

    async def start_on(self, job: LrmJobId, nodes: Sequence[str]) -> None:
        """Release a held job for one node; it waits while that node has no idle processor."""
        await self._daemon.ask("start_on", {"id": job, "nodes": [*nodes]})

    async def suspend(self, ids: Sequence[LrmJobId]) -> None:
        """SIGSTOP to all processes of running jobs."""
        await self._daemon.ask("suspend", {"ids": [*ids]})

    async def resume(self, ids: Sequence[LrmJobId]) -> None:
        """SIGCONT to all processes of suspended jobs."""
        await self._daemon.ask("resume", {"ids": [*ids]})

    async def requeue(self, ids: Sequence[LrmJobId]) -> None:
        """End running jobs and queue them again."""
        await self._daemon.ask("requeue", {"ids": [*ids]})

    async def signal(self, ids: Sequence[LrmJobId], signal: int) -> None:
        """Send a signal to the jobs' process groups."""
        await self._daemon.ask("signal", {"ids": [*ids], "signal": signal})

    async def modify(self, job: LrmJobId, *, walltime: int) -> None:
        """Change the walltime of a job."""
        await self._daemon.ask("modify", {"id": job, "walltime": walltime})

    async def check(self) -> tuple[CheckResult, ...]:
        """Verify the platform, the directory and the daemon."""
        return (
            _check_platform(),
            _check_shell(),
            self._check_directives(),
            await self._check_daemon(),
        )

    def _request(self, submission: Submission) -> dict[str, Json]:
        if submission.count < 1:
            raise LrmRejectedError(f"a submission has at least 1 job, not {submission.count}")
        return {
            "name": submission.key,
            "user": self._user,
            "count": submission.count,
            "script": submission.script,
            "walltime": submission.walltime,
            "output_directory": submission.output_directory or "",
            "queue": submission.queue,
            "held": submission.held,
        }

    def _check_directives(self) -> CheckResult:
        directives = self._context.directives
        given = bool(directives.add or directives.drop or directives.rename)
        return CheckResult(
            subject="directives",
            ok=not given,
            found="some, which have no meaning here" if given else "none",
            remedy="remove them from this cluster: a local cluster has no submission flags",
        )

    async def _check_daemon(self) -> CheckResult:
        remedy = f"see the log in {self._context.state_directory}"
        try:
            found = await self.version()
        except LrmError as error:
            return CheckResult(subject="daemon", ok=False, found=str(error), remedy=remedy)
        return CheckResult(subject="daemon", ok=True, found=found, remedy=remedy)


def _check_platform() -> CheckResult:
    linux = sys.platform == "linux"
    return CheckResult(subject="system", ok=linux, found=sys.platform, remedy="needs Linux 5.3 or newer")


def _check_shell() -> CheckResult:
    shell = shutil.which("sh", path="/bin")
    return CheckResult(subject="shell", ok=shell is not None, found=shell or "none", remedy="install /bin/sh")


PLUGIN = PluginDefinition(
    name="local",
    summary="subprocess slots on this host, without a batch system",
    settings=LocalSettings,
    capabilities=CAPABILITIES,
    factory=LocalLrm,
)

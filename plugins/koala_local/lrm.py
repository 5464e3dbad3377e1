# SPDX-License-Identifier: Apache-2.0
"""Plugin ``local``: settings, the client of the daemon, and the LRM that turns calls into requests."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from koala_adapter.errors import ConfigurationError, LrmError, LrmRejectedError
from koala_adapter.lrm import Capabilities, CheckResult, Lrm, PluginDefinition, RenderedSubmission
from koala_adapter.lrm.contract import oldest_first
from koala_adapter.model import LrmJob, LrmJobId, Node, NodeGpus, NodeState, Queue
from koala_local import processes
from koala_local.client import Daemon, DaemonClient, DaemonElsewhere
from koala_local.jobs import KILL_WAIT, QUEUE, JobRecord, Layout, NodeSlots, NodeUse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.lrm import ClusterContext, PinnedStart, Submission


# -- Settings ------------------------------------------------------------------------------------------------
# What a site file may say about a local cluster, and the description of the cluster that follows from it.

NodeName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class LocalSettings(BaseModel):
    """The ``[clusters.settings]`` table of a cluster with ``plugin = "local"``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    processors: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Processors (slots) of the whole cluster, on one simulated node. Default: as this host has.",
    )
    nodes: int | None = Field(
        default=None, ge=1, le=10_000, description="Number of simulated nodes, called n1, n2 and so on."
    )
    node_names: tuple[NodeName, ...] = Field(
        default=(), description="Names of the simulated nodes, in place of their number."
    )
    processors_per_node: int | None = Field(
        default=None, ge=1, le=10_000, description="Processors (slots) of each simulated node. Default: 1."
    )
    memory_mib: int | None = Field(
        default=None,
        ge=1,
        json_schema_extra={"x-unit": "MiB"},
        description="Memory of each simulated node that jobs can have, in MiB. Default: it is not counted; a job that "
        "asks for memory is limited to it all the same.",
    )
    gpus: int = Field(
        default=0,
        ge=0,
        le=1_000,
        description="GPUs of each simulated node, all numbered from 0 on: a job sees its own by CUDA_VISIBLE_DEVICES.",
    )
    gpu_kind: str = Field(default="", description="Kind of the GPUs, for jobs that ask for one; empty: they have none.")
    features: tuple[str, ...] = Field(default=(), description="What jobs may ask for as features: each node has them.")
    bind: bool = Field(
        default=True,
        description="Jobs of several processors are bound to as many of this host, where it has enough for all nodes. "
        "Say false where several clusters share the host.",
    )
    walltime_limit: int | None = Field(
        default=None, ge=1, description="Longest walltime of a job in seconds. Default: no limit."
    )
    idle_seconds: float = Field(
        default=600.0,
        gt=0,
        description="Seconds without jobs and without requests after which the cluster's daemon ends by itself.",
    )
    remember_seconds: float = Field(
        default=600.0, ge=0, description="Seconds for which ended jobs stay listed, with the way they ended."
    )
    kill_wait: float = Field(
        default=KILL_WAIT,
        ge=0,
        description="Seconds from SIGTERM, with which a job is ended, to SIGKILL for what does not listen.",
    )
    answer_seconds: float = Field(
        default=30.0,
        gt=0,
        description="Seconds within which the daemon must answer; otherwise the cluster counts as out of reach.",
    )

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Self:
        if self.processors is not None and (self.nodes or self.node_names or self.processors_per_node):
            message = "give processors alone, or nodes (or node_names) with processors_per_node"
            raise ValueError(message)
        if self.nodes is not None and self.node_names:
            message = "give nodes or node_names, not both"
            raise ValueError(message)
        if len(set(self.node_names)) != len(self.node_names):
            message = "node_names must be different from each other"
            raise ValueError(message)
        return self

    @property
    def layout(self) -> Layout:
        """The cluster that these settings describe."""
        if self.nodes is None and not self.node_names and self.processors_per_node is None:
            each = self.processors or os.cpu_count() or 1
        else:
            each = self.processors_per_node or 1
        names: tuple[str, ...] = self.node_names
        names = names or tuple(f"n{number}" for number in range(1, (self.nodes or 1) + 1))
        return Layout(
            nodes=tuple(
                NodeSlots(name=name, processors=each, memory_mib=self.memory_mib, gpus=self.gpus) for name in names
            ),
            walltime_limit=self.walltime_limit,
            idle_seconds=self.idle_seconds,
            remember_seconds=self.remember_seconds,
            kill_wait=self.kill_wait,
            bind=self.bind,
        )


# -- The LRM -------------------------------------------------------------------------------------------------

CAPABILITIES = Capabilities(
    hold=True,
    pin=True,
    tells_holders=False,
    suspend=True,
    requeue=True,
    signal=True,
    modify=True,
    slots=frozenset({"threads", "gpus", "gpu_kind", "exclusive", "features"}),
)


class LocalLrm(Lrm):
    """A cluster of subprocess slots on this host."""

    capabilities = CAPABILITIES
    array_index_variable = processes.TASK
    job_id_variable = processes.JOB
    requests_per_poll = 2

    def __init__(self, context: ClusterContext, settings: LocalSettings) -> None:
        if context.directives.map:
            message = f"cluster {context.cluster}: a local cluster has no submission flags that could be mapped"
            raise ConfigurationError(message, hint="take [clusters.map] out of its table")
        self._context = context
        self._settings = settings
        self._layout = settings.layout
        here = context.host.here
        if not here and not (settings.processors or settings.nodes or settings.node_names):
            message = f"cluster {context.cluster}: the processors of a login node are not all for jobs"
            raise ConfigurationError(message, hint="say in its settings how many `processors` there are for koala")
        make = DaemonClient if here else DaemonElsewhere
        self._daemon: Daemon = make(
            context.state_directory, self._layout, context.commands, seconds=settings.answer_seconds
        )

    async def start(self) -> None:
        """Start the cluster's daemon, or tell the running one our settings."""
        await self._daemon.prepare()
        await self._daemon.ask("configure", {"layout": self._layout})

    async def version(self) -> str:
        answer = await self._daemon.ask("version")
        return f"local {answer.text('version')}"

    async def nodes(self) -> tuple[Node, ...]:
        """Return the simulated nodes."""
        answer = await self._daemon.ask("nodes")
        return tuple(
            Node(
                name=node.name,
                state=NodeState.UP,
                processors=node.processors,
                processors_used=node.used,
                queues=(QUEUE,),
                raw_state="up",
                memory_mib=node.memory_mib,
                memory_used_mib=None if node.memory_mib is None else node.memory_used_mib,
                features=self._settings.features,
                gpus=self._gpus(node),
            )
            for node in answer.records("nodes", NodeUse)
        )

    def _gpus(self, node: NodeUse) -> tuple[NodeGpus, ...]:
        kind = self._settings.gpu_kind
        return (NodeGpus(kind=kind, count=node.gpus, used=node.gpus_used),) if node.gpus else ()

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Return the jobs, with those that ended some minutes ago."""
        answer = await self._daemon.ask("jobs", {"prefix": name_prefix})
        return tuple(oldest_first(job.to_lrm_job() for job in answer.records("jobs", JobRecord)))

    async def queues(self) -> tuple[Queue, ...]:
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
        await self._daemon.ask("hold", {"ids": [*ids]})

    async def release(self, ids: Sequence[LrmJobId]) -> None:
        await self._daemon.ask("release", {"ids": [*ids]})

    async def start_on(self, start: PinnedStart) -> None:
        """Release a held job for one node; it waits while that node has no idle processor."""
        await self._daemon.ask("start_on", {"id": start.job, "nodes": [*start.nodes]})

    async def suspend(self, ids: Sequence[LrmJobId]) -> None:
        """SIGSTOP to all processes of running jobs."""
        await self._daemon.ask("suspend", {"ids": [*ids]})

    async def resume(self, ids: Sequence[LrmJobId]) -> None:
        """SIGCONT to all processes of suspended jobs."""
        await self._daemon.ask("resume", {"ids": [*ids]})

    async def requeue(self, ids: Sequence[LrmJobId]) -> None:
        await self._daemon.ask("requeue", {"ids": [*ids]})

    async def signal(self, ids: Sequence[LrmJobId], signal: int) -> None:
        """Send a signal to the jobs' process groups."""
        await self._daemon.ask("signal", {"ids": [*ids], "signal": signal})

    async def modify(self, job: LrmJobId, *, walltime: int) -> None:
        await self._daemon.ask("modify", {"id": job, "walltime": walltime})

    async def check(self) -> tuple[CheckResult, ...]:
        """Verify the platform, the directory and the daemon."""
        return (
            *((_check_platform(), _check_shell()) if self._context.host.here else ()),
            self._check_directives(),
            await self._check_daemon(),
        )

    def _request(self, submission: Submission) -> dict[str, object]:
        if submission.count < 1:
            raise LrmRejectedError(f"a submission has at least 1 job, not {submission.count}")
        slot = submission.slot
        if missing := slot.beyond(self.capabilities.slots):
            raise LrmRejectedError(
                f"a local cluster cannot be asked for {', '.join(missing)}", hint="leave that out of the job"
            )
        lacking = [name for name in slot.features if name not in self._settings.features]
        lacking += [slot.gpu_kind] if slot.gpu_kind not in {"", self._settings.gpu_kind} else []
        if lacking:
            message = f"no node of this cluster has {', '.join(lacking)}"
            raise LrmRejectedError(message, hint="its settings say what there is: features, gpus and gpu_kind")
        return {
            "name": submission.key,
            "user": self._context.user or self._context.host.user,
            "count": submission.count,
            "script": submission.script,
            "walltime": submission.walltime,
            "output_directory": submission.output_directory or "",
            "queue": submission.queue,
            "held": submission.held,
            "threads": slot.threads,
            "memory_mib": submission.memory_mib or 0,
            "gpus": slot.gpus,
            "exclusive": slot.exclusive,
            # For those who look: each node has them.
            "features": [*slot.features],
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
    sites=True,
)

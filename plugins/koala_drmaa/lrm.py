# SPDX-License-Identifier: Apache-2.0
"""Plugin ``drmaa``: settings, native options, states of jobs, and an LRM by DRMAA 1.0 alone.

DRMAA submits, controls and shows our own jobs. What it cannot tell is not guessed: nodes are one stand-in with the
number of processors that the site file gives, of which only our own jobs count as used; jobs of others are not seen.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from koala_adapter.errors import LrmError, LrmRejectedError, LrmUnsupportedError
from koala_adapter.lrm import Capabilities, CheckResult, Lrm, PluginDefinition
from koala_adapter.lrm.contract import Directives, oldest_first
from koala_adapter.lrm.drmaa.client import DrmaaClient, HelperLaunch
from koala_adapter.lrm.drmaa.libraries import INDEX_VARIABLE, LIBRARIES, Library
from koala_adapter.lrm.drmaa.protocol import ControlAction, JobStatus, ListedBatch, ListedJob
from koala_adapter.lrm.drmaa.scripts import ScriptDelivery, ScriptStore, script_folder
from koala_adapter.lrm.drmaa.transport import DrmaaTransport, apply_directives, raise_for, version_of
from koala_adapter.lrm.mapping import arguments_of, divide
from koala_adapter.model import BatchKey, EndReason, LrmJob, LrmJobId, LrmJobState, Node, NodeState, Queue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.lrm import ClusterContext, RenderedSubmission, Submission


# -- Settings ------------------------------------------------------------------------------------------------
# The ``[clusters.settings]`` table of a cluster whose plugin is ``drmaa``.


class DrmaaSettings(BaseModel):
    """Settings of one cluster that is reached through DRMAA 1.0 alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    library: Path | None = Field(
        default=None,
        description="libdrmaa of this cluster's batch system; without it the dynamic loader looks for libdrmaa.so.",
    )
    processors: int = Field(ge=1, description="Processors that this cluster has for us: DRMAA tells nothing of nodes.")
    contact: str = Field(default="", description="DRMAA contact string; empty for the library's default.")
    environment: dict[str, str] = Field(
        default_factory=dict,
        description="Variables for the library that choose the cluster, such as SGE_ROOT or SLURM_CONF. No secrets.",
    )
    queue: str | None = Field(default=None, description="Queue of all placeholders; none for the default one.")
    native_specification: str | None = Field(
        default=None,
        description="Options of the batch system for every placeholder, such as '-r n'; by default those that keep it "
        "from being started twice.",
    )
    submission: Literal["auto", "single"] = Field(
        default="auto",
        description="How several placeholders are submitted: 'auto', as one bulk where the library does it rightly; "
        "'single', each as a job of its own with KOALA_INDEX in its environment.",
    )
    script_delivery: ScriptDelivery = Field(
        default=ScriptDelivery.PRIVATE,
        description="'private': nodes read the script from script_directory. 'copied': the batch system copies it at "
        "submission (Grid Engine: add '-b n' to native_specification); other users of a node may then read it.",
    )
    script_directory: Path | None = Field(
        default=None,
        description="Where scripts are kept (mode 0700), seen by the nodes under the same path, in a folder for "
        "each cluster and state directory; default: in the state directory.",
    )
    request_timeout: float = Field(
        default=20.0, gt=0, description="Seconds after which a call into the library counts as hung."
    )


# -- Native options ------------------------------------------------------------------------------------------


def index_variable(settings: DrmaaSettings, library: Library) -> str | None:
    """Return where a placeholder of a bulk finds its number; None where each placeholder is a job of its own."""
    return library.index_variable if library.bulk and settings.submission == "auto" else None


DIRECTIVES = frozenset({"directives"})


def slot_keys(library: Library) -> frozenset[str]:
    """Return the keys of a slot that a library can express."""
    return DIRECTIVES | {key for key, _ in library.slots}


def site_options(
    settings: DrmaaSettings, submission: Submission, library: Library, directives: Directives
) -> tuple[str, ...]:
    """Return all native options of a submission, with the site's changes. Raises LrmRejectedError."""
    own = {key: arguments_of(text) for key, text in library.slots}
    both = replace(directives, map=tuple({**own, **dict(directives.map)}.items()))
    divided = divide(submission, DIRECTIVES, both, system=f"{library.system} through DRMAA")
    return apply_directives(native_options(settings, divided.rest, library), divided.directives, library)


def native_options(settings: DrmaaSettings, submission: Submission, library: Library) -> tuple[str, ...]:
    """Return native options as the library takes them. Raises LrmRejectedError for a queue that cannot be expressed."""
    queue = submission.queue or settings.queue or ""
    if queue and not library.queue:
        message = f"queue {queue!r} cannot be asked for: it is not known how this library takes one"
        raise LrmRejectedError(message, hint="name the queue in native_specification")
    values = {
        "walltime": str(submission.walltime),
        "walltime_minutes": str(-(-submission.walltime // 60)),
        "queue": queue,
        "memory_mib": str(submission.memory_mib),
    }
    asked = (library.walltime, library.queue if queue else "", library.memory if submission.memory_mib else "")
    own = library.native if settings.native_specification is None else (settings.native_specification,)
    return tuple(option for option in (*own, *(one.format_map(values) for one in asked)) if option)


# -- States and ends of jobs ---------------------------------------------------------------------------------
# From DRMAA's words to ours.

STATES: Mapping[JobStatus, LrmJobState] = {
    JobStatus.UNDETERMINED: LrmJobState.UNKNOWN,
    JobStatus.QUEUED_ACTIVE: LrmJobState.QUEUED,
    JobStatus.SYSTEM_ON_HOLD: LrmJobState.HELD,
    JobStatus.USER_ON_HOLD: LrmJobState.HELD,
    JobStatus.USER_SYSTEM_ON_HOLD: LrmJobState.HELD,
    JobStatus.RUNNING: LrmJobState.RUNNING,
    JobStatus.SYSTEM_SUSPENDED: LrmJobState.SUSPENDED,
    JobStatus.USER_SUSPENDED: LrmJobState.SUSPENDED,
    JobStatus.USER_SYSTEM_SUSPENDED: LrmJobState.SUSPENDED,
    JobStatus.DONE: LrmJobState.ENDED,
    JobStatus.FAILED: LrmJobState.ENDED,
    JobStatus.GONE: LrmJobState.ENDED,
}
"""Grid Engine's library says RUNNING already while a job is being transferred to its node."""

ON_A_NODE = frozenset({LrmJobState.RUNNING, LrmJobState.SUSPENDED})
UNKNOWN_ID_PREFIX = "unknown:"


def jobs_of_batch(batch: ListedBatch, *, user: str, node: str, queue: str) -> tuple[LrmJob, ...]:
    """Return the jobs of a batch. Those without ids are reported in state UNKNOWN, never as absent."""
    known = (
        _job(batch, job, index, user=user, node=node, queue=queue) for index, job in enumerate(batch.jobs, start=1)
    )
    return (*known, *(_unknown(batch, index, user) for index in range(len(batch.jobs) + 1, batch.count + 1)))


def _unknown(batch: ListedBatch, index: int, user: str) -> LrmJob:
    return LrmJob(
        id=LrmJobId(f"{UNKNOWN_ID_PREFIX}{batch.key}.{index}"),
        name=batch.key,
        state=LrmJobState.UNKNOWN,
        user=user,
        processors=batch.processors,
        array_index=index,
        reason="the outcome of the submission is not known",
        submitted_at=batch.submitted_at,
    )


def _job(batch: ListedBatch, job: ListedJob, index: int, *, user: str, node: str, queue: str) -> LrmJob:
    state = STATES[job.status]
    return LrmJob(
        id=LrmJobId(job.id),
        name=batch.key,
        state=state,
        user=user,
        processors=batch.processors,
        array_index=index,
        nodes=(node,) if state in ON_A_NODE else (),
        queue=queue,
        end=end_of(job),
        exit_code=job.exit_code,
        signal=job.signal,
        submitted_at=batch.submitted_at,
        ends_at=job.ended_at,
        raw_state=job.status.value,
    )


def end_of(job: ListedJob) -> EndReason | None:
    """Return why a job ended, as far as DRMAA can be believed: it does not tell a walltime from a kill."""
    if job.signal is not None and not job.aborted:
        return None if job.signal == SIGKILL else EndReason.SIGNALLED
    return EndReason.EXITED if job.exit_code is not None else None


SIGKILL = 9
"""Sent by the LRM itself at the end of the walltime or on cancellation, so it says nothing about the reason."""


def unknown_key(id_: LrmJobId) -> str | None:
    """Return the key in an id that we made for a job of unknown outcome; None for a real id."""
    if not id_.startswith(UNKNOWN_ID_PREFIX):
        return None
    return id_.removeprefix(UNKNOWN_ID_PREFIX).rpartition(".")[0]


# -- The LRM -------------------------------------------------------------------------------------------------

CAPABILITIES = Capabilities(
    observes_nodes=False,
    lists_queues=False,
    lists_others=False,
    hold=True,
    suspend=True,
    slots=frozenset().union(*map(slot_keys, LIBRARIES)),
)
DEFAULT_QUEUE = "default"


class DrmaaLrm(Lrm):
    """One cluster through DRMAA alone."""

    capabilities = CAPABILITIES
    requests_per_poll = 2

    def __init__(self, context: ClusterContext, settings: DrmaaSettings) -> None:
        self._context = context
        self._settings = settings
        self.client = DrmaaClient(
            context,
            HelperLaunch(library=settings.library, variables=settings.environment),
            contact=settings.contact,
            keeps_ledger=True,
            request_timeout=settings.request_timeout,
        )
        folder = script_folder(settings.script_directory, context)
        scripts = ScriptStore(folder, context.host, delivery=settings.script_delivery)
        self._transport = DrmaaTransport(self.client, scripts)
        self._adopt_library()

    def _adopt_library(self) -> None:
        """Set capabilities by the library, which is certain only when it is loaded."""
        library = self.client.library
        self.array_index_variable = index_variable(self._settings, library) or INDEX_VARIABLE
        self.job_id_variable = library.job_id_variable
        self.capabilities = replace(CAPABILITIES, hold=library.hold, suspend=library.suspend, slots=slot_keys(library))

    async def start(self) -> None:
        """Start the helper; an LRM that is out of reach now is tried again with the first request."""
        with suppress(LrmError):
            await self.client.open()
        self._adopt_library()

    async def close(self) -> None:
        await self._transport.close()

    async def version(self) -> str:
        opened = await self.client.open()
        self._adopt_library()
        return version_of(opened)

    # -- reading -------------------------------------------------------------------------------------------------

    async def nodes(self) -> tuple[Node, ...]:
        """Return one stand-in for all nodes; its processors in use are those of our own jobs."""
        running = sum(job.processors for job in await self._all_jobs() if job.state in ON_A_NODE)
        node = Node(
            name=self._context.cluster,
            state=NodeState.UP,
            processors=self._settings.processors,
            processors_used=running,
            untold=("gpus", "gpu_kind", "features"),
        )
        return (node,)

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Return our own jobs: those that the ledger knows."""
        jobs = await self._all_jobs()
        return tuple(oldest_first(job for job in jobs if job.name.startswith(name_prefix)))

    async def queues(self) -> tuple[Queue, ...]:
        """Return the one queue that the site file names, once the library has answered."""
        await self._all_jobs()
        return (Queue(name=self._queue, up=True, processors=self._settings.processors, default=True),)

    @property
    def _queue(self) -> str:
        return self._settings.queue or DEFAULT_QUEUE

    async def _all_jobs(self) -> tuple[LrmJob, ...]:
        batches = await self.client.batches("")
        self._adopt_library()
        jobs = [
            job
            for batch in batches
            for job in jobs_of_batch(batch, user=self._context.submitter, node=self._context.cluster, queue=self._queue)
        ]
        live = {job.name for job in jobs if job.state is not LrmJobState.ENDED}
        await self._transport.scripts.sweep(live, time.monotonic())
        return tuple(jobs)

    # -- submission ----------------------------------------------------------------------------------------------

    def render(self, submission: Submission) -> RenderedSubmission:
        return self._transport.render(submission, self._native(submission), index_variable=self._own_index())

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Submit one bulk, or one job for each placeholder where the library cannot be trusted with a bulk."""
        await self.client.open()
        self._adopt_library()
        return await self._transport.submit(submission, self._native(submission), index_variable=self._own_index())

    def _own_index(self) -> str | None:
        return INDEX_VARIABLE if index_variable(self._settings, self.client.library) is None else None

    def forget(self, key: BatchKey) -> None:
        self._transport.scripts.remove(key)

    def _native(self, submission: Submission) -> tuple[str, ...]:
        return site_options(self._settings, submission, self.client.library, self._context.directives)

    # -- control -------------------------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        """Terminate jobs. A submission of unknown outcome cannot be: it is forgotten, and its leases end it."""
        forgotten = sorted({key for id_ in ids if (key := unknown_key(id_)) is not None})
        if forgotten:
            await self.client.abandon(forgotten)
        known = [id_ for id_ in ids if unknown_key(id_) is None]
        raise_for(await self.client.control(ControlAction.TERMINATE, known, urgent=True), gone_is_fine=True)

    async def hold(self, ids: Sequence[LrmJobId]) -> None:
        raise_for(await self.client.control(ControlAction.HOLD, ids))

    async def release(self, ids: Sequence[LrmJobId]) -> None:
        raise_for(await self.client.control(ControlAction.RELEASE, ids))

    async def suspend(self, ids: Sequence[LrmJobId]) -> None:
        self._need_suspend("suspend", ids)
        raise_for(await self.client.control(ControlAction.SUSPEND, ids))

    async def resume(self, ids: Sequence[LrmJobId]) -> None:
        self._need_suspend("resume", ids)
        raise_for(await self.client.control(ControlAction.RESUME, ids))

    def _need_suspend(self, operation: str, ids: Sequence[LrmJobId]) -> None:
        if not self.capabilities.suspend:
            message = f"{self.client.library.name} cannot be trusted to {operation} jobs ({', '.join(ids)})"
            raise LrmUnsupportedError(message, hint="see the table of libraries in `koala docs drmaa`")

    # -- check ---------------------------------------------------------------------------------------------------

    async def check(self) -> tuple[CheckResult, ...]:
        """Load the library, ask the LRM, say what is known of the library, look at the directory of scripts."""
        library, scripts = await self._transport.check()
        self._adopt_library()
        return (library, *((self._abilities(),) if library.ok else ()), scripts)

    def _abilities(self) -> CheckResult:
        library = self.client.library
        variable = index_variable(self._settings, library)
        way = f"one job for each, with {INDEX_VARIABLE}" if variable is None else f"a bulk, with {variable}"
        missing = "" if library.suspend else "; jobs cannot be suspended"
        found = f"{library.name} ({library.system}): several placeholders go as {way}{missing}"
        return CheckResult(subject="abilities", ok=True, found=found)


PLUGIN = PluginDefinition(
    name="drmaa",
    summary="Any batch system with a DRMAA 1.0 library; sees only our own jobs.",
    settings=DrmaaSettings,
    capabilities=CAPABILITIES,
    factory=DrmaaLrm,
    sites=True,
)

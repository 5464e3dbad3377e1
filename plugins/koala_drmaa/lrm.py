# SPDX-License-Identifier: Apache-2.0
"""An LRM of which nothing is used but DRMAA 1.0: submission, control and status of our own jobs.

What DRMAA cannot tell is not guessed: nodes are one stand-in with the number of processors that the site file gives,
of which only our own jobs count as used; jobs of others are not seen.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmError, LrmRejectedError
from koala_adapter.host.privatedirectory import make_directory
from koala_adapter.model import LrmJobState, Node, NodeState, Queue
from koala_adapter.plugin import Capabilities, CheckResult, Lrm, PluginDefinition, RenderedSubmission
from koala_adapter.plugin.commands import login_name
from koala_drmaa.classify import error_of
from koala_drmaa.client import DrmaaClient
from koala_drmaa.environment import HelperLaunch
from koala_drmaa.protocol import ControlAction, FailureKind
from koala_drmaa.scripts import ScriptDelivery, ScriptStore
from koala_drmaa.settings import DrmaaSettings
from koala_drmaa.states import ON_A_NODE, jobs_of_batch, unknown_key
from koala_drmaa.template import apply_directives, job_template, render_template

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from koala_adapter.model import BatchKey, LrmJob, LrmJobId
    from koala_adapter.plugin import ClusterContext, Submission
    from koala_drmaa.protocol import Opened, Refusal, Template

CAPABILITIES = Capabilities(observes_nodes=False, lists_others=False, hold=True, suspend=True)
LEDGER_NAME = "drmaa-ledger.jsonl"
DEFAULT_QUEUE = "default"


class DrmaaLrm(Lrm):
    """One cluster through DRMAA alone."""

    capabilities = CAPABILITIES
    requests_per_poll = 2

    def __init__(self, context: ClusterContext, settings: DrmaaSettings) -> None:
        """Nothing is started yet."""
        self._context = context
        self._settings = settings
        self.array_index_variable = settings.array_index_variable
        self.job_id_variable = settings.job_id_variable
        self._user = context.user or login_name()
        self._scripts = ScriptStore(settings.script_directory or context.state_directory / "scripts")
        self.client = DrmaaClient(
            context,
            HelperLaunch(library=settings.library, variables=settings.environment),
            contact=settings.contact,
            ledger=context.state_directory / LEDGER_NAME,
            request_timeout=settings.request_timeout,
        )

    async def start(self) -> None:
        """Start the helper; an LRM that is out of reach now is tried again with the first request."""
        try:
            await self.client.open()
        except LrmError:
            return

    async def close(self) -> None:
        """End the helper."""
        await self.client.close()

    async def version(self) -> str:
        """Return what the library says about itself."""
        return _version(await self.client.open())

    # -- reading -------------------------------------------------------------------------------------------------

    async def nodes(self) -> tuple[Node, ...]:
        """Return one stand-in for all nodes; its processors in use are those of our own jobs."""
        running = sum(job.state in ON_A_NODE for job in await self._all_jobs())
        node = Node(
            name=self._context.cluster,
            state=NodeState.UP,
            processors=self._settings.processors,
            processors_used=running,
            queues=(self._queue,),
        )
        return (node,)

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Return our own jobs: those that the ledger knows."""
        jobs = await self._all_jobs()
        return tuple(job for job in jobs if job.name.startswith(name_prefix))

    async def queues(self) -> tuple[Queue, ...]:
        """Return the one queue that the site file names, once the library has answered."""
        await self._all_jobs()
        return (Queue(name=self._queue, up=True, processors=self._settings.processors, default=True),)

    @property
    def _queue(self) -> str:
        return self._settings.queue or DEFAULT_QUEUE

    async def _all_jobs(self) -> tuple[LrmJob, ...]:
        batches = await self.client.batches("")
        jobs = [
            job
            for batch in batches
            for job in jobs_of_batch(batch, user=self._user, node=self._context.cluster, queue=self._queue)
        ]
        live = {job.name for job in jobs if job.state is not LrmJobState.ENDED}
        self._scripts.sweep(live, time.monotonic())
        return tuple(jobs)

    # -- submission ----------------------------------------------------------------------------------------------

    def render(self, submission: Submission) -> RenderedSubmission:
        """Return call and attributes of the DRMAA request."""
        return RenderedSubmission(
            command=render_template(self._template(submission), submission.count),
            script=submission.script,
            note="no command: a call of the DRMAA library",
        )

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Submit one bulk."""
        template = self._template(submission)
        return await submit_script(self.client, self._scripts, submission, template, self._settings.script_delivery)

    def forget(self, key: BatchKey) -> None:
        """Delete the script: nobody will read it any more."""
        self._scripts.remove(key)

    def _template(self, submission: Submission) -> Template:
        return job_template(
            submission,
            script=self._scripts.path(submission.key),
            delivery=self._settings.script_delivery,
            native=apply_directives(native_options(self._settings, submission), self._context.directives),
        )

    # -- control -------------------------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        """Terminate jobs. A submission of unknown outcome cannot be: it is forgotten, and its leases end it."""
        forgotten = sorted({key for id_ in ids if (key := unknown_key(id_)) is not None})
        if forgotten:
            await self.client.abandon(forgotten)
        known = [id_ for id_ in ids if unknown_key(id_) is None]
        raise_for(await self.client.control(ControlAction.TERMINATE, known, urgent=True), gone_is_fine=True)

    async def hold(self, ids: Sequence[LrmJobId]) -> None:
        """Hold queued jobs."""
        raise_for(await self.client.control(ControlAction.HOLD, ids))

    async def release(self, ids: Sequence[LrmJobId]) -> None:
        """Release held jobs."""
        raise_for(await self.client.control(ControlAction.RELEASE, ids))

    async def suspend(self, ids: Sequence[LrmJobId]) -> None:
        """Suspend running jobs."""
        raise_for(await self.client.control(ControlAction.SUSPEND, ids))

    async def resume(self, ids: Sequence[LrmJobId]) -> None:
        """Resume suspended jobs."""
        raise_for(await self.client.control(ControlAction.RESUME, ids))

    # -- check ---------------------------------------------------------------------------------------------------

    async def check(self) -> tuple[CheckResult, ...]:
        """Load the library, ask the LRM, look at the directory of scripts."""
        return (
            await check_library(self.client, self._settings.library),
            check_scripts(self._scripts.directory, self._settings.script_delivery),
        )


def _version(opened: Opened) -> str:
    return " ".join(f"{opened.system} (DRMAA {opened.version})".split())


def native_options(settings: DrmaaSettings, submission: Submission) -> tuple[str, ...]:
    """Return native options as the settings spell them.

    Raises LrmRejectedError for a queue that cannot be expressed.
    """
    values = {
        "walltime": str(submission.walltime),
        "walltime_minutes": str(-(-submission.walltime // 60)),
        "queue": submission.queue or settings.queue or "",
        "memory_mib": str(submission.memory_mib or ""),
    }
    options = [settings.native_specification, settings.walltime_specification.format_map(values)]
    if values["queue"]:
        if not settings.queue_specification:
            message = f"queue {values['queue']!r} cannot be asked for: no queue_specification"
            raise LrmRejectedError(message, hint="set queue_specification in the cluster's settings")
        options.append(settings.queue_specification.format_map(values))
    if submission.memory_mib is not None:
        options.append(settings.memory_specification.format_map(values))
    return tuple(option for option in options if option)


async def submit_script(
    client: DrmaaClient, scripts: ScriptStore, submission: Submission, template: Template, delivery: ScriptDelivery
) -> tuple[LrmJobId, ...]:
    """Write the script, submit the bulk, and delete the script when nobody will read it any more."""
    scripts.write(submission.key, submission.script)
    try:
        ids = await client.submit(template, submission.count)
    except LrmRejectedError:
        scripts.remove(submission.key)
        raise
    if delivery is ScriptDelivery.COPIED:
        scripts.remove(submission.key)
    return ids


def raise_for(refusals: Sequence[Refusal], *, gone_is_fine: bool = False) -> None:
    """Raise the error of the first refusal that matters, with the ids of all."""
    grave = [refusal for refusal in refusals if not (gone_is_fine and refusal.kind is FailureKind.NOT_FOUND)]
    if grave:
        ids = ", ".join(refusal.id for refusal in grave)
        raise error_of(grave[0].kind, f"{ids}: {grave[0].message}")


async def check_library(client: DrmaaClient, library: Path | None) -> CheckResult:
    """Report whether the helper can load the library and reach the LRM."""
    subject = f"DRMAA library {library or 'libdrmaa.so'}"
    try:
        opened = await client.open()
        await client.reach()
    except LrmError as error:
        remedy = error.hint or "install the batch system's DRMAA library and name it in the settings"
        return CheckResult(subject=subject, ok=False, found=error.message, remedy=remedy)
    return CheckResult(subject=subject, ok=True, found=f"{_version(opened)}, loaded with {client.launch.loading}")


def check_scripts(directory: Path, delivery: ScriptDelivery) -> CheckResult:
    """Report where scripts go and who can read them."""
    subject = "placeholder scripts"
    if delivery is ScriptDelivery.COPIED:
        return CheckResult(
            subject=subject,
            ok=True,
            found="copied by the batch system: other users of a node may read them while the job runs; "
            "script_delivery = 'private' avoids that",
        )
    try:
        make_directory(directory)
        mode = directory.stat().st_mode & 0o077
    except OSError as error:
        found, remedy = f"{directory}: {error.strerror}", "set script_directory to a directory of yours"
        return CheckResult(subject=subject, ok=False, found=found, remedy=remedy)
    if mode:
        return CheckResult(
            subject=subject, ok=False, found=f"{directory} is open to others", remedy=f"chmod 700 {directory}"
        )
    return CheckResult(subject=subject, ok=True, found=f"private in {directory}, which the nodes must see")


PLUGIN = PluginDefinition(
    name="drmaa",
    summary="Any batch system with a DRMAA 1.0 library; sees only our own jobs.",
    settings=DrmaaSettings,
    capabilities=CAPABILITIES,
    factory=DrmaaLrm,
)

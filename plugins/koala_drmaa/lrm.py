# SPDX-License-Identifier: Apache-2.0
"""An LRM of which nothing is used but DRMAA 1.0: submission, control and status of our own jobs.

What DRMAA cannot tell is not guessed: nodes are one stand-in with the number of processors that the site file gives,
of which only our own jobs count as used; jobs of others are not seen.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmUnsupportedError
from koala_adapter.model import LrmJobState, Node, NodeState, Queue
from koala_adapter.plugin import Capabilities, CheckResult, Lrm, PluginDefinition
from koala_adapter.plugin.commands import login_name
from koala_drmaa.client import DrmaaClient
from koala_drmaa.environment import HelperLaunch
from koala_drmaa.libraries import INDEX_VARIABLE
from koala_drmaa.native import index_variable, is_bulk, job_id_variable, native_options
from koala_drmaa.protocol import ControlAction
from koala_drmaa.scripts import ScriptStore
from koala_drmaa.settings import DrmaaSettings
from koala_drmaa.states import ON_A_NODE, jobs_of_batch, unknown_key
from koala_drmaa.template import apply_directives
from koala_drmaa.transport import DrmaaTransport, raise_for, version_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.model import BatchKey, LrmJob, LrmJobId
    from koala_adapter.plugin import ClusterContext, RenderedSubmission, Submission

CAPABILITIES = Capabilities(observes_nodes=False, lists_queues=False, lists_others=False, hold=True, suspend=True)
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
        self._user = context.user or login_name()
        self.client = DrmaaClient(
            context,
            HelperLaunch(library=settings.library, variables=settings.environment),
            contact=settings.contact,
            ledger=context.state_directory / LEDGER_NAME,
            request_timeout=settings.request_timeout,
        )
        scripts = ScriptStore(settings.script_directory or context.state_directory / "scripts")
        self._transport = DrmaaTransport(self.client, scripts, delivery=settings.script_delivery)
        self._adopt_library()

    def _adopt_library(self) -> None:
        """Say what the library can do; which it is is known for certain when it has been loaded."""
        library = self.client.library
        self.array_index_variable = index_variable(self._settings, library)
        self.job_id_variable = job_id_variable(self._settings, library)
        self.capabilities = replace(CAPABILITIES, hold=library.hold, suspend=library.suspend)

    async def start(self) -> None:
        """Start the helper; an LRM that is out of reach now is tried again with the first request."""
        await self._transport.start()
        self._adopt_library()

    async def close(self) -> None:
        """End the helper."""
        await self._transport.close()

    async def version(self) -> str:
        """Return what the library says about itself."""
        opened = await self.client.open()
        self._adopt_library()
        return version_of(opened)

    # -- reading -------------------------------------------------------------------------------------------------

    async def nodes(self) -> tuple[Node, ...]:
        """Return one stand-in for all nodes; its processors in use are those of our own jobs."""
        running = sum(job.state in ON_A_NODE for job in await self._all_jobs())
        node = Node(
            name=self._context.cluster,
            state=NodeState.UP,
            processors=self._settings.processors,
            processors_used=running,
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
        self._adopt_library()
        jobs = [
            job
            for batch in batches
            for job in jobs_of_batch(batch, user=self._user, node=self._context.cluster, queue=self._queue)
        ]
        live = {job.name for job in jobs if job.state is not LrmJobState.ENDED}
        self._transport.sweep(live, time.monotonic())
        return tuple(jobs)

    # -- submission ----------------------------------------------------------------------------------------------

    def render(self, submission: Submission) -> RenderedSubmission:
        """Return calls and attributes of the DRMAA requests."""
        return self._transport.render(submission, self._native(submission), index_variable=self._own_index())

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Submit one bulk, or one job for each placeholder where the library cannot be trusted with a bulk."""
        await self.client.open()
        self._adopt_library()
        return await self._transport.submit(submission, self._native(submission), index_variable=self._own_index())

    def _own_index(self) -> str | None:
        return None if is_bulk(self._settings, self.client.library) else self.array_index_variable

    def forget(self, key: BatchKey) -> None:
        """Delete the script: nobody will read it any more."""
        self._transport.forget(key)

    def _native(self, submission: Submission) -> tuple[str, ...]:
        options = native_options(self._settings, submission, self.client.library)
        return apply_directives(options, self._context.directives)

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
        self._need_suspend("suspend", ids)
        raise_for(await self.client.control(ControlAction.SUSPEND, ids))

    async def resume(self, ids: Sequence[LrmJobId]) -> None:
        """Resume suspended jobs."""
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
        library, single = self.client.library, not is_bulk(self._settings, self.client.library)
        way = f"one job for each, with {INDEX_VARIABLE}" if single else f"a bulk, with {self.array_index_variable}"
        missing = "" if library.suspend else "; jobs cannot be suspended"
        found = f"{library.name} ({library.system}): several placeholders go as {way}{missing}"
        wrong = not single and not library.bulk
        remedy = f"leave submission = 'bulk' out: {library.confused}" if wrong else ""
        return CheckResult(subject="abilities", ok=not wrong, found=found, remedy=remedy)


PLUGIN = PluginDefinition(
    name="drmaa",
    summary="Any batch system with a DRMAA 1.0 library; sees only our own jobs.",
    settings=DrmaaSettings,
    capabilities=CAPABILITIES,
    factory=DrmaaLrm,
)

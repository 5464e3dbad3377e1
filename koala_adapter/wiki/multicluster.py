# SPDX-License-Identifier: Apache-2.0
"""The clusters of a site as one batch system for a WIKI scheduler: their nodes, and the jobs of koala's queue.

Koala itself decides where its jobs go, because it must win processors from batch systems that start their own jobs;
so a scheduler can see and cancel them, and everything else is refused with the reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import structlog

from koala_adapter.errors import (
    JobNotFoundError,
    KoalaError,
    LrmError,
    LrmNotFoundError,
    LrmUnavailableError,
    LrmUnsupportedError,
)
from koala_adapter.lrm import Capabilities, Lrm
from koala_adapter.model import ClusterName, EndReason, LrmJob, LrmJobId, LrmJobState, Node, Queue
from koala_adapter.outcome import JobState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.api.client import Client
    from koala_adapter.lrm import PinnedStart, RenderedSubmission, Submission
    from koala_adapter.report.values import JobReport


MOST_JOBS = 10_000
"""Latest jobs of the queue that are listed."""
PREFIX = "koala-"

STATES: Mapping[JobState, LrmJobState] = {
    JobState.WAITING: LrmJobState.QUEUED,
    JobState.CLAIMING: LrmJobState.QUEUED,
    JobState.LAUNCHING: LrmJobState.STARTING,
    JobState.RUNNING: LrmJobState.RUNNING,
}
"""What is not listed is over. A job that claims processors has none yet that a scheduler could count."""

log = structlog.get_logger()


class Multicluster(Lrm):
    """The clusters of a site as one batch system whose queue is that of koala's service."""

    capabilities = Capabilities()

    def __init__(self, clusters: Sequence[tuple[ClusterName, Lrm]], client: Client) -> None:
        """The LRMs are started by their owner."""
        self._clusters = clusters
        self._client = client
        self._nodes: dict[ClusterName, tuple[Node, ...]] = {}
        """Of each cluster, as it told them last."""
        self.partitions: dict[str, str] = {}
        """The cluster of each node, by the name of the node here."""

    async def version(self) -> str:
        """Return "koala", as the queue has no version of its own."""
        return "koala"

    async def queues(self) -> tuple[Queue, ...]:
        """Return nothing: the clusters' own queues are not served."""
        return ()

    async def nodes(self) -> tuple[Node, ...]:
        """Return the nodes read by the last `jobs`; for clusters that did not answer, those read before."""
        names = self._unique_names()
        self.partitions.clear()
        self.partitions.update({name: cluster for (cluster, _), name in names.items()})
        return tuple(
            replace(node, name=names[cluster, node.name]) for cluster, listed in self._nodes.items() for node in listed
        )

    async def jobs(self, *, name_prefix: str = "") -> tuple[LrmJob, ...]:
        """Read all clusters side by side, then the queue. Raises LrmUnavailableError when no cluster answers."""
        places: dict[tuple[ClusterName, LrmJobId], str] = {}
        answered: list[ClusterName] = []

        async def one(cluster: ClusterName, lrm: Lrm) -> None:
            try:
                self._nodes[cluster] = await lrm.nodes()
                answered.append(cluster)
                for job in await lrm.jobs(name_prefix=PREFIX):
                    if job.nodes:
                        places[cluster, job.id] = job.nodes[0]
            except LrmError as error:
                log.warning("cluster does not answer", cluster=cluster, error=str(error))

        async with anyio.create_task_group() as tasks:
            for cluster, lrm in self._clusters:
                tasks.start_soon(one, cluster, lrm)
        if not answered:
            raise LrmUnavailableError("no cluster answers")
        names = self._unique_names()
        where = {key: names.get((key[0], node), node) for key, node in places.items()}
        jobs = (_job(report, where) for report in await self._reports())
        return tuple(job for job in jobs if job.name.startswith(name_prefix))

    def _unique_names(self) -> dict[tuple[ClusterName, str], str]:
        """Return a name for each node: its own, or CLUSTER.NODE where several clusters have one of that name."""
        count = Counter(node.name for listed in self._nodes.values() for node in listed)
        return {
            (cluster, node.name): node.name if count[node.name] == 1 else f"{cluster}.{node.name}"
            for cluster, listed in self._nodes.items()
            for node in listed
        }

    async def _reports(self) -> list[JobReport]:
        try:
            return await anyio.to_thread.run_sync(self._client.jobs, MOST_JOBS)
        except KoalaError as error:
            raise LrmUnavailableError(error.message, hint=error.hint) from error

    def render(self, submission: Submission) -> RenderedSubmission:
        """Refuse: jobs come by `koala run`."""
        self._unsupported("render", [submission.key])

    async def submit(self, submission: Submission) -> tuple[LrmJobId, ...]:
        """Refuse: jobs come by `koala run`."""
        self._unsupported("submit", [submission.key])

    async def start_on(self, start: PinnedStart) -> None:
        """Refuse: koala places its jobs itself."""
        message = f"koala cannot let others place its jobs: it does so itself, in its own order (job {start.job})"
        raise LrmUnsupportedError(message)

    async def cancel(self, ids: Sequence[LrmJobId]) -> None:
        """Cancel jobs of the queue."""
        for job in ids:
            try:
                await anyio.to_thread.run_sync(self._client.cancel, str(job))
            except JobNotFoundError as error:
                raise LrmNotFoundError(error.message) from error
            except KoalaError as error:
                raise LrmUnavailableError(error.message, hint=error.hint) from error


def _job(report: JobReport, where: Mapping[tuple[ClusterName, LrmJobId], str]) -> LrmJob:
    """Return a job of koala's queue in the form of a batch system's job."""
    state = STATES.get(report.state, LrmJobState.ENDED)
    counts: dict[str, int] = {}
    for component in report.components:
        for id_ in component.lrm_ids if component.cluster else ():
            node = where.get((ClusterName(component.cluster or ""), LrmJobId(id_)))
            if node is not None:
                counts[node] = counts.get(node, 0) + 1
    active = state in {LrmJobState.STARTING, LrmJobState.RUNNING}
    outcome = report.outcome
    return LrmJob(
        id=LrmJobId(report.id),
        name=report.name,
        state=state,
        user=report.user,
        processors=max(1, sum(component.processors for component in report.components)),
        nodes=tuple(counts) if active else (),
        reason=report.explanation,
        end=_end(report) if state is LrmJobState.ENDED else None,
        exit_code=outcome.exit_code if outcome and state is LrmJobState.ENDED else None,
        submitted_at=report.submitted_at,
        started_at=report.launched_at,
        ends_at=report.finished_at if state is LrmJobState.ENDED else None,
        walltime=report.walltime,
        layout=tuple(counts.items()) if active else (),
    )


def _end(report: JobReport) -> EndReason:
    if report.state is JobState.CANCELLED:
        return EndReason.CANCELLED
    outcome = report.outcome
    return (outcome.reason if outcome else None) or EndReason.EXITED

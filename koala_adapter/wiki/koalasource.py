# SPDX-License-Identifier: Apache-2.0
"""The whole multicluster as one source of a WIKI server: the nodes of all clusters, and the jobs of koala's queue.

Koala itself decides where its jobs go, because it must win processors from batch systems that start their own jobs; so
a scheduler can see and cancel them, and everything else is refused with the reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import structlog

from koala_adapter.errors import JobNotFoundError, KoalaError, LrmError, LrmNotFoundError, LrmUnavailableError
from koala_adapter.model import ClusterName, EndReason, LrmJob, LrmJobId, LrmJobState, Node
from koala_adapter.plugin import Capabilities
from koala_adapter.scheduler.outcome import JobState
from koala_adapter.wiki.sources import Source, Survey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.api.client import Client
    from koala_adapter.api.reports import JobReport
    from koala_adapter.plugin import Lrm

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


class KoalaSource(Source):
    """The clusters of a site, and the service that owns its queue."""

    name = "koala"
    capabilities = Capabilities()
    partitioned = True

    def __init__(self, clusters: Sequence[tuple[ClusterName, Lrm]], client: Client) -> None:
        """The LRMs are started by their owner."""
        self._clusters = clusters
        self._client = client

    async def read(self) -> Survey:
        """Read all clusters and the queue side by side. Raises LrmUnavailableError when no cluster answers."""
        nodes: dict[ClusterName, tuple[Node, ...]] = {}
        places: dict[tuple[ClusterName, LrmJobId], str] = {}

        async def one(cluster: ClusterName, lrm: Lrm) -> None:
            try:
                nodes[cluster] = await lrm.nodes()
                for job in await lrm.jobs(name_prefix=PREFIX):
                    if job.nodes:
                        places[cluster, job.id] = job.nodes[0]
            except LrmError as error:
                log.warning("cluster does not answer", cluster=cluster, error=str(error))

        async with anyio.create_task_group() as tasks:
            for cluster, lrm in self._clusters:
                tasks.start_soon(one, cluster, lrm)
        if not nodes:
            raise LrmUnavailableError("no cluster answers")
        names = _unique_names(nodes)
        shown = {
            cluster: tuple(replace(node, name=names[cluster, node.name]) for node in listed)
            for cluster, listed in nodes.items()
        }
        where = {key: names.get((key[0], node), node) for key, node in places.items()}
        jobs = tuple(_job(report, where) for report in await self._reports())
        return Survey(nodes=shown, jobs=jobs)

    async def _reports(self) -> list[JobReport]:
        try:
            return await anyio.to_thread.run_sync(self._client.jobs, MOST_JOBS)
        except KoalaError as error:
            raise LrmUnavailableError(error.message, hint=error.hint) from error

    async def start_on(self, job: LrmJobId, nodes: Sequence[str]) -> None:
        """Refuse: koala places its jobs itself."""
        self._cannot("let others place its jobs: it does so itself, in its own order", job, nodes)

    async def cancel(self, job: LrmJobId) -> None:
        """Cancel a job of the queue."""
        try:
            await anyio.to_thread.run_sync(self._client.cancel, str(job))
        except JobNotFoundError as error:
            raise LrmNotFoundError(error.message) from error
        except KoalaError as error:
            raise LrmUnavailableError(error.message, hint=error.hint) from error


def _unique_names(nodes: Mapping[ClusterName, Sequence[Node]]) -> dict[tuple[ClusterName, str], str]:
    """Return a name for each node: its own, or CLUSTER.NODE where several clusters have one of that name."""
    count = Counter(node.name for listed in nodes.values() for node in listed)
    return {
        (cluster, node.name): node.name if count[node.name] == 1 else f"{cluster}.{node.name}"
        for cluster, listed in nodes.items()
        for node in listed
    }


def _job(report: JobReport, where: Mapping[tuple[ClusterName, LrmJobId], str]) -> LrmJob:
    """Return a job of the queue as an LRM would show it."""
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

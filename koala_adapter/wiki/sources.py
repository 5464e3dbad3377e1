# SPDX-License-Identifier: Apache-2.0
"""Sources of a WIKI resource manager's nodes and jobs: one LRM, or the whole of koala.

A source also carries out what a scheduler asks for. Job ids and node names here are the LRM's own; the names on the
wire are made in :mod:`koala_adapter.wiki.reporting`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

import anyio
import anyio.to_thread
import structlog

from koala_adapter.errors import (
    JobNotFoundError,
    KoalaError,
    LrmError,
    LrmNotFoundError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnsupportedError,
)
from koala_adapter.lrm import Capabilities
from koala_adapter.lrm.listing import read_listing
from koala_adapter.model import ClusterName, EndReason, LrmJob, LrmJobId, LrmJobState, Node
from koala_adapter.outcome import JobState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from koala_adapter.api.client import Client
    from koala_adapter.lrm import Lrm
    from koala_adapter.report.values import JobReport


# -- What a source is, and one LRM as a source ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A node: which cluster, and what it is called there."""

    cluster: ClusterName
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceListing:
    """The jobs of a source, and the nodes of each of its clusters that answered; those of others are as they were."""

    nodes: Mapping[ClusterName, tuple[Node, ...]]
    jobs: tuple[LrmJob, ...]

    @property
    def places(self) -> Iterator[tuple[Place, Node]]:
        """Pairs of place and node."""
        for cluster, nodes in self.nodes.items():
            for node in nodes:
                yield Place(cluster=cluster, node=node.name), node


class Source(ABC):
    """Nodes and jobs, and what can be done to them. Every method raises LrmError when it cannot."""

    name: str
    capabilities: Capabilities
    partitioned: bool = False
    """Nodes carry their cluster as PARTITION."""

    @abstractmethod
    async def read(self) -> SourceListing:
        """Return all nodes and jobs of all users."""

    @abstractmethod
    async def start_on(self, job: LrmJobId, nodes: Sequence[str]) -> None:
        """Have a held job start on these processors (one entry for each, equal ones adjacent)."""

    @abstractmethod
    async def cancel(self, job: LrmJobId) -> None:
        """End a job, whatever its state."""

    async def undo_start(self, job: LrmJobId) -> None:
        """Hold a job that did not start, or waits again, and untie it from its nodes."""
        self._cannot("hold jobs", job)

    async def confirm_starts(self, jobs: Sequence[LrmJobId]) -> Mapping[LrmJobId, LrmError]:  # noqa: ARG002
        """Take note that started jobs run: they come back in hold should they be queued again; return errors."""
        return {}

    async def suspend(self, ids: Sequence[LrmJobId]) -> None:
        """Stop the processes of running jobs for now."""
        self._cannot("suspend jobs", ids[0])

    async def resume(self, ids: Sequence[LrmJobId]) -> None:
        """Let suspended jobs go on."""
        self._cannot("resume jobs", ids[0])

    async def requeue(self, ids: Sequence[LrmJobId]) -> None:
        """Stop running jobs and queue them again, held."""
        self._cannot("queue a running job again", ids[0])

    async def signal(self, job: LrmJobId, number: int) -> None:
        """Send a signal to a running job."""
        self._cannot("signal jobs", job, number)

    async def set_walltime(self, job: LrmJobId, seconds: int) -> None:
        """Change the walltime of a job."""
        self._cannot("change the walltime of a job", job, seconds)

    async def notify(self, job: LrmJobId, text: str) -> None:
        """Tell the user of a running job something."""
        self._cannot("pass a message to a job", job, text)

    def _cannot(self, what: str, job: LrmJobId, *_details: object) -> NoReturn:
        raise LrmUnsupportedError(f"{self.name} cannot {what} (job {job})")


class LrmSource(Source):
    """One cluster's LRM."""

    def __init__(self, cluster: ClusterName, lrm: Lrm, *, queue: str | None = None) -> None:
        """``lrm`` is started by its owner. ``queue``: nodes that do not serve it, and its jobs alone, are shown."""
        self.name = str(cluster)
        self._cluster = cluster
        self._lrm = lrm
        self._queue = queue

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """What the LRM can do, which may be known only after its start."""
        return self._lrm.capabilities

    async def read(self) -> SourceListing:
        """Read jobs and nodes."""
        listing = await read_listing(self._lrm, cluster=self.name, read_at=anyio.current_time())
        queue = self._queue
        shown = tuple(node for node in listing.nodes if queue is None or queue in node.queues)
        return SourceListing(nodes={self._cluster: shown}, jobs=tuple(listing.jobs))

    async def start_on(self, job: LrmJobId, nodes: Sequence[str]) -> None:
        """Have a held job start on these processors."""
        if not self.capabilities.pin:
            self._cannot("start a job on chosen nodes", job)
        await self._lrm.start_on(job, nodes)

    async def cancel(self, job: LrmJobId) -> None:
        """End a job."""
        await self._lrm.cancel([job])

    async def undo_start(self, job: LrmJobId) -> None:
        """Hold a job that did not start, or waits again, and untie it from its nodes."""
        await self._lrm.undo_start(job)

    async def confirm_starts(self, jobs: Sequence[LrmJobId]) -> Mapping[LrmJobId, LrmError]:
        """Take note that started jobs run: they come back in hold should they be queued again; return errors."""
        return await self._lrm.confirm_starts(jobs)

    async def suspend(self, ids: Sequence[LrmJobId]) -> None:
        """Stop the processes of running jobs."""
        await self._lrm.suspend(ids)

    async def resume(self, ids: Sequence[LrmJobId]) -> None:
        """Let suspended jobs go on."""
        await self._lrm.resume(ids)

    async def requeue(self, ids: Sequence[LrmJobId]) -> None:
        """Stop running jobs; held before, they are held when they are queued again, and not started by their LRM."""
        if not self.capabilities.requeue:
            self._cannot("queue a running job again", ids[0])
        if self.capabilities.hold:
            # An LRM that cannot hold a running job starts it again by itself.
            with suppress(LrmRejectedError):
                await self._lrm.hold(ids)
        await self._lrm.requeue(ids)

    async def signal(self, job: LrmJobId, number: int) -> None:
        """Send a signal to a running job."""
        await self._lrm.signal([job], number)

    async def set_walltime(self, job: LrmJobId, seconds: int) -> None:
        """Change the walltime of a job."""
        await self._lrm.modify(job, walltime=seconds)

    async def notify(self, job: LrmJobId, text: str) -> None:
        """Tell the user of a running job something."""
        await self._lrm.notify(job, text)


# -- The whole of koala as a source --------------------------------------------------------------------------
# The nodes of all clusters, and the jobs of koala's queue.
#
# Koala itself decides where its jobs go, because it must win processors from batch systems that start their own jobs;
# so a scheduler can see and cancel them, and everything else is refused with the reason.

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

    async def read(self) -> SourceListing:
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
        return SourceListing(nodes=shown, jobs=jobs)

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

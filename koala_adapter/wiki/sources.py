# SPDX-License-Identifier: Apache-2.0
"""Where a WIKI resource manager gets its nodes and jobs from, and whom it asks to act: one LRM, or the whole of koala.

Job ids and node names here are the LRM's own; the names on the wire are somebody else's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import anyio

from koala_adapter.batchsystem.listing import local_jobs, read_listing
from koala_adapter.errors import LrmRejectedError, LrmUnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from koala_adapter.errors import LrmError
    from koala_adapter.model import ClusterName, LrmJob, LrmJobId, Node
    from koala_adapter.plugin import Capabilities, Lrm


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
        """Each node, and where it is."""
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
        """Hear that started jobs run, which are to come back in hold, should they be queued again; return errors."""
        return {}

    async def suspend(self, job: LrmJobId) -> None:
        """Stop the processes of a running job for now."""
        self._cannot("suspend jobs", job)

    async def resume(self, job: LrmJobId) -> None:
        """Let a suspended job go on."""
        self._cannot("resume jobs", job)

    async def requeue(self, job: LrmJobId) -> None:
        """Stop a running job and queue it again, held."""
        self._cannot("queue a running job again", job)

    async def signal(self, job: LrmJobId, number: int) -> None:
        """Send a signal to a running job."""
        self._cannot("signal jobs", job, number)

    async def set_walltime(self, job: LrmJobId, seconds: int) -> None:
        """Change the walltime of a job."""
        self._cannot("change the walltime of a job", job, seconds)

    async def notify(self, job: LrmJobId, text: str) -> None:
        """Tell the user of a running job something."""
        self._cannot("pass a message to a job", job, text)

    async def add_tasks(self, job: LrmJobId, places: Sequence[Place]) -> None:
        """Let a running malleable job grow by these processors."""
        self._cannot("change the size of a running job", job, places)

    async def release_tasks(self, job: LrmJobId, places: Sequence[Place]) -> None:
        """Let a running malleable job shrink by these processors."""
        self._cannot("change the size of a running job", job, places)

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
        return SourceListing(nodes={self._cluster: shown}, jobs=local_jobs(listing))

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
        """Hear that started jobs run, which are to come back in hold, should they be queued again; return errors."""
        return await self._lrm.confirm_starts(jobs)

    async def suspend(self, job: LrmJobId) -> None:
        """Stop the processes of a running job."""
        await self._lrm.suspend([job])

    async def resume(self, job: LrmJobId) -> None:
        """Let a suspended job go on."""
        await self._lrm.resume([job])

    async def requeue(self, job: LrmJobId) -> None:
        """Stop a running job; held before, it is held when it is queued again, and not started by its LRM."""
        if not self.capabilities.requeue:
            self._cannot("queue a running job again", job)
        if self.capabilities.hold:
            # An LRM that cannot hold a running job starts it again by itself.
            with suppress(LrmRejectedError):
                await self._lrm.hold([job])
        await self._lrm.requeue([job])

    async def signal(self, job: LrmJobId, number: int) -> None:
        """Send a signal to a running job."""
        await self._lrm.signal([job], number)

    async def set_walltime(self, job: LrmJobId, seconds: int) -> None:
        """Change the walltime of a job."""
        await self._lrm.modify(job, walltime=seconds)

    async def notify(self, job: LrmJobId, text: str) -> None:
        """Tell the user of a running job something."""
        await self._lrm.notify(job, text)

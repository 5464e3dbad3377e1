# SPDX-License-Identifier: Apache-2.0
"""On which nodes a job could start if nothing else ran, and why not; kept until nodes or queues change. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.model import NodeState
from koala_adapter.ordering.allocation import Allocation, allocate, rooms_of
from koala_adapter.ordering.listedjobs import shape
from koala_adapter.ordering.pools import Pools, pools_of, serves

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.batchsystem.listing import Listing
    from koala_adapter.model import LrmJob, Queue
    from koala_adapter.ordering.allocation import Room


class Suitability:
    """What nodes and queues allow, whatever runs."""

    def __init__(self) -> None:
        """Nothing has been listed yet."""
        self.pools = Pools(nodes={}, queues={}, default=None)
        self._queues: Mapping[str, Queue] = {}
        self._rooms: tuple[Room, ...] = ()
        self._seen: object = None
        self._problems: dict[object, str] = {}
        """By the shape of a job."""
        self._served: dict[str, tuple[int | None, str]] = {}

    def follow(self, listing: Listing) -> bool:
        """Take the nodes and queues of a listing; tell whether all is as it was."""
        seen = [
            (node.name, node.state is NodeState.UP, node.processors, node.memory_mib, node.features, node.queues)
            for node in listing.nodes
        ]
        if (seen, listing.queues) == self._seen:
            return True
        self._seen = (seen, listing.queues)
        self._queues = listing.queues
        self._problems.clear()
        self._served.clear()
        unused = (replace(node, processors_used=0, memory_used_mib=0) for node in listing.nodes)
        self._rooms = tuple(rooms_of(unused, {}, {}).values())
        self.pools = pools_of(listing.nodes, listing.queues)
        return False

    def pool_for(self, job: LrmJob) -> tuple[int | None, str]:
        """Return the pool in which a job is to start, and why it never could there as things are; empty if it could."""
        if job.queue not in self._served:
            self._served[job.queue] = self._pool_of(job.queue)
        pool, problem = self._served[job.queue]
        return pool, problem or self._problem(job)

    def _problem(self, job: LrmJob) -> str:
        wanted = shape(job)
        if wanted not in self._problems:
            found = allocate(job, self._rooms)
            problem = "" if isinstance(found, Allocation) else found.reason
            self._problems[wanted] = problem.removesuffix(" now").removesuffix(" for it")
        problem = self._problems[wanted]
        return f"even with nothing else running on the nodes that are up: {problem}" if problem else ""

    def _pool_of(self, wanted: str) -> tuple[int | None, str]:
        """Return the pool of a queue, or list of queues, and why its jobs cannot start there now."""
        pool = self.pools.of_queue(wanted)
        if pool is None:
            return None, f"no node serves queue {wanted}" if wanted else "it names no queue"
        serving = [queue for name, queue in self._queues.items() if serves(wanted, name)]
        if serving and not any(queue.up for queue in serving):
            return pool, f"queue {serving[0].name} is down"
        return pool, ""

# SPDX-License-Identifier: Apache-2.0
"""What brings running applications to other sizes, and settles with them how far, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.service.adaptations import Adaptations
from koala_adapter.service.negotiationkeeper import NegotiationKeeper
from koala_adapter.service.negotiationport import NegotiationPort
from koala_adapter.service.negotiators import Negotiators
from koala_adapter.service.resizing import Resizing
from koala_adapter.service.workersresizing import WorkersResizing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anyio.abc import TaskGroup

    from koala_adapter.model import JobId
    from koala_adapter.scheduler.records import JobRecord
    from koala_adapter.service.negotiationport import Access
    from koala_adapter.service.sizesurroundings import Surroundings


class SizeChangeParts:
    """Workers that come and go, processes that change together, and programs that negotiate for either."""

    def __init__(self, around: Surroundings) -> None:
        """Make the parts, and put them together."""
        self._port = NegotiationPort(around.listen)
        self._adaptations = Adaptations(
            around.applications,
            state=around.state,
            clock=around.clock,
            report=around.report,
            tell=around.tell,
            keeper=NegotiationKeeper(around.store, state=around.state, clock=around.clock),
            negotiators=self._port,
            rules=around.rules,
        )
        self._workers = WorkersResizing(
            around.applications, state=around.state, clock=around.clock, report=around.report, rules=around.rules
        )
        self._negotiators = Negotiators(
            self._port, adaptations=self._adaptations, workers=self._workers, state=around.state
        )
        self.resizing = Resizing(workers=self._negotiators, adaptive=self._adaptations, state=around.state)

    def start(self, tasks: TaskGroup) -> None:
        """Be ready for programs that negotiate; keep the times that applications have for an answer or for leaving."""
        negotiators = self._negotiators
        self._port.open(tasks, heard=negotiators.heard, came=negotiators.came, went=negotiators.went)
        tasks.start_soon(self._workers.run)
        tasks.start_soon(self._adaptations.run)

    def follow(self, touched: Sequence[JobId]) -> None:
        """Have the applications of jobs follow the records."""
        self._adaptations.handled(touched)
        self._workers.handled(touched)
        self._negotiators.handled(touched)

    def warned(self, job_id: JobId) -> str:
        """Return, for people, who has been told that the end of the walltime is near; empty: nobody."""
        return self._adaptations.warned(job_id)

    def complaint(self, job_id: JobId) -> str:
        """Return, for people, what processes of a job did last that they may not do; empty: nothing."""
        return self._adaptations.complaint(job_id)

    async def access(self, record: JobRecord) -> Access:
        """Return how a program gets to negotiate for a job: see Negotiators."""
        return await self._negotiators.access(record)

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
    from collections.abc import Callable, Sequence

    from anyio.abc import TaskGroup

    from koala_adapter.dynaco.sizerules import SizeRules
    from koala_adapter.model import JobId, PlaceholderId
    from koala_adapter.scheduler import events as ev
    from koala_adapter.scheduler.records import JobRecord, State
    from koala_adapter.service.applications import Applications
    from koala_adapter.service.negotiationport import Access
    from koala_adapter.service.negotiationstore import NegotiationStore


class SizeChangeParts:
    """Workers that come and go, processes that change together, and programs that negotiate for either."""

    def __init__(
        self,
        listen: str,
        applications: Applications,
        store: NegotiationStore,
        *,
        state: Callable[[], State],
        clock: Callable[[], float],
        report: Callable[[ev.Event], None],
        tell: Callable[[PlaceholderId, str, bytes], bool],
        rules: SizeRules,
    ) -> None:
        """``listen``: address for programs that negotiate; ``store`` keeps what was negotiated.

        ``report`` takes events in; ``tell`` sends a frame to the process of a task, which it may not reach; ``rules``
        say which sizes a component takes.
        """
        self._port = NegotiationPort(listen)
        self._adaptations = Adaptations(
            applications,
            state=state,
            clock=clock,
            report=report,
            tell=tell,
            keeper=NegotiationKeeper(store, state=state, clock=clock),
            negotiators=self._port,
            rules=rules,
        )
        self._workers = WorkersResizing(applications, state=state, clock=clock, report=report, rules=rules)
        self._negotiators = Negotiators(self._port, adaptations=self._adaptations, workers=self._workers, state=state)
        self.resizing = Resizing(workers=self._negotiators, adaptive=self._adaptations, state=state)

    def start(self, tasks: TaskGroup) -> None:
        """Be ready for programs that negotiate; keep the times that applications have for an answer or for leaving."""
        negotiators = self._negotiators
        self._port.open(tasks, heard=negotiators.heard, came=negotiators.came, went=negotiators.went)
        tasks.start_soon(self._workers.run)
        tasks.start_soon(self._adaptations.run)

    def follow(self, touched: Sequence[JobId]) -> None:
        """Have the applications of jobs follow the records."""
        self._adaptations.handled(touched)
        self._negotiators.handled(touched)

    def complaint(self, job_id: JobId) -> str:
        """Return, for people, what processes of a job did last that they may not do; empty: nothing."""
        return self._adaptations.complaint(job_id)

    async def access(self, record: JobRecord) -> Access:
        """Return how a program gets to negotiate for a job: see Negotiators."""
        return await self._negotiators.access(record)

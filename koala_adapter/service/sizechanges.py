# SPDX-License-Identifier: Apache-2.0
"""The part of a service that brings running applications to other sizes, made with the first job that may change its.

Most services of one short job never have one, and what this takes, negotiations above all, is a tenth of the program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import RunnerName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from anyio.abc import TaskGroup

    from koala_adapter.dynaco.sizerules import SizeRules
    from koala_adapter.model import JobId, PlaceholderId
    from koala_adapter.scheduler import events as ev
    from koala_adapter.scheduler.records import JobRecord, State
    from koala_adapter.service.applications import Applications
    from koala_adapter.service.negotiationport import Access
    from koala_adapter.service.negotiationstore import NegotiationStore
    from koala_adapter.service.resizing import Resizing
    from koala_adapter.service.sizechangeparts import SizeChangeParts


class SizeChanges:
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
        self._listen = listen
        self._applications = applications
        self._store = store
        self._state = state
        self._clock = clock
        self._report = report
        self._tell = tell
        self._rules = rules
        self._tasks: TaskGroup | None = None
        self._made: SizeChangeParts | None = None

    def _parts(self) -> SizeChangeParts:
        if self._made is not None:
            return self._made
        from koala_adapter.service.sizechangeparts import SizeChangeParts

        self._made = SizeChangeParts(
            self._listen,
            self._applications,
            self._store,
            state=self._state,
            clock=self._clock,
            report=self._report,
            tell=self._tell,
            rules=self._rules,
        )
        if self._tasks is not None:
            self._made.start(self._tasks)
        return self._made

    @property
    def resizing(self) -> Resizing:
        """What carries out the scheduler's wishes."""
        return self._parts().resizing

    def start(self, tasks: TaskGroup) -> None:
        """Be ready for jobs and programs, within ``tasks``; at once for the jobs that there are."""
        self._tasks = tasks
        if self._concerns(self._state().jobs):
            self._parts()

    def resume(self) -> None:
        """Go on with what the records say is under way, after a restart."""
        if self._made is not None:
            self._made.resizing.resume()

    def follow(self, touched: Iterable[JobId]) -> None:
        """Have the applications of jobs follow the records."""
        following = list(touched)  # what they report may be handled, and touch others, before they are through
        if self._made is not None or self._concerns(following):
            self._parts().follow(following)

    def _concerns(self, job_ids: Iterable[JobId]) -> bool:
        """Tell whether one of these jobs may change its size."""
        jobs = self._state().jobs
        return any(id_ in jobs and jobs[id_].job.runner is not RunnerName.RANKS for id_ in job_ids)

    def complaint(self, job_id: JobId) -> str:
        """Return, for people, what processes of a job did last that they may not do; empty: nothing."""
        return "" if self._made is None else self._made.complaint(job_id)

    async def access(self, record: JobRecord) -> Access:
        """Return how a program gets to negotiate for a job: see Negotiators."""
        return await self._parts().access(record)

# SPDX-License-Identifier: Apache-2.0
"""Programs that negotiate for jobs by TCP, and all parts that change sizes, put together.

While a program is connected for a job, koala settles offers and requests for processors with it; while none is, the
job changes its size as if there were no such programs. For jobs with workers, which come and go without being asked,
nothing else is needed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.errors import JobRefusedError, NegotiationError
from koala_adapter.host.containment import contained
from koala_adapter.outcome import JobState
from koala_adapter.service.records import NegotiationKeeper
from koala_adapter.service.sizes.adaptive import Adaptations
from koala_adapter.service.sizes.bargaining import NEGOTIATOR, WorkersParty
from koala_adapter.service.sizes.jobs import Resizing
from koala_adapter.service.sizes.port import NegotiationPort
from koala_adapter.service.sizes.workers import WorkersResizing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from anyio.abc import TaskGroup

    from koala_adapter.model import JobId
    from koala_adapter.scheduler import actions as act
    from koala_adapter.scheduler.records import JobRecord, State
    from koala_adapter.service.applications import Applications
    from koala_adapter.service.core import Core
    from koala_adapter.service.sizes.port import Access


# -- Programs that negotiate for jobs ------------------------------------------------------------------------


def check_negotiable(record: JobRecord) -> None:
    """Raise JobRefusedError unless a program can negotiate for a job."""
    job = record.job
    if record.state.final:
        raise JobRefusedError(f"job {job.id} has ended", hint="`koala status` shows the jobs that run")
    able = [one.name for one in job.components if job.changes_size(one.name)]
    if not job.kind.varies or not able:
        hint = 'only jobs of kind = "malleable" or "evolving" negotiate it'
        raise JobRefusedError(f"job {job.id} keeps its size", hint=hint)
    if len(able) > 1:
        raise JobRefusedError(f"job {job.id}: several components can change: {', '.join(able)}", hint="one is allowed")


class Negotiators:
    """Between the port and the negotiation manager; a Resizer of jobs with workers."""

    def __init__(
        self,
        port: NegotiationPort,
        *,
        adaptations: Adaptations,
        workers: WorkersResizing,
        state: Callable[[], State],
    ) -> None:
        """``workers`` serves jobs for which no program negotiates."""
        self._port = port
        self._adaptations = adaptations
        self._negotiations = adaptations.negotiations
        self._workers = workers
        self._state = state
        self._jobs: set[JobId] = set()
        """Jobs for which a program has negotiated."""

    async def access(self, record: JobRecord) -> Access:
        """Return how a program gets to negotiate for a job, once; one that was returned before and not used is void.

        Raises JobRefusedError for a job that nobody can negotiate for; ServiceRunningError when the port cannot be
        opened.
        """
        check_negotiable(record)
        return await self._port.access(record.job.id)

    # ---- what a program does ----------------------------------------------------------------------------------------

    def heard(self, job_id: JobId, data: bytes) -> None:
        """Take in what a program says for a job. Raises NegotiationError when it is none, or the job does not run."""
        found = self._adaptations.party_of(job_id)
        if found is None:
            raise NegotiationError("the job does not run")
        try:
            self._negotiations.heard(*found, NEGOTIATOR, data)
            self._carry_on(job_id)
        finally:
            self._adaptations.look_again(job_id)

    def came(self, job_id: JobId) -> None:
        """Say to a program that has connected what may not have arrived, and what is offered now."""
        self._jobs.add(job_id)
        self._negotiations.in_contact(job_id, NEGOTIATOR)
        self._follow(job_id)

    def went(self, job_id: JobId) -> None:
        """What was not agreed on with a program is lost with its connection."""
        found = self._adaptations.party_of(job_id)
        if found is not None:
            self._negotiations.out_of_contact(*found, NEGOTIATOR)
            self._adaptations.look_again(job_id)

    def handled(self, touched: Iterable[JobId]) -> None:
        """The scheduler has handled an event that touched these jobs: see what it means where programs negotiate."""
        for job_id in touched:
            if job_id in self._jobs:
                with contained("following a negotiation", job=job_id):
                    self._handled(job_id)

    def _handled(self, job_id: JobId) -> None:
        if self._adaptations.party_of(job_id) is not None:
            self._follow(job_id)
        elif job_id not in self._state().jobs or self._state().jobs[job_id].state.final:
            self._jobs.discard(job_id)
            self._adaptations.forget(job_id)
            self._port.close(job_id)

    def _follow(self, job_id: JobId) -> None:
        found = self._adaptations.party_of(job_id)
        if found is not None:
            self._negotiations.follow(*found)
            self._adaptations.look_again(job_id)

    def _carry_on(self, job_id: JobId) -> None:
        """Have workers leave that a program has agreed to give up."""
        record = self._state().jobs.get(job_id)
        if record is not None and record.job.has_workers:
            self._workers.carry_on(record)

    # ---- what the scheduler wants of jobs with workers (Resizer) ----------------------------------------------------

    def offer(self, action: act.OfferProcessors) -> None:
        """See Resizer."""
        if self._port.represents(action.job_id):
            self._follow(action.job_id)
        else:
            self._workers.offer(action)

    def request(self, action: act.RequestProcessors) -> None:
        """See Resizer."""
        if self._port.represents(action.job_id):
            self._follow(action.job_id)
        else:
            self._workers.request(action)

    def take(self, action: act.TakeProcessors) -> None:
        """See Resizer."""
        self._workers.take(action)
        if action.job_id in self._jobs:
            self._follow(action.job_id)

    def withdraw(self, action: act.WithdrawOffer) -> None:
        """See Resizer."""
        self._negotiations.withdraw(action.job_id, action.number, action.reason)
        self._adaptations.look_again(action.job_id)

    def grant(self, action: act.GrantProcessors) -> None:
        """See Resizer."""
        self._negotiations.grant(action)
        self._carry_on(action.job_id)
        self._follow(action.job_id)
        self._adaptations.look_again(action.job_id)

    def resume(self) -> None:
        """See Resizer. What was agreed on with a program is taken up first: it is not for others to answer."""
        for record in list(self._state().jobs.values()):
            if record.state is JobState.RUNNING and record.job.has_workers:
                self._jobs.add(record.job.id)
                with contained("resuming a negotiation", job=record.job.id):
                    self._negotiations.restore(record, WorkersParty(record, represented=False))
                    self._adaptations.look_again(record.job.id)
        self._workers.resume()


# -- All parts that change sizes -----------------------------------------------------------------------------


class SizeChangeParts:
    """Workers that come and go, processes that change together, and programs that negotiate for either."""

    def __init__(self, core: Core, applications: Applications) -> None:
        """Make the parts, and put them together."""
        self._port = NegotiationPort(core.site.control_center.negotiation_listen)
        self._adaptations = Adaptations(
            applications,
            state=lambda: core.state,
            clock=core.now,
            report=core.post,
            tell=core.center.tell_application,
            keeper=NegotiationKeeper(core.negotiations, state=lambda: core.state, clock=core.now),
            negotiators=self._port,
            rules=core.size_rules,
        )
        self._workers = WorkersResizing(
            applications, state=lambda: core.state, clock=core.now, report=core.post, rules=core.size_rules
        )
        self._negotiators = Negotiators(
            self._port, adaptations=self._adaptations, workers=self._workers, state=lambda: core.state
        )
        self.resizing = Resizing(workers=self._negotiators, adaptive=self._adaptations, state=lambda: core.state)

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

# SPDX-License-Identifier: Apache-2.0
"""Jobs with workers grow and shrink: between the scheduler's messages and the runners.

An application that cannot be told to change its size declines. After a restart of the service, whatever the records
say is under way is resumed: an answer is repeated, and workers that have not ended are asked again.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Protocol

import anyio
import structlog

from koala_adapter.host.containment import contained
from koala_adapter.model import RunnerName
from koala_adapter.outcome import JobState
from koala_adapter.runners.runner import process_ends_at
from koala_adapter.runners.workers import GrowOffer, ShrinkRequest
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.records import ChangePhase
from koala_adapter.scheduler.states import bounds
from koala_adapter.service.sizes.jobs import Deadlines
from koala_adapter.sizes import OWN_SIZES, Decision, SizeRules

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from koala_adapter.model import ClusterName, JobId
    from koala_adapter.runners.workers import Order, WorkersRunner
    from koala_adapter.scheduler.records import Change, Claim, JobRecord, State


log = structlog.get_logger()


class ResizedApplications(Protocol):
    """The running applications, as far as they are brought to other sizes."""

    def workers(self, record: JobRecord) -> WorkersRunner | None:
        """Return the runner of a job whose workers come and go; None: it is of another kind, or does not run."""

    def resized(self, record: JobRecord) -> WorkersRunner | None:
        """Return the runner of a job that has been asked to change since this process began."""

    def grow(self, record: JobRecord, ranks: Collection[int]) -> None:
        """Start the processes of ranks that a running job has got."""

    def order(self, orders: Iterable[Order]) -> None:
        """Have agents start or signal processes."""


class WorkersResizing:
    """Has workers come and go."""

    def __init__(
        self,
        applications: ResizedApplications,
        *,
        state: Callable[[], State],
        clock: Callable[[], float],
        report: Callable[[ev.Event], None],
        rules: SizeRules = OWN_SIZES,
    ) -> None:
        """``report`` takes the answers of applications in; ``rules``: of the sizes that they accept."""
        self._rules = rules
        self._applications = applications
        self._state = state
        self._clock = clock
        self._report = report
        self._asked = anyio.Event()
        self._near: Deadlines[JobId] = Deadlines()
        """When the walltime of one more worker of a job is near, and the job wants it to be asked to end then."""

    # ---- what the scheduler wants -----------------------------------------------------------------------------------

    def offer(self, action: act.OfferProcessors) -> None:
        """Ask an application how many further processors it takes."""
        found = self._find(action.job_id, action.component, action.cluster)
        decision = Decision(0)
        if found is not None:
            runner, record, claim = found
            decision = runner.accepted(_offer(record, claim, action.processors), self._rules)
        self._answer(action.job_id, action.number, decision)

    def request(self, action: act.RequestProcessors) -> None:
        """Ask an application to give processors up, and have it begin."""
        found = self._find(action.job_id, action.component, action.cluster)
        if found is None:
            self._answer(action.job_id, action.number, Decision(0))
            return
        runner, record, claim = found
        runner.departed(record.departed)
        request = _request(record, claim, action.processors)
        decision = runner.accepted(request, self._rules)
        if not decision.processors and not decision.trouble and request.minimum < request.size:
            decision = Decision(0, _no_size_is_left(record, request))
        # Told first: a worker that ends at once must be known to have been asked.
        self._answer(action.job_id, action.number, decision)
        self._retire(runner, request, decision.processors)

    def take(self, action: act.TakeProcessors) -> None:
        """Start the processes of new ranks."""
        record = self._state().jobs.get(action.job_id)
        if record is not None:
            log.info("a job grows", job=action.job_id, component=action.component, by=len(action.ranks))
            self._applications.grow(record, [rank.rank for rank in action.ranks])

    def withdraw(self, action: act.WithdrawOffer) -> None:
        """Workers are not told of an offer before they are started, so there is nothing to undo."""

    def grant(self, action: act.GrantProcessors) -> None:
        """What is granted comes by itself."""

    # ---- what is under way ------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Go on with what the records say is under way, after a restart."""
        for record in list(self._state().jobs.values()):
            if record.state is JobState.RUNNING and record.job.has_workers:
                with contained("resuming a change of size", job=record.job.id):
                    for change in list(record.changes.values()):
                        self._resume(record, change)

    def _resume(self, record: JobRecord, change: Change) -> None:
        part = change.parts[0]
        if change.phase is not ChangePhase.ASKED:
            self._carry_on(record, change)
            return
        if change.agreement:
            return  # it is for the program to answer that has asked
        kind = act.OfferProcessors if part.processors > 0 else act.RequestProcessors
        action = kind(
            job_id=record.job.id,
            component=change.component,
            cluster=_cluster_of(record.claims[part.claim]),
            number=change.number,
            processors=abs(part.processors),
        )
        if isinstance(action, act.OfferProcessors):
            self.offer(action)
        else:
            self.request(action)

    def carry_on(self, record: JobRecord) -> None:
        """Have the workers of a job leave that it has agreed to give up; nobody is asked twice."""
        for change in list(record.changes.values()):
            self._carry_on(record, change)

    def _carry_on(self, record: JobRecord, change: Change) -> None:
        runner = self._applications.workers(record)
        if change.phase is ChangePhase.RELEASING and runner is not None:
            left = change.accepted - change.done
            self._retire(runner, _request(record, record.claims[change.parts[0].claim], left), left)

    def handled(self, touched: Iterable[JobId]) -> None:
        """The scheduler has handled an event that touched these jobs: their workers may be others than before."""
        before = self._near.first()
        for job_id in touched:
            with contained("following the workers of a job", job=job_id):
                self._watch(job_id)
        if self._near.first() != before:
            self._wake_up()

    def _watch(self, job_id: JobId) -> None:
        record = self._state().jobs.get(job_id)
        runner = None
        if record is not None and record.job.warn_before and record.job.runner is RunnerName.WORKERS:
            runner = self._applications.workers(record) if record.state is JobState.RUNNING else None
        if record is None or runner is None:
            self._near.set(job_id, None)
            return
        runner.departed(record.departed)
        self._near.set(job_id, min((at for _, at in self._warnings(record, runner)), default=None))

    def _warnings(self, record: JobRecord, runner: WorkersRunner) -> Iterable[tuple[int, float]]:
        """Return the workers that stay, and when the walltime of each is near."""
        placeholders, now = self._state().placeholders, self._clock()
        for rank in runner.staying:
            yield rank.rank, process_ends_at(record, rank, placeholders, now) - record.job.warn_before

    def retire_near_end(self) -> float:
        """Ask workers to end whose walltime is near; return when to look at that again, infinity: not for now."""
        now = self._clock()
        for job_id in self._near.due(now):
            with contained("asking workers to end", job=job_id):
                self._retire_near_end(job_id, now)
        first = self._near.first()
        return inf if first is None else first

    def _retire_near_end(self, job_id: JobId, now: float) -> None:
        record = self._state().jobs.get(job_id)
        runner = None if record is None else self._applications.workers(record)
        if record is not None and runner is not None:
            due = [rank for rank, at in self._warnings(record, runner) if at <= now]
            if due:
                log.info("workers are asked to end, as the walltime is near", job=job_id, workers=len(due))
            self._applications.order(runner.retire(due, now))
            self._watch(job_id)

    async def run(self) -> None:
        """Ask workers to end whose walltime is near, and kill those that take too long to end, until cancelled."""
        while True:
            asked = self._asked
            due = min(self.retire_near_end(), self.kill_overdue())
            with anyio.move_on_after(max(0.0, due - self._clock())):
                await asked.wait()

    def kill_overdue(self) -> float:
        """Kill workers whose grace is over; return when that is to be looked at next, infinity: nobody is asked."""
        now, due = self._clock(), inf
        for record in list(self._state().jobs.values()):
            runner = self._applications.resized(record)
            if runner is not None:
                runner.departed(record.departed)
                self._applications.order(runner.kills(now))
                due = min(due, inf if runner.next_kill is None else runner.next_kill)
        return due

    def _retire(self, runner: WorkersRunner, request: ShrinkRequest, count: int) -> None:
        self._applications.order(runner.shrink(request, count, self._clock()))
        self._wake_up()

    def _wake_up(self) -> None:
        self._asked.set()
        self._asked = anyio.Event()

    def _find(
        self, job_id: JobId, component: str, cluster: ClusterName
    ) -> tuple[WorkersRunner, JobRecord, Claim] | None:
        record = self._state().jobs.get(job_id)
        runner = None if record is None else self._applications.workers(record)
        if record is None or runner is None:
            log.warning("declined, as the application keeps its size", job=job_id)
            return None
        claims = [one for one in record.claims if (one.component, one.cluster) == (component, cluster)]
        return (runner, record, claims[0]) if claims else None

    def _answer(self, job_id: JobId, number: int, decision: Decision) -> None:
        accepted, trouble = decision.processors, decision.trouble
        if trouble:
            log.warning("a job does not change as it is asked to", job=job_id, problem=trouble)
        self._report(
            ev.OfferAnswered(time=self._clock(), job_id=job_id, number=number, accepted=accepted, trouble=trouble)
        )


def _offer(record: JobRecord, claim: Claim, processors: int) -> GrowOffer:
    component = record.job.component(claim.component)
    return GrowOffer(
        component=claim.component,
        cluster=_cluster_of(claim),
        processors=max(0, min(processors, bounds(record, claim)[1] - claim.processors)),
        size=_size(record, claim),
        minimum=component.minimum,
        maximum=component.maximum,
    )


def _request(record: JobRecord, claim: Claim, processors: int) -> ShrinkRequest:
    component, size = record.job.component(claim.component), _size(record, claim)
    spare = max(0, claim.processors - bounds(record, claim)[0])
    return ShrinkRequest(
        component=claim.component,
        cluster=_cluster_of(claim),
        processors=processors,
        size=size,
        minimum=max(component.minimum, size - spare),
        maximum=component.maximum,
    )


def _size(record: JobRecord, claim: Claim) -> int:
    return sum(one.processors for one in record.claims if one.component == claim.component)


def _no_size_is_left(record: JobRecord, request: ShrinkRequest) -> str:
    left = max(request.minimum, request.size - request.processors)
    sizes = record.job.component(request.component).sizes
    asked = f"{request.processors} back on {request.cluster}"
    return f'asked for {asked}, {request.component} gives none: it cannot have {left} (sizes = "{sizes}")'


def _cluster_of(claim: Claim) -> ClusterName:
    if claim.cluster is None:
        raise AssertionError("a claim that changes is on a cluster")
    return claim.cluster

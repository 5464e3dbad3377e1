# SPDX-License-Identifier: Apache-2.0
"""A job whose workers come and go: it decides about offers by its size rule, and asks workers to end.

A program may negotiate for it instead. An application that cannot change its size declines. After a restart of the
service, what the records say is under way is resumed: an answer is repeated, and workers that have not ended are asked
again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from koala_adapter.model import ClusterName, Job, JobId, RunnerName
from koala_adapter.outcome import JobState
from koala_adapter.runners.runner import process_ends_at
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.sizechange import Change, ChangePhase
from koala_adapter.scheduler.states import bounds
from koala_adapter.service.sizes.bargaining import SizedJob, Surroundings
from koala_adapter.service.sizes.offers import NEGOTIATOR
from koala_adapter.sizes import Decision

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.runners.workers import WorkersRunner
    from koala_adapter.scheduler.records import Claim, JobRecord


log = structlog.get_logger()


class WorkersJob(SizedJob):
    """A running job with workers; without a negotiating program it answers at once."""

    def __init__(self, around: Surroundings, job: Job) -> None:
        """``job``: the submitted job."""
        super().__init__(around, job.id)
        self._job = job
        self._runner: WorkersRunner | None = None
        """As it was seen last."""
        self._near: float | None = None
        """When the walltime of one more worker is near, if the job wants it to be asked to end then."""

    # ---- what the service tells it ---------------------------------------------------------------------------------

    def follow(self, record: JobRecord) -> None:
        self._watch(record)
        if self.negotiated and record.state is JobState.RUNNING:
            self.bargaining.follow(record)

    def carry_out(self, record: JobRecord, action: act.SizeAction) -> None:
        """Answer an offer or request, start workers, or tell the negotiating program."""
        match action:
            case act.OfferProcessors() | act.RequestProcessors():
                if self.represented:
                    self.bargaining.follow(record)
                else:
                    self._answer(record, action)
            case act.TakeProcessors():
                log.info("a job grows", job=self.id, component=action.component, by=len(action.ranks))
                self._applications.grow(record, [rank.rank for rank in action.ranks])
                if self.negotiated:
                    self.bargaining.follow(record)
            case act.WithdrawOffer():
                self.bargaining.withdraw(action.number, action.reason)
            case act.GrantProcessors():
                self.bargaining.grant(action)
                self.have_workers_leave(record)
                self.bargaining.follow(record)

    def restore(self, record: JobRecord) -> None:
        """Restore agreements with a program from before a restart."""
        self.negotiated = True
        self.bargaining.restore(record)

    def resume(self, record: JobRecord) -> None:
        """Repeat answers and requests to leave after a restart."""
        for change in list(record.changes.values()):
            if change.phase is not ChangePhase.ASKED:
                self._have_leave(record, change)
            elif not change.agreement:  # otherwise it is for the program to answer that has asked
                part = change.parts[0]
                kind = act.OfferProcessors if part.processors > 0 else act.RequestProcessors
                action = kind(
                    job_id=self.id,
                    component=change.component,
                    cluster=_cluster_of(record.claims[part.claim]),
                    number=change.number,
                    processors=abs(part.processors),
                )
                self.carry_out(record, action)

    def time_passed(self, record: JobRecord) -> None:
        """Ask workers near their walltime to leave; kill those that take too long."""
        now, runner = self._core.now(), self._seen(record)
        if runner is not None:
            if self._near is not None and self._near <= now:
                due = [rank for rank, at in self._warnings(record, runner) if at <= now]
                if due:
                    log.info("workers are asked to end, as the walltime is near", job=self.id, workers=len(due))
                self._applications.order(runner.retire(due, now))
                self._watch(record)
            runner.departed(record.departed)
            self._applications.order(runner.kills(now))
        if record.state is JobState.RUNNING:
            self.bargaining.time_passed(record)

    def next_deadline(self) -> float | None:
        kill = None if self._runner is None else self._runner.next_kill
        return min((at for at in (self._near, kill, self.bargaining.next_deadline()) if at is not None), default=None)

    def have_workers_leave(self, record: JobRecord) -> None:
        """Ask as many workers to leave as the job has agreed to, each once."""
        for change in list(record.changes.values()):
            self._have_leave(record, change)

    # ---- how it negotiates -----------------------------------------------------------------------------------------

    def negotiates(self, component: str) -> bool:
        return self._job.changes_size(component)

    def ready(self, component: str) -> bool:
        """Return whether an offer can be made: while a program negotiates."""
        return self.represented and self.negotiates(component)

    def speaker(self, component: str) -> int | None:
        """Return the program that negotiates; None: there is none."""
        return NEGOTIATOR if self.ready(component) else None

    def size(self, component: str) -> int:
        return self._core.state.jobs[self.id].size(component)

    def able_to_leave(self, record: JobRecord, claim: Claim) -> int:
        return max(0, claim.processors - bounds(record, claim)[0])

    def component_of(self, rank: int) -> str | None:
        """Return the only component that changes its size; None: there are several."""
        able = [one.name for one in self._job.components if self.negotiates(one.name)]
        return able[0] if rank == NEGOTIATOR and len(able) == 1 else None

    def in_progress(self, change: Change) -> bool:
        return change.phase in {ChangePhase.TAKING, ChangePhase.RELEASING}

    # ---- its workers -----------------------------------------------------------------------------------------------

    def _seen(self, record: JobRecord) -> WorkersRunner | None:
        self._runner = self._applications.workers(record)
        return self._runner

    def _watch(self, record: JobRecord) -> None:
        self._near = None
        if record.job.warn_before and record.job.runner is RunnerName.WORKERS and record.state is JobState.RUNNING:
            runner = self._seen(record)
            if runner is not None:
                runner.departed(record.departed)
                self._near = min((at for _, at in self._warnings(record, runner)), default=None)

    def _warnings(self, record: JobRecord, runner: WorkersRunner) -> Iterable[tuple[int, float]]:
        """Return remaining workers with the times at which their walltime is near."""
        placeholders, now = self._core.state.placeholders, self._core.now()
        for rank in runner.staying:
            yield rank.rank, process_ends_at(record, rank, placeholders, now) - record.job.warn_before

    def _have_leave(self, record: JobRecord, change: Change) -> None:
        runner = self._seen(record)
        if change.phase is ChangePhase.RELEASING and runner is not None:
            claim, left = record.claims[change.parts[0].claim], change.accepted - change.done
            self._applications.order(runner.shrink(claim.component, _cluster_of(claim), left, self._core.now()))

    def _answer(self, record: JobRecord, action: act.OfferProcessors | act.RequestProcessors) -> None:
        """Answer an offer or request by the component's size rule and start the workers' leaving."""
        runner = self._seen(record)
        claims = [one for one in record.claims if (one.component, one.cluster) == (action.component, action.cluster)]
        if runner is None or not claims:
            log.warning("declined, as the application keeps its size", job=self.id)
            self._core.loop.post(answer_of(self._core.now(), self.id, action.number, Decision(0)))
            return
        claim, now = claims[0], self._core.now()
        if isinstance(action, act.OfferProcessors):
            decision = self._taken(record, claim, action.processors)
            self._core.loop.post(answer_of(now, self.id, action.number, decision))
            return
        runner.departed(record.departed)
        decision = self._given_up(record, claim, action.processors)
        # Told first: a worker that ends at once must be known to have been asked.
        self._core.loop.post(answer_of(now, self.id, action.number, decision))
        self._applications.order(runner.shrink(claim.component, action.cluster, decision.processors, now))

    def _taken(self, record: JobRecord, claim: Claim, offered: int) -> Decision:
        """Return how many of offered processors a claim takes."""
        component = record.job.component(claim.component)
        most = min(offered, bounds(record, claim)[1] - claim.processors)
        if most < 1:
            return Decision(0)
        size, least = record.size(component.name), component.minimum
        return self._core.size_rules.decide(component.sizes, size, most, least, component.maximum)

    def _given_up(self, record: JobRecord, claim: Claim, wanted: int) -> Decision:
        """Return how many processors a claim gives up of those that are wanted back."""
        component, size = record.job.component(claim.component), record.size(claim.component)
        least = max(component.minimum, size - self.able_to_leave(record, claim))
        decision = self._core.size_rules.decide(component.sizes, size, -wanted, least, component.maximum)
        if decision.processors or decision.trouble or least >= size:
            return decision
        asked, left = f"{wanted} back on {claim.cluster}", max(least, size - wanted)
        why = f'asked for {asked}, {component.name} gives none: it cannot have {left} (sizes = "{component.sizes}")'
        return Decision(0, why)


def answer_of(now: float, job_id: JobId, number: int, decision: Decision) -> ev.OfferAnswered:
    """Return the event that answers at once for a job."""
    accepted, trouble = decision.processors, decision.trouble
    if trouble:
        log.warning("a job does not change as it is asked to", job=job_id, problem=trouble)
    return ev.OfferAnswered(time=now, job_id=job_id, number=number, accepted=accepted, trouble=trouble)


def _cluster_of(claim: Claim) -> ClusterName:
    if claim.cluster is None:
        raise AssertionError("a claim that changes is on a cluster")
    return claim.cluster

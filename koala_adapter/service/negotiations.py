# SPDX-License-Identifier: Apache-2.0
"""The negotiation manager: offers and wishes of the scheduler's records as templates, and answers as events.

Offers go to the first member of a component; each member may ask for more, or give back. What an application is
offered is kept for it by the scheduler, so an acceptance is followed by the commitment once the scheduler has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from koala_adapter.dynaco.decide import rule_named
from koala_adapter.errors import NegotiationError
from koala_adapter.negotiation.endpoint import Agreed, Ended, Endpoint, OfferAccepted, OfferReceived, Unreadable
from koala_adapter.negotiation.framing import FrameBuffer, frame
from koala_adapter.negotiation.states import State
from koala_adapter.negotiation.template import (
    CPU,
    Direction,
    NegotiationKey,
    Obligation,
    Resource,
    Side,
    Status,
    Template,
    Usage,
    accepted,
    committed,
    consumed,
    countered,
    rejected,
    withdrawn,
)
from koala_adapter.runners.membership import able_to_leave
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.changes import ChangePhase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from koala_adapter.model import JobId
    from koala_adapter.negotiation.endpoint import Event
    from koala_adapter.runners.adaptive import AdaptiveRunner
    from koala_adapter.scheduler import actions as act
    from koala_adapter.scheduler.changes import Change
    from koala_adapter.scheduler.records import Claim, JobRecord

HOST = "koala"
"""Our name in templates."""
ANSWER_WITHIN = 20.0
"""Seconds; the library answers at once."""


@dataclass(slots=True)
class _Agreement:
    """A negotiation that a change of the records belongs to."""

    rank: int
    key: NegotiationKey
    moved: bool = False
    """Its change is being carried out."""


class Negotiations:
    """All negotiations with the processes of adaptive jobs."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        report: Callable[[ev.Event], None],
        say: Callable[[JobId, int, bytes], None],
    ) -> None:
        """``say`` sends a frame to a process of a job."""
        self._clock = clock
        self._report = report
        self._say = say
        self._endpoints: dict[tuple[JobId, int], Endpoint] = {}
        self._agreements: dict[tuple[JobId, int], _Agreement] = {}
        """By job and number of the change."""

    # ---- what the scheduler wants -----------------------------------------------------------------------------------

    def follow(self, record: JobRecord, runner: AdaptiveRunner) -> None:
        """Say what follows from the records: new offers, commitments, and what has become of agreements."""
        open_ = {change.number: (claim, change) for claim, change in _changes(record, runner)}
        for (job_id, number), agreement in list(self._agreements.items()):
            if job_id == record.job.id and number not in open_ and not self._explained(job_id, agreement):
                del self._agreements[job_id, number]
                self._over(record, agreement)  # before anything new is offered, which would be counted on top
        for number, (claim, change) in open_.items():
            self._follow_change(record, runner, claim, change)
            known = self._agreements.get((record.job.id, number))
            if known is not None:
                known.moved = known.moved or bool(change.adaptation)
        self._flush(record.job.id)

    def _follow_change(self, record: JobRecord, runner: AdaptiveRunner, claim: Claim, change: Change) -> None:
        job_id = record.job.id
        agreement = self._agreements.get((job_id, change.number))
        if agreement is None and change.phase is ChangePhase.ASKED and not change.agreement:
            self._offer(record, runner, claim, change)
        elif agreement is not None and change.phase not in {ChangePhase.ASKED, ChangePhase.PROMISED}:
            endpoint = self._endpoint(job_id, agreement.rank)
            standing = endpoint.standing(agreement.key)
            if standing is not None and endpoint.state(agreement.key) is State.ACCEPTED:
                endpoint.send(committed(standing), self._clock())

    def _offer(self, record: JobRecord, runner: AdaptiveRunner, claim: Claim, change: Change) -> None:
        coordinator, membership = runner.coordinators[claim.component], runner.memberships[claim.component]
        if not coordinator.joined:
            return  # it is said when all have come
        first = membership.members[0]
        template = _offer_of(record, runner, claim, change, self._host_of(record, first))
        if template is None:
            reason = "the first process bears the others, and stays" if change.processors < 0 else "no size of its fits"
            self._answer(record.job.id, change.number, 0, reason)
            return
        self._agreements[record.job.id, change.number] = _Agreement(rank=first, key=template.key)
        self._endpoint(record.job.id, first).send(template, self._clock())

    def _over(self, record: JobRecord, agreement: _Agreement) -> None:
        """Tell an application what has become of an agreement whose change is no longer in the records."""
        endpoint = self._endpoint(record.job.id, agreement.rank)
        standing, state = endpoint.standing(agreement.key), endpoint.state(agreement.key)
        if standing is None or any(one.key == agreement.key for one in self._agreements_of(record.job.id)):
            return
        if state is State.AGREED and agreement.moved:
            endpoint.send(consumed(standing), self._clock())
        elif state in {State.OFFERED, State.ACCEPTED, State.AGREED}:
            endpoint.send(withdrawn(standing, record.last_trouble or "it is over"), self._clock())

    def _explained(self, job_id: JobId, agreement: _Agreement) -> bool:
        """Tell whether WithdrawOffer, which is on its way, says why a growth that was agreed on is not made."""
        endpoint = self._endpoint(job_id, agreement.rank)
        standing = endpoint.standing(agreement.key)
        grows = standing is not None and standing.direction is not Direction.SHRINK
        return grows and not agreement.moved and endpoint.state(agreement.key) in {State.ACCEPTED, State.AGREED}

    def _agreements_of(self, job_id: JobId) -> Iterator[_Agreement]:
        return (one for (whose, _), one in self._agreements.items() if whose == job_id)

    def withdraw(self, job_id: JobId, number: int, reason: str) -> None:
        """Tell an application that it does not get what it has accepted."""
        agreement = self._agreements.pop((job_id, number), None)
        if agreement is None:
            return
        endpoint = self._endpoint(job_id, agreement.rank)
        standing = endpoint.standing(agreement.key)
        if standing is not None and endpoint.state(agreement.key) in {State.OFFERED, State.ACCEPTED, State.AGREED}:
            endpoint.send(withdrawn(standing, reason), self._clock())
        self._flush(job_id)

    def grant(self, action: act.GrantProcessors) -> None:
        """Answer a wish of an application."""
        if not action.agreement or action.rank is None:
            return
        key = NegotiationKey(initiator=Side.APPLICATION, agreement_id=action.agreement)
        endpoint = self._endpoint(action.job_id, action.rank)
        offer = endpoint.standing(key)
        if offer is None or endpoint.state(key) is not State.ASKED:
            return
        if action.processors == 0:
            endpoint.send(rejected(offer, action.reason), self._clock())
        elif action.countered:
            (wanted,) = (one for one in offer.quantities() if one.type == CPU)
            answer = countered(offer, {wanted: action.processors}, reason=action.reason)
            endpoint.send(replace(answer, answer_within=ANSWER_WITHIN), self._clock())
        else:
            endpoint.send(
                accepted(offer, declined=[one for one in offer.quantities() if one.type != CPU]), self._clock()
            )
        if action.number:
            self._agreements[action.job_id, action.number] = _Agreement(rank=action.rank, key=key)
        self._flush(action.job_id)

    # ---- what the applications say --------------------------------------------------------------------------------

    def heard(self, record: JobRecord, runner: AdaptiveRunner, rank: int, data: bytes) -> None:
        """Take in a frame with a template."""
        endpoint = self._endpoint(record.job.id, rank)
        for event in endpoint.receive(data, self._clock()):
            self._take(record, runner, rank, event)
        endpoint.unreadable = False  # frames are cut by the agent: what follows can be told apart
        self.follow(record, runner)
        self._flush(record.job.id)

    def in_contact(self, job_id: JobId, rank: int) -> None:
        """A process has come back: say again what may not have arrived."""
        self._endpoint(job_id, rank).resumed()
        self._flush(job_id)

    def time_passed(self, record: JobRecord, runner: AdaptiveRunner, now: float) -> None:
        """End what was not answered in time."""
        for (job_id, rank), endpoint in list(self._endpoints.items()):
            if job_id == record.job.id:
                for event in endpoint.time_passed(now):
                    self._take(record, runner, rank, event)
        self._flush(record.job.id)

    def next_deadline(self) -> float | None:
        """Return when `time_passed` is to be called at the latest; None: not for now."""
        times = (one.next_deadline() for one in self._endpoints.values())
        return min((one for one in times if one is not None), default=None)

    def forget(self, job_id: JobId) -> None:
        """A job is over."""
        for whose in [one for one in self._endpoints if one[0] == job_id]:
            del self._endpoints[whose]
        for number in [one for one in self._agreements if one[0] == job_id]:
            del self._agreements[number]

    def _take(self, record: JobRecord, runner: AdaptiveRunner, rank: int, event: Event) -> None:
        if isinstance(event, Unreadable):
            raise NegotiationError(event.reason)
        if isinstance(event, OfferReceived):
            self._answer_offer(record, runner, rank, event)
        elif isinstance(event, OfferAccepted | Agreed):
            number = self._number_of(record.job.id, rank, event.key)
            if number is not None:
                self._answer(record.job.id, number, event.template.quantity(CPU))
        elif isinstance(event, Ended):
            number = self._number_of(record.job.id, rank, event.key)
            if number is not None and event.was_agreed:
                self._give_up(record.job.id, number, event.reason)
            elif number is not None:
                self._answer(record.job.id, number, 0, event.reason)
                self._give_up(record.job.id, number, event.reason or "the application has not committed to it")

    def _number_of(self, job_id: JobId, rank: int, key: NegotiationKey) -> int | None:
        for (whose, number), one in self._agreements.items():
            if (whose, one.rank, one.key) == (job_id, rank, key):
                return number
        return None

    def _answer_offer(self, record: JobRecord, runner: AdaptiveRunner, rank: int, event: OfferReceived) -> None:
        endpoint = self._endpoint(record.job.id, rank)
        template, now = event.template, self._clock()
        problem = _problem_of(template)
        if problem:
            endpoint.send(rejected(template, problem), now)
        elif event.key.initiator is Side.RMS or self._number_of(record.job.id, rank, event.key) is not None:
            endpoint.send(accepted(template), now)  # a counter-offer: that it is within the bounds has been checked
        else:
            self._wish(record, runner, rank, template)

    def _wish(self, record: JobRecord, runner: AdaptiveRunner, rank: int, template: Template) -> None:
        component = runner.component_of(rank)
        if component is None:
            return
        now, processors = self._clock(), template.quantity(CPU)
        if any(change.agreement == template.agreement_id for _, change in _changes(record, runner)):
            return  # it was told before a restart
        if template.direction is Direction.SHRINK:
            less = ev.LessRequested(
                time=now,
                job_id=record.job.id,
                component=component,
                processors=processors,
                agreement=template.agreement_id,
                rank=rank,
            )
            self._report(less)
            return
        latest = max((one.last_request for one in record.claims if one.component == component), default=0)
        (wanted,) = (one for one in template.resources if one.type == CPU)
        self._report(
            ev.MoreRequested(
                time=now,
                job_id=record.job.id,
                component=component,
                number=latest + 1,
                processors=processors,
                mandatory=template.obligation is Obligation.MANDATORY,
                agreement=template.agreement_id,
                rank=rank,
                least=wanted.minimum or 1,
            )
        )

    # ---- after a restart ------------------------------------------------------------------------------------------

    def restore(self, record: JobRecord, runner: AdaptiveRunner) -> None:
        """Go on with what was agreed on before this process began."""
        for claim, change in _changes(record, runner):
            members = runner.memberships[claim.component].members
            rank = change.asker if change.agreement else members[0] if members else None
            if rank is None or (record.job.id, change.number) in self._agreements:
                continue
            if change.phase is ChangePhase.ASKED and not change.countered:
                continue  # it is offered again
            template = _restored(record, claim, change, self._host_of(record, rank))
            state = {ChangePhase.ASKED: State.OFFERED, ChangePhase.PROMISED: State.ASKED}.get(
                change.phase, State.AGREED
            )
            said = {State.AGREED: committed(template)}.get(state, template)
            self._agreements[record.job.id, change.number] = _Agreement(
                rank=rank, key=template.key, moved=bool(change.adaptation)
            )
            endpoint = self._endpoint(record.job.id, rank)
            if endpoint.state(template.key) is State.NEW:
                endpoint.restore(said, state, _round(change), self._clock())

    # ---- its parts ------------------------------------------------------------------------------------------------

    def _endpoint(self, job_id: JobId, rank: int) -> Endpoint:
        whose = (job_id, rank)
        if whose not in self._endpoints:
            self._endpoints[whose] = Endpoint(side=Side.RMS, host=HOST, peer="application")
        return self._endpoints[whose]

    def _answer(self, job_id: JobId, number: int, count: int, reason: str = "") -> None:
        self._report(ev.OfferAnswered(time=self._clock(), job_id=job_id, number=number, accepted=count, reason=reason))

    def _give_up(self, job_id: JobId, number: int, reason: str) -> None:
        self._agreements.pop((job_id, number), None)
        self._report(ev.ChangeGivenUp(time=self._clock(), job_id=job_id, number=number, reason=reason))

    @staticmethod
    def _host_of(record: JobRecord, rank: int) -> str:
        one = record.ranks[rank]
        return one.host or one.address or "application"

    def _flush(self, job_id: JobId) -> None:
        for (whose, rank), endpoint in self._endpoints.items():
            if whose != job_id:
                continue
            for payload in FrameBuffer().feed(endpoint.data_to_send()):
                self._say(job_id, rank, frame(payload))


def _changes(record: JobRecord, runner: AdaptiveRunner) -> Iterator[tuple[Claim, Change]]:
    for claim in record.claims:
        if claim.change is not None and claim.component in runner.coordinators:
            yield claim, claim.change


def _offer_of(record: JobRecord, runner: AdaptiveRunner, claim: Claim, change: Change, host: str) -> Template | None:
    """Return the offer, or the request, that a change begins with; None: nothing can be taken, or given up, here."""
    grows = change.processors > 0
    component = record.job.component(claim.component)
    rule, size = rule_named(component.sizes), len(runner.memberships[claim.component].members)
    quantity = most = abs(change.processors)
    if grows:
        quantity = most = rule.accept(size, quantity, component.minimum, component.maximum)
    else:
        members = set(runner.memberships[claim.component].members)
        ranks = [one for one in record.ranks if one.rank in members]
        most = len(able_to_leave(ranks, claim.cluster or ""))
        quantity = min(rule.release(size, quantity, component.minimum), most)
    if quantity < 1:
        return None
    return Template(
        agreement_id=str(change.number),
        initiator=Side.RMS,
        source=HOST,
        dest=_named(host),
        direction=Direction.GROW if grows else Direction.SHRINK,
        obligation=Obligation.VOLUNTARY if grows else Obligation.MANDATORY,
        answer_within=ANSWER_WITHIN,
        reason=change.reason,
        resources=(
            Resource(
                type=CPU,
                quantity=quantity,
                minimum=1,
                maximum=most,
                cluster=claim.cluster or "",
                component=claim.component,
            ),
        ),
    )


def _restored(record: JobRecord, claim: Claim, change: Change, host: str) -> Template:
    """Return what stands in the negotiation of a change, as far as the records tell."""
    own = bool(change.agreement)
    grows = change.processors > 0
    waits = change.phase is ChangePhase.PROMISED
    quantity = (
        change.wish if waits else abs(change.processors) if change.phase is ChangePhase.ASKED else change.accepted
    )
    del record
    return Template(
        agreement_id=change.agreement or str(change.number),
        initiator=Side.APPLICATION if own else Side.RMS,
        source=_named(host) if own else HOST,
        dest=HOST if own else _named(host),
        status=Status.NEGOTIATION,
        direction=Direction.GROW if grows else Direction.SHRINK,
        resources=(
            Resource(
                type=CPU,
                quantity=max(1, quantity),
                cluster="" if own else claim.cluster or "",
                component="" if own else claim.component,
            ),
        ),
    )


def _round(change: Change) -> int:
    """Return which offer it was that stands: the first, or the counter-offer to it."""
    if change.phase is ChangePhase.PROMISED:
        return 1
    if change.agreement:
        return 2 if change.countered else 1
    return 1 if change.accepted == abs(change.processors) else 2


def _named(host: str) -> str:
    return "".join(one if one.isascii() and (one.isalnum() or one in "._:-") else "-" for one in host)[:255] or HOST


def _problem_of(template: Template) -> str:
    other = [one for one in template.resources if one.type != CPU and one.usage is Usage.REQUIRED and not one.declined]
    if other:
        return f"{other[0].type} cannot be had by itself: processors alone are settled while a job runs"
    if not template.quantity(CPU):
        return "it asks for no processors"
    if sum(one.type == CPU and not one.declined for one in template.resources) != 1:
        return "it asks for processors more than once"
    return ""

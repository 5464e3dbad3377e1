# SPDX-License-Identifier: Apache-2.0
"""The negotiation manager: offers and wishes of the scheduler's records as templates, and answers as events.

Offers go to the first member of a component; each member may ask for more, or give back. What an application is
offered is kept for it by the scheduler, so an acceptance is followed by the commitment once the scheduler has it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from koala_adapter.dynaco.sizerules import OWN_SIZES, SizeRules
from koala_adapter.errors import NegotiationError
from koala_adapter.negotiation.derivedtemplates import accepted, committed, consumed, countered, rejected, withdrawn
from koala_adapter.negotiation.endpoint import Endpoint
from koala_adapter.negotiation.events import Agreed, Ended, OfferAccepted, OfferReceived, Unreadable
from koala_adapter.negotiation.framing import FrameBuffer, frame
from koala_adapter.negotiation.states import State
from koala_adapter.negotiation.template import (
    CPU,
    MEMORY,
    Direction,
    NegotiationKey,
    Side,
    Status,
    Template,
)
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.changes import ChangePhase
from koala_adapter.service.changetemplates import (
    HOST,
    depends_on_answer,
    host_of,
    offer_of,
    problem_of,
    restored,
    round_of,
    wish_of,
)
from koala_adapter.service.negotiationrecord import final_word

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from koala_adapter.model import JobId
    from koala_adapter.negotiation.events import Event
    from koala_adapter.scheduler import actions as act
    from koala_adapter.scheduler.changes import Change
    from koala_adapter.scheduler.records import Claim, JobRecord
    from koala_adapter.service.keptnegotiations import KeptNegotiation
    from koala_adapter.service.negotiationparties import Party

ANSWER_WITHIN = 20.0
"""Seconds; the library answers at once. Less where the scheduler waits less: what is offered is kept for longer."""

BACK_WITHIN = 60.0
"""Seconds after a restart in which processes come back into contact, and hear again what they have to answer."""


@dataclass(slots=True)
class _Agreement:
    """A negotiation that a change of the records belongs to."""

    rank: int
    key: NegotiationKey
    moved: bool = False
    """Its change is being carried out."""
    trouble: str = ""
    """What is wrong with the rule that decided how much was asked for."""


class Negotiations:
    """All negotiations with the processes of adaptive jobs."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        report: Callable[[ev.Event], None],
        say: Callable[[JobId, int, bytes], None],
        keep: Callable[[JobId, int, Side, Template, bytes], None],
        answer_timeout: Callable[[], float],
        recalled: Callable[[JobId, Side, str], KeptNegotiation | None],
        rules: SizeRules = OWN_SIZES,
    ) -> None:
        """``say`` sends a frame to a process of a job; ``keep`` takes note of each template and who said it.

        ``answer_timeout``: seconds after which the scheduler gives up what was not answered. ``recalled``: what
        was kept before a restart of what a side began under a name. ``rules``: of the sizes that are offered.
        """
        self._rules = rules
        self._clock = clock
        self._report = report
        self._say = say
        self._keep = keep
        self._answer_timeout = answer_timeout
        self._recalled = recalled
        self._endpoints: defaultdict[JobId, dict[int, Endpoint]] = defaultdict(dict)
        """By job and rank: of thousands of jobs, what happens to one must not cost a look at all."""
        self._agreements: defaultdict[JobId, dict[int, _Agreement]] = defaultdict(dict)
        """By job and number of the change."""
        self._offered_before: defaultdict[JobId, set[int]] = defaultdict(set)
        """Numbers of changes whose offers were out when this process began: their time may have run out meanwhile."""

    # ---- what the scheduler wants -----------------------------------------------------------------------------------

    def follow(self, record: JobRecord, party: Party) -> None:
        """Say what follows from the records: new offers, commitments, and what has become of agreements."""
        open_ = {change.number: (claim, change) for claim, change in _changes(record, party)}
        agreements = self._agreements[record.job.id]
        for number, agreement in list(agreements.items()):
            if number not in open_ and not self._waits(record.job.id, agreement):
                del agreements[number]
                self._over(record, agreement)  # before anything new is offered, which would be counted on top
        for number, (claim, change) in open_.items():
            self._follow_change(record, party, claim, change)
            known = agreements.get(number)
            if known is not None:
                known.moved = known.moved or party.carries_out(change)
        self._flush(record.job.id)

    def _follow_change(self, record: JobRecord, party: Party, claim: Claim, change: Change) -> None:
        job_id = record.job.id
        agreement = self._agreements[job_id].get(change.number)
        if agreement is None and change.agreement and change.asker is not None:
            agreement = self._one_of_several(job_id, change)
        if agreement is None and change.phase is ChangePhase.ASKED and not change.agreement:
            self._offer(record, party, claim, change)
        elif agreement is not None and change.phase not in {ChangePhase.ASKED, ChangePhase.PROMISED}:
            endpoint = self._endpoint(job_id, agreement.rank)
            standing = endpoint.standing(agreement.key)
            if standing is not None and endpoint.state(agreement.key) is State.ACCEPTED:
                endpoint.send(committed(standing), self._clock())

    def _one_of_several(self, job_id: JobId, change: Change) -> _Agreement | None:
        """Take note of a change that belongs to an agreement beside others, on other clusters; None: it does not."""
        key = NegotiationKey(initiator=Side.APPLICATION, agreement_id=change.agreement)
        if change.asker is None or self._number_of(job_id, change.asker, key) is None:
            return None
        agreement = self._agreements[job_id][change.number] = _Agreement(rank=change.asker, key=key)
        return agreement

    def _offer(self, record: JobRecord, party: Party, claim: Claim, change: Change) -> None:
        first, asked = party.speaker(claim.component), self._agreements[record.job.id]
        if first is None or not party.ready(claim.component) or depends_on_answer(record, claim, change, asked):
            return  # it is said when all have come, and that is answered
        rules, within = self._rules, self._answer_within
        template, why_none, trouble, in_the_way = offer_of(
            record, party, claim, change, host_of(record, first), rules=rules, answer_within=within
        )
        if template is None:
            self._decline(record.job.id, change.number, why_none, trouble=trouble, in_the_way=in_the_way)
            return
        endpoint = self._endpoint(record.job.id, first)
        if endpoint.state(template.key) is not State.NEW:
            return  # it is settled, and what the scheduler is to know of that waits for the journal
        self._agreements[record.job.id][change.number] = _Agreement(rank=first, key=template.key, trouble=trouble)
        endpoint.send(template, self._clock())

    def _over(self, record: JobRecord, agreement: _Agreement) -> None:
        """Tell an application what has become of an agreement whose change is no longer in the records."""
        endpoint = self._endpoint(record.job.id, agreement.rank)
        standing, state = endpoint.standing(agreement.key), endpoint.state(agreement.key)
        if standing is None or any(one.key == agreement.key for one in self._agreements[record.job.id].values()):
            return
        if state is State.AGREED and agreement.moved:
            endpoint.send(consumed(standing), self._clock())
        elif state in {State.OFFERED, State.ACCEPTED, State.AGREED}:
            endpoint.send(withdrawn(standing, record.last_trouble or "it is over"), self._clock())

    def _waits(self, job_id: JobId, agreement: _Agreement) -> bool:
        """Tell whether it cannot be said yet what has become of an agreement.

        Either WithdrawOffer is on its way and says why a growth that was agreed on is not made, or it is there before
        the application has committed itself.
        """
        endpoint = self._endpoint(job_id, agreement.rank)
        standing = endpoint.standing(agreement.key)
        if agreement.moved and endpoint.state(agreement.key) is State.ACCEPTING:
            return True
        grows = standing is not None and standing.direction is not Direction.SHRINK
        return grows and not agreement.moved and endpoint.state(agreement.key) in {State.ACCEPTED, State.AGREED}

    def withdraw(self, job_id: JobId, number: int, reason: str) -> None:
        """Tell an application that it does not get what it has accepted."""
        agreement = self._agreements[job_id].pop(number, None)
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
        given = {CPU, MEMORY} if action.memory_mib else {CPU}
        refused = [one for one in offer.quantities() if one.type not in given]
        if action.processors == 0:
            endpoint.send(rejected(offer, action.reason), self._clock())
        elif action.countered:
            (wanted,) = (one for one in offer.quantities() if one.type == CPU)
            answer = countered(offer, {wanted: action.processors}, declined=refused, reason=action.reason)
            endpoint.send(replace(answer, answer_within=self._answer_within), self._clock())
        else:
            endpoint.send(accepted(offer, declined=refused), self._clock())
        if action.number:
            self._agreements[action.job_id][action.number] = _Agreement(rank=action.rank, key=key)
        self._flush(action.job_id)

    # ---- what the applications say --------------------------------------------------------------------------------

    def heard(self, record: JobRecord, party: Party, rank: int, data: bytes) -> None:
        """Take in a frame with a template. Raises NegotiationError when it is none; the process is told so, too."""
        endpoint = self._endpoint(record.job.id, rank)
        try:
            for event in endpoint.receive(data, self._clock()):
                self._take(record, party, rank, event)
        finally:
            endpoint.unreadable = False  # frames are cut by the agent: what follows can be told apart
            self._flush(record.job.id)
        self.follow(record, party)

    def in_contact(self, job_id: JobId, rank: int) -> None:
        """A process has come back: say again what may not have arrived."""
        self._endpoint(job_id, rank).resumed()
        self._flush(job_id)

    def time_passed(self, record: JobRecord, party: Party) -> None:
        """End what was not answered in time."""
        now = self._clock()
        for rank, endpoint in list(self._endpoints[record.job.id].items()):
            for event in endpoint.time_passed(now):
                self._take(record, party, rank, event)
        self._flush(record.job.id)

    def out_of_contact(self, record: JobRecord, party: Party, rank: int) -> None:
        """A connection has ended that was no agent's: what was not agreed on by it is lost."""
        for event in self._endpoint(record.job.id, rank).disconnected(self._clock()):
            self._take(record, party, rank, event)
        self.follow(record, party)

    def next_deadline(self, job_id: JobId) -> float | None:
        """Return when `time_passed` is to be called for a job at the latest; None: not for now."""
        times = [one.next_deadline() for one in self._endpoints.get(job_id, {}).values()]
        return min((one for one in times if one is not None), default=None)

    def forget(self, job_id: JobId) -> None:
        """A job is over."""
        self._endpoints.pop(job_id, None)
        self._agreements.pop(job_id, None)
        self._offered_before.pop(job_id, None)

    def _take(self, record: JobRecord, party: Party, rank: int, event: Event) -> None:
        if isinstance(event, Unreadable):
            raise NegotiationError(event.reason)
        if isinstance(event, OfferReceived):
            self._answer_offer(record, party, rank, event)
        elif isinstance(event, OfferAccepted | Agreed):
            number = self._number_of(record.job.id, rank, event.key)
            if number is not None:
                self._answer(record.job.id, number, event.template)
            else:  # it could not be said while the application had the last word
                reason = record.last_trouble or "it cannot be had any more"
                self._endpoint(record.job.id, rank).send(withdrawn(event.template, reason), self._clock())
        elif isinstance(event, Ended):
            number = self._number_of(record.job.id, rank, event.key)
            if number is not None and event.was_agreed:
                self._give_up(record.job.id, number, event.reason)
            elif number is not None:
                lapsed = event.state is State.EXPIRED and number in self._offered_before[record.job.id]
                self._decline(record.job.id, number, event.reason, lapsed=lapsed)
                self._give_up(record.job.id, number, event.reason or "the application has not committed to it")

    def _number_of(self, job_id: JobId, rank: int, key: NegotiationKey) -> int | None:
        agreements = self._agreements[job_id].items()
        return next((number for number, one in agreements if (one.rank, one.key) == (rank, key)), None)

    def _answer_offer(self, record: JobRecord, party: Party, rank: int, event: OfferReceived) -> None:
        endpoint = self._endpoint(record.job.id, rank)
        template, now = event.template, self._clock()
        problem = problem_of(template)
        if problem:
            endpoint.send(rejected(template, problem), now)
        elif event.key.initiator is Side.RMS or self._number_of(record.job.id, rank, event.key) is not None:
            endpoint.send(accepted(template), now)  # a counter-offer: that it is within the bounds has been checked
        else:
            self._wish(record, party, rank, template)

    def _wish(self, record: JobRecord, party: Party, rank: int, template: Template) -> None:
        component = party.component_of(rank)
        if component is None:
            return
        if any(change.agreement == template.agreement_id for _, change in _changes(record, party)):
            return  # it was told before a restart
        self._report(wish_of(record, component, rank, template, self._clock()))

    # ---- after a restart ------------------------------------------------------------------------------------------

    def restore(self, record: JobRecord, party: Party) -> None:
        """Go on with what was agreed on before this process began."""
        had_ended: list[tuple[Change, Template]] = []
        for claim, change in _changes(record, party):
            side = Side.APPLICATION if change.agreement else Side.RMS
            kept = self._recalled(record.job.id, side, change.agreement or str(change.number))
            rank = change.asker if change.agreement else party.speaker(claim.component) if kept is None else kept.rank
            if rank is None or change.number in self._agreements[record.job.id]:
                continue
            final = final_word(kept)
            if final is not None and final.status is not Status.CONSUMED and not party.carries_out(change):
                had_ended.append((change, final))
                continue
            found = restored(record, claim, change, host_of(record, rank), kept, carried_out=party.carries_out(change))
            if found is None:
                self._offered_before[record.job.id].add(change.number)
                continue  # it is offered again
            said, state = found
            self._agreements[record.job.id][change.number] = _Agreement(
                rank=rank, key=said.key, moved=party.carries_out(change)
            )
            endpoint = self._endpoint(record.job.id, rank)
            if endpoint.state(said.key) is State.NEW:
                endpoint.restore(said, state, said.round or round_of(change), self._clock() + BACK_WITHIN)
        for change, final in had_ended:  # not before all are known: it has consequences
            self._had_ended(record.job.id, change, final)

    def _had_ended(self, job_id: JobId, change: Change, final: Template) -> None:
        """Tell the scheduler how a negotiation ended: it was killed between that and hearing of it."""
        reason = final.reason or f"it is {final.status.value.removeprefix('NT_').lower()}"
        if change.phase is ChangePhase.ASKED:
            self._decline(job_id, change.number, reason, lapsed=final.status is Status.EXPIRED)
        else:
            self._give_up(job_id, change.number, reason)

    # ---- its parts ------------------------------------------------------------------------------------------------

    def _endpoint(self, job_id: JobId, rank: int) -> Endpoint:
        endpoints = self._endpoints[job_id]
        if rank not in endpoints:
            watch = partial(self._keep, job_id, rank)
            recall = partial(self._final_word, job_id, rank)
            endpoints[rank] = Endpoint(side=Side.RMS, host=HOST, peer="application", watch=watch, recall=recall)
        return endpoints[rank]

    def _final_word(self, job_id: JobId, rank: int, key: NegotiationKey) -> Template | None:
        """Return what ended a negotiation with a process before this service began."""
        kept = self._recalled(job_id, key.initiator, key.agreement_id)
        return final_word(kept) if kept is not None and kept.rank == rank else None

    @property
    def _answer_within(self) -> float:
        return round(min(ANSWER_WITHIN, 0.9 * self._answer_timeout()), 3)

    def _answer(self, job_id: JobId, number: int, settled: Template) -> None:
        without_memory = any(one.type == MEMORY and one.declined for one in settled.resources)
        answer = ev.OfferAnswered(time=self._clock(), job_id=job_id, number=number, accepted=settled.quantity(CPU))
        self._report(replace(answer, memory_declined=without_memory, trouble=self._trouble_with(job_id, number)))

    def _decline(
        self,
        job_id: JobId,
        number: int,
        why: str,
        *,
        lapsed: bool = False,
        trouble: str = "",
        in_the_way: tuple[int, ...] = (),
    ) -> None:
        answer = ev.OfferAnswered(time=self._clock(), job_id=job_id, number=number, accepted=0, reason=why)
        trouble = trouble or self._trouble_with(job_id, number)
        self._report(replace(answer, lapsed=lapsed, trouble=trouble, in_the_way=in_the_way))

    def _trouble_with(self, job_id: JobId, number: int) -> str:
        agreement = self._agreements[job_id].get(number)
        return "" if agreement is None else agreement.trouble

    def _give_up(self, job_id: JobId, number: int, reason: str) -> None:
        self._agreements[job_id].pop(number, None)
        self._report(ev.ChangeGivenUp(time=self._clock(), job_id=job_id, number=number, reason=reason))

    def _flush(self, job_id: JobId) -> None:
        for rank, endpoint in self._endpoints[job_id].items():
            for payload in FrameBuffer().feed(endpoint.data_to_send()):
                self._say(job_id, rank, frame(payload))


def _changes(record: JobRecord, party: Party) -> Iterator[tuple[Claim, Change]]:
    for claim in record.claims:
        if claim.change is not None and party.negotiates(claim.component):
            yield claim, claim.change

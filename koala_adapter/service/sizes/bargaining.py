# SPDX-License-Identifier: Apache-2.0
"""Negotiations about the size of one job, between the scheduler's records and the endpoints of the application.

First the job that negotiates, whose methods turn bytes into templates and templates into bytes. Then its negotiations:
offers and wishes in the records become templates, and answers become events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from koala_adapter import negotiation as nt
from koala_adapter.errors import NegotiationStepError, UnreadableTemplateError
from koala_adapter.negotiation.states import (
    ACCEPTED,
    ACCEPTING,
    AGREED,
    ASKED,
    BARGAINING,
    CONSUMED,
    EXPIRED,
    NEW,
    OFFERED,
)
from koala_adapter.negotiation.templates import (
    APPLICATION,
    CPU,
    MEMORY,
    NT_ACCEPTED,
    NT_COMMITTED,
    NT_CONSUMED,
    NT_EXPIRED,
    NT_NEGOTIATION,
    RMS,
    SHRINK,
)
from koala_adapter.runners.runner import task_id
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.sizechange import Change, ChangePhase
from koala_adapter.service.sizes.kept import NegotiationKeeper, Spoken, spoken
from koala_adapter.service.sizes.offers import HOST, NEGOTIATOR, host_of, offer_of, problem_of, wish_of
from koala_adapter.vjm.channel import Application

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.model import JobId
    from koala_adapter.scheduler.records import Claim, JobRecord
    from koala_adapter.service.applications import Applications
    from koala_adapter.service.core import Core
    from koala_adapter.service.sizes.port import NegotiationPort


# -- A job that changes its size -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Parts of a service that a job uses to change its size."""

    core: Core
    applications: Applications
    programs: NegotiationPort
    keeper: NegotiationKeeper


class SizedJob(ABC):
    """A running job that may change its size; base class."""

    def __init__(self, around: Surroundings, job_id: JobId) -> None:
        self.id = job_id
        self._core = around.core
        self._applications = around.applications
        self._programs = around.programs
        self.negotiated = self.represented
        """True once a program has negotiated for the job."""
        self.complaint = ""
        """What its processes did last that they may not do, for people."""
        self.bargaining = Bargaining(self, around.core, around.keeper)

    @property
    def represented(self) -> bool:
        """Whether a program negotiates for the job."""
        return self._programs.represents(self.id)

    # ---- what the service tells it ---------------------------------------------------------------------------------

    @abstractmethod
    def follow(self, record: JobRecord) -> None:
        """Update from the records after an event."""

    @abstractmethod
    def carry_out(self, record: JobRecord, action: act.SizeAction) -> None:
        """Carry out an action of the scheduler for this job."""

    @abstractmethod
    def resume(self, record: JobRecord) -> None:
        """Continue what the records show as under way, after a restart."""

    @abstractmethod
    def time_passed(self, record: JobRecord) -> None:
        """Give up what is overdue."""

    @abstractmethod
    def next_deadline(self) -> float | None:
        """Return the next time at which :meth:`time_passed` must be called; None: not before another event."""

    # ---- how it negotiates -----------------------------------------------------------------------------------------

    @abstractmethod
    def negotiates(self, component: str) -> bool:
        """Return whether a component's size is negotiated."""

    @abstractmethod
    def ready(self, component: str) -> bool:
        """Return whether an offer can be made now."""

    @abstractmethod
    def speaker(self, component: str) -> int | None:
        """Return the rank that gets offers; None: there is none."""

    @abstractmethod
    def size(self, component: str) -> int:
        """Return the processors that a component has."""

    @abstractmethod
    def able_to_leave(self, record: JobRecord, claim: Claim) -> int:
        """Return how many processors a claim can give up at most."""

    @abstractmethod
    def component_of(self, rank: int) -> str | None:
        """Return the component that a rank speaks for; None: none."""

    @abstractmethod
    def in_progress(self, change: Change) -> bool:
        """Return whether a change is under way that can no longer be withdrawn."""

    # ---- templates and bytes -----------------------------------------------------------------------------------------

    def hear(self, record: JobRecord, rank: int, payload: bytes) -> None:
        """Process a template of a process or program.

        Raises UnreadableTemplateError when it is none, which the sender is told; NegotiationStepError.
        """
        try:
            template = nt.parse(payload)
        except nt.NegotiationError as error:
            self.bargaining.complain(rank, str(error))
            raise UnreadableTemplateError(str(error)) from None
        self.bargaining.heard(record, rank, template, payload.decode())

    def say(self, rank: int, payload: bytes) -> None:
        """Send a template or note to a process or program."""
        if rank == NEGOTIATOR:
            self._programs.say(self.id, payload)
            return
        record = self._core.state.jobs.get(self.id)
        if record is not None and rank < len(record.ranks):
            placeholder = record.ranks[rank].placeholder
            self._core.center.tell(placeholder, Application(task=task_id(self.id, rank), data=nt.frame(payload)))


# -- Bargaining of one job -----------------------------------------------------------------------------------
# Offers go to the first member of a component; each member may ask for more processors, or give some back. The
# scheduler reserves what an application is offered, so an acceptance is followed by the commitment once the scheduler
# has it.

ANSWER_WITHIN = 20.0
"""Seconds; the library answers at once. Less where the scheduler waits less: what is offered is kept for longer."""

BACK_WITHIN = 60.0
"""Seconds after a restart in which processes come back into contact, and hear again what they have to answer."""


_GOES_ON = frozenset({NT_ACCEPTED, NT_COMMITTED, NT_CONSUMED})
_OPEN = frozenset({ChangePhase.ASKED, ChangePhase.PROMISED})
"""Phases of changes that nothing is agreed on yet."""
_SETTLED = frozenset({ACCEPTING, ACCEPTED, AGREED, CONSUMED})
"""States of a negotiation whose change is being made."""
_NOT_KEPT = "what was said about it was not kept"


@dataclass(slots=True)
class _Agreement:
    """Negotiation of a change in the records."""

    rank: int
    key: nt.NegotiationKey
    moved: bool = False
    """Its change is being carried out."""
    came: set[int] = field(default_factory=set)
    """Ranks that were added by it, whether they are there any more or not."""
    trouble: str = ""
    """What is wrong with the rule that decided how much was asked for."""


class Bargaining:
    """All negotiations about the sizes of one job."""

    def __init__(self, job: SizedJob, core: Core, keeper: NegotiationKeeper) -> None:
        """``keeper``: stores messages and returns those from before a restart."""
        self._job = job
        self._core = core
        self._keeper = keeper
        self._endpoints: dict[int, nt.Endpoint] = {}
        """By rank."""
        self._agreements: dict[int, _Agreement] = {}
        """By number of the change."""
        self._unsaid: list[tuple[int, bytes]] = []
        """Templates that are kept and not said yet, with the ranks they are for."""
        self._offered_before: set[int] = set()
        """Numbers of changes whose offers were out when this process began: their time may have run out meanwhile."""

    # ---- what the scheduler wants -----------------------------------------------------------------------------------

    def follow(self, record: JobRecord) -> None:
        """Send what follows from the records: offers, commitments, results of agreements."""
        open_ = {change.number: (claim, change) for claim, change in _changes(record, self._job)}
        agreements = self._agreements
        for number, agreement in list(agreements.items()):
            if number not in open_ and not self._waits(agreement):
                del agreements[number]
                for other in agreements.values():  # on other clusters: what is said of the last is said of all
                    if other.key == agreement.key:
                        other.came |= agreement.came
                self._over(record, agreement)  # before anything new is offered, which would be counted on top
        for number, (claim, change) in open_.items():
            self._follow_change(record, claim, change)
            known = agreements.get(number)
            if known is not None:
                known.moved = known.moved or self._job.in_progress(change)
                known.came.update(change.ranks if change.phase is ChangePhase.TAKING else ())
        self._flush()

    def _follow_change(self, record: JobRecord, claim: Claim, change: Change) -> None:
        agreement = self._agreements.get(change.number)
        if agreement is None and change.agreement and change.asker is not None:
            agreement = self._one_of_several(change)
        if agreement is None and change.phase is ChangePhase.ASKED and not change.agreement:
            self._offer(record, claim, change)
        elif agreement is not None and change.phase not in _OPEN:
            endpoint = self._endpoint(agreement.rank)
            standing = endpoint.standing(agreement.key)
            if standing is None or endpoint.state(agreement.key) != ACCEPTED:
                return
            comes = change.accepted
            if change.processors > 0 and not change.agreement and comes < standing.quantity(CPU):
                reason = f"only {comes} can be had any more"  # to which it has not agreed: it is offered anew
                self._tell(agreement.rank, nt.withdrawn(standing, reason))
                self._give_up(change.number, reason)
                return
            self._tell(agreement.rank, nt.committed(standing))

    def _one_of_several(self, change: Change) -> _Agreement | None:
        """Handle a change that shares its agreement with others on other clusters; None: it does not."""
        key = (APPLICATION, change.agreement)
        if change.asker is None or self._number_of(change.asker, key) is None:
            return None
        agreement = self._agreements[change.number] = _Agreement(rank=change.asker, key=key)
        return agreement

    def _offer(self, record: JobRecord, claim: Claim, change: Change) -> None:
        first = self._job.speaker(claim.component)
        if first is None or not self._job.ready(claim.component):
            return  # it is said when all have come
        rules, within = self._core.size_rules, self._answer_within
        template, why_none, trouble = offer_of(
            record, self._job, claim, change, host_of(record, first), rules=rules, answer_within=within
        )
        if template is None:
            self._decline(change.number, why_none, trouble=trouble)
            return
        if self._endpoint(first).state(template.key) != NEW:
            return  # it is settled, and what the scheduler is to know of that waits for the journal
        self._agreements[change.number] = _Agreement(rank=first, key=template.key, trouble=trouble)
        self._tell(first, template)

    def _over(self, record: JobRecord, agreement: _Agreement) -> None:
        """Send the result of an agreement whose change has left the records."""
        endpoint = self._endpoint(agreement.rank)
        standing, state = endpoint.standing(agreement.key), endpoint.state(agreement.key)
        if standing is None or any(one.key == agreement.key for one in self._agreements.values()):
            return
        lost = len(agreement.came & record.departed)
        if state == AGREED and agreement.moved and (not lost or lost < len(agreement.came)):
            report = nt.consumed(standing)._replace(reason=_loss(lost, len(agreement.came)))
            self._tell(agreement.rank, report)
        elif state in {OFFERED, ACCEPTED, AGREED}:
            self._tell(agreement.rank, nt.withdrawn(standing, record.last_trouble or "it is over"))

    def _waits(self, agreement: _Agreement) -> bool:
        """Return whether an agreement's result is not known yet.

        Either WithdrawOffer is on its way and says why a growth that was agreed on is not made, or it is there before
        the application has committed itself.
        """
        endpoint = self._endpoint(agreement.rank)
        standing = endpoint.standing(agreement.key)
        if agreement.moved and endpoint.state(agreement.key) == ACCEPTING:
            return True
        grows = standing is not None and standing.direction != SHRINK
        return grows and not agreement.moved and endpoint.state(agreement.key) in {ACCEPTED, AGREED}

    def withdraw(self, number: int, reason: str) -> None:
        """Tell an application that accepted processors are not available."""
        agreement = self._agreements.pop(number, None)  # most jobs have none, and are not kept here
        if agreement is None:
            return
        endpoint = self._endpoint(agreement.rank)
        standing = endpoint.standing(agreement.key)
        if standing is not None and endpoint.state(agreement.key) in {OFFERED, ACCEPTED, AGREED}:
            self._tell(agreement.rank, nt.withdrawn(standing, reason))
        self._flush()

    def grant(self, action: act.GrantProcessors) -> None:
        """Answer an application's request."""
        if not action.agreement or action.rank is None:
            return
        key = (APPLICATION, action.agreement)
        endpoint = self._endpoint(action.rank)
        offer = endpoint.standing(key)
        if offer is None or endpoint.state(key) != ASKED:
            return
        given = {CPU, MEMORY} if action.memory_mib else {CPU}
        stand = [one for one in offer.resources if not one.declined]
        refused = [one.key for one in stand if one.type not in given]
        if action.processors == 0:
            self._tell(action.rank, nt.rejected(offer, action.reason))
        elif action.countered:
            (wanted,) = (one.key for one in stand if one.type == CPU)
            answer = nt.countered(offer, {wanted: action.processors}, declined=refused, reason=action.reason)
            self._tell(action.rank, answer._replace(answer_within=self._answer_within))
        else:
            self._tell(action.rank, nt.accepted(offer, declined=refused))
        if action.number:
            self._agreements[action.number] = _Agreement(rank=action.rank, key=key)
        self._flush()

    # ---- what the applications say --------------------------------------------------------------------------------

    def heard(self, record: JobRecord, rank: int, template: nt.Template, text: str) -> None:
        """Process a template of a process; ``text``: its source."""
        endpoint, key = self._endpoint(rank), template.key
        unknown = endpoint.state(key) == NEW and template.status != NT_NEGOTIATION
        before = self._spoken(rank, key) if unknown else Spoken()
        if template.status == NT_EXPIRED and self._has_come_about(rank, key, before):
            self.follow(record)
            return
        self._keeper.keep(self._job.id, rank, APPLICATION, template, text)
        try:
            if before.final is not None and template.status in _GOES_ON:  # it had ended before this service began
                self._note_said(rank, before.final, before.final_text)
            else:
                self._take(record, rank, endpoint.hear(template, self._core.now()))
        finally:
            self._flush()
        self.follow(record)

    def complain(self, rank: int, reason: str) -> None:
        """Tell a process that its message was no template."""
        self._endpoint(rank).complain(reason)
        self._empty_outbox(rank)
        self._flush()

    def _has_come_about(self, rank: int, key: nt.NegotiationKey, before: Spoken) -> bool:
        """Return whether an agreement has been carried out or is being carried out.

        Then it does not expire, whatever the peer says, which may be a program that was started anew.
        """
        if before.final is not None:
            return before.final.status == NT_CONSUMED
        state, agreements = self._endpoint(rank).state(key), self._agreements.values()
        moved = any(one.moved for one in agreements if (one.rank, one.key) == (rank, key))
        return state == CONSUMED or (state == AGREED and moved)

    def in_contact(self, rank: int) -> None:
        """Repeat to a process that is back what may have been lost."""
        self._endpoint(rank).resumed()
        self._empty_outbox(rank)
        self._flush()

    def time_passed(self, record: JobRecord) -> None:
        """End overdue negotiations."""
        for rank, endpoint in list(self._endpoints.items()):
            self._take(record, rank, endpoint.time_passed(self._core.now()))
        self._flush()

    def out_of_contact(self, record: JobRecord, rank: int) -> None:
        """End negotiations without agreement of a connection that has ended."""
        self._take(record, rank, self._endpoint(rank).disconnected(self._core.now()))
        self.follow(record)

    def next_deadline(self) -> float | None:
        """Return the next time at which `time_passed` must be called; None: not before another event."""
        times = [one.next_deadline() for one in self._endpoints.values()]
        return min((one for one in times if one is not None), default=None)

    def _take(self, record: JobRecord, rank: int, events: list[nt.Event]) -> None:
        self._empty_outbox(rank)
        for event in events:
            number, template = self._number_of(rank, event.key), event.template
            if event.kind == "offer" and template is not None:
                self._answer_offer(record, rank, template)
            elif event.kind in {"accepted", "agreed"} and template is not None:
                if number is not None:
                    self._answer(number, template)
                else:  # it could not be said while the application had the last word
                    self._tell(rank, nt.withdrawn(template, record.last_trouble or "it cannot be had any more"))
            elif event.kind == "ended" and number is not None and event.was_agreed:
                self._give_up(number, event.reason)
            elif event.kind == "ended" and number is not None:
                lapsed = event.state == EXPIRED and number in self._offered_before
                self._decline(number, event.reason, lapsed=lapsed)
                self._give_up(number, event.reason or "the application has not committed to it")

    def _number_of(self, rank: int, key: nt.NegotiationKey) -> int | None:
        agreements = self._agreements.items()
        return next((number for number, one in agreements if (one.rank, one.key) == (rank, key)), None)

    def _answer_offer(self, record: JobRecord, rank: int, offer: nt.Template) -> None:
        problem = problem_of(offer)
        if problem:
            self._tell(rank, nt.rejected(offer, problem))
        elif offer.initiator == RMS or self._number_of(rank, offer.key) is not None:
            self._tell(rank, nt.accepted(offer))  # a counter-offer: that it is within the bounds has been checked
        else:
            self._wish(record, rank, offer)

    def _wish(self, record: JobRecord, rank: int, template: nt.Template) -> None:
        component = self._job.component_of(rank)
        if component is None:
            return
        if any(change.agreement == template.agreement_id for _, change in _changes(record, self._job)):
            return  # it was told before a restart
        self._core.loop.post(wish_of(record, component, rank, template, self._core.now()))

    # ---- after a restart ------------------------------------------------------------------------------------------

    def restore(self, record: JobRecord) -> None:
        """Restore negotiations of an earlier process by replaying their messages."""
        before: list[tuple[Change, Spoken]] = []
        for claim, change in _changes(record, self._job):
            key = (APPLICATION, change.agreement) if change.agreement else (RMS, str(change.number))
            kept, rank = self._keeper.recalled(self._job.id, key), change.asker
            if not change.agreement:
                rank = self._job.speaker(claim.component) if kept is None else kept.rank
            if rank is None or change.number in self._agreements:
                continue
            said, moved = spoken(kept), self._job.in_progress(change)
            if change.phase is ChangePhase.ASKED and not (change.agreement or said.final or said.accepted_by_koala):
                self._offered_before.add(change.number)
                continue  # it is offered again
            if moved or not said.ended:
                agreement = self._agreements[change.number] = _Agreement(rank=rank, key=key, moved=moved)
                self._replay(change, agreement, said)
            before.append((change, said))
        for change, said in before:  # not before all are known: it has consequences
            if change.number in self._agreements:
                self._go_on(record, change, said)
            elif said.final is not None:
                self._had_ended(change, said.final)

    def _replay(self, change: Change, agreement: _Agreement, said: Spoken) -> None:
        """Replay messages, with those the application must have sent by the state of the change."""
        endpoint, key, back = self._endpoint(agreement.rank), agreement.key, self._core.now() + BACK_WITHIN
        if endpoint.state(key) != NEW:
            return  # by another change of the same agreement
        for sender, template in said.messages:
            endpoint.replay(sender, template, back)
        standing, state = endpoint.standing(key), endpoint.state(key)
        if standing is None:
            return
        if state == OFFERED and change.phase not in _OPEN and change.accepted == standing.quantity(CPU):
            endpoint.replay(APPLICATION, nt.accepted(standing), back)
        elif state == ACCEPTING and agreement.moved:
            endpoint.replay(APPLICATION, nt.committed(standing), back)

    def _go_on(self, record: JobRecord, change: Change, said: Spoken) -> None:
        """Do what an earlier process may have left undone between a message and its event."""
        number, agreement = change.number, self._agreements[change.number]
        state = self._endpoint(agreement.rank).state(agreement.key)
        standing = self._endpoint(agreement.rank).standing(agreement.key)
        settled = change.phase not in _OPEN
        if state == ASKED and standing is not None and any(sender == RMS for sender, _ in said.messages):
            self._answer_offer(record, agreement.rank, standing)
        elif state == ASKED and change.phase is not ChangePhase.PROMISED:
            self.grant(_granted(self._job.id, change))
        elif state in {ACCEPTED, AGREED} and standing is not None and not settled:
            self._answer(number, standing)
        elif not agreement.moved and state not in (_SETTLED if settled else BARGAINING):
            self._decline(number, _NOT_KEPT)
            self._give_up(number, _NOT_KEPT)

    def _had_ended(self, change: Change, final: nt.Template) -> None:
        """Report a negotiation's end to the scheduler, missed by a kill."""
        reason = final.reason or f"it is {final.status.removeprefix('NT_').lower()}"
        if change.phase is ChangePhase.ASKED:
            self._decline(change.number, reason, lapsed=final.status == NT_EXPIRED)
        else:
            self._give_up(change.number, reason)

    # ---- its parts ------------------------------------------------------------------------------------------------

    def _endpoint(self, rank: int) -> nt.Endpoint:
        if rank not in self._endpoints:
            self._endpoints[rank] = nt.Endpoint(RMS, HOST, "application")
        return self._endpoints[rank]

    def _spoken(self, rank: int, key: nt.NegotiationKey) -> Spoken:
        """Return the stored messages of a negotiation with a process."""
        kept = self._keeper.recalled(self._job.id, key)
        return spoken(kept if kept is not None and kept.rank == rank else None)

    def _tell(self, rank: int, template: nt.Template) -> None:
        try:
            self._endpoint(rank).tell(template, self._core.now())
        except nt.NegotiationError as error:
            raise NegotiationStepError(str(error)) from None
        self._empty_outbox(rank)

    def _empty_outbox(self, rank: int) -> None:
        """Store an endpoint's messages before they are sent and acted upon."""
        for template in self._endpoint(rank).take_outbox():
            self._note_said(rank, template, nt.build(template).decode())

    def _note_said(self, rank: int, template: nt.Template, text: str) -> None:
        self._keeper.keep(self._job.id, rank, RMS, template, text)
        self._unsaid.append((rank, text.encode()))

    def _flush(self) -> None:
        unsaid, self._unsaid = self._unsaid, []
        for rank, payload in unsaid:
            self._job.say(rank, payload)

    @property
    def _answer_within(self) -> float:
        return round(min(ANSWER_WITHIN, 0.9 * self._core.state.parameters.answer_timeout), 3)

    def _answer(self, number: int, settled: nt.Template) -> None:
        without_memory = any(one.type == MEMORY and one.declined for one in settled.resources)
        answer = ev.OfferAnswered(
            time=self._core.now(), job_id=self._job.id, number=number, accepted=settled.quantity(CPU)
        )
        self._core.loop.post(replace(answer, memory_declined=without_memory, trouble=self._trouble_with(number)))

    def _decline(self, number: int, why: str, *, lapsed: bool = False, trouble: str = "") -> None:
        answer = ev.OfferAnswered(time=self._core.now(), job_id=self._job.id, number=number, accepted=0, reason=why)
        trouble = trouble or self._trouble_with(number)
        self._core.loop.post(replace(answer, lapsed=lapsed, trouble=trouble))

    def _trouble_with(self, number: int) -> str:
        agreement = self._agreements.get(number)
        return "" if agreement is None else agreement.trouble

    def _give_up(self, number: int, reason: str) -> None:
        self._agreements.pop(number, None)
        self._core.loop.post(ev.ChangeGivenUp(time=self._core.now(), job_id=self._job.id, number=number, reason=reason))


def _loss(lost: int, of: int) -> str:
    """Return which agreed processors are gone already, in words; empty: none."""
    return f"{lost} of the {of} {'was' if lost == 1 else 'were'} lost before all processes had begun" if lost else ""


def _changes(record: JobRecord, job: SizedJob) -> Iterator[tuple[Claim, Change]]:
    for change in record.changes.values():
        if job.negotiates(change.component):
            yield record.claims[change.parts[0].claim], change


def _granted(job_id: JobId, change: Change) -> act.GrantProcessors:
    """Return the action that answers an application's request by a change."""
    return act.GrantProcessors(
        job_id=job_id,
        component=change.component,
        number=change.number,
        processors=abs(change.processors),
        agreement=change.agreement,
        rank=change.asker,
        countered=change.countered,
        memory_mib=change.memory_mib,
    )

# SPDX-License-Identifier: Apache-2.0
"""Negotiations about the size of one job: how far they came, the parties, the templates, and the manager.

In this order: what the kept messages of a negotiation came to, the party that negotiates for a job, changes of size
as templates, and the negotiation manager between the scheduler's records and the endpoints of applications.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from koala_adapter.errors import NegotiationError, UnreadableTemplateError
from koala_adapter.negotiation.serviceside import document as templatexml
from koala_adapter.negotiation.serviceside.document import FrameBuffer, frame
from koala_adapter.negotiation.serviceside.endpoint import (
    Agreed,
    Ended,
    Endpoint,
    OfferAccepted,
    OfferReceived,
    Unreadable,
)
from koala_adapter.negotiation.serviceside.states import State
from koala_adapter.negotiation.serviceside.template import (
    CPU,
    MEMORY,
    Direction,
    Negotiability,
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
from koala_adapter.runners.adaptive import able_to_leave
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.records import ChangePhase
from koala_adapter.scheduler.states import bounds
from koala_adapter.sizes import OWN_SIZES, SizeRules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from koala_adapter.model import JobId
    from koala_adapter.negotiation.serviceside.endpoint import Event
    from koala_adapter.runners.adaptive import AdaptiveRunner
    from koala_adapter.scheduler import actions as act
    from koala_adapter.scheduler.records import Change, Claim, JobRecord
    from koala_adapter.service.records import KeptNegotiation, Message


# -- How far a kept negotiation came (pure) ------------------------------------------------------------------

_ENDS = frozenset({Status.REJECTED, Status.WITHDRAWN, Status.EXPIRED, Status.ERROR})


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a negotiation was about, and how far it came."""

    status: Status
    """Of the message that decided; an offer, an acceptance or an agreement stands as long as nothing ended it."""
    sender: Side
    """Who said that."""
    at: float
    shrinks: bool
    mandatory: bool
    asked: int
    """Processors in the first offer."""
    standing: int
    """Processors in the last offer, and then in what was agreed on."""
    reason: str
    """The last that was given."""
    first: bool
    """Nothing but the first offer has been said."""

    @property
    def ended(self) -> bool:
        """Whether nothing more can come of it."""
        return self.status in _ENDS or self.status is Status.CONSUMED


@lru_cache(maxsize=1000)  # each reply of a watch tells of the same few
def course(kept: KeptNegotiation) -> Course | None:
    """Return how far a negotiation came; None: none of its messages is there."""
    found: Course | None = None
    for message, template in _read(kept):
        if found is None:
            found = Course(
                status=template.status,
                sender=Side(message.sender),
                at=message.at,
                shrinks=template.direction is Direction.SHRINK,
                mandatory=template.obligation is not None and template.obligation.value == "mandatory",
                asked=template.quantity(CPU),
                standing=template.quantity(CPU),
                reason=template.reason,
                first=True,
            )
        elif found.status not in _ENDS:
            found = _followed(found, message, template)
    return found


def _followed(so_far: Course, message: Message, template: Template) -> Course:
    stands = template.status not in _ENDS
    return Course(
        status=template.status,
        sender=Side(message.sender),
        at=message.at,
        shrinks=so_far.shrinks,
        mandatory=so_far.mandatory,
        asked=so_far.asked,
        standing=template.quantity(CPU) if stands else so_far.standing,
        reason=template.reason or so_far.reason,
        first=False,
    )


def _read(kept: KeptNegotiation) -> Iterator[tuple[Message, Template]]:
    for message in kept.messages:
        with suppress(NegotiationError):  # another version kept it, which could read it
            yield message, templatexml.parse(message.template.encode())


def templates_of(kept: KeptNegotiation | None) -> list[Template]:
    """Return all that was said, in order, as far as is known."""
    return [] if kept is None else [template for _, template in _read(kept)]


def acceptance_of_koala(kept: KeptNegotiation | None) -> Template | None:
    """Return what koala has accepted, if that was the last word but the commitment to it; None: it was not."""
    for message, template in reversed([] if kept is None else list(_read(kept))):
        by_koala = message.sender == Side.RMS.value
        if by_koala or template.status is not Status.COMMITTED:
            return template if by_koala and template.status is Status.ACCEPTED else None
    return None


def is_committed(kept: KeptNegotiation | None) -> bool:
    """Tell whether one side has committed itself to what the other accepted, as far as is known."""
    return any(template.status is Status.COMMITTED for template in templates_of(kept))


def final_word(kept: KeptNegotiation | None) -> Template | None:
    """Return what told how a negotiation ended, whichever side said it; None: it has not ended, as far as is known.

    That what was agreed on is real is told by koala alone. The peer may have begun another one under the name since.
    """
    final: Template | None = None
    for message, template in [] if kept is None else _read(kept):
        by_koala = message.sender == Side.RMS.value
        if template.status in _ENDS or (by_koala and template.status is Status.CONSUMED):
            final = template
        elif template.status is Status.NEGOTIATION:
            final = None
    return final


# -- The party that negotiates for a job (pure) --------------------------------------------------------------
# It is a process of the job, or a program that negotiates for it by TCP.

NEGOTIATOR = -1
"""Stands for the rank of a program that negotiates for a job by TCP, and is none of its processes."""


class Party(Protocol):
    """One job, as far as its sizes are negotiated."""

    def negotiates(self, component: str) -> bool:
        """Tell whether the size of a component is negotiated."""

    def ready(self, component: str) -> bool:
        """Tell whether something can be offered now."""

    def speaker(self, component: str) -> int | None:
        """Return the rank that offers go to; None: there is nobody."""

    def size(self, component: str) -> int:
        """Return the processors that a component has."""

    def able_to_leave(self, record: JobRecord, claim: Claim) -> int:
        """Return how many processors a claim can give up at most."""

    def component_of(self, rank: int) -> str | None:
        """Return the component that somebody speaks for; None: for none."""

    def carries_out(self, change: Change) -> bool:
        """Tell whether a change is being made, and can only end by being there."""


@dataclass(frozen=True, slots=True)
class AdaptiveParty:
    """A job whose processes change together; its first process speaks for it, unless another program does."""

    runner: AdaptiveRunner
    represented: bool = False
    """Another program negotiates for it."""

    def negotiates(self, component: str) -> bool:
        """See Party."""
        return component in self.runner.coordinators

    def ready(self, component: str) -> bool:
        """See Party."""
        return self.runner.coordinators[component].joined

    def speaker(self, component: str) -> int | None:
        """See Party."""
        members = self.runner.memberships[component].members
        return NEGOTIATOR if self.represented else members[0] if members else None

    def size(self, component: str) -> int:
        """See Party."""
        return len(self.runner.memberships[component].members)

    def able_to_leave(self, record: JobRecord, claim: Claim) -> int:
        """See Party."""
        members = set(self.runner.memberships[claim.component].members)
        ranks = [one for one in record.ranks if one.rank in members]
        return len(able_to_leave(ranks, claim.cluster or ""))

    def component_of(self, rank: int) -> str | None:
        """See Party."""
        if rank == NEGOTIATOR:
            return next(iter(self.runner.coordinators), None) if len(self.runner.coordinators) == 1 else None
        return self.runner.component_of(rank)

    def carries_out(self, change: Change) -> bool:
        """See Party."""
        return bool(change.adaptation)


@dataclass(frozen=True, slots=True)
class WorkersParty:
    """A job with workers, for which another program negotiates: they come and go without being asked."""

    record: JobRecord
    represented: bool

    def negotiates(self, component: str) -> bool:
        """See Party."""
        return self.record.job.changes_size(component)

    def ready(self, component: str) -> bool:
        """See Party."""
        return self.represented and self.negotiates(component)

    def speaker(self, component: str) -> int | None:
        """See Party."""
        return NEGOTIATOR if self.ready(component) else None

    def size(self, component: str) -> int:
        """See Party."""
        return sum(claim.processors for claim in self.record.claims if claim.component == component)

    def able_to_leave(self, record: JobRecord, claim: Claim) -> int:
        """See Party."""
        return max(0, claim.processors - bounds(record, claim)[0])

    def component_of(self, rank: int) -> str | None:
        """See Party."""
        able = [one.name for one in self.record.job.components if self.negotiates(one.name)]
        return able[0] if rank == NEGOTIATOR and len(able) == 1 else None

    def carries_out(self, change: Change) -> bool:
        """See Party."""
        return change.phase in {ChangePhase.TAKING, ChangePhase.RELEASING}


# -- Changes of size in the scheduler's records, as templates (pure) -----------------------------------------

HOST = "koala"
"""Our name in templates."""
_BEARER_STAYS = "the first process bears the others, and stays"
_NO_SIZE = "no size of its fits"
_NO_MORE_WANTED = "its owner wants no more"


def host_of(record: JobRecord, rank: int) -> str:
    """Return where a process is, or what is said in place of that, for templates."""
    if rank == NEGOTIATOR:
        return "negotiator"
    one = record.ranks[rank]
    return one.host or one.address or "application"


class FirstOffer(NamedTuple):
    """What a change begins with."""

    template: Template | None
    """The offer, or the request; None: there is nothing to offer."""
    why_none: str
    trouble: str
    """What is wrong with the rule that was to decide."""


def offer_of(
    record: JobRecord, party: Party, claim: Claim, change: Change, host: str, *, rules: SizeRules, answer_within: float
) -> FirstOffer:
    """Return the offer, or the request, that a change begins with, or why nothing can be taken, or given up, here."""
    grows, wanted = change.processors > 0, change.processors
    if grows:
        wanted = min(wanted, bounds(record, claim)[1] - claim.processors)
        if wanted < 1:
            return FirstOffer(None, _NO_MORE_WANTED, "")
    one = record.job.component(claim.component)
    decision = rules.decide(one.sizes, party.size(one.name), wanted, one.minimum, one.maximum)
    most = decision.processors if grows else party.able_to_leave(record, claim)
    quantity = min(decision.processors, most)
    if quantity < 1:
        return FirstOffer(None, _BEARER_STAYS if decision.processors else _NO_SIZE, decision.trouble)
    template = Template(
        agreement_id=str(change.number),
        initiator=Side.RMS,
        source=HOST,
        dest=_named(host),
        direction=Direction.GROW if grows else Direction.SHRINK,
        obligation=Obligation.VOLUNTARY if grows else Obligation.MANDATORY,
        answer_within=answer_within,
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
    return FirstOffer(template, "", decision.trouble)


def restored(
    claim: Claim, change: Change, host: str, kept: KeptNegotiation | None, *, carried_out: bool
) -> tuple[Template, State] | None:
    """Return what koala said last in the negotiation of a change, and its state; None: it begins anew."""
    if change.phase is ChangePhase.ASKED:
        acceptance = acceptance_of_koala(kept)
        if acceptance is not None:  # of a counter-offer: the scheduler hears of it with the commitment
            return acceptance, State.ACCEPTING
        if not change.countered:
            return None
    template = _restored_template(claim, change, host, templates_of(kept))
    # Who was accepted by koala as it asked has the last word, and may have said it.
    settled = not change.agreement or change.countered or carried_out or is_committed(kept)
    state = {ChangePhase.ASKED: State.OFFERED, ChangePhase.PROMISED: State.ASKED}.get(
        change.phase, State.AGREED if settled else State.ACCEPTING
    )
    return {State.AGREED: committed(template), State.ACCEPTING: accepted(template)}.get(state, template), state


def _restored_template(claim: Claim, change: Change, host: str, said: Sequence[Template] = ()) -> Template:
    """Return what stands in the negotiation of a change: as much as the records tell, of what was said to be about.

    ``said``: all that is known to have been said in it, in order. What the peer understands to stand has all resources
    that were in its first template, also those that were declined.
    """
    own = bool(change.agreement)
    quantity = _quantity_of(change)
    standing = [one for one in said if one.status in _STANDING and one.quantity(CPU)]
    if not standing:
        return _recorded_template(claim, change, host, quantity)
    given_back = own and change.processors < 0  # by as many changes as clusters, some of which may be over
    fitting = standing if given_back else [one for one in standing if one.quantity(CPU) == quantity]
    shape = (fitting or standing)[-1]
    given = {CPU, MEMORY} if change.memory_mib else {CPU}
    return replace(
        shape,
        status=Status.NEGOTIATION,
        round=shape.round if fitting else None,
        resources=tuple(
            replace(
                one,
                quantity=quantity if one.type == CPU and not given_back else one.quantity,
                status=Status.REJECTED if one.declined or (own and one.type not in given) else Status.NEGOTIATION,
                minimum=None,
                maximum=None,
            )
            for one in shape.resources
        ),
        reason="",
    )


_STANDING = frozenset({Status.NEGOTIATION, Status.ACCEPTED, Status.COMMITTED})


def _quantity_of(change: Change) -> int:
    """Return how many processors stand in the negotiation of a change."""
    if change.phase is ChangePhase.PROMISED:
        return change.wish
    asked = change.phase is ChangePhase.ASKED
    return max(1, abs(change.processors) if asked else change.accepted)


def _recorded_template(claim: Claim, change: Change, host: str, quantity: int) -> Template:
    """Return the same of a negotiation of which nothing is known but the records."""
    own = bool(change.agreement)
    grows = change.processors > 0
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
                quantity=quantity,
                cluster="" if own else claim.cluster or "",
                component="" if own else claim.component,
            ),
            *((Resource(type=MEMORY, quantity=change.memory_mib),) if change.memory_mib else ()),
        ),
    )


def round_of(change: Change) -> int:
    """Return which offer it was that stands: the first, or the counter-offer to it."""
    if change.phase is ChangePhase.PROMISED:
        return 1
    if change.agreement:
        return 2 if change.countered else 1
    return 1 if change.accepted == abs(change.processors) else 2


def _memory_wanted(template: Template) -> tuple[int, bool]:
    """Return how much memory an application wants with each processor in MiB, and whether it is required."""
    wanted = [one for one in template.resources if one.type == MEMORY and not one.declined]
    return (wanted[0].quantity, wanted[0].usage is Usage.REQUIRED) if wanted else (0, False)


def wish_of(
    record: JobRecord, component: str, rank: int, template: Template, now: float
) -> ev.MoreRequested | ev.LessRequested:
    """Return what the scheduler is told of the wish of a process for more processors, or for fewer."""
    processors = template.quantity(CPU)
    if template.direction is Direction.SHRINK:
        return ev.LessRequested(
            time=now,
            job_id=record.job.id,
            component=component,
            processors=processors,
            agreement=template.agreement_id,
            rank=rank,
        )
    latest = max((one.last_request for one in record.claims if one.component == component), default=0)
    wanted = next(one for one in template.resources if one.type == CPU and not one.declined)
    memory, required = _memory_wanted(template)
    return ev.MoreRequested(
        time=now,
        job_id=record.job.id,
        component=component,
        number=latest + 1,
        processors=processors,
        mandatory=template.obligation is Obligation.MANDATORY,
        agreement=template.agreement_id,
        rank=rank,
        least=wanted.quantity if wanted.negotiability is Negotiability.FIXED else wanted.minimum or 1,
        memory_mib=memory,
        memory_required=required,
        cluster=wanted.cluster,
    )


def _named(host: str) -> str:
    return "".join(one if one.isascii() and (one.isalnum() or one in "._:-") else "-" for one in host)[:255] or HOST


def problem_of(template: Template) -> str:
    """Return why an offer of an application is refused whatever is free; empty when it is not."""
    required = [one for one in template.resources if one.usage is Usage.REQUIRED and not one.declined]
    shrinks = template.direction is Direction.SHRINK
    for one in required:
        if one.type == MEMORY and (shrinks or not template.quantity(CPU)):
            return "memory comes and goes with processors: a batch system does not change that of a process that runs"
        if one.type not in {CPU, MEMORY}:
            return f"{one.type} cannot be had: processors, and memory with them, are settled while a job runs"
    if not template.quantity(CPU):
        return "it asks for no processors"
    if sum(one.type == MEMORY and not one.declined for one in template.resources) > 1:
        return "it asks for memory more than once"
    if sum(one.type == CPU and not one.declined for one in template.resources) != 1:
        return "it asks for processors more than once"
    return ""


# -- The negotiation manager ---------------------------------------------------------------------------------
# Offers and wishes in the scheduler's records become templates; answers become events.
#
# Offers go to the first member of a component; each member may ask for more processors, or give some back. The
# scheduler reserves what an application is offered, so an acceptance is followed by the commitment once the scheduler
# has it.

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
    came: set[int] = field(default_factory=set)
    """Ranks that were added by it, whether they are there any more or not."""
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
                for other in agreements.values():  # on other clusters: what is said of the last is said of all
                    if other.key == agreement.key:
                        other.came |= agreement.came
                self._over(record, agreement)  # before anything new is offered, which would be counted on top
        for number, (claim, change) in open_.items():
            self._follow_change(record, party, claim, change)
            known = agreements.get(number)
            if known is not None:
                known.moved = known.moved or party.carries_out(change)
                known.came.update(change.ranks if change.phase is ChangePhase.TAKING else ())
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
            if standing is None or endpoint.state(agreement.key) is not State.ACCEPTED:
                return
            comes = change.accepted
            if change.processors > 0 and not change.agreement and comes < standing.quantity(CPU):
                reason = f"only {comes} can be had any more"  # to which it has not agreed: it is offered anew
                endpoint.send(withdrawn(standing, reason), self._clock())
                self._give_up(job_id, change.number, reason)
                return
            endpoint.send(committed(standing), self._clock())

    def _one_of_several(self, job_id: JobId, change: Change) -> _Agreement | None:
        """Take note of a change that belongs to an agreement beside others, on other clusters; None: it does not."""
        key = NegotiationKey(initiator=Side.APPLICATION, agreement_id=change.agreement)
        if change.asker is None or self._number_of(job_id, change.asker, key) is None:
            return None
        agreement = self._agreements[job_id][change.number] = _Agreement(rank=change.asker, key=key)
        return agreement

    def _offer(self, record: JobRecord, party: Party, claim: Claim, change: Change) -> None:
        first = party.speaker(claim.component)
        if first is None or not party.ready(claim.component):
            return  # it is said when all have come
        rules, within = self._rules, self._answer_within
        template, why_none, trouble = offer_of(
            record, party, claim, change, host_of(record, first), rules=rules, answer_within=within
        )
        if template is None:
            self._decline(record.job.id, change.number, why_none, trouble=trouble)
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
        lost = len(agreement.came & record.departed)
        if state is State.AGREED and agreement.moved and (not lost or lost < len(agreement.came)):
            endpoint.send(replace(consumed(standing), reason=_loss(lost, len(agreement.came))), self._clock())
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
        agreement = self._agreements.get(job_id, {}).pop(number, None)  # most jobs have none, and are not kept here
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
        for rank, endpoint in list(self._endpoints.get(record.job.id, {}).items()):
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
            raise UnreadableTemplateError(event.reason)
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
            found = restored(claim, change, host_of(record, rank), kept, carried_out=party.carries_out(change))
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
            carried_out = partial(self._carried_out, job_id, rank)
            endpoints[rank] = Endpoint(
                side=Side.RMS, host=HOST, peer="application", watch=watch, recall=recall, carried_out=carried_out
            )
        return endpoints[rank]

    def _carried_out(self, job_id: JobId, rank: int, key: NegotiationKey) -> bool:
        """Tell whether the change that was agreed on with a process is being carried out."""
        agreements = self._agreements[job_id].values()
        return any(one.moved for one in agreements if (one.rank, one.key) == (rank, key))

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
    ) -> None:
        answer = ev.OfferAnswered(time=self._clock(), job_id=job_id, number=number, accepted=0, reason=why)
        trouble = trouble or self._trouble_with(job_id, number)
        self._report(replace(answer, lapsed=lapsed, trouble=trouble))

    def _trouble_with(self, job_id: JobId, number: int) -> str:
        agreement = self._agreements[job_id].get(number)
        return "" if agreement is None else agreement.trouble

    def _give_up(self, job_id: JobId, number: int, reason: str) -> None:
        self._agreements[job_id].pop(number, None)
        self._report(ev.ChangeGivenUp(time=self._clock(), job_id=job_id, number=number, reason=reason))

    def _flush(self, job_id: JobId) -> None:
        for rank, endpoint in self._endpoints.get(job_id, {}).items():
            for payload in FrameBuffer().feed(endpoint.data_to_send()):
                self._say(job_id, rank, frame(payload))


def _loss(lost: int, of: int) -> str:
    """Say that some of the processors that were agreed on are gone already; empty when none is."""
    return f"{lost} of the {of} {'was' if lost == 1 else 'were'} lost before all processes had begun" if lost else ""


def _changes(record: JobRecord, party: Party) -> Iterator[tuple[Claim, Change]]:
    for change in record.changes.values():
        if party.negotiates(change.component):
            yield record.claims[change.parts[0].claim], change

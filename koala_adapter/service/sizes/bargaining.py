# SPDX-License-Identifier: Apache-2.0
"""Negotiations about the size of one job: how far they came, the parties, the templates, and the manager.

In this order: what the kept messages of a negotiation came to, the keeper of messages, the job that negotiates, changes
of size as templates, and the bargaining between the scheduler's records and the endpoints of the application.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from koala_adapter.errors import JournalBlockedError, NegotiationError, UnreadableTemplateError
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
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.records import ChangePhase
from koala_adapter.scheduler.states import bounds
from koala_adapter.service.records import KeptNegotiation, Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from koala_adapter.model import JobId
    from koala_adapter.negotiation.serviceside.endpoint import Event
    from koala_adapter.scheduler import actions as act
    from koala_adapter.scheduler.records import Change, Claim, JobRecord
    from koala_adapter.service.applications import Applications
    from koala_adapter.service.core import Core
    from koala_adapter.sizes import SizeRules


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


# -- Keeper of negotiation messages --------------------------------------------------------------------------
# Messages wait in memory, up to a bound, while the journal cannot be written.

MOST_WAITING = 10_000
"""Messages that are remembered while the journal cannot be written."""


class NegotiationKeeper:
    """Keeps messages as they pass; those that cannot be written are written with a later one."""

    def __init__(self, core: Core) -> None:
        """Write into the journal of ``core``."""
        self._core = core
        self._waiting: deque[tuple[KeptNegotiation, Message]] = deque(maxlen=MOST_WAITING)

    def keep(self, job_id: JobId, rank: int, sender: Side, template: Template, payload: bytes) -> None:
        """Keep a template that a side has said, and as it has written it."""
        record = self._core.state.jobs.get(job_id)
        known = record is not None and 0 <= rank < len(record.ranks)
        component = record.ranks[rank].component if record is not None and known else ""
        kept = KeptNegotiation(
            job_id=job_id,
            component=component,
            rank=rank,
            initiator=template.initiator.value,
            agreement_id=template.agreement_id,
        )
        self._waiting.append((kept, Message(at=self._core.now(), sender=sender.value, template=payload.decode())))
        self._write()

    def recalled(self, job_id: JobId, initiator: Side, agreement_id: str) -> KeptNegotiation | None:
        """Return the latest negotiation that a side has begun under a name; None: none is known."""
        return self._core.negotiations.recalled(job_id, initiator.value, agreement_id)

    def _write(self) -> None:
        try:
            while self._waiting:
                self._core.negotiations.keep(*self._waiting[0])
                self._waiting.popleft()
        except JournalBlockedError:
            return  # the service has noticed by what it writes itself, and says so


# -- A job that changes its size -----------------------------------------------------------------------------

NEGOTIATOR = -1
"""Stands for the rank of a program that negotiates for a job by TCP, and is none of its processes."""


class Speech(Protocol):
    """Carries frames to the programs that negotiate for jobs."""

    def represents(self, job_id: JobId) -> bool:
        """Tell whether a program speaks for a job now."""

    def say(self, job_id: JobId, data: bytes) -> None:
        """Send a frame to the program that speaks for a job; without one it is lost."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts of a service that a job uses to change its size."""

    core: Core
    applications: Applications
    programs: Speech
    keeper: NegotiationKeeper


class SizedJob(ABC):
    """A running job that may change its size: follows its records, carries actions out, and negotiates."""

    def __init__(self, around: Surroundings, job_id: JobId) -> None:
        """Negotiate nothing yet."""
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
        """True while a program negotiates for the job."""
        return self._programs.represents(self.id)

    # ---- what the service tells it ---------------------------------------------------------------------------------

    @abstractmethod
    def follow(self, record: JobRecord) -> None:
        """Follow the records after an event that touched the job."""

    @abstractmethod
    def carry_out(self, record: JobRecord, action: act.SizeAction) -> None:
        """Carry out an action of the scheduler."""

    @abstractmethod
    def resume(self, record: JobRecord) -> None:
        """Continue what the records say is under way, after a restart."""

    @abstractmethod
    def time_passed(self, record: JobRecord) -> None:
        """Give up what has taken too long."""

    @abstractmethod
    def next_deadline(self) -> float | None:
        """Return when :meth:`time_passed` is to be called at the latest; None: not for now."""

    # ---- how it negotiates -----------------------------------------------------------------------------------------

    @abstractmethod
    def negotiates(self, component: str) -> bool:
        """Tell whether the size of a component is negotiated."""

    @abstractmethod
    def ready(self, component: str) -> bool:
        """Tell whether something can be offered now."""

    @abstractmethod
    def speaker(self, component: str) -> int | None:
        """Return the rank that offers go to; None: there is none."""

    @abstractmethod
    def size(self, component: str) -> int:
        """Return the processors that a component has."""

    @abstractmethod
    def able_to_leave(self, record: JobRecord, claim: Claim) -> int:
        """Return how many processors a claim can give up at most."""

    @abstractmethod
    def component_of(self, rank: int) -> str | None:
        """Return the component that a rank speaks for; None: for none."""

    @abstractmethod
    def in_progress(self, change: Change) -> bool:
        """Tell whether a change is being made, and can no longer be withdrawn."""

    def say(self, rank: int, data: bytes) -> None:
        """Send a frame to a process, or to the program that negotiates for the job."""
        if rank == NEGOTIATOR:
            self._programs.say(self.id, data)
            return
        record = self._core.state.jobs.get(self.id)
        if record is not None and rank < len(record.ranks):
            self._core.center.tell_application(record.ranks[rank].placeholder, f"{self.id}:{rank}", data)


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
    record: JobRecord, job: SizedJob, claim: Claim, change: Change, host: str, *, rules: SizeRules, answer_within: float
) -> FirstOffer:
    """Return the offer, or the request, that a change begins with, or why nothing can be taken, or given up, here."""
    grows, wanted = change.processors > 0, change.processors
    if grows:
        wanted = min(wanted, bounds(record, claim)[1] - claim.processors)
        if wanted < 1:
            return FirstOffer(None, _NO_MORE_WANTED, "")
    one = record.job.component(claim.component)
    decision = rules.decide(one.sizes, job.size(one.name), wanted, one.minimum, one.maximum)
    most = decision.processors if grows else job.able_to_leave(record, claim)
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


# -- Bargaining of one job -----------------------------------------------------------------------------------
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


class Bargaining:
    """All negotiations about the sizes of one job."""

    def __init__(self, job: SizedJob, core: Core, keeper: NegotiationKeeper) -> None:
        """``keeper`` keeps each message, and recalls what was said before a restart."""
        self._job = job
        self._core = core
        self._keeper = keeper
        self._endpoints: dict[int, Endpoint] = {}
        """By rank."""
        self._agreements: dict[int, _Agreement] = {}
        """By number of the change."""
        self._offered_before: set[int] = set()
        """Numbers of changes whose offers were out when this process began: their time may have run out meanwhile."""

    # ---- what the scheduler wants -----------------------------------------------------------------------------------

    def follow(self, record: JobRecord) -> None:
        """Say what follows from the records: new offers, commitments, and what has become of agreements."""
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
        elif agreement is not None and change.phase not in {ChangePhase.ASKED, ChangePhase.PROMISED}:
            endpoint = self._endpoint(agreement.rank)
            standing = endpoint.standing(agreement.key)
            if standing is None or endpoint.state(agreement.key) is not State.ACCEPTED:
                return
            comes = change.accepted
            if change.processors > 0 and not change.agreement and comes < standing.quantity(CPU):
                reason = f"only {comes} can be had any more"  # to which it has not agreed: it is offered anew
                endpoint.send(withdrawn(standing, reason), self._core.now())
                self._give_up(change.number, reason)
                return
            endpoint.send(committed(standing), self._core.now())

    def _one_of_several(self, change: Change) -> _Agreement | None:
        """Take note of a change that belongs to an agreement beside others, on other clusters; None: it does not."""
        key = NegotiationKey(initiator=Side.APPLICATION, agreement_id=change.agreement)
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
        endpoint = self._endpoint(first)
        if endpoint.state(template.key) is not State.NEW:
            return  # it is settled, and what the scheduler is to know of that waits for the journal
        self._agreements[change.number] = _Agreement(rank=first, key=template.key, trouble=trouble)
        endpoint.send(template, self._core.now())

    def _over(self, record: JobRecord, agreement: _Agreement) -> None:
        """Tell an application what has become of an agreement whose change is no longer in the records."""
        endpoint = self._endpoint(agreement.rank)
        standing, state = endpoint.standing(agreement.key), endpoint.state(agreement.key)
        if standing is None or any(one.key == agreement.key for one in self._agreements.values()):
            return
        lost = len(agreement.came & record.departed)
        if state is State.AGREED and agreement.moved and (not lost or lost < len(agreement.came)):
            endpoint.send(replace(consumed(standing), reason=_loss(lost, len(agreement.came))), self._core.now())
        elif state in {State.OFFERED, State.ACCEPTED, State.AGREED}:
            endpoint.send(withdrawn(standing, record.last_trouble or "it is over"), self._core.now())

    def _waits(self, agreement: _Agreement) -> bool:
        """Tell whether it cannot be said yet what has become of an agreement.

        Either WithdrawOffer is on its way and says why a growth that was agreed on is not made, or it is there before
        the application has committed itself.
        """
        endpoint = self._endpoint(agreement.rank)
        standing = endpoint.standing(agreement.key)
        if agreement.moved and endpoint.state(agreement.key) is State.ACCEPTING:
            return True
        grows = standing is not None and standing.direction is not Direction.SHRINK
        return grows and not agreement.moved and endpoint.state(agreement.key) in {State.ACCEPTED, State.AGREED}

    def withdraw(self, number: int, reason: str) -> None:
        """Tell an application that it does not get what it has accepted."""
        agreement = self._agreements.pop(number, None)  # most jobs have none, and are not kept here
        if agreement is None:
            return
        endpoint = self._endpoint(agreement.rank)
        standing = endpoint.standing(agreement.key)
        if standing is not None and endpoint.state(agreement.key) in {State.OFFERED, State.ACCEPTED, State.AGREED}:
            endpoint.send(withdrawn(standing, reason), self._core.now())
        self._flush()

    def grant(self, action: act.GrantProcessors) -> None:
        """Answer a wish of an application."""
        if not action.agreement or action.rank is None:
            return
        key = NegotiationKey(initiator=Side.APPLICATION, agreement_id=action.agreement)
        endpoint = self._endpoint(action.rank)
        offer = endpoint.standing(key)
        if offer is None or endpoint.state(key) is not State.ASKED:
            return
        given = {CPU, MEMORY} if action.memory_mib else {CPU}
        refused = [one for one in offer.quantities() if one.type not in given]
        if action.processors == 0:
            endpoint.send(rejected(offer, action.reason), self._core.now())
        elif action.countered:
            (wanted,) = (one for one in offer.quantities() if one.type == CPU)
            answer = countered(offer, {wanted: action.processors}, declined=refused, reason=action.reason)
            endpoint.send(replace(answer, answer_within=self._answer_within), self._core.now())
        else:
            endpoint.send(accepted(offer, declined=refused), self._core.now())
        if action.number:
            self._agreements[action.number] = _Agreement(rank=action.rank, key=key)
        self._flush()

    # ---- what the applications say --------------------------------------------------------------------------------

    def heard(self, record: JobRecord, rank: int, data: bytes) -> None:
        """Take in a frame with a template. Raises NegotiationError when it is none; the process is told so, too."""
        endpoint = self._endpoint(rank)
        try:
            for event in endpoint.receive(data, self._core.now()):
                self._take(record, rank, event)
        finally:
            endpoint.unreadable = False  # frames are cut by the agent: what follows can be told apart
            self._flush()
        self.follow(record)

    def in_contact(self, rank: int) -> None:
        """A process has come back: say again what may not have arrived."""
        self._endpoint(rank).resumed()
        self._flush()

    def time_passed(self, record: JobRecord) -> None:
        """End what was not answered in time."""
        now = self._core.now()
        for rank, endpoint in list(self._endpoints.items()):
            for event in endpoint.time_passed(now):
                self._take(record, rank, event)
        self._flush()

    def out_of_contact(self, record: JobRecord, rank: int) -> None:
        """A connection has ended that was no agent's: what was not agreed on by it is lost."""
        for event in self._endpoint(rank).disconnected(self._core.now()):
            self._take(record, rank, event)
        self.follow(record)

    def next_deadline(self) -> float | None:
        """Return when `time_passed` is to be called for a job at the latest; None: not for now."""
        times = [one.next_deadline() for one in self._endpoints.values()]
        return min((one for one in times if one is not None), default=None)

    def _take(self, record: JobRecord, rank: int, event: Event) -> None:
        if isinstance(event, Unreadable):
            raise UnreadableTemplateError(event.reason)
        if isinstance(event, OfferReceived):
            self._answer_offer(record, rank, event)
        elif isinstance(event, OfferAccepted | Agreed):
            number = self._number_of(rank, event.key)
            if number is not None:
                self._answer(number, event.template)
            else:  # it could not be said while the application had the last word
                reason = record.last_trouble or "it cannot be had any more"
                self._endpoint(rank).send(withdrawn(event.template, reason), self._core.now())
        elif isinstance(event, Ended):
            number = self._number_of(rank, event.key)
            if number is not None and event.was_agreed:
                self._give_up(number, event.reason)
            elif number is not None:
                lapsed = event.state is State.EXPIRED and number in self._offered_before
                self._decline(number, event.reason, lapsed=lapsed)
                self._give_up(number, event.reason or "the application has not committed to it")

    def _number_of(self, rank: int, key: NegotiationKey) -> int | None:
        agreements = self._agreements.items()
        return next((number for number, one in agreements if (one.rank, one.key) == (rank, key)), None)

    def _answer_offer(self, record: JobRecord, rank: int, event: OfferReceived) -> None:
        endpoint = self._endpoint(rank)
        template, now = event.template, self._core.now()
        problem = problem_of(template)
        if problem:
            endpoint.send(rejected(template, problem), now)
        elif event.key.initiator is Side.RMS or self._number_of(rank, event.key) is not None:
            endpoint.send(accepted(template), now)  # a counter-offer: that it is within the bounds has been checked
        else:
            self._wish(record, rank, template)

    def _wish(self, record: JobRecord, rank: int, template: Template) -> None:
        component = self._job.component_of(rank)
        if component is None:
            return
        if any(change.agreement == template.agreement_id for _, change in _changes(record, self._job)):
            return  # it was told before a restart
        self._core.post(wish_of(record, component, rank, template, self._core.now()))

    # ---- after a restart ------------------------------------------------------------------------------------------

    def restore(self, record: JobRecord) -> None:
        """Go on with what was agreed on before this process began."""
        had_ended: list[tuple[Change, Template]] = []
        for claim, change in _changes(record, self._job):
            side = Side.APPLICATION if change.agreement else Side.RMS
            kept = self._keeper.recalled(self._job.id, side, change.agreement or str(change.number))
            rank = (
                change.asker if change.agreement else self._job.speaker(claim.component) if kept is None else kept.rank
            )
            if rank is None or change.number in self._agreements:
                continue
            final = final_word(kept)
            if final is not None and final.status is not Status.CONSUMED and not self._job.in_progress(change):
                had_ended.append((change, final))
                continue
            found = restored(claim, change, host_of(record, rank), kept, carried_out=self._job.in_progress(change))
            if found is None:
                self._offered_before.add(change.number)
                continue  # it is offered again
            said, state = found
            self._agreements[change.number] = _Agreement(rank=rank, key=said.key, moved=self._job.in_progress(change))
            endpoint = self._endpoint(rank)
            if endpoint.state(said.key) is State.NEW:
                endpoint.restore(said, state, said.round or round_of(change), self._core.now() + BACK_WITHIN)
        for change, final in had_ended:  # not before all are known: it has consequences
            self._had_ended(change, final)

    def _had_ended(self, change: Change, final: Template) -> None:
        """Tell the scheduler how a negotiation ended: it was killed between that and hearing of it."""
        reason = final.reason or f"it is {final.status.value.removeprefix('NT_').lower()}"
        if change.phase is ChangePhase.ASKED:
            self._decline(change.number, reason, lapsed=final.status is Status.EXPIRED)
        else:
            self._give_up(change.number, reason)

    # ---- its parts ------------------------------------------------------------------------------------------------

    def _endpoint(self, rank: int) -> Endpoint:
        endpoints = self._endpoints
        if rank not in endpoints:
            watch = partial(self._keeper.keep, self._job.id, rank)
            recall = partial(self._final_word, rank)
            carried_out = partial(self._carried_out, rank)
            endpoints[rank] = Endpoint(
                side=Side.RMS, host=HOST, peer="application", watch=watch, recall=recall, carried_out=carried_out
            )
        return endpoints[rank]

    def _carried_out(self, rank: int, key: NegotiationKey) -> bool:
        """Tell whether the change that was agreed on with a process is being carried out."""
        agreements = self._agreements.values()
        return any(one.moved for one in agreements if (one.rank, one.key) == (rank, key))

    def _final_word(self, rank: int, key: NegotiationKey) -> Template | None:
        """Return what ended a negotiation with a process before this service began."""
        kept = self._keeper.recalled(self._job.id, key.initiator, key.agreement_id)
        return final_word(kept) if kept is not None and kept.rank == rank else None

    @property
    def _answer_within(self) -> float:
        return round(min(ANSWER_WITHIN, 0.9 * self._core.state.parameters.answer_timeout), 3)

    def _answer(self, number: int, settled: Template) -> None:
        without_memory = any(one.type == MEMORY and one.declined for one in settled.resources)
        answer = ev.OfferAnswered(
            time=self._core.now(), job_id=self._job.id, number=number, accepted=settled.quantity(CPU)
        )
        self._core.post(replace(answer, memory_declined=without_memory, trouble=self._trouble_with(number)))

    def _decline(
        self,
        number: int,
        why: str,
        *,
        lapsed: bool = False,
        trouble: str = "",
    ) -> None:
        answer = ev.OfferAnswered(time=self._core.now(), job_id=self._job.id, number=number, accepted=0, reason=why)
        trouble = trouble or self._trouble_with(number)
        self._core.post(replace(answer, lapsed=lapsed, trouble=trouble))

    def _trouble_with(self, number: int) -> str:
        agreement = self._agreements.get(number)
        return "" if agreement is None else agreement.trouble

    def _give_up(self, number: int, reason: str) -> None:
        self._agreements.pop(number, None)
        self._core.post(ev.ChangeGivenUp(time=self._core.now(), job_id=self._job.id, number=number, reason=reason))

    def _flush(self) -> None:
        for rank, endpoint in self._endpoints.items():
            for payload in FrameBuffer().feed(endpoint.data_to_send()):
                self._job.say(rank, frame(payload))


def _loss(lost: int, of: int) -> str:
    """Say that some of the processors that were agreed on are gone already; empty when none is."""
    return f"{lost} of the {of} {'was' if lost == 1 else 'were'} lost before all processes had begun" if lost else ""


def _changes(record: JobRecord, job: SizedJob) -> Iterator[tuple[Claim, Change]]:
    for change in record.changes.values():
        if job.negotiates(change.component):
            yield record.claims[change.parts[0].claim], change

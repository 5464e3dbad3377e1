# SPDX-License-Identifier: Apache-2.0
"""Changes of size that are in the scheduler's records, as templates. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from koala_adapter.dynaco.decide import AnySize
from koala_adapter.negotiation.derivedtemplates import accepted, committed
from koala_adapter.negotiation.states import State
from koala_adapter.negotiation.template import (
    CPU,
    MEMORY,
    Direction,
    Negotiability,
    Obligation,
    Resource,
    Side,
    Status,
    Template,
    Usage,
)
from koala_adapter.runners.otherchanges import dispensable_growths, other_changes, without_dispensable
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.changes import ChangePhase
from koala_adapter.scheduler.malleable.jointgrowth import parts_of
from koala_adapter.service.negotiationparties import NEGOTIATOR
from koala_adapter.service.negotiationrecord import acceptance_of_koala, is_committed, templates_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from koala_adapter.dynaco.sizerules import Decision, SizeRules
    from koala_adapter.runners.otherchanges import Amount
    from koala_adapter.scheduler.changes import Change
    from koala_adapter.scheduler.records import Claim, JobRecord
    from koala_adapter.service.keptnegotiations import KeptNegotiation
    from koala_adapter.service.negotiationparties import Party

HOST = "koala"
"""Our name in templates."""
_BEARER_STAYS = "the first process bears the others, and stays"
_NO_SIZE = "no size of its fits"


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
    in_the_way: tuple[int, ...] = ()
    """Numbers of growths elsewhere without which more can be asked back."""


def offer_of(
    record: JobRecord, party: Party, claim: Claim, change: Change, host: str, *, rules: SizeRules, answer_within: float
) -> FirstOffer:
    """Return the offer, or the request, that a change begins with, or why nothing can be taken, or given up, here."""
    grows = change.processors > 0
    one = record.job.component(claim.component)

    def decided(pending: Amount) -> Decision:
        others = other_changes(record, claim, pending)
        elsewhere = others if grows else [change for change in others if change > 0]
        size = party.size(one.name)
        return rules.decide(one.sizes, size, change.processors, one.minimum, one.maximum, pending=elsewhere)

    decision = decided(party.pending)
    if not grows and decision.processors < -change.processors:
        growths = dispensable_growths(record, claim)
        if growths and decided(without_dispensable(record, party.pending)).processors > decision.processors:
            return FirstOffer(None, _NO_SIZE, decision.trouble, growths)
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


def depends_on_answer(record: JobRecord, claim: Claim, change: Change, asked: Collection[int]) -> bool:
    """Tell whether what can be offered depends on what has been asked elsewhere; ``asked``: numbers of such changes."""
    others = (one.change for one in record.claims if one.component == claim.component and one.change is not change)
    unanswered = any(one is not None and one.phase is ChangePhase.ASKED and one.number in asked for one in others)
    return unanswered and change.processors > 0 and record.job.component(claim.component).sizes != AnySize.name


def restored(
    record: JobRecord, claim: Claim, change: Change, host: str, kept: KeptNegotiation | None, *, carried_out: bool
) -> tuple[Template, State] | None:
    """Return what koala said last in the negotiation of a change, and its state; None: it begins anew."""
    if change.phase is ChangePhase.ASKED:
        acceptance = acceptance_of_koala(kept)
        if acceptance is not None:  # of a counter-offer: the scheduler hears of it with the commitment
            return acceptance, State.ACCEPTING
        if not change.countered:
            return None
    template = _restored_template(record, claim, change, host, templates_of(kept))
    # Who was accepted by koala as it asked has the last word, and may have said it.
    settled = not change.agreement or change.countered or carried_out or is_committed(kept)
    state = {ChangePhase.ASKED: State.OFFERED, ChangePhase.PROMISED: State.ASKED}.get(
        change.phase, State.AGREED if settled else State.ACCEPTING
    )
    return {State.AGREED: committed(template), State.ACCEPTING: accepted(template)}.get(state, template), state


def _restored_template(
    record: JobRecord, claim: Claim, change: Change, host: str, said: Sequence[Template] = ()
) -> Template:
    """Return what stands in the negotiation of a change: as much as the records tell, of what was said to be about.

    ``said``: all that is known to have been said in it, in order. What the peer understands to stand has all resources
    that were in its first template, also those that were declined.
    """
    own = bool(change.agreement)
    quantity = _quantity_of(record, change)
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


def _quantity_of(record: JobRecord, change: Change) -> int:
    """Return how many processors stand in the negotiation of a change."""
    if change.phase is ChangePhase.PROMISED:
        return change.wish
    asked = change.phase is ChangePhase.ASKED
    parts = [part.change for part in parts_of(record, change)]
    return max(1, sum(abs(one.processors) if asked else one.accepted for one in parts))


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
    (wanted,) = (one for one in template.resources if one.type == CPU)
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

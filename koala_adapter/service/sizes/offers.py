# SPDX-License-Identifier: Apache-2.0
"""Changes of size in the scheduler's records as templates, and the wishes of applications as events. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from koala_adapter import negotiation as nt
from koala_adapter.negotiation.templates import (
    CPU,
    GROW,
    MANDATORY,
    MEMORY,
    NT_FIXED,
    NT_REQUIRED,
    RMS,
    SHRINK,
    VOLUNTARY,
)
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.states import bounds

if TYPE_CHECKING:
    from koala_adapter.scheduler.records import Claim, JobRecord
    from koala_adapter.scheduler.sizechange import Change
    from koala_adapter.sizes import SizeRules


HOST = "koala"
"""Our name in templates."""
NEGOTIATOR = -1
"""Stands for the rank of a program that negotiates for a job by TCP, and is none of its processes."""
_BEARER_STAYS = "the first process bears the others, and stays"
_NO_SIZE = "no size of its fits"
_NO_MORE_WANTED = "its owner wants no more"


def host_of(record: JobRecord, rank: int) -> str:
    """Return a process's host for templates, or a stand-in."""
    if rank == NEGOTIATOR:
        return "negotiator"
    one = record.ranks[rank]
    return one.host or one.address or "application"


class Sizes(Protocol):
    """The sizes of one job."""

    def size(self, component: str) -> int:
        """Return the processors that a component has."""

    def able_to_leave(self, record: JobRecord, claim: Claim) -> int:
        """Return how many processors a claim can give up at most."""


class FirstOffer(NamedTuple):
    """First message of a change: an offer or a request."""

    template: nt.Template | None
    """The offer, or the request; None: there is nothing to offer."""
    why_none: str
    trouble: str
    """What is wrong with the rule that was to decide."""


def offer_of(
    record: JobRecord, job: Sizes, claim: Claim, change: Change, host: str, *, rules: SizeRules, answer_within: float
) -> FirstOffer:
    """Return the first offer or request of a change, or why it cannot be made."""
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
    template = nt.Template(
        agreement_id=str(change.number),
        initiator=RMS,
        source=HOST,
        dest=_named(host),
        direction=GROW if grows else SHRINK,
        obligation=VOLUNTARY if grows else MANDATORY,
        answer_within=answer_within,
        reason=change.reason,
        resources=(
            nt.Resource(
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


def _memory_wanted(template: nt.Template) -> tuple[int, bool]:
    """Return the memory (MiB) wanted with each processor, and whether it is required."""
    wanted = [one for one in template.resources if one.type == MEMORY and not one.declined]
    return (wanted[0].quantity, wanted[0].usage == NT_REQUIRED) if wanted else (0, False)


def wish_of(
    record: JobRecord, component: str, rank: int, template: nt.Template, now: float
) -> ev.MoreRequested | ev.LessRequested:
    """Return the event for a process's request for, or return of, processors."""
    processors = template.quantity(CPU)
    if template.direction == SHRINK:
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
        mandatory=template.obligation == MANDATORY,
        agreement=template.agreement_id,
        rank=rank,
        least=wanted.quantity if wanted.negotiability == NT_FIXED else wanted.minimum or 1,
        memory_mib=memory,
        memory_required=required,
        cluster=wanted.cluster,
    )


def _named(host: str) -> str:
    return "".join(one if one.isascii() and (one.isalnum() or one in "._:-") else "-" for one in host)[:255] or HOST


def problem_of(template: nt.Template) -> str:
    """Return why an application's offer must be refused; empty when it need not be."""
    required = [one for one in template.resources if one.usage == NT_REQUIRED and not one.declined]
    shrinks = template.direction == SHRINK
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

# SPDX-License-Identifier: Apache-2.0
"""Reports of negotiations, made from the messages that the journal keeps. No I/O.

It loads the XML side of negotiation, so it is imported only when a job has negotiated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.errors import NegotiationError
from koala_adapter.model import JobId
from koala_adapter.negotiation.document import parse
from koala_adapter.negotiation.templates import (
    APPLICATION,
    CPU,
    NT_ACCEPTED,
    NT_COMMITTED,
    NT_CONSUMED,
    NT_ERROR,
    NT_EXPIRED,
    NT_NEGOTIATION,
    NT_REJECTED,
    NT_WITHDRAWN,
    RMS,
)
from koala_adapter.report.sitevalues import NegotiationMessageReport, NegotiationReport
from koala_adapter.scheduler.explain import duration
from koala_adapter.service.sizes.kept import course

if TYPE_CHECKING:
    from koala_adapter.scheduler.records import JobRecord, State
    from koala_adapter.service.records import KeptNegotiation, Message, NegotiationStore
    from koala_adapter.service.sizes.kept import Course


_NAMES = {RMS: "koala", APPLICATION: "application"}
_STATES = {
    NT_NEGOTIATION: "offered",
    NT_ACCEPTED: "accepted",
    NT_COMMITTED: "agreed",
    NT_CONSUMED: "done",
    NT_REJECTED: "rejected",
    NT_WITHDRAWN: "withdrawn",
    NT_EXPIRED: "expired",
    NT_ERROR: "broken",
}
_SAID = {
    NT_NEGOTIATION: "{who} offers {count}",
    NT_ACCEPTED: "{who} accepted {count}",
    NT_COMMITTED: "agreed on {count}, which {leave}",
    NT_CONSUMED: "{count} {moved}",
    NT_REJECTED: "{who} rejected it",
    NT_WITHDRAWN: "{who} withdrew it",
    NT_EXPIRED: "it expired",
    NT_ERROR: "{who} ended it as faulty",
}
TOLD = 2
"""So many of the latest negotiations of a job are explained."""


def negotiation_reports(
    store: NegotiationStore, state: State, *, job_id: str, number: int, limit: int, wall_offset: float
) -> list[NegotiationReport]:
    """Return the latest negotiations, oldest first. Raises NegotiationError when there is none of the number."""
    found = store.latest(job_id=job_id, number=number, limit=limit)
    if number and not found:
        raise NegotiationError(f"there is no negotiation {number}", hint="`koala negotiations` lists the latest ones")
    reports = (_report(one, over=_over(state, one.job_id), wall_offset=wall_offset) for one in found)
    return [one for one in reports if one is not None]


def job_negotiations(store: NegotiationStore, record: JobRecord, now: float) -> str:
    """Return the results of a job's latest negotiations in words; empty when there were none."""
    over, said = record.state.final, []
    for kept in store.latest(job_id=record.job.id, limit=TOLD):
        came = course(kept)
        if came is not None:
            ago = duration(max(0.0, now - came.at))
            said.append(f"Negotiation {kept.number}: {_summary(kept, came, over=over)} ({ago} ago).")
    return " ".join(said)


def _over(state: State, job_id: str) -> bool:
    record = state.jobs.get(JobId(job_id))
    return record is None or record.state.final


def _report(kept: KeptNegotiation, *, over: bool, wall_offset: float) -> NegotiationReport | None:
    came = course(kept)
    if came is None:
        return None
    return NegotiationReport(
        number=kept.number,
        job_id=kept.job_id,
        component=kept.component,
        rank=kept.rank,
        agreement_id=kept.agreement_id,
        initiator=_NAMES[kept.initiator],
        direction="shrink" if came.shrinks else "grow",
        mandatory=came.mandatory,
        asked=came.asked,
        standing=came.standing,
        state="over" if over and not came.ended else _STATES[came.status],
        by=_NAMES[came.sender],
        reason=came.reason,
        summary=_summary(kept, came, over=over),
        began_at=kept.messages[0].at + wall_offset,
        latest_at=came.at + wall_offset,
        messages=tuple(_message(one, wall_offset) for one in kept.messages),
    )


def _message(message: Message, wall_offset: float) -> NegotiationMessageReport:
    template = parse(message.template.encode())
    return NegotiationMessageReport(
        at=message.at + wall_offset,
        sender=_NAMES[message.sender],
        status=template.status,
        processors=template.quantity(CPU),
        reason=template.reason,
        template=message.template,
    )


def _summary(kept: KeptNegotiation, came: Course, *, over: bool) -> str:
    began = _begun(kept.initiator, came)
    return f"{began}; {_ended(came, over=over)}"


def _begun(initiator: str, came: Course) -> str:
    count, must = came.asked, ", which it must have" if came.mandatory and not came.shrinks else ""
    if initiator == APPLICATION:
        return f"it wanted to give back {count}" if came.shrinks else f"it asked for {count} more{must}"
    return f"koala wanted {count} back" if came.shrinks else f"koala offered {count} more"


def _ended(came: Course, *, over: bool) -> str:
    who, why = _NAMES[came.sender], f" ({came.reason})" if came.reason else ""
    count = f"{came.standing} processor{'s' if came.standing != 1 else ''}"
    if over and not came.ended:
        return f"the job ended before it was settled{why}"
    if came.first:
        return f"there is no answer yet{why}"
    said = _SAID[came.status].format(
        who=who, count=count, leave="still leave" if came.shrinks else "are still to come",
        moved=f"{'was' if came.standing == 1 else 'were'} {'released' if came.shrinks else 'allocated'}",
    )  # fmt: skip
    return f"{said}{why}{', and has no answer yet' if came.status == NT_NEGOTIATION else ''}"

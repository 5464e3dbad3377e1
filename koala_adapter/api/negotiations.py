# SPDX-License-Identifier: Apache-2.0
"""Reports of negotiations, made from the messages that the journal keeps. No I/O.

It loads the XML side of negotiation, so it is imported only when a job has negotiated.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.errors import NegotiationError
from koala_adapter.model import JobId
from koala_adapter.negotiation.templates import (
    APPLICATION,
    CPU,
    MANDATORY,
    NT_ACCEPTED,
    NT_COMMITTED,
    NT_CONSUMED,
    NT_ERROR,
    NT_EXPIRED,
    NT_NEGOTIATION,
    NT_REJECTED,
    NT_WITHDRAWN,
    RMS,
    SHRINK,
    STANDING,
)
from koala_adapter.report.sitevalues import NegotiationMessageReport, NegotiationReport
from koala_adapter.scheduler.explain import duration
from koala_adapter.service.sizes.kept import read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.negotiation import Template
    from koala_adapter.scheduler.records import JobRecord, State
    from koala_adapter.service.records import KeptNegotiation, Message, NegotiationStore


_NAMES = {RMS: "koala", APPLICATION: "application"}
_STATES = {
    NT_NEGOTIATION: ("offered", "{who} offers {count}"),
    NT_ACCEPTED: ("accepted", "{who} accepted {count}"),
    NT_COMMITTED: ("agreed", "agreed on {count}, which {leave}"),
    NT_CONSUMED: ("done", "{count} {moved}"),
    NT_REJECTED: ("rejected", "{who} rejected it"),
    NT_WITHDRAWN: ("withdrawn", "{who} withdrew it"),
    NT_EXPIRED: ("expired", "it expired"),
    NT_ERROR: ("broken", "{who} ended it as faulty"),
}
"""State of a negotiation by the status of the message that decided it, and that message in words."""
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
    said = []
    for kept in store.latest(job_id=record.job.id, limit=TOLD):
        report = _report(kept, over=record.state.final, wall_offset=0.0)
        if report is not None:
            ago = duration(max(0.0, now - report.latest_at))
            said.append(f"Negotiation {kept.number}: {report.summary} ({ago} ago).")
    return " ".join(said)


def _over(state: State, job_id: str) -> bool:
    record = state.jobs.get(JobId(job_id))
    return record is None or record.state.final


def _report(kept: KeptNegotiation, *, over: bool, wall_offset: float) -> NegotiationReport | None:
    """Return the report of a negotiation; None when no message of it can be read. ``over``: its job has ended."""
    said = read(kept)
    if not said:
        return None
    first, course = said[0][1], list(_until_its_end(said))
    message, decided = course[-1]
    standing = [one for _, one in course if one.status in STANDING] or [first]
    unsettled = over and decided.status in STANDING and decided.status != NT_CONSUMED
    report = NegotiationReport(
        number=kept.number,
        job_id=kept.job_id,
        component=kept.component,
        rank=kept.rank,
        agreement_id=kept.agreement_id,
        initiator=_NAMES[kept.initiator],
        direction="shrink" if first.direction == SHRINK else "grow",
        mandatory=first.obligation == MANDATORY,
        asked=first.quantity(CPU),
        standing=standing[-1].quantity(CPU),
        state="over" if unsettled else _STATES[decided.status][0],
        by=_NAMES[message.sender],
        reason=next((one.reason for _, one in reversed(course) if one.reason), ""),
        summary="",
        began_at=kept.messages[0].at + wall_offset,
        latest_at=message.at + wall_offset,
        messages=tuple(
            NegotiationMessageReport(
                at=one.at + wall_offset,
                sender=_NAMES[one.sender],
                status=template.status,
                processors=template.quantity(CPU),
                reason=template.reason,
                template=one.template,
            )
            for one, template in said
        ),
    )
    how = "there is no answer yet" if len(course) == 1 else _ended(report, decided.status)
    how = "the job ended before it was settled" if unsettled else how
    why = f" ({report.reason})" if report.reason else ""
    waits = len(course) > 1 and not unsettled and decided.status == NT_NEGOTIATION
    return replace(report, summary=f"{_begun(report)}; {how}{why}{', and has no answer yet' if waits else ''}")


def _until_its_end(said: tuple[tuple[Message, Template], ...]) -> Iterator[tuple[Message, Template]]:
    """Yield what was said up to what ended the negotiation."""
    for message, template in said:
        yield message, template
        if template.status not in STANDING:
            return


def _begun(report: NegotiationReport) -> str:
    count, shrinks = report.asked, report.direction == "shrink"
    if report.initiator == "application":
        must = ", which it must have" if report.mandatory and not shrinks else ""
        return f"it wanted to give back {count}" if shrinks else f"it asked for {count} more{must}"
    return f"koala wanted {count} back" if shrinks else f"koala offered {count} more"


def _ended(report: NegotiationReport, status: str) -> str:
    shrinks, one = report.direction == "shrink", report.standing == 1
    return _STATES[status][1].format(
        who=report.by,
        count=f"{report.standing} processor{'' if one else 's'}",
        leave="still leave" if shrinks else "are still to come",
        moved=f"{'was' if one else 'were'} {'released' if shrinks else 'allocated'}",
    )

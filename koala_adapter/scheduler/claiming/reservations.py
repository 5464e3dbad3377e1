# SPDX-License-Identifier: Apache-2.0
"""Reservations of batch systems for the processors of a job (``claiming = "reserve"``).

KOALA's processor claimer (CoreGRID TR-0092) reserves where the batch system can. All clusters of a job reserve for the
same time, the estimated start; then placeholders are submitted that run in the reservations. If one cluster refuses,
all are given back, and the processors are claimed by placeholders alone, as everywhere else.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from koala_adapter.model import Claiming
from koala_adapter.outcome import JobState
from koala_adapter.scheduler.actions import EndReservation, ReserveProcessors
from koala_adapter.scheduler.claiming.staging import ready_at
from koala_adapter.scheduler.records import Reservation
from koala_adapter.scheduler.timers import TimerKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.records import Claim, JobRecord, State

LEAD = 20.0
"""Seconds from now until a reservation begins, at least: the placeholders must be in the queue by then."""
SLACK = 180.0
"""Seconds by which a reservation is longer than its placeholders: batch systems start them late."""
PATIENCE = 120.0
"""Seconds in which all clusters of a job must have answered whether they reserve."""
LATE = 60.0
"""Seconds by which input files may come after the start of a reservation; later, the reservation is moved."""
MOST_MOVES = 3
"""How often the reservations of a job are moved; then its processors are claimed by placeholders alone."""


def wants_reservation(state: State, record: JobRecord, claim: Claim) -> bool:
    """Tell whether the processors of a claim are to be reserved where it is placed."""
    if claim.cluster is None or record.not_reserved:
        return False
    wanted = record.job.claiming or state.clusters[claim.cluster].parameters.claiming
    return wanted is Claiming.RESERVE


def reserve(context: Context, record: JobRecord, claims: Sequence[Claim], seconds: float) -> bool:
    """Ask for reservations for the first claim of a job; tell whether its placeholders wait for them.

    ``seconds``: what the placeholders ask for.
    """
    if not any(wants_reservation(context.state, record, claim) for claim in claims):
        return False
    if record.reservations:
        return record.awaits_reservation
    record.not_reserved = _obstacle(context.state, record, claims)
    start = max(context.now + LEAD, ready_at(record, context.now))
    if record.not_reserved or start == inf:
        return not record.not_reserved
    for claim, cluster in ((one, one.cluster) for one in claims if one.cluster is not None):
        record.reservations_asked += 1
        one = Reservation(
            name=f"koala-{context.state.parameters.instance}-r-{record.job.id}-{record.reservations_asked}",
            cluster=cluster,
            component=claim.component,
            count=claim.missing,
            start_at=start,
            seconds=seconds + SLACK,
        )
        record.reservations.append(one)
        _ask(context, record, one)
    context.timetable.for_job(record, TimerKind.RESERVATION, context.now + PATIENCE)
    return True


def _obstacle(state: State, record: JobRecord, claims: Sequence[Claim]) -> str:
    """Return why processors of a job are not reserved; empty: they can be."""
    if len(claims) < len(record.claims) or any(claim.placeholders for claim in record.claims):
        return "only all processors of a job are reserved together, and it has some"
    for claim in claims:
        parameters = state.clusters[claim.cluster].parameters if claim.cluster else None
        if parameters is None or parameters.reserves is False:
            return f"{claim.cluster} takes no reservations by its plugin, or from this user"
    return ""


def _ask(context: Context, record: JobRecord, one: Reservation) -> None:
    action = ReserveProcessors(
        job_id=record.job.id,
        name=one.name,
        cluster=one.cluster,
        count=one.count,
        start_at=one.start_at,
        seconds=one.seconds,
        slot=record.job.component(one.component).slot_on(one.cluster),
    )
    context.effects.add(action)


def ask_for_reservations_again(context: Context) -> None:
    """Ask anew after a start: the process before may have ended before its question was answered."""
    for record in context.state.jobs.values():
        for one in record.reservations:
            if not one.handle:
                _ask(context, record, one)


def reservation_for(record: JobRecord, claim: Claim) -> Reservation | None:
    """Return the reservation in which the placeholders of a claim run; None: in none."""
    if record.not_reserved:
        return None
    there = (one for one in record.reservations if (one.component, one.cluster) == (claim.component, claim.cluster))
    return next((one for one in there if one.handle and one.count == claim.missing), None)


def is_late(context: Context, record: JobRecord) -> bool:
    """Tell whether input files will come so long after reserved processors that these are not to be held for them."""
    if not record.reservations or record.not_reserved or record.awaits_reservation:
        return False
    start = min(one.start_at for one in record.reservations)
    if record.held or start <= context.now:  # they are held, or will be in a moment
        return False
    return start + LATE < ready_at(record, context.now) < inf


def may_move(record: JobRecord) -> bool:
    """Tell whether the reservations of a job may be made anew for another time."""
    return record.reservations_asked <= MOST_MOVES * len(record.reservations)


def leave_reservations(context: Context, record: JobRecord) -> None:
    """Remove the reservations of a job; a batch system that is still ending placeholders there does so later."""
    for one in record.reservations:
        context.effects.add(EndReservation(name=one.name, cluster=one.cluster, handle=one.handle))
    record.reservations = []
    record.timers.pop(TimerKind.RESERVATION, None)


def give_back_reservations(context: Context, record: JobRecord) -> None:
    """Remove the reservations of a job as soon as none of its placeholders can be in them any more."""
    gone = record.state.final or record.state is JobState.WAITING or record.not_reserved
    if record.reservations and gone and not record.live:
        leave_reservations(context, record)

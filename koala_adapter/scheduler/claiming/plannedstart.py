# SPDX-License-Identifier: Apache-2.0
"""Jobs whose start is planned ahead: for when their input files have travelled, and in reservations of batch systems.

KOALA's processor claimer (CoreGRID TR-0092): the start is when the last file is there. Where nothing can be reserved,
processors are claimed close to it, so that they are not idle while files travel: the placeholders of a cluster are
submitted as much earlier as they will probably wait in its queue. Where the batch system can, it reserves.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from koala_adapter.model import CACHED, Claiming, ClusterName, Component, InputFile
from koala_adapter.outcome import JobState
from koala_adapter.scheduler.actions import EndReservation, ReserveProcessors, StageFiles, StopStaging
from koala_adapter.scheduler.placement.policies import MIB, holds, size_mib, transfer_seconds, travels
from koala_adapter.scheduler.records import Claim, JobRecord, Reservation, Staging, State
from koala_adapter.scheduler.timers import TimerKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from koala_adapter.scheduler.clusters import ClusterRecord
    from koala_adapter.scheduler.context import Context, Views

STARTS_IN = 10.0
"""Seconds from the submission of a placeholder until it is held, where a processor is idle for it."""
MARGIN = 5.0
"""Seconds by which placeholders are to be held before the files are there."""
LOOK = 60.0
"""Seconds without news, beyond the estimated end of a transfer, after which the files are asked for again."""


# -- The files of a job on its clusters ----------------------------------------------------------------------


def stage(context: Context, record: JobRecord) -> None:
    """Have input files of a job that must travel brought to the clusters where it is placed, and to no other."""
    if not any(one.files_travel for one in record.job.components):
        return
    views = context.views()
    names = dict.fromkeys(claim.cluster for claim in record.claims if claim.cluster in views)
    wanted = {name: files for name in names if name and (files := files_for(context.state, record, name))}
    for name, files in wanted.items():
        size, known = sum(file.size or 0 for file in files), record.staging.get(name)
        if known is None or known.size != size:
            record.staging[name] = known = _expected(files, name, views, size, context.now)
            if known.source:
                known.source = context.state.clusters[ClusterName(known.source)].place
            context.effects.add(StageFiles(job_id=record.job.id, cluster=name, files=files))
    leave_staging(context, record, keep=wanted)


def leave_staging(context: Context, record: JobRecord, *, keep: Iterable[ClusterName] = ()) -> None:
    """End the transfers to clusters other than those in ``keep``; what is complete may be of use again."""
    for name in [name for name, one in record.staging.items() if name not in keep and not one.done]:
        _stop(context, record, name)


def end_staging(context: Context, record: JobRecord) -> None:
    """Let go of all input files of a job that has ended."""
    for name in list(record.staging):
        _stop(context, record, name)


def _stop(context: Context, record: JobRecord, name: ClusterName) -> None:
    del record.staging[name]
    context.effects.add(StopStaging(job_id=record.job.id, cluster=name))


def ask_again(context: Context) -> None:
    """Ask for all files anew after a start: transfers have ended with the process before."""
    for record in context.state.jobs.values():
        for name, one in record.staging.items():
            _ask(context, record, name)
            if not one.done:
                one.rate = None
        if record.staging:
            watch(context, record)


def _ask(context: Context, record: JobRecord, name: ClusterName) -> None:
    record.staging[name].heard_at = context.now
    files = files_for(context.state, record, name) or _all_files(record.job.components)
    context.effects.add(StageFiles(job_id=record.job.id, cluster=name, files=files))


def files_for(state: State, record: JobRecord, name: ClusterName) -> tuple[InputFile, ...]:
    """Return the files that are brought to a cluster for the components that are placed there, each once."""
    cluster = state.clusters[name]
    if not cluster.parameters.stages:
        return ()
    placed = {claim.component for claim in record.claims if claim.cluster == name}
    components = [one for one in record.job.components if one.name in placed]
    sent = () if cluster.parameters.here else _all_files(components)
    return (*sent, *_named_files(components, cluster))


def _named_files(components: Iterable[Component], cluster: ClusterRecord) -> tuple[InputFile, ...]:
    """Return the files with logical names that a cluster has only where koala puts them, with their sizes."""
    names = {file.source: file for one in components for file in one.files_named}
    return tuple(
        replace(file, size=cluster.bringable.get(name))
        for name, file in names.items()
        if cluster.found.get(name, CACHED).startswith(CACHED)
    )


def _all_files(components: Iterable[Component]) -> tuple[InputFile, ...]:
    files = (file for one in components if one.has_large_files for file in one.files_sent)
    return tuple({file.source: file for file in files}.values())


def is_staged(record: JobRecord) -> bool:
    """Tell whether all files are where the job is placed."""
    return all(one.done for one in record.staging.values())


def must_be_staged(state: State, record: JobRecord, component: Component, name: ClusterName) -> bool:
    """Tell whether files of a component would have to travel before it can start on a cluster."""
    known, cluster = record.staging.get(name), state.clusters[name]
    sent = component.has_large_files and not cluster.parameters.here
    travel = sent or bool(_named_files([component], cluster))
    return travel and cluster.parameters.stages and not (known and known.done)


# -- Estimates ------------------------------------------------------------------------------------------------


def _expected(files: tuple[InputFile, ...], name: ClusterName, views: Views, size: int, now: float) -> Staging:
    """Return a transfer of which nothing was heard: what the cluster lacks, at the speed known of it."""
    missing = [file for file in files if not holds(views[name], file.source)]
    seconds = transfer_seconds(missing, views[name], views)
    mib = sum(size_mib(file) for file in missing)
    rate = mib * MIB / seconds if 0 < seconds < inf else None
    source = next((one.source for one in travels(missing, views[name], views) if one.source is not None), "")
    return Staging(size=size, missing=round(mib * MIB), heard_at=now, rate=rate, source=source)


def ready_at(record: JobRecord, now: float) -> float:
    """Return when the last of a job's files will probably be there; infinite where that is not known."""
    ends = (inf if (at := one.ready_at()) is None else at for one in record.staging.values() if not one.done)
    return max(ends, default=now)


def expected_hold(state: State, cluster: ClusterRecord, slots: int, slot_processors: int, now: float) -> float:
    """Return the seconds from the submission of so many placeholders until they will probably be held."""
    wait = state.expected_wait(cluster, now)
    if wait is None or slots * slot_processors <= cluster.available:
        return STARTS_IN if wait is None else min(wait, STARTS_IN)
    return wait


def submission_at(state: State, record: JobRecord, claim: Claim, now: float) -> float:
    """Return from when on the placeholders that a claim misses are of use; infinite where that is not known."""
    if claim.cluster is None or record.awaits_reservation:
        return inf
    cluster = state.clusters[claim.cluster]
    earliest = max(now if claim.postponed is None else claim.postponed, cluster.first_look_until or now)
    if is_staged(record):
        return earliest
    hold = expected_hold(state, cluster, claim.missing, claim.slot_processors, now)
    return max(earliest, ready_at(record, now) - hold - MARGIN)


def watch(context: Context, record: JobRecord) -> None:
    """Look at a job again when placeholders of it are of use, or when too little was heard of its files."""
    times = [
        submission_at(context.state, record, claim, context.now)
        for claim in record.claims
        if claim.postponed is not None
    ]
    times += [_look_at(one) for one in record.staging.values() if not one.done]
    due = min(times, default=inf)
    if due < inf:
        context.timetable.for_job(record, TimerKind.STAGING, max(due, context.now))
    else:
        record.timers.pop(TimerKind.STAGING, None)


def look(context: Context, record: JobRecord) -> None:
    """Ask again for files of which nothing was heard for long."""
    for name, one in record.staging.items():
        if not one.done and context.now >= _look_at(one):
            one.rate = None
            _ask(context, record, name)


def _look_at(one: Staging) -> float:
    return max(one.heard_at, one.ready_at() or 0.0) + LOOK


# -- Reservations of batch systems (``claiming = "reserve"``) ------------------------------------------------
# All clusters of a job reserve for the same time, the estimated start; then placeholders are submitted that run in the
# reservations. If one cluster refuses, all are given back, and the processors are claimed by placeholders alone, as
# everywhere else.

LEAD = 20.0
"""Seconds from now until a reservation begins, at least: the placeholders must be in the queue by then."""
SLACK = 180.0
"""Seconds by which a reservation is longer than its placeholders: batch systems start them late."""
ANSWER_PATIENCE = 120.0
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
        _ask_cluster(context, record, one)
    context.timetable.for_job(record, TimerKind.RESERVATION, context.now + ANSWER_PATIENCE)
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


def _ask_cluster(context: Context, record: JobRecord, one: Reservation) -> None:
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
                _ask_cluster(context, record, one)


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

# SPDX-License-Identifier: Apache-2.0
"""Growing a running job: stubs are submitted and gathered, then all together become processes of the application.

As KOALA's MRunner does it (CoreGRID TR-0092): the application keeps running until *all* processors that it accepted
are held, and only then takes them in. When one of them is lost before that, or they do not come within the life of a
placeholder, all are given back and the application is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import JobKind
from koala_adapter.scheduler.actions import Rank, TakeProcessors, WithdrawOffer
from koala_adapter.scheduler.changes import ChangePhase
from koala_adapter.scheduler.claiming.lifecycle import end_placeholder
from koala_adapter.scheduler.claiming.submitting import submit_batch
from koala_adapter.scheduler.context import closed_reason
from koala_adapter.scheduler.malleable.hysteresis import jobs_have_grown, pause
from koala_adapter.scheduler.malleable.jointgrowth import name_of, parts_of
from koala_adapter.scheduler.malleable.policies import Direction
from koala_adapter.scheduler.malleable.steps import abandon_after, cluster_of, promised_on, wanted_again
from koala_adapter.scheduler.outcome import JobState, PlaceholderState
from koala_adapter.scheduler.records import Claim
from koala_adapter.scheduler.timers import TimerKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.model import PlaceholderId
    from koala_adapter.scheduler.changes import Change
    from koala_adapter.scheduler.clusterrecord import ClusterRecord
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.malleable.jointgrowth import Part, Share
    from koala_adapter.scheduler.records import JobRecord, PlaceholderRecord

NEAR_END = "the walltime of the job is near"


def gather_all(context: Context, record: JobRecord, shares: Sequence[Share], *, offered: bool = False) -> bool:
    """Submit the stubs for all parts of a growth; return False, and do nothing, when there is no room for one."""
    if not all(_fits(context, record, share.claim, share.processors, offered=offered) for share in shares):
        return False
    for claim, change, count in shares:
        gather(context, record, claim, change, count, offered=offered)
    return True


def gather(
    context: Context, record: JobRecord, number: int, change: Change, count: int, *, offered: bool = False
) -> bool:
    """Submit the stubs for ``count`` further processors; return False, and do nothing, when there is no room.

    ``offered``: they were kept for it until now. What is promised to others waits for processors that come free.
    """
    if not _fits(context, record, number, count, offered=offered):
        return False
    change.stubs = submit_stubs(context, record, number, count, memory_mib=change.memory_mib)
    context.ledger.begin_change(record.claims[number], change, ChangePhase.GATHERING, accepted=count)
    abandon_after(context, record, change, context.state.parameters.placeholder_life)
    context.roster.update(record)
    return True


def submit_stubs(
    context: Context, record: JobRecord, number: int, count: int, *, memory_mib: int = 0
) -> list[PlaceholderId]:
    """Submit placeholders for a running job, for no longer than it has left."""
    parameters = context.state.parameters
    seconds = time_left(context, record) + parameters.launch_margin
    if not parameters.growth_ends_with_job:
        seconds += parameters.placeholder_life
    component, name = record.claims[number].component, cluster_of(context, record, number).parameters.name
    return submit_batch(context, record, component, name, count, seconds, stub=True, memory_mib=memory_mib)


def _fits(context: Context, record: JobRecord, number: int, count: int, *, offered: bool) -> bool:
    """Tell whether so many stubs can be submitted for a claim."""
    cluster = cluster_of(context, record, number)
    room = cluster.room + (promised_on(context, cluster) if offered else 0)
    return room >= count and closed_reason(cluster, context.now) is None


def stub_held(context: Context, placeholder: PlaceholderRecord) -> None:
    """Let the application take its new processors when the last of them is held."""
    record = context.state.jobs[placeholder.job_id]
    number = _gathering_for(record, placeholder)
    if number is None:
        return
    change = record.claims[number].change
    if change is None:
        return
    parts = parts_of(record, change)
    stubs = [context.state.placeholders[id_] for part in parts for id_ in part.change.stubs]
    if not all(stub.held for stub in stubs):
        return
    if record.state is not JobState.RUNNING or record.ends:
        withdraw(context, record, number, "the application is about to end")
    elif any(not stub.lasts(context.now, time_left(context, record)) for stub in stubs):
        withdraw(context, record, number, "they would end before the job's walltime does")
    else:
        for part in parts:
            take(context, record, part)
        context.roster.update(record)


def take(context: Context, record: JobRecord, part: Part) -> None:
    """Have an application take in the stubs of a part of its growth, all of which are held."""
    claim, change, cluster = record.claims[part.claim], part.change, cluster_of(context, record, part.claim)
    stubs = [context.state.placeholders[id_] for id_ in change.stubs]
    component_rank = sum(rank.component == claim.component for rank in record.ranks)
    ranks: list[Rank] = []
    for stub in stubs:
        stub.stub = False
        context.ledger.move(stub, PlaceholderState.LAUNCHED)
        claim.placeholders.append(stub.id)
        ranks.append(
            Rank(
                rank=len(record.ranks) + len(ranks),
                component=claim.component,
                component_rank=component_rank + len(ranks),
                placeholder=stub.id,
                host=stub.host,
                address=stub.address,
                cluster=stub.cluster,
            )
        )
    record.ranks += tuple(ranks)
    claim.processors = len(claim.placeholders)
    context.ledger.advance_change(claim, ChangePhase.TAKING)
    change.due, change.stubs = None, []
    change.ranks = [rank.rank for rank in ranks]
    context.effects.add(
        TakeProcessors(
            job_id=record.job.id,
            component=claim.component,
            cluster=cluster.parameters.name,
            number=change.number,
            ranks=tuple(ranks),
        )
    )


def check_running(context: Context, record: JobRecord) -> None:
    """Take a job for running once all of its processes have started."""
    if record.state is JobState.LAUNCHING and len(record.started) == len(record.ranks):
        context.ledger.move_job(record, JobState.RUNNING)
        begin_malleable(context, record)


def begin_malleable(context: Context, record: JobRecord) -> None:
    """Let a malleable job that runs now take part in growing and shrinking."""
    if record.job.kind is not JobKind.MALLEABLE:
        return
    context.state.starts += 1
    record.start_number = context.state.starts
    _open_clusters(context, record)
    _watch_walltime(context, record)
    context.roster.update(record)
    for number in range(len(record.claims)):
        cluster_of(context, record, number).unwanted = None
    context.scan_wanted = True


def _watch_walltime(context: Context, record: JobRecord) -> None:
    """Have the job looked at when it has too little time left to grow; it may have so from its start."""
    least = context.state.parameters.least_time_to_grow
    if record.job.has_workers:  # they would be asked to end at once
        least = max(least, float(record.job.warn_before))
    if not least:
        return
    grows_for = time_left(context, record) - least
    if grows_for > 0:
        context.timetable.for_job(record, TimerKind.NEAR_END, context.now + grows_for)
    else:
        record.ends_soon = True


def near_end_timer(context: Context, record: JobRecord) -> None:
    """Let a job grow no more; what is still being gathered is handed back."""
    record.ends_soon = True
    for number, claim in enumerate(record.claims):
        if claim.change is not None and claim.change.phase is ChangePhase.GATHERING:
            withdraw(context, record, number, NEAR_END)
    context.roster.update(record)
    context.scan_wanted = True


def _open_clusters(context: Context, record: JobRecord) -> None:
    """Let the flexible components of a job grow on every cluster of the site."""
    names = [name for name, cluster in context.state.clusters.items() if cluster.configured]
    for component in record.job.components:
        if not component.flexible or component.cluster is not None or not record.job.changes_size(component.name):
            continue
        own = [number for number, claim in enumerate(record.claims) if claim.component == component.name]
        there = {record.claims[number].cluster for number in own}
        more = [Claim(component=component.name, cluster=name) for name in names if name not in there]
        record.claims[own[-1] + 1 : own[-1] + 1] = more


def check_taken(context: Context, record: JobRecord) -> None:
    """End the changes of a job whose new processes have all started."""
    for number, claim in enumerate(record.claims):
        change = claim.change
        if change is None or change.phase is not ChangePhase.TAKING:
            continue
        parts = parts_of(record, change)
        if parts[0].claim == number and all(record.started.issuperset(part.change.ranks) for part in parts):
            for part in parts:
                _taken(context, record, part)
            context.roster.update(record)
            context.scan_wanted = True


def _taken(context: Context, record: JobRecord, part: Part) -> None:
    claim, change = record.claims[part.claim], part.change
    context.ledger.end_change(claim)
    if change.ranks:
        waited = context.now - _submitted_at(context, record, change)
        record.note_size(claim, claim.processors - len(change.ranks), change.reason, context.now, waited=waited)
    wanted_again(context, record, claim.component)
    jobs_have_grown(context, cluster_of(context, record, part.claim))


def _submitted_at(context: Context, record: JobRecord, change: Change) -> float:
    """Return when the first of the placeholders that a growth has brought was submitted; now if that is forgotten."""
    came, batches = set(change.ranks), context.state.batches
    asked = (batches.get(rank.placeholder.batch) for rank in record.ranks if rank.rank in came)
    return min((batch.submitted_at for batch in asked if batch is not None), default=context.now)


def stub_lost(context: Context, placeholder: PlaceholderRecord) -> None:
    """Give up a growth one of whose stubs is gone or going, unless none of them ever arrived and others may."""
    record = context.state.jobs.get(placeholder.job_id)
    number = None if record is None else _gathering_for(record, placeholder)
    if record is not None and number is not None:
        if placeholder.id.batch in context.never_arrived and _submit_again(context, record, number):
            return
        pause_growth(context, cluster_of(context, record, number))
        withdraw(context, record, number, f"placeholder {placeholder.id} was lost")


def _submit_again(context: Context, record: JobRecord, number: int) -> bool:
    """Submit the stubs of a growth once more: koala may have been killed before they were on their way."""
    change = record.claims[number].change
    if change is None or change.submitted_again or record.state is not JobState.RUNNING or record.ends:
        return False
    count = len(change.stubs)
    if not _fits(context, record, number, count, offered=True):
        return False
    change.submitted_again = True
    change.stubs = submit_stubs(context, record, number, count, memory_mib=change.memory_mib)
    return True


def pause_growth(context: Context, cluster: ClusterRecord) -> None:
    """Offer nothing on a cluster for a while: what was to be had there was not."""
    pause(context, cluster, Direction.GROW, context.state.parameters.backoff)


def withdraw(context: Context, record: JobRecord, number: int, reason: str) -> None:
    """Give the stubs of a growth back, on whatever clusters; the application goes on as it is."""
    change = record.claims[number].change
    if change is None:
        return
    parts = parts_of(record, change)
    for part in parts:
        return_stubs(context, part.change)
        context.ledger.end_change(record.claims[part.claim])
    context.roster.update(record)
    context.scan_wanted = True
    announce_withdrawal(context, record, parts, reason)


def announce_withdrawal(context: Context, record: JobRecord, parts: Sequence[Part], reason: str) -> None:
    """Tell an application that it does not get what it accepted."""
    if not record.ends_soon:  # it can have nothing elsewhere, either, and must not be offered that for ever
        wanted_again(context, record, record.claims[parts[0].claim].component)
    clusters = [cluster_of(context, record, part.claim).parameters.name for part in parts]
    count = sum(part.change.accepted or part.change.processors for part in parts)
    record.last_trouble = f"{count} more processors on {' and '.join(clusters)}: {reason}"
    context.effects.add(
        WithdrawOffer(
            job_id=record.job.id,
            component=record.claims[parts[0].claim].component,
            cluster=clusters[0],
            number=name_of(parts[0].change),
            reason=reason,
        )
    )


def return_stubs(context: Context, change: Change) -> None:
    """End what was gathered."""
    if change.phase is not ChangePhase.GATHERING:
        return
    for id_ in change.stubs:
        stub = context.state.placeholders.get(id_)
        if stub is None:
            continue
        stub.stub = False
        if stub.state is not PlaceholderState.ENDING:
            end_placeholder(context, stub)
    change.stubs = []


def _gathering_for(record: JobRecord, placeholder: PlaceholderRecord) -> int | None:
    for number, claim in enumerate(record.claims):
        if claim.change is not None and placeholder.id in claim.change.stubs:
            return number
    return None


def time_left(context: Context, record: JobRecord) -> float:
    """Return the seconds until the walltime of a running job ends."""
    launched_at = context.now if record.launched_at is None else record.launched_at
    return max(0.0, launched_at + record.job.walltime - context.now)

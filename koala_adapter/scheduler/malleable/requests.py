# SPDX-License-Identifier: Apache-2.0
"""Applications that ask for more processors themselves (CoreGRID TR-0092: initiative and obligation).

A voluntary wish gets what is free now and others do not wait for. A mandatory one must be accommodated: other running
jobs of the cluster are shrunk for it, and what comes free is kept for it, before waiting jobs. When even all that the
others could give would not suffice, nobody is shrunk in vain, and it gets what is free.

Memory can be asked for with processors: each of the new placeholders is then submitted with so much. That of a process
that runs cannot be changed, for no batch system changes the limits of a job that runs.

An application that negotiates is offered what is less than it asked for, and may decline. Until it has answered that is
kept for it, as everything else that is offered. Where its component may be on several clusters, its wish is met on as
many of them as it takes (``jointgrowth.py``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.model import JobKind
from koala_adapter.scheduler.actions import GrantProcessors
from koala_adapter.scheduler.changes import ChangePhase, Promise
from koala_adapter.scheduler.malleable.growing import NEAR_END, gather_all
from koala_adapter.scheduler.malleable.jointgrowth import Share, join, parts_of, shared_out
from koala_adapter.scheduler.malleable.offers import take_answer, unreserve
from koala_adapter.scheduler.malleable.others import free_for_growing
from koala_adapter.scheduler.malleable.policies import Direction
from koala_adapter.scheduler.malleable.steps import (
    abandon_after,
    cluster_of,
    free_on,
    new_change,
    promised_on,
    start_step,
)
from koala_adapter.scheduler.outcome import JobState
from koala_adapter.scheduler.roster import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.scheduler import events as ev
    from koala_adapter.scheduler.changes import Change
    from koala_adapter.scheduler.clusterrecord import ClusterRecord
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.records import JobRecord


def more_requested(context: Context, event: ev.MoreRequested) -> None:
    """Grant an application what it asks for, or see to it that it can be granted."""
    record = context.state.jobs.get(event.job_id)
    own = [] if record is None else [one for one, c in enumerate(record.claims) if c.component == event.component]
    if record is None or not own or event.number <= max(record.claims[one].last_request for one in own):
        return
    claims = _claims_meant(context, record, event, own)
    number = claims[0]
    for one in own if event.agreement else own[:1]:
        record.claims[one].last_request = event.number
    claim = record.claims[number]
    if claim.change is not None and claim.change.phase is ChangePhase.ASKED:
        take_answer(context, record, number, claim.change, 0)  # it asks for more instead of answering
    change = new_change(context, event.processors, ChangePhase.PROMISED)
    change.agreement, change.asker, change.wish = event.agreement, event.rank, event.processors
    change.least = event.least
    if event.agreement:
        change.reason = "the application asked for it"
    lacking = _lacking_memory(context, record, number, event)
    change.memory_mib = 0 if lacking else event.memory_mib
    problem = _problem(record, number, event) or (lacking if event.memory_required else "")
    if problem:
        _answer(context, record, number, change, 0, problem)
        return
    most = bounds(record, claim)[1] - claim.processors
    change.processors = max(0, min(event.processors, most))
    short = "its maximum is reached" if change.processors < event.processors else ""
    _grant_or_promise(context, record, claims, change, short, mandatory=event.mandatory)


def _problem(record: JobRecord, number: int, event: ev.MoreRequested) -> str:
    """Return why nothing is granted, whatever is free."""
    if record.job.kind is not JobKind.MALLEABLE:
        return f"a {record.job.kind.value} job keeps its size"
    if record.state is not JobState.RUNNING or record.ends:
        return "the job does not run"
    if record.ends_soon:
        return NEAR_END
    if event.cluster and record.claims[number].cluster != event.cluster:
        return f"component {event.component!r} cannot grow on {event.cluster}"
    return "another change is under way" if record.claims[number].change is not None else ""


def _grant_or_promise(
    context: Context, record: JobRecord, claims: Sequence[int], change: Change, short: str, *, mandatory: bool
) -> None:
    free = {one: _free_for(context, record, one, mandatory=mandatory) for one in claims}
    counts = _filled(claims, free, change.processors)
    granted = sum(counts.values())
    if mandatory and granted < change.processors:
        _promise(context, record, change, free)
        return
    shares = [
        Share(one, change if one == claims[0] else _further(context, change), count) for one, count in counts.items()
    ]
    reason = short if granted == change.processors else "no more is free"
    _grant(context, record, claims[0], change, shares, reason)


def _free_for(context: Context, record: JobRecord, number: int, *, mandatory: bool) -> int:
    cluster = cluster_of(context, record, number)
    free = free_on(context, cluster)
    return free if mandatory else min(free, free_for_growing(context, cluster))


def _filled(claims: Sequence[int], free: Mapping[int, int], wanted: int) -> dict[int, int]:
    """Return how many of the wanted processors each claim gets; those that get none are left out."""
    counts = {}
    for one in claims:
        if count := min(free[one], wanted):
            counts[one], wanted = count, wanted - count
    return counts


def _further(context: Context, change: Change) -> Change:
    """Return a change for the part of a wish that is met on another cluster."""
    return replace(change, number=new_change(context, 0, ChangePhase.PROMISED).number)


def _promise(context: Context, record: JobRecord, change: Change, free: Mapping[int, int]) -> None:
    """Keep what is free on all clusters, and have others make room where most could be had."""
    spare = {one: context.roster.on(cluster_of(context, record, one).name).spare for one in free}
    number = max(free, key=lambda one: (free[one] + spare[one], -one))
    elsewhere = _filled([one for one in free if one != number], free, change.processors)
    change.processors -= sum(elsewhere.values())
    for one, count in elsewhere.items():
        further = _further(context, change)
        further.processors, further.lead = count, change.number
        _keep(context, record, one, further, ChangePhase.PROMISED, context.state.parameters.placeholder_life)
    _keep(context, record, number, change, ChangePhase.PROMISED, context.state.parameters.placeholder_life)
    cluster = cluster_of(context, record, number)
    cluster.promises.append(Promise(record.job.id, number, cluster.polled_at))
    context.roster.update(record)
    keep_promises(context, cluster)


def _keep(  # noqa: PLR0917 - what is kept for whom
    context: Context, record: JobRecord, number: int, change: Change, phase: ChangePhase, seconds: float
) -> None:
    context.ledger.begin_change(record.claims[number], change, phase)
    abandon_after(context, record, change, seconds)


def keep_promises(context: Context, cluster: ClusterRecord) -> None:
    """Grant what was promised on a cluster as soon as it is free; make it free where that has not been tried."""
    while cluster.promises and cluster.step is None:
        promise = cluster.promises[0]
        record = context.state.jobs[promise.job_id]
        change = record.claims[promise.claim].change
        if change is None:
            cluster.promises.pop(0)
            continue
        promised = promised_on(context, cluster)  # later promises wait for this one
        context.ledger.reserve(cluster, -promised)
        free = free_on(context, cluster)
        lacking = change.processors - min(cluster.room, cluster.load_free) - cluster.ending
        overdrawn = cluster.load_free < 0
        context.ledger.reserve(cluster, promised)
        if free < change.processors and not change.shrunk_others:
            spare = context.roster.on(cluster.parameters.name).spare
            if overdrawn and lacking > spare and promise.polled_at == cluster.polled_at:
                return  # nodes are not listed at the same moment as jobs: what started in between may count twice
            change.shrunk_others = True
            if 0 < lacking <= spare:
                reason = f"job {record.job.id} asked for {change.processors} more"
                start_step(context, cluster, Direction.SHRINK, lacking, reason=reason)
                continue
        if free < change.processors and cluster.ending and not _overdue(change):
            return  # what is on its way out may be what is missing
        unreserve(context, record, promise.claim, change)
        wanted, shares = _kept_for(context, record, change, free)
        context.ledger.reserve(cluster, -(left := promised - change.processors))
        short = "" if sum(share.processors for share in shares) == wanted else "the others could not give more"
        _grant(context, record, promise.claim, change, shares, short)
        context.ledger.reserve(cluster, left)


def _kept_for(context: Context, record: JobRecord, change: Change, free: int) -> tuple[int, list[Share]]:
    """End a promise; return how many processors it was for, and those that can be had. ``free``: where it stood."""
    parts = parts_of(record, change)
    wanted = [part.change.processors for part in parts]
    for part in parts:
        context.ledger.end_change(record.claims[part.claim])
    elsewhere = [free_on(context, cluster_of(context, record, part.claim)) for part in parts[1:]]
    able = [min(one, most) for one, most in zip(wanted, [free, *elsewhere], strict=True)]
    return sum(wanted), shared_out(parts, able, sum(wanted))


def _grant(  # noqa: PLR0917 - what is granted to whom
    context: Context, record: JobRecord, number: int, change: Change, shares: list[Share], short: str
) -> None:
    """Have all shares gathered; or offer them, where they are less than what an application that negotiates wants."""
    granted = join(shares)
    if change.agreement and 0 < granted < min(change.least, change.wish):
        short = f"{short}: {granted} can be had, and fewer than {change.least} are of no use to it"
        granted, shares = 0, []
    elif change.agreement and 0 < granted < change.wish:
        for claim, part, count in shares:
            part.processors, part.countered = count, True
            _keep(context, record, claim, part, ChangePhase.ASKED, context.state.parameters.answer_timeout)
    elif granted > 0 and not gather_all(context, record, shares):
        granted, short = 0, "no more is free"
    context.roster.update(record)
    _answer(context, record, number, shares[0].change if shares else change, granted, short)


def _answer(  # noqa: PLR0917 - likewise
    context: Context, record: JobRecord, number: int, change: Change, granted: int, short: str
) -> None:
    context.effects.add(
        GrantProcessors(
            job_id=record.job.id,
            component=record.claims[number].component,
            request=record.claims[number].last_request,
            number=change.number if granted else 0,
            processors=granted,
            reason=short,
            agreement=change.agreement,
            rank=change.asker,
            countered=change.countered,
            memory_mib=change.memory_mib if granted else 0,
        )
    )


def _lacking_memory(context: Context, record: JobRecord, number: int, event: ev.MoreRequested) -> str:
    """Return why processors of a claim do not come with the memory that is asked for; empty: they do."""
    cluster = record.claims[number].cluster
    if not event.memory_mib or cluster is None:
        return ""
    limit = context.state.clusters[cluster].parameters.memory_limit
    if limit is None:
        return f"the site gives an application no more memory on {cluster}"
    if event.memory_mib > limit:
        return f"on {cluster} a processor comes with {limit} MiB of memory at most, not {event.memory_mib}"
    return ""


def _overdue(change: Change) -> bool:
    return change.due is None


def _claims_meant(context: Context, record: JobRecord, event: ev.MoreRequested, own: list[int]) -> list[int]:
    """Return where a component is to grow, never nowhere.

    One that negotiates grows on all clusters that it names and where nothing changes; where most is free, first.
    """
    if not event.agreement:
        return own[:1]
    named = [one for one in own if event.cluster in {"", record.claims[one].cluster}]
    able = [one for one in named if record.claims[one].change is None and record.claims[one].cluster is not None]
    with_memory = [one for one in able if not _lacking_memory(context, record, one, event)]
    able = with_memory or able
    return (
        sorted(able, key=lambda one: (-free_on(context, cluster_of(context, record, one)), one)) or (named or own)[:1]
    )

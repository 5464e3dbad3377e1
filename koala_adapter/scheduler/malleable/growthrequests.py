# SPDX-License-Identifier: Apache-2.0
"""Applications that ask for more processors themselves (PAPERS section 1.3: initiative and obligation).

A voluntary wish gets what is free now and others do not wait for. A mandatory one must be accommodated: other running
jobs of the cluster are shrunk for it, and what comes free is kept for it, before waiting jobs. When even all that the
others could give would not suffice, nobody is shrunk in vain, and it gets what is free.

Memory can be asked for with processors: each of the new placeholders is then submitted with so much. That of a process
that runs cannot be changed, for no batch system changes the limits of a job that runs.

An application that negotiates is offered what is less than it asked for, and may decline. Until it has answered that is
kept for it, as everything else that is offered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import JobKind
from koala_adapter.scheduler.actions import GrantProcessors
from koala_adapter.scheduler.changes import Change, ChangePhase, Promise
from koala_adapter.scheduler.malleable.growing import gather
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
    from koala_adapter.scheduler import events as ev
    from koala_adapter.scheduler.clusterrecord import ClusterRecord
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.records import JobRecord


def more_requested(context: Context, event: ev.MoreRequested) -> None:
    """Grant an application what it asks for, or see to it that it can be granted."""
    record = context.state.jobs.get(event.job_id)
    number = None if record is None else _claim_meant(context, record, event)
    if record is None or number is None or event.number <= record.claims[number].last_request:
        return
    claim = record.claims[number]
    claim.last_request = event.number
    if claim.change is not None and claim.change.phase is ChangePhase.ASKED:
        take_answer(context, record, number, claim.change, 0)  # it asks for more instead of answering
    change = new_change(context, event.processors, ChangePhase.PROMISED)
    change.agreement, change.asker, change.wish = event.agreement, event.rank, event.processors
    if event.agreement:
        change.reason = "the application asked for it"
    lacking = _lacking_memory(context, record, number, event)
    change.memory_mib = 0 if lacking else event.memory_mib
    if record.job.kind is not JobKind.MALLEABLE:
        _answer(context, record, number, change, 0, f"a {record.job.kind.value} job keeps its size")
    elif record.state is not JobState.RUNNING or record.ends:
        _answer(context, record, number, change, 0, "the job does not run")
    elif claim.change is not None:
        _answer(context, record, number, change, 0, "another change is under way")
    elif lacking and event.memory_required:
        _answer(context, record, number, change, 0, lacking)
    else:
        most = bounds(record, claim)[1] - claim.processors
        change.processors = max(0, min(event.processors, most))
        short = "its maximum is reached" if change.processors < event.processors else ""
        _grant_or_promise(context, record, number, change, short, mandatory=event.mandatory)


def _grant_or_promise(
    context: Context, record: JobRecord, number: int, change: Change, short: str, *, mandatory: bool
) -> None:
    cluster = cluster_of(context, record, number)
    free = free_on(context, cluster)
    if not mandatory:
        free = min(free, free_for_growing(context, cluster))
    if not mandatory or change.processors <= free:
        granted = min(change.processors, free)
        _grant(context, record, number, change, granted, short if granted == change.processors else "no more is free")
        return
    context.ledger.begin_change(record.claims[number], change, ChangePhase.PROMISED)
    cluster.promises.append(Promise(record.job.id, number, cluster.polled_at))
    abandon_after(context, record, change, context.state.parameters.placeholder_life)
    context.roster.update(record)
    keep_promises(context, cluster)


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
        context.ledger.end_change(record.claims[promise.claim])
        granted = min(free, change.processors)
        context.ledger.reserve(cluster, -(left := promised - change.processors))
        short = "" if granted == change.processors else "the others could not give more"
        _grant(context, record, promise.claim, change, granted, short)
        context.ledger.reserve(cluster, left)


def _grant(  # noqa: PLR0917 - what is granted to whom
    context: Context, record: JobRecord, number: int, change: Change, granted: int, short: str
) -> None:
    if change.agreement and 0 < granted < change.wish:
        change.processors, change.countered = granted, True
        context.ledger.begin_change(record.claims[number], change, ChangePhase.ASKED)
        abandon_after(context, record, change, context.state.parameters.answer_timeout)
    elif granted > 0 and not gather(context, record, number, change, granted):
        granted, short = 0, "no more is free"
    context.roster.update(record)
    _answer(context, record, number, change, granted, short)


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


def _claim_meant(context: Context, record: JobRecord, event: ev.MoreRequested) -> int | None:
    """Return where a component is to grow: one that negotiates grows where most is free of those that do not change."""
    numbers = [number for number, claim in enumerate(record.claims) if claim.component == event.component]
    if event.agreement and len(numbers) > 1:
        able = [one for one in numbers if record.claims[one].change is None and record.claims[one].cluster is not None]
        with_memory = [one for one in able if not _lacking_memory(context, record, one, event)]
        able = with_memory or able
        return max(able, key=lambda one: (free_on(context, cluster_of(context, record, one)), -one), default=numbers[0])
    return numbers[0] if numbers else None

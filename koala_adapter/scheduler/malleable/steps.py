# SPDX-License-Identifier: Apache-2.0
"""Steps of a malleability policy on a cluster: messages to running jobs go out in rounds, answers come in.

In order: pauses that prevent running jobs from changing to and fro, the processors that are left to waiting jobs from
outside koala, and the steps. What is offered is reserved until it is answered, so an application that accepts gets it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.errors import PolicyAnswerError
from koala_adapter.scheduler.actions import OfferProcessors, ReportRefusedAnswer, RequestProcessors
from koala_adapter.scheduler.clusters import ClusterRecord, ClusterStep, ForeignJob
from koala_adapter.scheduler.context import SHORTEST_PAUSE, Context, closed_reason
from koala_adapter.scheduler.malleable.policies import Direction, MalleabilityPolicy, Step
from koala_adapter.scheduler.sizechange import Change, ChangePhase, Part
from koala_adapter.scheduler.states import RunningClaim, order_of
from koala_adapter.slots import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.scheduler.records import JobRecord


# -- Hysteresis: pauses in both directions, and the largest change -------------------------------------------

PATIENCE = 8
"""So many steps that free nothing may follow each other at the usual interval."""
MOST_DOUBLINGS = 20
"""The pause after further ones is doubled so often at most."""


def pause(context: Context, cluster: ClusterRecord, direction: Direction, seconds: float) -> None:
    """Block steps in a direction on a cluster for a while; an existing longer pause stays."""
    if seconds <= 0:
        return
    until = context.now + seconds
    before = cluster.no_growth_before if direction is Direction.GROW else cluster.no_shrink_before
    if before is not None and before > until:
        return
    if direction is Direction.GROW:
        cluster.no_growth_before = until
    else:
        cluster.no_shrink_before = until
    context.timetable.for_cluster(cluster, until)


def pause_growth(context: Context, cluster: ClusterRecord) -> None:
    """Block offers on a cluster for a while, because expected processors were not there."""
    pause(context, cluster, Direction.GROW, context.state.parameters.backoff)


def growth_paused(context: Context, cluster: ClusterRecord) -> bool:
    """Return whether offers are blocked because expected processors were not there."""
    return cluster.no_growth_before is not None and context.now < cluster.no_growth_before


def shrunk_fruitlessly(context: Context, cluster: ClusterRecord) -> None:
    """Block shrinking for a while; after repeated steps without result, for doubling times.

    A policy may ask jobs that cannot give anything, as EGS does (CoreGRID TR-0092); others may have their reasons.
    """
    parameters, sizes = context.state.parameters, _sizes(context, cluster)
    cluster.fruitless_shrinks = cluster.fruitless_shrinks + 1 if sizes == cluster.fruitless_sizes else 1
    cluster.fruitless_sizes = sizes
    seconds = max(SHORTEST_PAUSE, parameters.scan_interval)
    pause(context, cluster, Direction.SHRINK, seconds)
    doublings = min(MOST_DOUBLINGS, max(0, cluster.fruitless_shrinks - PATIENCE))
    cluster.fruitless_until = context.now + min(seconds * 2**doublings, max(seconds, parameters.longest_backoff))
    context.timetable.for_cluster(cluster, cluster.fruitless_until)


def shrinking_is_fruitless(context: Context, cluster: ClusterRecord) -> bool:
    """Return whether jobs gave nothing when asked last and nothing has changed since."""
    until = cluster.fruitless_until
    return until is not None and context.now < until and _sizes(context, cluster) == cluster.fruitless_sizes


def _sizes(context: Context, cluster: ClusterRecord) -> list[int]:
    return [job.size for job in context.roster.on(cluster.name)]


def in_one_step(context: Context, processors: int) -> int:
    """Return how many of some processors one step may handle."""
    most = context.state.parameters.largest_change
    return processors if most is None else min(processors, most)


# -- Waiting jobs from outside koala, and what is left to them (PWA) -----------------------------------------
# Koala does not start these jobs; it can only see to it that enough processors are idle. Running malleable jobs are
# shrunk as far as their minima allow, and the idle processors that others need are not offered to them. Of several
# waiting jobs, those count, in the order of their queue, for which all that could be given would be enough; no job is
# shrunk for one that needs more.
#
# A batch system may have reasons of its own not to start a job although enough is idle: limits, licences, the location
# of processors. A job that has not been started after a `backoff`, which is longer than batch systems need for that,
# does not count for `longest_backoff`.


def others_seen(context: Context, cluster: ClusterRecord, wanted: Iterable[int]) -> None:
    """Record the processors that waiting jobs of others ask for, in queue order.

    They have no names here. Of several of the same size, those that were there first are taken to have left first.
    """
    known: dict[int, list[ForeignJob]] = {}
    for job in cluster.others_waiting:
        known.setdefault(job.processors, []).append(job)
    sizes = list(wanted)
    for size, jobs in known.items():
        del jobs[: max(0, len(jobs) - sizes.count(size))]
    found = [known[size].pop(0) if known.get(size) else ForeignJob(size) for size in sizes]
    for job in found:
        _note_blocked(context, cluster, job)
    cluster.others_waiting = found


def _note_blocked(context: Context, cluster: ClusterRecord, job: ForeignJob) -> None:
    """Update from when a job of others counts as waiting for something else than processors."""
    parameters, now = context.state.parameters, context.now
    since = job.blocked_from
    fits = job.processors <= cluster.idle
    if since is not None and (now >= since + parameters.longest_backoff or (now < since and not fits)):
        job.blocked_from = None
    if fits and job.blocked_from is None:
        job.blocked_from = now + parameters.backoff
        context.timetable.for_cluster(cluster, job.blocked_from)


def lacking_for_others(context: Context, cluster: ClusterRecord) -> int:
    """Return by how many processors to shrink for waiting jobs of others; 0 or less: not at all.

    A batch system is asked for its jobs, then for its nodes. Those that it starts between the two on what ours have
    left are seen both to wait and to occupy it. So no job is asked for more before the next poll.
    """
    if not cluster.others_waiting or cluster.ours_left:
        return 0
    coming = _coming(cluster)
    wanted = _wanted(context, cluster, coming + context.roster.on(cluster.name).spare)
    return wanted - max(0, coming)


def others_lack(context: Context, cluster: ClusterRecord) -> bool:
    """Return whether others wait for more than is coming and running jobs could give it."""
    if not cluster.others_waiting:
        return False
    coming = _coming(cluster)
    return _wanted(context, cluster, coming + _at_most_given(context, cluster)) > max(0, coming)


def free_for_growing(context: Context, cluster: ClusterRecord) -> int:
    """Return the processors that may be offered: free and not awaited by others."""
    if not cluster.others_waiting:
        return cluster.available
    left = _wanted(context, cluster, _coming(cluster) + _at_most_given(context, cluster))
    return max(0, min(cluster.room, cluster.load_free - left))


def _at_most_given(context: Context, cluster: ClusterRecord) -> int:
    return sum(job.size - job.minimum for job in context.roster.on(cluster.name))


def _coming(cluster: ClusterRecord) -> int:
    """Return the processors that others get at once or soon; negative: our placeholders wait there."""
    return cluster.load_free + cluster.offered + cluster.ending + cluster.gathering


def _wanted(context: Context, cluster: ClusterRecord, most: int) -> int:
    """Return what others wait for, as whole jobs of at most ``most`` processors in sum."""
    if not context.state.parameters.approach.shrinks_for_waiting:
        return 0
    parameters, total = context.state.parameters, 0
    for job in cluster.others_waiting:
        since = job.blocked_from
        doubted = since is not None and since <= context.now < since + parameters.longest_backoff
        if not doubted and total + job.processors <= most:
            total += job.processors
    return total


# -- Steps ---------------------------------------------------------------------------------------------------


def cluster_of(context: Context, record: JobRecord, number: int) -> ClusterRecord:
    """Return the cluster on which a claim of a running job is. Raises LookupError for a claim that has none."""
    name = record.claims[number].cluster
    if name is None:
        raise LookupError(f"claim {number} of job {record.job.id} is nowhere")
    return context.state.clusters[name]


def wanted_again(context: Context, record: JobRecord, component: str) -> None:
    """Offer again, on all clusters, what a component has declined at its former size."""
    for claim in record.claims:
        if claim.component == component and claim.cluster is not None:
            context.state.clusters[claim.cluster].unwanted = None


def promised_on(context: Context, cluster: ClusterRecord) -> int:
    """Return how many processors of a cluster are promised."""
    records = ((context.state.jobs[one.job_id], one.change) for one in cluster.promises)
    parts = ((record, record.changes[number].parts[0]) for record, number in records if number in record.changes)
    return sum(part.processors * record.claims[part.claim].slot_processors for record, part in parts)


def policy_of(context: Context, cluster: ClusterRecord) -> MalleabilityPolicy:
    """Return the malleability policy of a cluster."""
    name = cluster.parameters.malleability_policy or context.state.parameters.malleability_policy
    return context.policies.malleability[name]


def start_step(
    context: Context,
    cluster: ClusterRecord,
    direction: Direction,
    value: int,
    *,
    reason: str,
    thorough: bool = False,
    withheld: int = 0,
) -> None:
    """Begin to grow or shrink the running jobs of a cluster on which no step is under way.

    ``withheld``: processors that are free, too, and more than one step may give out.
    """
    step = Step(direction=direction, remaining=value, thorough=thorough)
    cluster.step = ClusterStep(step=step, reason=reason, value=value, withheld=withheld)
    continue_step(context, cluster)


def continue_step(context: Context, cluster: ClusterRecord) -> None:
    """Send the next round of a step when the last is answered, or end the step."""
    current = cluster.step
    if current is None or current.awaited:
        return
    step, policy = current.step, policy_of(context, cluster)
    grows = step.direction is Direction.GROW
    if grows and step.rounds:
        if policy.rebalances and cluster.promises:
            # What some have given up belongs first to those that insist. Waiting for it here would keep them waiting
            # for as long as their batch system does not say that it is free.
            cluster.step, context.scan_wanted = None, True
            return
        if policy.rebalances and cluster.ending:
            return  # what some have given up for others is not free yet
        step.remaining = min(step.remaining, free_for_growing(context, cluster))
    _send_round(context, cluster, current)
    if current.awaited:
        return
    cluster.step = None
    context.scan_wanted = True
    if grows:
        _note_unwanted(context, cluster, current)
        if policy.rebalances and step.rounds:
            # What one application declines leaves the others unequal, which would begin it all again at this instant.
            cluster.balanced_until = context.now + max(SHORTEST_PAUSE, context.state.parameters.scan_interval)
            cluster.balanced = len(context.roster.on(cluster.parameters.name))
            context.timetable.for_cluster(cluster, cluster.balanced_until)
    elif step.remaining > 0 and step.remaining >= current.value:  # what helped a little is worth another step
        shrunk_fruitlessly(context, cluster)
    else:
        cluster.fruitless_shrinks, cluster.fruitless_until = 0, None
        pause(context, cluster, Direction.GROW, context.state.parameters.grow_pause)


def _send_round(context: Context, cluster: ClusterRecord, current: ClusterStep) -> None:
    """Send the next round of a step.

    A policy reckons in processors, and jobs change by whole slots: the first get what makes their last slot whole, and
    a job for which less than a slot is left counts as one that declines.
    """
    policy = policy_of(context, cluster)
    while not current.awaited and (messages := _messages(context, cluster, policy, current.step)):
        left = max(current.step.remaining, sum(abs(amount) for _, amount in messages))
        for member, amount in messages:
            record = context.state.jobs[member.job_id]
            each = record.claims[member.claim].slot_processors
            most = left // each if amount > 0 else -(-left // each)
            slots = min(-(-abs(amount) // each), most)
            left = max(0, left - slots * each)
            if slots:
                current.awaited += 1
                part = Part(member.claim, slots if amount > 0 else -slots)
                change = new_change(context, record, [part], current.reason)
                change.in_step = True
                ask(context, record, change)
            else:
                current.step.answered(member.order, amount, 0)


def _note_unwanted(context: Context, cluster: ClusterRecord, over: ClusterStep) -> None:
    """Record the processors left over by a step, so that they are not offered again."""
    left = over.step.remaining
    cluster.unwanted = left + over.withheld if left > 0 else 0
    if over.lapsed:  # not at once: a peer that lets everything run out would be asked without end
        cluster.unwanted = None
        pause(context, cluster, Direction.GROW, max(SHORTEST_PAUSE, context.state.parameters.scan_interval))


def settle(context: Context, record: JobRecord, change: Change, accepted: int) -> None:
    """Report to a step the signed change that its message led to."""
    part = change.parts[0]
    cluster = cluster_of(context, record, part.claim)
    current = cluster.step
    if not change.in_step or current is None:
        return
    change.in_step = False
    current.awaited -= 1
    each = record.claims[part.claim].slot_processors
    current.step.answered(order_of(record, part.claim), part.processors * each, accepted * each)
    continue_step(context, cluster)


def abandon_after(context: Context, record: JobRecord, change: Change, seconds: float) -> None:
    """Set the time-out of a change."""
    context.timetable.for_change(record, change, context.now + max(SHORTEST_PAUSE, seconds))


def new_change(context: Context, record: JobRecord, parts: list[Part], reason: str) -> Change:
    """Return a change with a number of its own, which is in no record yet."""
    context.state.changes_made += 1
    component = record.claims[parts[0].claim].component
    return Change(number=context.state.changes_made, component=component, parts=parts, reason=reason)


def _messages(
    context: Context, cluster: ClusterRecord, policy: MalleabilityPolicy, step: Step
) -> list[tuple[RunningClaim, int]]:
    """Return the next round of a step; empty ends it, also when messages are invalid."""
    try:
        messages = policy.messages(context.roster.on(cluster.parameters.name), step)
    except PolicyAnswerError as error:
        if cluster.refused_answer != error.message:
            cluster.refused_answer = error.message
            context.effects.add(ReportRefusedAnswer(reason=error.message))
        return []
    cluster.refused_answer = ""
    return messages


def ask(context: Context, record: JobRecord, change: Change) -> None:
    """Send an offer or request for one cluster to a job and set the time-out of its answer."""
    (part,) = change.parts
    context.ledger.move_change(record, change, ChangePhase.ASKED)
    abandon_after(context, record, change, context.state.parameters.answer_timeout)
    kind = OfferProcessors if part.processors > 0 else RequestProcessors
    context.effects.add(
        kind(
            job_id=record.job.id,
            component=change.component,
            cluster=cluster_of(context, record, part.claim).name,
            number=change.number,
            processors=abs(part.processors),
        )
    )
    context.roster.update(record)


def free_on(context: Context, record: JobRecord, number: int, *, kept: int = 0) -> int:
    """Return the slots that a claim of a running job would get at once.

    ``kept``: processors that are kept for it, or for later ones.
    """
    cluster, claim = cluster_of(context, record, number), record.claims[number]
    if closed_reason(cluster, context.now) is not None:
        return 0
    free = max(0, min(cluster.room, cluster.load_free) + kept) // claim.slot_processors
    slot = record.job.component(claim.component).slot_on(cluster.name)
    if slot == PLAIN:
        return free
    return max(0, min(free, cluster.room_for(slot).load_free + kept // claim.slot_processors))

# SPDX-License-Identifier: Apache-2.0
"""Steps of a malleability policy on a cluster: messages to running jobs go out in rounds, and their answers come in.

What is offered is kept from everybody else until it is answered, so that an application that accepts is not told a
moment later that there is nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.errors import PolicyAnswerError
from koala_adapter.scheduler.actions import OfferProcessors, ReportRefusedAnswer, RequestProcessors
from koala_adapter.scheduler.changes import Change, ChangePhase, ClusterStep
from koala_adapter.scheduler.context import closed_reason
from koala_adapter.scheduler.jitter import SHORTEST_PAUSE
from koala_adapter.scheduler.malleable.hysteresis import jobs_have_shrunk, pause, shrunk_in_vain
from koala_adapter.scheduler.malleable.others import free_for_growing
from koala_adapter.scheduler.malleable.policies import Direction, Step
from koala_adapter.scheduler.roster import order_of

if TYPE_CHECKING:
    from koala_adapter.scheduler.clusterrecord import ClusterRecord
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.malleable.policies import MalleabilityPolicy
    from koala_adapter.scheduler.records import JobRecord
    from koala_adapter.scheduler.roster import RunningClaim


def cluster_of(context: Context, record: JobRecord, number: int) -> ClusterRecord:
    """Return the cluster on which a claim of a running job is. Raises LookupError for a claim that has none."""
    name = record.claims[number].cluster
    if name is None:
        raise LookupError(f"claim {number} of job {record.job.id} is nowhere")
    return context.state.clusters[name]


def wanted_again(context: Context, record: JobRecord, component: str) -> None:
    """Have offered again, on all clusters, what a component declined: it has another size now, or will not get it."""
    for claim in record.claims:
        if claim.component == component and claim.cluster is not None:
            context.state.clusters[claim.cluster].unwanted = None


def promised_on(context: Context, cluster: ClusterRecord) -> int:
    """Return how many processors are kept for all promises of a cluster."""
    claims = (context.state.jobs[one.job_id].claims[one.claim] for one in cluster.promises)
    return sum(claim.change.processors for claim in claims if claim.change is not None)


def policy_of(context: Context, cluster: ClusterRecord) -> MalleabilityPolicy:
    """Return the malleability policy of a cluster."""
    name = cluster.parameters.malleability_policy or context.state.parameters.malleability_policy
    return context.policies.malleability_policy(name)


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
    """Send the next round of messages when the last one is settled, or end the step."""
    current = cluster.step
    if current is None or current.awaited:
        return
    step, policy = current.step, policy_of(context, cluster)
    grows = step.direction is Direction.GROW
    if grows and step.rounds:
        if policy.rebalances and cluster.promises:
            # What some have given up belongs to those who insist first. Waiting for it here would keep them waiting for
            # as long as their batch system does not say that it is free.
            cluster.step, context.scan_wanted = None, True
            return
        if policy.rebalances and cluster.ending:
            return  # what some have given up for others is not free yet
        step.remaining = min(step.remaining, free_for_growing(context, cluster))
    for member, amount in _messages(context, cluster, policy, step):
        current.awaited += 1
        _ask(context, member, amount, current.reason)
    if current.awaited:
        return
    cluster.step = None
    context.scan_wanted = True
    if grows:
        _note_unwanted(context, cluster, current)
        if policy.rebalances and step.rounds:
            # What one application declines leaves the others unequal, which would begin it all again at this instant.
            cluster.levelled_until = context.now + max(SHORTEST_PAUSE, context.state.parameters.scan_interval)
            cluster.levelled = len(context.roster.on(cluster.parameters.name))
            context.timetable.for_cluster(cluster, cluster.levelled_until)
    elif step.remaining > 0 and step.remaining >= current.value:  # what helped a little is worth another step
        shrunk_in_vain(context, cluster)
    else:
        cluster.vain_shrinks, cluster.vain_until = 0, None
        jobs_have_shrunk(context, cluster)


def _note_unwanted(context: Context, cluster: ClusterRecord, over: ClusterStep) -> None:
    """Take note of what was left over by a step, so that it is not offered again."""
    left = over.step.remaining
    cluster.unwanted = left + over.withheld if left > 0 else 0
    if over.lapsed:  # not at once: a peer that lets everything run out would be asked without end
        cluster.unwanted = None
        pause(context, cluster, Direction.GROW, max(SHORTEST_PAUSE, context.state.parameters.scan_interval))


def settle(context: Context, record: JobRecord, number: int, change: Change, accepted: int) -> None:
    """Tell a step what became of a message: by how many processors (signed) the job grows or has shrunk."""
    cluster = cluster_of(context, record, number)
    current = cluster.step
    if not change.in_step or current is None:
        return
    change.in_step = False
    current.awaited -= 1
    current.step.answered(order_of(record, number), change.processors, accepted)
    continue_step(context, cluster)


def abandon_after(context: Context, record: JobRecord, change: Change, seconds: float) -> None:
    """Have a change looked at after a while."""
    context.timetable.for_change(record, change, context.now + max(SHORTEST_PAUSE, seconds))


def new_change(context: Context, processors: int, phase: ChangePhase) -> Change:
    """Return a change with a number of its own."""
    context.state.changes_made += 1
    return Change(number=context.state.changes_made, processors=processors, phase=phase)


def _messages(
    context: Context, cluster: ClusterRecord, policy: MalleabilityPolicy, step: Step
) -> list[tuple[RunningClaim, int]]:
    """Return the next round of a step; none when that cannot be sent, which ends the step."""
    try:
        messages = policy.messages(context.roster.on(cluster.parameters.name), step)
    except PolicyAnswerError as error:
        if cluster.refused_answer != error.message:
            cluster.refused_answer = error.message
            context.effects.add(ReportRefusedAnswer(reason=error.message))
        return []
    cluster.refused_answer = ""
    return messages


def _ask(context: Context, member: RunningClaim, amount: int, reason: str) -> None:
    record = context.state.jobs[member.job_id]
    change = new_change(context, amount, ChangePhase.ASKED)
    change.in_step, change.reason = True, reason
    ask(context, record, member.claim, change)


def ask(context: Context, record: JobRecord, number: int, change: Change) -> None:
    """Offer processors to a claim of a job, or ask for some of its, and wait for the answer as long as is allowed."""
    claim = record.claims[number]
    context.ledger.begin_change(claim, change, ChangePhase.ASKED)
    abandon_after(context, record, change, context.state.parameters.answer_timeout)
    kind = OfferProcessors if change.processors > 0 else RequestProcessors
    context.effects.add(
        kind(
            job_id=record.job.id,
            component=claim.component,
            cluster=cluster_of(context, record, number).parameters.name,
            number=change.number,
            processors=abs(change.processors),
        )
    )
    context.roster.update(record)


def free_on(context: Context, cluster: ClusterRecord) -> int:
    """Return the processors that a running job would get at once on a cluster."""
    return cluster.available if closed_reason(cluster, context.now) is None else 0

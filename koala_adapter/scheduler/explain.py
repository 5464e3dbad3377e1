# SPDX-License-Identifier: Apache-2.0
"""What ``koala explain`` says: one or two sentences on why a job waits, what it holds and what would let it start.

Written for the person who waits: no states, only processors, clusters and times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import JobKind
from koala_adapter.scheduler.claiming.firstlook import awaited_looks
from koala_adapter.scheduler.claiming.holds import hold_groups
from koala_adapter.scheduler.claiming.moves import moves_told
from koala_adapter.scheduler.claiming.queue import position_of
from koala_adapter.scheduler.context import closed_reason
from koala_adapter.scheduler.durations import duration
from koala_adapter.scheduler.explain_changes import giving_up, sizes, sizes_it_had
from koala_adapter.scheduler.explain_silence import without_contact
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.outcome import JobState, PlaceholderState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.model import ClusterName, Job
    from koala_adapter.scheduler.clusterrecord import ClusterRecord
    from koala_adapter.scheduler.records import Claim, JobRecord, PlaceholderRecord, State

HELD = (
    "What is in hold starts only when it is released there. Where the site has jobs come in held for a scheduler of "
    "its own (koala schedule, koala wiki serve), see whether that runs."
)
LISTED = 6
"""Most clusters that one sentence tells about."""


def explain(
    state: State, queue_position: int | None, record: JobRecord, now: float, *, policies: Policies = OWN
) -> str:
    """Say in one or two plain sentences where a job stands at time ``now``; ``policies``: those of its scheduler."""
    if record.state.final:
        return _ended(state, record)
    if record.state is JobState.WAITING:
        return _waiting(state, queue_position, record, now, policies)
    if record.state is JobState.CLAIMING:
        return _claiming(state, record, now)
    return _launched(state, record, now)


# ---- ended ----------------------------------------------------------------------------------------------------------


def _ended(state: State, record: JobRecord) -> str:
    outcome = record.outcome
    if outcome is None:  # the type allows it, the scheduler does not
        return "The job has ended."
    said = {
        JobState.COMPLETED: "The job completed",
        JobState.FAILED: f"The job failed with exit code {outcome.exit_code}",
        JobState.CANCELLED: "The job was cancelled",
        JobState.LOST: "The job was lost",
        JobState.NOT_PLACED: "The job was given up",
        JobState.REFUSED: "The job can never run as it is written",
    }[outcome.state]
    ran = ""
    if record.launched_at is not None and record.finished_at is not None:
        ran = f" after running for {duration(record.finished_at - record.launched_at)}"
    after = sizes_it_had(record) + _left(state, record)
    if outcome.state is JobState.CANCELLED and outcome.detail.startswith("cancelled"):
        who = outcome.detail.removesuffix(" while running") if ran else outcome.detail
        return f"The job was {who}{ran}.{after}"
    detail = f": {outcome.detail}" if outcome.detail else ""
    return f"{said}{ran}{detail}.{after}"


def _left(state: State, record: JobRecord) -> str:
    if not record.live:
        return ""
    mine = [p for p in state.placeholders.values() if p.job_id == record.job.id]
    return f" Still being given back: {_joined(f'{n} on {name}' for name, n in _by_cluster(mine).items())}."


# ---- launched -------------------------------------------------------------------------------------------------------


def _launched(state: State, record: JobRecord, now: float) -> str:
    held: dict[str | None, int] = {}
    for claim in record.claims:
        held[claim.cluster] = held.get(claim.cluster, 0) + claim.processors
    where = _joined(f"{cluster} ({processors})" for cluster, processors in held.items() if processors)
    total = len(record.ranks) - len(record.departed)
    since = duration(now - (record.launched_at if record.launched_at is not None else now))
    if record.state is JobState.LAUNCHING:
        text = f"All {_processors(total)} are held on {where}; {len(record.started)} of {total} processes have started."
    else:
        left = record.job.walltime - (now - (record.launched_at or now))
        text = (
            f"The job has been running for {since} on {_processors(total)}: {where}; "
            f"its walltime ends in {duration(left)}.{sizes(state, record, now)}"
        )
        if record.job.kind is JobKind.MALLEABLE:
            clusters = {claim.cluster for claim in record.claims if claim.cluster is not None}
            text += "".join(sorted({_sentence(state.clusters[name].refused_answer) for name in clusters}))
    return text + without_contact(state, record, now)


# ---- claiming -------------------------------------------------------------------------------------------------------


def _claiming(state: State, record: JobRecord, now: float) -> str:
    wanted = sum(_wanted(record, claim) for claim in record.claims)
    placeholders = state.placeholders_of(record)
    held = sum(p.held for p in placeholders)
    parts = ", ".join(_holding(state, record, claim) for claim in record.claims)
    awaited = _awaited(state, record, now)
    waits = f" and waits for {_joined(awaited)}" if awaited else ""
    text = f"The job holds {held} of {_processors(wanted)} ({parts}){waits}."
    release = f" {HELD}" if hold_groups(placeholders) else ""
    return f"{text} It starts when all are held{_until(record, now)}.{release}{_trouble(record)}"


def _wanted(record: JobRecord, claim: Claim) -> int:
    return claim.processors or record.component_of(claim).minimum


def _holding(state: State, record: JobRecord, claim: Claim) -> str:
    held = sum(state.placeholders[id_].held for id_ in claim.placeholders if id_ in state.placeholders)
    where = claim.cluster or f"no cluster yet for {claim.component!r}"
    return f"{held} of {_wanted(record, claim)} on {where}"


def _awaited(state: State, record: JobRecord, now: float) -> list[str]:
    placeholders = state.placeholders_of(record)
    queued = [p for p in placeholders if p.waiting]
    started = [p for p in placeholders if p.state is PlaceholderState.STARTED]
    silent = [p for p in placeholders if p.silent_since is not None]
    return [
        *(_in_queue(state, name, [p for p in queued if p.cluster == name], now) for name in _by_cluster(queued)),
        *(f"word from {n} that started on {name}" for name, n in _by_cluster(started).items()),
        *(f"{n} on {name} to come into contact again" for name, n in _by_cluster(silent).items()),
    ]


def _until(record: JobRecord, now: float) -> str:
    """Say when something changes by itself: a claim is repeated, or the life of what is held ends."""
    if record.retake_at is not None:
        missing = sum(_wanted(record, claim) - len(claim.placeholders) for claim in record.claims)
        again = f"in {duration(record.retake_at - now)}" if record.retake_at > now else "now"
        return f"; {_processors(missing)} that it lost or gave back will be claimed again {again}"
    if record.life_ends_at is not None:
        return f"; what it holds is kept for another {duration(record.life_ends_at - now)}, then given back for a while"
    return ""


def _in_queue(state: State, name: ClusterName, queued: list[PlaceholderRecord], now: float) -> str:
    cluster = state.clusters[name]
    text = f"{len(queued)} in the queue of {name}"
    unsure = [state.batches[p.id.batch].uncertain for p in queued if p.id.batch in state.batches]
    doubts = sorted({reason for reason in unsure if reason})
    if doubts:
        return f"{text}, whose answer is unknown ({doubts[0]})"
    if cluster.unavailable is not None:
        return f"{text}, which is out of reach ({cluster.unavailable})"
    holds = [f"{one.count} in hold {one.who} for {duration(now - one.since)}" for one in hold_groups(queued)]
    idle = [f"idle there: {cluster.idle}"] if cluster.polled_at is not None else []
    known = "; ".join((*idle, *holds, *moves_told(queued)))
    return f"{text} ({known})" if known else text


def _trouble(record: JobRecord) -> str:
    return f" Last trouble: {record.last_trouble}." if record.last_trouble else ""


# ---- waiting --------------------------------------------------------------------------------------------------------


def _waiting(state: State, queue_position: int | None, record: JobRecord, now: float, policies: Policies) -> str:
    if record.not_before is not None:
        pause = duration(record.not_before - now)
        return f"The job holds nothing and is tried again in {pause}.{_trouble(record)}"
    place = (
        f"The job is number {queue_position} in the queue" if queue_position is not None else "The job is in the queue"
    )
    need = _joined(_needs(record.job, policies))
    kept = ""
    if state.guarded == record.job.id and (giving := giving_up(state, state.kept_room)):
        kept = f" Running jobs are giving up processors for it on {_joined(giving)}."
    elif state.guarded == record.job.id:
        said = _joined(f"{count} on {name}" for name, count in state.kept_room.items())
        why = "Because it has waited long, what" if _waited_long(state, record) else "What"
        kept = f" {why} comes free is kept for it ({said})."
    looks = _first_looks(state, record, now, policies)
    free = _clusters(state, record, now, policies)
    return f"{place} and needs {need}. {looks}{free}{kept}{_refused_answer(state, record)}"


def _first_looks(state: State, record: JobRecord, now: float, policies: Policies) -> str:
    """Say which clusters nobody has looked at yet are waited for."""
    awaited = [cluster for cluster in awaited_looks(state, now) if _usable(cluster, record, policies)]
    if not awaited:
        return ""
    answers = f"the first answer{'s' * (len(awaited) > 1)} of {_joined(cluster.name for cluster in awaited)}"
    until = max(cluster.first_look_until or now for cluster in awaited)
    verb = "are" if len(awaited) > 1 else "is"
    return f"Before it is queued anywhere, {answers} {verb} waited for, for another {duration(until - now)} at most. "


def _refused_answer(state: State, record: JobRecord) -> str:
    """Say what is wrong with a job's policy, one of the site's own. Of jobs that need the same only the first asks."""
    asked = (one.refused_answer for one in state.jobs.values() if one.job.placement == record.job.placement)
    return _sentence(record.refused_answer or next(filter(None, asked), ""))


def _needs(job: Job, policies: Policies) -> list[str]:
    """Say what each component asks for, equal ones once."""
    counts: dict[str, int] = {}
    for component in job.components:
        where = f"on {component.cluster}" if component.cluster is not None else "on one cluster"
        where = "on one or more clusters" if policies.may_split(job, component) else where
        need = f"{_processors(component.minimum)} {where}"
        counts[need] = counts.get(need, 0) + 1
    return [need if count == 1 else f"{count} times {need}" for need, count in counts.items()]


def _clusters(state: State, record: JobRecord, now: float, policies: Policies) -> str:
    """Say what could be placed where, of the clusters that could ever hold a part of the job."""
    clusters = [cluster for cluster in state.clusters.values() if _usable(cluster, record, policies)]
    if not clusters:
        return "No cluster that it may use is in the site file."
    said = [
        f"{cluster.parameters.name} {_state_of(cluster, now)}{_kept_there(state, record, cluster, now)}"
        for cluster in clusters[:LISTED]
    ]
    rest = f"; {len(clusters) - LISTED} more" if len(clusters) > LISTED else ""
    return f"It starts when that can be had at once: {'; '.join(said)}{rest}."


def _usable(cluster: ClusterRecord, record: JobRecord, policies: Policies) -> bool:
    name, capacity = cluster.parameters.name, cluster.largest_capacity
    return any(
        component.cluster in (None, name)
        and name not in claim.excluded
        and (capacity is None or (1 if policies.may_split(record.job, component) else component.minimum) <= capacity)
        and (cluster.configured or component.cluster == name)
        for component, claim in record.components()
    )


def _state_of(cluster: ClusterRecord, now: float) -> str:
    closed = closed_reason(cluster, now)
    if closed is not None:
        return f"is {closed}" if cluster.listed or cluster.unavailable else f"is closed: {closed}"
    if cluster.room <= 0 and cluster.managed:
        return f"has no room (our jobs have all {cluster.managed} that we may use)"
    return f"has room for {max(0, cluster.room)}"


def _kept_there(state: State, record: JobRecord, cluster: ClusterRecord, now: float) -> str:
    """Say how much of a cluster's room is kept free of this job, and for whom."""
    guarded = state.jobs.get(state.guarded) if state.guarded is not None else None
    if guarded is None or position_of(record) <= position_of(guarded) or closed_reason(cluster, now) is not None:
        return ""
    kept = min(cluster.room, state.kept_room.get(cluster.parameters.name, 0))
    if kept <= 0:
        return ""
    why = ", which has waited long" if _waited_long(state, guarded) else ""
    return f" (kept for job {guarded.job.id}{why}: {'all' if kept == cluster.room else kept})"


def _waited_long(state: State, record: JobRecord) -> bool:
    """Tell whether room is kept for a job by its age; if not, for what others have given up for it."""
    return record.queued_at_scan is not None and state.scans - record.queued_at_scan >= state.parameters.guard_scans


# ---- words ----------------------------------------------------------------------------------------------------------


def _processors(count: int) -> str:
    return f"{count} processor" if count == 1 else f"{count} processors"


def _sentence(said: str) -> str:
    return f" {said[0].upper()}{said[1:]}." if said else ""


def _by_cluster(placeholders: Iterable[PlaceholderRecord]) -> dict[ClusterName, int]:
    counts: dict[ClusterName, int] = {}
    for placeholder in placeholders:
        counts[placeholder.cluster] = counts.get(placeholder.cluster, 0) + 1
    return counts


def _where(placeholders: Iterable[PlaceholderRecord]) -> str:
    return _joined(f"{n} on {name}" for name, n in _by_cluster(placeholders).items())


def _joined(said: Iterable[str]) -> str:
    parts = list(said)
    if len(parts) > LISTED:
        parts = [*parts[:LISTED], f"{len(parts) - LISTED} more"]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""

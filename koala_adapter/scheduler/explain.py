# SPDX-License-Identifier: Apache-2.0
"""Explanations for users, as printed by ``koala explain``: why a job waits, what it holds, what it needs to start.

An explanation is one or two sentences about processors, clusters and times, without the names of states. In order:
durations in words, placeholders without contact, sizes of malleable jobs, then the explanation of a job by its state.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING

from koala_adapter.model import ClusterName, Component, Job, JobKind
from koala_adapter.outcome import JobState, PlaceholderState
from koala_adapter.scheduler.claiming.connections import doubts, doubts_of, must_connect, said_apart, said_untried
from koala_adapter.scheduler.claiming.plannedstart import STARTS_IN, expected_hold, submission_at, wants_reservation
from koala_adapter.scheduler.claiming.queue import position_of
from koala_adapter.scheduler.claiming.waiting import WORDS, awaited, awaited_looks, waits_long
from koala_adapter.scheduler.context import NOT_COUNTED, closed_reason, lack_of
from koala_adapter.scheduler.ends import Fate, deserted, fate
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.malleable.policies import Direction
from koala_adapter.scheduler.parameters import absent
from koala_adapter.scheduler.placement.policies import MIB
from koala_adapter.scheduler.placement.policy import slots_said
from koala_adapter.scheduler.reports import hold_groups
from koala_adapter.scheduler.sizechange import Change, ChangePhase, Part, SizeChange
from koala_adapter.slots import PLAIN, Slot, counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from koala_adapter.scheduler.clusters import ClusterRecord
    from koala_adapter.scheduler.records import Claim, JobRecord, PlaceholderRecord, Staging, State


# -- Durations in words --------------------------------------------------------------------------------------

MINUTE, HOUR, DAY = 60, 3600, 86400
FINE = 10.0
"""Seconds below which times that were measured are told to a tenth."""


def duration(seconds: float) -> str:
    """Return a length of time as a person says it: ``45 s``, ``12 min``, ``3 h 20 min``, ``2 d 4 h``."""
    whole = max(0, round(seconds))
    if whole < 2 * MINUTE:
        return f"{whole} s"
    if whole < 2 * HOUR:
        return f"{round(whole / MINUTE)} min"
    if whole < 2 * DAY:
        hours, minutes = divmod(round(whole / MINUTE), MINUTE)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(whole / HOUR), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def _measured(seconds: float) -> str:
    """Return a past duration in words, to a tenth of a second where short."""
    return f"{seconds:.1f} s" if 0 < seconds < FINE else duration(seconds)


# -- Placeholders without contact, and what the job loses with them ------------------------------------------


LOSSES: Mapping[Fate, str] = {
    Fate.JOB: "the job is lost",
    Fate.WORKER: "the job goes on with fewer workers",
    Fate.NEWCOMER: "the growth that they are for is given up",
    Fate.NOTHING: "they are taken as gone, which the job does not need any more",
}
"""What becomes of a job with the loss of placeholders, in the words of a sentence."""


def without_contact(state: State, record: JobRecord, now: float) -> str:
    """Return with how many placeholders of a job contact is lost, and what follows; empty: with none."""
    silent: dict[Fate, list[PlaceholderRecord]] = {}
    for placeholder in state.placeholders_of(record):
        awaited = placeholder.suspended_since is not None and state.parameters.await_suspended
        if placeholder.silent_since is not None and not awaited:
            rank = record.rank_in(placeholder)
            loss = Fate.NEWCOMER if rank is None else fate(record, rank.rank)
            silent.setdefault(Fate.NOTHING if loss is Fate.LEAVER else loss, []).append(placeholder)
    workers = silent.get(Fate.WORKER, [])
    if workers and deserted(state, record, losses=len(workers)):
        silent.setdefault(Fate.JOB, []).extend(silent.pop(Fate.WORKER))
    told = "".join(_said(state, words, silent[loss], now) for loss, words in LOSSES.items() if loss in silent)
    return _suspended(state, record, now) + told


def _suspended(state: State, record: JobRecord, now: float) -> str:
    """Return which placeholders of a job are suspended; empty: none."""
    since: dict[ClusterName, list[float]] = {}
    for placeholder in state.placeholders_of(record):
        if placeholder.suspended_since is not None:
            since.setdefault(placeholder.cluster, []).append(placeholder.suspended_since)
    return "".join(
        f" {len(times)} of its placeholders on {name} {'is' if len(times) == 1 else 'are'} suspended by the batch "
        f"system for {duration(now - min(times))}."
        for name, times in since.items()
    )


def _said(state: State, loss: str, silent: list[PlaceholderRecord], now: float) -> str:
    counts = _by_cluster(silent)
    where = ", ".join(f"{count} on {name}" for name, count in counts.items())
    until = min(one.silent_since + state.lease_on(one.cluster) for one in silent if one.silent_since is not None)
    left = duration(until - now)
    away = ((name, state.clusters[name].unavailable) for name in counts if name in state.clusters)
    return (
        f" There is no contact with {len(silent)} of its placeholders ({where}); if that lasts another {left}, {loss}."
    ) + "".join(f" {name} is out of reach ({reason})." for name, reason in away if reason is not None)


# -- Malleable jobs: possible sizes, and changes under way ---------------------------------------------------

CHANGES_TOLD = 3
"""So many of the latest changes of size are told."""


def sizes(state: State, record: JobRecord, now: float) -> str:
    """Return a malleable job's possible sizes, how they change, and why it does not grow; empty for others."""
    if not record.job.kind.varies:
        return ""
    said = [_sizes(state, record, one) for one in record.job.components if record.job.changes_size(one.name)]
    past = [_past(change, f"{duration(now - change.at)} ago") for change in record.size_changes[-CHANGES_TOLD:]]
    history = f" It {'; '.join(past)}." if past else ""
    rests = " No further workers are started for a while, as some have ended by themselves." * record.growth_rests
    rests += " It grows no more: its walltime is near." * record.ends_soon
    return f"{''.join(said)}{history}{rests}{_trouble(record)}"


def _sizes(state: State, record: JobRecord, component: Component) -> str:
    numbers = [number for number, claim in enumerate(record.claims) if claim.component == component.name]
    claims = [record.claims[number] for number in numbers if record.claims[number].cluster is not None]
    where = f"on {claims[0].cluster}" if len(claims) == 1 else "on all clusters together"
    who = "It" if len(record.job.components) == 1 else component.name
    asks = ", for which it asks itself" if record.job.kind is JobKind.EVOLVING else ""
    clusters = [state.clusters[claim.cluster] for claim in claims if claim.cluster is not None]
    changing = ""
    for change, part in filter(None, map(record.part_on, numbers)):
        cluster = state.clusters.get(record.claims[part.claim].cluster or ClusterName(""))
        on = "" if len(claims) == 1 or cluster is None else f" on {cluster.name}"
        changing += f"; {_change(change, part)}{on}{_shrunk_for(cluster, change)}"
    changing += "".join(_places(state, record, claim) for claim in claims) + _asked_back(record, component)
    others = "".join(f" {wanted_by_others(cluster)}." for cluster in clusters if cluster.others_waiting)
    return f" {who} can have {component.minimum} to {component.maximum} processors {where}{asks}{changing}.{others}"


def _places(state: State, record: JobRecord, claim: Claim) -> str:
    """Return what is queued for the size that the owner wants, in words."""
    waiting = sum(not state.placeholders[id_].held for id_ in claim.places)
    if not waiting:
        return ""
    wait = "1 placeholder waits" if waiting == 1 else f"{waiting} placeholders wait"
    return f"; {wait} in the queue of {claim.cluster} for a growth to {record.sizes_wanted[claim.component]}"


def _asked_back(record: JobRecord, component: Component) -> str:
    """Return how many processors beyond the size that the owner wants are still to be asked back, in words."""
    name, wanted = component.name, record.sizes_wanted.get(component.name)
    if wanted is None or record.ends:
        return ""
    surplus = record.size(name) + record.coming(name) - record.leaving(name) - wanted
    return f"; {surplus} more than the {wanted} that its owner wants are to be asked back" if surplus > 0 else ""


def sizes_it_had(record: JobRecord) -> str:
    """Return the changes of size of an ended job in words; empty for jobs of constant size.

    It is told by the time since its launch, for it is read long after its end.
    """
    launched_at = record.launched_at
    if launched_at is None or not record.size_changes:
        return ""
    told = record.size_changes[-CHANGES_TOLD:]
    earlier = len(record.size_changes) - len(told)
    before = f", after {earlier} earlier change{'s' * (earlier > 1)} of its size," if earlier else ""
    past = [_past(change, f"{duration(change.at - launched_at)} after it was launched") for change in told]
    return f" While it ran{before} it {'; '.join(past)}."


def _past(change: SizeChange, when: str) -> str:
    """Return a past change of size in words: ``grew from 2 to 6 on beta 12 s ago (processors are free)``."""
    reason = f" ({change.reason})" if change.reason else ""
    if change.after > change.before:
        return f"grew from {change.before} to {change.after} on {change.cluster} {when}{reason}"
    return f"gave {change.before - change.after} of {change.before} back on {change.cluster} {when}{reason}"


def wanted_by_others(cluster: ClusterRecord) -> str:
    """Return how many processors others wait for on a cluster, in words."""
    count = sum(job.processors for job in cluster.others_waiting)
    wanted = f"{count} processor of {cluster.name} is" if count == 1 else f"{count} processors of {cluster.name} are"
    return f"{wanted} wanted by others who wait in its queue"


def giving_up(state: State, names: Iterable[ClusterName]) -> list[ClusterName]:
    """Return the clusters of those given on which running jobs give up processors now."""
    steps = ((name, state.clusters[name].step) for name in names)
    return [name for name, step in steps if step is not None and step.step.direction is Direction.SHRINK]


def _shrunk_for(cluster: ClusterRecord | None, change: Change) -> str:
    """Return the jobs for which a job was asked to give up processors, in words."""
    step = None if cluster is None or not change.in_step or change.processors > 0 else cluster.step
    return "" if step is None or step.step.direction is Direction.GROW else f" ({step.reason})"


def _change(change: Change, part: Part) -> str:
    count = abs(part.processors)
    match change.phase:
        case ChangePhase.ASKED:
            return _asked(change, count)
        case ChangePhase.PROMISED:
            return f"it asked for {count} more, and others give up processors for it"
        case ChangePhase.GATHERING:
            return f"{part.accepted} more are being gathered for it"
        case ChangePhase.TAKING:
            return f"it is taking in {len(part.ranks)} more{_at_point(change)}"
    return _release(change)


def _asked(change: Change, count: int) -> str:
    if change.countered:
        return f"it asked for {change.wish} more and has been offered {count}, which are kept for it"
    return f"it has been offered {count} more" if change.processors > 0 else f"it has been asked to give up {count}"


def _at_point(change: Change) -> str:
    return f" at its point {change.point}" if change.adaptation else ""


def _release(change: Change) -> str:
    if change.made:
        return f"the processes of {change.accepted - change.done} that it gives up are ending"
    if change.adaptation:
        return f"it is giving up {change.accepted}{_at_point(change)}"
    return (
        f"it is giving up {change.accepted - change.done} more" if change.done else f"it is giving up {change.accepted}"
    )


# -- The explanation of a job --------------------------------------------------------------------------------

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
        said = _ended(state, record)
    elif record.state is JobState.WAITING:
        said = _waiting(state, queue_position, record, now, policies)
    elif record.state is JobState.CLAIMING:
        said = _claiming(state, record, now)
    else:
        said = _launched(state, record, now)
    return said + _not_reserved(record) + _attempts(record)


def _not_reserved(record: JobRecord) -> str:
    why = record.not_reserved
    return f" Its processors are claimed by placeholders alone, as they are not reserved: {why}." if why else ""


def _attempts(record: JobRecord) -> str:
    """Return in words how earlier attempts ended."""
    if not record.attempts_over:
        return ""
    one = record.attempts[-1]
    ran = f"ended after {_measured(one.ended_at - one.launched_at)} on {_joined(one.clusters)}"
    left = record.job.retries - record.retries_made
    more = "" if record.state.final or not record.job.retries else f" Retries left: {left}."
    return f" Attempt {one.number} {ran}: {one.outcome.detail or one.outcome.reason.value}.{more}"


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
        ran = f" after running for {_measured(record.finished_at - record.launched_at)}"
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
    held: Counter[str | None] = Counter()
    for claim in record.claims:
        held[claim.cluster] += claim.processors
    where = _joined(f"{cluster} ({processors})" for cluster, processors in held.items() if processors)
    total = len(record.ranks) - len(record.departed)
    slots = _slots(record.job, len({rank.placeholder for rank in record.ranks if rank.rank not in record.departed}))
    ran = now - (now if record.launched_at is None else record.launched_at)
    if record.state is JobState.LAUNCHING:
        started = len(record.started - record.departed)
        held_slots = f"{slots} is held" if slots.startswith("1 ") else f"All {slots} are held"
        text = f"{held_slots} on {where}; {started} of {total} processes have started."
    else:
        text = (
            f"The {record.job.kind} job has been running for {duration(ran)} on {slots}: {where}; "
            f"its walltime ends in {duration(record.job.walltime - ran)}.{sizes(state, record, now)}"
        )
        if record.job.kind.varies:
            clusters = {claim.cluster for claim in record.claims if claim.cluster is not None}
            text += "".join(sorted({_sentence(state.clusters[name].refused_answer) for name in clusters}))
    return text + without_contact(state, record, now)


# ---- claiming -------------------------------------------------------------------------------------------------------


def _claiming(state: State, record: JobRecord, now: float) -> str:
    wanted = sum(_wanted(record, claim) for claim in record.claims)
    placeholders = state.placeholders_of(record)
    files = files_on_the_way(state, record, now) + reservations(record, now)
    if files and not placeholders:
        where = _joined(f"{claim.processors} on {claim.cluster}" for claim in record.claims if claim.cluster)
        return f"The job is placed ({where}).{files}{_trouble(record)}"
    held = sum(p.held for p in placeholders)
    parts = ", ".join(_holding(state, record, claim) for claim in record.claims)
    awaited = _awaited(state, record, now)
    if untried := doubts_of(state, record, now).untried:
        awaited.append(f"word {said_untried(untried)}")
    waits = f" and waits for {_joined(awaited)}" if awaited else ""
    text = f"The job holds {held} of {_slots(record.job, wanted)} ({parts}){waits}."
    release = f" {HELD}" if any(one.in_hold for one in hold_groups(placeholders)) else ""
    return f"{text} It starts when all are held{_until(record, now)}.{files}{release}{_trouble(record)}"


def files_on_the_way(state: State, record: JobRecord, now: float) -> str:
    """Say which input files of a job travel, and when its processors are asked for; empty: none do."""
    transfers = [_transfer(name, one, now) for name, one in record.staging.items() if not one.done]
    if not transfers:
        return ""
    return f" Its input files are on the way: {'; '.join(transfers)}.{_claimed_later(state, record, now)}"


def _claimed_later(state: State, record: JobRecord, now: float) -> str:
    """Say when processors are asked for that are to be held when files are there; empty: reservations see to it."""
    if record.reservations and not record.not_reserved:
        return ""
    later = [claim for claim in record.claims if claim.postponed is not None]
    reserved = [claim for claim in later if wants_reservation(state, record, claim)]
    if reserved:
        where = _joined(f"{claim.missing} on {claim.cluster}" for claim in reserved)
        return f" Processors are reserved ({where}) when it is known when the files are there."
    asked = "; ".join(_postponed(state, record, claim, now) for claim in later)
    return f" Processors are asked for so that they are held then: {asked}." if asked else ""


def reservations(record: JobRecord, now: float) -> str:
    """Say for when the processors of a job are reserved; empty: they are not."""
    if not record.reservations or record.not_reserved:
        return ""
    begins = max(one.start_at for one in record.reservations) - now
    when = f", beginning in {duration(begins)}" if begins > 0 else " now"
    where = _joined(
        f"{one.count} on {one.cluster}{'' if one.handle else ' (asked for)'}" for one in record.reservations
    )
    return f" Processors are reserved for it{when}: {where}."


def _transfer(name: ClusterName, one: Staging, now: float) -> str:
    ready = one.ready_at()
    rate = "" if not one.rate else f" at {_mib(one.rate)}/s"
    left = "how long that takes is not known yet" if ready is None else f"there in {duration(ready - now)}{rate}"
    source = f" from {one.source}" if one.source else ""
    return f"{_mib(one.size - one.missing_at(now))} of {_mib(one.size)} on {name}{source}, {left}"


def _postponed(state: State, record: JobRecord, claim: Claim, now: float) -> str:
    at, cluster = submission_at(state, record, claim, now), state.clusters[claim.cluster or ClusterName("")]
    when = "when that is known" if at == inf else f"in {duration(at - now)}"
    hold = expected_hold(state, cluster, claim.missing, claim.slot_processors, now)
    expected = "at once" if hold <= STARTS_IN else f"after {duration(hold)}"
    return f"{claim.missing} on {claim.cluster} {when}, expected {expected}"


def _mib(size: float) -> str:
    return f"{size / MIB:.0f} MiB" if size >= 10 * MIB else f"{size / MIB:.1f} MiB"


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
    """Return when the state changes by itself: a claim is repeated, or a life ends."""
    if record.reclaim_at is not None:
        missing = sum(_wanted(record, claim) - len(claim.placeholders) for claim in record.claims)
        again = f"in {duration(record.reclaim_at - now)}" if record.reclaim_at > now else "now"
        return f"; {_slots(record.job, missing)} that it lost or gave back will be claimed again {again}"
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
    holds = [f"{one.count} {one.told} for {duration(now - one.since)}" for one in hold_groups(queued)]
    idle = [f"idle there: {cluster.idle}"] if cluster.polled_at is not None else []
    known = "; ".join((*idle, *holds))
    return f"{text} ({known})" if known else text


def _trouble(record: JobRecord) -> str:
    return f" Last trouble: {record.last_trouble}." if record.last_trouble else ""


# ---- waiting --------------------------------------------------------------------------------------------------------


def _waiting(state: State, queue_position: int | None, record: JobRecord, now: float, policies: Policies) -> str:
    if record.attempt_decided_at is not None:
        left = duration(max(0.0, record.attempt_decided_at - now))
        return (
            "Whether the job runs again is decided when the placeholders of its latest attempt are gone, "
            f"in {left} at the latest."
        )
    if record.not_before is not None:
        pause = duration(record.not_before - now)
        trouble = (
            "" if record.attempts and record.last_trouble == record.attempts[-1].outcome.detail else _trouble(record)
        )
        return f"The job holds nothing and is tried again in {pause}.{trouble}"
    if before := awaited(state, record):
        jobs = (f"job {one.job} has {WORDS[one.end]} ({state.jobs[one.job].state.value} now)" for one in before)
        return f"The job starts only after {_joined(jobs)}."
    place = (
        f"The job is number {queue_position} in the queue" if queue_position is not None else "The job is in the queue"
    )
    need = _joined(_needs(record.job, policies))
    kept = ""
    if state.guarded == record.job.id and (giving := giving_up(state, state.kept_room)):
        kept = f" Running jobs are giving up processors for it on {_joined(giving)}."
    elif state.guarded == record.job.id:
        said = _joined(f"{count} on {name}" for name, count in state.kept_room.items())
        why = "Because it has waited long, what" if waits_long(state, record) else "What"
        kept = f" {why} comes free is kept for it ({said})."
    looks = _first_looks(state, record, now, policies)
    free = _clusters(state, record, now, policies)
    return f"{place} and needs {need}. {looks}{free}{kept}{_refused_answer(state, record)}"


def _first_looks(state: State, record: JobRecord, now: float, policies: Policies) -> str:
    """Return which clusters are awaited that were never polled, in words."""
    awaited = [cluster for cluster in awaited_looks(state, now) if _usable(cluster, record, policies)]
    if not awaited:
        return ""
    answers = f"the first answer{'s' * (len(awaited) > 1)} of {_joined(cluster.name for cluster in awaited)}"
    until = max(cluster.first_look_until or now for cluster in awaited)
    verb = "are" if len(awaited) > 1 else "is"
    return f"Before it is queued anywhere, {answers} {verb} waited for, for another {duration(until - now)} at most. "


def _refused_answer(state: State, record: JobRecord) -> str:
    """Return what is wrong with an answer of a job's installed policy, in words."""
    asked = (one.refused_answer for one in state.jobs.values() if one.job.placement == record.job.placement)
    return _sentence(record.refused_answer or next(filter(None, asked), ""))


def _needs(job: Job, policies: Policies) -> list[str]:
    """Return each component's needs in words, equal ones once."""
    counts: Counter[str] = Counter()
    for component in job.components:
        where = f"on {component.cluster}" if component.cluster is not None else "on one cluster"
        where = "on one or more clusters" if policies.may_split(job, component) else where
        size = component.minimum
        need = f"{counted(size, 'processor') if component.slot == PLAIN else slots_said(component, size)} {where}"
        counts[need] += 1
    return [need if count == 1 else f"{count} times {need}" for need, count in counts.items()]


def _clusters(state: State, record: JobRecord, now: float, policies: Policies) -> str:
    """Return in words what could be placed on the clusters that can ever hold part of the job."""
    clusters = [cluster for cluster in state.clusters.values() if _usable(cluster, record, policies)]
    if not clusters:
        return "No cluster that it may use is in the site file."
    said = [
        f"{cluster.name} {_state_of(cluster, _slot_there(record, cluster), now)}"
        f"{_kept_there(state, record, cluster, now)}{_absent_there(record, cluster)}"
        for cluster in clusters[:LISTED]
    ]
    rest = f"; {len(clusters) - LISTED} more" if len(clusters) > LISTED else ""
    several = len(record.job.components) > 1 or any(policies.may_split(record.job, c) for c in record.job.components)
    names = [cluster.name for cluster in clusters] if several and must_connect(record.job) else []
    apart = doubts(state, names, now).apart
    world = f" It is not spread over all of them: {said_apart(apart)}." if apart else ""
    return f"It starts when that can be had at once: {'; '.join(said)}{rest}.{world}"


def _usable(cluster: ClusterRecord, record: JobRecord, policies: Policies) -> bool:
    name = cluster.name

    def holds(component: Component) -> bool:
        slot = component.slot_on(name)
        capacity = cluster.room_for(slot).capacity if cluster.has_counted(slot) else None
        least = 1 if policies.may_split(record.job, component) else component.minimum
        return not lack_of(cluster, slot) and (capacity is None or least <= capacity)

    return any(
        component.cluster in (None, name)
        and name not in claim.excluded
        and cluster.parameters.lacks(component) is None
        and holds(component)
        and (cluster.configured or component.cluster == name)
        for component, claim in record.components()
    )


def _slot_there(record: JobRecord, cluster: ClusterRecord) -> Slot:
    """Return the largest slot of a job's components on a cluster."""
    slots = [one.slot_on(cluster.name) for one in record.job.components if one.cluster in (None, cluster.name)]
    return max(slots, key=lambda slot: (slot.gpus, slot.threads, slot.memory_mib), default=PLAIN)


def _state_of(cluster: ClusterRecord, slot: Slot, now: float) -> str:
    closed = closed_reason(cluster, now)
    if closed is not None:
        return f"is {closed}" if cluster.listed or cluster.unavailable else f"is closed: {closed}"
    if not cluster.has_counted(slot):
        return "was not looked at yet" if cluster.polled_at is None else f"was {NOT_COUNTED}"
    if cluster.room <= 0 and cluster.managed:
        return f"has no room (our jobs have all {cluster.managed} that we may use)"
    return f"has room for {max(0, cluster.room_for(slot).room)}"


def _kept_there(state: State, record: JobRecord, cluster: ClusterRecord, now: float) -> str:
    """Return how much room of a cluster is kept for which other job, in words."""
    guarded = state.jobs.get(state.guarded) if state.guarded is not None else None
    if guarded is None or position_of(record) <= position_of(guarded) or closed_reason(cluster, now) is not None:
        return ""
    kept = min(cluster.room, state.kept_room.get(cluster.parameters.name, 0))
    if kept <= 0:
        return ""
    why = ", which has waited long" if waits_long(state, guarded) else ""
    return f" (kept for job {guarded.job.id}{why}: {'all' if kept == cluster.room else kept})"


def _absent_there(record: JobRecord, cluster: ClusterRecord) -> str:
    """Return which file of a job a cluster does not have, in words."""
    components = (one for one in record.job.components if one.cluster in (None, cluster.name))
    said = next(filter(None, (absent(one, cluster.found, cluster.bringable) for one in components)), None)
    return "" if said is None else f" ({said})"


# ---- words ----------------------------------------------------------------------------------------------------------


def _slots(job: Job, count: int) -> str:
    """Say a number of placeholders: as processors where each holds one and nothing else."""
    return counted(count, "processor" if all(component.slot == PLAIN for component in job.components) else "slot")


def _sentence(said: str) -> str:
    return f" {said[0].upper()}{said[1:]}." if said else ""


def _by_cluster(placeholders: Iterable[PlaceholderRecord]) -> Counter[ClusterName]:
    return Counter(placeholder.cluster for placeholder in placeholders)


def _joined(said: Iterable[str]) -> str:
    parts = list(said)
    if len(parts) > LISTED:
        parts = [*parts[:LISTED], f"{len(parts) - LISTED} more"]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""

# SPDX-License-Identifier: Apache-2.0
"""Changes of size of running jobs, each from its offer to its end: growing, shrinking, adapting, answers.

One wish of an application may be met on several clusters: then there is one change for each claim, so that what is
counted on its cluster is right. These parts are offered, gathered, taken in and given up together, because the
application knows of one agreement. In order: parts of a change, growing, shrinking, changes that all processes make at
one point, answers and time-outs, and giving up places in queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from koala_adapter.outcome import COMPLETED, JobState, PlaceholderState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import Rank, TakeProcessors, WithdrawOffer
from koala_adapter.scheduler.claiming.claims import end_placeholder, submit_batch
from koala_adapter.scheduler.context import SHORTEST_PAUSE, closed_reason
from koala_adapter.scheduler.malleable.policies import Direction
from koala_adapter.scheduler.malleable.steps import (
    abandon_after,
    cluster_of,
    jobs_have_grown,
    pause,
    promised_on,
    settle,
    wanted_again,
)
from koala_adapter.scheduler.records import ChangePhase, Claim, TimerKind
from koala_adapter.scheduler.states import bounds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from koala_adapter.model import JobId, PlaceholderId
    from koala_adapter.scheduler.context import Context, Handlers, JobTimers
    from koala_adapter.scheduler.records import Change, ClusterRecord, JobRecord, PlaceholderRecord


# -- Changes on several clusters as parts of one -------------------------------------------------------------


class Part(NamedTuple):
    """The part of a growth that one claim has."""

    claim: int
    """Its index."""
    change: Change


class Share(NamedTuple):
    """Processors that a part is to have."""

    claim: int
    change: Change
    processors: int


def name_of(change: Change) -> int:
    """Return the number by which a change is known, also to the application: that of the first of its parts."""
    return change.lead or change.number


def parts_of(record: JobRecord, change: Change) -> list[Part]:
    """Return all parts of a change that is under way, the one that it is known by first; most have only one."""
    name = name_of(change)
    found = [
        Part(number, claim.change)
        for number, claim in enumerate(record.claims)
        if claim.change is not None and name_of(claim.change) == name
    ]
    return sorted(found, key=lambda part: part.change.number)


def shared_out(parts: Iterable[Part], most: Iterable[int], wanted: int) -> list[Share]:
    """Return how many of ``wanted`` processors each part has, the first ones as many as they can; none has 0."""
    shares = []
    for part, able in zip(parts, most, strict=True):
        count = min(able, wanted)
        if count > 0:
            shares.append(Share(*part, count))
            wanted -= count
    return shares


def join(shares: Sequence[Share]) -> int:
    """Make the changes of some shares parts of one, known by the first; return by how many processors it grows."""
    for share in shares:
        share.change.lead = 0 if share is shares[0] else shares[0].change.number
    return sum(share.processors for share in shares)


# -- Growing: stubs are gathered, then become processes of the application -----------------------------------
# As in KOALA's MRunner (CoreGRID TR-0092), the application keeps running until *all* processors that it accepted are
# held, and only then takes them in. When one of them is lost before that, or they do not come within the life of a
# placeholder, all are given back and the application is told.

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
    seconds = time_left(context, record) + context.state.parameters.launch_margin
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
    if not record.job.kind.varies:
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


def open_added_clusters(context: Context) -> None:
    """Let the flexible components of jobs that run grow on clusters that the site has got since they started, too."""
    for record in context.state.jobs.values():
        if record.job.kind.varies and record.state is JobState.RUNNING:
            _open_clusters(context, record, added=True)
            context.roster.update(record)


def _open_clusters(context: Context, record: JobRecord, *, added: bool = False) -> None:
    """Let the flexible components of a job grow on every cluster of the site.

    ``added``: it runs already, so that changes and promises know its claims by their numbers, which stay.
    """
    names = [name for name, cluster in context.state.clusters.items() if cluster.configured]
    for component in record.job.components:
        if not component.flexible or component.cluster is not None or not record.job.changes_size(component.name):
            continue
        own = [number for number, claim in enumerate(record.claims) if claim.component == component.name]
        there = {record.claims[number].cluster for number in own}
        refused = {name: said for number in own for name, said in record.claims[number].excluded.items()}
        more = [
            Claim(component=component.name, cluster=name, excluded={name: refused[name]} if name in refused else {})
            for name in names
            if name not in there
        ]
        place = len(record.claims) if added else own[-1] + 1
        record.claims[place:place] = more


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
        withdraw(context, record, number, why_lost(record.claims[number], placeholder))


def why_lost(claim: Claim, placeholder: PlaceholderRecord) -> str:
    """Say why a placeholder for a growth does not come."""
    refused = claim.growth_refused
    return f"{claim.cluster} refused it: {refused}" if refused else f"placeholder {placeholder.id} was lost"


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


def withdraw(context: Context, record: JobRecord, number: int, reason: str, *, as_wanted: bool = False) -> None:
    """Give the stubs of a growth back, on whatever clusters; the application goes on as it is.

    ``as_wanted``: the job's owner asked for that, so that it is no trouble to tell of.
    """
    trouble = record.last_trouble
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
    if as_wanted:
        record.last_trouble = trouble


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


# -- Shrinking: the application gives up processors, then the LRM gets them ----------------------------------


def await_release(context: Context, record: JobRecord, number: int, change: Change, accepted: int) -> None:
    """Wait until an application has given up the processors that it agreed to."""
    claim = record.claims[number]
    accepted = max(0, min(accepted, claim.processors - bounds(record, claim)[0]))
    if accepted == 0:
        context.ledger.end_change(claim)
        context.roster.update(record)
        settle(context, record, number, change, 0)
        return
    context.ledger.advance_change(claim, ChangePhase.RELEASING, accepted=accepted)
    context.roster.update(record)  # it may be less, or more, than was asked for: what others can give depends on it
    abandon_after(context, record, change, _patience(context, record, number))


def _patience(context: Context, record: JobRecord, number: int) -> float:
    """Return how long a release is waited for: processes that change together have their own time to meet."""
    timeout = context.state.parameters.release_timeout
    component = record.job.component(record.claims[number].component)
    return max(timeout, 3.0 * component.point_patience) if record.job.adapts(component.name) else timeout


def processors_released(context: Context, event: ev.ProcessorsReleased) -> None:
    """Take back what an application no longer uses, as far as its minimum allows."""
    record = context.state.jobs.get(event.job_id)
    if record is None or record.state is not JobState.RUNNING:
        return
    started = {rank.placeholder for rank in record.ranks if rank.rank in record.started}
    released = {id_ for id_ in event.placeholders if id_ in started and _in_use(context, id_)}
    for number, claim in enumerate(record.claims):
        spare = claim.processors - bounds(record, claim)[0]
        going = [id_ for id_ in claim.placeholders if id_ in released][:spare]
        if going:
            depart(context, record, number, going)
    check_done(context, record)


def _in_use(context: Context, id_: PlaceholderId) -> bool:
    """Tell whether a placeholder is an application's, and not on its way out."""
    placeholder = context.state.placeholders.get(id_)
    return placeholder is not None and placeholder.state is PlaceholderState.LAUNCHED


def depart(
    context: Context, record: JobRecord, number: int, going: list[PlaceholderId], why: str = "", *, gone: bool = False
) -> None:
    """Take processors, with the processes that had them, out of a running job.

    ``why``: for people, when they were not asked for. ``gone``: somebody else sees to the end of their placeholders.
    """
    state, claim = context.state, record.claims[number]
    placeholders = [state.placeholders[id_] for id_ in going]
    known = (*claim.lrm_ids, *(one.lrm_id for one in placeholders if one.lrm_id))
    claim.lrm_ids = tuple(dict.fromkeys(known))
    leaving = set(going)
    for rank in record.ranks:
        if rank.placeholder in leaving:
            record.departed.add(rank.rank)
            record.ends.pop(rank.rank, None)
    record.unclaim(leaving)
    claim.processors -= len(going)
    wanted_again(context, record, claim.component)
    for placeholder in () if gone else placeholders:
        end_placeholder(context, placeholder)
    context.scan_wanted = True
    change = claim.change
    asked = change is not None and change.phase is ChangePhase.RELEASING
    if not asked:
        record.note_size(claim, claim.processors + len(going), why or "the application gave them back", context.now)
    if change is not None and asked:
        change.done += len(going)
        spare = claim.processors - bounds(record, claim)[0]
        if change.done >= change.accepted or spare == 0:
            release_over(context, record, number, change)
    context.roster.update(record)


def release_over(context: Context, record: JobRecord, number: int, change: Change) -> None:
    """Count what was given up, and wait for no more."""
    claim = record.claims[number]
    context.ledger.end_change(claim)
    record.note_size(claim, claim.processors + change.done, change.reason, context.now)
    context.roster.update(record)
    settle(context, record, number, change, -change.done)


# -- Adapting: all processes change together, at one point of progress ---------------------------------------
# Until all processes stand at the point a change can be given up without effect: newcomers are ended again and no
# process leaves. From then on it is carried out, and the loss of a process is the loss of the job, as of a rigid one.
# When all have said that they are done, newcomers belong to the job, and those that leave may end, each by itself.

_MOVING = (ChangePhase.TAKING, ChangePhase.RELEASING)
_UNTIL_MADE = (*_MOVING, ChangePhase.PROMISED, ChangePhase.GATHERING)


class _Found(NamedTuple):
    record: JobRecord
    claim: int
    change: Change


def point_reached(context: Context, event: ev.PointReached) -> None:
    """Note that a change is being carried out: it is not given up any more."""
    found = _find(context, event.job_id, event.number)
    if found is None or found.change.adaptation:
        return
    record, number, change = found
    if change.phase is ChangePhase.RELEASING:
        claim = record.claims[number]
        spare = claim.processors - bounds(record, claim)[0]
        mine = {rank.rank for rank in record.ranks if rank.placeholder in claim.placeholders}
        if not event.leaving or len(event.leaving) > spare or not mine.issuperset(event.leaving):
            _give_up_change(context, found, "the processes that were to leave are not its own any more")
            return
        change.ranks, change.accepted = list(event.leaving), change.done + len(event.leaving)
        context.roster.update(record)
    for part in parts_of(record, change):
        part.change.adaptation, part.change.point, part.change.due = event.adaptation, event.point, None


def change_made(context: Context, event: ev.ChangeMade) -> None:
    """Take newcomers into the job; let those that leave end."""
    found = _find(context, event.job_id, event.number)
    if found is None or not found.change.adaptation or found.change.made:
        return
    record, number, change = found
    parts = parts_of(record, change)
    for part in parts:
        part.change.made = True
    if change.phase is ChangePhase.TAKING:
        newcomers = [rank for part in parts for rank in part.change.ranks]
        record.joined += newcomers
        record.started.update(newcomers)
        check_taken(context, record)
        return
    gone = [rank for rank in change.ranks if rank in record.ends]  # before anybody could tell that all were done
    if gone:
        depart(context, record, number, _placeholders(record, gone))
    abandon_after(context, record, change, context.state.parameters.release_timeout)


def change_given_up(context: Context, event: ev.ChangeGivenUp) -> None:
    """Undo a change that the processes could not be brought to; one that is being carried out goes on."""
    found = _find(context, event.job_id, event.number, _UNTIL_MADE)
    if found is not None and not found.change.adaptation:
        _give_up_change(context, found, event.reason)


def newcomer(record: JobRecord, rank: int) -> bool:
    """Tell whether a process was started for a growth that is not made: it begins to count when that is."""
    if not record.job.adapts(record.ranks[rank].component):
        return False
    return any(
        c.change is not None and c.change.phase is ChangePhase.TAKING and rank in c.change.ranks for c in record.claims
    )


def leavers_overdue(context: Context, record: JobRecord, number: int, change: Change) -> None:
    """End the placeholders of processes that were let go and have not ended."""
    left = [rank for rank in change.ranks if rank not in record.departed]
    record.last_trouble = f"processes that were taken out did not end: {', '.join(map(str, left))}"
    depart(context, record, number, _placeholders(record, left))
    check_done(context, record)


def check_done(context: Context, record: JobRecord) -> None:
    """Complete a running job all of whose other processes, and launcher, have ended well."""
    if record.state is JobState.RUNNING and record.ends and record.is_done():
        context.outcomes.append((record, COMPLETED))


def give_up(context: Context, record: JobRecord, rank: int, why: str, *, gone: PlaceholderId | None) -> None:
    """Give up the growth that brought a process. ``gone``: its placeholder, if somebody else sees to its end."""
    found = change_of_rank(record, rank)
    if found is not None:
        _give_up_change(context, found, why, gone=gone)


def _give_up_change(context: Context, found: _Found, reason: str, *, gone: PlaceholderId | None = None) -> None:
    record, number, change = found
    if change.phase is ChangePhase.GATHERING:
        withdraw(context, record, number, reason)
        return
    parts = parts_of(record, change)
    if change.phase is ChangePhase.PROMISED:
        for part in parts:
            context.ledger.end_change(record.claims[part.claim])
            where = cluster_of(context, record, part.claim)
            where.promises = [one for one in where.promises if (one.job_id, one.claim) != (record.job.id, part.claim)]
        context.roster.update(record)
        context.scan_wanted = True
        return
    if change.phase is ChangePhase.TAKING:
        for part in parts:
            _send_newcomers_home(context, record, part, gone)
            context.ledger.end_change(record.claims[part.claim])
        pause_growth(context, cluster_of(context, record, number))
        context.roster.update(record)
        context.scan_wanted = True
        announce_withdrawal(context, record, parts, reason)
        check_done(context, record)  # the others may have ended meanwhile
        return
    cluster = cluster_of(context, record, number).name
    record.last_trouble = f"{change.accepted - change.done} processors on {cluster} were not given back: {reason}"
    release_over(context, record, number, change)


def _send_newcomers_home(context: Context, record: JobRecord, part: Part, gone: PlaceholderId | None) -> None:
    claim, change = record.claims[part.claim], part.change
    going = _placeholders(record, change.ranks)
    record.departed.update(change.ranks)
    for rank in change.ranks:
        record.ends.pop(rank, None)
    record.unclaim(set(going))
    claim.processors -= len(going)
    for id_ in going:
        placeholder = context.state.placeholders.get(id_)
        if placeholder is not None and id_ != gone:
            end_placeholder(context, placeholder)


def _placeholders(record: JobRecord, ranks: list[int]) -> list[PlaceholderId]:
    return [record.ranks[rank].placeholder for rank in ranks]


def _find(context: Context, job_id: JobId, number: int, phases: Collection[ChangePhase] = _MOVING) -> _Found | None:
    record = context.state.jobs.get(job_id)
    if record is None or record.state is not JobState.RUNNING:
        return None
    for index, claim in enumerate(record.claims):
        change = claim.change
        if change is not None and change.number == number and change.phase in phases:
            return _Found(record, index, change)
    return None


def change_of_rank(record: JobRecord, rank: int) -> _Found | None:
    """Return the change that allows a process to end alone: it is new and not told of it yet, or it was let go."""
    if record.state is not JobState.RUNNING or not record.job.adapts(record.ranks[rank].component):
        return None
    for index, claim in enumerate(record.claims):
        change = claim.change
        if change is None or rank not in change.ranks:
            continue
        new = change.phase is ChangePhase.TAKING and not change.adaptation
        let_go = change.phase is ChangePhase.RELEASING and change.made
        if (new or let_go) and rank not in record.departed:
            return _Found(record, index, change)
    return None


# -- Answers of applications, and changes that take too long -------------------------------------------------


def offer_answered(context: Context, event: ev.OfferAnswered) -> None:
    """Take the answer to a message that still waits for one; any other comes too late."""
    record = context.state.jobs.get(event.job_id)
    if record is None:
        return
    for number, claim in enumerate(record.claims):
        change = claim.change
        if change is not None and change.number == event.number and change.phase is ChangePhase.ASKED:
            if event.trouble:
                record.last_trouble = event.trouble
            if event.memory_declined:
                for part in parts_of(record, change):
                    part.change.memory_mib = 0
            step = cluster_of(context, record, number).step
            if event.lapsed and change.in_step and step is not None:
                step.lapsed = True
            take_answer(context, record, number, change, event.accepted)
            return


def take_answer(context: Context, record: JobRecord, number: int, change: Change, accepted: int) -> None:
    """Begin what the application agreed to."""
    if change.processors < 0:
        await_release(context, record, number, change, accepted)
        return
    claim, cluster, parts = record.claims[number], cluster_of(context, record, number), parts_of(record, change)
    offered = [part.change.processors for part in parts]
    most = bounds(record, claim)[1] - claim.processors + sum(offered) - change.processors
    agreed, accepted = min(accepted, sum(offered)), max(0, min(accepted, sum(offered), most))
    for part in parts:
        context.ledger.end_change(record.claims[part.claim])
    shares = shared_out(parts, offered, accepted)
    if len(parts) > len(shares):
        context.scan_wanted = True  # others may have what was kept on those clusters
    join(shares)
    if accepted and record.ends_soon:
        announce_withdrawal(context, record, parts, NEAR_END)
        accepted = 0
    elif agreed > 0 and not accepted:
        announce_withdrawal(context, record, parts, "its owner wants no more")
    elif accepted and not gather_all(context, record, shares, offered=True):
        announce_withdrawal(context, record, parts, "they are no longer free")
        for part in parts:
            pause_growth(context, cluster_of(context, record, part.claim))
        accepted = 0
    elif not accepted and not change.in_step and not change.agreement:  # its owner wants it to grow, and goes on to
        pause(context, cluster, Direction.GROW, max(SHORTEST_PAUSE, context.state.parameters.scan_interval))
    context.roster.update(record)
    settle(context, record, number, change, accepted)


def drop_changes(context: Context, record: JobRecord) -> None:
    """Undo what is under way for a job that has ended."""
    for number, claim in enumerate(record.claims):
        return_places(context, claim)
        change = claim.change
        if change is None:
            continue
        context.ledger.end_change(claim)
        unreserve(context, record, number, change)
        return_stubs(context, change)
        freed = change.done + claim.processors if change.processors < 0 else 0
        settle(context, record, number, change, -freed)


def unreserve(context: Context, record: JobRecord, number: int, change: Change) -> None:
    """Have others looked at, who may have what was kept for a change."""
    cluster = cluster_of(context, record, number)
    asked_to_grow = change.phase is ChangePhase.ASKED and change.processors > 0
    if asked_to_grow or change.phase is ChangePhase.PROMISED:
        context.scan_wanted = True
    if change.phase is ChangePhase.PROMISED:
        cluster.promises = [one for one in cluster.promises if (one.job_id, one.claim) != (record.job.id, number)]


def change_timer(context: Context, record: JobRecord, number: int | None) -> None:
    """Give up a change of a job that takes too long."""
    change = None if number is None else record.claims[number].change
    if number is None or change is None:
        return
    change.due = None
    if change.phase is ChangePhase.ASKED:
        take_answer(context, record, number, change, 0)
    elif change.phase is ChangePhase.RELEASING and change.made:
        leavers_overdue(context, record, number, change)
    elif change.phase is ChangePhase.RELEASING:
        release_over(context, record, number, change)
    elif change.phase is ChangePhase.GATHERING:
        _pause_where_missing(context, record, change)
        withdraw(context, record, number, "they did not come in time")
    elif change.phase is ChangePhase.PROMISED:
        for part in parts_of(record, change):
            part.change.shrunk_others = True  # what is free by now has to do
            part.change.due = None
        context.scan_wanted = True


def _pause_where_missing(context: Context, record: JobRecord, change: Change) -> None:
    """Offer nothing for a while on the clusters whose placeholders did not come."""
    for part in parts_of(record, change):
        stubs = [context.state.placeholders.get(id_) for id_ in part.change.stubs]
        if not all(stub is not None and stub.held for stub in stubs):
            pause_growth(context, cluster_of(context, record, part.claim))


# -- Giving up places in queues ------------------------------------------------------------------------------


def return_places(context: Context, claim: Claim) -> None:
    """Give up all places of a claim: its job has ended."""
    give_up_places(context, claim, claim.places)


def give_up_places(context: Context, claim: Claim, going: Sequence[PlaceholderId]) -> None:
    """Give up some places of a claim, and end their placeholders."""
    if not going:
        return
    context.ledger.remove_places(claim, going)
    for id_ in going:
        placeholder = context.state.placeholders[id_]
        placeholder.stub = False
        end_placeholder(context, placeholder)
    context.scan_wanted = True


HANDLERS: Handlers = {
    ev.OfferAnswered: offer_answered,
    ev.ProcessorsReleased: processors_released,
    ev.PointReached: point_reached,
    ev.ChangeMade: change_made,
    ev.ChangeGivenUp: change_given_up,
}
JOB_TIMERS: JobTimers = {TimerKind.NEAR_END: near_end_timer}

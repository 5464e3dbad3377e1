# SPDX-License-Identifier: Apache-2.0
"""Requests for other sizes: applications that ask for or return processors, and sizes that owners want.

In order: applications that ask for more (CoreGRID TR-0092: initiative and obligation), applications that return
processors, places in queues for workers, and the sizes that owners want.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.outcome import JobState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import GrantProcessors
from koala_adapter.scheduler.context import SHORTEST_PAUSE, closed_reason
from koala_adapter.scheduler.malleable.changes import (
    NEAR_END,
    Part,
    Share,
    await_release,
    gather,
    gather_all,
    give_up_places,
    join,
    parts_of,
    pause_growth,
    shared_out,
    submit_stubs,
    take,
    take_answer,
    time_left,
    unreserve,
    why_lost,
    withdraw,
)
from koala_adapter.scheduler.malleable.policies import Direction
from koala_adapter.scheduler.malleable.steps import (
    abandon_after,
    ask,
    cluster_of,
    free_for_growing,
    free_on,
    growth_paused,
    new_change,
    promised_on,
    start_step,
    wanted_again,
)
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.scheduler.records import ChangePhase, Promise
from koala_adapter.scheduler.states import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.model import Component, PlaceholderId
    from koala_adapter.scheduler.context import Context, Handlers
    from koala_adapter.scheduler.records import Change, Claim, ClusterRecord, JobRecord, PlaceholderRecord


# -- Applications that ask for more processors ---------------------------------------------------------------
# A voluntary wish gets what is free now and not waited for. A mandatory one must be met: other running jobs of the
# cluster are shrunk for it, and what becomes free is kept for it, before waiting jobs. When all that the others could
# give would not suffice, none is shrunk in vain, and the application gets what is free.
#
# Memory can be requested with processors: each of the new placeholders is then submitted with that much. The memory of
# a running process cannot be changed, because no batch system changes the limits of a running job.
#
# An application that negotiates is offered less than it asked for when there is less, and may decline. Until it
# answers, the offered processors are kept for it. Where its component may be on several clusters, its wish is met on as
# many of them as needed (``changes.py``).


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
    for one in own if not record.job.component(claim.component).takes_any_size else [number]:
        asked = record.claims[one].change
        if asked is not None and asked.phase is ChangePhase.ASKED:
            take_answer(context, record, one, asked, 0)  # it asks for more instead of answering
    change = new_change(context, event.processors, ChangePhase.PROMISED)
    change.agreement, change.asker, change.wish = event.agreement, event.rank, event.processors
    change.least = event.least
    if event.agreement:
        change.reason = "the application asked for it"
    lacking = _lacking_memory(context, record, number, event)
    change.memory_mib = 0 if lacking else event.memory_mib
    problem = _growth_problem(record, number, event) or (lacking if event.memory_required else "")
    if problem:
        _answer(context, record, number, change, 0, problem)
        return
    most = bounds(record, claim)[1] - claim.processors
    change.processors = max(0, min(event.processors, most))
    short = _why_not_more(record, claim, event.processors) if change.processors < event.processors else ""
    _grant_or_promise(context, record, claims, change, short, mandatory=event.mandatory)


def _growth_problem(record: JobRecord, number: int, event: ev.MoreRequested) -> str:
    """Return why nothing is granted, whatever is free."""
    if not record.job.kind.varies:
        return f"a {record.job.kind.value} job keeps its size"
    if record.state is not JobState.RUNNING or record.ends:
        return "the job does not run"
    if record.ends_soon:
        return NEAR_END
    if event.cluster and record.claims[number].cluster != event.cluster:
        return f"component {event.component!r} cannot grow on {event.cluster}"
    return "another change is under way" if record.is_changing(record.claims[number]) else ""


def _why_not_more(record: JobRecord, claim: Claim, wanted: int) -> str:
    """Say which of the bounds of a component keeps it from getting as many more as it asks for."""
    component = record.job.component(claim.component)
    own = [one for one in record.claims if one.component == component.name]
    size, coming = sum(one.processors for one in own), sum(one.coming for one in own)
    limit = min(component.maximum, record.sizes_wanted.get(component.name, component.maximum))
    if claim.growth_refused:
        return f"{claim.cluster} refuses more placeholders for it: {claim.growth_refused}"
    if record.growth_rests and size + coming < limit:
        return "workers have ended by themselves, and no more are started for a while"
    if size + wanted <= limit:
        return f"{coming} more are offered to it already, or on their way"
    return f"its owner wants it to have {limit}" if limit < component.maximum else "its maximum is reached"


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
    able = [one for one in named if record.claims[one].cluster is not None]
    able = [one for one in able if not record.is_changing(record.claims[one])]
    able = [one for one in able if not record.claims[one].growth_refused] or able
    with_memory = [one for one in able if not _lacking_memory(context, record, one, event)]
    able = with_memory or able
    return (
        sorted(able, key=lambda one: (-free_on(context, cluster_of(context, record, one)), one)) or (named or own)[:1]
    )


# -- Applications that return processors of their own accord -------------------------------------------------
# They change together when they do.

REASON = "the application gives them back"


def less_requested(context: Context, event: ev.LessRequested) -> None:
    """Begin to take back what an application does not need: the processes that came last, on each of their clusters."""
    record = context.state.jobs.get(event.job_id)
    if record is None or event.component not in {one.name for one in record.job.components}:
        return
    problem = _returning_problem(record, event)
    first = 0
    if not problem:
        for number, count in _pieces(record, event.component, event.processors):
            change = new_change(context, -count, ChangePhase.ASKED)
            change.reason, change.agreement, change.asker, change.wish = REASON, event.agreement, event.rank, count
            first = first or change.number
            context.ledger.begin_change(record.claims[number], change, ChangePhase.ASKED)
            await_release(context, record, number, change, count)
        context.roster.update(record)
    context.effects.add(
        GrantProcessors(
            job_id=record.job.id,
            component=event.component,
            request=0,
            number=first,
            processors=0 if problem else event.processors,
            reason=problem,
            agreement=event.agreement,
            rank=event.rank,
        )
    )


def _returning_problem(record: JobRecord, event: ev.LessRequested) -> str:
    claims = [claim for claim in record.claims if claim.component == event.component]
    if not record.job.changes_size(event.component):
        return "this component keeps its size"
    if record.state is not JobState.RUNNING or record.ends:
        return "the job does not run"
    if any(claim.change is not None for claim in claims):
        return "another change is under way"
    size = sum(claim.processors for claim in claims)
    left = size - event.processors
    minimum = record.job.component(event.component).minimum
    if left < 0:
        return f"it has {size} processors, and cannot give {event.processors} back"
    return f"{left} processors are below its minimum of {minimum}" if left < minimum else ""


def _pieces(record: JobRecord, component: str, count: int) -> list[tuple[int, int]]:
    """Return how many processors each claim gives up, by its index."""
    by_placeholder = {id_: number for number, claim in enumerate(record.claims) for id_ in claim.placeholders}
    ranks = [one for one in record.ranks if one.component == component and one.rank not in record.departed]
    last = [one.placeholder for one in ranks[len(ranks) - count :]]
    return sorted(Counter(by_placeholder[id_] for id_ in last if id_ in by_placeholder).items())


# -- Places in queues, for workers that an owner wants -------------------------------------------------------
# For these workers no processor is idle. Where the site's approach changes no sizes, only the owner's word does, and as
# for a rigid job, processors that are not idle are queued for (docs/placement.md). One worker is of use without the
# others, so each placeholder is taken in when it is held. Idle processors of another cluster are taken first, and the
# places that they replace are given up. Where the policies of the site offer processors, they alone decide who waits
# for which, and nothing is queued.


def take_places(context: Context, record: JobRecord, component: Component, lacking: int) -> int:
    """Have a component take in what is held of its places, as far as it lacks so many; return how many those are."""
    taken = 0
    for number, claim in enumerate(record.claims):
        if claim.component != component.name or claim.change is not None:
            continue
        held = [id_ for id_ in claim.places if context.state.placeholders[id_].held][: max(0, lacking - taken)]
        late = [
            id_ for id_ in held if not context.state.placeholders[id_].lasts(context.now, time_left(context, record))
        ]
        if late:
            record.last_trouble = f"{len(late)} more on {claim.cluster}: they would end before the job's walltime does"
            pause_growth(context, cluster_of(context, record, number))
            give_up_places(context, claim, late)
        elif held:
            _take(context, record, number, held)
            taken += len(held)
    return taken


def _take(context: Context, record: JobRecord, number: int, held: Sequence[PlaceholderId]) -> None:
    claim = record.claims[number]
    change = new_change(context, len(held), ChangePhase.GATHERING)
    change.reason, change.stubs = f"its owner wants {record.sizes_wanted[claim.component]}", list(held)
    context.ledger.remove_places(claim, held)
    context.ledger.begin_change(claim, change, ChangePhase.GATHERING, accepted=len(held))
    take(context, record, Part(number, change))
    context.roster.update(record)


def keep_places(context: Context, record: JobRecord, component: Component, lacking: int) -> None:
    """See to it that a component has a place for each processor that it lacks, and none beyond that.

    A job that takes no further workers for a while keeps its places, and gives back what it gets meanwhile.
    """
    claims = [claim for claim in record.claims if claim.component == component.name]
    missing = max(0, lacking) - sum(len(claim.places) for claim in claims)
    for claim in reversed(claims):
        if missing < 0:
            going = _dispensable(context, claim)[:-missing]
            give_up_places(context, claim, going)
            missing += len(going)
        if record.growth_rests:
            give_up_places(context, claim, [id_ for id_ in claim.places if context.state.placeholders[id_].held])
    if missing > 0 and not record.growth_rests and _queues(context, record, component):
        _queue(context, record, component, missing)


def _dispensable(context: Context, claim: Claim) -> list[PlaceholderId]:
    """Return the places of a claim: those that are held last, of the others the latest first."""
    held = [id_ for id_ in claim.places if context.state.placeholders[id_].held]
    return [*(id_ for id_ in reversed(claim.places) if id_ not in held), *held]


def _queues(context: Context, record: JobRecord, component: Component) -> bool:
    """Tell whether placeholders are queued for a component: not for one that is asked first, which needs all at once.

    While jobs wait in the placement queue, the room is theirs.
    """
    asked = record.job.adapts(component.name) or not component.takes_any_size
    return not asked and not len(context.queue)


def _queue(context: Context, record: JobRecord, component: Component, missing: int) -> None:
    """Queue placeholders where the least is asked for beyond what is idle."""
    numbers = [
        number
        for number, claim in enumerate(record.claims)
        if claim.component == component.name and claim.cluster is not None and _in_time(context, record, number)
    ]
    for number in sorted(numbers, key=lambda one: (-cluster_of(context, record, one).load_free, one)):
        count = min(missing, cluster_of(context, record, number).room)
        if count > 0:
            context.ledger.add_places(record.claims[number], submit_stubs(context, record, number, count))
            missing -= count


def _in_time(context: Context, record: JobRecord, number: int) -> bool:
    """Tell whether placeholders may be queued on the cluster of a claim, and would last as long as the job."""
    cluster, left = cluster_of(context, record, number), time_left(context, record)
    limit = cluster.parameters.walltime_limit
    open_ = closed_reason(cluster, context.now) is None and not growth_paused(context, cluster)
    open_ = open_ and not record.claims[number].growth_refused
    return open_ and left > 0 and (limit is None or left <= limit)


def would_take(record: JobRecord, number: int) -> bool:
    """Tell whether a claim would take what comes free on its cluster, beyond the places that it has there."""
    claim = record.claims[number]
    claims = [one for one in record.claims if one.component == claim.component]
    wanted = record.sizes_wanted.get(claim.component, 0)
    return wanted - sum(one.processors + one.coming for one in claims) > len(claim.places)


def place_lost(context: Context, placeholder: PlaceholderRecord) -> bool:
    """Take note that a placeholder is gone or going; tell whether it was such a place."""
    record = context.state.jobs.get(placeholder.job_id)
    for claim in () if record is None else record.claims:
        if record is not None and placeholder.id in claim.places:
            context.ledger.remove_places(claim, [placeholder.id])
            placeholder.stub = False
            record.last_trouble = f"one more on {claim.cluster}: {why_lost(claim, placeholder)}"
            pause_growth(context, context.state.clusters[placeholder.cluster])
            return True
    return False


# -- Sizes that owners of running malleable jobs want --------------------------------------------------------
# They bound what the policies may do. What a component has beyond the wanted size is asked back, whatever the approach
# of the site. What it lacks is offered by the policies; where the approach changes no sizes, it gets what is free, is
# asked first if there are sizes that it cannot use, and what is not free is queued for (places in queues, above).


def size_wanted(context: Context, event: ev.SizeWanted) -> None:
    """Note what size a component is to have, and see to it."""
    record = context.state.jobs.get(event.job_id)
    if record is None or record.state.final or event.component not in {one.name for one in record.job.components}:
        return
    component = record.job.component(event.component)
    record.sizes_wanted[component.name] = max(component.minimum, min(component.maximum, event.processors))
    record.sizes_asked_at = None
    for claim in record.claims:
        if claim.component == component.name and claim.cluster is not None:
            claim.excluded.pop(claim.cluster, None)  # its owner may know that it is of use to try again
    wanted_again(context, record, component.name)
    context.roster.update(record)
    context.scan_wanted = True


def keep_to_wanted_sizes(context: Context) -> None:
    """Ask back what components have beyond the sizes that are wanted, and, with approach none, give them what lacks."""
    limited = [context.state.jobs[job_id] for job_id in context.roster.limited]
    for record in sorted(limited, key=lambda one: one.start_number):  # after a restart the roster has another order
        for name, wanted in record.sizes_wanted.items():
            if record.job.changes_size(name) and record.state is JobState.RUNNING:
                _keep_to(context, record, record.job.component(name), wanted)


def _keep_to(context: Context, record: JobRecord, component: Component, wanted: int) -> None:
    claims = [claim for claim in record.claims if claim.component == component.name]
    lacking = wanted - sum(claim.processors + claim.coming for claim in claims)
    surplus = -lacking - sum(claim.leaving for claim in claims)
    if surplus > 0 and not record.ends:
        _ask_back(context, record, component, surplus)
    if context.state.parameters.approach is not Approach.NONE or record.ends or record.ends_soon:
        lacking = 0
    if lacking > 0 and not record.growth_rests:
        lacking -= take_places(context, record, component, lacking)
        lacking -= _give(context, record, component, lacking)
    keep_places(context, record, component, lacking)


def _ask_back(context: Context, record: JobRecord, component: Component, surplus: int) -> None:
    pause = max(SHORTEST_PAUSE, context.state.parameters.scan_interval)
    if record.sizes_asked_at is not None and context.now < record.sizes_asked_at + pause:
        return  # an application that cannot give so much would be asked for ever
    for number in reversed(range(len(record.claims))):
        claim = record.claims[number]
        if claim.component != component.name or surplus <= 0:
            continue
        change = claim.change
        if change is not None and change.phase is ChangePhase.GATHERING:
            surplus -= sum(part.change.accepted for part in parts_of(record, change))
            withdraw(context, record, number, "its owner wants it smaller", as_wanted=True)
        if not record.is_changing(claim) and claim.processors > 0 and surplus > 0:
            asked = min(surplus, claim.processors)
            surplus -= asked
            record.sizes_asked_at = context.now  # not where a change is under way: it is asked when that is over
            _request(context, record, number, asked)


def _request(context: Context, record: JobRecord, number: int, processors: int) -> None:
    change = new_change(context, -processors, ChangePhase.ASKED)
    change.reason = f"its owner wants {record.sizes_wanted[record.claims[number].component]}"
    ask(context, record, number, change)


def _give(context: Context, record: JobRecord, component: Component, lacking: int) -> int:
    """Offer, or gather, what is free; return how many processors may come of it.

    A place that waits on a cluster stands for a processor that is free there.
    """
    given = 0
    asks = record.job.adapts(component.name) or not component.takes_any_size
    for number, claim in enumerate(record.claims):
        if claim.component != component.name or record.is_changing(claim) or claim.growth_refused:
            continue
        cluster = cluster_of(context, record, number)
        count = min(lacking - given - len(claim.places), free_on(context, cluster))
        if growth_paused(context, cluster):
            continue
        if count > 0:
            change = new_change(context, count, ChangePhase.ASKED)
            change.reason = f"its owner wants {record.sizes_wanted[component.name]}"
            if asks:
                ask(context, record, number, change)
                return given + count  # the answer to more depends on this one
            if gather(context, record, number, change, count):
                given += count
    return given


HANDLERS: Handlers = {
    ev.MoreRequested: more_requested,
    ev.LessRequested: less_requested,
    ev.SizeWanted: size_wanted,
}

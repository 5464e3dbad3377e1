# SPDX-License-Identifier: Apache-2.0
"""Requests for other sizes: applications that ask for or return processors, and sizes that owners want.

In order: applications that ask for more (CoreGRID TR-0092: initiative and obligation), applications that return
processors, and the sizes that owners want, with places in queues for workers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.outcome import JobState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import GrantProcessors
from koala_adapter.scheduler.clusters import ClusterRecord, Promise
from koala_adapter.scheduler.context import SHORTEST_PAUSE, closed_reason
from koala_adapter.scheduler.malleable import steps
from koala_adapter.scheduler.malleable.changes import NEAR_END, Changes, shared_out, why_lost
from koala_adapter.scheduler.malleable.policies import Direction
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.scheduler.sizechange import Change, ChangePhase, Part
from koala_adapter.scheduler.states import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.model import Component
    from koala_adapter.scheduler.context import Context, Handlers
    from koala_adapter.scheduler.records import Claim, JobRecord, PlaceholderRecord


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
    """Grant an application's request for processors, or prepare that it can be granted."""
    record = context.state.jobs.get(event.job_id)
    own = [] if record is None else [one for one, c in enumerate(record.claims) if c.component == event.component]
    if record is None or not own or event.number <= max(record.claims[one].last_request for one in own):
        return
    changes = Changes(context, record)
    claims = _claims_meant(changes, event, own)
    for one in own if event.agreement else own[:1]:
        record.claims[one].last_request = event.number
    claim, component = record.claims[claims[0]], record.job.component(event.component)
    for one in claims[:1] if component.takes_any_size else own:
        asked = record.change_on(one)
        if asked is not None and asked.phase is ChangePhase.ASKED:
            changes.answered(asked, 0)  # it asks for more instead of answering
    reason = "the application asked for it" if event.agreement else ""
    change = steps.new_change(context, record, [Part(claims[0], event.processors)], reason)
    change.agreement, change.asker, change.wish = event.agreement, event.rank, event.processors
    change.least = event.least
    lacking = _lacking_memory(changes, claims[0], event)
    change.memory_mib = 0 if lacking else event.memory_mib
    problem = _growth_problem(record, claims[0], event) or (lacking if event.memory_required else "")
    if problem:
        _answer(changes, change, 0, problem)
        return
    wanted = max(0, min(event.processors, bounds(record, claim)[1] - claim.processors))
    short = _why_not_more(record, claim, event.processors) if wanted < event.processors else ""
    free = {one: _free_for(changes, one, mandatory=event.mandatory) for one in claims}
    parts = _filled(free, wanted)
    granted = sum(part.processors for part in parts)
    if event.mandatory and granted < wanted:
        _promise(changes, change, free, wanted)
    else:
        _grant(changes, change, parts, short if granted == wanted else "no more is free")


def _growth_problem(record: JobRecord, number: int, event: ev.MoreRequested) -> str:
    """Return why a request cannot be granted whatever is free; empty when it can."""
    if not record.job.kind.varies:
        return f"a {record.job.kind.value} job keeps its size"
    if record.state is not JobState.RUNNING or record.ends:
        return "the job does not run"
    if record.ends_soon:
        return NEAR_END
    if event.cluster and record.claims[number].cluster != event.cluster:
        return f"component {event.component!r} cannot grow on {event.cluster}"
    return "another change is under way" if record.is_changing(number) else ""


def _why_not_more(record: JobRecord, claim: Claim, wanted: int) -> str:
    """Return which bound of a component limits its growth."""
    component = record.job.component(claim.component)
    size, coming = record.size(component.name), record.coming(component.name)
    limit = min(component.maximum, record.sizes_wanted.get(component.name, component.maximum))
    if claim.growth_refused:
        return f"{claim.cluster} refuses more placeholders for it: {claim.growth_refused}"
    if record.growth_rests and size + coming < limit:
        return "workers have ended by themselves, and no more are started for a while"
    if size + wanted <= limit:
        return f"{coming} more are offered to it already, or on their way"
    return f"its owner wants it to have {limit}" if limit < component.maximum else "its maximum is reached"


def _free_for(changes: Changes, number: int, *, mandatory: bool) -> int:
    cluster = steps.cluster_of(changes.context, changes.record, number)
    free = steps.free_on(changes.context, changes.record, number)
    each = changes.record.claims[number].slot_processors
    return free if mandatory else min(free, steps.free_for_growing(changes.context, cluster) // each)


def _filled(free: Mapping[int, int], wanted: int) -> list[Part]:
    """Return a part for each claim that gets some of the wanted processors; ``free``: those that it can have."""
    parts = shared_out([Part(one, count) for one, count in free.items()], free.values(), wanted)
    return [replace(part, processors=part.accepted) for part in parts]


def _promise(changes: Changes, change: Change, free: Mapping[int, int], wanted: int) -> None:
    """Reserve free processors on all clusters for a request, and let others make room for the rest."""
    context, record = changes.context, changes.record
    spare = {
        one: context.roster.on(steps.cluster_of(context, record, one).name).spare // record.claims[one].slot_processors
        for one in free
    }
    number = max(free, key=lambda one: (free[one] + spare[one], -one))
    elsewhere = _filled({one: count for one, count in free.items() if one != number}, wanted)
    here = Part(number, wanted - sum(part.processors for part in elsewhere))
    changes.move(change, ChangePhase.PROMISED, [here, *elsewhere])
    steps.abandon_after(context, record, change, context.state.parameters.placeholder_life)
    cluster = changes.cluster(here)
    cluster.promises.append(Promise(record.job.id, change.number, cluster.polled_at))
    keep_promises(context, cluster)


def keep_promises(context: Context, cluster: ClusterRecord) -> None:
    """Grant promised processors once they are free; make room where that was not tried."""
    while cluster.promises and cluster.step is None:
        promise = cluster.promises[0]
        changes = Changes(context, context.state.jobs[promise.job_id])
        change = changes.record.changes.get(promise.change)
        if change is None:
            cluster.promises.pop(0)
            continue
        number, wanted = change.parts[0].claim, change.parts[0].processors
        promised = steps.promised_on(context, cluster)  # later promises wait for this one
        free = steps.free_on(context, changes.record, number, kept=promised)
        if free < wanted and not change.shrunk_others:
            spare = context.roster.on(cluster.name).spare
            processors = wanted * changes.record.claims[number].slot_processors
            lacking = processors - min(cluster.room, cluster.load_free) - promised - cluster.ending
            overdrawn = cluster.load_free + promised < 0
            if overdrawn and lacking > spare and promise.polled_at == cluster.polled_at:
                return  # nodes are not listed at the same moment as jobs: what started in between may count twice
            change.shrunk_others = True
            if 0 < lacking <= spare:
                reason = f"job {changes.record.job.id} asked for {wanted} more"
                steps.start_step(context, cluster, Direction.SHRINK, lacking, reason=reason)
                continue
        if free < wanted and cluster.ending and change.due is not None:
            return  # what is on its way out may be what is missing
        able = {number: min(free, wanted)}
        for part in change.parts[1:]:
            kept = part.processors * changes.claim(part).slot_processors
            there = steps.free_on(context, changes.record, part.claim, kept=kept)
            able[part.claim] = min(there, part.processors)
        parts = _filled(able, change.processors)
        short = "the others could not give more" if sum(part.processors for part in parts) < change.processors else ""
        changes.end_promise(change)
        _grant(changes, change, parts, short)


def _grant(changes: Changes, change: Change, parts: list[Part], short: str) -> None:
    """Gather all parts; or offer them, when fewer than a negotiating application wants."""
    granted = sum(part.processors for part in parts)
    if change.agreement and 0 < granted < min(change.least, change.wish):
        short = f"{short}: {granted} can be had, and fewer than {change.least} are of no use to it"
        granted = 0
    elif change.agreement and 0 < granted < change.wish:
        change.countered = True
        changes.move(change, ChangePhase.ASKED, [replace(part, accepted=0) for part in parts])
        steps.abandon_after(changes.context, changes.record, change, changes.context.state.parameters.answer_timeout)
    elif granted > 0 and not changes.gather(change, parts):
        granted, short = 0, "no more is free"
    if not granted:
        changes.move(change, ChangePhase.OVER)
    _answer(changes, change, granted, short)


def _answer(changes: Changes, change: Change, granted: int, short: str) -> None:
    record = changes.record
    changes.context.effects.add(
        GrantProcessors(
            job_id=record.job.id,
            component=change.component,
            number=change.number if granted else 0,
            processors=granted,
            reason=short,
            agreement=change.agreement,
            rank=change.asker,
            countered=change.countered,
            memory_mib=change.memory_mib if granted else 0,
        )
    )


def _lacking_memory(changes: Changes, number: int, event: ev.MoreRequested) -> str:
    """Return why a claim's processors lack the requested memory; empty when they do not."""
    name = changes.record.claims[number].cluster
    if not event.memory_mib or name is None:
        return ""
    limit = changes.context.state.clusters[name].parameters.memory_limit
    if limit is None:
        return f"the site gives an application no more memory on {name}"
    if event.memory_mib > limit:
        return f"on {name} a processor comes with {limit} MiB of memory at most, not {event.memory_mib}"
    return ""


def _claims_meant(changes: Changes, event: ev.MoreRequested, own: list[int]) -> list[int]:
    """Return the claims with which a component may grow.

    One that negotiates grows on all clusters that it names and where nothing changes; where most is free, first.
    """
    if not event.agreement:
        return own[:1]
    context, record = changes.context, changes.record
    named = [one for one in own if event.cluster in {"", record.claims[one].cluster}]
    able = [one for one in named if record.claims[one].cluster is not None and not record.is_changing(one)]
    able = [one for one in able if not record.claims[one].growth_refused] or able
    able = [one for one in able if not _lacking_memory(changes, one, event)] or able
    free = {one: steps.free_on(context, record, one) for one in able}
    return sorted(able, key=lambda one: (-free[one], one)) or (named or own)[:1]


# -- Applications that return processors of their own accord -------------------------------------------------
# They change together when they do.


def less_requested(context: Context, event: ev.LessRequested) -> None:
    """Start taking back processors that an application offers: latest processes first, by cluster."""
    record = context.state.jobs.get(event.job_id)
    if record is None or event.component not in {one.name for one in record.job.components}:
        return
    problem = _returning_problem(record, event)
    first = 0
    if not problem:
        for number, count in _pieces(record, event.component, event.processors):
            change = steps.new_change(context, record, [Part(number, -count)], "the application gives them back")
            change.agreement, change.asker, change.wish = event.agreement, event.rank, count
            first = first or change.number
            Changes(context, record).await_release(change, count)
    context.effects.add(
        GrantProcessors(
            job_id=record.job.id,
            component=event.component,
            number=first,
            processors=0 if problem else event.processors,
            reason=problem,
            agreement=event.agreement,
            rank=event.rank,
        )
    )


def _returning_problem(record: JobRecord, event: ev.LessRequested) -> str:
    if not record.job.changes_size(event.component):
        return "this component keeps its size"
    if record.state is not JobState.RUNNING or record.ends:
        return "the job does not run"
    if any(change.component == event.component for change in record.changes.values()):
        return "another change is under way"
    size = record.size(event.component)
    left = size - event.processors
    minimum = record.job.component(event.component).minimum
    if left < 0:
        return f"it has {size} processors, and cannot give {event.processors} back"
    return f"{left} processors are below its minimum of {minimum}" if left < minimum else ""


def _pieces(record: JobRecord, component: str, count: int) -> list[tuple[int, int]]:
    """Return how many processors each claim gives up."""
    by_placeholder = {id_: number for number, claim in enumerate(record.claims) for id_ in claim.placeholders}
    ranks = [one for one in record.ranks if one.component == component and one.rank not in record.departed]
    last = [one.placeholder for one in ranks[len(ranks) - count :]]
    return sorted(Counter(by_placeholder[id_] for id_ in last if id_ in by_placeholder).items())


# -- Sizes that owners of running malleable jobs want --------------------------------------------------------
# They bound what the policies may do. What a component has beyond the wanted size is asked back, whatever the approach
# of the site. What it lacks is offered by the policies; where the approach changes no sizes, it gets what is free, is
# asked first if there are sizes that it cannot use, and what is not free is queued for.
#
# Such placeholders have *places* in the queue of their cluster, as those of a rigid job (docs/placement.md). One worker
# is of use without the others, so each placeholder is taken in when it is held. Idle processors of another cluster are
# taken first, and the places that they replace are given up. Where the policies of the site offer processors, they
# alone decide who waits for which, and nothing is queued.


def size_wanted(context: Context, event: ev.SizeWanted) -> None:
    """Store the wanted size of a component and act on it."""
    record = context.state.jobs.get(event.job_id)
    if record is None or record.state.final or event.component not in {one.name for one in record.job.components}:
        return
    component = record.job.component(event.component)
    record.sizes_wanted[component.name] = max(component.minimum, min(component.maximum, event.processors))
    record.sizes_asked_at = None
    for claim in record.claims:
        if claim.component == component.name and claim.cluster is not None:
            claim.excluded.pop(claim.cluster, None)  # its owner may know that it is of use to try again
    steps.wanted_again(context, record, component.name)
    context.roster.update(record)
    context.scan_wanted = True


def keep_to_wanted_sizes(context: Context) -> None:
    """Take back what components have beyond their wanted sizes; without an approach, also add what lacks."""
    limited = [context.state.jobs[job_id] for job_id in context.roster.limited]
    for record in sorted(limited, key=lambda one: one.start_number):  # after a restart the roster has another order
        for name in record.sizes_wanted:
            if record.job.changes_size(name) and record.state is JobState.RUNNING:
                ComponentSize(Changes(context, record), record.job.component(name)).keep()


class ComponentSize:
    """A component with a wanted size, while an event is handled."""

    def __init__(self, changes: Changes, component: Component) -> None:
        """``changes``: of its job."""
        self._changes = changes
        self._context = changes.context
        self._record = changes.record
        self._component = component
        self._claims = [one for one, c in enumerate(changes.record.claims) if c.component == component.name]
        """Their indices in the job."""
        self._wanted = changes.record.sizes_wanted[component.name]

    def keep(self) -> None:
        """Take back processors beyond the wanted size; without an approach, also add missing ones."""
        record, name = self._record, self._component.name
        lacking = self._wanted - record.size(name) - record.coming(name)
        surplus = -lacking - record.leaving(name)
        if surplus > 0 and not record.ends:
            self._ask_back(surplus)
        if self._context.state.parameters.approach is not Approach.NONE or record.ends or record.ends_soon:
            lacking = 0
        if lacking > 0 and not record.growth_rests:
            lacking -= self._take_places(lacking)
            lacking -= self._give(lacking)
        self._keep_places(lacking)

    def _ask_back(self, surplus: int) -> None:
        record, now = self._record, self._context.now
        pause = max(SHORTEST_PAUSE, self._context.state.parameters.scan_interval)
        if record.sizes_asked_at is not None and now < record.sizes_asked_at + pause:
            # An application that cannot give so much would be asked for ever. Nothing else may happen after the pause.
            if self._context.state.scan_due is None:
                self._context.timetable.for_scan(record.sizes_asked_at + pause)
            return
        for number in reversed(self._claims):
            change, claim = record.change_on(number), record.claims[number]
            if surplus > 0 and change is not None and change.phase is ChangePhase.GATHERING:
                surplus -= change.accepted
                trouble = record.last_trouble  # that its owner asked for it is none
                self._changes.give_up(change, "its owner wants it smaller")
                record.last_trouble = trouble
            if surplus > 0 and not record.is_changing(number) and claim.processors > 0:
                asked = min(surplus, claim.processors)
                surplus -= asked
                record.sizes_asked_at = now  # not where a change is under way: it is asked when that is over
                steps.ask(self._context, record, self._new(number, -asked))

    def _give(self, lacking: int) -> int:
        """Offer or gather free processors; return how many may come.

        A place that waits on a cluster stands for a processor that is free there.
        """
        given = 0
        for number in self._claims:
            claim = self._record.claims[number]
            if self._record.is_changing(number) or claim.growth_refused:
                continue
            cluster = steps.cluster_of(self._context, self._record, number)
            count = min(lacking - given - len(claim.places), steps.free_on(self._context, self._record, number))
            if count > 0 and not steps.growth_paused(self._context, cluster):
                change = self._new(number, count)
                if self._is_asked:
                    steps.ask(self._context, self._record, change)
                    return given + count  # the answer to more depends on this one
                if self._changes.gather(change, [Part(number, count, accepted=count)]):
                    given += count
        return given

    def _new(self, number: int, processors: int) -> Change:
        reason = f"its owner wants {self._wanted}"
        return steps.new_change(self._context, self._record, [Part(number, processors)], reason)

    @property
    def _is_asked(self) -> bool:
        """Whether the application is asked before it gets processors, and needs all at once."""
        return self._record.job.adapts(self._component.name) or not self._component.takes_any_size

    # ---- places in queues -------------------------------------------------------------------------------------------

    def _take_places(self, lacking: int) -> int:
        """Take over held places, as far as processors are lacking; return how many."""
        taken, placeholders = 0, self._context.state.placeholders
        for number in self._claims:
            claim = self._record.claims[number]
            if self._record.change_on(number) is not None:
                continue
            held = [id_ for id_ in claim.places if placeholders[id_].held][: max(0, lacking - taken)]
            late = [id_ for id_ in held if not placeholders[id_].lasts(self._context.now, self._changes.time_left)]
            if late:
                trouble = f"{len(late)} more on {claim.cluster}: they would end before the job's walltime does"
                self._record.last_trouble = trouble
                steps.pause_growth(self._context, steps.cluster_of(self._context, self._record, number))
                self._changes.give_up_places(number, late)
            elif held:
                change = self._new(number, len(held))
                self._context.ledger.remove_places(claim, held)
                self._changes.move(
                    change, ChangePhase.GATHERING, [Part(number, len(held), accepted=len(held), stubs=list(held))]
                )
                self._changes.take(change)
                taken += len(held)
        return taken

    def _keep_places(self, lacking: int) -> None:
        """Keep one queued place for each lacking processor.

        A job that takes no further workers for a while keeps its places, and gives back what it gets meanwhile.
        """
        rests, placeholders = self._record.growth_rests, self._context.state.placeholders
        missing = max(0, lacking) - sum(len(self._record.claims[number].places) for number in self._claims)
        for number in reversed(self._claims):
            claim = self._record.claims[number]
            if missing < 0:
                held = [id_ for id_ in claim.places if placeholders[id_].held]
                going = [*(id_ for id_ in reversed(claim.places) if id_ not in held), *held][:-missing]
                self._changes.give_up_places(number, going)
                missing += len(going)
            if rests:
                self._changes.give_up_places(number, [id_ for id_ in claim.places if placeholders[id_].held])
        # While jobs wait in the placement queue, the room is theirs.
        if missing > 0 and not rests and not self._is_asked and not len(self._context.queue):
            self._queue(missing)

    def _queue(self, missing: int) -> None:
        """Submit placeholders to queues, on clusters with the most processors beyond those asked for first."""
        claims, room = self._record.claims, {}
        for number in self._claims:
            if claims[number].cluster is not None and self._in_time(number):
                cluster = steps.cluster_of(self._context, self._record, number)
                room[number] = cluster.room_for(self._component.slot_on(cluster.name))
        for number in sorted(room, key=lambda one: (-room[one].load_free, one)):
            count = min(missing, room[number].room)
            if count > 0:
                self._context.ledger.add_places(claims[number], self._changes.submit_stubs(number, count))
                missing -= count

    def _in_time(self, number: int) -> bool:
        """Return whether placeholders may be queued for a claim and would last as long as the job."""
        cluster, left = steps.cluster_of(self._context, self._record, number), self._changes.time_left
        limit = cluster.parameters.walltime_limit
        is_open = closed_reason(cluster, self._context.now) is None and not steps.growth_paused(self._context, cluster)
        is_open = is_open and not self._record.claims[number].growth_refused
        return is_open and left > 0 and (limit is None or left <= limit)


def would_take(record: JobRecord, number: int) -> bool:
    """Tell whether a claim would take what comes free on its cluster, beyond the places that it has there."""
    name = record.claims[number].component
    lacking = record.sizes_wanted.get(name, 0) - record.size(name) - record.coming(name)
    return lacking > len(record.claims[number].places)


def place_lost(context: Context, placeholder: PlaceholderRecord) -> bool:
    """Handle the loss of a placeholder; return whether it was such a place."""
    record = context.state.jobs.get(placeholder.job_id)
    for claim in () if record is None else record.claims:
        if record is not None and placeholder.id in claim.places:
            context.ledger.remove_places(claim, [placeholder.id])
            placeholder.stub = False
            record.last_trouble = f"one more on {claim.cluster}: {why_lost(claim, placeholder)}"
            steps.pause_growth(context, context.state.clusters[placeholder.cluster])
            return True
    return False


HANDLERS: Handlers = {
    ev.MoreRequested: more_requested,
    ev.LessRequested: less_requested,
    ev.SizeWanted: size_wanted,
}

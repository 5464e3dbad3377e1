# SPDX-License-Identifier: Apache-2.0
"""Places in the queues of batch systems, for workers that an owner wants and for which no processor is idle.

Where the site's approach changes no sizes, only the owner's word does, and as for a rigid job what is not idle is
queued for (docs/placement.md). One worker is of use without the others, so each placeholder is taken in when it is
held. Idle processors of another cluster are taken before, and the places that they stand for are given up. Where the
policies of the site offer processors, they alone decide who waits for which, and nothing is queued.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.scheduler.changes import ChangePhase
from koala_adapter.scheduler.claiming.lifecycle import end_placeholder
from koala_adapter.scheduler.context import closed_reason
from koala_adapter.scheduler.malleable.growing import pause_growth, submit_stubs, take, time_left
from koala_adapter.scheduler.malleable.hysteresis import growth_paused
from koala_adapter.scheduler.malleable.jointgrowth import Part
from koala_adapter.scheduler.malleable.steps import cluster_of, new_change

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.model import Component, PlaceholderId
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.records import Claim, JobRecord, PlaceholderRecord


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
            _give_up(context, claim, late)
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
            _give_up(context, claim, going)
            missing += len(going)
        if record.growth_rests:
            _give_up(context, claim, [id_ for id_ in claim.places if context.state.placeholders[id_].held])
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
    asked = record.job.adapts(component.name) or component.sizes != "any"
    return context.state.parameters.growth_is_queued and not asked and not len(context.queue)


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
            record.last_trouble = f"one more on {claim.cluster}: placeholder {placeholder.id} was lost"
            pause_growth(context, context.state.clusters[placeholder.cluster])
            return True
    return False


def return_places(context: Context, claim: Claim) -> None:
    """Give up all places of a claim: its job has ended."""
    _give_up(context, claim, claim.places)


def _give_up(context: Context, claim: Claim, going: Sequence[PlaceholderId]) -> None:
    if not going:
        return
    context.ledger.remove_places(claim, going)
    for id_ in going:
        placeholder = context.state.placeholders[id_]
        placeholder.stub = False
        end_placeholder(context, placeholder)
    context.scan_wanted = True
